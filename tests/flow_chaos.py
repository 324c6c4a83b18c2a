"""Flows of mixed shapes under SIGKILL, counted from outside.

Producers enqueue flows, each with a number, and write down the ids that were acknowledged; workers, which
also lead, run them. Every node appends its flow's number and its own name to a ledger. Executors, their
children, supervisors, leaders and producers are killed at random. At the end every flow that exists must have
ended in success with the right result, also those whose producer died after the commit, nothing may be left
waiting, and no effect may have come more often than once per kill.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from chaos import Chaos

from dray.broker.verbs import Broker, run_blocking
from dray.flows.pages import HEADS
from dray.flows.placement import unpack_head

APP = '''
import os
from dray import App, Retry, chain, chord, current, group

url = os.environ["CHAOS_BROKER"]
app = App("chaos", broker=url, lease="{lease}s", max_crashes=10_000, backoff="fixed:50ms")
ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(flow: int) -> None:
    os.write(ledger, b"%d %s\\n" % (flow, current()._running.taken.job.node.encode()))


@app.task
async def one(flow: int, value: int) -> int:
    note(flow)
    return value


@app.task(queue="b")
def inc(value: int, flow: int) -> int:
    note(flow)
    return value + 1


@app.task(queue="c", retries=2)
async def total(values: list[int], flow: int) -> int:
    note(flow)
    if current().attempt == 1:
        raise Retry(delay=0.05)
    return sum(values)


@app.task
def pages(flow: int, count: int) -> list[int]:
    note(flow)
    return list(range(count))


@app.task(isolate="process")
def alone(value: int, flow: int) -> int:
    note(flow)
    return value


def build(n: int):
    """A flow and its result."""
    match n % 6:
        case 0:
            f = app.flow("chain")
            f.add(chain(one.call(n, 1), *(inc.call(n) for _ in range(5))))
            return f, 6
        case 1:
            f = app.flow("chord")
            f.add(chord(group(one.call(n, i) for i in range(10)), total.call(n)))
            return f, 45
        case 2:
            f = app.flow("map", key=f"map:{{n}}")
            f.add(total, f.map(chain(inc.call(n), inc.call(n)), f.add(pages, n, 4)), n)
            return f, 14
        case 3:
            inner = app.flow("inner")
            inner.map(inc.call(n), [inner.item, 7])
            f = app.flow("maps")
            f.map(inner, f.add(pages, n, 3))
            return f, [[1, 8], [2, 8], [3, 8]]
        case 4:
            f = app.flow("diamond")
            top = f.add(one, n, 1)
            sides = [f.add(inc, top, n) for _ in range(3)]
            f.add(total, [*sides, f.add(alone, top, n) if n % 24 == 4 else top], n)
            return f, 7
        case _:
            f = app.flow("when")
            a = f.add(one, n, 5)
            f.add(one.call(n, 0), after=a, when="failed", name="never")
            f.add(inc, a, n, when="any")
            return f, {{"never": None, "inc": 6}}
'''

PRODUCER = """
import os, random, sys, time
from dray import BrokerAway
from chaos_app import build

first, last, acknowledged, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dice = random.Random(f"{seed}:{first}:{os.getpid()}")
log = open(acknowledged, "a+")
log.seek(0)
n = max([first, *(int(line.split()[0]) + 1 for line in log.read().splitlines())])
while n < last:
    flow, _ = build(n)
    try:
        handle = flow.enqueue()
    except BrokerAway:
        time.sleep(0.05)
        continue
    print(n, handle.id, file=log, flush=True)
    n += 1
    time.sleep(dice.uniform(0, 2 * float(os.environ["CHAOS_PACE"])))
"""


class FlowChaos(Chaos):
    """`jobs` is the number of flows."""

    def __init__(self, folder: Path, url: str, flows: int, seed: int, killing: float) -> None:
        super().__init__(folder, url, flows, seed, killing)
        self.effects: Counter[str] = Counter()
        self.results: dict[int, object] = {}
        self.failed: list[str] = []
        self.unfinished = 0

    app_text, producer_text = APP, PRODUCER

    def _follow(self) -> None:
        """Completions are counted by flow at the end."""

    def _finish(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._restart()
            if all(one.poll() == 0 for one in self.producers.values()) and not self._left():
                return
            time.sleep(0.3)

    def _left(self) -> int:
        """Unfinished jobs, and flows that are not placed yet."""
        counts = [queue.counts for queue in self.app.queues.list()]
        jobs = sum(count for one in counts for state, count in one.items() if not state.finished)
        return jobs + len(run_blocking(self._heads()))

    async def _heads(self) -> list[str]:
        broker: Broker = await self.app.connect(blocking=True)
        docs = await broker.docs(HEADS)
        await broker.close()
        return [doc.name for doc in docs if unpack_head(doc.value).state == "committed"]

    def _count(self) -> None:
        self.effects = Counter(self.ledger.read_text().splitlines())
        self.unfinished = self._left()
        for path in self.folder.glob("acknowledged-*"):
            for line in path.read_text().splitlines():
                number, id = line.split()
                handle = self.app.flows.get(id)
                status = handle.status()
                if status == "succeeded":
                    self.results[int(number)] = handle.get(timeout=5)
                else:
                    self.failed.append(f"{number} {id} {status}: {handle.info().reason}")
        cursor: str | None = ""
        while cursor is not None:
            found, cursor = self.app.flows.find(limit=500, cursor=cursor or None)
            self.report.states.update(str(flow.status) for flow in found)
        broker = run_blocking(self.app.connect(blocking=True))
        self.report.problems += run_blocking(broker.audit())
        run_blocking(broker.close())
        self.app.close()
