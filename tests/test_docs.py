"""The documentation is true: every example runs as written, and everything it names exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from pages import PAGES, ROOT, Block, Mistake, blocks_of, fits, prose_of, read

import dray
from dray import errors
from dray.cli.main import cli
from dray.observe.table import TABLE, full_name
from dray.settings import describe, load

NOT_RUN = {
    ("docs/grpc.md", "pip install"): "the tests run against this checkout",
    ("docs/dashboard.md", "pip install"): "tests/test_dev.py does it",
    ("docs/grpc.md", "grpcurl"): "needs grpcurl",
    ("CONTRIBUTING.md", "python -m venv build"): "generates what is compared by a test",
    ("README.md", "make demo"): "the demo and the tests themselves have tests",
    ("CONTRIBUTING.md", "make sim"): "runs for as long as one likes",
    ("docs/tutorial.md", "pip install dray"): "the tests run against this checkout",
    ("docs/deploy-systemd.md", "sudo install"): "needs systemd",
    ("docs/deploy-docker.md", "export DRAY_API_KEYS"): "needs a container engine",
    ("docs/deploy-kubernetes.md", "kubectl apply"): "needs a cluster",
    (
        "docs/priorities.md",
        "dray worker -A shop:app  ",
    ): "workers that never end, of no app here",
    ("docs/metrics.md", "dray worker -A shop:app --metrics"): "a worker that never ends",
    ("docs/workers.md", "dray worker -Q gpu,any"): "workers that never end, on three machines",
    ("docs/workers.md", "dray scheduler"): "never ends; the same as a worker that has tests",
    ("docs/flow-control.md", "dray queues limit default"): "the same as what is run above it",
    ("docs/flow-control.md", "dray queues pause email"): "the same as what is run above it",
    ("docs/cancellation.md", "dray jobs cancel ID"): "stands for an id of the reader's own",
    ("docs/django.md", "# proj/jobs.py"): "a part of examples/django-shop, which has a test",
    ("docs/django.md", "# proj/settings.py"): "a part of examples/django-shop, which has a test",
    ("docs/django.md", "# orders/tasks.py"): "a part of examples/django-shop, which has a test",
    ("docs/django.md", "# orders/views.py"): "a part of examples/django-shop, which has a test",
}
"""Blocks that no test runs: page, how the block begins, and why. Everything else is run."""

OTHER_VARIABLES = {"DRAY_APP", "DRAY_DEBUG", "DRAY_SIM_SECONDS", "DRAY_TRUST_FOLDER", "DRAY_WALK_SECONDS"}
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# examples


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_example_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    read(blocks_of(page), folder)


def test_what_is_not_run_is_listed_with_a_reason() -> None:
    skipped = [block for block in BLOCKS if "no-run" in block.words]
    unlisted = [block.where for block in skipped if _listed(block) is None]
    assert unlisted == []
    assert {_listed(block) for block in skipped} == set(NOT_RUN), "listed, but not there any more"


def _listed(block: Block) -> tuple[str, str] | None:
    return next(
        ((page, begin) for page, begin in NOT_RUN if page == block.page and block.body.startswith(begin)),
        None,
    )


def test_a_drawing_holds_no_commands() -> None:
    """A block without a language is not run: what a reader could type belongs into one that is."""
    drawn = [block for block in BLOCKS if block.language == ""]
    typed = re.compile(r"^(?:\$ |make |dray |python |pip |from \w+ import|import )", re.M)
    assert [block.where for block in drawn if typed.search(block.body)] == []


def test_every_toml_example_is_a_valid_settings_file(tmp_path: Path) -> None:
    for number, block in enumerate(block for block in BLOCKS if block.language == "toml"):
        folder = tmp_path / str(number)
        folder.mkdir()
        name = "pyproject.toml" if "[tool.dray]" in block.body else "dray.toml"
        (folder / name).write_text(block.body, "utf-8")
        load(start=folder, environ={})


# names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            lost.append(target)
    assert lost == []


def _anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_on_the_map() -> None:
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (ROOT / "docs" / "index.md").read_text("utf-8")))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} == linked


def _quoted(page: Path) -> Iterator[str]:
    """What a page has in backticks, and the lines of its shell examples."""
    yield from re.findall(r"`([^`\n]+)`", prose_of(page))
    for block in blocks_of(page):
        if block.language == "sh":
            yield from (line.partition(" #")[0] for line in block.body.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_is_named_exists(page: Path) -> None:
    wrong = [text for text in _quoted(page) if text.startswith("dray ") and not _is_command(text)]
    assert wrong == []


def _is_command(text: str) -> bool:
    """Whether commands and options exist. Dots, slashes and capitals stand for what the reader fills in."""
    words = [word for word in shlex.split(text, comments=True)[1:] if word not in ("…", "...", "[…]")]
    command: click.Command = cli
    context = click.Context(cli)
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        if found is None:
            return False
        command = found
    known = {option for one in (cli, command) for parameter in one.params for option in parameter.opts}
    known |= {"-h", "--help"}
    given = {
        part for word in words for part in word.partition("=")[0].split("/") if re.match(r"--?[a-zA-Z]", part)
    }
    return given <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    named = {text.split()[1] for text in _quoted(page) if re.match(r"make [a-z]", text)}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_of_the_project_that_is_named_exists(page: Path) -> None:
    """Paths from the root, or from the package (`broker/verbs.py`, `twins.py`), in backticks."""
    missing = []
    for text in re.findall(
        r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|sql|json)|(?:src|tests|docs|bench)/[\w./-]*)`", prose_of(page)
    ):
        places = (ROOT, ROOT / "src" / "dray", ROOT / "docs", ROOT / "tests")
        made_here = {block.file for block in blocks_of(page)}
        if text not in made_here and not any((place / text).exists() for place in places):
            missing.append(text)
    assert [text for text in missing if not _is_somebody_elses(text)] == []


def _is_somebody_elses(text: str) -> bool:
    return text in {"pyproject.toml", "bench/out/sqlite.json", "test_shop.py"} or any(
        (ROOT / "src" / "dray").rglob(text)
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_that_is_named_is_that_of_a_setting(page: Path) -> None:
    known = {setting.env for setting in describe()} | OTHER_VARIABLES
    named = set(re.findall(r"\bDRAY_[A-Z_]*[A-Z]\b", page.read_text("utf-8")))
    assert named <= known


STRANGE_WORDS = {"busy_timeout", "close_old_connections", "max_ms", "seen_at", "task_routes"}
"""Names of other projects, and keys of JSON that the code puts together from parts."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_and_option_that_is_named_exists(page: Path) -> None:
    """Words of several parts in backticks, like `result_ttl`, are words of the code."""
    word = r"[a-z]+(?:_[a-z]+)+"
    named = set(re.findall(rf"`(?:[\w.]+\.)?({word})(?:[=(][^`]*)?`", prose_of(page)))
    assert named - _words_of_the_code(word) - STRANGE_WORDS - {full_name(name) for name in TABLE} == set()


