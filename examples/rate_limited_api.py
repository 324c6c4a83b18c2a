"""An API that allows each customer 20 calls a second: jobs start no faster, however many workers there are.

python examples/rate_limited_api.py
"""

from __future__ import annotations

from beside import worker_for

import dray
from dray import App

app = App("rate_limited_api")


@app.task(rate_limit="20/s+1", rate_key="customer:{customer}", max_running=5, running_key="{customer}")
async def call_api(customer: str, n: int) -> str:
    return f"{customer} {n}"


def most_in_a_second(jobs: list[dray.JobHandle[str]]) -> int:
    """Of all stretches of one second, the most calls that were started in one."""
    starts = sorted(info.started_at.timestamp() for job in jobs if (info := job.info()).started_at)
    return max(sum(first <= start < first + 1 for start in starts) for first in starts)


def main() -> None:
    ann = [call_api.enqueue("ann", n) for n in range(30)]
    bob = [call_api.enqueue("bob", n) for n in range(5)]
    with worker_for(__file__, "-p", "2"):
        dray.gather(bob, timeout=30)
        # What waits for its turn is in nobody's way: bob's few calls do not wait behind ann's many.
        print("bob's calls are done before ann's:", any(not job.status().finished for job in ann))

        print("ann's last call:", ann[-1].why())
        dray.gather(ann, timeout=30)
        print("ann started at most 21 calls in any second:", most_in_a_second(ann) <= 21)

        # Limits can be changed while everything runs: here, or with `dray queues limit`.
        app.queues.limit("default", enqueue_rate="1/h+2")
        accepted = [call_api.enqueue("eve", n) for n in range(2)]
        try:
            call_api.enqueue("eve", 3)
        except dray.EnqueueLimited as refused:
            print("a third call is refused for", round(refused.retry_after / 60), "minutes")
        dray.gather(accepted, timeout=30)


if __name__ == "__main__":
    main()
