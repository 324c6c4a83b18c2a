# mypy: ignore-errors
# (the library is not installed where types are checked)
"""A chord and a chain with Celery canvas: `python subject_celery.py chord 1000`.

Results are kept, which canvas needs; no events, no gossip, no remote control.
"""

from __future__ import annotations

import os
import sys
import time

from celery import Celery, chain, chord

URL = os.environ["BENCH_URL"]
app = Celery("subject_celery", broker=URL, backend=URL)
app.conf.update(
    worker_prefetch_multiplier=128,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(value):
    return value


@app.task(name="total")
def total(values):
    return len(values)


def main(what, size):
    chain(noop.s(1), noop.s()).apply_async().get(timeout=60)
    began = time.perf_counter()
    if what == "chord":
        result = chord(noop.s(n) for n in range(size))(total.s())
    else:
        result = chain(noop.s(1), *(noop.s() for _ in range(size - 1))).apply_async()
    result.get(timeout=600)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
