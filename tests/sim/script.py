"""The app of a simulation: its tasks do what their arguments say, and report their ends to the overseer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from dray.app import App
from dray.client.client import Client, Opener
from dray.codec.payload import Codecs
from dray.context import Context, Reject, Retry
from dray.errors import BrokerAway, DrayError
from dray.options import TaskSettings
from dray.settings import Loaded, Settings
from dray.worker.run.run_state import Interrupted
from sim.loop import PROCESS
from sim.plan import Plan

TASKS: Final = ("plain", "other", "capped", "keyed", "rated", "paced", "twin")
CAPPED: Final = 2
KEYED: Final = 1
BOUND: Final = 3
RATE: Final = "60/m+2"
PACE: Final = "30/m+1"

LIMITS: Final[dict[str, TaskSettings]] = {
    "capped": {"max_running": CAPPED},
    "keyed": {"max_running": KEYED, "running_key": "{lane}"},
    "rated": {"rate_limit": RATE},
    "paced": {"rate_limit": PACE, "rate_key": "{lane}"},
    "twin": {"speculate": True},
}
"""Jobs of one task declare the same limits, so that their order does not matter."""
CODECS: Final = Codecs()
SLICE: Final = 0.25
"""Seconds between two moments at which a thread can be interrupted, or checks whether to stop."""
ASK_FOR: Final = 20.0
STRAGGLES: Final = 30.0
"""Seconds that every other run of a straggler takes."""


class Script(msgspec.Struct, frozen=True, array_like=True):
    """The behaviour of a job: the arguments of its call. It misbehaves on its first `times` runs."""

    act: str = "succeed"
    seconds: float = 0.1
    times: int = 0
    deaf: bool = False
    """It does not stop when it is asked to."""
    lane: str = "x"

    @property
    def args(self) -> tuple[Any, ...]:
        return self.act, self.seconds, self.times, self.deaf, self.lane

    def payload(self) -> bytes:
        return CODECS.encode_call(self.args, {})


def read_script(payload: bytes) -> Script:
    args, _ = CODECS.decode_call(payload)
    return Script(*args)


def kills(script: Script, run: int, guests: int) -> bool:
    """When it kills its process: a few times, each time, or whenever it is not alone there."""
    match script.act:
        case "crash":
            return run <= script.times
        case "poison":
            return True
        case "crowd":
            return guests > 1
    return False


class Thread:
    """The thread of a run; see `stand_ins.Threads`."""

    interrupted = False


THREAD: ContextVar[Thread | None] = ContextVar("THREAD", default=None)


class Notes(Protocol):
    """Hears from each task how it ended; the `state` of a simulated executor."""

    def returned(self, context: Context) -> None: ...
    def raised(self, context: Context, error: BaseException) -> None: ...


async def play(ctx: Context, act: str, seconds: float, times: int, deaf: bool, lane: str) -> Any:
    notes: Notes = ctx.state
    process = PROCESS.get()
    assert process is not None
    process.guests += 1
    try:
        await _play(ctx, Script(act, seconds, times, deaf, lane))
    except BaseException as error:
        notes.raised(ctx, error)
        raise
    finally:
        process.guests -= 1
    notes.returned(ctx)
    return ctx.job.id


def play_in_thread(ctx: Context, act: str, seconds: float, times: int, deaf: bool, lane: str) -> Any:
    """A plain function, whose result the stand-in for its thread awaits."""
    return play(ctx, act, seconds, times, deaf, lane)


async def _play(ctx: Context, script: Script) -> None:
    straggles = script.act == "straggle" and ctx.run % 2
    seconds = STRAGGLES if straggles else script.seconds
    ctx.progress(0, 2)
    await _spend(ctx, seconds / 2, script)
    ctx.progress(1, 2)
    await _spend(ctx, seconds / 2, script)
    process = PROCESS.get()
    if process is not None and kills(script, ctx.run, process.guests):
        process.kill()
        await asyncio.sleep(3600)
    match script.act:
        case "reject":
            raise Reject("no")
        case "fail" if ctx.attempt <= script.times:
            raise ValueError("failed")
        case "again" if ctx.attempt <= script.times:
            raise Retry("later", delay=0.5)
        case "ask":
            await _ask(ctx)


async def _spend(ctx: Context, seconds: float, script: Script) -> None:
    loop, thread = asyncio.get_running_loop(), THREAD.get()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        if thread is None:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if not script.deaf:
                    raise
                ctx.progress(1, 2, "not yet")
            continue
        await asyncio.sleep(min(left, SLICE))
        if script.deaf:
            continue
        if thread.interrupted:
            raise Interrupted
        if script.times % 2:
            ctx.check()


async def _ask(ctx: Context) -> None:
    """Enqueue a job and wait for it. Only on the loop: the others have no connection of their own here."""
    if THREAD.get() is not None or "/" in getattr(PROCESS.get(), "name", "/"):
        return
    inner = ctx.app.using(queue="a", id=f"{ctx.job.id[:200]}-asked").call("plain", *Script().args)
    try:
        await (await ctx.app.asubmit(inner)).aget(timeout=ASK_FOR)
    except (DrayError, BrokerAway) as error:
        raise ValueError("no answer") from error


def make_app(
    plan: Plan,
    open: Opener,
    clock: Callable[[], int],
    client: type[Client],
    *,
    max_crashes: int = 2,
    more: TaskSettings | None = None,
) -> App:
    """The app of one process, with fixed settings whatever the environment says."""
    app = App("sim", broker="memory://", codecs=CODECS)
    settings = Settings(broker_url="memory://", namespace="sim", retries=1, max_crashes=max_crashes)
    app.use(Loaded(settings, {"broker_url": "keyword"}, Path()))
    app.client, app.clock = client(open), clock
    dice = plan.dice("app")
    for name in TASKS:
        options: TaskSettings = {"backoff": "fixed:2s,jitter=1", **LIMITS.get(name, {}), **(more or {})}
        function: Callable[..., Any] = play
        match dice.choice(["loop", "loop", "thread", "child"]):
            case "thread":
                function = play_in_thread
            case "child":
                options["isolate"] = "process"
        app._register(function, name, options)
    if dice.random() < 0.3:
        app.middleware(_pass_through)
    return app


async def _pass_through(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()
