"""A chord and a chain with dray: `python subject_dray.py chord 1000`."""

from __future__ import annotations

import os
import sys
import time

from dray import App, chain, chord, group

app = App("bench", broker=os.environ["BENCH_URL"])


@app.task
async def noop(value: int) -> int:
    return value


@app.task
async def total(values: list[int]) -> int:
    return len(values)


def main(what: str, size: int) -> None:
    chain(noop.call(1), noop.call()).enqueue().get(timeout=30)
    began = time.perf_counter()
    if what == "chord":
        job = chord(group(noop.call(n) for n in range(size)), total.call()).enqueue()
    else:
        job = chain(noop.call(1), *(noop.call() for _ in range(size - 1))).enqueue()
    job.get(timeout=300)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
