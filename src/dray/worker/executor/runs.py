"""The runs of one executor: starts and stops them, and keeps their outcomes until the loop settles them."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from dray.app import App
from dray.broker.verbs import Broker, Ref
from dray.codec.inputs import HEADER
from dray.errors import BrokerError, SessionLost
from dray.job import Outcome, OutcomeKind, Progress, Taken, Verdict
from dray.retry_pauses import RetryPauses
from dray.settings import Settings
from dray.stats.tallies import LOST
from dray.task import Task
from dray.worker.channel import Message, SupervisorReports
from dray.worker.executor.accounting import Account, Accounts
from dray.worker.executor.deadlines import PATIENCE, Deadlines
from dray.worker.executor.inputs import Inputs
from dray.worker.executor.memo_batches import MemoBatches
from dray.worker.executor.run_log import RunLog
from dray.worker.executor.session import ProgressReports, Session
from dray.worker.executor.slots import Slots
from dray.worker.logs import about, is_failure
from dray.worker.process import memory_used
from dray.worker.run.durable_run import DurableRun
from dray.worker.run.operations import RunSteps
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import Runner, Runners
from dray.worker.run.requests import Remember, Request, RunLost, carry_out
from dray.worker.run.run_state import RunState, StopReason
from dray.worker.shared_memory import SharedHeartbeat, SleepSign

_SUCCEEDED: Final = OutcomeKind.SUCCEEDED
ASK_FIRST_PAUSE: Final = 0.1
ASK_LONGEST_PAUSE: Final = 1.0
"""Seconds between tries of a durable run to reach the broker."""

log = logging.getLogger("dray.worker")


class TaskEntry(NamedTuple):
    """A task that an executor runs."""

    task: Task[..., Any]
    timeout: float
    """Seconds, unless the job has its own."""
    runner: Runner
    account: Account
    off_loop: bool
    """It runs in a thread or in a child process of its own."""


def task_table(
    tasks: dict[str, Task[..., Any]], settings: Settings, judge: Judge, runners: Runners, accounts: Accounts
) -> dict[str, TaskEntry]:
    table = {}
    for name, task in tasks.items():
        if settings.tasks is not None and name not in settings.tasks and not task.built_in:
            continue
        options = task.options
        runner = runners.in_threads
        if options.isolate == "process":
            runner = runners.in_children
        elif task.is_async or judge.middleware:
            runner = runners.on_loop
        timeout = (options.timeout or settings.timeout) / 1000
        off_loop = not task.is_async or options.isolate == "process"
        table[name] = TaskEntry(task, timeout, runner, accounts.open(task), off_loop)
    return table


class Nap:
    """The sleep of one task on the event loop: `until` sleeps, `end` wakes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[None] | None = None

    def end(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def until(self, time: float) -> None:
        self.waiter = self._loop.create_future()
        timer = None if math.isinf(time) else self._loop.call_at(time, self.end)
        try:
            await self.waiter
        finally:
            self.waiter = None
            if timer is not None:
                timer.cancel()


class Runs:
    """The base of an executor: its runs, as a `RunHost`, and when it retires because of them."""

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
        state: Any,
        heartbeat: SharedHeartbeat | None,
        sleep: SleepSign | None,
        accounts: Accounts | None,
        send: Callable[[Message], None] | None,
    ) -> None:
        self.app, self.state, self.thread = app, state, threading.get_ident()
        self._broker, self._settings, self._name, self._clock = broker, settings, session_name, clock
        self._loop, self._random = asyncio.get_running_loop(), random
        self._supervisor = SupervisorReports(send)
        self._judge = Judge(app, settings, clock, random)
        self._runners = runners(self._judge)
        self._accounts = accounts or Accounts(wall=clock)
        self._tasks = task_table(app.all_tasks(), settings, self._judge, self._runners, self._accounts)
        self.slots = Slots(
            settings,
            loop_tasks=not all(entry.off_loop or entry.task.built_in for entry in self._tasks.values()),
            cpu_clock=self._accounts.cpu_clock,
            sleep=sleep,
        )
        self._inputs = Inputs(broker, self._judge)
        self._runs: dict[Ref, RunState] = {}
        self._zombies: dict[RunState, None] = {}
        """Runs of a lost session: they use slots until they end, and their outcomes are dropped."""
        self._away = 0
        """Runs that wait for other jobs and use no slot."""
        self._sessions = 0
        self._session = self._new_session()
        self._renew_due = False
        self._stop_at = math.inf
        self._retiring = ""
        self._started = self._succeeded = self._failed = 0
        self._nap = Nap()
        self._wake, self._sleep = self._nap.end, self._nap.until
        self._reports = ProgressReports(self._renew_soon)
        self._deadlines = Deadlines(self, self._runs, self._zombies, heartbeat, self._accounts)
        self._debug = log.isEnabledFor(logging.DEBUG)
        self._memos = MemoBatches(broker)
        self._log = RunLog(self._loop.time, clock)

    @property
    def _leaving(self) -> bool:
        return self._stop_at < math.inf

    def _new_session(self) -> Session:
        self._sessions += 1
        return Session(self._broker, f"{self._name}.{self._sessions}", self._settings.lease)

    # start and end

    def _start(self, batch: list[Taken]) -> None:
        now, earliest = self._loop.time(), math.inf
        runs, tasks, session, ended = self._runs, self._tasks, self._session, self._ended
        for taken in batch:
            job = taken.job
            ref = (job.id, taken.run)
            if ref in runs or ref in session.unsent or ref in session.sending:
                continue
            entry = tasks.get(job.task)
            off_loop = entry is not None and (entry.off_loop or job.isolate == "process")
            if entry is None or self._leaving or (off_loop and not self.slots.leaves_loop()):
                session.unsent[ref] = Outcome(id=job.id, run=taken.run, kind=OutcomeKind.GIVE_BACK)
                continue
            task, timeout, runner, account, _ = entry
            if job.timeout is not None:
                timeout = job.timeout / 1000
            if taken.suspect or job.isolate == "process":
                runner = self._runners.in_children
            if job.owner is not None and job.payload[:1] == HEADER:
                runner = self._inputs.before(runner)
            run = runs[ref] = RunState(self, task, taken, ref, timeout)
            run.runner, run.off_loop = runner, off_loop
            run.began, run.stop_at = now, now + timeout
            if taken.deadline is not None and taken.undo is None:
                run.deadline = now + (taken.deadline - self._clock()) / 1000
                run.restart_timeout(now)
            if run.stop_at < earliest:
                earliest = run.stop_at
            self._started += 1
            account.runs += 1
            if account.runs <= account.up_to:
                run.meter = self._accounts.meter(taken)
            if self._debug:
                log.debug("%s starts (run %d)", job.id, taken.run, extra=about(run))
            runner.start(run, ended)
        self._deadlines.expect(earliest)
        most = self._settings.max_jobs_per_process
        if most is not None and self._started >= most:
            self._retire(f"it has started max_jobs_per_process={most}")

    def _ended(self, run: RunState, outcome: Outcome) -> None:
        ref = run.ref
        job = run.taken.job
        account = self._tasks[job.task].account
        kept = self._runs.get(ref) is run
        if kept:
            del self._runs[ref]
            self._session.unsent[ref] = outcome
        else:
            self._zombies.pop(run, None)
        if run.off_loop:
            self.slots.off_loop -= 1
        if run.steps_run or run.steps_replayed:
            account.steps_run += run.steps_run
            account.steps_replayed += run.steps_replayed
        if run.meter is not None:
            self._accounts.ended(run, run.meter, outcome)
        if outcome.kind is _SUCCEEDED and kept:
            account.succeeded[job.queue] += 1
        else:
            account.note_end(job.queue, outcome.kind.value if kept else LOST)
        if outcome.kind is _SUCCEEDED:
            self._succeeded += 1
            self._log.succeeded(run)
        else:
            if is_failure(outcome):
                self._failed += 1
                self._accounts.failed(run.task.name)
            self._log.ended(run, outcome)
        if run.stop_reason is not None:
            self._deadlines.halting.pop(run, None)
        waiter = self._nap.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # stopping

    def halt(self, run: RunState, reason: StopReason) -> None:
        """Ask a run to stop; it is asked again every second until it does."""
        if run.stop_reason is None or reason is StopReason.LOST:
            run.stop_reason = reason
        run.cancelled, run.asked = True, self._loop.time()
        if run.forced:
            self._deadlines.hurry(run)
        stop = run.runner.stop
        self._deadlines.halting[run] = stop
        stop(run)

    def _heed(self, lost: Iterable[Ref], cancelled: Iterable[Ref], forced: Collection[Ref]) -> None:
        """Stop the runs that the broker says are lost or cancelled."""
        lost = tuple(lost)
        self._reports.drop(lost)
        for ref in lost:
            if (run := self._runs.get(ref)) is not None:
                self.halt(run, StopReason.LOST)
            elif not self._session.holds(ref):
                # It is not here (any more): giving it back once more makes the broker stop naming it.
                self._session.unsent[ref] = Outcome(id=ref[0], run=ref[1], kind=OutcomeKind.GIVE_BACK)
                self._wake()
        for ref in cancelled:
            if (run := self._runs.get(ref)) is not None:
                run.forced = ref in forced
                self.halt(run, StopReason.CANCELLED)

    def _lose_session(self) -> None:
        """Others will run its jobs: stop them here, and go on with a new session."""
        log.warning("%s: session %s is lost with %d runs", self._name, self._session.name, len(self._runs))
        stop_at = self._loop.time() + PATIENCE
        lost = list(self._runs.values())
        self._runs.clear()
        self._reports.clear()
        self._session = self._new_session()
        for run in lost:
            self._zombies[run] = None
            run.overdue, run.stop_at = True, stop_at
            self.halt(run, StopReason.LOST)
        if lost:
            self._deadlines.expect(stop_at)
        self._wake()

    # called by runs

    def reported(self, run: RunState, progress: Progress) -> None:
        if run.stop_reason is not StopReason.LOST:
            self._reports.add(run.ref, progress)

    def beaten(self, run: RunState) -> None:
        if not run.overdue:
            run.restart_timeout(self._loop.time())

    def waits(self, run: RunState, begins: bool) -> None:
        if threading.get_ident() == self.thread:
            self._waits(run, begins)
        else:
            self._loop.call_soon_threadsafe(self._waits, run, begins)

    def _waits(self, run: RunState, begins: bool) -> None:
        self._away += 1 if begins else -1
        if run.off_loop:
            self.slots.off_loop -= 1 if begins else -1
        self._wake()

    def open_steps(self, run: RunState) -> RunSteps:
        return RunSteps(DurableRun(run, self._judge, self.ask, self._loop))

    async def ask(self, run: RunState, request: Request) -> Any:
        """Carry out what a durable run asks of the broker, through its outages."""
        pauses = RetryPauses(ASK_FIRST_PAUSE, ASK_LONGEST_PAUSE, random=self._random)
        while True:
            if self._runs.get(run.ref) is not run:
                raise RunLost(run.taken.job.id)
            try:
                if not isinstance(request, Remember):
                    return await carry_out(self._broker, run.taken, request)
                verdict = await self._memos.write(self._session.name, request.write)
                if verdict is Verdict.REFUSED:
                    raise RunLost(run.taken.job.id)
                return verdict
            except SessionLost:
                raise RunLost(run.taken.job.id) from None
            except (BrokerError, OSError) as error:
                log.warning("%s waits for the broker: %s", run.taken.job.id, error, extra=about(run))
                await asyncio.sleep(pauses.next())

    def _renew_soon(self) -> None:
        self._renew_due = True
        self._wake()

    # retiring

    def give_up(self, run: RunState) -> None:
        """A run did not stop when asked: only the end of the process stops it."""
        job = run.taken.job
        log.error("%s (%s) does not stop; its executor must be replaced", job.id, job.task, extra=about(run))
        if self._supervisor.supervised:
            self._retire(f"{job.id} ({job.task}) did not stop")

    def _retire(self, reason: str) -> None:
        if not self._retiring:
            self._retiring = reason
            log.info("%s retires: %s", self._name, reason)
            self._supervisor.retiring(reason)
        self._wake()

    def _report_stuck(self) -> None:
        """When only runs are left that do not stop, the supervisor has to end the process."""
        runs = list(self._runs.values())
        if runs and self._supervisor.supervised and all(run.stuck for run in runs):
            self._supervisor.stuck(lambda: [self._judge.stopped(run) for run in runs])

    @property
    def _used(self) -> int:
        """Slots in use."""
        return len(self._runs) + len(self._zombies) - self._away

    def every_beat(self, lag: float) -> None:
        """Called several times a second, with the time by which the event loop was late."""

    def every_second(self) -> None:
        self._report_counts()
        most = self._settings.max_memory
        if most is not None and (used := memory_used()) > most:
            self._retire(f"it uses {used >> 20} MiB, more than max_memory={most >> 20} MiB")

    def _report_counts(self) -> None:
        self._log.sum_up()
        self._supervisor.counts(self._succeeded, self._failed, len(self._runs))
        self._supervisor.statistics(*self._accounts.fetch())
