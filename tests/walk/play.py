"""Makes the calls of a walk on every broker, and compares the replies."""

from __future__ import annotations

import asyncio
import itertools
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from dray.broker import Broker, connect
from dray.broker.durable import MemoWrite
from dray.broker.verbs import run_blocking
from dray.errors import DrayError, InvalidInput
from dray.job import Taken, Verdict
from dray.policy import Retention
from walk.comparison import comparable, difference
from walk.coverage import Coverage
from walk.generate import Generator, Options
from walk.known_state import KnownState
from walk.script import START, Op, Script, show_op
from walk.scripted_broker import RuleBroken, ScriptedBroker

T = TypeVar("T")
Clock = Callable[[], int]
Open = Callable[[Retention, Clock], Awaitable[Broker]]


class Side(msgspec.Struct, frozen=True):
    """One broker of a walk: its name, and how to open an empty one."""

    name: str
    open: Open
    blocking: bool = False
    """Opened with `blocking=True`: `run_blocking` runs its verbs."""


_worlds: Final = itertools.count(1)


def side(url: str, *, blocking: bool = False) -> Side:
    """The broker with this URL; every walk has its own namespace there.

    `{n}` in the URL becomes a number, so that every walk has its own store as well.
    """

    async def open(retention: Retention, clock: Clock) -> Broker:
        n = f"{os.getpid()}-{next(_worlds)}"
        place, namespace = url.replace("{n}", n), f"walk-{n}"
        opened = connect(place, namespace, retention=retention, blocking=blocking, clock=clock)
        return run_blocking(opened) if blocking else await opened

    return Side(url, open, blocking)


class Mismatch(msgspec.Struct, frozen=True):
    """Two brokers disagree, or one breaks a rule by itself."""

    what: str
    script: Script
    """The calls up to the one that failed."""
    names: tuple[str, ...]
    seed: int | None = None

    def __str__(self) -> str:
        origin = "" if self.seed is None else f"seed {self.seed}, "
        count = len(self.script.ops)
        return f"{origin}call {count}: {show_op(self.script.ops[-1])}\n{self.what}\n\n" + self.script.source(
            self.names
        )


def walk(
    seed: int,
    first: Side,
    second: Side,
    *more: Side,
    steps: int | None = None,
    options: Options | None = None,
    coverage: Coverage | None = None,
) -> Mismatch | None:
    """Walk the brokers side by side; the first is the reference. None if they always agree."""
    chosen = options or Options()
    if steps is not None:
        chosen = replace(chosen, steps=steps)
    return asyncio.run(_walk(seed, (first, second, *more), chosen, coverage))


async def _walk(
    seed: int, sides: Sequence[Side], options: Options, coverage: Coverage | None
) -> Mismatch | None:
    view = KnownState()
    generator = Generator(Random(seed), view, options)
    done: list[Op] = []
    async with _player(sides, generator.retention, view, coverage) as player:
        generator.hand_over = player.hand_over
        for step in _steps(generator, options.steps):
            done.append(step)
            wrong = await player.play(step)
            if wrong is not None:
                return player.mismatch(wrong, done, generator.retention, seed)
    return None


def _steps(generator: Generator, count: int) -> Iterator[Op]:
    for _ in range(count):
        yield generator.next()
    yield from generator.ending()


def replay(script: Script, first: Side, second: Side, *more: Side) -> Mismatch | None:
    """Make the calls of a script again, on new brokers."""
    return asyncio.run(replay_on(script, (first, second, *more)))


async def replay_on(script: Script, sides: Sequence[Side]) -> Mismatch | None:
    async with _player(sides, script.retention, KnownState(), None) as player:
        for place, step in enumerate(script.ops):
            wrong = await player.play(step)
            if wrong is not None:
                return player.mismatch(wrong, script.ops[: place + 1], script.retention, None)
    return None


@asynccontextmanager
async def _player(
    sides: Sequence[Side], retention: Retention, view: KnownState, coverage: Coverage | None
) -> AsyncIterator[_Player]:
    player = _Player(sides, view, coverage)
    try:
        await player.open(retention)
        yield player
    finally:
        for broker in player.brokers:
            await broker.close()


