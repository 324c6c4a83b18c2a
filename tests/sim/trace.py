"""The trace of a run, line by line. Lines are kept as values and formatted only when they are shown."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from dray.broker.verbs import Event
from dray.job import Job, Outcome, Settled, Taken
from sim.transport import Call

Line = tuple[float, str, str, tuple[str, ...]]
"""When, who, what, about which jobs."""


class Trace:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lines: list[Line] = []

    def say(self, who: str, what: str, ids: Sequence[str] = ()) -> None:
        self.lines.append((self._clock(), who, what, tuple(ids)))

    def step(self, call: Call, events: list[Event]) -> None:
        what = ", ".join(f"{e.kind} {e.id}/{e.run}" if e.run else f"{e.kind} {e.id}" for e in events)
        self.say(
            _who(call), f"{'outbox' if call.forwarding else call.verb} => {what}", [e.id for e in events]
        )

    def reply(self, call: Call, reply: Any) -> None:
        ids, shown = _shown(call, reply)
        if shown:
            self.say(_who(call), f"{call.verb} -> {shown}", ids)

    def refusal(self, call: Call, error: BaseException) -> None:
        self.say(_who(call), f"{call.verb} !! {type(error).__name__}: {error}", _shown(call, None)[0])

    def about(self, job: str | None, most: int = 30) -> list[str]:
        """The last lines about one job, and about processes; about everything if no job is given."""
        chosen = [line for line in self.lines if job is None or job in line[3] or not line[3]]
        return [to_text(line) for line in chosen[-most:]]

    def digest(self) -> str:
        """Equal for equal runs, in every process."""
        return hashlib.sha256("\n".join(map(to_text, self.lines)).encode()).hexdigest()


def to_text(line: Line) -> str:
    at, who, what, _ = line
    return f"{at:10.4f}  {who:<16} {what}"


def _who(call: Call) -> str:
    again = f" x{call.delivery}" if call.delivery > 1 else ""
    return f"{call.process.name} #{call.number}{again}"


def _shown(call: Call, reply: Any) -> tuple[list[str], str]:
    """The jobs of a call, and its reply in a few words (empty for verbs that say little)."""
    items = reply if isinstance(reply, list) else []
    match call.verb:
        case "put":
            jobs: Sequence[Job] = call.args[0]
            return [job.id for job in jobs], ", ".join(f"{a.id} {a.verdict} {a.state}" for a in items)
        case "take":
            taken: list[Taken] = items
            return [t.job.id for t in taken], ", ".join(f"{t.job.id}/{t.run}" for t in taken)
        case "settle":
            outcomes: Sequence[Outcome] = call.args[1]
            verdicts: list[Settled] = items
            pairs = zip(outcomes, verdicts, strict=False)
            words = ", ".join(f"{o.id}/{o.run} {o.kind}: {s.verdict} {s.state}" for o, s in pairs)
            return [o.id for o in outcomes], words
        case "edit":
            ids = list(getattr(call.args[0], "ids", ()))
            return ids, f"{call.args[1]}: {reply}"
        case _:
            return [], ""
