"""The registry of workers: each keeps a document about itself in the broker.

It is written with every heartbeat and expires after two leases, so that a dead worker drops out by itself.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dray.broker.verbs import Broker, Doc
from dray.documents.reading import read_doc
from dray.settings.queue_choice import place

KIND: Final = "worker"
LEADERSHIP: Final = ("hold", "duties")
"""Kind and name of the document that the leader holds."""
LATELY: Final = 60_000
"""Milliseconds without a poll that make a worker not ready. An idle executor polls every twenty seconds."""
SKEWED: Final = 1000
"""Milliseconds: a larger clock skew is worth a warning."""


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One executor process of a worker, as its supervisor sees it."""

    number: int
    """Counts the processes this worker has started; never used twice."""
    pid: int
    session: str | None = None
    """None before it has opened one."""
    running: int = 0
    slots: int = 0
    """How many jobs it runs at a time at present."""
    succeeded: int = 0
    failed: int = 0
    beat_age: int = 0
    """Milliseconds since its event loop last turned."""
    tried_age: int | None = None
    """Milliseconds since the broker last answered its poll for work; None before the first time."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One `dray worker`: its settings and its state."""

    id: str
    host: str
    pid: int
    started: int
    """Milliseconds since the epoch by the broker's clock, like all times here."""
    seen: int
    queues: tuple[str, ...] = ()
    """Names and patterns, see `dray.settings.queue_choice`."""
    priorities: tuple[int, ...] | None = None
    """None: all."""
    tasks: tuple[str, ...] = ()
    """The tasks it can run; empty until its first executor has started."""
    processes: int = 0
    concurrency: int | None = None
    """Jobs that each of its executors runs at a time; None: they adapt it, see `ExecutorInfo.slots`."""
    rate: str | None = None
    """The rate of its own, if it has one, at which it starts jobs at most."""
    mode: str = "default"
    version: str = ""
    state: Literal["running", "stopping"] = "running"
    executors: tuple[ExecutorInfo, ...] = ()
    leader: bool = False
    """It does the duties (schedules, recovery) for all."""
    average: float | None = None
    """Seconds that its runs took lately; None before the first has ended."""
    p95: float | None = None
    """Seconds that 95 of 100 of them did not exceed."""
    lag: float = 0.0
    """Seconds by which one of its event loops was late at most, within the last minute."""
    stalls: int = 0
    """How often a job blocked one of its event loops for over a second."""
    skew: int = 0
    """Milliseconds by which the clock of its machine is ahead of the broker's; negative if it is behind."""
    round_trip: float = 0.0
    """Seconds that the slowest of its heartbeats to the broker took within the last minute."""
    dedicated: tuple[str, ...] = ()
    """Dedicated queues that it knows of: of these it serves the ones that `queues` names."""

    @property
    def running(self) -> int:
        return sum(executor.running for executor in self.executors)

    @property
    def slots(self) -> int:
        """Jobs that its executors run at a time at present."""
        return sum(executor.slots for executor in self.executors)

    def serves_queue(self, queue: str, dedicated: bool = False) -> bool:
        """It takes jobs of a queue; `dedicated` if it may not know yet that the queue is."""
        return (
            place(self.queues, (*self.dedicated, queue) if dedicated else self.dedicated, queue) is not None
        )

    def serves(self, queue: str, task: str, priority: int) -> bool:
        """It would take such a job."""
        return (
            self.state == "running"
            and self.serves_queue(queue)
            and task in self.tasks
            and (self.priorities is None or priority in self.priorities)
        )


def describe_skew(skew: int) -> str:
    """The skew of a clock as text: `5.2 s ahead of`."""
    return f"{abs(skew) / 1000:.1f} s {'ahead of' if skew > 0 else 'behind'}"


def not_ready(worker: WorkerInfo, now: int) -> str | None:
    """The reason for which a worker is not ready; None if it is, for health checks.

    It is ready while an executor polled lately or has all slots busy. The supervisor itself replaces
    executors that hang: a check finds what it cannot mend, such as a machine that has lost its network.
    """
    silent = now - worker.seen
    if silent > LATELY:
        return f"it was last heard of {silent // 1000} s ago"
    if worker.state != "running":
        return "it is stopping"
    if worker.mode == "scheduler-only":
        return None
    if not worker.executors:
        return "it has no executor"
    reasons = [_idle(executor, silent) for executor in worker.executors]
    return None if None in reasons else reasons[0]


def _idle(executor: ExecutorInfo, silent: int) -> str | None:
    name = f"executor {executor.number}"
    if executor.session is None:
        return f"{name} has not started yet"
    if executor.running >= executor.slots:
        return None
    if executor.tried_age is None:
        return f"{name} has not asked for work yet"
    age = executor.tried_age + max(0, silent)
    return None if age <= LATELY else f"{name} last asked for work {age // 1000} s ago"


class Leader(msgspec.Struct, frozen=True):
    """The worker that leads."""

    worker: str
    stands_in: bool = False
    """It cannot do every duty, and makes way for a worker that can."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerInfo).decode
_decode_leader = msgspec.json.Decoder(Leader).decode


async def write_worker(broker: Broker, info: WorkerInfo, ttl: int) -> None:
    await broker.doc(KIND, info.id, _encode(info), ttl=ttl)


async def delete_worker(broker: Broker, id: str) -> None:
    await broker.doc(KIND, id, None)


async def read_workers(broker: Broker) -> list[WorkerInfo]:
    """All registered workers, by id. A document of another version that cannot be read is left out."""
    found = [info for doc in await broker.docs(KIND) if (info := read_doc(_decode, doc)) is not None]
    leader = read_leader((await broker.doc(*LEADERSHIP)).doc)
    if leader is None:
        return found
    # The document of a worker that has just lost leadership, or is frozen, may still say that it leads.
    return [msgspec.structs.replace(info, leader=info.id == leader.worker) for info in found]


def encode_leader(leader: Leader) -> bytes:
    return msgspec.json.encode(leader)


def read_leader(doc: Doc | None) -> Leader | None:
    """The leader; None if there is none, or if another version wrote the document."""
    return read_doc(_decode_leader, doc)
