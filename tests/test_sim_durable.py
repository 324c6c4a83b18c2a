"""Durable jobs in the simulation: no seed breaks a promise, and bugs put in on purpose are found."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sim.durable import Parts, live_through
from sim.lives import Violation

from dray.broker.durable import MemoWrite
from dray.broker.memory import MemoryBroker, durable
from dray.broker.memory.store import JobStore
from dray.durable.entries import Value
from dray.durable.journal import Memory
from dray.job import Verdict
from dray.worker.run import wait_operations
from dray.worker.run.durable_run import DurableRun
from dray.worker.run.step_operation import StepOperation
from dray.worker.run.wait_operations import EventOperation

SECONDS = float(os.environ.get("DRAY_SIM_SECONDS", "40")) / 4
SEEDS = 60
"""Tries to find a bug."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(2))
def test_no_seed_breaks_a_promise(part: int) -> None:
    until, seed, parked = time.monotonic() + SECONDS, 1000 * part, 0
    while time.monotonic() < until or seed < 1000 * part + 5:
        try:
            parked += live_through(seed).parked
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        seed += 1


def test_a_parent_and_its_children_share_one_slot() -> None:
    for seed in range(5):
        assert live_through(seed, concurrency=1, jobs=8).ends


def found(parts: Parts | None = None) -> str:
    for seed in range(SEEDS):
        try:
            live_through(seed, parts=parts)
        except Violation as violation:
            return violation.invariant
    return "nothing"


Patch = Callable[[pytest.MonkeyPatch], None]


def memo_before_effect(patch: pytest.MonkeyPatch) -> None:
    invoke = StepOperation._invoke

    async def early(self: StepOperation, number: int) -> Any:
        if self.id == "a":
            data = self.durable.app.codecs.encode_value(0)
            await self._write(Value(**self.common(), value=data))
        return await invoke(self, number)

    patch.setattr(StepOperation, "_invoke", early)


def memo_unfenced(patch: pytest.MonkeyPatch) -> None:
    def verdict(store: JobStore, session: str, write: MemoWrite) -> Verdict:
        return Verdict.ACCEPTED if write.id in store.jobs else Verdict.REFUSED

    patch.setattr(durable, "_verdict", verdict)


def wake_lost_between_look_and_register(patch: pytest.MonkeyPatch) -> None:
    suspend, has_news = durable.suspend, durable.has_news

    def blind(*args: Any) -> None:
        patch.setattr(durable, "has_news", lambda *_: False)
        suspend(*args)
        patch.setattr(durable, "has_news", has_news)

    patch.setattr("dray.broker.memory.settle.suspend", blind)
    patch.setattr("dray.broker.memory.repair.has_news", lambda *_: False)  # a sweep would put it right


def helpers_made_anew_by_each_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DurableRun, "remember_later", lambda self, entry: None)


def message_dropped_without_a_memo(patch: pytest.MonkeyPatch) -> None:
    write = DurableRun.write

    async def dropping(self: DurableRun, *entries: Any, **options: Any) -> None:
        if options.get("consumed"):
            await write(self, **options)
            options = {}
        await write(self, *entries, **options)

    patch.setattr(DurableRun, "write", dropping)


def child_of_a_new_name_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wait_operations, "child_id", lambda parent, step, queue: f"{queue}:{uuid.uuid4().hex}")

    async def forget(self: Any, job: str) -> None: ...

    patch.setattr(wait_operations.CallOperation, "_remember", forget)


def steps_forgotten(patch: pytest.MonkeyPatch) -> None:
    add = Memory.add

    def forgetful(self: Memory, entry: Any, forget: int) -> None:
        if not (isinstance(entry, Value) and entry.id == "b"):
            add(self, entry, forget)

    patch.setattr(Memory, "add", forgetful)


def undos_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dray.worker.run.step_operation.reversed", lambda items: [], raising=False)


def events_mixed_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventOperation, "_ended", lambda self, done: 0)


BUGS: dict[Patch, set[str]] = {
    memo_before_effect: {"effects", "memos", "results", "repeated"},
    memo_unfenced: {"memos", "results", "repeated", "stuck", "ends"},
    wake_lost_between_look_and_register: {"stuck", "audit"},
    helpers_made_anew_by_each_run: {"helpers", "stuck"},
    message_dropped_without_a_memo: {"stuck", "results"},
    child_of_a_new_name_each_time: {"children", "stuck"},
    steps_forgotten: {"repeated", "memos"},
    undos_left_out: {"undo"},
    events_mixed_up: {"results"},
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bugs_are_found(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert found() in BUGS[bug]


class Deaf(MemoryBroker):
    """Loses what a durable run wants to remember, and says that it has it."""

    async def memo(
        self, session: str, writes: Sequence[MemoWrite], *, now: int | None = None
    ) -> list[Verdict]:
        kept = [write for write in writes if write.run % 2]
        await super().memo(session, kept, now=now)
        return [Verdict.ACCEPTED] * len(writes)


def test_a_broker_that_loses_memos_is_found() -> None:
    assert found(Parts(broker=Deaf)) != "nothing"
