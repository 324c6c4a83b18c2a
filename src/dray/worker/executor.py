"""The loop of one executor: take what fits, run it, settle what finished.

`run` is the only place that calls the broker (a listener beside it does nothing but wait). Each turn settles
what has ended and takes as much as can start now, both on their way together; what ends meanwhile is the
next turn's batch. When the broker has no more work the listener sleeps on it, and nothing here polls.

Time comes from the event loop, the wall clock and random numbers are handed in, and where jobs run is up to
the `Runners`: so the same program runs in a simulation.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from dray.app import App
from dray.broker.verbs import Broker, Filter, Ref, Wake
from dray.errors import BrokerError, SessionLost
from dray.job import Outcome, OutcomeKind, Progress, Settled, Taken, Verdict
from dray.settings import Settings
from dray.stats import LOST
from dray.worker.accounting import Accounts
from dray.worker.channel import Lapsed, Message, Stop, Told
from dray.worker.contact import Contact
from dray.worker.known import known_tasks
from dray.worker.listener import Listener
from dray.worker.live import Live, Why
from dray.worker.logs import FAILURES, about, log_end
from dray.worker.memory import memory_used
from dray.worker.pace import Pace
from dray.worker.pulse import Pulse
from dray.worker.reports import Reports
from dray.worker.run import Judge
from dray.worker.runners import Runners
from dray.worker.session import Session, SessionOver
from dray.worker.voice import Voice
from dray.worker.watch import PATIENCE, Watch

LEAVE_PATIENCE: Final = 1.0
"""Seconds that runs get to stop, and the broker to answer, once the grace of a stop is over."""
_SUCCEEDED: Final = OutcomeKind.SUCCEEDED
_REFUSED: Final = Verdict.REFUSED

log = logging.getLogger("dray.worker")


class Executor:
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
        pulse: Pulse | None = None,
        pace: Pace | None = None,
        accounts: Accounts | None = None,
        say: Callable[[Message], None] | None = None,
    ) -> None:
        self.app, self.state, self.thread = app, state, threading.get_ident()
        self._broker, self._settings, self._name = broker, settings, session_name
        self._renews, self._burst, self._voice = renews, burst, Voice(say)
        self._loop = asyncio.get_running_loop()
        self._pace = pace
        self._judge = Judge(app, settings, clock, random)
        self._runners = runners(self._judge)
        self._accounts = accounts or Accounts(wall=clock)
        self._tasks = known_tasks(app.tasks, settings, self._judge, self._runners, self._accounts)
        self._filter = Filter(tasks=frozenset(self._tasks), priorities=settings.priorities)
        self._runs: dict[Ref, Live] = {}
        self._zombies: dict[Live, None] = {}
        """Runs of a session that is over: they use slots until they end, what they come to is dropped."""
        self._away = 0
        """Runs that wait for other jobs."""
        self._sessions = 0
        self._session = self._new_session()
        self._opened = self._hungry = self._renew_due = False
        self._renew_at = math.inf
        self._waiter: asyncio.Future[None] | None = None
        self._stop_at = math.inf
        self._stop_timer: asyncio.TimerHandle | None = None
        self._abandoned = False
        self._retiring = ""
        self._started = self._succeeded = self._failed = 0
        self._contact = Contact(session_name, self._loop.time, random)
        self._reports = Reports(self._renew_soon)
        self._listener = Listener(broker, settings.queues, self._filter, self._news, random)
        self._watch = Watch(self, self._runs, self._zombies, pulse, self._accounts)
        self._debug = log.isEnabledFor(logging.DEBUG)

    # life

    async def run(self) -> None:
        """Work until `stop`, or until it retires and all its runs have ended."""
        self._watch.begin()
        try:
            while not self._is_over():
                if self._must_call():
                    await self._turn()
                else:
                    self._tell_stuck()
                    await self._sleep(min(self._stop_at + LEAVE_PATIENCE, self._next_start()))
            await self._leave()
        finally:
            await self._listener.close()
            self._watch.end()
            if self._stop_timer is not None:
                self._stop_timer.cancel()
            for runner in dict.fromkeys(self._runners):
                runner.close()

    def stop(self, grace: int) -> None:
        """Take nothing more; let runs finish for `grace` milliseconds, then give the rest back."""
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
        """Nobody is there to renew the session: send what is finished if that works at once, and end."""
        self._abandoned, self._stop_at = True, self._loop.time()
        self._wake()

    def hear(self, message: Message) -> None:
        """What the supervisor says."""
        if isinstance(message, Stop):
            self.stop(message.grace)
        elif isinstance(message, Told) and message.session == self._session.name:
            self._told(message.lost, message.cancelled)
        elif isinstance(message, Lapsed) and message.session == self._session.name:
            self._lose_session()

    def _is_over(self) -> bool:
        session = self._session
        if math.isinf(self._stop_at) and not self._retiring:
            return False
        if self._loop.time() >= self._stop_at + LEAVE_PATIENCE:
            return True
        if session.unsent or session.sending or (session.unanswered and not self._abandoned):
            return False
        return self._abandoned or not self._runs

    @property
    def _leaving(self) -> bool:
        return self._stop_at < math.inf

    def _hand_back(self) -> None:
        """The grace is over: whatever can be stopped goes back into line."""
        for live in list(self._runs.values()):
            self.halt(live, Why.LEAVING)
        self._wake()

    async def _leave(self) -> None:
        self._tell_counts()
        if not self._renews or not self._opened or self._runs:
            return  # somebody else frees what is left, or the lease runs out
        try:
            await self._broker.release(self._session.name, suspect=False)
        except BrokerError as error:
            log.warning("%s: its session could not be released: %s", self._name, error)

    # turns

    def _must_call(self) -> bool:
        if not self._opened:
            return not self._leaving and not self._retiring
        return self._renew_due or bool(self._session.unsent) or self._want() > 0

    def _want(self) -> int:
        """How many jobs to ask for now."""
        if self._session.unanswered:
            return self._session.unanswered
        if self._hungry or self._retiring or self._leaving:
            return 0
        free = self._settings.concurrency - len(self._runs) - len(self._zombies) + self._away
        if self._pace is not None and free > 0:
            free = min(free, self._pace.available())
        most = self._settings.max_jobs_per_process
        return free if most is None else min(free, most - self._started)

    def _next_start(self) -> float:
        """When the worker's own rate lets it ask for work again, if that is all it waits for."""
        if self._pace is None or self._hungry:
            return math.inf
        return self._loop.time() + self._pace.wait()

    async def _turn(self) -> None:
        try:
            if not self._opened:
                await self._open()
            if self._renew_due or self._reports.of(self._session.unsent):
                await self._renew()
                if self._reports.of(self._session.unsent):  # said, and over, while that was on its way
                    await self._renew()
            await self._settle_and_take()
        except SessionOver:
            self._lose_session()
        except SessionLost:
            self._renew_due = True
            await self._pause(self._contact.late())
        except (BrokerError, OSError) as error:
            await self._pause(self._contact.lost(error))
        else:
            self._contact.held()
            self._watch.tried()
            self._listen()

    async def _settle_and_take(self) -> None:
        session, want = self._session, self._want()
        if not session.unsent:
            if want > 0:
                await self._take(session, want)
        elif want <= 0:
            self._settled(await session.settle())
            # In a burst nobody else says that it is over: look once more, also for what this made ready.
            self._hungry = self._hungry and not self._burst
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
        repeats = session.unanswered > 0
        if not repeats and (self._leaving or self._retiring):
            return  # told so since it was decided to ask
        if self._pace is not None and not repeats:
            want = self._pace.reserve(want)
            if not want:  # another executor was quicker, or is just looking
                await asyncio.sleep(0.001)
                return
        taken = await session.take(self._settings.queues, self._filter, want)
        if self._pace is not None:
            self._pace.give_back(want - len(taken))
        if session is not self._session:
            return
        # What is being settled may make more jobs ready: in a burst, that is the last chance to see them.
        self._hungry = len(taken) < want and not (settling and self._burst)
        self._renew_due = self._renew_due or repeats  # a cancel may have been told before the job was known
        if taken:
            self._start(taken)
        if self._burst:
            self._voice.idle(self._hungry and not self._runs and not session.unsent)

    def _settled(self, replies: list[tuple[Outcome, Settled]]) -> None:
        self._reports.drop((outcome.id, outcome.run) for outcome, _ in replies)
        for outcome, reply in replies:
            if reply.verdict is _REFUSED and outcome.kind is not OutcomeKind.GIVE_BACK:
                log.info(
                    "%s: run %d of %s is void, what it came to is dropped",
                    self._name,
                    outcome.run,
                    outcome.id,
                )

    async def _open(self) -> None:
        session = self._session
        await session.open()
        self._opened, self._renew_due = True, False
        self._renew_at = self._loop.time() + self._settings.heartbeat / 1000
        tasks = {name: known.task for name, known in self._tasks.items()}
        self._voice.started(session.name, session.epoch, tasks)

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
        self._told(heard.lost, heard.cancelled)

    def _listen(self) -> None:
        if self._opened:
            room = self._hungry and not self._leaving and not self._retiring
            self._listener.aim(self._session.name, room)

    def _news(self, heard: Wake | Exception) -> None:
        """The listener woke up. Whatever went wrong there will go wrong in the next turn too, or be over."""
        if isinstance(heard, Exception) or heard.told:
            self._renew_due = True
        self._hungry = False
        self._wake()

    # sessions

    def _new_session(self) -> Session:
        self._sessions += 1
        return Session(self._broker, f"{self._name}.{self._sessions}", self._settings.lease)

    def _lose_session(self) -> None:
        """Others will run what it held: stop that here, and go on under a new name."""
        log.warning("%s: session %s is lost with %d runs", self._name, self._session.name, len(self._runs))
        deadline = self._loop.time() + PATIENCE
        lost = list(self._runs.values())
        self._runs.clear()
        self._reports.clear()
        self._session = self._new_session()
        self._opened = self._hungry = False
        for live in lost:
            self._zombies[live] = None
            live.overdue, live.deadline = True, deadline
            self.halt(live, Why.LOST)
        if lost:
            self._watch.expect(deadline)
        self._wake()

    def _told(self, lost: Iterable[Ref], cancelled: Iterable[Ref]) -> None:
        for ref in lost:
            if (live := self._runs.get(ref)) is not None:
                self.halt(live, Why.LOST)
            elif not self._session.holds(ref):
                # Said once more, so that the broker can stop telling us.
                self._session.unsent[ref] = Outcome(id=ref[0], run=ref[1], kind=OutcomeKind.GIVE_BACK)
                self._wake()
        for ref in cancelled:
            if (live := self._runs.get(ref)) is not None:
                self.halt(live, Why.CANCELLED)

    # runs

    def _start(self, batch: list[Taken]) -> None:
        now, earliest = self._loop.time(), math.inf
        runs, tasks, session, ended = self._runs, self._tasks, self._session, self._ended
        for taken in batch:
            job = taken.job
            ref = (job.id, taken.run)
            if ref in runs or session.holds(ref):
                continue
            known = tasks.get(job.task)
            if known is None or self._leaving:
                session.unsent[ref] = Outcome(id=job.id, run=taken.run, kind=OutcomeKind.GIVE_BACK)
                continue
            task, timeout, runner, account = known
            if job.timeout is not None:
                timeout = job.timeout / 1000
            if taken.suspect or job.isolate == "process":
                runner = self._runners.in_children
            live = runs[ref] = Live(self, task, taken, ref, timeout)
            live.runner = runner
            live.deadline = deadline = now + timeout
            if deadline < earliest:
                earliest = deadline
            self._started += 1
            account.runs += 1
            if account.runs <= account.up_to:
                live.meter = self._accounts.meter(taken)
            if self._debug:
                log.debug("%s starts (run %d)", job.id, taken.run, extra=about(live))
            runner.start(live, ended)
        self._watch.expect(earliest)
        most = self._settings.max_jobs_per_process
        if most is not None and self._started >= most:
            self._retire(f"it has started {most} jobs, which is max_jobs_per_process")

    def _ended(self, live: Live, outcome: Outcome) -> None:
        ref = live.ref
        job = live.taken.job
        account = self._tasks[job.task].account
        kept = self._runs.get(ref) is live
        if kept:
            del self._runs[ref]
            self._session.unsent[ref] = outcome
        else:
            self._zombies.pop(live, None)
        if live.meter is not None:
            self._accounts.ended(live, live.meter, outcome)
        if outcome.kind is _SUCCEEDED and kept:
            account.succeeded[job.queue] += 1
        else:
            account.note_end(job.queue, outcome.kind.value if kept else LOST)
        if outcome.kind is _SUCCEEDED:
            self._succeeded += 1
            if self._debug:
                log.debug("%s succeeded", outcome.id, extra=about(live))
        else:
            if outcome.kind in FAILURES:
                self._failed += 1
                self._accounts.failed(live.task.name)
            log_end(live, outcome)
        if live.why is not None:
            self._watch.halting.pop(live, None)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def halt(self, live: Live, why: Why) -> None:
        """Ask a run to stop; it is asked again every second until it does."""
        if live.why is None or why is Why.LOST:
            live.why = why
        live.cancelled, live.nudged = True, self._loop.time()
        stop = live.runner.stop
        self._watch.halting[live] = stop
        stop(live)

    # what runs say

    def reported(self, live: Live, progress: Progress) -> None:
        if live.why is not Why.LOST:
            self._reports.add(live.ref, progress)

    def beaten(self, live: Live) -> None:
        if not live.overdue:
            live.deadline = self._loop.time() + live.timeout

    def waits(self, live: Live, begins: bool) -> None:
        if threading.get_ident() == self.thread:
            self._waits(begins)
        else:
            self._loop.call_soon_threadsafe(self._waits, begins)

    def _waits(self, begins: bool) -> None:
        self._away += 1 if begins else -1
        self._wake()

    # retiring

    def give_up(self, live: Live) -> None:
        """A run that was asked to stop did not: only the end of the process stops it."""
        log.error("%s does not stop; its executor must be replaced", live.taken.job.id, extra=about(live))
        if self._voice.heard:
            self._retire(f"{live.taken.job.id} ({live.taken.job.task}) did not stop")

    def _retire(self, reason: str) -> None:
        if not self._retiring:
            self._retiring = reason
            log.info("%s retires: %s", self._name, reason)
            self._voice.retiring(reason)
            self._listen()
        self._wake()

    def _tell_stuck(self) -> None:
        """When all that is left are runs that nobody can stop, the supervisor has to."""
        runs = list(self._runs.values())
        if runs and self._voice.heard and all(live.stuck for live in runs):
            self._voice.stuck(lambda: [self._judge.stopped(live) for live in runs])

    def every_second(self) -> None:
        most = self._settings.max_memory
        if self._renews and self._loop.time() >= self._renew_at:
            self._renew_soon()
        self._tell_counts()
        if most is not None and (used := memory_used()) > most:
            self._retire(f"it uses {used >> 20} MiB, more than max_memory={most >> 20} MiB")

    def _tell_counts(self) -> None:
        self._voice.counted(self._succeeded, self._failed, len(self._runs))
        self._voice.measured(self._accounts)

    # sleeping

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _renew_soon(self) -> None:
        self._renew_due = True
        self._wake()

    async def _sleep(self, until: float) -> None:
        """Until something happens, or until then."""
        self._waiter = self._loop.create_future()
        timer = None if math.isinf(until) else self._loop.call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def _pause(self, seconds: float) -> None:
        """Until then, whatever runs do meanwhile; an executor that is to end does not wait longer for it."""
        until = self._loop.time() + seconds
        while self._loop.time() < until and not self._is_over():
            await self._sleep(min(until, self._stop_at + LEAVE_PATIENCE))
