# mypy: ignore-errors
# (the library is not installed where types are checked)
"""Huey on Redis.

The blocking list storage, which wakes at once, and `-k process -w 4` for no-ops; jobs of 10 ms I/O: two
consumers with 100 threads each (`greenlet` is for programs that are patched as a whole). Results that are
None are not stored (the default); the round trip waits for a notification (`notify_result`). No periodic
tasks. It takes a job off the list before it runs it: a crash loses the job, so there is nothing to
acknowledge. It has no bulk call and no awaited enqueue.
"""

from __future__ import annotations

import os
import time

from huey import RedisHuey

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], notify_result=True)


@huey.task()
def noop(n, payload):
    mark(n)


@huey.task()
def io(n, payload):
    begin(n)
    time.sleep(IO_SECONDS)
    mark(n)


@huey.task()
def probe(n, payload):
    note(n, payload)


@huey.task()
def trip(n, payload):
    return n


TASKS = {"noop": noop, "plain": noop, "io": io, "probe": probe, "trip": trip}


class HueyProducer(Producer):
    def put(self, task, n, payload):
        return TASKS[task](n, payload)

    def result(self, job):
        return job.get(blocking=True, timeout=30)


producer = HueyProducer
