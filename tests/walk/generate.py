"""Random calls: mostly sensible for the known state, sometimes not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from dray.broker.actions import Cancel, Ids, Retry, Speculate
from dray.broker.verbs import Beat, DocWrite, Filter, Interest, ProgressReport
from dray.job import ENVELOPE_VERSION, Error, Job, Outcome, OutcomeKind, Progress, State
from dray.policy import Retention
from walk import durable
from walk.edits import edit, query, refused
from walk.jobs import DURABLE, HOUR, IDS, MINUTE, SECOND, SESSIONS, Jobs
from walk.known_state import KnownState
from walk.script import START, Op

T = TypeVar("T")
Args = dict[str, Any]

KINDS: Final = ("schedule", "worker")
NAMES: Final = ("n1", "n 2")
WATCHERS: Final = ("w1", "w2")
QUIET: Final = "quiet"
"""A queue in which sessions sleep."""

WEIGHTS: Final = {
    "put": 24,
    "take": 16,
    "wait_take": 5,
    "settle": 20,
    "renew": 6,
    "release": 2,
    "sweep": 6,
    "edit": 13,
    "get": 4,
    "find": 2,
    "queues": 1,
    "doc": 4,
    "docs": 1,
    "events": 2,
    "wait": 3,
    "asleep": 6,
    "check": 6,
    "refused": 2,
    "memo": 12,
    "send": 6,
    "recall": 1,
    "mailbox": 2,
    "tally": 2,
}

ASLEEP: Final = (State.WAITING, State.SCHEDULED, State.RETRYING)
PACES: Final = ((70, 27, 2, 0.3, 0.1, 1), (55, 30, 10, 2, 0.7, 2), (40, 20, 25, 10, 3, 2))
"""Weights of pauses: none, milliseconds, seconds, minutes, hours, a step back."""


class Options(msgspec.Struct, frozen=True):
    """Options of a walk."""

    steps: int = 60
    repeats: float = 0.08
    """Share of calls that are made twice."""
    backwards: bool = True
    """The clock may go back a little."""
    floods: float = 0.0003
    """Share of puts with more jobs than a single step handles."""
    durable: float = 0.4
    """Share of walks of durable jobs and flows mainly; 0: there are none in the others either."""


class Generator:
    """The calls of one walk."""

    def __init__(self, rng: Random, view: KnownState, options: Options) -> None:
        self.rng, self.view, self.options = rng, view, options
        self.jobs = Jobs(rng, options.durable)
        self.now = START
        self.retention = Retention(
            result_ttl=rng.choice((0, MINUTE, HOUR)),
            error_ttl=rng.choice((MINUTE, 2 * HOUR)),
            done_ttl=rng.choice((10 * SECOND, 10 * MINUTE, 24 * HOUR)),
            dead_ttl=rng.choice((None, 5 * MINUTE)),
        )
        self.hand_over = True
        """The brokers hand jobs over to sleepers."""
        self._awaited: list[str] = []
        """Jobs for which one of the quiet queue waits."""
        self._pace = rng.choice(PACES)
        self._verbs = list(WEIGHTS)
        self._weights = [weight * rng.choice((0.5, 1, 1, 2)) for weight in WEIGHTS.values()]

    def next(self) -> Op:
        rng = self.rng
        self._pass_time()
        session = rng.choice(SESSIONS)
        verb = self._verb(session)
        make: Callable[[str], Args] = getattr(self, f"_{verb}")
        # Work that is there before a take is not there any more before its repetition.
        repeats = verb not in ("wait_take", "asleep") and rng.random() < self.options.repeats
        return Op(verb, make(session), self.now, 1 + repeats, rng.random() < 0.1)

    def _verb(self, session: str) -> str:
        """A random verb, mostly one that is possible now."""
        verb = self.rng.choices(self._verbs, self._weights)[0]
        if verb == "asleep" and not self.hand_over:
            verb = "put"
        if verb in ("put", "asleep") and self._crowded():
            verb = "take"
        if verb in durable.VERBS and not self.jobs.features & DURABLE:
            verb = "settle"
        if self.rng.random() < 0.1:
            return verb
        if verb in ("settle", "memo") and not any(self.view.held.values()):
            verb = "take"
        if verb in ("take", "wait_take", "asleep") and self.view.alive.get(session, 0) <= self.now:
            verb = "renew"
        return verb

    def _crowded(self) -> bool:
        """Of more than 50 ready jobs a broker may only estimate how old the oldest is."""
        return sum(not state.finished for state in self.view.ids.values()) > 44

    def ending(self) -> list[Op]:
        """Take jobs to show the hidden order of jobs and state of limits."""
        beat = Beat("last", HOUR)
        args = {"session": "last", "request": 0, "filter": Filter(), "want": 50}
        ops = [Op("check", {"mail": True}, self.now), Op("renew", {"beats": (beat,)}, self.now)]
        for wait in (0, 2 * SECOND, 10 * MINUTE):
            self.now += wait
            ops.append(Op("take", args | {"queues": self.jobs.queues}, self.now))
        return [*ops, Op("sweep", {"limit": 1000, "lapse": True}, self.now), Op("check", {}, self.now)]

    def _pass_time(self) -> None:
        rng = self.rng
        steps = (0, rng.randint(1, 999), rng.randint(1, 60) * SECOND, rng.randint(1, 30) * MINUTE)
        longest = (rng.randint(1, 30) * HOUR, -rng.randint(1, 50))
        step = rng.choices((*steps, *longest), self._pace)[0]
        if step > 0 or self.options.backwards:
            self.now += step

    def _some(self, choices: tuple[T, ...] | list[T], most: int = 3) -> tuple[T, ...]:
        return tuple(self.rng.sample(choices, min(len(choices), self.rng.randint(1, most))))

    def _known(self) -> list[str]:
        """Ids of existing jobs, and sometimes of none."""
        known = list(self.view.ids)[-30:]
        return known if known and self.rng.random() < 0.95 else [*known, *IDS]

    # put

    def _put(self, session: str) -> Args:
        rng = self.rng
        if rng.random() < self.options.floods and "flow" not in self.jobs.features:
            return self._flood()
        if "flow" in self.jobs.features and rng.random() < 0.3:
            return {"jobs": self.jobs.flow()}
        often = (1, 20, 20, 20, 20) if self.jobs.everyday else (1, 60, 20, 12, 7)
        size = rng.choices((0, 1, 2, 3, 6), often)[0]
        jobs = [self._job() for _ in range(size)]
        args: Args = {"jobs": tuple(jobs)}
        if rng.random() < 0.06:
            args["when"] = DocWrite(**self._write())
            queue = rng.choice(self.jobs.queues)
            args["jobs"] = tuple(job for job in jobs if job.queue == queue)
        if rng.random() < 0.03:
            args["durability"] = rng.choice(("normal", "full"))
        return args

    def _job(self) -> Job:
        return self.jobs.new(self.now, list(self.view.ids)[-12:])

    def _flood(self) -> Args:
        job = replace(self._job(), max_ready=None, on_duplicate="return")
        return {"jobs": (job,), "copies": self.rng.choice((130, 1010))}

    # take and settle

    def _some_queues(self) -> tuple[str, ...]:
        queues = self.jobs.queues
        return self._some(queues) if self.rng.random() < 0.5 else queues

    def _filter(self) -> Filter:
        rng = self.rng
        if self.jobs.woven or rng.random() < 0.6:
            return Filter()
        return Filter(
            tasks=frozenset(self._some(self.jobs.tasks)) if rng.random() < 0.5 else None,
            priorities=frozenset(self._some((0, 1, 5, 9))) if rng.random() < 0.4 else None,
            version=rng.choice((ENVELOPE_VERSION, ENVELOPE_VERSION, 0)),
        )

    def _take(self, session: str) -> Args:
        rng = self.rng
        want = rng.choices((0, 1, 2, 3, 5, 100), (1, 6, 5, 4, 4, 1))[0]
        request = rng.choices((0, -1, -2), (90, 7, 3))[0]
        return {
            "session": session,
            "request": request,
            "queues": self._some_queues(),
            "filter": self._filter(),
            "want": want,
            "share": rng.choice((None, None, 1, 2)),
        }

    def _wait_take(self, session: str) -> Args:
        return self._take(session) | {"request": 0, "want": self.rng.randint(1, 5)}

    def _settle(self, session: str) -> Args:
        rng = self.rng
        holders = [name for name, held in self.view.held.items() if held]
        if holders and rng.random() < 0.9:
            session = rng.choice(holders)
        held = list(self.view.held.get(session, ()))
        ids = held if held and rng.random() < 0.92 else self._known()
        chosen = list(self._some(ids))
        if chosen and rng.random() < 0.06:
            chosen.append(chosen[0])
        if rng.random() < 0.04:
            session = rng.choice(SESSIONS)
        return {"session": session, "outcomes": tuple(self._outcome(id) for id in chosen)}

    def _outcome(self, id: str) -> Outcome:
        rng = self.rng
        often = (90, 5, 1, 1, 2, 1) if self.jobs.everyday else (8, 9, 3, 2, 3, 3)
        suspended = 14 if "durable" in self.jobs.features else 0
        kind = rng.choices(tuple(OutcomeKind), (*often, suspended))[0]
        broken = 0.05 if self.jobs.everyday else 0.4
        at = self.now + rng.choice((-5, 0, 100, 5 * SECOND, 5 * MINUTE, HOUR)) if rng.random() < 0.8 else None
        return Outcome(
            id=id,
            run=self._run(),
            kind=kind,
            at=at if kind is OutcomeKind.RETRY else None,
            result=rng.choice((None, b"", b"\x00r\xff")) if kind is OutcomeKind.SUCCEEDED else None,
            error=Error("E", "it broke", "line 1\n") if rng.random() < broken else None,
            reason=rng.choice((None, "no way"))
            if kind in (OutcomeKind.DEAD, OutcomeKind.CANCELLED)
            else None,
            together=rng.choice((1, 1, 2, 3, 200, 5000)) if kind is OutcomeKind.CRASHED else 1,
            suspend=durable.suspension(rng, [one for one in self._known() if one != id], self.now)
            if kind is OutcomeKind.SUSPENDED
            else None,
        )

    def _run(self) -> int:
        return self.rng.choices((-1, -2, 0, 1, 9), (88, 6, 1, 3, 1))[0]

    # durable jobs

    def _memo(self, session: str) -> Args:
        rng = self.rng
        holders = [name for name, held in self.view.held.items() if held]
        if holders and rng.random() < 0.9:
            session = rng.choice(holders)
        ids = list(self.view.held.get(session, ())) or self._known()
        writes = (durable.write(rng, id, self._run(), self._known()) for id in self._some(ids, 2))
        return {"session": session, "writes": tuple(writes)}

    def _send(self, session: str) -> Args:
        waiting = [id for id, state in self.view.ids.items() if state in (State.WAITING, State.RUNNING)]
        ids = waiting if waiting and self.rng.random() < 0.7 else self._known()
        return durable.message(self.rng, self.rng.choice(ids))

    def _recall(self, session: str) -> Args:
        position, limit = self.rng.choice((0, 0, 1, 5)), self.rng.choice((1, 2, 1000))
        return {"id": self.rng.choice(self._known()), "position": position, "limit": limit}

    def _mailbox(self, session: str) -> Args:
        name, after = self.rng.choice(durable.EVENTS), self.rng.choice((0, 0, 1, 3))
        return {"id": self.rng.choice(self._known()), "name": name, "after": after}

    def _tally(self, session: str) -> Args:
        return {"owner": self.rng.choice(self.jobs.owners), "queues": self._some_queues()}

    # sessions and upkeep

    def _renew(self, session: str) -> Args:
        rng = self.rng
        sessions = [session]
        if rng.random() < 0.3:
            sessions += self._some(SESSIONS)
        return {"beats": tuple(self._beat(name) for name in sessions)}

    def _beat(self, session: str) -> Beat:
        rng = self.rng
        lease = rng.choice((SECOND, 20 * SECOND, 20 * SECOND, 10 * MINUTE, 3 * HOUR))
        ids = list(self.view.held.get(session, ())) or self._known()
        reports = self._some(ids, 2) if rng.random() < 0.3 else ()
        done = Progress(rng.randint(0, 9) / 2, rng.choice((None, 10.0)), rng.choice(("", "step\n'1'")))
        return Beat(session, lease, tuple(ProgressReport(id, self._run(), done) for id in reports))

    def _release(self, session: str) -> Args:
        rng = self.rng
        held = list(self.view.held.get(session, ()))
        blamed = tuple((id, self._run()) for id in self._some(held)) if rng.random() < 0.5 else ()
        return {"session": session, "suspect": rng.random() < 0.5, "blamed": blamed}

    def _sweep(self, session: str) -> Args:
        limit = self.rng.choices((1000, 1, 2, 5), (8, 1, 1, 1))[0]
        if self.jobs.features & DURABLE:
            limit = 1000  # cut off, messages of several queues come in an order that is left open
        return {"limit": limit, "lapse": self.rng.random() < 0.8}

    # by hand

    def _edit(self, session: str) -> Args:
        held = [id for ids in self.view.held.values() for id in ids]
        if held and "speculate" in self.jobs.features and self.rng.random() < 0.3:
            return {
                "selection": Ids(self._some(held)),
                "action": Speculate(self.rng.choice((None, None, 1, 2))),
            }
        if self.jobs.woven and self.rng.random() < 0.2:
            asleep = [id for id, state in self.view.ids.items() if state in ASLEEP]
            return {"selection": Ids(self._some(asleep or [*IDS])), "action": Cancel()}
        ended = [id for id, state in self.view.ids.items() if state.finished]
        if ended and "flow" in self.jobs.features and self.rng.random() < 0.4:
            return {"selection": Ids(self._some(ended)), "action": Retry()}
        return edit(self.rng, self.jobs, self._of_one_state(), self.now)

    def _of_one_state(self) -> list[str]:
        """Mostly ids of jobs in the same state, so that rare states get their share."""
        if not self.view.ids or self.rng.random() < 0.4:
            return self._known()
        state = self.rng.choice(sorted(set(self.view.ids.values())))
        return [id for id, now in self.view.ids.items() if now is state]

    def _refused(self, session: str) -> Args:
        return refused(self.rng, self._known())

    def _get(self, session: str) -> Args:
        unfinished = [id for id, state in self.view.ids.items() if not state.finished]
        ids = unfinished if unfinished and self.rng.random() < 0.7 else self._known()
        return {"ids": self._some(ids), "watch": self.rng.choice((None, *WATCHERS))}

    def _find(self, session: str) -> Args:
        return {
            "query": query(self.rng, self.jobs, self._known(), self.now),
            "limit": self.rng.choice((1, 3, 100, 1000)),
            "newest": self.rng.random() < 0.5,
        }

    def _queues(self, session: str) -> Args:
        return {}

    # documents, the feed, waiting

    def _write(self) -> Args:
        rng = self.rng
        return {
            "kind": rng.choice(KINDS),
            "name": rng.choice(NAMES),
            "value": rng.choice((b"1", b"\x00\xff", b"", None)),
            "expect_version": rng.choices((None, 0, -1, -2, 7), (5, 3, 4, 1, 1))[0],
            "ttl": rng.choice((None, None, SECOND, 5 * MINUTE)),
        }

    def _doc(self, session: str) -> Args:
        args = self._write()
        return args if self.rng.random() < 0.75 else {"kind": args["kind"], "name": args["name"]}

    def _docs(self, session: str) -> Args:
        return {"kind": self.rng.choice(KINDS)}

    def _events(self, session: str) -> Args:
        origin = self.rng.choices(("own", "oldest", "next", "beyond"), (6, 1, 1, 1))[0]
        return {"origin": origin, "limit": self.rng.choice((1, 2, 1000))}

    def _asleep(self, session: str) -> Args:
        """A call that may make one job of a quiet queue ready, while a session sleeps there."""
        rng, began = self.rng, self.now
        verb = rng.choices(("put", "settle", "sweep", "take"), (6, 2, 2, 2))[0]
        self.now += rng.choice((0, 0, SECOND, 5 * SECOND))
        args = getattr(self, f"_{verb}")(rng.choice([name for name in SESSIONS if name != session]))
        if verb == "put":
            args = {"jobs": (self._quiet_job(),)}
        elif verb == "settle":
            args = self._end_of_awaited() or args
        elif verb == "take":
            args |= {"queues": (QUIET,), "want": 0, "request": 0}
        then = Op(verb, args, self.now)
        self.now, filter = began, self._filter() if rng.random() < 0.1 else Filter()
        return {"session": session, "request": 0, "queues": (QUIET,), "filter": filter, "then": then}

    def _quiet_job(self) -> Job:
        rng = self.rng
        job: Job = self._job()
        if ":" in job.id:
            job = replace(job, id=self.jobs.generated(QUIET), queue=QUIET)
        if rng.random() < 0.7:
            job = Job(id=job.id, task=rng.choice(self.jobs.tasks), payload=job.payload)
        held = [id for ids in self.view.held.values() for id in ids]
        if held and rng.random() < 0.3:
            self._awaited.append(rng.choice(held))
            return replace(job, queue=QUIET, waits_for=(self._awaited[-1],))
        due = rng.choice((None, None, None, self.now + 3 * SECOND))
        return replace(job, queue=QUIET, due=due)

    def _end_of_awaited(self) -> Args | None:
        """The success of a job for which one of the quiet queue waits."""
        held = [(name, id) for name, ids in self.view.held.items() for id in ids if id in self._awaited]
        if not held:
            return None
        session, id = self.rng.choice(held)
        return {"session": session, "outcomes": (Outcome(id=id, run=-1, kind=OutcomeKind.SUCCEEDED),)}

    def _wait(self, session: str) -> Args:
        rng = self.rng
        interest = Interest(
            queues=self._some_queues() if rng.random() < 0.5 else (),
            filter=self._filter(),
            session=session if rng.random() < 0.5 else None,
            watcher=rng.choice((None, *WATCHERS)),
        )
        return {"interest": interest}

    def _check(self, session: str) -> Args:
        return {"mail": True} if self.rng.random() < 0.3 else {}