@lru_cache
def _words_of_the_code(word: str) -> set[str]:
    files = [file for kind in ("py", "sql", "proto") for file in (ROOT / "src").rglob(f"*.{kind}")]
    return {found for file in files for found in re.findall(rf"\b{word}\b", file.read_text("utf-8"))}


# reference


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


API = ROOT / "docs" / "api.md"


def test_the_tables_of_the_reference_are_those_of_the_code(reference: ModuleType) -> None:
    text = API.read_text("utf-8")
    assert reference.write(text) == text, "out of date: run `python docs/reference.py`"


def test_every_public_name_is_in_the_reference() -> None:
    text = API.read_text("utf-8") + (ROOT / "docs" / "errors.md").read_text("utf-8")
    assert [
        name for name in dray.__all__ if not re.search(rf"`(await )?{name}\b|\b{name}\(|:{name} ", text)
    ] == []


def _option_tables() -> list[tuple[str, list[str]]]:
    tables = re.findall(
        r"<!-- options: ([\w.:]+(?: \+ \w+)?) -->\n\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", API.read_text("utf-8")
    )
    return [
        (source, [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])])
        for source, rows in tables
    ]


@pytest.mark.parametrize(("source", "told"), _option_tables(), ids=lambda value: str(value)[:30])
def test_every_option_is_told_once_and_no_other(source: str, told: list[str]) -> None:
    path, _, more = source.partition(" + ")
    module, _, name = path.partition(":")
    target: Any = getattr(import_module(module), name)
    known = [str(one) for one in target] if name == "State" else list(target.__annotations__)
    assert sorted(told) == sorted(known + ([more] if more else []))


def test_the_tables_of_options_are_all_seen() -> None:
    assert len(_option_tables()) == API.read_text("utf-8").count("<!-- options:") > 5


def test_every_error_is_explained_once_and_no_other() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    told = re.findall(r"^\| `([A-Z]\w+)` \|", page, re.M)
    known = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert sorted(told) == sorted([*known, "Retry", "Reject"])


# the reader itself


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a …\n", "a whatever it is\n", True),
        ("a …\n", "a\nb\n", False),
        ("…\nz\n", "a\nb\nz\n", True),
        ("…\nz\n", "a\nb\n", False),
        ("ID  TASK\n", "ID     TASK\n", True),
        ("  a\n", "a\n", False),
        ("(.*)\n", "anything\n", False),
    ],
)
def test_expected_output_is_compared_as_said(expected: str, printed: str, same: bool) -> None:
    assert fits(expected, printed) is same


def _block(body: str, language: str = "python", *words: str) -> Block:
    return Block("page.md", 1, language, frozenset(words), body)


@pytest.mark.parametrize(
    "blocks",
    [
        [_block("1 / 0\n")],
        [_block("print(1)\n"), _block("2\n", "text")],
        [_block("print('nobody shows this')\n"), _block("pass\n")],
        [_block("exit 3\n", "sh")],
        [_block("true\n", "sh", "fails")],
        [_block("echo a\n", "sh"), _block("b\n", "text")],
        [_block("a\n", "text")],
        [_block("select 1\n", "sql")],
        [_block("true\n", "sh", "dry-run")],
        [_block("import warnings; warnings.warn('old')\n")],
    ],
)
def test_a_page_that_is_wrong_is_found(blocks: list[Block], tmp_path: Path) -> None:
    with pytest.raises(Mistake):
        read(blocks, tmp_path)


@pytest.mark.parametrize(
    ("text", "exists"),
    [
        ("dray jobs ls --state dead", True),
        ("dray worker -A shop:app -Q default,email", True),
        ("dray why ID", True),
        ("dray jbos ls", False),
        ("dray jobs list", False),
        ("dray worker --bursts", False),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, exists: bool) -> None:
    assert _is_command(text) is exists
