"""A task queue that is nothing but a spool of files: a stand-in for the bench's own tests.

`drive` enqueues as the bench's driver does, `work` runs what it finds; BENCH_STUB=twice runs
every seventh job twice, BENCH_STUB=fail ends the worker at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.peers import inside

SPOOL = Path(os.environ["BENCH_MARKS"]).parent / "spool"
FAULT = os.environ.get("BENCH_STUB", "")


class SpoolProducer(inside.Producer):
    """Jobs are lines of files that appear whole."""

    def __init__(self) -> None:
        self._number = 0
        SPOOL.mkdir(exist_ok=True)

    def put(self, task: str, n: int, payload: str) -> int:
        self._write([(task, n, payload)])
        return n

    def put_many(self, task: str, numbers: Any, payload: str) -> None:
        self._write([(task, n, payload) for n in numbers])

    def _write(self, jobs: list[tuple[str, int, str]]) -> None:
        self._number += 1
        path = SPOOL / f"{os.getpid()}-{self._number:09d}"
        path.with_suffix(".new").write_text(json.dumps(jobs))
        path.with_suffix(".new").rename(path.with_suffix(".jobs"))

    def result(self, job: int) -> int:
        path = SPOOL / f"{job}.result"
        while not path.exists():
            time.sleep(0.001)
        return job


def work() -> None:
    if FAULT == "fail":
        sys.exit("the stub was told to fail")
    SPOOL.mkdir(exist_ok=True)
    while True:
        for path in sorted(SPOOL.glob("*.jobs")):
            for task, n, payload in json.loads(path.read_text()):
                _run(task, n, payload)
            path.unlink()
        time.sleep(0.001)


def _run(task: str, n: int, payload: str) -> None:
    if task == "probe":
        inside.note(n, payload)
    elif task == "trip":
        (SPOOL / f"{n}.result").touch()
    else:
        inside.mark(n)
        if FAULT == "twice" and n % 7 == 6:
            inside.mark(n)


def drive() -> None:
    driver = inside.Driver(SpoolProducer(), lambda coroutine: None)
    print(json.dumps({"modes": driver.modes, "trips": driver.trips}), flush=True)
    for line in sys.stdin:
        print(json.dumps(driver.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    {"drive": drive, "work": work}[sys.argv[1]]()
