"""Chooses a child process for each job that needs one, and decides the outcomes when a child dies.

A job with `isolate="process"` has a child for itself. Suspects (jobs whose worker died) run in groups: all
together at first. When a child dies, its jobs run again in groups of half that size, and so on, until the job
that kills its process is alone; only that counts against it. The broker keeps the size with the job
(`Taken.suspect`): any executor that takes it next knows it, and suspects of several crashes share a child.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

import msgspec

from dray.errors import InvalidInput, TooLarge
from dray.job import GROUP_MAX, Error, Outcome
from dray.worker.run.child_main import (
    Answer,
    ChildReady,
    ChildUnfit,
    FromChild,
    LoopAnswered,
    RunAsks,
    RunBegun,
    RunEnded,
    RunHeartbeat,
    RunJob,
    RunOnLoop,
    RunProgress,
    RunWaits,
    StopRun,
)
from dray.worker.run.child_process import ChildProcess, Spawn, how_it_ended
from dray.worker.run.outcome import Judge
from dray.worker.run.requests import RunLost
from dray.worker.run.run_state import Ended, RunState, StopReason

HANDFUL: Final = 4
"""Children for suspects at a time; more of them could use up memory that may have been short."""
LONGEST_WAIT: Final = 5.0
"""Seconds that suspects wait for room before one more child is allowed."""
MOST: Final = 16
KEEP_IDLE: Final = 60.0
KILL_AFTER: Final = 1.0
"""Seconds between asking a job to stop and killing its process."""
BLOCKED_AFTER: Final = 2.0
"""Seconds without an answer of its event loop until a process with several jobs is killed."""
MOST_STARTS: Final = 3
"""Children that may be killed while they start before that counts as a failure of the run."""
START_PATIENCE: Final = 60.0
"""Seconds that a process may take to start; the job's timeout counts only from its beginning."""

log = logging.getLogger("dray.worker")


class NotStarted(Exception):
    """A child process could not import the app or enter its lifespan: the job was not begun."""


class ChildRun:
    sent: bool = False
    begun: bool = False
    halted: float = 0.0
    """When it was asked to stop, by the loop's clock."""

    def __init__(self, child: Child, number: int, run: RunState, ended: Ended) -> None:
        self.child, self.number, self.run, self.ended = child, number, run, ended


