"""Executors and clients with one planted bug each. The simulation must find every one of them.

Each is the real program with a small thing done wrong, mostly one that shows only when a reply is lost, a
session lapses or a cancel comes at a bad moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from sim import Parts

from dray.broker.verbs import Accepted, Broker, Filter, Heard, NextTake, Ref
from dray.client.client import Client
from dray.client.link import LoopLink
from dray.client.put_batches import PutBatches
from dray.client.waiters import LoopWaiters, Waiter
from dray.errors import BrokerAway, BrokerError
from dray.job import GROUP_MAX, Outcome, OutcomeKind, Progress, Settled, State, Taken
from dray.worker.executor.executor import Executor
from dray.worker.executor.session import ProgressReports, Session, SessionOver
from dray.worker.run.child_pool import Child, ChildPool, ChildRun
from dray.worker.run.perform import OnLoop
from dray.worker.run.run_state import Ended, RunState

BUGS: dict[str, tuple[Parts, frozenset[str]]] = {}
"""By name: the parts with the bug, and the invariants by which it may be found."""


def found_by(*invariants: str) -> Callable[[Any], Any]:
    def register(part: Any) -> Any:
        kinds = {"executor": Executor, "on_loop": OnLoop, "client": Client, "children": ChildPool}
        (field,) = [name for name, kind in kinds.items() if issubclass(part, kind)]
        BUGS[part.__name__] = (Parts(**{field: part}), frozenset(invariants))
        return part

    return register


class _OtherSession(Executor):
    session_type: type[Session] = Session

    def _new_session(self) -> Session:
        session = super()._new_session()
        session.__class__ = self.session_type
        return session


class _ForgetfulSession(Session):
    async def settle(self) -> list[tuple[Outcome, Settled]]:
        try:
            return await super().settle()
        except BrokerError:
            self.unsent.clear()
            raise


@found_by("unsettled", "slots")  # it listens for work again only when all is answered
class DropsUnansweredOutcomes(_OtherSession):
    """An outcome is sent once, whether it is answered or not."""

    session_type = _ForgetfulSession


class _ImpatientSession(Session):
    async def take(
        self, queues: Sequence[str], filter: Filter, want: int, share: int | None = None
    ) -> list[Taken]:
        self.unanswered = 0
        return await super().take(queues, filter, want, share)


@found_by("repeats")
class TakesAnewAfterLoss(_OtherSession):
    """A take whose reply was lost is asked again under a new number: what the first one got is lost."""

    session_type = _ImpatientSession


class _HastySession(Session):
    async def confirm(self, filter: Filter) -> list[Taken]:
        self._request += 1
        return self._close_offer([])


@found_by("hand_over")
class SkipsTheOfferedNumber(_OtherSession):
    """It goes on with the next number: what another queue answered to the offered one is lost."""

    session_type = _HastySession


class _ForgetfulReceiver(Session):
    def received(self, taken: Iterable[Taken]) -> None:
        """Nothing is noted."""


@found_by("runs", "outcomes")
class StartsHandedRunsTwice(_OtherSession):
    """A run that came with the wake-up and has ended is started again when the repeated take names it."""

    session_type = _ForgetfulReceiver


@found_by("hand_over")
class OffersWhileItRuns(Executor):
    """It offers a take although it has runs."""

    def _next_take(self) -> NextTake | None:
        runs, self._runs = self._runs, {}
        try:
            return super()._next_take()
        finally:
            self._runs = runs


class _CarelessSession(Session):
    async def renew(self, progress: Iterable[tuple[Ref, Progress]] = ()) -> Heard:
        try:
            return await super().renew(progress)
        except SessionOver:
            return Heard(False, self.epoch)


@found_by("sessions")
class IgnoresEpoch(_OtherSession):
    """Its session lapsed and was opened again by its own beat; it goes on as if nothing had happened."""

    session_type = _CarelessSession


class _InsistentSession(Session):
    async def settle(self) -> list[tuple[Outcome, Settled]]:
        settled = await super().settle()
        for outcome, _ in settled:
            if outcome.kind is OutcomeKind.CANCELLED:
                self.unsent[outcome.id, outcome.run] = outcome
        return settled


@found_by("outcomes")
class SettlesCancelledTwice(_OtherSession):
    """The outcome of a cancelled run is sent again after it was answered."""

    session_type = _InsistentSession


@found_by("outcomes")
class CallsCancelledSuccess(OnLoop):
    """A run that stopped because it was cancelled counts as a success."""

    def start(self, live: RunState, ended: Ended) -> None:
        def lie(live: RunState, outcome: Outcome) -> None:
            kind = OutcomeKind.SUCCEEDED if outcome.kind is OutcomeKind.CANCELLED else outcome.kind
            ended(live, replace(outcome, kind=kind))

        super().start(live, lie)


@found_by("slots", "stuck", "deadlock")
class LeaksSlotsOfLostRuns(Executor):
    """A run of a lost session keeps its slot when it has ended."""

    def _ended(self, live: RunState, outcome: Outcome) -> None:
        lost = live in self._zombies
        super()._ended(live, outcome)
        if lost:
            self._zombies[live] = None


@found_by("concurrency")
class ForgetsLostRuns(Executor):
    """A run of a lost session takes no slot, though it goes on for a while."""

    def _lose_session(self) -> None:
        super()._lose_session()
        self._zombies.clear()


@found_by("concurrency")
class LendsSlotsForGood(Executor):
    """A run that waits for another job gives back its slot, and does not take it again."""

    def _waits(self, run: RunState, begins: bool) -> None:
        if begins:
            super()._waits(run, begins)


@found_by("stopping")
class TakesWhileStopping(Executor):
    """It goes on taking jobs until the last of its runs has ended."""

    @property
    def _leaving(self) -> bool:
        return False


@found_by("told")
class DeafToCancel(Executor):
    """A cancel is heard, and not passed on to the run."""

    def _heed(self, lost: Iterable[Ref], cancelled: Iterable[Ref], forced: Collection[Ref]) -> None:
        super()._heed(lost, (), ())


class _LateReports(ProgressReports):
    def of(self, refs: Mapping[Ref, object]) -> bool:
        return False

    def drop(self, refs: Iterable[Ref]) -> None:
        """They are sent whenever it is time."""


@found_by("progress")
class ReportsAfterTheEnd(Executor):
    """What a run said last is sent after it was settled."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reports.__class__ = _LateReports


