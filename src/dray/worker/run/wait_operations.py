"""`ctx.sleep`, `ctx.event` and `ctx.call`: operations that wait, and end the run if nothing else goes on."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

import msgspec

from dray.broker.verbs import Accepted
from dray.client.enqueue_middleware import pass_through
from dray.durable.entries import Child, Expired, Failure, Mail, Sleep, Value, Wait
from dray.durable.identity import child_id, digest_of, show
from dray.durable.journal import VALUE_MAX
from dray.durable.references import pack_error
from dray.duration import parse_duration
from dray.errors import DuplicateJob, EventTimeout, InvalidInput
from dray.handle import outcome_of
from dray.job import Job, Record, State
from dray.options import Duration, read_due
from dray.task import Call
from dray.worker.run.durable_run import SHORT, DurableRun, Waiting
from dray.worker.run.operation import Operation, decode
from dray.worker.run.outcome import describe
from dray.worker.run.requests import Again, Look, ReadMail, Spawn

NO_ROOM: Final = 2000
"""Milliseconds between tries to put a child into a full queue."""


class SleepOperation(Operation):
    def __init__(self, durable: DurableRun, length: Duration | datetime, key: str | None) -> None:
        now = durable.judge.now()
        if isinstance(length, datetime):
            self._until = read_due(None, length, now)
        else:
            self._until = now + parse_duration("length", length)
        self._length = max(0, self._until - now)
        super().__init__(durable, "sleep()", key)

    async def act(self) -> None:
        durable, memory = self.durable, self.memory
        sleep = memory.sleep if memory is not None else None
        if sleep is None:
            if self._length < SHORT * 1000:
                await asyncio.sleep(self._length / 1000)
                return
            await self.admit()
            sleep = Sleep(**self.common(), until=self._until)
            await durable.write(sleep)
        while sleep.until > durable.judge.now():
            if await durable.wait(Waiting(until=sleep.until, direct=self.direct)):
                return


class EventOperation(Operation):
    def __init__(
        self, durable: DurableRun, name: str, timeout: Duration | None, type: Any, key: str | None
    ) -> None:
        self._event, self._type = name, type
        self._timeout = None if timeout is None else parse_duration("timeout", timeout)
        super().__init__(durable, f"event({name})", key)

    async def act(self) -> Any:
        durable, memory = self.durable, self.memory
        if memory is not None and isinstance(memory.done, Mail | Expired):
            durable.run.steps_replayed += 1
            return self._ended(memory.done)
        wait = memory.wait if memory is not None else None
        if memory is None:
            await self.admit()
        late = False
        while True:
            mail = await self._read()
            if mail is not None:
                return self._ended(mail)
            if late or (wait is not None and wait.until is not None and wait.until <= durable.judge.now()):
                expired = Expired(**self.common(), run=durable.run.taken.run)
                await durable.write(expired)
                return self._ended(expired)
            if wait is None:
                until = None if self._timeout is None else durable.judge.now() + self._timeout
                wait = Wait(**self.common(), name=self._event, until=until)
                await durable.write(wait)
            seen = durable.journal.received.get(self._event, 0)
            late = await durable.wait(
                Waiting(until=wait.until, event=(self._event, seen), direct=self.direct)
            )

    async def _read(self) -> Mail | None:
        """The next message, which is the job's from now on."""
        durable = self.durable
        found = await durable.ask(ReadMail(self._event, durable.journal.received.get(self._event, 0)))
        if not found:
            return None
        message = found[0]
        mail = Mail(
            **self.common(), name=self._event, number=message.number, message=message.id, body=message.body
        )
        await durable.write(mail, consumed={self._event: message.number})
        return mail

    def _ended(self, done: Mail | Expired) -> Any:
        if isinstance(done, Mail):
            return decode(self.durable, done.body, self._type)
        raise self.durable.final(EventTimeout(self.durable.job.id, self._event))


