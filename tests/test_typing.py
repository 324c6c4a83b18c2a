"""What type checkers say of calls: right ones pass, each wrong one is reported, by mypy and by pyright.

The programs are texts, so that the checks of the project itself leave the wrong one alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).parent / "typing_cases"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, outside of the project: its own settings for checkers do not count."""
    folder = tmp_path_factory.mktemp("typing")
    for case in ("right", "wrong"):
        shutil.copy(CASES / f"{case}.txt", folder / f"{case}.py")
    return folder


def mypy(folder: Path) -> dict[str, set[int]]:
    (folder / "mypy.ini").write_text("[mypy]\n")
    options = ["--strict", "--config-file", "mypy.ini", "--no-error-summary"]
    options += ["--cache-dir", str(ROOT / ".mypy_cache" / "typing")]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout
    return _lines(re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", run.stdout, re.MULTILINE))


def pyright(folder: Path) -> dict[str, set[int]]:
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=folder,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    return _lines(
        [
            (Path(one["file"]).stem, one["range"]["start"]["line"] + 1, one["message"])
            for one in report["generalDiagnostics"]
            if one["severity"] == "error"
        ]
    )


def _lines(errors: list[tuple[str, str | int, str]]) -> dict[str, set[int]]:
    for error in errors:
        print(*error)  # shown when the test fails
    return {case: {int(line) for stem, line, _ in errors if stem == case} for case in ("right", "wrong")}


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_right_calls_pass_and_each_wrong_one_is_reported(checker: object, folder: Path) -> None:
    assert callable(checker)
    reported = checker(folder)
    text = (CASES / "wrong.txt").read_text().splitlines()
    wrong = {number for number, line in enumerate(text, 1) if line.endswith("# wrong")}
    assert len(wrong) > 40
    assert reported == {"right": set(), "wrong": wrong}


def test_the_right_calls_also_run() -> None:
    """As far as a program goes that only declares: annotations and options are read without complaint."""
    space: dict[str, object] = {"__name__": "right"}
    exec(compile((CASES / "right.txt").read_text(), "right.py", "exec", dont_inherit=True), space)
    assert len(space["app"].tasks) == 14  # type: ignore[attr-defined]