class _Player:
    """Makes each call on all brokers, and resolves the relative numbers of a script."""

    def __init__(self, sides: Sequence[Side], view: KnownState, coverage: Coverage | None) -> None:
        self.sides, self.view, self.coverage = sides, view, coverage
        self.brokers: list[ScriptedBroker] = []
        self._now = START
        self._runs: dict[str, list[int]] = {}
        self._requests: dict[str, int] = {}
        self._memos: dict[str, int] = {}

    async def open(self, retention: Retention) -> None:
        for side in self.sides:
            broker = await side.open(retention, lambda: self._now)
            if self.coverage is not None and not self.brokers:
                self.coverage.watch(broker)
            self.brokers.append(ScriptedBroker(broker, side.blocking))

    @property
    def hand_over(self) -> bool:
        """All brokers hand jobs over, and sleep on the loop."""
        pairs = zip(self.sides, self.brokers, strict=True)
        return all(one.broker.hands_over and not side.blocking for side, one in pairs)

    def mismatch(self, what: str, ops: Sequence[Op], retention: Retention, seed: int | None) -> Mismatch:
        return Mismatch(what, Script(tuple(ops), retention), tuple(side.name for side in self.sides), seed)

    async def play(self, step: Op) -> str | None:
        """Make one call on every broker; returns the problem, if there is one."""
        self._now = step.at
        try:
            args = self._resolve(step.args)
            before = await self._look(step)
            for _ in range(step.times):
                await self._play_once(step, args)
            if before != await self._look(step):
                return f"{self.sides[0].name}: a call that was refused has changed something"
        except RuleBroken as broken:
            return str(broken)
        return None

    async def _play_once(self, step: Op, args: dict[str, Any]) -> None:
        answers = []
        for place, broker in enumerate(self.brokers):
            reply = await self._make(place, step, args)
            if step.verb == "refused" and not isinstance(reply, InvalidInput):
                raise RuleBroken(f"{self.sides[place].name}: this was not refused, but answered {reply!r}")
            answers.append(comparable(broker, reply))
            if place == 0:
                self._learn(step, args, reply)
        for place, other in enumerate(answers[1:], 1):
            if other != answers[0]:
                between = f"{self.sides[0].name} and {self.sides[place].name} differ"
                raise RuleBroken(f"{between}\n{difference(answers[0], other)}")

    async def _make(self, place: int, step: Op, args: dict[str, Any]) -> Any:
        """The reply, which may be an error of the contract."""
        try:
            return await self._guard(place, self.brokers[place].make(step.verb, args, step.at, step.clock))
        except DrayError as error:
            return error

    async def _guard(self, place: int, call: Coroutine[Any, Any, T]) -> T:
        """Any other exception is wrong, even if another broker raises it too."""
        name = self.sides[place].name
        try:
            return await call
        except DrayError:
            raise
        except RuleBroken as broken:
            raise RuleBroken(f"{name}: {broken}") from None
        except Exception:
            raise RuleBroken(f"{name} failed:\n{traceback.format_exc(limit=-4)}") from None

    async def _look(self, step: Op) -> object:
        """The state of the reference, to compare before and after a call that must be refused."""
        if step.verb != "refused":
            return None
        return await self._guard(0, self.brokers[0].look(step.at))

    def _learn(self, step: Op, args: dict[str, Any], reply: Any) -> None:
        if self.coverage is not None:
            self.coverage.note(step.verb, args, reply)
        seen = reply
        if step.verb == "check":
            seen = list(reply["records"].values())
            self._memos = {record.id: record.memos for record in seen}
        self.view.learn(step.verb, args, step.at, seen)
        if isinstance(reply, DrayError):
            return
        if step.verb == "asleep":
            self._requests[args["session"]] = args["request"]
            self._learn_runs(reply[0])
            self._learn(args["then"], args["then"].args, reply[1])
            self._learn_runs(reply[2])
        if step.verb == "memo":
            for write, verdict in zip(args["writes"], reply, strict=True):
                if verdict is Verdict.ACCEPTED:
                    self._memos[write.id] = write.position + len(write.entries)
        if step.verb in ("take", "wait_take"):
            self._requests[args["session"]] = args["request"]
            self._learn_runs(reply if step.verb == "take" else reply[1])

    def _learn_runs(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            self._memos[one.job.id] = one.memos
            runs = self._runs.setdefault(one.job.id, [])
            if one.run not in runs:
                runs.append(one.run)

    # relative numbers, see script.py

    def _resolve(self, args: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        if "request" in args:
            last = self._requests.get(args["session"], 0)
            changed["request"] = last + 1 if args["request"] == 0 else max(1, last + 1 + args["request"])
        if "outcomes" in args:
            changed["outcomes"] = tuple(replace(o, run=self._run(o.id, o.run)) for o in args["outcomes"])
        if "writes" in args:
            changed["writes"] = tuple(self._write(write) for write in args["writes"])
        if "blamed" in args:
            changed["blamed"] = tuple((id, self._run(id, run)) for id, run in args["blamed"])
        if "beats" in args:
            changed["beats"] = tuple(
                replace(beat, progress=tuple(replace(r, run=self._run(r.id, r.run)) for r in beat.progress))
                for beat in args["beats"]
            )
        if "then" in args:
            changed["then"] = replace(args["then"], args=self._resolve(args["then"].args))
        return args | changed

    def _write(self, write: MemoWrite) -> MemoWrite:
        position = write.position
        if position < 0:
            position = max(0, self._memos.get(write.id, 0) + 1 + position)
        return replace(write, run=self._run(write.id, write.run), position=position)

    def _run(self, id: str, run: int) -> int:
        if run >= 0:
            return run
        runs = self._runs.get(id, [])
        return runs[run] if len(runs) >= -run else 1
