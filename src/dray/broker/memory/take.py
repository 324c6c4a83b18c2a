"""The line of one queue: in which order its ready jobs are handed out, and what holds them back.

    queue
    └── class   (priority, task, version)    looked at by priority, then by the age of its next job
        └── group                            groups of a class take turns
            └── lane   (rate key, running key)     the lane with the oldest head first
                └── jobs, by their number in line

A limit of the queue or the task holds back whole classes; a limit of a group or a key holds back lanes. What
is held back is stepped over, so it never stands in the way of what can run.

This is the reference: written to be read, not for speed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from dray.broker.actions import Pause
from dray.broker.rules import matches
from dray.broker.verbs import Filter, Limits, Usage
from dray.job import Job
from dray.policy import Rate

ClassKey = tuple[int, str, int]
LaneKey = tuple[str | None, str | None]
Bucket = tuple[str, str]
"""The scope of a rate: ("queue", ""), ("task", name), ("key", rate key); ("put", "") for accepted jobs."""


class Sorted:
    """Ids in the order of a number; equal numbers in the order of arrival."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, str]] = []
        self._at: dict[str, tuple[int, int, str]] = {}

    def add(self, position: int, tie: int, id: str) -> None:
        item = self._at[id] = (position, tie, id)
        insort(self._items, item)

    def remove(self, id: str) -> None:
        del self._items[bisect_left(self._items, self._at.pop(id))]

    def head(self) -> str | None:
        return self._items[0][2] if self._items else None

    def position(self, id: str) -> int:
        return self._at[id][0]

    def first(self) -> int | None:
        return self._items[0][0] if self._items else None

    def until(self, position: int, limit: int) -> list[str]:
        """Up to `limit` ids whose number is not beyond `position`."""
        return [id for number, _, id in self._items[:limit] if number <= position]

    def __contains__(self, id: str) -> bool:
        return id in self._at

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[str]:
        return (id for _, _, id in self._items)


class Lane:
    """Jobs of one group that share their keys: first come, first served."""

    def __init__(self) -> None:
        self.jobs = Sorted()
        self.rate: str | None = None
        self.max_running: int | None = None

    def declare(self, job: Job) -> None:
        self.rate = job.rate if job.rate_key is not None else None
        self.max_running = job.max_running if job.running_key is not None else None


class Group:
    """Jobs of one class that belong together, a tenant's say. None is a group like any other."""

    def __init__(self, name: str | None, turn: int) -> None:
        self.name = name
        self.turn = turn
        self.lanes: dict[LaneKey, Lane] = {}


class Class:
    """Jobs of one task, priority and version. Its limits are those the last job to join declared."""

    def __init__(self) -> None:
        self.groups: dict[str | None, Group] = {}
        self.rate: str | None = None
        self.max_running: int | None = None

    def declare(self, job: Job) -> None:
        """A limit by key is the lane's affair and says nothing about the task as a whole."""
        if job.rate_key is None:
            self.rate = job.rate
        if job.running_key is None:
            self.max_running = job.max_running

    def ring(self) -> list[Group]:
        """The groups, the one whose turn it is first."""
        return sorted(self.groups.values(), key=lambda group: group.turn)

    def lanes(self) -> list[Lane]:
        return [lane for group in self.groups.values() for lane in group.lanes.values()]


