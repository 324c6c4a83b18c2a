"""Who is at work: each worker keeps a document about itself in the broker.

It is written again with every heartbeat and expires after two leases, so that a worker that died in whatever
way drops off the roster by itself.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dray.broker.verbs import Broker, Doc

KIND: Final = "worker"
HOLD: Final = ("hold", "duties")
"""Kind and name of the document that whoever leads holds."""
SKEWED: Final = 1000
"""Milliseconds: a clock that is further off is worth a warning."""


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One executor process of a worker, as its supervisor sees it."""

    number: int
    """Counts the processes this worker has started; never used twice."""
    pid: int
    session: str | None = None
    """None until it has opened one."""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    beat_age: int = 0
    """Milliseconds since its event loop last turned."""
    tried_age: int | None = None
    """Milliseconds since it last asked for work and got an answer; None before the first time."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One `dray worker`: what it serves and how it fares."""

    id: str
    host: str
    pid: int
    started: int
    """Milliseconds since the epoch by the broker's clock, like all times here."""
    seen: int
    queues: tuple[str, ...] = ()
    priorities: tuple[int, ...] | None = None
    """None: all."""
    tasks: tuple[str, ...] = ()
    """The tasks it can run; empty until its first executor has started."""
    processes: int = 0
    concurrency: int = 0
    rate: str | None = None
    """How fast it starts jobs at most, if it has a rate of its own."""
    mode: str = "default"
    version: str = ""
    state: Literal["running", "stopping"] = "running"
    executors: tuple[ExecutorInfo, ...] = ()
    leader: bool = False
    """Whether it does the duties (schedules, recovery) for all."""
    average: float | None = None
    """Seconds that its runs took lately; None before the first has ended."""
    lag: float = 0.0
    """Seconds by which one of its event loops was late at most, within the last minute."""
    stalls: int = 0
    """How often a job kept one of its event loops from turning for over a second."""

    skew: int = 0
    """Milliseconds by which the clock of its machine is ahead of the broker's; negative if it is behind."""
    round_trip: float = 0.0
    """Seconds that the slowest of its heartbeats to the broker took within the last minute."""

    @property
    def running(self) -> int:
        return sum(executor.running for executor in self.executors)

    def serves(self, queue: str, task: str, priority: int) -> bool:
        """Whether it would take such a job."""
        return (
            self.state == "running"
            and queue in self.queues
            and task in self.tasks
            and (self.priorities is None or priority in self.priorities)
        )


def describe_skew(skew: int) -> str:
    """How a clock stands to another: `5.2 s ahead of`."""
    return f"{abs(skew) / 1000:.1f} s {'ahead of' if skew > 0 else 'behind'}"


class Holder(msgspec.Struct, frozen=True):
    """Who leads."""

    worker: str
    stands_in: bool = False
    """It cannot do every duty, and makes way for whoever can."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerInfo).decode


async def write_worker(broker: Broker, info: WorkerInfo, ttl: int) -> None:
    await broker.doc(KIND, info.id, _encode(info), ttl=ttl)


async def delete_worker(broker: Broker, id: str) -> None:
    await broker.doc(KIND, id, None)


async def read_workers(broker: Broker) -> list[WorkerInfo]:
    """All workers that wrote lately, by id. One that cannot be read (another version's) is left out."""
    found = []
    for doc in await broker.docs(KIND):
        try:
            found.append(_decode(doc.value))
        except msgspec.MsgspecError:
            continue
    holder = read_holder((await broker.doc(*HOLD)).doc)
    if holder is None:
        return found
    # One that is frozen, or has just lost it, has not said so yet.
    return [msgspec.structs.replace(info, leader=info.id == holder.worker) for info in found]


def encode_holder(holder: Holder) -> bytes:
    return msgspec.json.encode(holder)


def read_holder(doc: Doc | None) -> Holder | None:
    """Who leads; None when nobody does, or somebody whose version writes it in another way."""
    if doc is None:
        return None
    try:
        return msgspec.json.decode(doc.value, type=Holder)
    except msgspec.MsgspecError:
        return None
