"""The loop of one executor: take what fits, run it, settle what finished.

`run` is the only place that calls the broker, beside a listener that only waits. Each turn settles the ended
runs and takes as many jobs as can start now, both at the same time; runs that end meanwhile are settled in
the next turn. When the broker has no more work the listener waits on it, and nothing polls.

Time comes from the event loop; wall clock, random numbers and `Runners` are parameters: so the same program
runs in a simulation.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Final

from dray.app import App
from dray.broker.verbs import Broker, Filter, NextTake, Wake
from dray.errors import BrokerError, SessionLost
from dray.job import Outcome, OutcomeKind, Settled, Taken, Verdict
from dray.settings import Settings
from dray.worker.channel import Message, SessionLapsed, SessionNews, Stop
from dray.worker.executor.accounting import Accounts
from dray.worker.executor.hand_over import HandOver
from dray.worker.executor.listener import Listener
from dray.worker.executor.runs import Runs
from dray.worker.executor.session import Session, SessionOver
from dray.worker.executor.slots import Executed
from dray.worker.executor.turns import Turns, queues_of
from dray.worker.logs import OutageLog
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import Runners
from dray.worker.run.run_state import StopReason
from dray.worker.shared_memory import SharedHeartbeat, SleepSign, WorkerRate

LEAVE_PATIENCE: Final = 1.0
"""Seconds that runs have to stop, and the broker to answer, once the grace of a stop is over."""
_REFUSED: Final = Verdict.REFUSED

log = logging.getLogger("dray.worker")


class Executor(Runs):
    """Runs jobs of one app until it is stopped or retires. Made and used on the event loop that runs it."""

    def __init__(
        self,
        app: App,
        broker: Broker,
        *,
        settings: Settings,
        session_name: str,
        runners: Callable[[Judge], Runners],
        clock: Callable[[], int],
        random: Callable[[], float],
        state: Any = None,
        renews: bool = True,
        burst: bool = False,
        heartbeat: SharedHeartbeat | None = None,
        rate: WorkerRate | None = None,
        sleep: SleepSign | None = None,
        accounts: Accounts | None = None,
        send: Callable[[Message], None] | None = None,
    ) -> None:
        super().__init__(
            app,
            broker,
            settings=settings,
            session_name=session_name,
            runners=runners,
            clock=clock,
            random=random,
            state=state,
            heartbeat=heartbeat,
            sleep=sleep,
            accounts=accounts,
            send=send,
        )
        self._renews, self._burst, self._rate = renews, burst, rate
        self._filter = Filter(tasks=frozenset(self._tasks), priorities=settings.priorities)
        on_loop = (name for name, entry in self._tasks.items() if not entry.off_loop)
        self._loop_filter = Filter(tasks=frozenset(on_loop), priorities=settings.priorities)
        self._turns = Turns(settings.queues, queues_of(app), settings.slots)
        self._listener = Listener(broker, self._turns.queues, self._filter, self._news, random)
        self._hand_over = HandOver(broker, self._filter, self._turns, self._start_in, self._confirmed)
        self._offers = broker.hands_over and rate is None and not burst
        self._outage = OutageLog(session_name, self._loop.time, random)
        self._opened = self._no_work = False
        self._renew_at = math.inf
        self._stop_timer: asyncio.TimerHandle | None = None
        self._abandoned = False

    # life

    async def run(self) -> None:
        """Work until `stop`, or until it retires and all its runs have ended."""
        self._deadlines.begin()
        try:
            while not self._is_over():
                if self._must_call():
                    await self._turn()
                else:
                    self._report_stuck()
                    await self._sleep(min(self._stop_at + LEAVE_PATIENCE, self._next_start()))
            await self._leave()
        finally:
            self._turns.end()
            self._hand_over.drop()
            await self._listener.close()
            self._deadlines.end()
            if self._stop_timer is not None:
                self._stop_timer.cancel()
            for runner in dict.fromkeys(self._runners):
                runner.close()

    def stop(self, grace: int) -> None:
        """Take no more jobs; let runs finish for `grace` milliseconds, then give the rest back."""
        stop_at = self._loop.time() + grace / 1000
        if stop_at >= self._stop_at:
            return
        self._stop_at = stop_at
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = self._loop.call_at(stop_at, self._hand_back)
        self._listen()
        self._wake()

    def abandon(self) -> None:
        """The supervisor is gone: settle what has ended, if the broker answers at once, and end."""
        self._abandoned, self._stop_at = True, self._loop.time()
        self._listen()
        self._wake()

    def hear(self, message: Message) -> None:
        """Handle a message of the supervisor."""
        if isinstance(message, Stop):
            self.stop(message.grace)
        elif isinstance(message, SessionNews) and message.session == self._session.name:
            self._heed(message.lost, message.cancelled, message.forced)
        elif isinstance(message, SessionLapsed) and message.session == self._session.name:
            self._lose_session()

    def _is_over(self) -> bool:
        session = self._session
        if math.isinf(self._stop_at) and not self._retiring:
            return False
        if self._loop.time() >= self._stop_at + LEAVE_PATIENCE:
            return True
        if session.unsent or session.sending or (session.unanswered and not self._abandoned):
            return False
        if self._hand_over.confirming:
            return False
        return self._abandoned or not self._runs

    def _hand_back(self) -> None:
        """The grace is over: stop all runs and give their jobs back."""
        for run in list(self._runs.values()):
            self.halt(run, StopReason.LEAVING)
        self._wake()

    async def _leave(self) -> None:
        self._report_counts()
        if not self._renews or not self._opened or self._runs:
            return  # the supervisor releases the session, or its lease runs out
        try:
            await self._broker.release(self._session.name, suspect=False)
        except BrokerError as error:
            log.warning("%s: its session could not be released: %s", self._name, error)

    def _retire(self, reason: str) -> None:
        super()._retire(reason)
        self._listen()

    def every_second(self) -> None:
        if self._renews and self._loop.time() >= self._renew_at:
            self._renew_soon()
        super().every_second()

    def every_beat(self, lag: float) -> None:
        """Adapt the number of slots, if it is not fixed."""
        slots, accounts, started = self.slots, self._accounts, self._started
        if not slots.adapts:
            return
        ended = started - len(self._runs) - len(self._zombies)
        seen = Executed(self._loop.time(), started, ended, self._used, accounts.took, accounts.measured)
        slots.adapt(seen, lag, ready=not self._no_work)
        accounts.measure_more()
        self._turns.slots = slots.limit
        if self._want() > 0:
            self._wake()

    # turns

    def _must_call(self) -> bool:
        if not self._opened:
            return not self._leaving and not self._retiring
        return self._renew_due or bool(self._session.unsent) or self._want() > 0 or self._must_confirm()

    def _must_confirm(self) -> bool:
        """A take was offered, and nothing waits for its answer any more."""
        return bool(self._session.offered) and not self._hand_over.confirming and not self._listener.waiting

    def _want(self) -> int:
        """How many jobs to ask for now."""
        if self._session.unanswered:
            return self._session.unanswered
        if self._no_work or self._retiring or self._leaving or self._hand_over.confirming:
            return 0
        return self._free()

    def _free(self) -> int:
        """How many jobs can start now."""
        free = self.slots.free(self._used)
        if self._rate is not None and free > 0:
            free = min(free, self._rate.available())
        most = self._settings.max_jobs_per_process
        return free if most is None else min(free, most - self._started)

    def _next_start(self) -> float:
        """When the worker's own rate allows the next take, if it waits for nothing else."""
        return math.inf if self._rate is None or self._no_work else self._loop.time() + self._rate.wait()

    async def _turn(self) -> None:
        try:
            if not self._opened:
                await self._open()
            if self._renew_due or self._reports.of(self._session.unsent):
                await self._renew()
                if self._reports.of(self._session.unsent):  # reported by runs that ended meanwhile
                    await self._renew()
            await self._settle_and_take()
        except SessionOver:
            self._lose_session()
        except SessionLost:
            self._renew_due = True
            await self._pause(self._outage.pause())
        except (BrokerError, OSError) as error:
            await self._pause(self._outage.failed(error))
        else:
            self._outage.answered()
            self._deadlines.tried()
            self._listen()

    async def _settle_and_take(self) -> None:
        session, want = self._session, self._want()
        takes = want > 0 or self._must_confirm()
        if not session.unsent:
            if takes:
                await self._take(session, want)
        elif not takes:
            self._settled(await session.settle())
            # In a burst, look once more for jobs that this made ready: nothing else announces them.
            self._no_work = self._no_work and not self._burst
        else:
            taking = self._loop.create_task(self._take(session, want, settling=True))
            try:
                self._settled(await session.settle())
            except asyncio.CancelledError:
                taking.cancel()
                raise
            finally:
                await taking

    async def _take(self, session: Session, want: int, settling: bool = False) -> None:
        repeats, turns = session.unanswered > 0, self._turns
        if (
            session.offered
            and not repeats
            and (want <= 0 or session.offered != turns.queues or len(turns.queues) > 1)
        ):
            self._start_in(session, await session.confirm(self._filter))
            return  # the next turn takes under a new number
        if not repeats and await turns.look(self._broker, self._filter, session.name, self._loop.time()):
            want = min(want, self._want())
        if not repeats and (self._leaving or self._retiring or session is not self._session or want <= 0):
            return  # since the turn began it was stopped, or lost its session
        if self._rate is not None and not repeats:
            want = self._rate.reserve(want)
            if not want:  # another executor was quicker, or holds the lock
                await asyncio.sleep(0.001)
                return
        request = turns.next_request(want, repeats)
        free, past = self.slots.limit - self._used, self.slots.crowded
        filter = self._loop_filter if past else self._filter
        taken = (
            await session.take(request.queues, filter, request.want, request.share) if request.queues else []
        )
        if self._rate is not None:
            self._rate.give_back(want - len(taken))
        if session is not self._session:
            return
        self.slots.filled = self.slots.filled or 0 < free == len(taken)
        if past:
            self.slots.past_threads = len(taken) == request.want
            turns.passed(request)
        else:
            # In a burst, outcomes that are being settled may make jobs ready after this take: take again.
            self._no_work = not turns.took(request, taken) and not (settling and self._burst)
        self._renew_due = self._renew_due or repeats  # a cancel may have come before the job was known here
        if taken:
            self._start(taken)

    def _settled(self, replies: list[tuple[Outcome, Settled]]) -> None:
        self._reports.drop((outcome.id, outcome.run) for outcome, _ in replies)
        for outcome, reply in replies:
            if reply.verdict is _REFUSED and outcome.kind is not OutcomeKind.GIVE_BACK:
                self._log.refused(outcome)

    async def _pause(self, seconds: float) -> None:
        """Pause after a failed call, through all wake-ups but the end of the executor."""
        until = self._loop.time() + seconds
        while self._loop.time() < until and not self._is_over():
            await self._sleep(min(until, self._stop_at + LEAVE_PATIENCE))

    # the session

    async def _open(self) -> None:
        session = self._session
        await self._turns.begin(self._broker, self._served)  # first: an open session that is not used lapses
        await session.open()
        self._opened, self._renew_due = True, False
        self._renew_at = self._loop.time() + self._settings.heartbeat / 1000
        tasks = {name: entry.task for name, entry in self._tasks.items()}
        self._supervisor.started(session.name, session.epoch, tasks)

    async def _renew(self) -> None:
        reports, session = self._reports.fetch(), self._session
        self._renew_due = False
        try:
            heard = await session.renew(reports.items())
        except BaseException:
            if session is self._session:
                self._reports.put_back(reports)
            self._renew_due = True
            raise
        self._renew_at = self._loop.time() + self._settings.heartbeat / 1000
        self._heed(heard.lost, heard.cancelled, heard.forced)

    def _lose_session(self) -> None:
        self._opened = self._no_work = False
        self._hand_over.drop()
        super()._lose_session()

    # waiting for work

    def _served(self) -> None:
        """The queues it serves are known, or have changed."""
        if self._listener.serve(self._turns.queues):
            self._no_work = False
            self._wake()
        self._supervisor.serves(self._turns.entries, self._turns.dedicated)

    def _listen(self) -> None:
        if self._opened and not self._hand_over.confirming:
            has_room = self._no_work and not self._leaving and not self._retiring
            self._listener.aim(self._session.name, has_room, self._next_take() if has_room else None)

    def _next_take(self) -> NextTake | None:
        """The take to offer: only if there are no runs, and no outcomes to settle."""
        session = self._session
        if not self._offers or self._runs or self._zombies or session.unsent or session.sending:
            return None
        return self._hand_over.offer(session, self._free())

    def _news(self, session: str, heard: Wake | Exception) -> None:
        """The listener woke up. An error there will show in the next turn too, or be over by then."""
        if isinstance(heard, Exception) or heard.told:
            self._renew_due = True
        if isinstance(heard, Wake):
            self._turns.heard(heard)
            mine = bool(heard.taken) and session == self._session.name
            if mine and self._hand_over.receive(self._session, heard) and not (heard.work or heard.told):
                return
        self._no_work = False
        self._wake()

    def _start_in(self, session: Session, taken: list[Taken]) -> None:
        if taken and session is self._session:
            self._start(taken)

    def _confirmed(self) -> None:
        """Listen for more, unless the next turn does it."""
        if self._must_call():
            self._wake()
        elif not self._session.sending:
            self._listen()
