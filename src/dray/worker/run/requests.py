"""What a durable run asks of the broker. Its executor carries it out, in the name of the run's session.

A run in a child process sends the request to its executor, and gets the reply as bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dray.broker.actions import Ids, Retry
from dray.broker.durable import MemoWrite, Message
from dray.broker.verbs import Accepted, Broker
from dray.job import Job, Record, Taken, Verdict


class Request(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all requests."""


class Recall(Request, frozen=True):
    """Read a page of a log."""

    id: str
    position: int


class Remember(Request, frozen=True):
    """Append to the job's own log."""

    write: MemoWrite


class ReadMail(Request, frozen=True):
    """The next message of this name."""

    name: str
    after: int


class Look(Request, frozen=True):
    """Read a job."""

    id: str


class Spawn(Request, frozen=True):
    """Put a child job."""

    job: Job


class Again(Request, frozen=True):
    """Replay a child that has failed."""

    id: str


AnyRequest = Recall | Remember | ReadMail | Look | Spawn | Again

REPLIES: Final[dict[type[Request], Any]] = {
    Recall: list[bytes],
    Remember: Verdict,
    ReadMail: list[Message],
    Look: Record | None,
    Spawn: Accepted,
    Again: bool,
}
"""The type of the reply to each request."""


class RunLost(Exception):
    """The run is not valid any more: another one has the job."""


async def carry_out(broker: Broker, taken: Taken, request: Request) -> Any:
    """Every request but `Remember`, which the executor sends together with those of other runs."""
    match request:
        case Recall(id, position):
            return await broker.recall(id, position)
        case ReadMail(name, after):
            return await broker.mailbox(taken.job.id, name, after, limit=1)
        case Look(id):
            return (await broker.get([id]))[0]
        case Spawn(job):
            return (await broker.put([job]))[0]
        case Again(id):
            return bool((await broker.edit(Ids((id,)), Retry())).changed)
    raise TypeError(request)
