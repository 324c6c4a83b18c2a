# mypy: ignore-errors
# (the library is not installed where types are checked)
"""RQ.

A pool of two `SimpleWorker`s, which run jobs in their own process: its guide names them as the fast choice,
since the default forks for every job. Jobs are described by a name, have no time limit (a timer per job),
and their results are thrown away (`result_ttl=0`) except for the round trip, which waits with
`latest_result(timeout=)`. One job at a time per process: there are no threads, so 10 ms of I/O are 10 ms;
twenty processes are used for that. `bulk` is `enqueue_many`. It has no awaited calls.
"""

from __future__ import annotations

import os
import time

from redis import Redis
from rq import Queue

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note

NAME = "bench.peers.subjects.rq."


def noop(n, payload):
    mark(n)


def io(n, payload):
    begin(n)
    time.sleep(IO_SECONDS)
    mark(n)


def probe(n, payload):
    note(n, payload)


def trip(n, payload):
    return n


class RqProducer(Producer):
    def __init__(self):
        self.queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_URL"]), default_timeout=-1)

    def put(self, task, n, payload):
        return self.queue.enqueue_call(
            NAME + _named(task), (n, payload), result_ttl=60 if task == "trip" else 0, description=task
        )

    def put_many(self, task, numbers, payload):
        name = NAME + _named(task)
        self.queue.enqueue_many(
            [
                Queue.prepare_data(name, (n, payload), timeout=-1, result_ttl=0, description=task)
                for n in numbers
            ]
        )

    def result(self, job):
        return job.latest_result(timeout=30).return_value


def _named(task):
    return "noop" if task == "plain" else task


producer = RqProducer
