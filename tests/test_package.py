"""What is shipped: the wheel, and the files of the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from size import checks, count_lines, runtime

import dray

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dray"

OUTSIDE = re.compile(
    "|".join(
        (
            r"(?<![\w.~*-])/(?:root|work|home)/",
            r"index-" + "url",
            r'"resolved": ' + '"http',
            r"py" + r"pi\.org",
            r"python" + "hosted",
            r"npm" + r"js\.(?:org|com)",
        )
    )
)
"""Paths of one machine and names of registries: true for one reader only, so they stay out of every file."""

INSTALLED_LINES_MAX, CODE_LINES_MAX = 68_800, 49_800
"""A ratchet: all lines, and those of code, of what is installed. They grow only with a new capability."""
TESTS_PER_RUNTIME_MIN = 1.01
"""A ratchet: the number only gets larger."""
WORKSHOP = {"sim", "walk", "tests", "bench", "examples", "conftest.py"}
"""Folders and files that serve only this repository."""

BUILT = {"build", "dist", "__pycache__", "node_modules"}


def tracked_files() -> list[Path]:
    """The repository's files: what git knows or would add; without git, all but what tools leave behind."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if listing.returncode == 0:
            names = [name for name in listing.stdout.split("\0") if name]
            return [ROOT / name for name in names if (ROOT / name).is_file()]
    return list(_walk(ROOT))


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in BUILT or path.suffix == ".egg-info" or (path.name[0] == "." and path.name != ".ci"):
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def _copy_for_building(target: Path) -> None:
    """What a build reads. A copy, because others may write in the tree meanwhile."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    left = shutil.ignore_patterns("__pycache__", "node_modules")
    shutil.copytree(ROOT / "ui", target / "ui", ignore=left)
    shutil.copytree(SOURCE, target / "src" / "dray", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the source with the tools that are installed: no network."""
    folder = tmp_path_factory.mktemp("build")
    _copy_for_building(folder)
    build = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    [made] = (folder / "out").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_unpacked(folder: Path, code: str, cwd: Path) -> str:
    """Run code with the unpacked wheel and its dependencies, but without the editable install."""
    paths = [str(folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", f"import sys; sys.path += {paths!r}\n{code}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    source = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == source
    assert "dray/py.typed" in packed
    assert {name for name in source if name.endswith((".sql", ".lua"))} <= packed
    assert [name for name in packed if WORKSHOP & set(Path(name).parts)] == []


def test_the_package_shrinks_and_the_tests_outweigh_it() -> None:
    installed = runtime()
    assert installed.total <= INSTALLED_LINES_MAX
    assert installed.code <= CODE_LINES_MAX
    assert checks().total >= TESTS_PER_RUNTIME_MIN * installed.total


def test_code_lines_leave_out_blanks_comments_and_docstrings(tmp_path: Path) -> None:
    python, lua = tmp_path / "some.py", tmp_path / "some.lua"
    python.write_text('"""Two\nlines."""\n\n# why\nx = """not\nprose"""  # kept\n"""Of x."""\n')
    lua.write_text("-- why\n\nlocal x = 1 -- kept\n")
    assert count_lines(python) == (7, 2)
    assert count_lines(lua) == (3, 1)


def test_the_wheel_is_pure_and_carries_the_licence(wheel: Path) -> None:
    assert wheel.name == f"dray-{dray.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        [licence] = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_server_needs_an_h11_that_reads_one_request_as_one(metadata: Message) -> None:
    needed = metadata.get_all("Requires-Dist") or []
    assert [line for line in needed if line.startswith("h11>=0.16") and "server" in line]


def test_the_wheel_names_its_extras(metadata: Message) -> None:
    extras = {"redis", "server", "grpc", "otel", "postgres", "yaml", "zstd", "dev", "all"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras


@pytest.mark.parametrize("extra", ["redis", "server"])
def test_uvloop_comes_with_an_extra_where_there_are_wheels_of_it(metadata: Message, extra: str) -> None:
    needed = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("uvloop>=")]
    (line,) = [line for line in needed if f"extra == '{extra}'" in line]
    assert "sys_platform != 'win32' and platform_python_implementation == 'CPython'" in line


def test_the_core_needs_five_packages_and_time_zones_where_the_system_has_none(metadata: Message) -> None:
    needs = [str(need) for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in str(need)]
    usual = {re.split(r"[^\w-]", need)[0] for need in needs if "platform_system" not in need}
    assert usual == {"click", "cronsim", "msgspec", "rich", "uuid-utils"}
    assert [need for need in needs if "platform_system" in need] == ["tzdata; platform_system == 'Windows'"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Version"] == dray.__version__


def test_the_wheel_imports_without_being_installed(unpacked: Path, tmp_path: Path) -> None:
    code = "import dray, dray.broker; print(dray.__file__); print(dray.State.DEAD)"
    where, state = run_unpacked(unpacked, code, tmp_path).splitlines()
    assert Path(where).is_relative_to(unpacked)
    assert state == "dead"


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_a_broker_opened_from_the_wheel_takes_jobs(unpacked: Path, tmp_path: Path, url: str) -> None:
    code = f"""
import asyncio
from dray import connect
from dray.job import Job

async def main():
    broker = await connect({url!r})
    try:
        [accepted] = await broker.put([Job(id="one", task="hello")])
        [record] = await broker.get(["one"])
        print(accepted.verdict, record.state, record.job.task)
    finally:
        await broker.close()

asyncio.run(main())
"""
    assert run_unpacked(unpacked, code, tmp_path).split() == ["created", "ready", "hello"]


def test_every_command_works_or_says_what_to_install_without_any_extra(
    unpacked: Path, tmp_path: Path
) -> None:
    code = """
import io, contextlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

EXTRAS = {"hiredis", "starlette", "uvicorn", "prometheus_client", "grpc", "google", "opentelemetry",
          "asyncpg", "backports", "yaml", "uvloop", "httpx", "pydantic"}
sys.meta_path.insert(0, Missing())
from dray.cli.main import cli, main
import click
for name in cli.list_commands(click.Context(cli)):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([name, "--help"]) == 0, name
for args in (["doctor"], ["enqueue", "hello"], ["jobs", "ls"], ["workers", "ls"], ["schedules", "ls"],
             ["worker", "--burst", "-p", "1"], ["server"]):
    print(main(args), file=sys.__stdout__)
"""
    (tmp_path / "shop.py").write_text(
        "from dray import App\napp = App('shop')\n@app.task\ndef hello(): return 1\n"
    )
    (tmp_path / "dray.toml").write_text('app = "shop:app"\n')
    said = run_unpacked(unpacked, code, tmp_path)
    assert said.splitlines()[-1] == "1", said  # the server alone cannot do without
    assert [line for line in said.splitlines() if line in ("0", "1")] == ["0"] * 6 + ["1"]


def test_no_file_speaks_of_one_machine_or_one_registry() -> None:
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            if OUTSIDE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize("where", ["root", "work", "home"])
def test_a_path_of_one_machine_would_be_found(where: str) -> None:
    planted = f"/{where}/"
    for line in (f"see {planted}x", f"'{planted}'", f"sqlite:///{planted}jobs.db", f"x={planted}"):
        assert OUTSIDE.search(line), line
    for line in (f"net{planted}x", f"docs{planted}x", f"~{planted}"):
        assert not OUTSIDE.search(line), line


def test_the_scan_sees_the_files_it_should() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    assert {"pyproject.toml", "Makefile", ".ci/run", "src/dray/__init__.py", "tests/test_package.py"} <= names
    assert not [name for name in names if name.startswith((".venv/", ".git/"))]


@pytest.mark.parametrize(
    "name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "constraints.txt"]
)
def test_the_repository_has_what_a_newcomer_looks_for(name: str) -> None:
    assert (ROOT / name).read_text("utf-8").strip()


def test_every_pin_is_exact_and_every_direct_need_is_pinned(metadata: Message) -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [
        pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+(; python_version [<>]=? '3\.\d+')?", pin)
    ] == []
    pinned = {_canonical(pin.partition("==")[0]) for pin in pins}
    needed = {
        _canonical(re.split(r"[^\w.-]", str(need))[0])
        for need in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in str(need) or re.search(r"extra == ['\"]dev['\"]", str(need))
    }
    assert needed <= pinned


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    [phony] = re.findall(r"^\.PHONY:((?:.*\\\n)*.*)$", text, re.M)
    targets = set(phony.replace("\\\n", " ").split())
    described = dict(re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.M))
    assert set(described) == targets
    assert {"help", "demo", "test", "lint", "types", "format", "bench", "sim", "size", "wheel"} <= targets


def test_the_ci_script_can_be_run_and_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    text = script.read_text("utf-8")
    assert "set -euo pipefail" in text
    assert {"make test", "make test-more"} <= set(text.splitlines())
    assert "||" not in text
