"""Finding the app that a command names; when it cannot be found, why and where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray import App, AppNotFound
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
    if "InvalidInput" not in says:
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
