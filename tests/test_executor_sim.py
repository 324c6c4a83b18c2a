"""The real executor on the stage of the simulation, in place of the model workers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from dray.app import App
from dray.context import Context, Reject
from dray.job import Outcome, OutcomeKind
from dray.settings import Settings
from dray.testing.sim import explorer, simulate
from dray.testing.sim.loop import Process
from dray.testing.sim.orders import QUEUES, TASKS, Script, script
from dray.testing.sim.stage import Member, Stage
from dray.testing.sim.transport import Transport
from dray.worker.channel import Message, Started, Stuck
from dray.worker.executor import Executor
from dray.worker.live import Ended, Live
from dray.worker.run import Judge
from dray.worker.runners import OnLoop, Runners, call_here

SECONDS = float(os.environ.get("DRAY_SIM_SECONDS", "60")) / 4


class ScriptCodecs:
    """The payload of a simulated job is its script."""

    def decode_call(
        self, data: bytes, hints: object, *, limit: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {}

    def encode_value(self, value: object, **_: object) -> bytes:
        return b"ok"


class Crash(Exception):
    """Stands for the end of the child process that runs the job."""


class Player(OnLoop):
    """Runs jobs on the loop, and reports crashes as a pool of child processes does."""

    def start(self, live: Live, ended: Ended) -> None:
        super().start(live, partial(self._note_crash, ended))

    def _note_crash(self, ended: Ended, live: Live, outcome: Outcome) -> None:
        if outcome.error is not None and outcome.error.type.endswith("Crash") and live.why is None:
            outcome = self._judge.crashed(live, "the child is gone")
        ended(live, outcome)


def players(judge: Judge) -> Runners:
    player = Player(judge, call_here)
    return Runners(player, player, player)


def make_app(die: Any) -> App:
    app = App("sim", broker="memory://")
    app.codecs = ScriptCodecs()  # type: ignore[assignment]

    async def act(ctx: Context) -> None:
        taken = ctx._running.taken
        play = script(taken.job)
        await sleep(play)
        if play.act == "crash" and taken.run <= play.times:
            if not taken.suspect:
                die()
                await asyncio.sleep(3600)
            raise Crash
        if play.act == "child" and taken.run <= play.times:
            raise Crash
        if play.act == "reject":
            raise Reject("no")
        if play.act == "fail" and taken.attempt <= play.times:
            raise ValueError("failed")

    for name in TASKS:
        app.task(name=name, backoff="fixed:2s,jitter=1")(act)
    return app


async def sleep(play: Script) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + play.seconds
    while (left := until - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            if not play.deaf:
                raise


class Real:
    """One executor in the role of a worker; what its supervisor would do, the stage does."""

    def __init__(self, executor: Executor, grace: int) -> None:
        self.executor, self._grace = executor, grace
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self.executor.stop(self._grace)

    async def run(self, process: Process) -> None:
        await self.executor.run()
        if not self._stopping:
            process.kill()  # it retired, and is replaced


class RealStage(Stage):
    def _add_worker(self, n: int) -> None:
        dice = self.plan.dice(f"worker{n}")
        tasks = None if n == 0 or dice.random() < 0.6 else tuple(dice.sample(TASKS, 4))
        bands = None if n == 0 or dice.random() < 0.8 else frozenset(range(7))
        queues = tuple(dice.sample(QUEUES, len(QUEUES)))
        member = Member(f"worker{n}", self._nothing, lasting=True)

        def role(process: Process, broker: Transport) -> Coroutine[Any, Any, None]:
            async def main() -> None:
                settings = Settings(
                    broker_url="memory://",
                    namespace="sim",
                    queues=queues,
                    tasks=tasks,
                    priorities=bands,
                    concurrency=dice.randint(1, 4),
                    lease=int(self.plan.lease * 1000),
                    timeout=dice.choice([300_000, 12_000]),
                    max_jobs_per_process=dice.choice([None, None, 20]),
                )
                executor = Executor(
                    make_app(process.kill),
                    broker,
                    settings=settings,
                    session_name=process.name,
                    runners=players,
                    clock=self.clock,
                    random=self.plan.dice(process.name).random,
                    say=lambda message: self._hear(member, process, message),
                )
                real = Real(executor, dice.choice([0, 1000, 30_000]))
                member.session = f"{process.name}.1"
                member.worker = real  # type: ignore[assignment]
                await real.run(process)

            return main()

        member.role = role
        self.members.append(member)
        self._launch(member)

    def _hear(self, member: Member, process: Process, message: Message) -> None:
        if isinstance(message, Started):
            member.session = message.session
        elif isinstance(message, Stuck):
            self.trace.say(process.name, "stuck")
            process.kill()


@pytest.fixture(autouse=True)
def quietly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(explorer, "Stage", RealStage)
    logger = logging.getLogger("dray.worker")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def test_every_seed_keeps_every_promise() -> None:
    end, seed = time.monotonic() + SECONDS, int(os.environ.get("DRAY_SIM_SEED", "1"))
    ran = 0
    while time.monotonic() < end:
        report = simulate(seed + ran)
        assert report.ok, report.text()
        ran += 1
    assert ran


def test_the_same_seed_is_the_same_run() -> None:
    for seed in (3, 11):
        one, other = (simulate(seed, keep_trace=True) for _ in range(2))
        assert one.trace == other.trace
        assert one.digest == other.digest


def test_outcomes_are_what_the_scripts_say() -> None:
    """The stage would not notice a worker that settles nothing but successes: count what really came."""
    kinds: dict[OutcomeKind, int] = {}
    real = Executor._ended

    def count(self: Executor, live: Live, outcome: Outcome) -> None:
        kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
        real(self, live, outcome)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "_ended", count)
        for seed in range(100, 130):
            report = simulate(seed)
            assert report.ok, report.text()
    assert set(kinds) == set(OutcomeKind)
