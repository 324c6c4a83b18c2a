"""Many jobs at once: enqueued in one step, their results awaited together or one by one.

python examples/fan_out.py
"""

from __future__ import annotations

import asyncio

from beside import worker_for

import dray
from dray import App

app = App("fan_out")


@app.task
def count_primes(start: int, end: int) -> int:
    return sum(
        number > 1 and all(number % n for n in range(2, int(number**0.5) + 1)) for number in range(start, end)
    )


@app.task
async def in_parts(end: int, parts: int) -> int:
    """A job that waits for others does not use its worker's slot meanwhile."""
    step = end // parts
    jobs = await app.aenqueue_many([count_primes.call(n * step, (n + 1) * step) for n in range(parts)])
    return sum(await dray.agather(jobs, timeout=30))


async def awaited() -> None:
    jobs = await app.aenqueue_many([count_primes.call(0, end) for end in (10, 100, 1000)])
    async for job in dray.aas_completed(jobs, timeout=30):
        await job  # over already: returns at once
    print("awaited:", await dray.agather(jobs))


def main() -> None:
    with worker_for(__file__):
        jobs = app.enqueue_many([count_primes.call(n, n + 1000) for n in range(0, 10_000, 1000)])
        print("per thousand:", dray.gather(jobs, timeout=30))
        print("in all:", in_parts.enqueue(10_000, 10).get(timeout=30))
        asyncio.run(awaited())


if __name__ == "__main__":
    main()
