"""The results of the demo, counted from the broker; the checks; the table or JSON at the end."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dray.cli.output import note, on_terminal, say, say_json, say_table
from dray.demo.monitor import ENDS, DemoEvent
from dray.job import Record, State

TOTALS: Final = """\
{verdict}: {calls} enqueued - {duplicates} duplicates = {accepted} = {ended}.
{runs} runs: {failed} failed, {lost} were lost with their process; \
{replaced} executors died and were replaced.
{passed} of {total} checks passed, in {seconds:.1f} s.
"""
NEXT: Final = {
    "demo --keep --ui": "the same, and then the dashboard with all of it in your browser",
    "bench": "how fast it is on this machine",
    "--help": "all commands",
}
NEXT_INSIDE: Final = {
    "jobs ls --limit 20": "what is there",
    "jobs show video-1": "all that is known of one job",
    "why fax-1": "why it stands where it stands",
    "dead ls": "what needs a person",
    "dead replay --task fax --yes": "give it another chance; then",
    "worker --burst": "run what there is to run, and end",
}
"""Commands to try in a folder that was kept."""


@dataclass
class Facts:
    """What the caller saw, what the broker says, and the questions that rows and checks ask."""

    calls: int = 0
    """Jobs enqueued, duplicates included."""
    accepted: set[str] = field(default_factory=set)
    put_ms: int = 0
    cancel_seconds: float = 0.0
    results: list[int] = field(default_factory=list)
    replaced: int = 0
    """Executors that died and were replaced."""
    exit_code: int | None = None
    events: list[DemoEvent] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)

    def of(self, task: str) -> list[Record]:
        return [record for record in self.records if record.job.task == task]

    def all(self, task: str, state: State = State.SUCCEEDED, **values: int) -> bool:
        """Whether the task has jobs, and each is in the state and has the values in these fields."""
        wanted = {"state": state, **values}
        found = [getattr(record, name) == value for record in self.of(task) for name, value in wanted.items()]
        return bool(found) and all(found)

    def retries_left(self, task: str) -> int:
        return sum(record.job.retries - record.failures for record in self.of(task))

    def crashed(self, task: str | None = None) -> int:
        return sum(event.kind == "crashed" and task in (None, event.task) for event in self.events)

    def failed(self) -> int:
        """Runs that raised: each was either retried or made its job dead."""
        return sum(one.kind == "retried" or (one.kind == "died" and one.run > 0) for one in self.events)

    def indexes(self, kind: str, task: str) -> list[int]:
        return [n for n, event in enumerate(self.events) if (event.kind, event.task) == (kind, task)]

    def thumbnails_behind_orders(self) -> int:
        """Thumbnails that had not started when the orders were put."""
        first = min(self.indexes("put", "order"))
        return len(self.of("thumbnail")) - sum(n < first for n in self.indexes("taken", "thumbnail"))

    def thumbnails_between_orders(self) -> int:
        """Thumbnails taken while an order waited: strict priority means none."""
        first, last = min(self.indexes("put", "order")), max(self.indexes("taken", "order"))
        return sum(first < n < last for n in self.indexes("taken", "thumbnail"))

    def delays(self) -> list[int]:
        """Milliseconds from the due time of each reminder to its start; negative is too early."""
        due = {record.id: record.job.due or 0 for record in self.of("reminder")}
        taken = {event.id: event.at for event in reversed(self.events) if event.kind == "taken"}
        return [taken[id] - due[id] for id in due if id in taken]


SHOWS: Final[dict[str, Callable[[Facts], str]]] = {
    "thumbnail": lambda f: f"quick plain functions, enqueued in one call of {f.put_ms} ms",
    "order": lambda f: f"high priority: passed {f.thumbnails_behind_orders()} thumbnails that waited before",
    "email": lambda f: f"failed {sum(r.failures for r in f.of('email'))} times, tried again, got through",
    "reminder": lambda f: f"delayed: none early, the last {max(f.delays(), default=0)} ms after its time",
    "welcome": lambda f: f"one key, enqueued {1 + f.calls - len(f.accepted)} times: one job",
    "newsletter": lambda f: "cancelled while it waited: never started",
    "report": lambda f: f"progress; one cancelled while it ran, over in {f.cancel_seconds:.1f} s",
    "price": lambda f: f"gather: results in order, their sum is {sum(f.results)}",
    "payment": lambda f: f"Reject: dead at once, {f.retries_left('payment')} retries left unused",
    "fax": lambda f: f"dead when the retries were used up, after {f.of('fax')[0].attempt} attempts each",
    "catalogue": lambda f: "killed its own process; ran again, in a child process",
    "video": lambda f: f"executor killed with SIGKILL: {f.crashed('video')} runs lost, all done again",
}
"""Task → the last column of its row."""

CHECKS: Final[dict[str, Callable[[Facts], bool]]] = {
    "every accepted job is in the broker, and no other": lambda f: (
        {record.id for record in f.records} == f.accepted and len(f.records) > 0
    ),
    "every job has ended": lambda f: all(record.state.finished for record in f.records),
    "no job ended twice": lambda f: max(Counter(e.id for e in f.events if e.kind in ENDS).values()) == 1,
    "high priority went first": lambda f: f.all("order") and f.thumbnails_between_orders() == 0,
    "nothing delayed started early": lambda f: f.all("reminder") and min(f.delays(), default=-1) >= 0,
    "one key, one job": lambda f: f.all("welcome") and len(f.of("welcome")) == 1,
    "a running job stopped when it was cancelled": lambda f: (
        {record.id: record.state for record in f.of("report")}
        == {"report-1": State.SUCCEEDED, "report-2": State.CANCELLED}
    ),
    "results came back in order": lambda f: f.results == [n * n for n in range(1, len(f.of("price")) + 1)],
    "jobs of a killed process ran again": lambda f: f.all("video") and f.crashed("video") > 0,
    "executors that died were replaced": lambda f: f.replaced >= 2,
    "the worker ended in good order": lambda f: f.exit_code == 0,
    "the broker finds nothing inconsistent": lambda f: not f.audit,
    "what failed was tried again until it succeeded": lambda f: f.all("email", failures=2),
    "what was cancelled in time never ran": lambda f: f.all("newsletter", State.CANCELLED, run=0),
    "what was rejected died at once": lambda f: f.all("payment", State.DEAD, attempt=1),
    "what used up its retries is dead": lambda f: (
        f.all("fax", State.DEAD) and all(r.attempt == r.job.retries + 1 for r in f.of("fax"))
    ),
    "a job that killed its process ran again": lambda f: (
        f.all("catalogue") and all(r.run > 1 for r in f.of("catalogue"))
    ),
    "the rest simply succeeded": lambda f: f.all("thumbnail", failures=0),
}
"""Statement → whether it holds."""


def run_checks(facts: Facts) -> dict[str, bool]:
    return {what: holds(facts) for what, holds in CHECKS.items()}


def print_summary(facts: Facts, seconds: float, kept: Path | None, *, json: bool) -> bool:
    """Print the results and commands to try next; `kept` is the folder if it stays. True if all is well."""
    program = _program(kept)
    commands = {f"{program} {words}": what for words, what in (NEXT_INSIDE if kept else NEXT).items()}
    checks = run_checks(facts)
    summary: dict[str, Any] = {
        "ok": all(checks.values()),
        "seconds": round(seconds, 3),
        "calls": facts.calls,
        "accepted": len(facts.accepted),
        "duplicates": facts.calls - len(facts.accepted),
        **_count(facts.records),
        "failed": facts.failed(),
        "lost": facts.crashed(),
        "replaced": facts.replaced,
        "rows": [
            {"task": task, "jobs": len(facts.of(task)), **_count(facts.of(task)), "shows": shows(facts)}
            for task, shows in SHOWS.items()
        ],
        "checks": [{"what": what, "ok": ok} for what, ok in checks.items()],
        "folder": kept and str(kept),
        "broker": kept and f"sqlite:///{quote(str(kept))}/.dray/dray.db",
        "next": list(commands),
    }
    if json:
        say_json(summary)
    else:
        _print_results(summary)
        say(f"Kept: {kept} (broker {summary['broker']}). What to try next:" if kept else "What to try next:")
        if kept:
            say(f"  cd {shlex.quote(str(kept))}")
        for command, what in commands.items():
            say(f"  {command:<{max(map(len, commands))}}  # {what}")
    return all(checks.values())


def _count(records: list[Record]) -> dict[str, Any]:
    counts = Counter(record.state for record in records)
    states = {str(state): counts[state] for state in State if counts[state]}
    return {"states": states, "runs": sum(record.run for record in records)}


def _print_results(summary: dict[str, Any]) -> None:
    """The table, the totals, and the checks that failed."""
    rows = [
        [row["task"], str(row["jobs"]), _listed(row["states"], ", "), str(row["runs"]), row["shows"]]
        for row in summary["rows"]
    ]
    say("")
    say_table(("TASK", "JOBS", "ENDED", "RUNS", "WHAT IT SHOWS"), rows, right=("JOBS", "RUNS"))
    say("")
    complete = summary["accepted"] == sum(summary["states"].values())
    failed = [check["what"] for check in summary["checks"] if not check["ok"]]
    totals = TOTALS.format(
        **summary,
        verdict="Every job accounted for" if complete else "Jobs are missing",
        ended=_listed(summary["states"], " + "),
        passed=len(CHECKS) - len(failed),
        total=len(CHECKS),
    )
    for sentence in totals.splitlines():
        # Broken between words where a terminal would break it inside one.
        width = shutil.get_terminal_size().columns if on_terminal(sys.stdout) else len(sentence)
        say(textwrap.fill(sentence, max(20, width)))
    for what in failed:
        note(f"dray: this is not so: {what}")
    say("")


def _listed(states: dict[str, int], separator: str) -> str:
    return separator.join(f"{count} {state}" for state, count in states.items())


def _program(kept: Path | None) -> str:
    """`dray` where the shell finds this installation, else the way it was started."""
    python = Path(sys.executable)
    found = shutil.which("dray")
    if found is not None and Path(found).parent == python.parent:
        return "dray"
    if kept is None and python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m dray"