class Child:
    """One child process and the runs in it."""

    process: ChildProcess

    def __init__(self, pool: ChildPool, judge: Judge, *, shared: bool) -> None:
        self._pool, self._judge, self.shared = pool, judge, shared
        self.runs: dict[int, ChildRun] = {}
        self.halting: dict[int, ChildRun] = {}
        """Runs that were asked to stop."""
        self.group = GROUP_MAX
        """How many runs may be in it at once: the smallest group of those in it."""
        self.jobs = self.begun = 0
        """Runs sent to it so far, and runs that it has begun."""
        self.unfit = ""
        self.over = self.killed = False
        self._ready = False
        self._unsent: list[ChildRun] = []
        self._asking: set[asyncio.Task[None]] = set()
        """Requests of its runs that are being carried out."""
        self._unanswered: float | None = None
        """Since when its event loop owes an answer."""
        self._blocked = False
        """It was killed because its event loop did not answer."""
        self._on_loop = 0
        """The run that its event loop was inside of when it was last asked to stop one."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def usable(self) -> bool:
        return not self.over and not self.killed

    def admits(self, run: RunState) -> bool:
        """True if a suspect may join the runs in it."""
        room = min(self.group, run.taken.suspect)
        return self.shared and self.usable and not self.halting and 0 < len(self.runs) < room

    def begin(self, run: RunState, ended: Ended) -> ChildRun:
        self.group = min(self.group if self.runs else GROUP_MAX, run.taken.suspect or GROUP_MAX)
        self.jobs += 1
        entry = self.runs[self.jobs] = ChildRun(self, self.jobs, run, ended)
        run.stop_at = min(max(run.stop_at, self._loop.time() + START_PATIENCE), run.deadline)
        self._unsent.append(entry)
        self._cancel_timer()
        self._send_jobs()
        return entry

    def _send_jobs(self) -> None:
        if not self._ready:
            return
        for entry in self._unsent:
            run, entry.sent = entry.run, True
            self.process.send(
                RunJob(entry.number, run.taken, run.timeout, self._judge.now(), alone=not self.shared)
            )
        self._unsent.clear()

    # stopping

    def halt(self, entry: ChildRun) -> None:
        """Ask a run to stop; its process is killed if it does not and no other run is there."""
        run, now = entry.run, self._loop.time()
        if run.stop_reason is None:
            return
        if not entry.sent:
            self._unsent.remove(entry)
            self._finish(entry, self._judge.stopped(run))
            return
        if entry.number not in self.halting:
            self.halting[entry.number], entry.halted = entry, now
        # The neighbours must live: a cancelled run that does not stop is interrupted, as by a timeout.
        late = run.stop_reason is StopReason.CANCELLED and (
            run.forced or now >= entry.halted + 0.9 * KILL_AFTER
        )
        self.process.send(StopRun(entry.number, run.stop_reason, run.overdue or late))
        if self._unanswered is None:
            self._unanswered = now
        if run.overdue:
            run.stop_at = math.inf  # from now on this class stops it
        self._look()

    def _look(self) -> None:
        """Kill the process if all its runs were asked to stop, or its event loop does not answer."""
        if not self.halting or not self.usable:
            return
        self._cancel_timer()
        due, now, halting = math.inf, self._loop.time(), self.halting.values()
        if len(halting) == len(self.runs):
            hurry = all(entry.run.stop_reason is StopReason.LOST or entry.run.forced for entry in halting)
            patience = 0.0 if hurry else KILL_AFTER
            due = max(entry.halted for entry in halting) + patience
        if self._unanswered is not None:
            due = min(due, self._unanswered + BLOCKED_AFTER)
        if now >= due:
            self._blocked = self._unanswered is not None and now > self._unanswered + KILL_AFTER / 2
            self.kill()
        else:
            self._timer = self._loop.call_later(min(due - now, KILL_AFTER), self._look)

    def kill(self) -> None:
        self._cancel_timer()
        self.killed = True
        self.process.kill()

    def rest(self) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(KEEP_IDLE, self.kill)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # its messages

    def hear(self, message: FromChild) -> None:
        match message:
            case ChildReady():
                self._ready = True
                self._send_jobs()
            case ChildUnfit():
                self.unfit = message.reason
            case LoopAnswered():
                self._unanswered = None
            case RunOnLoop():
                self._on_loop = message.number
            case _ if (entry := self.runs.get(message.number)) is not None:
                self._hear_of(entry, message)

    def _hear_of(
        self, entry: ChildRun, message: RunBegun | RunEnded | RunProgress | RunHeartbeat | RunWaits | RunAsks
    ) -> None:
        run = entry.run
        match message:
            case RunBegun():
                entry.begun = True
                self.begun += 1
                if not run.overdue:
                    run.restart_timeout(self._loop.time())
            case RunEnded():
                if run.meter is not None:
                    run.meter.took, run.meter.cpu, run.meter.memory = (
                        message.took,
                        message.cpu,
                        message.memory,
                    )
                run.steps_run, run.steps_replayed = message.steps_run, message.steps_replayed
                self._finish(entry, message.outcome)
            case RunProgress():
                run.report(message.progress)
            case RunHeartbeat():
                run.beat()
            case RunAsks():
                asking = self._loop.create_task(self._answer(run, message))
                self._asking.add(asking)
                asking.add_done_callback(self._asking.discard)
            case RunWaits() if message.begins is not run.away:
                run.away = message.begins
                run.host.waits(run, message.begins)

    async def _answer(self, run: RunState, message: RunAsks) -> None:
        try:
            reply = await run.host.ask(run, message.request)
            answer = Answer(message.ask, msgspec.msgpack.encode(reply))
        except RunLost:
            answer = Answer(message.ask, b"", lost=True)
        except (TooLarge, InvalidInput) as error:
            answer = Answer(message.ask, b"", refused=str(error))
        if self.usable:
            self.process.send(answer)

    def _finish(self, entry: ChildRun, outcome: Outcome) -> None:
        run = entry.run
        del self.runs[entry.number]
        self.halting.pop(entry.number, None)
        if run.away:
            run.away = False
            run.host.waits(run, False)
        self._look()
        self._pool.ended(entry)
        entry.ended(run, outcome)

    # its end

    def gone(self, code: int | None) -> None:
        self._cancel_timer()
        self.over = True
        runs = list(self.runs.values())
        together = sum(entry.begun for entry in runs)
        if together > 1 and not self.killed:
            text = "a child process with %d suspects %s: they run again, in groups of %d"
            log.warning(text, together, how_it_ended(code), (together + 1) // 2)
        for entry in runs:
            outcome = self._last_outcome(entry, together, code)
            if outcome is not None:
                self._finish(entry, outcome)
                continue
            del self.runs[entry.number]
            entry.run.failed_starts += not self.begun
            self._pool.start(entry.run, entry.ended)
        self._pool.lost(self)

    def _last_outcome(self, entry: ChildRun, together: int, code: int | None) -> Outcome | None:
        """The outcome of a run whose process ended; None: it gets another process."""
        run, judge, blocks = entry.run, self._judge, entry.number == self._on_loop
        blocked = self._blocked and together > 1
        at_fault = run.stop_reason is not StopReason.TIMEOUT or not blocked or blocks
        if run.stop_reason is not None and (at_fault or not entry.begun):
            return judge.stopped(run)
        if not entry.begun:
            return self._not_begun(run, code)
        if not blocked or not self._on_loop:
            return judge.crashed(run, f"its process {how_it_ended(code)}", self._counted(together))
        if blocks:
            return judge.crashed(run, "it blocked the event loop that it shared", together=2)
        return judge.given_back(run)

    def _counted(self, together: int) -> int:
        """1 only if the process had no other run since its start: others may have left it broken."""
        return 1 if self.begun == 1 else max(2, together)

    def _not_begun(self, run: RunState, code: int | None) -> Outcome | None:
        """None, for another try, if others had begun or the process was killed while it started."""
        killed = not self.unfit and code is not None and code < 0
        if self.begun or (killed and run.failed_starts < MOST_STARTS):
            return None
        reason = self.unfit or f"it {how_it_ended(code)} while it started"
        error = Error("NotStarted", f"the child process could not start: {reason}")
        return self._judge.by_the_rules(run, NotStarted(reason), error)


class ChildPool:
    """The `Runner` of jobs that must be killable, and of suspects."""

    child_type: type[Child] = Child

    def __init__(
        self, judge: Judge, spawn: Spawn, *, recycle: int | None = None, handful: int = HANDFUL
    ) -> None:
        self._judge, self._spawn, self._recycle = judge, spawn, recycle
        self._loop = asyncio.get_running_loop()
        self.children: list[Child] = []
        self._runs: dict[RunState, ChildRun] = {}
        self._waiting: dict[RunState, Ended] = {}
        """Suspects that no child has room for."""
        self._handful = self._most = handful
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._starting: dict[asyncio.Task[None], None] = {}

    def start(self, run: RunState, ended: Ended) -> None:
        if self._closed:
            ended(run, self._judge.given_back(run))
            return
        own = not run.taken.suspect or "process" in (run.taken.job.isolate, run.task.options.isolate)
        child = self._own(run) if own else self._group(run)
        if child is not None:
            self._runs[run] = child.begin(run, ended)
            return
        run.stop_at = run.deadline  # its timeout begins when it does
        self._waiting[run] = ended
        if self._timer is None:
            self._timer = self._loop.call_later(LONGEST_WAIT, self._allow_more)

    def _own(self, run: RunState) -> Child:
        """An idle child, which is quicker; a new one for a suspect that must be alone."""
        idle = [child for child in self._idle() if not child.shared]
        return idle[-1] if idle and run.taken.suspect != 1 else self._new(shared=False)

    def _group(self, run: RunState) -> Child | None:
        """A child with a group of the same size, else an idle or new one, else any that fits."""
        size = run.taken.suspect
        fitting = [child for child in self.children if child.admits(run) and not self._is_used_up(child)]
        for child in fitting:
            if child.group == size:
                return child
        idle = [child for child in self._idle() if child.shared]
        if idle and size > 1:
            return idle[-1]
        if sum(child.shared for child in self.children) - len(idle) < self._most:
            for child in idle:
                child.kill()
            return self._new(shared=True)
        return fitting[0] if fitting else None

    def _idle(self) -> list[Child]:
        return [child for child in self.children if child.usable and not child.runs]

    def _is_used_up(self, child: Child) -> bool:
        return self._recycle is not None and child.jobs >= self._recycle

    def _allow_more(self) -> None:
        self._timer = None
        self._most = min(self._most + 1, MOST)
        self._start_waiting()

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for run, ended in waiting.items():
            self.start(run, ended)
        if not self._waiting:
            self._most = self._handful

    def _new(self, *, shared: bool) -> Child:
        child = self.child_type(self, self._judge, shared=shared)
        child.process = self._spawn(child)
        self.children.append(child)
        task = self._loop.create_task(self._bring_up(child))
        self._starting[task] = None
        task.add_done_callback(lambda done: self._starting.pop(done, None))
        return child

    async def _bring_up(self, child: Child) -> None:
        try:
            await child.process.start()
        except OSError as error:
            log.exception("no child process can be started")
            child.unfit = str(error)
            child.gone(None)

    # ends

    def ended(self, entry: ChildRun) -> None:
        """A run has ended: keep its child for the next one, or kill it."""
        child = entry.child
        self._runs.pop(entry.run, None)
        if child.usable and not child.runs:
            if self._is_used_up(child) or (child.shared and child.group == 1):
                child.kill()
            else:
                child.rest()
        if self._waiting:
            self._start_waiting()

    def lost(self, child: Child) -> None:
        self.children.remove(child)
        if self._waiting:
            self._start_waiting()

    def stop(self, run: RunState) -> None:
        if (ended := self._waiting.pop(run, None)) is not None:
            ended(run, self._judge.stopped(run))
        elif (entry := self._runs.get(run)) is not None:
            entry.child.halt(entry)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for child in self.children:
            child.kill()
