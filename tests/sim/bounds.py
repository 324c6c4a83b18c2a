"""Checks pauses, limits and rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dray.broker.actions import Pause, Resume, Scope, SetLimits
from dray.broker.rules import limits_after, matches
from dray.broker.verbs import Filter, Limits
from dray.job import Job, State
from dray.policy import Rate
from sim.lives import Life, Violation

STARTS_KEPT = 40
"""How many starts per rate are looked back at."""

Name = tuple[str, str, str]
"""(what, queue, which): ("task", "a", "capped")."""


class Bounds:
    def __init__(self) -> None:
        self._paused: set[Scope] = set()
        self._limits: dict[Scope, Limits] = {}
        self._starts: dict[Name, list[int]] = {}

    def set(self, scope: Scope, action: Pause | Resume | SetLimits) -> None:
        if isinstance(action, Pause):
            self._paused.add(scope)
        elif isinstance(action, Resume):
            self._paused.discard(scope)
        else:
            self._limits[scope] = limits_after(self.limits(scope), action)
            # A new rate says nothing about starts before it.
            self._starts = {name: starts for name, starts in self._starts.items() if name[1] != scope.queue}

    def limits(self, scope: Scope) -> Limits:
        return self._limits.get(scope, Limits())

    def paused(self, job: Job) -> bool:
        return Scope(job.queue) in self._paused or Scope(job.queue, job.task) in self._paused

    def max_ready(self, job: Job) -> int | None:
        bound = self.limits(Scope(job.queue)).max_ready
        return job.max_ready if bound is None else bound

    def drops(self, job: Job) -> bool:
        return (self.limits(Scope(job.queue)).overflow or job.overflow) == "drop-oldest"

    def slots(self, job: Job) -> Iterator[tuple[Name, int]]:
        """Every bound on jobs running at the same time that this one is under."""
        queue = self.limits(Scope(job.queue))
        task = self.limits(Scope(job.queue, job.task)).max_running
        if task is None and job.running_key is None:
            task = job.max_running
        for name, most in (
            (("queue", job.queue, ""), queue.max_running),
            (("task", job.queue, job.task), task),
            (("group", job.queue, job.group or ""), queue.group_running if job.group else None),
            (("key", job.queue, job.running_key or ""), job.max_running if job.running_key else None),
        ):
            if most is not None:
                yield name, most

    def rates(self, job: Job) -> Iterator[tuple[Name, Rate]]:
        task = self.limits(Scope(job.queue, job.task)).rate
        if task is None and job.rate_key is None:
            task = job.rate
        for name, rate in (
            (("queue", job.queue, ""), self.limits(Scope(job.queue)).rate),
            (("task", job.queue, job.task), task),
            (("key", job.queue, job.rate_key or ""), job.rate if job.rate_key else None),
        ):
            if rate is not None:
                yield name, Rate.parse(rate)

    def limited(self, job: Job) -> bool:
        """A pause, a limit or a rate may hold it back."""
        return self.paused(job) or any(True for _ in self.slots(job)) or any(True for _ in self.rates(job))

    def check_start(self, life: Life, running: Iterable[Life], now: int) -> None:
        """The job was started just now: no pause, no limit and no rate forbade it."""
        job = life.job
        if self.paused(job):
            raise Violation(
                "pause", f"{job.id} was started although {job.queue}/{job.task} is paused", job.id
            )
        held = list(running)
        for name, most in self.slots(job):
            count = sum(len(other.runs) for other in held if counts(name, other.job))
            if count > most:
                raise Violation(
                    "max_running", f"{count} runs of {_say(name)}, at most {most} allowed", job.id
                )
        for name, rate in self.rates(job):
            self._check_rate(job, name, rate, now)

    def _check_rate(self, job: Job, name: Name, rate: Rate, now: int) -> None:
        starts = self._starts.setdefault(name, [])
        starts.append(now)
        del starts[:-STARTS_KEPT]
        for back, since in enumerate(reversed(starts), 1):
            # In whole microseconds: `back` starts since then, paid at one interval each, plus the burst.
            if (back - rate.burst) * rate.interval > (now - since) * 1000:
                raise Violation("rate", f"{back} starts of {_say(name)} in {now - since} ms: {rate}", job.id)

    def runnable(self, life: Life, filter: Filter, running: list[Life], now: int) -> bool:
        """Certainly free to start, by this filter; False where a rate is involved."""
        job = life.job
        return (
            life.state is State.READY
            and matches(filter, job.task, job.priority, job.version)
            and (life.expires is None or now < life.expires)
            and not self.paused(job)
            and next(self.rates(job), None) is None
            and all(
                sum(len(other.runs) for other in running if counts(name, other.job)) < most
                for name, most in self.slots(job)
            )
        )


def counts(name: Name, job: Job) -> bool:
    what, queue, which = name
    if job.queue != queue:
        return False
    return which == {"queue": "", "task": job.task, "group": job.group, "key": job.running_key}[what]


def _say(name: Name) -> str:
    what, queue, which = name
    return f"{what} {which} in {queue}" if which else f"queue {queue}"
