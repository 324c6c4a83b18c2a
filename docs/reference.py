"""Writes the tables of docs/api.md from the code: `python docs/reference.py`, or `--check` to only compare.

A line `<!-- table: dray.handle:JobHandle -->` stands above each table; what is between it and `<!-- end -->`
is written here. `without` in that line names members that are internal. The tables below
`<!-- options: dray.options:… -->` come from the table of options. People write all other text of the page.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dray.options import CALL_OPTIONS, TASK_OPTIONS, Option
from dray.settings import describe

PAGE = Path(__file__).with_name("api.md")
_TABLE = re.compile(r"(<!-- table: ([\w.]+):(\w+)(?: without ([\w ]+))? -->\n).*?(<!-- end -->)", re.S)
_OPTIONS = re.compile(r"(<!-- options: dray\.options:(\w+)(?: \+ name)? -->\n)((?:\|.*\|\n)+)")
_MORE = {
    "backoff": "A task may give a function `(attempt, error) -> seconds`: [retries.md](retries.md).",
    "deadline": "See [retries.md](retries.md#deadlines).",
    "dedicated": "See [priorities.md](priorities.md#queues).",
    "headers": "`ctx.headers` where it runs.",
    "on_duplicate": "`job.duplicate` says that there was one.",
    "result_ttl": "`get` then raises `NoResult`.",
    "speculate": "See [stragglers.md](stragglers.md).",
}
"""What docs/api.md says of an option beyond its one sentence."""
_SHORT = (
    (r"(: |-> )'([^']*)'", r"\1\2"),
    (r"\bbuiltins\.", ""),
    (r": Unpack\[\w+\]", ""),
    (r": P\.(kw)?args", ""),
    (r"\bTimeout\b", "float | None"),
    (r"\bDuration\b", "float | str | timedelta"),
)
"""Names that mean something in the source only, and what readers are told instead."""


def write(text: str) -> str:
    """The page with every table as the code has it now."""

    def fill(match: re.Match[str]) -> str:
        target = getattr(import_module(match[2]), match[3])
        return f"{match[1]}\n{table_of(target, without=(match[4] or '').split())}\n\n{match[5]}"

    def fill_options(match: re.Match[str]) -> str:
        return match[1] + (task_options() if match[2] == "TaskSettings" else call_options()) + "\n"

    return _OPTIONS.sub(fill_options, _TABLE.sub(fill, text))


def task_options() -> str:
    """The options of `@app.task(...)` with their defaults."""
    settings = {info.name: info.default for info in describe()}
    rows = [("`name`", "the function's", "")]
    for name, option in TASK_OPTIONS.items():
        default = f"setting, {settings[name]}" if option.default == "setting" else option.default
        rows.append((f"`{name}`", default, _told(option)))
    return _table(("option", "default", ""), rows)


def call_options() -> str:
    """The options of `using(...)`; those that a task has as well are named only."""
    shared = ", ".join(f"`{name}`" for name in CALL_OPTIONS if name in TASK_OPTIONS)
    own = [(f"`{name}`", _told(option)) for name, option in CALL_OPTIONS.items() if name not in TASK_OPTIONS]
    return _table(("option", ""), [*own, (shared, "as above; a backoff as text only")])


def _told(option: Option) -> str:
    return f"{option.help} {_MORE.get(option.name, '')}".strip().replace("|", "\\|")


def documented(text: str) -> set[str]:
    """Names of the classes and functions that have a table."""
    return {match[3] for match in _TABLE.finditer(text)}


def table_of(target: Any, without: Collection[str] = ()) -> str:
    if not isinstance(target, type):
        twin = f"a{target.__name__}"
        if hasattr(import_module(target.__module__), twin):
            return _table(("call", "awaited", "does"), [(_call(target), f"`{twin}`", _doc(target))])
        return _table(("call", "does"), [(_call(target), _doc(target))])
    fields = list(_fields(target))
    methods = list(_methods(target, without))
    parts = []
    if fields:
        parts.append(_table(("field", "type", ""), fields))
    if methods:
        awaited = any(twin for _, twin, _ in methods)
        rows: Sequence[tuple[str, ...]] = methods if awaited else [(call, doc) for call, _, doc in methods]
        parts.append(_table(("call", "awaited", "does") if awaited else ("member", "does"), rows))
    return "\n\n".join(parts)


def members_of(target: type) -> list[str]:
    """The public names a class itself defines, in the order of its source."""
    return [name for name in vars(target) if not name.startswith("_")]


def _methods(target: type, without: Collection[str]) -> Iterator[tuple[str, str, str]]:
    if unknown := set(without) - set(members_of(target)):
        raise SystemExit(f"{target.__name__} has no {', '.join(sorted(unknown))}: nothing to leave out")
    fields = getattr(target, "__struct_fields__", ())
    names = [name for name in members_of(target) if name not in fields and name not in without]
    for name in names:
        value = inspect.getattr_static(target, name)
        if _is_slot(value) or (name[0] == "a" and name[1:] in names):
            continue
        twin = f"a{name}" if f"a{name}" in names else ""
        if isinstance(value, property):
            yield f"`{name}`", "", _doc(value.fget)
        elif callable(value):
            yield _call(value, name), f"`{twin}`" if twin else "", _doc(value)


def _is_slot(value: object) -> bool:
    return inspect.ismemberdescriptor(value) or isinstance(value, str | tuple)


def _call(function: Callable[..., Any], name: str | None = None) -> str:
    shown = inspect.signature(function)
    parameters = [one for one in shown.parameters.values() if one.name != "self"]
    text = str(shown.replace(parameters=parameters))
    for found, told in _SHORT:
        text = re.sub(found, told, text)
    return f"`{name or function.__name__}{text}`".replace("|", "\\|")


def _doc(value: Any) -> str:
    """The first paragraph on one line."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _fields(target: type) -> Iterator[tuple[str, str, str]]:
    """Annotated fields with the text that stands below each in the source."""
    if not hasattr(target, "__struct_fields__") and not hasattr(target, "__total__"):
        return
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(target))).body
    assert isinstance(tree, ast.ClassDef)  # noqa: S101
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        told = (
            after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        )
        kind = re.sub(r"\bDuration\b", "float | str | timedelta", ast.unparse(node.annotation))
        yield f"`{node.target.id}`", f"`{kind}`".replace("|", "\\|"), " ".join(str(told).split())


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def main() -> int:
    before = PAGE.read_text("utf-8")
    after = write(before)
    if "--check" in sys.argv[1:]:
        return 0 if after == before else 1
    PAGE.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