class _BlamingChild(Child):
    def _counted(self, together: int) -> int:
        return 1


@found_by("blame")
class BlamesNeighbours(ChildPool):
    """Whoever is in a process that dies is to blame."""

    child_type = _BlamingChild


class _WholeGroup(Child):
    def _counted(self, together: int) -> int:
        counted = super()._counted(together)
        return counted if counted == 1 else 2 * GROUP_MAX


@found_by("groups")
class NeverSplitsGroups(ChildPool):
    """Those whose process died run again as one group, again and again."""

    child_type = _WholeGroup


class _CrowdedChild(Child):
    def admits(self, live: RunState) -> bool:
        return self.shared and self.usable and bool(self.runs)


@found_by("groups")
class CrowdsGroups(ChildPool):
    """A suspect joins whatever group there is."""

    child_type = _CrowdedChild


class _ForgetfulChild(Child):
    def _finish(self, run: ChildRun, outcome: Outcome) -> None:
        if self.over and len(self.runs) > 1:
            del self.runs[run.number]
        else:
            super()._finish(run, outcome)


@found_by("stuck", "slots", "told", "deadlock")
class LosesGroups(ChildPool):
    """Of those whose process died only the last is heard of again."""

    child_type = _ForgetfulChild


class _OtherLink(Client):
    waiters_type: type[LoopWaiters] = LoopWaiters
    batches_type: type[PutBatches] = PutBatches

    async def loop_link(self) -> LoopLink:
        link = await super().loop_link()
        link.waiters.__class__ = self.waiters_type
        link.batches.__class__ = self.batches_type
        return link


class _TwoStepWaiters(LoopWaiters):
    async def watch(self, broker: Broker, waiter: Waiter, ids: Sequence[str]) -> None:
        self.expect(waiter, ids)
        self.update(ids, await broker.get(ids))
        await broker.get(ids, watch=self.name)


@found_by("watch")
class WatchesInTwoSteps(_OtherLink):
    """It reads the jobs first and registers afterwards: an end in between is not heard of."""

    waiters_type = _TwoStepWaiters


class _CarelessWaiters(LoopWaiters):
    async def watch(self, broker: Broker, waiter: Waiter, ids: Sequence[str]) -> None:
        self.__dict__.pop("missed", None)
        await super().watch(broker, waiter, ids)

    @property
    def missed(self) -> bool:
        return False

    @missed.setter
    def missed(self, missed: bool) -> None:
        """Forgotten."""


@found_by("watch")
class LosesWordWithTheWait(_OtherLink):
    """A wait that breaks off is begun again; the notifications it had received are lost."""

    waiters_type = _CarelessWaiters


class _OptimistBatches(PutBatches):
    async def put(self, job: Any, durability: Any) -> Accepted:
        try:
            return await super().put(job, durability)
        except BrokerAway:
            return Accepted(job.id, State.READY)


@found_by("lost")
class TakesSilenceForYes(_OtherLink):
    """An enqueue without an answer counts as done."""

    batches_type = _OptimistBatches
