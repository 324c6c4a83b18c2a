"""One worker: the real executor, and, for most, a supervisor beside it in a process of its own.

The supervisor here is the part of the real one that touches sessions: it renews the executor's, passes on
what it hears, frees what a dead executor held, and settles for one that is stuck. Either of the two may die
or freeze alone; an executor without a supervisor renews by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dray.broker.verbs import Broker
from dray.documents.worker_registry import WorkerInfo
from dray.errors import BrokerError
from dray.job import Outcome
from dray.settings import AUTO_MOST, Settings
from dray.settings.queue_choice import is_pattern
from dray.worker.channel import Message, RunStatistics, SessionLapsed, Started, Stop, Stuck
from dray.worker.executor.accounting import Accounts
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor.heartbeats import Heartbeats
from dray.worker.supervisor.statistics import WorkerStatistics
from sim.loop import Process, VirtualLoop
from sim.overseer import Overseer
from sim.parts import Parts
from sim.plan import Plan
from sim.script import make_app
from sim.stand_ins import runners
from sim.trace import Trace
from sim.transport import Transport


class Scene(Protocol):
    """The stage, as a worker uses it."""

    plan: Plan
    loop: VirtualLoop
    parts: Parts
    trace: Trace

    def clock(self) -> int: ...
    def transport(self, process: Process, overseer: Overseer | None = None) -> Transport: ...
    def fail(self, violation: Any) -> None: ...
    def guard(self, process: Process, main: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]: ...


class Pipe:
    """Messages to another process, in order."""

    def __init__(self, to: Process, hear: Callable[[Message], None]) -> None:
        self._to, self._hear = to, hear
        self._sent: deque[Message] = deque()

    def send(self, message: Message) -> None:
        self._sent.append(message)
        self._to.call(self._deliver, delay=0.001)

    def _deliver(self) -> None:
        self._hear(self._sent.popleft())


class SimulatedWorker:
    """An executor and its supervisor. `over` is called when the executor has ended."""

    def __init__(
        self, scene: Scene, name: str, settings: Settings, dice: random.Random, over: Callable[[], None]
    ) -> None:
        self._scene, self._dice, self._over = scene, dice, over
        self.settings = settings
        self.process = Process(name, scene.loop)
        self.supervisor = SimulatedSupervisor(self, scene, dice) if dice.random() < 0.7 else None
        most = settings.concurrency or AUTO_MOST
        self.overseer = Overseer(self.process, most, scene.trace, scene.loop, scene.fail)
        turns = not settings.queues or any(map(is_pattern, settings.queues))
        adapts = settings.concurrency is None
        self.overseer.bounded = turns or adapts or settings.max_jobs_per_process is not None
        self._executor: Any = None
        self._in_order = False
        self.process.on_kill.append(self._ended)

    @property
    def processes(self) -> list[Process]:
        return [self.process] if self.supervisor is None else [self.process, self.supervisor.process]

    def start(self) -> None:
        self.process.start(self._scene.guard(self.process, self._main()))
        if self.supervisor is not None:
            self.supervisor.start()

    async def _main(self) -> None:
        scene, process = self._scene, self.process
        broker = scene.transport(process, self.overseer)
        plain = scene.transport(process)

        async def open(blocking: bool) -> Broker:
            return plain

        app = make_app(scene.plan, open, scene.clock, scene.parts.client)
        dice = scene.plan.dice(process.name)
        executor = self._executor = scene.parts.executor(
            app,
            broker,
            settings=self.settings,
            session_name=process.name,
            runners=lambda judge: runners(judge, process, self.overseer, dice, scene.parts),
            clock=scene.clock,
            random=dice.random,
            state=self.overseer,
            accounts=Accounts(scene.loop.time, lambda: scene.loop.time() / 2, scene.clock),
            renews=self.supervisor is None,
            send=None if self.supervisor is None else self._say,
        )
        await executor.run()
        self._in_order = True
        process.kill()

    def _say(self, message: Message) -> None:
        self.overseer.says(message)
        if self.supervisor is not None:
            self.supervisor.ears.send(message)

    def hear(self, message: Message) -> None:
        """Handle a message in the executor's process."""
        if self._executor is not None:
            self.overseer.is_told_by_supervisor(message)
            self._executor.hear(message)

    def stop(self) -> None:
        """Stop the executor in good order, with some grace."""
        self._scene.trace.say(self.process.name, "asked to stop")
        grace = Stop(self._dice.choice([0, 1000, 30_000]))
        if self.supervisor is None:
            self.process.call(self.hear, grace)
        elif self.supervisor.process.alive:
            self.supervisor.send(grace)

    def deserted(self) -> None:
        """The supervisor is gone: the executor sees the end of the channel."""

        def abandon() -> None:
            if self._executor is not None:
                self.overseer.stopping = True
                self._executor.abandon()
            else:
                self.process.kill()

        self.process.call(abandon, delay=0.001)

    def _ended(self) -> None:
        self._scene.trace.say(self.process.name, "ended" if self._in_order else "killed")
        if self.supervisor is not None:
            self.supervisor.process.call(self.supervisor.bury, not self._in_order, delay=0.01)
        self._over()


