"""Imports point one way: from what users touch down to the facts. Read off the source, by `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dray"

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(layer.split())
    for layer in (
        "errors",
        "job",
        "duration durations policy values hints codec cron_words cron schedule flow",
        "broker.blocking broker.verbs broker.checks broker.repairs",
        "broker.memory broker.sqlite broker.redis",
        "broker",
        "settings roster recovery stats fitness",
        "call context watching client info why twins task handle envelope tracing enqueuing operate external"
        " tokens feed keys reconciling declaring schedules app loading",
        "worker",
        "history observe",
        "serve",
        "testing",
        "cli demo",
        "__init__ __main__",
    )
)
"""From the bottom up. A name stands for the module and all below it, unless a longer name fits better.

Within a layer modules may use each other (cycles are found anyway), except where `STRANGERS` says no.
"""

STRANGERS = frozenset({"broker.memory", "broker.sqlite", "broker.redis"})
"""Translations of one specification: none leans on another."""

LATE_IMPORTS = {
    ("broker", "dray.broker.sqlite"),  # only who uses a broker pays for it
    ("broker", "dray.broker.redis"),
    ("hints", "annotationlib"),  # exists from Python 3.14 on
}
"""The only imports inside functions: (module, what it imports)."""

TYPES_UPWARD = {("app", "testing.harness")}  # `app.testing()` says what it returns
"""The only imports, for types, that may point up."""

LINES_MAX = 500
LONG_FILES: dict[str, int] = {}
"""Files over the limit and how long they may be. Numbers here only get smaller; then the line goes."""

VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"})


@dataclass(frozen=True)
class Import:
    """One import statement's target, as a module path below the package where it is one of ours."""

    module: str
    """Who imports, relative to the package: `broker.verbs`, or `__init__` for the root."""
    target: str
    line: int
    inside_function: bool
    for_types: bool


def modules_of(root: Path) -> dict[str, Path]:
    """Every module of the package in folder `root`, by its path below the package."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def imports_of(root: Path) -> list[Import]:
    """Every import in the package, with names resolved: `from dray import job` means `dray.job`."""
    modules = modules_of(root)
    return [found for module, path in modules.items() for found in _imports_in(root, module, path, modules)]


def _imports_in(root: Path, module: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    package = root.name
    home = [package, *path.relative_to(root).parent.parts]

    def visit(node: ast.AST, inside: bool, types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in _targets(node, package, home, modules):
                yield Import(module, target, node.lineno, inside, types)
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for statement in node.body:
                yield from visit(statement, inside, True)
            for statement in node.orelse:
                yield from visit(statement, inside, types)
            return
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside, types)

    yield from visit(ast.parse(path.read_text("utf-8"), str(path)), False, False)


def _targets(
    node: ast.Import | ast.ImportFrom, package: str, home: list[str], modules: dict[str, Path]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = ".".join(home[: len(home) - node.level + 1]) if node.level else ""
    origin = ".".join(part for part in (base, node.module) if part)
    for alias in node.names:
        inner = f"{origin}.{alias.name}"
        below = inner.removeprefix(package + ".")
        yield inner if inner.startswith(package + ".") and below in modules else origin


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _own(target: str, package: str) -> str | None:
    """The target below the package, or None when it is somebody else's module."""
    if target == package:
        return "__init__"
    return target.removeprefix(package + ".") if target.startswith(package + ".") else None


def _place(module: str) -> tuple[int, str] | None:
    """The layer of a module and the name it is known by there; the longest name that fits counts."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        for height, layer in enumerate(LAYERS):
            if name in layer:
                return height, name
    return None


def layer_problems(root: Path) -> list[str]:
    """Modules that are in no layer, and imports that point up or to a stranger."""
    problems = [
        f"{module}: in no layer; name it in LAYERS" for module in modules_of(root) if _place(module) is None
    ]
    for found in imports_of(root):
        target = _own(found.target, root.name)
        mine = _place(found.module)
        theirs = _place(target) if target is not None else None
        if mine is None or theirs is None:
            continue
        where = f"{found.module}:{found.line}: imports {target}"
        if found.for_types and (found.module, target) in TYPES_UPWARD:
            continue
        if theirs[0] > mine[0]:
            problems.append(f"{where}, which is a layer above it")
        elif mine[1] != theirs[1] and {mine[1], theirs[1]} <= STRANGERS:
            problems.append(f"{where}: brokers do not use each other")
    return problems


def cycles(root: Path) -> list[str]:
    """Modules that import each other in a circle, imports inside functions included, those for types not."""
    graph: dict[str, set[str]] = {module: set() for module in modules_of(root)}
    for found in imports_of(root):
        target = _own(found.target, root.name)
        if target in graph and target != found.module and not found.for_types:
            graph[found.module].add(target)
    return sorted({_circle(graph, start) for start in graph} - {""})


def _circle(graph: dict[str, set[str]], start: str) -> str:
    """The shortest way from a module back to itself, written from its first name in the alphabet."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:
        for following in sorted(graph[way[-1]]):
            if following == start:
                first = way.index(min(way))
                way = way[first:] + way[:first]
                return " -> ".join([*way, way[0]])
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return ""


def late_imports(root: Path) -> set[tuple[str, str]]:
    return {(found.module, found.target) for found in imports_of(root) if found.inside_function}


def long_files(root: Path) -> dict[str, int]:
    """Files over the limit, and their lines."""
    lengths = {
        path.relative_to(root).as_posix(): len(path.read_text("utf-8").splitlines())
        for kind in ("py", "sql", "lua")
        for path in root.rglob(f"*.{kind}")
    }
    return {name: lines for name, lines in lengths.items() if lines > LINES_MAX}


