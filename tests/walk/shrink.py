"""Shortens a failing script: fewer calls first, then simpler ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from walk.play import Mismatch, Side, replay_on
from walk.script import Op, Script, default_of

BUDGET = 3000
"""Replays that a search for a shorter script may take."""


def shrink(found: Mismatch, first: Side, second: Side, *more: Side, budget: int = BUDGET) -> Mismatch:
    """The same mismatch with fewer and simpler calls."""
    return asyncio.run(_Shrinker(found, (first, second, *more), budget).run())


class _Shrinker:
    def __init__(self, found: Mismatch, sides: Sequence[Side], budget: int) -> None:
        self.best, self._sides, self._left = found, sides, budget

    async def run(self) -> Mismatch:
        size = -1
        while size != (size := _weight(self.best.script)) and self._left > 0:
            await self._drop_calls()
            await self._simplify_calls()
        return self.best

    async def _try(self, ops: Sequence[Op]) -> bool:
        """Keep these calls as the best so far if they still fail."""
        if self._left <= 0 or not ops:
            return False
        self._left -= 1
        found = await replay_on(replace(self.best.script, ops=tuple(ops)), self._sides)
        if found is None:
            return False
        self.best = replace(found, seed=self.best.seed)
        return True

    async def _drop_calls(self) -> None:
        """Delta debugging: leave out pieces, halving their size down to single calls."""
        size = max(1, len(self.best.script.ops) // 2)
        while True:
            start = 0
            while start < len(self.best.script.ops):
                ops = self.best.script.ops
                if not await self._try(ops[:start] + ops[start + size :]):
                    start += size
            if size == 1:
                return
            size //= 2

    async def _simplify_calls(self) -> None:
        place = 0
        while place < len(self.best.script.ops):
            if not await self._simplify(place):
                place += 1

    async def _simplify(self, place: int) -> bool:
        ops = self.best.script.ops
        for simpler in _simpler_ops(ops, place):
            if await self._try(simpler):
                return True
        return False


def _simpler_ops(ops: tuple[Op, ...], place: int) -> Iterator[tuple[Op, ...]]:
    here = ops[place]
    before, after = ops[:place], ops[place + 1 :]
    gap = here.at - (ops[place - 1].at if place else here.at)
    if gap:
        # All later calls move along, so that only this pause goes.
        yield (*before, *(replace(step, at=step.at - gap) for step in ops[place:]))
    if here.times > 1:
        yield (*before, replace(here, times=1), *after)
    if here.clock:
        yield (*before, replace(here, clock=False), *after)
    # A simpler form of a call that is refused might be one that is not.
    for args in _simpler(here.args) if here.verb != "refused" else ():
        yield (*before, replace(here, args=args), *after)


_OPTIONAL = ("when", "durability", "copies", "suspect", "blamed", "lapse", "dry_run", "watch", "mail", "ttl")


def _simpler(value: Any) -> Iterator[Any]:
    """Values that are a little simpler, one change each."""
    if isinstance(value, tuple):
        for place, part in enumerate(value):
            if len(value) > 1 or isinstance(part, msgspec.Struct):
                yield value[:place] + value[place + 1 :]
        for place, part in enumerate(value):
            # A tuple in a tuple is a pair that belongs together.
            for simpler in () if isinstance(part, tuple) else _simpler(part):
                yield (*value[:place], simpler, *value[place + 1 :])
    elif isinstance(value, dict):
        for name in value:
            if name in _OPTIONAL:
                yield {key: part for key, part in value.items() if key != name}
        for name, part in value.items():
            for simpler in _simpler(part):
                yield value | {name: simpler}
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from _simpler_field(value, field)


def _simpler_field(value: msgspec.Struct, field: msgspec.structs.FieldInfo) -> Iterator[msgspec.Struct]:
    now, default = getattr(value, field.name), default_of(field)
    if now == default:
        return
    if default is not msgspec.NODEFAULT:
        yield replace(value, **{field.name: default})
    if isinstance(now, tuple | msgspec.Struct):
        for simpler in _simpler(now):
            yield replace(value, **{field.name: simpler})


def _weight(script: Script) -> int:
    return len(script.source())
