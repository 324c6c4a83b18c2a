"""Log lines for ended runs: one for each; under load, one line a second for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dray.job import Outcome, OutcomeKind
from dray.worker.logs import about, harmless, is_failure, log_with_traceback
from dray.worker.run.run_state import RunState

LINES_A_SECOND: Final = 20
"""Lines for failures in a second, and as many for all other runs; the rest is summed up in one."""

_HOW: Final = {
    OutcomeKind.CANCELLED: "was cancelled after",
    OutcomeKind.GIVE_BACK: "is handed back after",
    OutcomeKind.CRASHED: "runs again: a process that it shared with others died after",
    OutcomeKind.SUSPENDED: "sleeps or waits after",
}

log = logging.getLogger("dray.worker")


class RunLog:
    """Made and used on the executor's event loop. `clock` is the loop's, `now` the broker's."""

    def __init__(self, clock: Callable[[], float], now: Callable[[], int]) -> None:
        self._clock, self._now = clock, now
        self._room = self._failure_room = 0
        self._unsaid = self._failures_unsaid = 0
        self._since = clock()
        self._make_room()

    def succeeded(self, run: RunState) -> None:
        if self._room:
            self._room -= 1
            self._say(logging.INFO, run, OutcomeKind.SUCCEEDED, "succeeded in")
        else:
            self._unsaid += 1

    def ended(self, run: RunState, outcome: Outcome) -> None:
        """Log a run that did not succeed."""
        if is_failure(outcome):
            if self._failure_room:
                self._failure_room -= 1
                self._failed(run, outcome)
            else:
                self._failures_unsaid += 1
        elif outcome.error is not None and outcome.kind is OutcomeKind.SUSPENDED:
            what = f": {outcome.error.type}: {outcome.error.message}"
            self._say(logging.WARNING, run, outcome.kind, "tries a step again after", what)
        elif self._room:
            self._room -= 1
            self._say(logging.INFO, run, outcome.kind, _HOW[outcome.kind])
        else:
            self._unsaid += 1

    def refused(self, outcome: Outcome) -> None:
        """The broker refused an outcome: another run has taken its place."""
        log.info("run %d of %s is void, what it came to is dropped", outcome.run, outcome.id)

    def sum_up(self) -> None:
        """Called every second, and at the end: one line for all runs that had none."""
        if self._unsaid or self._failures_unsaid:
            level = logging.WARNING if self._failures_unsaid else logging.INFO
            count, failed = self._unsaid + self._failures_unsaid, self._failures_unsaid
            seconds = self._clock() - self._since
            when = "the last second" if seconds < 1.5 else f"the last {seconds:.0f} seconds"
            runs = "1 more run" if count == 1 else f"{count:,} more runs"
            log.log(level, "%s ended in %s, %s failed", runs, when, f"{failed:,}", extra={"runs": count})
        self._make_room()

    def _make_room(self) -> None:
        self._room = LINES_A_SECOND if log.isEnabledFor(logging.INFO) else 0
        self._failure_room = LINES_A_SECOND
        self._unsaid = self._failures_unsaid = 0
        self._since = self._clock()

    def _failed(self, run: RunState, outcome: Outcome) -> None:
        taken, error = run.taken, outcome.error
        what = "" if error is None else f": {error.type}: {error.message}"
        if outcome.kind is OutcomeKind.RETRY:
            wait = max(0, (outcome.at or 0) - self._now()) / 1000
            tries = f"attempt {taken.attempt} of {taken.job.retries + 1}"
            self._say(
                logging.WARNING,
                run,
                outcome.kind,
                "failed after",
                f"{what} ({tries}, the next in {wait:.1f} s)",
                next_try=round(wait, 3),
            )
        elif outcome.kind is OutcomeKind.CRASHED:
            count = f"crash {taken.crashes + 1} of {taken.job.max_crashes}"
            self._say(logging.WARNING, run, outcome.kind, "crashed after", f"{what} ({count})")
        else:
            traceback = "" if error is None else error.traceback
            self._say(logging.ERROR, run, outcome.kind, "is dead after", f": {outcome.reason}", traceback)

    def _say(
        self,
        level: int,
        run: RunState,
        kind: OutcomeKind,
        how: str,
        more: str = "",
        traceback: str = "",
        **facts: object,
    ) -> None:
        job, took = run.taken.job, max(0.0, self._clock() - run.began)
        text = f"{job.task} {job.id} {how} {took:.3f} s{harmless(more)} (queue {job.queue})"
        extra = about(run) | {"queue": job.queue, "duration": round(took, 6), "outcome": str(kind)} | facts
        log_with_traceback(log, level, text, extra, traceback)
