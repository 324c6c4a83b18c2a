"""dray by itself: how it changes with depth, payload, executors and events, with the bare loop beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.measure import Spread
from bench.peers import lineup
from bench.peers.books import wait_until
from bench.peers.lineup import DRAY, MUTED, Subject, bare
from bench.peers.plan import Plan
from bench.peers.run import FAILURES
from bench.peers.session import PAYLOAD, Place, Session, opened

SAMPLE = 20_000
"""Jobs over which the rate at a depth is taken."""
HEAVY = 50_000_000
"""Bytes of payload per sample, at most: large payloads get fewer jobs."""


@dataclass
class Alone:
    """Jobs per second, a figure per round: by what was varied, then by its value."""

    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    longest: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds that the longest script took, by depth."""
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, value: str, figure: float) -> None:
        self.rows.setdefault(what, {}).setdefault(value, []).append(figure)

    def spread(self, what: str, value: str) -> Spread | None:
        found = self.rows.get(what, {}).get(value)
        return Spread.of(found) if found else None


def measure_alone(plan: Plan, place: Place, tell: Callable[[str], None]) -> Alone:
    """All of it, one value after the other in every round."""
    alone = Alone()
    steps = [*_depths(plan, alone), *_payloads(plan), *_executors(plan), *_events(plan)]
    for number in range(plan.alone_rounds):
        for what, value, subject, work in steps:
            tell(f"round {number + 1} of {plan.alone_rounds}, {what} {value}")
            try:
                with opened(plan, subject, subject.groups[0], place) as (session, _):
                    for name, figure in work(session).items():
                        alone.add(f"{what}, {name}" if name else what, value, figure)
            except FAILURES as error:
                alone.failures.append(f"{what} {value}: {type(error).__name__}: {error}")
    return alone


Work = Callable[[Session], dict[str, float]]
Step = tuple[str, str, Subject, Work]


def _depths(plan: Plan, alone: Alone) -> list[Step]:
    steps: list[Step] = []
    for depth in plan.depths:

        def work(session: Session, depth: int = depth) -> dict[str, float]:
            assert session.server is not None
            session.server.watch_scripts()
            rate = at_depth(session, depth)
            alone.longest.setdefault(str(depth), []).append(session.server.longest())
            return {"": rate}

        steps.append(("depth", str(depth), DRAY, work))
    return steps


def at_depth(session: Session, depth: int, sample: int = SAMPLE) -> float:
    """The rate at which jobs leave a queue of that depth; a shallow one is filled again and again."""
    done, seconds = 0, 0.0
    while done < min(sample, depth * 10):
        phase, first = session.phase()
        with session.workers.frozen():
            session.driver.ask("enqueue", how="fill", task="noop", first=first, count=depth, size=PAYLOAD)
        if depth <= sample:
            wait_until(lambda: session.books.done(phase, depth), depth, session.workers.check)  # noqa: B023
            seconds += session.books.seconds(phase)
            done += depth
        else:
            return _stretch(session, phase, depth, sample)
    return done / seconds


def _stretch(session: Session, phase: int, depth: int, sample: int) -> float:
    """Between two looks from outside, the first after some jobs have run.

    Looking costs time too, so only at the head of the queue: jobs of one task and priority run in order.
    """
    seen: list[tuple[float, int]] = []

    def look() -> int:
        count = session.books.done(phase, min(depth, sample * 2))
        seen.append((time.perf_counter(), count))
        return count

    wait_until(look, sample // 10, session.workers.check, every=0.005)
    begin = seen[-1]
    wait_until(look, begin[1] + sample, session.workers.check, every=0.02)
    return (seen[-1][1] - begin[1]) / (seen[-1][0] - begin[0])


def _payloads(plan: Plan) -> list[Step]:
    steps: list[Step] = []
    for size in plan.payloads:
        for subject in (DRAY, bare()):
            jobs = max(50, min(plan.jobs(20_000), HEAVY // size))

            def work(
                session: Session, size: int = size, jobs: int = jobs, who: str = subject.name
            ) -> dict[str, float]:
                found = session.drain("noop", jobs, size)
                together = 1 / (1 / found["fill"] + 1 / found["rate"])
                return {f"{who}, in and out": together}

            steps.append(("payload", str(size), subject, work))
    return steps


def _executors(plan: Plan) -> list[Step]:
    steps: list[Step] = []
    for count in plan.executors:
        ours = lineup.dray(f"dray -p {count}", "-p", str(count), "-c", "100")
        for subject, who in ((ours, "dray"), (bare(count), "bare loop")):

            def work(session: Session, who: str = who, jobs: int = plan.jobs(30_000)) -> dict[str, float]:
                return {who: session.drain("noop", jobs)["rate"]}

            steps.append(("executors", str(count), subject, work))
    return steps


def _events(plan: Plan) -> list[Step]:
    """With its feed of events and its statistics, and without."""
    steps: list[Step] = []
    for subject, value in ((DRAY, "on"), (MUTED, "off")) if plan.executors else ():

        def work(session: Session, jobs: int = plan.jobs(30_000)) -> dict[str, float]:
            return {"": session.drain("noop", jobs)["rate"]}

        steps.append(("events", value, subject, work))
    return steps
