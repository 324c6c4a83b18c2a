"""Durable jobs on virtual time: real executors that die and freeze between an effect and its memo.

    python -c "from sim.durable import live_through; print(live_through(seed=1))"

The world outside counts every effect, by job and step. At the end each job's log and result are held against
it: what is remembered has happened, what was remembered did not happen again, what must be undone is undone,
and nothing is left waiting. Clocks jump, records are pruned at once, and half-way the code of a task changes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from dray import App, EventTimeout, JobFinished, JobNotFound
from dray.broker.actions import Query
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Broker
from dray.client.client import Client
from dray.codec.payload import Codecs
from dray.context import CURRENT
from dray.context import Context as JobContext
from dray.durable.entries import Entry, Value, unpack_entry
from dray.errors import DrayError
from dray.job import State
from dray.policy import Retention
from dray.settings import Loaded, Settings
from dray.worker.duties.duties import Duties, Sweep
from dray.worker.executor.executor import Executor
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import OnLoop, Runners
from sim.calendar import _Nobody
from sim.lives import Violation
from sim.loop import Process, VirtualLoop
from sim.plan import EPOCH, Plan
from sim.transport import Network, Transport

LEASE: Final = 8.0
CODECS: Final = Codecs()
KEPT: Final = Retention(result_ttl=500, error_ttl=500, done_ttl=1000)
"""Records of finished jobs go at once, unless an owner needs them."""


@dataclass
class Life:
    """What happened."""

    jobs: int = 0
    effects: int = 0
    crashes: int = 0
    freezes: int = 0
    calls: int = 0
    parked: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class World:
    """The world outside: it sees each effect, by whichever run."""

    def __init__(self, loop: VirtualLoop, broker: MemoryBroker, fail: Callable[[Violation], None]) -> None:
        self._loop, self._broker, self._fail, self._tokens = loop, broker, fail, 0
        self._dice = random.Random("world")
        self.effects: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        """Job and step → the tokens that were handed out."""
        self.keys: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.undone: Counter[tuple[str, str]] = Counter()
        self.children: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    async def effect(self, job: str, step: str, key: str = "") -> int:
        """Something happens; it takes a while before and after."""
        await asyncio.sleep(0.05)
        self._check_not_remembered(job, step)
        self._tokens += 1
        self.effects[job, step].append(self._tokens)
        if key:
            self.keys[job, step].add(key)
        token = self._tokens
        if step.startswith("ask["):
            delay = self._dice.uniform(0.04, 0.2)
            self._loop.call_later(delay, self._answer, job, step[4:-1], context=Context())
        await asyncio.sleep(0.05)
        return token

    def _answer(self, job: str, number: str) -> None:
        body = CODECS.encode_value(int(number))
        send = self._broker.send(job, f"answer-{number}", f"answer-{number}", body)
        self._loop.create_task(send, context=Context())

    def _check_not_remembered(self, job: str, step: str) -> None:
        entry, running = self._broker._store.jobs.get(job), CURRENT.get()
        if entry is None or running is None or running.taken.run != entry.run:
            return  # a run that was taken over: it does not know yet
        if any(isinstance(one, Value) and one.id == step for one in log_of(self._broker, job)):
            self._fail(Violation("repeated", f"{step} of {job} is remembered, and runs again"))

    def undo(self, job: str, step: str) -> None:
        self.undone[job, step] += 1


def log_of(broker: MemoryBroker, id: str) -> list[Entry]:
    entry = broker._store.jobs.get(id)
    return [] if entry is None else [unpack_entry(data) for data in entry.log]


WORLD: World
"""The world of the simulation that runs now: undo functions have no other way to it."""


async def take_back(value: dict[str, Any]) -> None:
    await asyncio.sleep(0.05)
    WORLD.undo(value["job"], value["step"])
    if value["stubborn"] and WORLD.undone[value["job"], value["step"]] == 1:
        raise OSError("not yet")


def make_app(world: World, clock: Callable[[], int], open: Any, version: int) -> App:
    """The app of one process; version 2 of `changing` has one step more."""
    app = App("sim", broker="memory://", codecs=CODECS)
    settings = Settings(broker_url="memory://", namespace="sim", retries=2, max_crashes=1000)
    app.use(Loaded(settings, {"broker_url": "keyword"}, Path()))
    app.client, app.clock = Client(open), clock

    def register(function: Callable[..., Coroutine[Any, Any, Any]], **options: Any) -> None:
        async def run(ctx: JobContext, *args: Any) -> Any:
            return await function(ctx, *args)

        run.__annotations__ = {"ctx": JobContext}
        app.task(name=function.__name__, backoff="fixed:2s", **options)(run)

    def step(ctx: JobContext, name: str, key: str | None = None, **options: Any) -> Coroutine[Any, Any, int]:
        id = name if key is None else f"{name}[{key}]"
        return ctx.step(world.effect, ctx.job.id, id, name=name, key=key, **options)

    async def line(ctx: JobContext) -> list[Any]:
        """Steps, sleeps long and short, helpers."""
        first = await step(ctx, "a")
        await ctx.sleep(0.3)
        await ctx.sleep("20s")
        unique = str(ctx.uuid())
        second = await ctx.step(world.effect, ctx.job.id, "b", unique, name="b")
        await ctx.sleep("3s")
        third = await ctx.step(world.effect, ctx.job.id, "c", str(ctx.uuid()), name="c")
        return [first, second, third]

    async def wide(ctx: JobContext) -> list[Any]:
        """Steps side by side, beside a sleep."""
        parts = await asyncio.gather(*(step(ctx, "part", str(n)) for n in range(4)), ctx.sleep("5s"))
        return [*parts[:4], await step(ctx, "end")]

    async def letters(ctx: JobContext) -> list[Any]:
        """Events in order, and one that does not come."""
        got = [await ctx.event("go") for _ in range(3)]
        try:
            await ctx.event("never", timeout="4s")
        except EventTimeout:
            got.append("late")
        return [*got, await step(ctx, "end")]

    async def asks(ctx: JobContext) -> list[Any]:
        """Answers that come just when it begins to wait."""
        got = []
        for number in range(4):
            await step(ctx, "ask", str(number))
            got.append(await ctx.event(f"answer-{number}"))
        return got

    async def race(ctx: JobContext) -> list[Any]:
        won, _ = await ctx.first(ctx.event("go"), ctx.sleep("15s"))
        return [won, await step(ctx, f"won-{won}")]

    async def child(ctx: JobContext, parent: str, call: str) -> int:
        world.children[parent, call].add(ctx.job.id)
        await ctx.sleep("3s")
        return await step(ctx, "work")

    async def parent(ctx: JobContext) -> list[Any]:
        """Children in the same queue."""
        call = app.tasks["child"].call
        one = await ctx.call(call(ctx.job.id, "one"), key="one")
        await ctx.sleep("10s")
        both = await asyncio.gather(
            *(ctx.call(call(ctx.job.id, name), key=name) for name in ("two", "three"))
        )
        return [one, *both]

    async def saga(ctx: JobContext, end: str) -> list[Any]:
        """Undone if it fails, is cancelled or misses its deadline."""
        for name in ("pay", "pack", "send"):
            options: Any = {"name": name, "undo": take_back, "undo_retries": 100}
            await ctx.step(_paid, world, ctx.job.id, name, end == "fail", **options)
            await ctx.sleep("2s")
        if end == "fail":
            raise ValueError("no")
        if end != "well":
            await ctx.event("never")
        return ["well"]

    async def flaky(ctx: JobContext) -> list[Any]:
        """A step that fails twice, and the job once."""

        async def unsure() -> int:
            token = await world.effect(ctx.job.id, "unsure")
            if len(world.effects[ctx.job.id, "unsure"]) < 3:
                raise OSError("down")
            return token

        token = await ctx.step(unsure, name="unsure", retries=100)
        if ctx.attempt == 1:
            raise OSError("once more")
        return [token]

    async def changing(ctx: JobContext) -> list[Any]:
        """Its code changes half-way."""
        extra = [await step(ctx, "extra")] if version == 2 else []
        first = await step(ctx, "a")
        await ctx.sleep("25s")
        return [*extra, first, await step(ctx, "b")]

    for function in (line, wide, letters, asks, race, child, parent, saga, changing):
        register(function)
    register(flaky, retries=100)
    return app


async def _paid(world: World, job: str, step: str, stubborn: bool) -> dict[str, Any]:
    return {"token": await world.effect(job, step), "job": job, "step": step, "stubborn": stubborn}


@dataclass(frozen=True)
class Parts:
    """What is put to the test: the program's classes, or ones with a bug."""

    broker: type[MemoryBroker] = MemoryBroker
    executor: type[Executor] = Executor


