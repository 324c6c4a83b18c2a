"""Memos of the runs of one executor, on their way to the broker: those of one moment travel together.

While one call is under way, the writes of other runs wait for the next: many runs cost few calls, and a lone
run is not delayed.
"""

from __future__ import annotations

import asyncio

from dray.broker.durable import MemoWrite
from dray.broker.verbs import Broker
from dray.errors import TooLarge
from dray.job import Verdict

_Waiting = tuple[MemoWrite, "asyncio.Future[Verdict]"]


class MemoBatches:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._loop = broker, asyncio.get_running_loop()
        self._waiting: dict[str, list[_Waiting]] = {}
        """By session."""
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def write(self, session: str, write: MemoWrite) -> Verdict:
        """The broker's verdict, or its error."""
        verdict: asyncio.Future[Verdict] = self._loop.create_future()
        self._waiting.setdefault(session, []).append((write, verdict))
        if session not in self._sending:
            self._sending[session] = self._loop.create_task(self._send_all(session))
        return await verdict

    async def _send_all(self, session: str) -> None:
        try:
            await asyncio.sleep(0)  # others may write in this turn of the loop
            while batch := self._waiting.pop(session, None):
                await self._send(session, batch)
        finally:
            del self._sending[session]

    async def _send(self, session: str, batch: list[_Waiting]) -> None:
        try:
            verdicts = await self._broker.memo(session, [write for write, _ in batch])
        except TooLarge as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            for one in batch:  # one of them: the others must not suffer
                await self._send(session, [one])
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, reply), verdict in zip(batch, verdicts, strict=True):
                if not reply.done():
                    reply.set_result(verdict)


def _fail(batch: list[_Waiting], error: BaseException) -> None:
    for _, reply in batch:
        if not reply.done():
            reply.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            reply.exception()  # its run may be gone