class CallOperation(Operation):
    def __init__(self, durable: DurableRun, call: Call[Any], key: str | None) -> None:
        if not isinstance(call, Call):
            raise InvalidInput("call", call, "a call as made by task.call(...) is allowed")
        self._call, task = call, durable.app.tasks.get(call.task)
        self._returns = Any if task is None else task.hints.returns
        self.digest, self.shown = digest_of(call.args, call.kwargs), show(call.args, call.kwargs)
        super().__init__(durable, f"call({call.task})", key)

    async def act(self) -> Any:
        durable, memory = self.durable, self.memory
        if memory is None:
            await self.admit()
        else:
            await self.compare(memory, self.digest, self.shown)
            if isinstance(memory.done, Value | Failure):
                return await self._recall(memory.done)
        child = memory.child.job if memory is not None and memory.child is not None else None
        again = memory is not None and memory.forgot
        if child is None:
            child = await self._spawn()
        while True:
            record = await durable.ask(Look(child))
            if record is None:  # a run before died between its entry and the put
                child = await self._spawn()
            elif again and record.state in (State.DEAD, State.CANCELLED):
                again = False
                await durable.ask(Again(child))
            elif record.state.finished:
                return await self._keep(record)
            else:
                await durable.wait(Waiting(job=child, direct=self.direct))

    async def _recall(self, done: Value | Failure) -> Any:
        if isinstance(done, Failure) or not done.child:
            return self.recall(done, self._returns)
        record = await self.durable.ask(Look(done.child))
        return outcome_of(self.durable.app.handle(done.child, self._call.task), record)

    async def _spawn(self) -> str:
        """Put the child. Its id is in the log first, so that it ends with this job."""
        durable = self.durable
        job: Job = await pass_through(durable.app, self._call, self._build)
        await self._remember(job.id)
        while (accepted := await durable.ask(Spawn(job))).verdict in ("full", "limited"):
            pause = accepted.retry_after or NO_ROOM
            await durable.wait(Waiting(until=durable.judge.now() + pause, direct=self.direct))
        if accepted.id != job.id:
            await self._remember(accepted.id)
            if job.on_duplicate == "raise":
                raise DuplicateJob(accepted.id)
        return self._accepted(accepted)

    def _accepted(self, accepted: Accepted) -> str:
        if accepted.verdict == "created":
            self.durable.app.client.arrivals.add(self._call.task, self.durable.job.queue)
        return accepted.id

    async def _remember(self, job: str) -> None:
        entry = Child(**self.common(), digest=self.digest, shown=self.shown, job=job)
        await self.durable.write(entry, children=(job,))

    async def _build(self, call: Call[Any], headers: dict[str, str]) -> Job:
        app, parent = self.durable.app, self.durable.job.id
        if app.tracing is None:
            job = app.job_builder.build(call, headers or None)
        else:
            with app.tracing.sending([call], app.job_builder.queue_of(call)) as trace:
                job = app.job_builder.build(call, trace | headers)
        id = job.id if "id" in call.options else child_id(parent, self.id, job.queue)
        return msgspec.structs.replace(job, id=id, owner=parent, parent=parent)

    async def _keep(self, record: Record) -> Any:
        """Remember how the child ended. A large result stays with the child, which is kept as long."""
        durable, job = self.durable, self.durable.app.handle(record.id, record.job.task)
        try:
            value = outcome_of(job, record)
        except Exception as error:
            text = describe(error)
            failure = Failure(
                **self.common(), run=durable.run.taken.run, error=text, raised=pack_error(error)
            )
            await durable.write(failure)
            raise durable.final(error) from None
        data = record.result or b""
        small = len(data) <= VALUE_MAX
        entry = Value(
            **self.common(),
            digest=self.digest,
            shown=self.shown,
            value=data if small else b"",
            child="" if small else record.id,
        )
        await durable.write(entry)
        return value