SHAPES: Final = ("line", "wide", "letters", "asks", "race", "parent", "saga", "flaky", "changing")
ENDS: Final = ("well", "fail", "cancel", "deadline")


def live_through(
    seed: int,
    *,
    jobs: int = 24,
    horizon: float = 60.0,
    parts: Parts | None = None,
    concurrency: int | None = None,
) -> Life:
    """Simulate; raises `Violation` if a promise is broken."""
    loop = VirtualLoop(seed)
    try:
        return loop.run_until_complete(
            _Stage(seed, loop, parts or Parts(), jobs, horizon, concurrency).play()
        )
    finally:
        loop.bury()


class _Stage:
    def __init__(
        self, seed: int, loop: VirtualLoop, parts: Parts, jobs: int, horizon: float, concurrency: int | None
    ) -> None:
        self._loop, self._parts, self._horizon = loop, parts, horizon
        self._dice = dice = random.Random(f"durable:{seed}")
        calm = dice.random() < 0.2
        chances: Any = {
            name: 0.0 if calm else dice.choice([0.0, 0.03, 0.08])
            for name in ("lost", "unheard", "twice", "late", "stale", "crash")
        }
        self._plan = Plan(seed=seed, lease=LEASE, slow=dice.choice([0.01, 0.05]), **chances)
        self._ahead = 0
        self._broker = parts.broker("sim", retention=KEPT, clock=self._clock)
        self._network = Network(self._plan, loop, self._broker, _Nobody())
        self._world = World(loop, self._broker, self._failed)
        self._concurrency = concurrency or dice.choice([1, 2, 8])
        self._version = 1
        self._staff: dict[str, Process] = {}
        self._births: Counter[str] = Counter()
        self._jobs = {f"j{n}": dice.choice(SHAPES) for n in range(jobs)}
        self._ends = {id: dice.choice(ENDS) for id, shape in self._jobs.items() if shape == "saga"}
        self._sent: dict[str, list[int]] = {}
        self._found: Violation | None = None
        self._results: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        """The last record of each job, and its log, before it is pruned."""
        self.life = Life(jobs=jobs)

    def _clock(self) -> int:
        return EPOCH + self._ahead + int(self._loop.time() * 1000)

    def _failed(self, violation: Violation) -> None:
        self._found = self._found or violation

    # the play

    async def play(self) -> Life:
        global WORLD
        WORLD = self._world
        for n in range(3):
            self._hire(f"worker{n}", self._work)
        self._hire("sweeper", self._sweep)
        self._hire("client", self._enqueue)
        self._hire("postman", self._send)
        self._hire("operator", self._continue)
        watching = self._loop.create_task(self._watch())
        while self._loop.time() < self._horizon:
            await asyncio.sleep(1.0)
            self._harm()
        await self._calm()
        watching.cancel()
        await self._reckon()
        self.life.effects = sum(map(len, self._world.effects.values()))
        self.life.calls = self._network.calls
        return self.life

    def _hire(self, name: str, work: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self._births[name] += 1
        process = self._staff[name] = Process(f"{name}.{self._births[name]}", self._loop)

        def died() -> None:
            self.life.crashes += 1
            self._loop.call_later(self._dice.uniform(0.5, 4), self._hire, name, work)

        process.on_kill.append(died)
        process.start(work(process))

    def _app(self, process: Process) -> App:
        transport = Transport(self._network, process)

        async def open(blocking: bool) -> Broker:
            return transport

        return make_app(self._world, self._clock, open, self._version)

    async def _work(self, process: Process) -> None:
        app, dice = self._app(process), random.Random(process.name)
        lease = int(LEASE * 1000)
        settings = Settings(
            broker_url="memory://",
            namespace="sim",
            retries=2,
            max_crashes=1000,
            lease=lease,
            heartbeat=lease // 3,
            concurrency=self._concurrency,
            timeout=60_000,
        )

        def runners(judge: Judge) -> Runners:
            on_loop = OnLoop(judge, _no_thread)
            return Runners(on_loop, on_loop, on_loop)

        executor = self._parts.executor(
            app,
            Transport(self._network, process),
            settings=settings,
            session_name=process.name,
            runners=runners,
            clock=self._clock,
            random=dice.random,
        )
        await executor.run()

    async def _sweep(self, process: Process) -> None:
        time, dice = self._loop.time, random.Random(process.name)
        line = RetryingBroker(
            Transport(self._network, process), LEASE, wall=time, monotonic=time, random=dice.random
        )
        await Duties(line, process.name, [Sweep(1000)], lease=int(LEASE * 1000), interval=1000).run()

    async def _until_done(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        while True:
            try:
                return await call()
            except (JobFinished, JobNotFound):
                return None
            except DrayError:
                await asyncio.sleep(0.5)

    async def _enqueue(self, process: Process) -> None:
        app = self._app(process)
        for id, shape in self._jobs.items():
            if id in self._last:
                continue
            options: dict[str, Any] = {"id": id, "retries": 0} if shape == "saga" else {"id": id}
            if self._ends.get(id) == "deadline":
                options["deadline"] = "25s"
            args = (self._ends[id],) if id in self._ends else ()
            call = app.tasks[shape].using(**options).call(*args)
            await self._until_done(partial(app.asubmit, call))
            await asyncio.sleep(0.3)

    async def _send(self, process: Process) -> None:
        """Events, each of them more than once; and cancels, at odd moments."""
        app, dice = self._app(process), random.Random(process.name)
        while True:
            await asyncio.sleep(0.4)
            for id, shape in self._jobs.items():
                if shape in ("letters", "race") and id in self._last:
                    sent = self._sent.setdefault(id, [])
                    if len(sent) < 3 and dice.random() < 0.3:
                        number = len(sent)
                        sent.append(number)
                        for _ in range(dice.choice([1, 2])):
                            send = partial(app.job(id).asend, "go", number, id=f"m{number}")
                            await self._until_done(send)
                if self._ends.get(id) == "cancel" and id in self._last and dice.random() < 0.03:
                    await self._until_done(partial(app.job(id).acancel, "enough"))
            if self._network.calm:
                await self._send_rest(app)

    async def _send_rest(self, app: App) -> None:
        for id, shape in self._jobs.items():
            if shape in ("letters", "race"):
                for number in range(3):
                    with suppress(DrayError):
                        await app.job(id).asend("go", number, id=f"m{number}")
            if self._ends.get(id) == "cancel":
                with suppress(DrayError):
                    await app.job(id).acancel("enough")
        await asyncio.sleep(5)

    async def _continue(self, process: Process) -> None:
        app = self._app(process)
        while True:
            await asyncio.sleep(2)
            for id, shape in self._jobs.items():
                with suppress(DrayError):
                    if shape == "changing" and await app.job(id).aresume():
                        self.life.parked += 1

    async def _watch(self) -> None:
        """Keep the last that is known of each job: records are pruned soon."""
        while True:
            for id in self._jobs:
                entry = self._broker._store.jobs.get(id)
                if entry is not None:
                    self._last[id] = (entry.state, entry.result, log_of(self._broker, id), entry.reason)
            await asyncio.sleep(0.05)

    def _harm(self) -> None:
        dice = self._dice
        if dice.random() < 0.02:
            self._ahead += dice.choice([2_000, 30_000])  # a clock that is put right
        if self._version == 1 and self._loop.time() > self._horizon / 3:
            self._version = 2
        well = [one for one in self._staff.values() if one.alive and not one.frozen]
        if not well or dice.random() > 0.25 or self._plan.crash == 0:
            return
        victim = dice.choice(well)
        if dice.random() < 0.6:
            victim.kill()
        else:
            self.life.freezes += 1
            victim.freeze(dice.uniform(0.1, 2.5 * LEASE))

    async def _calm(self) -> None:
        """No more faults: everything has to end."""
        self._network.calm = True
        self._version = 2
        for name, process in list(self._staff.items()):
            if name.startswith("worker"):
                process.kill()  # workers with the old code
        for _ in range(240):
            await asyncio.sleep(1.0)
            if self._found is not None or self._all_ended():
                break
        await asyncio.sleep(3)

    def _all_ended(self) -> bool:
        """Every job has ended; children that a killed worker held wait for its lease and a sweeper."""
        ended = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
        known = self._broker._store.jobs.values()
        roots = all(id in self._last and self._last[id][0] in ended for id in self._jobs)
        return roots and all(entry.state.finished for entry in known)

    # reckoning

    async def _reckon(self) -> None:
        if self._found is not None:
            raise self._found
        for problem in await self._broker.audit():
            raise Violation("audit", problem)
        for id, shape in self._jobs.items():
            self._check_end(id, shape, *self._last.get(id, (None, None, [], None)))
        for (job, call), ids in self._world.children.items():
            if len(ids) > 1:
                raise Violation("children", f"{job} called {call} as {sorted(ids)}")
        for (job, step), keys in self._world.keys.items():
            if len(keys) > 1:
                raise Violation("helpers", f"{step} of {job} ran with {len(keys)} keys")
        left = [record.id for record in (await self._broker.find(Query(), limit=1000)).records]
        unfinished = [id for id in left if not self._broker._store.jobs[id].state.finished]
        if unfinished:
            raise Violation("stuck", f"{unfinished} are left")

    def _check_end(
        self,
        id: str,
        shape: str,
        state: State | None,
        result: bytes | None,
        log: list[Entry],
        reason: str | None,
    ) -> None:
        if state is None or not state.finished:
            raise Violation("stuck", f"{id} ({shape}) is {state} in the end, {reason}: {log}")
        self.life.ends[f"{shape} {state}"] += 1
        values = Counter(entry.id for entry in log if isinstance(entry, Value))
        for step, count in values.items():
            if count > 1:
                raise Violation("memos", f"{step} of {id} is remembered {count} times")
            if not step.endswith(")") and "(" not in step and not self._world.effects[id, step]:
                raise Violation("effects", f"{step} of {id} is remembered, and never happened")
        if shape == "saga":
            self._check_saga(id, state, values)
        elif state is not State.SUCCEEDED:
            raise Violation("ends", f"{id} ({shape}) is {state}: {reason}")
        elif result is not None:
            self._check_result(id, shape, CODECS.decode_value(result), log)

    def _check_result(self, id: str, shape: str, result: list[Any], log: list[Entry]) -> None:
        """What the job returned is what its log has."""
        values = {
            entry.id: CODECS.decode_value(entry.value)
            for entry in log
            if isinstance(entry, Value) and entry.value
        }
        wanted: dict[str, list[Any]] = {
            "line": [values.get(step) for step in ("a", "b", "c")],
            "wide": [values.get(step) for step in (*(f"part[{n}]" for n in range(4)), "end")],
            "letters": [0, 1, 2, "late", values.get("end")],
            "parent": [values.get(f"call(child)[{name}]") for name in ("one", "two", "three")],
            "flaky": [values.get("unsure")],
            "asks": [0, 1, 2, 3],
        }
        if shape == "letters":
            result = [*sorted(result[:3]), *result[3:]]
        if shape in wanted and result != wanted[shape]:
            raise Violation(
                "results", f"{id} ({shape}) returned {result}, its log has {wanted[shape]}: {log}"
            )

    def _check_saga(self, id: str, state: State, values: Counter[str]) -> None:
        end = self._ends[id]
        fine = {"well": {State.SUCCEEDED}, "fail": {State.DEAD}, "cancel": {State.CANCELLED}}
        if state not in fine.get(end, {State.DEAD}):
            raise Violation("ends", f"{id} (saga, {end}) is {state}")
        for step in ("pay", "pack", "send"):
            undone = self._world.undone[id, step]
            if state is State.SUCCEEDED and undone:
                raise Violation("undo", f"{step} of {id} was undone, and the job succeeded")
            if state is not State.SUCCEEDED and values[step] and not values[f"undo({step})"]:
                raise Violation("undo", f"{step} of {id} was not undone")
            if values[f"undo({step})"] and not undone:
                raise Violation("undo", f"{step} of {id} counts as undone, and is not")


async def _no_thread(*_: object) -> Any:
    raise NotImplementedError("every task here is async")
