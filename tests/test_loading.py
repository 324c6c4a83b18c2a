"""Finding the app that a command names; when it cannot be found, why and where."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray import App, AppNotFound, InvalidInput
from dray.loading import load_app

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into a folder that is the current one; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


APP = "from dray import App\napp = App('shop', broker='memory://')\n"


def test_an_app_is_found_by_module_and_attribute(write: Write) -> None:
    write("shop_a.py", APP)
    write("pkg_a/__init__.py", "")
    write("pkg_a/deep.py", APP + "class Holder: inner = app\n")
    assert isinstance(load_app("shop_a:app"), App)
    assert load_app("shop_a") is load_app("shop_a:app")
    assert load_app("pkg_a.deep:Holder.inner").name == "shop"


def test_modules_are_looked_for_in_a_given_folder(write: Write, tmp_path: Path) -> None:
    write("elsewhere/shop_b.py", APP)
    assert load_app("shop_b:app", tmp_path / "elsewhere").name == "shop"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "write module:attribute, for example module:app"),
        (":app", "write module:attribute"),
        ("shop.py", "for example shop:app"),
        ("./src/shop.py:app", "for example src.shop:app"),
        ("src/shop", "for example src.shop:app"),
    ],
)
def test_what_is_no_module_path_is_told_how_to_write_one(write: Write, path: str, says: str) -> None:
    with pytest.raises(AppNotFound) as missing:
        load_app(path)
    assert says in str(missing.value)


def test_a_module_that_is_not_there_says_where_it_was_looked_for(write: Write, tmp_path: Path) -> None:
    with pytest.raises(AppNotFound, match=f"no module 'nowhere_c': looked in {tmp_path}"):
        load_app("nowhere_c:app")
    write("pkg_c/__init__.py", "")
    with pytest.raises(AppNotFound, match=r"no module 'pkg_c.inner'"):
        load_app("pkg_c.inner:app")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import os\nimport not_installed_d\n", 2, "No module named 'not_installed_d'"),
        ("x = 1\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("x = 1\ndef (:\n", 2, "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("from dray import App\nApp('a b')\n", 2, "InvalidInput"),
    ],
)
def test_a_module_that_fails_says_in_which_file_and_line(
    write: Write, tmp_path: Path, text: str, line: int, says: str
) -> None:
    write("failing_d.py", text)
    with pytest.raises(AppNotFound) as missing:
        load_app("failing_d:app")
    assert "importing 'failing_d' failed" in str(missing.value)
    assert says in str(missing.value)
    assert f"{tmp_path / 'failing_d.py'}, line {line}" in str(missing.value)
    assert missing.value.__cause__ is not None


def test_an_error_deep_below_names_its_own_file_and_not_the_one_that_imported_it(
    write: Write, tmp_path: Path
) -> None:
    write("outer_e.py", "import inner_e\n" + APP)
    write("inner_e.py", "def boom():\n    raise KeyError('x')\nboom()\n")
    with pytest.raises(AppNotFound, match=f"{tmp_path / 'inner_e.py'}, line 2: KeyError: 'x'"):
        load_app("outer_e:app")


def test_an_attribute_that_is_no_app_says_what_is_there(write: Write) -> None:
    write("shop_f.py", APP + "other = App('other', broker='memory://')\nnumber = 5\n")
    with pytest.raises(AppNotFound, match="nothing is there, and an App is wanted; it has app, other"):
        load_app("shop_f:missing")
    with pytest.raises(AppNotFound, match="a int is there, and an App is wanted"):
        load_app("shop_f:number")
    with pytest.raises(AppNotFound, match=r"several Apps \(app, other\): say which; write shop_f:attribute"):
        load_app("shop_f")
    write("empty_f.py", "")
    with pytest.raises(AppNotFound, match="no App at all"):
        load_app("empty_f:app")
    with pytest.raises(AppNotFound, match="has no App"):
        load_app("empty_f")


def test_keyboard_interrupt_is_let_through(write: Write) -> None:
    write("stopped_g.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_app("stopped_g:app")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("@app.task(name='a:b')\ndef f(): ...\n", 4, "no colon: a.b would do"),
        ("@app.task(queu='x')\ndef f(): ...\n", 4, "queu"),
        ("@app.cron('whenever')\n@app.task\ndef f(): ...\n", 4, "whenever"),
        ("@app.task\ndef f(): ...\n@app.task\ndef f(): ...\n", 6, "is a task of this name already"),
        ("import json\njson.loads('{')\n", 5, "JSONDecodeError"),
        ("app.enqueue('f')\napp.autodiscover('nowhere_k')\n", 5, "no 'nowhere_k' to import"),
    ],
)
def test_an_error_that_a_library_raises_points_at_the_line_of_the_user(
    write: Write, tmp_path: Path, text: str, line: int, says: str
) -> None:
    write("faulty_k.py", APP + "\n" + text)
    with pytest.raises(AppNotFound) as missing:
        load_app("faulty_k:app")
    assert f"{tmp_path / 'faulty_k.py'}, line {line}: " in str(missing.value)
    assert says in str(missing.value)


# several modules

TASK = "from {app} import app\n@app.task(name='{name}')\ndef task(): ...\n"


def test_the_setting_imports_names_modules_that_are_imported_as_well(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("shop_g.py", APP)
    write("more_g/one.py", TASK.format(app="shop_g", name="one"))
    write("two_g.py", TASK.format(app="shop_g", name="two"))
    monkeypatch.setenv("DRAY_IMPORTS", "more_g.one,two_g")
    assert sorted(load_app("shop_g:app").tasks) == ["one", "two"]


def test_an_import_that_is_not_there_or_fails_says_who_wants_it(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("shop_h.py", APP)
    write("bad_h.py", "\n1 / 0\n")
    monkeypatch.setenv("DRAY_IMPORTS", "nowhere_h")
    with pytest.raises(AppNotFound, match=r"no module 'nowhere_h' \(setting imports, from DRAY_IMPORTS\)"):
        load_app("shop_h:app")
    del sys.modules["shop_h"]
    monkeypatch.setenv("DRAY_IMPORTS", "bad_h")
    with pytest.raises(AppNotFound, match=r"importing 'bad_h' \(setting imports.*bad_h.py, line 2: ZeroDiv"):
        load_app("shop_h:app")


def test_every_tasks_module_below_a_package_is_found_and_nothing_else_is_imported(write: Write) -> None:
    write("proj_i/__init__.py", "")
    write("proj_i/app.py", APP + "found = app.autodiscover('proj_i')\n")
    write("proj_i/tasks.py", TASK.format(app="proj_i.app", name="top"))
    write("proj_i/users/__init__.py", "")
    write("proj_i/users/tasks.py", TASK.format(app="proj_i.app", name="users"))
    write("proj_i/deep/er/tasks/__init__.py", TASK.format(app="proj_i.app", name="deeper"))
    write("proj_i/empty/__init__.py", "raise RuntimeError('no need to import this')")
    write("proj_i/empty/other.py", "raise RuntimeError")
    write("proj_i/not-a-package/tasks.py", "raise RuntimeError")
    app = load_app("proj_i.app:app")
    assert sorted(app.tasks) == ["deeper", "top", "users"]
    assert sys.modules["proj_i.app"].found == ["proj_i.deep.er.tasks", "proj_i.tasks", "proj_i.users.tasks"]
    assert app.autodiscover("proj_i.users", module="jobs") == []


def test_it_does_not_matter_which_module_is_imported_first(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write("proj_j/__init__.py", "")
    write("proj_j/app.py", APP + "app.autodiscover('proj_j')\n")
    for name in ("a", "b"):
        write(f"proj_j/{name}/__init__.py", "")
        write(f"proj_j/{name}/tasks.py", TASK.format(app="proj_j.app", name=name))
    first = importlib.import_module("proj_j.b.tasks")
    assert sorted(first.app.tasks) == ["a", "b"]


def test_an_error_inside_a_tasks_module_comes_out_at_its_line(write: Write, tmp_path: Path) -> None:
    write("proj_l/__init__.py", "")
    write("proj_l/app.py", APP + "app.autodiscover('proj_l')\n")
    write("proj_l/tasks.py", "import not_installed_l\n")
    with pytest.raises(AppNotFound, match=f"{tmp_path}/proj_l/tasks.py, line 1: .*not_installed_l"):
        load_app("proj_l.app:app")
    app = App("shop", broker="memory://")
    with pytest.raises(ModuleNotFoundError, match="not_installed_l"):
        app.autodiscover("proj_l")


def test_what_cannot_be_discovered_is_told(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write("module_m.py", "")
    write("proj_m/__init__.py", "import not_installed_m")
    app = App("shop", broker="memory://")
    with pytest.raises(InvalidInput, match="name at least one"):
        app.autodiscover()
    with pytest.raises(InvalidInput, match="there is no 'nowhere_m' to import"):
        app.autodiscover("nowhere_m.inner")
    with pytest.raises(InvalidInput, match="this is a module"):
        app.autodiscover("module_m")
    with pytest.raises(ModuleNotFoundError, match="not_installed_m"):
        app.autodiscover("proj_m")
