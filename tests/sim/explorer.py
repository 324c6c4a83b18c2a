"""Runs seeds, one or many, on all cores, and shrinks a failing one."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import count, islice
from multiprocessing import get_context
from typing import Any

from sim.lives import Violation
from sim.loop import Deadlock, VirtualLoop
from sim.parts import REAL, Parts
from sim.plan import Plan, draw, smaller, to_text
from sim.stage import Stage
from sim.trace import to_text as line_to_text

AUDIT_EVERY = 1
"""Steps between two audits of the whole broker; jobs that a step touched are compared after each step."""
CHUNK = 4
SHRINK_SECONDS = 8.0


@dataclass(frozen=True)
class Report:
    """The result of one seed."""

    plan: Plan
    steps: int
    jobs: int
    seconds: float
    """Virtual seconds."""
    digest: str
    invariant: str | None = None
    """The violated invariant; None if all held."""
    message: str = ""
    lines: tuple[str, ...] = ()
    """The last lines of the trace about the job in question."""
    trace: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        return self.plan.seed

    @property
    def ok(self) -> bool:
        return self.invariant is None

    @property
    def command(self) -> str:
        changes = to_text(self.plan)
        more = f" --plan '{changes}'" if changes else ""
        return f"python -m sim --seed {self.seed}{more} --trace"

    def text(self) -> str:
        if self.ok:
            return f"seed {self.seed}: {self.jobs} jobs, {self.steps} steps in {self.seconds:.1f} s, all well"
        lines = "\n".join(self.lines)
        return (
            f"seed {self.seed} violates '{self.invariant}' after {self.seconds:.4f} s, step {self.steps}\n"
            f"  {self.message}\n{lines}\nreplay: {self.command}"
        )


def simulate(
    seed: int,
    parts: Parts = REAL,
    *,
    plan: Plan | None = None,
    audit_every: int = AUDIT_EVERY,
    keep_trace: bool = False,
) -> Report:
    """Run one seed. The same arguments always give the same report."""
    plan = plan or draw(seed)
    loop = VirtualLoop(plan.seed)
    stage = Stage(plan, loop, parts, audit_every)
    violation: Violation | None = None
    loop.set_exception_handler(lambda _, told: stage.fail(Violation("raised", _told(told))))
    log = _Log(stage)
    try:
        loop.create_task(stage.play(), name="stage")
        loop.run_until_complete(stage.done)
    except Violation as found:
        violation = found
    except Deadlock as found:
        violation = Violation("deadlock", str(found))
    finally:
        log.close()
        loop.bury()
    return _report(plan, stage, violation, keep_trace)


def _told(context: dict[str, Any]) -> str:
    return f"{context['message']}: {context.get('exception')!r}"


class _Log(logging.Handler):
    """Collects errors that worker code logs, which count as failures; other lines are dropped."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(logging.ERROR)
        self._stage, self._logger = stage, logging.getLogger("dray.worker")
        self._before = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._stage.fail(Violation("raised", f"{record.getMessage()}: {record.exc_info[1]!r}"))

    def close(self) -> None:
        self._logger.removeHandler(self)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)  # loggers remember which levels are off until this is called
        super().close()


def _report(plan: Plan, stage: Stage, violation: Violation | None, keep_trace: bool) -> Report:
    report = Report(
        plan=plan,
        steps=stage.ledger.steps,
        jobs=len(stage.ledger.lives),
        seconds=stage.loop.time(),
        digest=stage.trace.digest() if keep_trace or violation else "",
        trace=tuple(map(line_to_text, stage.trace.lines)) if keep_trace else (),
    )
    if violation is None:
        return report
    lines = tuple(stage.trace.about(violation.job))
    return replace(report, invariant=violation.invariant, message=violation.message, lines=lines)


def shrink(report: Report, parts: Parts = REAL, seconds: float = SHRINK_SECONDS) -> Report:
    """The smallest plan found within these seconds of real time that violates the same invariant."""
    deadline = time.monotonic() + seconds
    best = simulate(report.seed, parts, plan=report.plan, audit_every=1)
    best = best if best.invariant == report.invariant else report
    better = True
    while better and time.monotonic() < deadline:
        better = False
        for plan in smaller(best.plan):
            if time.monotonic() > deadline:
                break
            tried = simulate(plan.seed, parts, plan=plan, audit_every=4)
            if tried.invariant == best.invariant:
                best, better = tried, True
                break
    return best


@dataclass(frozen=True)
class Found:
    """The result of an exploration."""

    seeds: int
    seconds: float
    failure: Report | None = None
    shrunk: Report | None = None


def explore(
    *,
    seconds: float | None = None,
    seeds: Iterable[int] | None = None,
    parts: Parts = REAL,
    processes: int = 1,
    progress: Callable[[int, float], object] | None = None,
) -> Found:
    """Run seeds (from 0 up if none are given) until one fails, they end, or the time is over."""
    start = time.monotonic()
    deadline = None if seconds is None else start + seconds
    chunks = _chunks(iter(seeds) if seeds is not None else count())
    done, failure = 0, None
    for ran, report in _results(chunks, parts, processes, deadline):
        done += ran
        if progress is not None:
            progress(done, time.monotonic() - start)
        if report is not None:
            failure = report
            break
    small = None if failure is None else shrink(failure, parts)
    return Found(done, time.monotonic() - start, failure, small)


Result = tuple[int, Report | None]


def _chunks(seeds: Iterator[int]) -> Iterator[list[int]]:
    while chunk := list(islice(seeds, CHUNK)):
        yield chunk


def _run_chunk(seeds: list[int], parts: Parts) -> Result:
    """The number of seeds that were run, and the first failure."""
    # Each run leaves circles behind, all at once: one collection per chunk is cheaper than many within.
    gc.disable()
    try:
        for ran, seed in enumerate(seeds, 1):
            report = simulate(seed, parts)
            if not report.ok:
                return ran, report
        return len(seeds), None
    finally:
        gc.enable()
        gc.collect()


def _results(
    chunks: Iterator[list[int]],
    parts: Parts,
    processes: int,
    deadline: float | None,
) -> Iterator[Result]:
    def on_time() -> bool:
        return deadline is None or time.monotonic() < deadline

    if processes <= 1:
        for chunk in chunks:
            yield _run_chunk(chunk, parts)
            if not on_time():
                return
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[Result]] = set()
        for chunk in islice(chunks, processes * 2):
            running.add(pool.submit(_run_chunk, chunk, parts))
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
                if on_time() and (chunk := next(chunks, [])):
                    running.add(pool.submit(_run_chunk, chunk, parts))
