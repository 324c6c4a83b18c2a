# mypy: ignore-errors
# (the library is not installed where types are checked)
"""Celery on Redis.

Settings, all from its optimisation guide: messages are not kept for long-running jobs but fetched ahead
(`worker_prefetch_multiplier`), acknowledged early (the default), results are ignored except for the round
trip, no events, no gossip, mingle or heartbeat between workers, no remote control. Tasks are plain
functions: Celery has no async ones. No-ops: pool `solo`, one worker per core, and beside it `prefork` with
one process per core and `-O fair`. Jobs of 10 ms I/O: pool `gevent`, the one it recommends for I/O, 100 at
a time in each of two workers. `bulk` is `apply_async` with one producer for all calls, as its guide on
publishing has it.
"""

from __future__ import annotations

import os
import time

from celery import Celery

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note

URL = os.environ["BENCH_URL"]
app = Celery("bench", broker=URL, backend=URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
)


@app.task(name="noop")
def noop(n, payload):
    mark(n)


@app.task(name="io")
def io(n, payload):
    begin(n)
    time.sleep(IO_SECONDS)
    mark(n)


@app.task(name="probe")
def probe(n, payload):
    note(n, payload)


@app.task(name="trip", ignore_result=False)
def trip(n, payload):
    return n


TASKS = {"noop": noop, "plain": noop, "io": io, "probe": probe, "trip": trip}


class CeleryProducer(Producer):
    def put(self, task, n, payload):
        return TASKS[task].delay(n, payload)

    def put_many(self, task, numbers, payload):
        apply_async = TASKS[task].apply_async
        with app.producer_pool.acquire(block=True) as producer:
            for n in numbers:
                apply_async((n, payload), producer=producer)

    def result(self, job):
        return job.get(timeout=30)


producer = CeleryProducer
