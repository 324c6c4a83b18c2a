"""The jobs that producers put, with every feature of the plan, and the behaviour of each when it runs."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from dray.job import Job, Overflow
from sim.plan import EPOCH, Plan
from sim.script import BOUND, CAPPED, KEYED, PACE, RATE, Script

QUEUES: Final = ("a", "b", "bounded")


class Author:
    """Makes up orders: lists of jobs that are put together."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan = plan
        self._dice = plan.dice(f"orders:{name}")
        self._name = name
        self._made = 0
        self._ids: list[str] = []
        # Of one mind per seed, or the bound of the queue would depend on who came last.
        self.overflow: Overflow = plan.dice("overflow").choice(["raise", "drop-oldest", "wait"])
        taste = plan.dice("taste")
        # Limits only meet when many jobs want the same: each seed has a queue and a task it prefers.
        self._queues = self._prefer(list(QUEUES if plan.has("bounds") else QUEUES[:2]), taste)
        self._tasks = self._prefer(self._known_tasks(), taste)

    def order(self, most: int) -> list[Job]:
        dice = self._dice
        if self._plan.has("flows") and most > 1 and dice.random() < 0.35:
            return self._flow(most)
        if self._plan.has("ids") and self._ids and dice.random() < 0.1:
            return [msgspec.structs.replace(self._job(), id=dice.choice(self._ids))]
        size = 1 if dice.random() < 0.6 else dice.randint(1, min(5, most))
        return [self._job() for _ in range(size)]

    def _flow(self, most: int) -> list[Job]:
        """A chain or a diamond; sometimes a job is put before its dependencies."""
        dice, jobs = self._dice, [self._job()]
        orphan = dice.choice(["cancel", "run", "wait"])
        if most > 3 and dice.random() < 0.5:
            left, right = self._job((jobs[0].id,), orphan), self._job((jobs[0].id,), orphan)
            jobs += [left, right, self._job((left.id, right.id), dice.choice(["cancel", "run", "wait"]))]
        else:
            for _ in range(dice.randint(1, min(3, most - 1))):
                jobs.append(self._job((jobs[-1].id,), orphan))
        if dice.random() < 0.2:
            jobs.reverse()
        return jobs

    def _id(self, queue: str) -> str:
        dice = self._dice
        self._made += 1
        if dice.random() < 0.5:
            return f"{queue}:{sum(self._name.encode()):04x}{self._made:028x}"
        self._ids.append(f"{self._name}-{self._made}")
        return self._ids[-1]

    def _job(self, waits_for: tuple[str, ...] = (), orphan: str = "cancel") -> Job:
        dice = self._dice
        queue, script = dice.choice(self._queues), self._script()
        fields: dict[str, object] = {
            "id": self._id(queue),
            "queue": queue,
            "task": dice.choice(self._tasks),
            "priority": dice.choice([1, 5, 5, 9]),
            "retries": dice.choice([0, 1, 2]),
            "max_crashes": dice.choice([1, 2]),
            "waits_for": waits_for,
            "orphan": orphan,
            "payload": script.payload(),
        }
        self._add_options(fields)
        self._add_limits(fields, script.lane)
        return Job(**fields)  # type: ignore[arg-type]  # built by name

    @staticmethod
    def _prefer(names: list[str], taste: random.Random) -> list[str]:
        return names + [taste.choice(names)] * len(names)

    def _known_tasks(self) -> list[str]:
        plan, tasks = self._plan, ["plain", "other"]
        if plan.has("limits"):
            tasks += ["capped", "capped", "keyed"]
        if plan.has("rates"):
            tasks += ["rated", "paced"]
        if plan.has("speculate"):
            tasks += ["twin"] * (len(tasks) if plan.has("stragglers") else 1)
        return tasks

    def _script(self) -> Script:
        dice = self._dice
        acts = ["succeed"] * 6 + ["fail"] * 3 + ["reject", "again"]
        if self._plan.has("crashers"):
            acts += ["crash", "crash"]
        if self._plan.has("asking"):
            acts += ["ask", "ask"]
        if self._plan.has("stragglers"):
            acts += ["straggle"] * 8
        if self._plan.has("poison"):
            acts += ["poison", "poison", "crowd", "crowd"]
        act = dice.choice(acts)
        seconds = dice.choice([0.0, 0.01, 0.1, 0.5, 2.0]) if dice.random() < 0.65 else dice.uniform(3, 25)
        if act == "fail" and dice.random() < 0.5:
            seconds += 2.0
        return Script(act, seconds, dice.randint(1, 3), dice.random() < 0.3, dice.choice(["x", "y"]))

    def _add_options(self, fields: dict[str, object]) -> None:
        dice, plan = self._dice, self._plan
        if plan.has("delays") and dice.random() < 0.25:
            fields["due"] = EPOCH + dice.randint(0, int(plan.horizon * 1000))
        if plan.has("ttl") and dice.random() < 0.25:
            fields["ttl"] = dice.choice([500, 3000, 20_000, 60_000])
        if plan.has("groups") and dice.random() < 0.5:
            fields["group"] = dice.choice(["red", "green", "blue"])
        if plan.has("keys") and dice.random() < 0.6:
            fields["key"] = dice.choice(["k1", "k1", "k2"])
            if dice.random() < 0.1:
                fields["key_ttl"] = dice.choice([1000, 10_000])
        if plan.has("once") and dice.random() < (0.8 if "key" in fields else 0.3):
            fields["once"] = dice.choice([5000, 20_000, 60_000])
        if plan.has("replace") and dice.random() < 0.3:
            fields["on_duplicate"] = "replace"

    def _add_limits(self, fields: dict[str, object], lane: str) -> None:
        """The options of the app's tasks."""
        match fields["task"]:
            case "capped":
                fields["max_running"] = CAPPED
            case "keyed":
                fields["max_running"], fields["running_key"] = KEYED, lane
            case "rated":
                fields["rate"] = RATE
            case "paced":
                fields["rate"], fields["rate_key"] = PACE, lane
            case "twin":
                fields["speculate"] = True
        if fields["queue"] == "bounded":
            fields["max_ready"] = BOUND
            fields["overflow"] = self.overflow
