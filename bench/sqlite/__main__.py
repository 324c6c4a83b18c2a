"""`python -m bench.sqlite`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

from bench.command import choose, command, workplace
from bench.report import write_json
from bench.sqlite.plan import FULL, QUICK, TINY
from bench.sqlite.profiling import profiles
from bench.sqlite.run import run
from bench.sqlite.tables import data, markdown


def main() -> None:
    parser = command("sqlite", __doc__)
    parser.add_argument("--profile", type=int, metavar="DEPTH", help="only show where time goes at a depth")
    options = parser.parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    with workplace(options.dir) as folder:
        if options.profile is not None:
            for section in profiles(plan, folder, options.profile):
                print(section)
            return
        results = run(plan, folder)
    write_json(options.out, data(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
