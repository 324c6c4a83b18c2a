"""What happened, counted from the broker, and whether it went as it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dray.broker.verbs import PAGE_MAX, Broker, Query
from dray.demo.follower import Happening, task_of
from dray.job import Record, State


@dataclass
class Witnessed:
    """What only the caller could see."""

    calls: int = 0
    """How many jobs it enqueued, duplicates included."""
    accepted: set[str] = field(default_factory=set)
    put_ms: int = 0
    cancel_seconds: float = 0.0
    results: list[int] = field(default_factory=list)
    replaced: int = 0
    """Executors that another one took the place of."""
    exit_code: int | None = None


class Row(msgspec.Struct, frozen=True):
    """One task: what became of its jobs."""

    task: str
    jobs: int
    states: dict[str, int]
    runs: int
    shows: str


class Check(msgspec.Struct, frozen=True):
    """Something that must be so."""

    what: str
    ok: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything counted."""

    calls: int
    accepted: int
    duplicates: int
    states: dict[str, int]
    runs: int
    failed: int
    """Runs that ended with an error."""
    lost: int
    """Runs that ended with their process."""
    replaced: int
    """Executor processes that died, and had their place taken by another."""
    rows: list[Row]
    checks: list[Check]

    @property
    def sound(self) -> bool:
        return all(check.ok for check in self.checks)


class Facts:
    """Records and events of the tour, and the questions that rows and checks ask of them."""

    def __init__(
        self,
        records: Sequence[Record],
        happened: Sequence[Happening],
        witnessed: Witnessed,
        audit: Sequence[str],
    ) -> None:
        self.records, self.happened, self.witnessed, self.audit = records, happened, witnessed, audit

    def of(self, task: str) -> list[Record]:
        return [record for record in self.records if task_of(record.id) == task]

    def all(self, task: str, state: State) -> bool:
        records = self.of(task)
        return bool(records) and all(record.state is state for record in records)

    def crashed(self, task: str | None = None) -> int:
        return sum(event.kind == "crashed" and task in (None, event.task) for event in self.happened)

    def failed(self) -> int:
        """Runs that raised: each was either tried again or made its job dead."""
        return sum(
            event.kind == "retried" or (event.kind == "died" and event.run > 0) for event in self.happened
        )

    def thumbnails_behind_orders(self) -> int:
        """How many had not started when the orders came."""
        before = self.happened[: self._first("put", "order")]
        return len(self.of("thumbnail")) - len(
            {e.id for e in before if (e.kind, e.task) == ("taken", "thumbnail")}
        )

    def thumbnails_between_orders(self) -> int:
        """How many were handed out while an order waited: strict priority means none."""
        taken = [place for place, e in enumerate(self.happened) if (e.kind, e.task) == ("taken", "order")]
        between = self.happened[self._first("put", "order") : max(taken, default=0)]
        return sum((e.kind, e.task) == ("taken", "thumbnail") for e in between)

    def _first(self, kind: str, task: str) -> int:
        """The place of the first such event; the end, if there is none."""
        places = (place for place, e in enumerate(self.happened) if (e.kind, e.task) == (kind, task))
        return next(places, len(self.happened))

    def delays(self) -> list[int]:
        """By how many milliseconds each reminder started after its time; negative would be too early."""
        due = {record.id: record.job.due or 0 for record in self.of("reminder")}
        taken = {event.id: event.at for event in reversed(self.happened) if event.kind == "taken"}
        return [taken[id] - due[id] for id in due if id in taken]

    def completions(self) -> Counter[str]:
        ends = ("succeeded", "died", "cancelled")
        return Counter(event.id for event in self.happened if event.kind in ends)


async def count_everything(broker: Broker, happened: Sequence[Happening], witnessed: Witnessed) -> Summary:
    """Read every job, and compare what the broker says with what the caller knows."""
    facts = Facts(await _read_all(broker), happened, witnessed, await broker.audit())
    records = facts.records
    return Summary(
        calls=witnessed.calls,
        accepted=len(witnessed.accepted),
        duplicates=witnessed.calls - len(witnessed.accepted),
        states=_states(records),
        runs=sum(record.run for record in records),
        failed=facts.failed(),
        lost=facts.crashed(),
        replaced=witnessed.replaced,
        rows=[_row(facts, task, shows) for task, shows in _SHOWS.items()],
        checks=run_checks(facts),
    )


def run_checks(facts: Facts) -> list[Check]:
    """Whether everything went as it must."""
    return [Check(what, passes(facts)) for what, passes in _CHECKS.items()]


async def _read_all(broker: Broker) -> list[Record]:
    records: list[Record] = []
    cursor: str | None = None
    while True:
        page = await broker.find(Query(), cursor=cursor, limit=PAGE_MAX)
        records += page.records
        cursor = page.cursor
        if cursor is None:
            return records


