"""Log lines of a worker, for people or for programs. Lines about a job carry its id, task and attempt."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dray.context import CURRENT, Running
from dray.errors import InvalidInput
from dray.job import Outcome, OutcomeKind
from dray.retry_pauses import RetryPauses
from dray.settings import Settings

_FAILURES: Final = frozenset({OutcomeKind.RETRY, OutcomeKind.DEAD, OutcomeKind.CRASHED})
_NEEDED: Final = {"job", "task", "attempt"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ABOUT: Final = ("job", "task", "attempt", "trace")
_FACTS: Final = ("queue", "outcome", "duration", "next_try", "runs")
"""Further fields of a JSON line."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between tries while the broker is away."""

log = logging.getLogger("dray.worker")


def about(run: Running) -> dict[str, object]:
    """The fields of a log record about this run, for its `extra`."""
    job = run.taken.job
    fields: dict[str, object] = {"job": job.id, "task": job.task, "attempt": run.taken.attempt}
    if (trace := getattr(run, "trace", None)) is not None:
        fields["trace"] = trace
    return fields


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The record's own fields about a job; those of the run that logged it, if they are of the same job."""
    fields = {name: value for name in _ABOUT if (value := getattr(record, name, None)) is not None}
    run = CURRENT.get()
    if run is None or fields.get("job", run.taken.job.id) != run.taken.job.id:
        return fields
    return fields | about(run)


def is_failure(outcome: Outcome) -> bool:
    """True for a failure of the job itself; the end of a process that it shared is none."""
    return outcome.kind in _FAILURES and outcome.together == 1


def log_with_traceback(
    log: logging.Logger, level: int, text: str, extra: dict[str, object], traceback: str = ""
) -> None:
    """Log a line, and below it a traceback that came as text, through whatever formatters there are."""
    if not log.isEnabledFor(level):
        return
    record = log.makeRecord(log.name, level, __file__, 0, text, (), None, extra=extra)
    if traceback:
        # Indented, so that none of its lines looks like a log line.
        record.exc_text = "\n".join(f"    {harmless(line)}" for line in traceback.rstrip().splitlines())
    log.handle(record)


def harmless(text: str) -> str:
    """Escape control characters: text of a job can neither fake a log line nor act on a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class ConsoleFormatter(logging.Formatter):
    """`12:30:01.123 WARNING shop.orders: what happened (resize, job default:019a…, attempt 1)`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (as logging calls it)
        line, fields = super().formatMessage(record), _fields_of(record)
        if not fields.keys() >= _NEEDED:
            return line
        if record.name == "dray.worker" and str(fields["job"]) in record.message:  # most of our own name it
            return line
        return f"{line} ({fields['task']}, job {fields['job']}, attempt {fields['attempt']})"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line |= _fields_of(record)
        line |= {name: value for name in _FACTS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return msgspec.json.encode(_encodable(line)).decode()


def _encodable(line: dict[str, object]) -> dict[str, object]:
    """Replace what JSON or UTF-8 cannot carry: the line must be written all the same."""
    return {
        name: value.encode(errors="backslashreplace").decode()
        if isinstance(value, str)
        else value
        if isinstance(value, int | float | None)
        else str(value)
        for name, value in line.items()
    }


def set_up(settings: Settings, *, strict: bool = False) -> None:
    """Log as the settings say, unless the app has set up logging itself.

    A log file that cannot be opened is `InvalidInput` if `strict`; else stderr is used.
    """
    root, level = logging.getLogger(), settings.log_level.upper()
    logging.getLogger("dray").setLevel(level)
    handler = _handler(settings, strict)
    if root.handlers:
        handler.close()
        return
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else ConsoleFormatter())
    root.addHandler(handler)
    root.setLevel(level)


def _handler(settings: Settings, strict: bool) -> logging.Handler:
    if settings.log_file is not None:
        from dray.worker.log_file import LogFile

        try:
            return LogFile(settings.log_file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            if strict:
                allowed = f"a file that can be written is allowed: {error.strerror}"
                raise InvalidInput("log_file", settings.log_file, allowed) from error
    return logging.StreamHandler(sys.stdout if settings.log_output == "stdout" else sys.stderr)


class OutageLog:
    """Logs once that the broker is away and once that it is back; says how long to pause between tries."""

    def __init__(self, who: str, time: Callable[[], float], random: Callable[[], float]) -> None:
        self._who, self._time = who, time
        self._pauses = RetryPauses(FIRST_PAUSE, LONGEST_PAUSE, random=random)
        self._since: float | None = None

    def failed(self, error: BaseException) -> float:
        """A call failed: log it, if it is the first; the seconds to pause."""
        if self._since is None:
            self._since = self._time()
            kind = type(error).__name__
            log.warning("%s: no contact with the broker, trying on: %s: %s", self._who, kind, error)
        return self.pause()

    def pause(self) -> float:
        """The seconds to pause after a failure that needs no log line."""
        return self._pauses.next()

    def answered(self) -> None:
        """The broker answered: log it if it was away."""
        if self._pauses.tries:
            if self._since is not None:
                away = self._time() - self._since
                log.warning("%s: the broker is back after %.1f s", self._who, away)
            self._pauses.reset()
            self._since = None