class Line:
    """All ready jobs of a queue.

    `running(what, name)` counts the runs held right now by ("queue", ""), ("task", t), ("group", g) or
    ("key", k): running jobs are counted from their runs, so there is no counter that could leak.
    """

    def __init__(self, running: Callable[[str, str], int]) -> None:
        self.classes: dict[ClassKey, Class] = {}
        self.paused: Pause | None = None
        self.paused_tasks: dict[str, Pause] = {}
        self.limits = Limits()
        self.task_limits: dict[str, Limits] = {}
        self.rates: dict[Bucket, int] = {}
        """Per bucket, the GCRA time (µs) up to which its rate is used."""
        self._running = running
        self._numbers = 0
        self._turns = 0

    def number(self) -> int:
        """The next number in line."""
        self._numbers += 1
        return self._numbers

    def join(self, job: Job, number: int) -> None:
        class_ = self.classes.setdefault(class_key(job), Class())
        class_.declare(job)
        if job.group not in class_.groups:
            class_.groups[job.group] = Group(job.group, self._next_turn())
        lane = class_.groups[job.group].lanes.setdefault(lane_key(job), Lane())
        lane.declare(job)
        lane.jobs.add(number, 0, job.id)

    def leave(self, job: Job) -> None:
        """Remove the job, and its lane, group and class once they are empty."""
        class_ = self.classes[class_key(job)]
        group = class_.groups[job.group]
        group.lanes[lane_key(job)].jobs.remove(job.id)
        if not group.lanes[lane_key(job)].jobs:
            del group.lanes[lane_key(job)]
        if not group.lanes:
            del class_.groups[job.group]
        if not class_.groups:
            del self.classes[class_key(job)]

    def open_classes(self, filter: Filter, now: int) -> list[ClassKey]:
        """The classes that `filter` lets run and of which a lane is free, in the order to look at them."""
        if self.paused:
            return []
        found = []
        for key in self.classes:
            priority, task, version = key
            if not matches(filter, task, priority, version) or task in self.paused_tasks:
                continue
            free = self.next_lane(key, now)
            if free is not None:
                found.append((priority, free[1].jobs.first(), key))
        return [key for _, _, key in sorted(found)]

    def next_lane(self, key: ClassKey, now: int) -> tuple[Group, Lane] | None:
        """The group whose turn it is and its lane with the oldest head, stepping over what is held back."""
        for group in self.classes[key].ring() if key in self.classes else ():
            lanes = sorted(group.lanes.items(), key=lambda item: item[1].jobs.first() or 0)
            for lane_key, lane in lanes:
                if self.lane_room(group.name, lane_key, lane, now):
                    return group, lane
        return None

    def took_turn(self, group: Group) -> None:
        group.turn = self._next_turn()

    def class_room(self, task: str, declared: Class, now: int) -> int:
        """Jobs of a class that the limits of queue and task let start now."""
        rate, most = self.task_limit(task, declared)
        return min(
            self._slots("queue", "", self.limits.max_running),
            self._slots("task", task, most),
            self._tokens(("queue", ""), self.limits.rate, now),
            self._tokens(("task", task), rate, now),
        )

    def lane_room(self, group: str | None, key: LaneKey, lane: Lane, now: int) -> int:
        """Jobs of a lane that the limits of its group and keys let start now."""
        rate_key, running_key = key
        room = _MANY
        if group is not None:
            room = min(room, self._slots("group", group, self.limits.group_running))
        if running_key is not None:
            room = min(room, self._slots("key", running_key, lane.max_running))
        if rate_key is not None:
            room = min(room, self._tokens(("key", rate_key), lane.rate, now))
        return room

    def job_room(self, job: Job, now: int) -> int:
        """The room for a second run of a running job, by the limits that the job declares itself."""
        lane, declared = Lane(), Class()
        lane.declare(job)
        declared.declare(job)
        lane_room = self.lane_room(job.group, lane_key(job), lane, now)
        return min(self.class_room(job.task, declared, now), lane_room)

    def spend(self, job: Job, declared: Class, rate: str | None, now: int) -> None:
        """Count one start against every rate that applies; `rate` is that of its rate key."""
        task_rate, _ = self.task_limit(job.task, declared)
        self._spend(("queue", ""), self.limits.rate, now)
        self._spend(("task", job.task), task_rate, now)
        if job.rate_key is not None:
            self._spend(("key", job.rate_key), rate, now)

    def accepts_in(self, now: int) -> int:
        """In how many milliseconds the queue accepts a job; 0 means now."""
        rate = self.limits.enqueue_rate
        if rate is None or self._tokens(_ACCEPTED, rate, now):
            return 0
        return max(1, Rate.parse(rate).free_at(self.rates.get(_ACCEPTED, 0), now) - now)

    def spend_accepted(self, now: int) -> None:
        """Count one accepted job."""
        self._spend(_ACCEPTED, self.limits.enqueue_rate, now)

    def usage(self, job: Job, now: int) -> Usage:
        """The use of the limits that apply to a job."""
        held = {"queue": "", "task": job.task, "group": job.group, "key": job.running_key}
        rated = {"queue": "", "task": job.task, "key": job.rate_key}
        return Usage(
            now,
            {what: self._running(what, name) for what, name in held.items() if name is not None},
            {what: self.rates.get((what, name), 0) for what, name in rated.items() if name is not None},
        )

    def task_limit(self, task: str, declared: Class) -> tuple[str | None, int | None]:
        """The operator's limits of a task where there are any, else what its jobs declare."""
        limits = self.task_limits.get(task, Limits())
        rate = limits.rate if limits.rate is not None else declared.rate
        most = limits.max_running if limits.max_running is not None else declared.max_running
        return rate, most

    def frees_at(self, filter: Filter, now: int) -> int | None:
        """The first moment at which a rate that holds back something in `filter` has room again."""
        times = []
        for (priority, task, version), class_ in self.classes.items():
            if not matches(filter, task, priority, version) or self.paused or task in self.paused_tasks:
                continue
            rate, _ = self.task_limit(task, class_)
            times += self._free(("queue", ""), self.limits.rate, now) + self._free(("task", task), rate, now)
            for group in class_.groups.values():
                for (rate_key, _), lane in group.lanes.items():
                    if rate_key is not None:
                        times += self._free(("key", rate_key), lane.rate, now)
        return min(times, default=None)

    def forget_rates(self, now: int) -> int:
        """Drop rates that lie in the past: a missing one means the same."""
        past = [bucket for bucket, tat in self.rates.items() if tat <= now * 1000]
        for bucket in past:
            del self.rates[bucket]
        return len(past)

    def oldest(self, priority: int, may_drop: Callable[[str], bool]) -> str | None:
        """The job that `drop-oldest` drops: the first in line of the least important not above `priority`."""
        waiting = [
            (-key[0], lane.jobs.position(id), id)
            for key, class_ in self.classes.items()
            if key[0] >= priority
            for lane in class_.lanes()
            for id in lane.jobs
            if may_drop(id)
        ]
        return min(waiting)[2] if waiting else None

    def __len__(self) -> int:
        return sum(len(lane.jobs) for class_ in self.classes.values() for lane in class_.lanes())

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _slots(self, what: str, name: str, most: int | None) -> int:
        return _MANY if most is None else max(0, most - self._running(what, name))

    def _tokens(self, bucket: Bucket, rate: str | None, now: int) -> int:
        return _MANY if rate is None else Rate.parse(rate).available(self.rates.get(bucket, 0), now)

    def _spend(self, bucket: Bucket, rate: str | None, now: int) -> None:
        if rate is not None:
            self.rates[bucket] = Rate.parse(rate).spend(self.rates.get(bucket, 0), now)

    def _free(self, bucket: Bucket, rate: str | None, now: int) -> list[int]:
        if rate is None or self._tokens(bucket, rate, now):
            return []
        return [Rate.parse(rate).free_at(self.rates.get(bucket, 0), now)]


_MANY = 1 << 30
_ACCEPTED: Bucket = ("put", "")


def class_key(job: Job) -> ClassKey:
    return job.priority, job.task, job.version


def lane_key(job: Job) -> LaneKey:
    return job.rate_key, job.running_key