class SimulatedSupervisor:
    """The supervisor of one executor; `Heartbeats` uses it as that executor."""

    def __init__(self, worker: SimulatedWorker, scene: Scene, dice: random.Random) -> None:
        self._worker, self._scene, self._dice = worker, scene, dice
        self.process = Process(f"{worker.process.name}.boss", scene.loop)
        self.process.on_kill.append(self._killed)
        self._broker = scene.transport(self.process)
        self.ears = Pipe(self.process, self._hear)
        self._mouth = Pipe(worker.process, worker.hear)
        self.session: str | None = None
        self.epoch = 0
        self._sessions: dict[str, None] = {}
        self._stuck: list[Outcome] = []
        self._statistics = WorkerStatistics(self.process.name, scene.loop.time)

    def start(self) -> None:
        self.process.start(self._scene.guard(self.process, self._main()))

    async def _main(self) -> None:
        settings, loop = self._worker.settings, self._scene.loop
        line = RetryingBroker(self._broker, settings.lease / 1000, wall=loop.time, monotonic=loop.time)
        beats = Heartbeats(
            line,
            lease=settings.lease,
            heartbeat=settings.heartbeat,
            executors=[self],  # type: ignore[list-item]  # what it asks of one is here
            describe=_nobody,
        )
        while True:
            pause = settings.heartbeat / 1000
            try:
                await beats.renew()
                if self._scene.plan.has("stragglers"):
                    await self._statistics.write(line)
            except (BrokerError, OSError):
                pause = self._dice.uniform(0.1, min(pause, 2.0))
            await asyncio.sleep(pause)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Started):
            self.session, self.epoch = message.session, message.epoch
            self._sessions[message.session] = None
        elif isinstance(message, RunStatistics):
            self._statistics.add(message)
        elif isinstance(message, Stuck):
            self._scene.trace.say(self._worker.process.name, "stuck")
            self._stuck = message.outcomes
            self._worker.process.kill()

    def send(self, message: Message) -> None:
        self._mouth.send(message)

    def lapse(self) -> None:
        if self.session is not None:
            self.send(SessionLapsed(self.session))
            self.session = None

    def bury(self, suspect: bool) -> None:
        """The executor is gone: free its jobs."""
        last, self.session = self.session, None
        self.process.start(self._scene.guard(self.process, self._free(last, suspect)))

    async def _free(self, last: str | None, suspect: bool) -> None:
        if self._stuck and last is not None:
            await self._insist(lambda: self._broker.settle(last, self._stuck))
        for session in self._sessions:
            await self._insist(lambda: self._broker.release(session, suspect=suspect))  # noqa: B023
        self.process.on_kill.clear()
        self.process.kill()

    async def _insist(self, call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            try:
                await call()
                return
            except BrokerError:
                await asyncio.sleep(self._dice.uniform(0.05, 1))

    def _killed(self) -> None:
        self._scene.trace.say(self.process.name, "killed")
        self._worker.deserted()


def _nobody() -> WorkerInfo:
    raise NotImplementedError("the roster is not simulated")
