"""Random jobs with few different names, so that they often share queue, key or group."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from dray.job import ENVELOPE_VERSION, Job
from walk.script import START

QUEUES: Final = ("q1", "q2", "q3")
TASKS: Final = ("t1", "t2", "t.3")
KEYS: Final = ("k1", "k2", "ключ %_")
GROUPS: Final = ("g1", "g2", "g'3")
IDS: Final = ("a", "b", "job one", "x:y")
SESSIONS: Final = ("s1", "s2", "s3")
NODES: Final = ("n1", "n[2]")
ORPHANS: Final = ("cancel", "run", "wait", "cancel", "first", "follow", "follow")
TAGS: Final = ("red", "blue")
RATES: Final = ("1/s", "2/s+2", "3/m", "60/m+3", "1/h", "5/d+2")
SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

FEATURES: Final = (
    "client_id",
    "crashes",
    "deadline",
    "due",
    "durable",
    "flow",
    "group",
    "key",
    "key_ttl",
    "max_ready",
    "max_running",
    "on_duplicate",
    "once",
    "priority",
    "rate",
    "rate_key",
    "running_key",
    "speculate",
    "ttl",
    "unusual",
    "version",
    "waits_for",
)
DURABLE: Final = frozenset({"durable", "flow"})
UNHELD: Final = frozenset({"client_id", "crashes", "deadline", "due", "key", "priority", "speculate"})
"""Features that do not keep a job from starting."""
EVERYDAY: Final = frozenset({"due", "max_running", "priority", "rate"})
"""Values for which brokers have fast paths."""


class Jobs:
    """Makes jobs. Each walk uses some of the features often rather than all of them a little.

    Some walks are of everyday jobs only, many together: else a broker's short ways would hardly be taken.
    """

    def __init__(self, rng: Random, durable: float) -> None:
        self.rng = rng
        self.everyday = rng.random() < 0.3 and durable < 1
        self.features = frozenset(
            f for f in FEATURES if rng.random() < 0.5 and (f in EVERYDAY or not self.everyday)
        )
        self.woven = not self.everyday and rng.random() < durable
        """Mainly durable jobs and flows, which little keeps from getting far."""
        if not durable:
            self.features -= DURABLE
        if self.woven:
            self.features = DURABLE | {"waits_for"} | (self.features & UNHELD)
        self.share = rng.choice((0.15, 0.35, 0.6))
        self.queues = QUEUES[: rng.randint(1, 3)]
        self.tasks = TASKS[: rng.randint(1, 3)]
        self.owners: list[str] = list(IDS)
        self._count = 0

    def generated(self, queue: str, ahead: int = 0) -> str:
        return f"{queue}:{self._count + ahead:032x}"

    def new(self, now: int, known: list[str]) -> Job:
        """A job, mostly with an id that was never used."""
        rng, queue = self.rng, self.rng.choice(self.queues)
        self._count += 1
        id = self.generated(queue)
        if known and rng.random() < (0.01 if self.everyday else 0.12):
            id = rng.choice(known)
            queue = id.rpartition(":")[0] if id[-33:-32] == ":" else queue
        elif self._has("client_id"):
            id = rng.choice(IDS)
        fields: dict[str, Any] = {"id": id, "task": rng.choice(self.tasks), "queue": queue}
        for part in (self._times, self._uniqueness, self._limits, self._rest):
            fields |= part(now)
        if self._has("waits_for"):
            fields["waits_for"] = self._waits_for(id, known)
            fields["orphan"] = rng.choice(ORPHANS if "flow" in self.features else ORPHANS[:3])
            if rng.random() < 0.2:
                fields["due"] = now + rng.choice((SECOND, 10 * MINUTE))
        if self._has("flow"):
            fields |= self._flow(id, known, fields)
        if self._has("version"):
            # What a newer dray wrote is opaque: whether it can be found by these is left open.
            opaque = dict.fromkeys(("key", "key_ttl", "group", "parent")) | {"tags": (), "node": ""}
            fields |= opaque | {"version": ENVELOPE_VERSION + 1}
        return Job(**fields)

    def _has(self, feature: str) -> bool:
        return feature in self.features and self.rng.random() < self.share

    def _times(self, now: int) -> dict[str, Any]:
        rng, fields = self.rng, dict[str, Any]()
        if self._has("due"):
            fields["due"] = max(0, now + rng.choice((-HOUR, -1, 0, 1, 500, 3 * SECOND, 2 * MINUTE, 5 * HOUR)))
        if self._has("ttl"):
            fields["ttl"] = rng.choice((1, 400, 5 * SECOND, 10 * MINUTE))
        if self._has("deadline"):
            fields["deadline"] = rng.choice((600, 20 * SECOND, 2 * MINUTE, 15 * MINUTE))
        if rng.random() < 0.05:
            fields["created"] = START - rng.randint(0, HOUR)
        if not self.everyday and rng.random() < 0.1:
            fields["result_ttl"] = rng.choice((0, 10 * SECOND, 3 * HOUR))
        return fields

    def _uniqueness(self, now: int) -> dict[str, Any]:
        rng, fields = self.rng, dict[str, Any]()
        if self._has("key"):
            fields["key"] = rng.choice(KEYS)
            if self._has("key_ttl"):
                fields["key_ttl"] = rng.choice((1, 2 * SECOND, 10 * MINUTE))
        if self._has("once"):
            fields["once"] = rng.choice((1, 30 * SECOND, 20 * MINUTE, 6 * HOUR))
        if self._has("on_duplicate"):
            fields["on_duplicate"] = rng.choice(("raise", "replace", "replace"))
        return fields

    def _limits(self, now: int) -> dict[str, Any]:
        rng, fields = self.rng, dict[str, Any]()
        if self._has("group"):
            fields["group"] = rng.choice(GROUPS)
        if self._has("rate"):
            fields["rate"] = rng.choice(RATES)
        if self._has("rate_key"):
            fields |= {"rate_key": rng.choice(KEYS), "rate": rng.choice((*RATES, None))}
        if self._has("max_running"):
            fields["max_running"] = rng.randint(1, 3)
        if self._has("running_key"):
            fields |= {"running_key": rng.choice(KEYS), "max_running": rng.choice((1, 2, None))}
        if self._has("max_ready"):
            fields["max_ready"] = rng.randint(1, 4)
            fields["overflow"] = rng.choice(("raise", "wait", "drop-oldest", "drop-oldest"))
        return fields

    def _rest(self, now: int) -> dict[str, Any]:
        rng, fields = self.rng, dict[str, Any]()
        if self._has("priority"):
            fields["priority"] = rng.choice((0, 1, 5, 9, 9))
        if self._has("crashes"):
            fields |= {"max_crashes": rng.randint(1, 2), "retries": rng.randint(0, 2)}
        if self._has("speculate"):
            fields["speculate"] = True
        if rng.random() < 0.15:
            fields["tags"] = tuple(rng.sample(TAGS, rng.randint(1, 2)))
        if self._has("unusual"):
            fields |= self._unusual()
        return fields

    def _unusual(self) -> dict[str, Any]:
        """Fields that a broker only stores; they must come back unchanged."""
        every: dict[str, Any] = {
            "payload": bytes((0, 255, 39, 10)),
            "headers": {"traceparent": "00-1", "é": "\x00\n"},
            "description": "50 % of 'it'\n",
            "backoff": "fixed:5s",
            "timeout": 30 * SECOND,
            "isolate": "process",
            "parent": self.rng.choice(IDS),
        }
        names = self.rng.sample(sorted(every), 2)
        return {name: every[name] for name in names}

    def flow(self) -> tuple[Job, ...]:
        """The job of a small flow, and its nodes: one waits for the other."""
        rng, task = self.rng, self.rng.choice(self.tasks)
        queues = [rng.choice(self.queues) for _ in range(3)]
        first, last, flow = (self.generated(queue, ahead) for ahead, queue in enumerate(queues, 1))
        self._count += 3
        self.owners = [*self.owners, flow][-4:]
        jobs = (
            Job(id=flow, task=task, queue=queues[2], waits_for=(last,), orphan="follow"),
            Job(id=last, task=task, queue=queues[1], waits_for=(first,), owner=flow, node="last"),
            Job(id=first, task=task, queue=queues[0], owner=flow, node="first"),
        )
        return jobs if rng.random() < 0.7 else jobs[::-1]

    def _flow(self, id: str, known: list[str], fields: dict[str, Any]) -> dict[str, Any]:
        """An owner, and mostly a name in its flow."""
        rng = self.rng
        owner = rng.choice([one for one in (*known, *self.owners, *IDS[:2]) if one != id])
        self.owners = [*self.owners, owner][-4:]
        node = rng.choice(("", *NODES, *NODES)) if fields.get("on_duplicate") != "replace" else ""
        return {"owner": owner, "node": node}

    def _waits_for(self, id: str, known: list[str]) -> tuple[str, ...]:
        """Ids of existing jobs, and sometimes of one that may be put later."""
        rng = self.rng
        ids = rng.sample(known, min(len(known), rng.randint(0, 2)))
        if rng.random() < (0.05 if self.woven else 0.4):
            ids.append(self.generated(rng.choice(self.queues), rng.randint(1, 3)))
        if rng.random() < 0.03:
            ids.append(rng.choice(IDS))
        return tuple(other for other in dict.fromkeys(ids) if other != id)