def size_problems(found: dict[str, int], allowed: dict[str, int]) -> list[str]:
    problems = []
    for name, lines in sorted(found.items()):
        if lines > allowed.get(name, LINES_MAX):
            problems.append(f"{name}: {lines} lines, {allowed.get(name, LINES_MAX)} are allowed; split it")
        elif lines < allowed[name] - 25:
            problems.append(f"{name}: only {lines} lines now; lower its number in LONG_FILES")
    problems += [
        f"{name}: within the limit now; take it out of LONG_FILES" for name in allowed.keys() - found
    ]
    return problems


def test_imports_point_from_the_top_layers_down() -> None:
    assert layer_problems(SOURCE) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(SOURCE) == []


def test_imports_inside_functions_are_the_listed_ones() -> None:
    assert late_imports(SOURCE) == LATE_IMPORTS


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [name for name in modules_of(SOURCE) if VAGUE & set(name.split("."))] == []


def test_files_stay_short_and_the_long_ones_only_get_shorter() -> None:
    assert size_problems(long_files(SOURCE), LONG_FILES) == []


def test_the_package_says_it_is_typed_and_every_folder_of_modules_is_a_package() -> None:
    assert (SOURCE / "py.typed").is_file()
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A sound little package, to plant violations in."""
    root = tmp_path / "dray"
    files = {
        "__init__.py": "from dray.job import State\n",
        "errors.py": "",
        "job.py": "import msgspec\nfrom dray.errors import DrayError\n",
        "policy.py": "from . import job\n",
        "broker/__init__.py": "from dray.broker.memory import Memory\n",
        "broker/verbs.py": "from dray import job, policy\n",
        "broker/memory/__init__.py": "from ..verbs import Broker\n",
        "broker/sqlite/__init__.py": "import dray.broker.verbs\n",
        "testing/__init__.py": "from dray.broker import connect\n",
    }
    for name, text in files.items():
        _write(root, name, text)
    return root


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def test_a_sound_package_has_no_findings(package: Path) -> None:
    assert layer_problems(package) == []
    assert cycles(package) == []
    assert late_imports(package) == set()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("errors.py", "from dray.job import Job\n", "errors:1: imports job, which is a layer above it"),
        ("errors.py", "from dray import job\n", "errors:1: imports job, which"),
        ("errors.py", "from . import job\n", "errors:1: imports job, which"),
        ("errors.py", "import dray.job as facts\n", "errors:1: imports job, which"),
        ("errors.py", "def late():\n    from .job import Job\n", "errors:2: imports job, which"),
        ("job.py", "try:\n    import dray.broker\nexcept ImportError: ...\n", "job:2: imports broker, which"),
        ("policy.py", "from dray import State\n", "policy:1: imports __init__, which is a layer above"),
        ("broker/verbs.py", "from dray.broker import connect\n", "broker.verbs:1: imports broker, which"),
        ("broker/verbs.py", "from .memory import Memory\n", "broker.verbs:1: imports broker.memory, which"),
        ("broker/__init__.py", "from dray.testing import walk\n", "broker:1: imports testing, which"),
        ("broker/sqlite/sql.py", "from dray.broker.memory import x\n", "brokers do not use each other"),
        ("broker/memory/line.py", "from ..sqlite.sql import x\n", "brokers do not use each other"),
        ("app.py", "import dray.worker.run\n", "app:1: imports worker.run, which"),
        ("serve/http.py", "import dray.cli\n", "serve.http:1: imports cli, which"),
        ("nowhere.py", "", "nowhere: in no layer"),
    ],
)
def test_an_import_that_points_up_is_found(package: Path, name: str, text: str, says: str) -> None:
    for needed in ("worker/run.py", "cli/__init__.py", "broker/sqlite/sql.py"):
        _write(package, needed, "")
    _write(package, name, text)
    [problem] = layer_problems(package)
    assert says in problem


def test_a_circle_is_found_also_when_one_import_hides_in_a_function(package: Path) -> None:
    _write(package, "duration.py", "def parse():\n    from dray.values import Value\n")
    _write(package, "values.py", "from dray import policy\n")
    _write(package, "policy.py", "from dray.duration import parse\n")
    assert cycles(package) == ["duration -> values -> policy -> duration"]
    assert late_imports(package) == {("duration", "dray.values")}


def test_a_circle_between_a_package_and_its_own_module_is_found(package: Path) -> None:
    _write(package, "broker/memory/__init__.py", "from dray.broker.memory.broker import Memory\n")
    _write(package, "broker/memory/broker.py", "from . import Memory\n")
    assert cycles(package) == ["broker.memory -> broker.memory.broker -> broker.memory"]


@pytest.mark.parametrize("guard", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_an_import_for_types_makes_no_circle_but_its_else_branch_does(package: Path, guard: str) -> None:
    _write(package, "values.py", "from dray import policy\n")
    _write(package, "policy.py", f"if {guard}:\n    from dray.values import Value\n")
    assert cycles(package) == []
    _write(package, "policy.py", f"if {guard}:\n    ...\nelse:\n    from dray.values import Value\n")
    assert cycles(package) == ["policy -> values -> policy"]


def test_a_file_that_grew_and_an_allowance_that_outlived_its_need_are_found(package: Path) -> None:
    _write(package, "policy.py", "pass\n" * (LINES_MAX + 1))
    found = long_files(package)
    assert found == {"policy.py": LINES_MAX + 1}
    assert size_problems(found, {}) != []
    assert size_problems(found, {"policy.py": LINES_MAX + 1}) == []
    assert size_problems(found, {"policy.py": LINES_MAX + 100}) != []
    assert size_problems({}, {"policy.py": LINES_MAX + 1}) != []