def _states(records: Sequence[Record]) -> dict[str, int]:
    counts = Counter(record.state for record in records)
    return {str(state): counts[state] for state in State if counts[state]}


def _row(facts: Facts, task: str, shows: Callable[[Facts], str]) -> Row:
    records = facts.of(task)
    return Row(task, len(records), _states(records), sum(record.run for record in records), shows(facts))


def _failed(facts: Facts, task: str) -> int:
    return sum(record.failures for record in facts.of(task))


def _tries(facts: Facts, task: str) -> int:
    return max((record.attempt for record in facts.of(task)), default=0)


def _unused(facts: Facts, task: str) -> int:
    return sum(record.job.retries - record.failures for record in facts.of(task))


_SHOWS: Final[dict[str, Callable[[Facts], str]]] = {
    "thumbnail": lambda f: f"quick plain functions, enqueued in one call of {f.witnessed.put_ms} ms",
    "order": lambda f: f"high priority: passed {f.thumbnails_behind_orders()} thumbnails that waited before",
    "email": lambda f: f"failed {_failed(f, 'email')} times, tried again, got through",
    "reminder": lambda f: f"delayed: none early, the last {max(f.delays(), default=0)} ms after its time",
    "welcome": lambda f: (
        f"one key, enqueued {1 + f.witnessed.calls - len(f.witnessed.accepted)} times: one job"
    ),
    "newsletter": lambda f: "cancelled while it waited: never started",
    "report": lambda f: f"progress; one cancelled while it ran, over in {f.witnessed.cancel_seconds:.1f} s",
    "price": lambda f: f"gather: results in order, their sum is {sum(f.witnessed.results)}",
    "payment": lambda f: f"Reject: dead at once, {_unused(f, 'payment')} retries left unused",
    "fax": lambda f: f"dead when the retries were used up, after {_tries(f, 'fax')} attempts each",
    "catalogue": lambda f: "killed its own process; ran again, alone in a child",
    "video": lambda f: f"executor killed with SIGKILL: {f.crashed('video')} runs lost, all done again",
}
"""Task → what its row shows."""

_CHECKS: Final[dict[str, Callable[[Facts], bool]]] = {
    "every accepted job is in the broker, and no other": lambda f: (
        {record.id for record in f.records} == f.witnessed.accepted and len(f.records) > 0
    ),
    "every job has ended": lambda f: all(record.state.finished for record in f.records),
    "no job ended twice": lambda f: max(f.completions().values(), default=0) == 1,
    "high priority went first": lambda f: f.thumbnails_between_orders() == 0,
    "what failed was tried again until it succeeded": lambda f: (
        f.all("email", State.SUCCEEDED) and all(record.failures == 2 for record in f.of("email"))
    ),
    "nothing delayed started early": lambda f: (
        f.all("reminder", State.SUCCEEDED) and min(f.delays(), default=-1) >= 0
    ),
    "one key, one job": lambda f: f.all("welcome", State.SUCCEEDED) and len(f.of("welcome")) == 1,
    "what was cancelled in time never ran": lambda f: (
        f.all("newsletter", State.CANCELLED) and f.of("newsletter")[0].run == 0
    ),
    "a running job stopped when it was cancelled": lambda f: (
        {record.id: record.state for record in f.of("report")}
        == {"report-1": State.SUCCEEDED, "report-2": State.CANCELLED}
    ),
    "results came back in order": lambda f: (
        f.witnessed.results == [n * n for n in range(1, len(f.of("price")) + 1)]
    ),
    "what was rejected died at once": lambda f: (
        f.all("payment", State.DEAD) and all(record.attempt == 1 for record in f.of("payment"))
    ),
    "what used up its retries is dead": lambda f: (
        f.all("fax", State.DEAD) and all(record.attempt == record.job.retries + 1 for record in f.of("fax"))
    ),
    "a job that killed its process ran again": lambda f: (
        f.all("catalogue", State.SUCCEEDED) and all(record.run > 1 for record in f.of("catalogue"))
    ),
    "jobs of a killed process ran again": lambda f: (
        f.all("video", State.SUCCEEDED) and f.crashed("video") > 0
    ),
    "the rest simply succeeded": lambda f: (
        f.all("thumbnail", State.SUCCEEDED) and f.all("order", State.SUCCEEDED)
    ),
    "executors that died were replaced": lambda f: f.witnessed.replaced >= 2,
    "the worker ended in good order": lambda f: f.witnessed.exit_code == 0,
    "the broker finds nothing inconsistent": lambda f: not f.audit,
}
"""What must be so → whether it is."""
