"""`python -m bench.flow`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import bench.flow
from bench import machine
from bench.command import command, is_quick, workplace
from bench.progress import Progress
from bench.report import write_json


def parts() -> dict[str, Any]:
    names = [module.name for module in pkgutil.iter_modules(bench.flow.__path__) if module.name != "__main__"]
    found = {name: import_module(f"bench.flow.{name}") for name in sorted(names)}
    return {name: module for name, module in found.items() if hasattr(module, "run")}


def main() -> None:
    parser = command("flow", __doc__, tiny=False)
    parser.add_argument("--only", choices=sorted(parts()), help="one part of it")
    options = parser.parse_args()
    chosen = {name: part for name, part in parts().items() if options.only in (None, name)}
    shown, figures = Progress(len(chosen)), {"machine": machine.describe()}
    for name, part in chosen.items():
        shown.step(name)
        with workplace(options.dir) as folder:
            text, figures[name] = part.run(is_quick(options), folder)
        print(text)
    shown.end()
    write_json(options.out, figures)


if __name__ == "__main__":
    main()
