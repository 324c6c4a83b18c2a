"""`python -m bench.flows`: Markdown on stdout, JSON in bench/out."""

from __future__ import annotations

from bench import machine
from bench.command import command, is_quick
from bench.flows.run import run
from bench.report import write_json


def main() -> None:
    options = command("flows", __doc__, tiny=False).parse_args()
    text, best = run(rounds=2 if is_quick(options) else 5)
    print(text)
    write_json(options.out, {"machine": machine.describe(), "seconds": best})


if __name__ == "__main__":
    main()
