"""The walk itself: that it is exact, that it finds what is wrong, and that it says so in few words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from walk import Coverage, Mismatch, Options, Script, Side, op, replay, shrink, side, walk
from walk.generate import WEIGHTS
from walk.script import show

from dray.broker.durable import MemoWrite
from dray.broker.memory import MemoryBroker
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore, Post
from dray.broker.verbs import Accepted, Beat, Broker, DocWrite, Filter, Heard, Interest, Ref, Wake
from dray.errors import DrayError
from dray.job import Job, Outcome, OutcomeKind, Settled, Taken, Verdict
from dray.policy import Retention

MEMORY = side("memory://")
SEEDS = 150


def test_the_reference_agrees_with_itself() -> None:
    for seed in range(SEEDS):
        assert walk(seed, MEMORY, MEMORY) is None, f"seed {seed}"


def test_the_reference_agrees_with_itself_opened_blocking() -> None:
    for seed in range(40):
        assert walk(seed, MEMORY, side("memory://", blocking=True)) is None, f"seed {seed}"


def test_every_transition_that_can_happen_does() -> None:
    coverage = Coverage()
    for seed in range(1000, 1400):
        assert walk(seed, MEMORY, MEMORY, coverage=coverage) is None, f"seed {seed}"
    for seed in range(1400, 1550):
        options = Options(steps=200, durable=1)
        assert walk(seed, MEMORY, MEMORY, options=options, coverage=coverage) is None, f"seed {seed}"
    assert coverage.missing() == []
    assert {words[0] for words in coverage.answers} == set(WEIGHTS)
    for verdict in Verdict:
        assert any(words[0] == "settle" and verdict in words for words in coverage.answers), verdict
    assert ("asleep", "put", "handed over") in coverage.answers
    assert ("sweep", "withdrawn") in coverage.answers


# Brokers that are wrong in one way each.


class KeyFreedEarly(MemoryBroker):
    """The key of a job is free as soon as it runs, instead of when it ends."""

    def _start(self, kept: JobEntry, session: str, now: int) -> None:
        super()._start(kept, session, now)
        self._store.keys.pop((kept.job.queue, kept.job.key or ""), None)


class LastComeFirstServed(MemoryBroker):
    """Among equals the newest goes first."""

    def _put_job(self, job: Job, now: int) -> Accepted:
        line = self._store.queue(job.queue).line
        line._numbers -= 2
        return super()._put_job(job, now)


class AlreadyIsRefused(MemoryBroker):
    """A repeated settle looks like one of a run that was taken over."""

    def _settle_run(self, session: str, outcome: Outcome, now: int) -> Settled:
        settled = super()._settle_run(session, outcome, now)
        return settled if settled.verdict is Verdict.ACCEPTED else Settled(Verdict.REFUSED, settled.state)


class CrashesCountTwice(MemoryBroker):
    """One crash too many is counted."""

    def _conclude(self, kept: JobEntry, outcome: Outcome, now: int) -> None:
        if outcome.kind is OutcomeKind.CRASHED:
            kept.crashes += 1
        super()._conclude(kept, outcome, now)


class ForgetsTakes(MemoryBroker):
    """A repeated take hands out nothing."""

    async def take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        *,
        share: int | None = None,
        now: int | None = None,
    ) -> list[Taken]:
        taken = await super().take(session, request, queues, filter, want, share=share, now=now)
        self._store.sessions[session].reply = []
        return taken


class NeverBlames(MemoryBroker):
    """A crash alone in a child counts as any other."""

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        return await super().release(session, suspect=suspect, now=now)


class OverwritesDocuments(MemoryBroker):
    """`expect_version=0` is taken for `None`."""

    def __init__(self, retention: Retention, clock: Callable[[], int]) -> None:
        super().__init__(retention=retention, clock=clock)
        self._store = _CarelessStore(retention)


class _CarelessStore(JobStore):
    def write_doc(self, write: DocWrite, now: int) -> bool:
        expected = write.expect_version or None
        careless = DocWrite(kind=write.kind, name=write.name, value=write.value, ttl=write.ttl)
        return super().write_doc(careless if expected is None else write, now)


class KeepsQuietAboutCancels(MemoryBroker):
    """A session does not hear that its runs should stop."""

    def _renew_session(self, beat: Beat, now: int) -> Heard:
        heard = super()._renew_session(beat, now)
        return Heard(heard.opened, heard.epoch, heard.lost)


class WritesAnyMemo(MemoryBroker):
    """A run that is over can still write to the log."""

    async def _memo(self, session: str, writes: Sequence[MemoWrite], now: int | None) -> list[Verdict]:
        for write in writes:
            entry = self._store.jobs.get(write.id)
            if entry is not None and write.position == len(entry.log) and write.run not in entry.runs:
                entry.log += write.entries
        return await super()._memo(session, writes, now)


class SuspendsWithoutLooking(MemoryBroker):
    """A job waits for an event that was sent before it was suspended."""

    def _conclude(self, entry: JobEntry, outcome: Outcome, now: int) -> None:
        mailboxes, entry.mailboxes = entry.mailboxes, {}
        super()._conclude(entry, outcome, now)
        entry.mailboxes = mailboxes


class ForgetsWhoWaited(MemoryBroker):
    """A replayed node revives nothing."""

    def _deliver(self, post: Post, now: int) -> None:
        if post.kind != "revived":
            super()._deliver(post, now)


WRONG: tuple[type[MemoryBroker], ...] = (
    KeyFreedEarly,
    LastComeFirstServed,
    AlreadyIsRefused,
    CrashesCountTwice,
    ForgetsTakes,
    NeverBlames,
    OverwritesDocuments,
    KeepsQuietAboutCancels,
    WritesAnyMemo,
    SuspendsWithoutLooking,
    ForgetsWhoWaited,
)


def wrong_side(kind: type[MemoryBroker]) -> Side:
    async def open(retention: Retention, clock: Callable[[], int]) -> Broker:
        return kind(retention=retention, clock=clock)

    return Side(kind.__name__, open)


def find(other: Side, seeds: int = 400) -> Mismatch:
    for seed in range(seeds):
        found = walk(seed, MEMORY, other)
        if found is not None:
            return found
    raise AssertionError(f"{other.name} passed {seeds} walks")


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_broker_is_found_and_the_proof_is_short(kind: type[MemoryBroker]) -> None:
    other = wrong_side(kind)
    found = find(other)
    short = shrink(found, MEMORY, other)
    assert len(short.script.ops) <= 8, str(short)
    told = ("differ", f"{kind.__name__}: audit", f"{kind.__name__}: sweep repaired")
    assert any(words in short.what for words in told), short.what
    again = replay(short.script, MEMORY, other)
    assert again is not None
    assert again.what == short.what
    assert replay(short.script, MEMORY, MEMORY) is None


def test_a_failing_walk_fails_again_in_the_same_way() -> None:
    other = wrong_side(AlreadyIsRefused)
    found = find(other)
    assert found.seed is not None
    again = walk(found.seed, MEMORY, other)
    assert again == found
    repeated = replay(found.script, MEMORY, other)
    assert repeated is not None
    assert (repeated.what, repeated.script) == (found.what, found.script)


def test_what_is_printed_runs_and_says_the_same() -> None:
    found = find(wrong_side(LastComeFirstServed))
    for script in (found.script, Script((op(0, "check"), op(5, "sweep", times=2, limit=3, lapse=False)))):
        names: dict[str, object] = {}
        exec(script.source(), names)
        assert names["script"] == script


def test_structs_are_shown_without_what_is_at_its_default() -> None:
    assert show(Job(id="a", task="t", tags=("x",))) == "Job(id='a', task='t', tags=('x',))"


def test_a_broker_that_raises_what_is_not_in_the_contract_is_reported() -> None:
    class Fails(MemoryBroker):
        async def release(
            self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
        ) -> int:
            raise ZeroDivisionError

    wrong = replay(Script((op(0, "release", session="s"),)), MEMORY, wrong_side(Fails))
    assert wrong is not None
    assert "ZeroDivisionError" in wrong.what
    assert not issubclass(ZeroDivisionError, DrayError)


def test_a_refused_call_that_changed_something_is_reported() -> None:
    class Hasty(MemoryBroker):
        async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
            await self.doc("schedule", "n1", b"", now=now)
            return await super().renew(beats, now=now)

    hasty = wrong_side(Hasty)
    wrong = replay(Script((op(0, "refused", call="renew", beats=(Beat("", 1),)),)), hasty, hasty)
    assert wrong is not None
    assert "has changed something" in wrong.what


def test_work_that_wait_does_not_see_is_reported() -> None:
    class Blind(MemoryBroker):
        async def wait(self, interest: Interest, timeout: float) -> Wake:
            return replace(await super().wait(interest, timeout), work=False)

    ops = (
        op(0, "renew", beats=(Beat("s", 1000),)),
        op(0, "put", jobs=(Job(id="a", task="t", queue="q1"),)),
        op(0, "wait_take", session="s", request=0, queues=("q1",), filter=Filter(), want=1),
    )
    wrong = replay(Script(ops), MEMORY, wrong_side(Blind))
    assert wrong is not None
    assert "there is no work" in wrong.what


def test_the_command_walks_and_replays() -> None:
    command, folder = [sys.executable, "-m", "walk", "--steps", "20"], Path(__file__).parent
    for more in (["--seed", "3"], ["--seconds", "0.2", "--coverage"]):
        done = subprocess.run([*command, *more], cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "agree" in done.stdout
