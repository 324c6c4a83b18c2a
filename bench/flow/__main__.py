"""`python -m bench.flow`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import bench.flow
from bench import machine
from bench.progress import Progress
from bench.report import ignore

OUT = Path(__file__).parents[1] / "out"


def parts() -> dict[str, Any]:
    names = [module.name for module in pkgutil.iter_modules(bench.flow.__path__) if module.name != "__main__"]
    found = {name: import_module(f"bench.flow.{name}") for name in sorted(names)}
    return {name: module for name, module in found.items() if hasattr(module, "run")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flow", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short look (also: QUICK=1)")
    parser.add_argument("--only", choices=sorted(parts()), help="one part of it")
    parser.add_argument("--out", type=Path, default=OUT / "flow.json", help="where the JSON goes")
    parser.add_argument("--dir", type=Path, default=OUT, help="where the databases are (on a real disk)")
    options = parser.parse_args()
    quick = options.quick or os.environ.get("QUICK", "") not in ("", "0")
    options.dir.mkdir(parents=True, exist_ok=True)
    if options.dir == OUT:
        ignore(OUT)
    chosen = {name: part for name, part in parts().items() if options.only in (None, name)}
    shown, figures = Progress(len(chosen)), {"machine": machine.describe()}
    for name, part in chosen.items():
        shown.step(name)
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            text, figures[name] = part.run(quick, Path(folder))
        print(text)
    shown.end()
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


main()
