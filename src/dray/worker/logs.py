"""Log lines of workers, for people or for programs. Records about a job carry its id, task and attempt."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Final

import msgspec

from dray.context import CURRENT
from dray.job import Outcome, OutcomeKind
from dray.worker.live import Live

FAILURES: Final = frozenset({OutcomeKind.RETRY, OutcomeKind.DEAD, OutcomeKind.CRASHED})
_NEEDED: Final = {"job", "task", "attempt"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ABOUT: Final = ("job", "task", "attempt", "trace")

log = logging.getLogger("dray.worker")


def about(live: Live) -> dict[str, object]:
    """For the `extra` of a record."""
    taken = live.taken
    told: dict[str, object] = {"job": taken.job.id, "task": taken.job.task, "attempt": taken.attempt}
    if live.trace is not None:
        told["trace"] = live.trace
    return told


def _about(record: logging.LogRecord) -> dict[str, object]:
    """What a record says of its job, and, if it was logged inside of one, what is known of that."""
    told = {name: value for name in _ABOUT if (value := getattr(record, name, None)) is not None}
    running = CURRENT.get()
    if not isinstance(running, Live) or told.get("job", running.taken.job.id) != running.taken.job.id:
        return told
    return told | about(running)


def log_end(live: Live, outcome: Outcome) -> None:
    """Say how a run ended that did not succeed."""
    job, error = live.taken.job, outcome.error
    what = "" if error is None else f": {_harmless(f'{error.type}: {error.message}')}"
    level = logging.WARNING if outcome.kind in FAILURES else logging.INFO
    log.log(level, "%s (%s) ended as %s%s", job.id, job.task, outcome.kind, what, extra=about(live))


def _harmless(text: str) -> str:
    """What a job says can neither pass for a line of ours nor act on a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class ConsoleFormatter(logging.Formatter):
    """`12:30:01.123 WARNING shop.orders: what happened (resize, job default:019a…, attempt 1)`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (as logging calls it)
        line, told = super().formatMessage(record), _about(record)
        if not told.keys() >= _NEEDED or str(told["job"]) in record.message:  # most of our own lines name it
            return line
        return f"{line} ({told['task']}, job {told['job']}, attempt {told['attempt']})"


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
        line |= _about(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # A message may hold what no encoding can carry; the line must be written all the same.
        return msgspec.json.encode(_plain(line)).decode()


def _plain(line: dict[str, object]) -> dict[str, object]:
    return {
        name: value.encode(errors="backslashreplace").decode()
        if isinstance(value, str)
        else value
        if isinstance(value, int | float | None)
        else str(value)
        for name, value in line.items()
    }


def set_up(level: str, format: str) -> None:
    """Log to stderr, unless the app has set up logging of its own."""
    root = logging.getLogger()
    logging.getLogger("dray").setLevel(level.upper())
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())
