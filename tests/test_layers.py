"""Imports point one way: from what users touch down to the facts. Read off the source, by `ast`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dray"

UPWARD_FOR_TYPES = frozenset({"app", "handle"})
"""What modules below may import for types: nearly everything is given the app that it works for."""

STRANGERS = frozenset({"broker.memory", "broker.sqlite", "broker.redis"})
"""Translations of one specification: none leans on another."""

LATE_IMPORTS = {
    ("broker", "dray.broker.sqlite"),  # only users of a broker pay for it
    ("broker", "dray.broker.redis"),
    ("broker", "dray.broker.memory"),
    ("client.client", "dray.broker.memory"),
    ("cli.open_app", "dray.broker.sqlite.options"),
    ("cli.open_app", "sqlite3"),
    ("handle", "dray.why"),  # only those who ask pay for it
    ("errors", "difflib"),  # large modules of Python, seldom needed
    ("settings.files", "tomllib"),
    ("loading", "sysconfig"),
    ("codec.values", "zoneinfo"),
    ("schedules.cron", "zoneinfo"),
    ("worker.logs", "dray.worker.log_file"),
    ("worker.process", "ctypes"),
    ("worker.run.threads", "ctypes"),
    ("worker.shared_memory", "tempfile"),
    ("contrib.django", "dray.contrib.django.backend"),  # Django imports the package before it is set up
    ("contrib.django.apps", "dray.contrib.django.backend"),
    ("contrib.django.apps", "dray.contrib.django.framework"),
    ("codec.signature", "annotationlib"),  # exists from Python 3.14 on
}
"""The only imports inside functions: (module, what it imports)."""

TYPES_UPWARD = {("app", "testing.harness")}  # `app.testing()` says what it returns
"""The only other imports, for types, that may point up."""

MAP_LINE = re.compile(r"^ *(\w+/?(?: \w+/?)*)  +\S")
"""A line of a map: names (a folder's with a slash), at least two spaces, what they are for."""

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


def map_of(root: Path, package: str) -> list[list[str]]:
    """The map in a package's docstring: its lines from the top, each as the names it lists."""
    path = root.joinpath(*(package.split(".") if package else ()), "__init__.py")
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")), clean=False) or ""
    return [found[1].split() for line in text.splitlines() if (found := MAP_LINE.match(line))]


def map_problems(root: Path) -> list[str]:
    """Files and folders that their package's map leaves out, and names in a map that are not there."""
    problems = []
    for folder in sorted({path.parent for path in root.rglob("*.py")}):
        inside = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
        inside |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
        package = ".".join(folder.relative_to(root).parts)
        listed = {name for line in map_of(root, package) for name in line}
        where = f"{package or root.name}/__init__.py"
        problems += [f"{where}: the map does not name {name}" for name in sorted(inside - listed)]
        problems += [f"{where}: the map names {name}, which is not there" for name in sorted(listed - inside)]
    return problems


def _floors(root: Path, package: str) -> dict[str, int]:
    """The height of each part of a package, as its map lists them; the package itself is on top."""
    lines = map_of(root, package)
    return {name.rstrip("/"): height for height, line in enumerate(lines) for name in line}


def layer_problems(root: Path) -> list[str]:
    """Imports that point up in a map with rooms, and imports between translations of the specification."""
    problems = []
    with_rooms = {
        package: _floors(root, package)
        for package in ("", *modules_of(root))
        if any((root.joinpath(*package.split("."))).glob("*/__init__.py"))
    }
    for found in imports_of(root):
        target = _own(found.target, root.name)
        if target is None:
            continue
        where = f"{found.module}:{found.line}: imports {target}"
        if found.for_types and (target in UPWARD_FOR_TYPES or (found.module, target) in TYPES_UPWARD):
            continue
        package, mine, theirs = _parting(found.module, target)
        if package not in with_rooms:
            continue
        floors = with_rooms[package]
        top = len(floors)
        if floors.get(mine, top) < floors.get(theirs, top):
            problems.append(f"{where}, which is above it")
        elif {f"{package}.{mine}", f"{package}.{theirs}"} <= STRANGERS and mine != theirs:
            problems.append(f"{where}: brokers do not use each other")
    return problems


def _parting(module: str, target: str) -> tuple[str, str, str]:
    """The innermost package of both, and the part of it that each is in: `__init__` for the package."""
    one, other = module.split("."), target.split(".")
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    mine, theirs = ((*path, "__init__")[shared] for path in (one, other))
    return ".".join(one[:shared]), mine, theirs


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


def test_every_package_maps_its_files() -> None:
    assert map_problems(SOURCE) == []


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


MAP = '''"""A sound little package.

    errors             the tree of errors
    job policy         facts
    broker/            where jobs live
    app                what users make
    worker/ testing/   who uses it
    serve/             over the network
    cli/               on top
"""
'''
BROKER_MAP = '''"""Where jobs live.

    verbs             the seam
    memory/ sqlite/   its translations
"""
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A sound little package, to plant violations in."""
    root = tmp_path / "dray"
    files = {
        "__init__.py": MAP + "from dray.job import State\n",
        "errors.py": "",
        "job.py": "import msgspec\nfrom dray.errors import DrayError\n",
        "policy.py": "from . import job\n",
        "broker/__init__.py": BROKER_MAP + "from dray.broker.memory import Memory\n",
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
        ("errors.py", "from dray.job import Job\n", "errors:1: imports job, which is above it"),
        ("errors.py", "from dray import job\n", "errors:1: imports job, which"),
        ("errors.py", "from . import job\n", "errors:1: imports job, which"),
        ("errors.py", "import dray.job as facts\n", "errors:1: imports job, which"),
        ("errors.py", "def late():\n    from .job import Job\n", "errors:2: imports job, which"),
        ("job.py", "try:\n    import dray.broker\nexcept ImportError: ...\n", "job:2: imports broker, which"),
        ("policy.py", "from dray import State\n", "policy:1: imports __init__, which is above"),
        ("broker/verbs.py", "from dray.broker import connect\n", "broker.verbs:1: imports broker, which"),
        ("broker/verbs.py", "from .memory import Memory\n", "broker.verbs:1: imports broker.memory, which"),
        ("broker/__init__.py", "from dray.testing import walk\n", "broker:1: imports testing, which"),
        ("errors.py", "import dray.app\n", "errors:1: imports app, which"),
        ("broker/sqlite/sql.py", "from dray.broker.memory import x\n", "brokers do not use each other"),
        ("broker/memory/line.py", "from ..sqlite.sql import x\n", "brokers do not use each other"),
        ("app.py", "import dray.worker.run\n", "app:1: imports worker.run, which"),
        ("serve/http.py", "import dray.cli\n", "serve.http:1: imports cli, which"),
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


def test_a_file_that_no_map_names_and_a_name_without_a_file_are_found(package: Path) -> None:
    for name in ("app.py", "worker/__init__.py", "serve/__init__.py", "cli/__init__.py"):
        _write(package, name, "")
    assert map_problems(package) == []
    _write(package, "broker/nowhere.py", "")
    (package / "policy.py").unlink()
    assert map_problems(package) == [
        "dray/__init__.py: the map names policy, which is not there",
        "broker/__init__.py: the map does not name nowhere",
    ]


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
