# mypy: ignore-errors
# (the library is not installed where types are checked)
"""Dramatiq on Redis.

Two processes, one per core, which fetch 1000 messages ahead (`dramatiq_queue_prefetch`; with the default of
two per thread they sleep most of the time: a third of the rate). No-ops: the default of 8 threads each;
jobs of 10 ms I/O: 64 threads each. Only the middleware that a plain job needs is kept (no Prometheus, no
callbacks, no pipelines, no time limit); results are stored for the round trip only. Tasks are plain
functions: async ones exist, on a loop beside the threads, and cost more. It has no awaited enqueue and no
bulk call.
"""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries, ShutdownNotifications
from dramatiq.results import Results
from dramatiq.results.backends.redis import RedisBackend

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note

URL = os.environ["BENCH_URL"]
broker = RedisBroker(
    url=URL, middleware=[ShutdownNotifications(), Retries(), Results(backend=RedisBackend(url=URL))]
)
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(n, payload):
    mark(n)


@dramatiq.actor
def io(n, payload):
    begin(n)
    time.sleep(IO_SECONDS)
    mark(n)


@dramatiq.actor
def probe(n, payload):
    note(n, payload)


@dramatiq.actor(store_results=True)
def trip(n, payload):
    return n


TASKS = {"noop": noop, "plain": noop, "io": io, "probe": probe, "trip": trip}


class DramatiqProducer(Producer):
    def put(self, task, n, payload):
        return TASKS[task].send(n, payload)

    def result(self, job):
        return job.get_result(block=True, timeout=30_000)


producer = DramatiqProducer
