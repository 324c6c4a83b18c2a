"""Makes the calls of a script on one broker, through all pages and cursors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from dray.broker.actions import Edited, Query
from dray.broker.memory import MemoryBroker
from dray.broker.redis.broker import RedisBroker
from dray.broker.redis.router import command
from dray.broker.verbs import (
    Broker,
    Doc,
    DocWrite,
    Entry,
    Interest,
    NextTake,
    Ref,
    Swept,
    run_blocking,
)
from dray.errors import DrayError
from dray.job import Job, Record, State, Taken
from walk.script import Op

T = TypeVar("T")
Reply = Any
Args = dict[str, Any]

KINDS: Final = ("schedule", "worker")
WATCHERS: Final = ("w1", "w2")
PAGES_MAX: Final = 5000
NEVER_SEEN: Final = 1 << 40
SLEEP_MAX: Final = 60.0


class RuleBroken(Exception):
    """A broker broke a rule; no comparison with another broker is needed to see that."""


class ScriptedBroker:
    """One broker, and the versions and cursors that later calls refer to."""

    def __init__(self, broker: Broker, blocking: bool) -> None:
        self.broker = broker
        self._blocking = blocking
        self._versions: dict[tuple[str, str], list[int]] = {}
        self._cursor: dict[str, int] = {}
        self._checked: dict[str, int] = {}

    async def make(self, verb: str, args: Args, now: int, clock: bool) -> Reply:
        """Make one call of a script."""
        own = getattr(self, f"_{verb}", None)
        timed = args if clock else args | {"now": now}
        if own is not None:
            return await own(timed)
        return await self.run(getattr(self.broker, verb)(**timed))

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        return run_blocking(call) if self._blocking else await call

    async def close(self) -> None:
        await self.run(self.broker.close())

    # verbs that refer to versions

    async def _put(self, args: Args) -> Reply:
        args = dict(args)
        copies, when = args.pop("copies", None), args.get("when")
        if copies is not None:
            args["jobs"] = tuple(copy for job in args["jobs"][:1] for copy in copies_of(job, copies))
        if isinstance(when, DocWrite):
            version = self._version(when.kind, when.name, when.expect_version)
            args["when"] = replace(when, expect_version=version)
        return await self.run(self.broker.put(**args))

    async def _doc(self, args: Args) -> Reply:
        version = self._version(args["kind"], args["name"], args.get("expect_version"))
        return await self.run(self.broker.doc(**args | {"expect_version": version}))

    def _version(self, kind: str, name: str, expected: int | None) -> int | None:
        if expected is None or expected >= 0:
            return expected
        seen = self._versions.get((kind, name), [])
        return seen[expected] if len(seen) >= -expected else NEVER_SEEN

    def version_rank(self, doc: Doc) -> int:
        """The rank of a version. Brokers choose versions freely, but those of one document grow."""
        seen = self._versions.setdefault((doc.kind, doc.name), [])
        if not seen or doc.version > seen[-1]:
            seen.append(doc.version)
        if doc.version not in seen:
            raise RuleBroken(
                f"the version of {doc.kind} {doc.name} went back to {doc.version} from {seen[-1]}"
            )
        return seen.index(doc.version)

    # verbs that come in steps

    async def _find(self, args: Args) -> list[Record]:
        """All pages. Their order is open unless `newest` is set; no job may come twice."""
        found: list[Record] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self.run(self.broker.find(**args, cursor=cursor))
            found += page.records
            cursor = page.cursor
            if len(page.records) > args.get("limit", 100):
                raise RuleBroken(f"a page of {len(page.records)} jobs where {args['limit']} were asked for")
            if cursor is None:
                return found if args.get("newest") else sorted(found, key=lambda record: record.id)
        raise RuleBroken("find has no end")

    async def _edit(self, args: Args) -> Edited:
        """All steps; brokers may cut them differently, as the pages of `find`."""
        changed: list[str] = []
        refused: list[tuple[str, str]] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            edited = await self.run(self.broker.edit(**args, cursor=cursor))
            changed += edited.changed
            refused += edited.refused
            cursor = edited.cursor
            if cursor is None:
                return Edited(tuple(changed), tuple(refused))
        raise RuleBroken("edit has no end")

    async def _sweep(self, args: Args) -> Swept:
        """Sweep until nothing is left: the order of lapsed sessions is open."""
        total = Swept()
        for _ in range(PAGES_MAX):
            swept = await self.run(self.broker.sweep(**args))
            if swept.repairs or swept.finished:
                raise RuleBroken(f"sweep repaired what was sound: {swept.repairs or swept.finished}")
            total = Swept(
                promoted=total.promoted + swept.promoted,
                lapsed=total.lapsed + swept.lapsed,
                freed=total.freed + swept.freed,
                expired=total.expired + swept.expired,
                pruned=total.pruned + swept.pruned,
                withdrawn=total.withdrawn + swept.withdrawn,
            )
            if not swept.more:
                return total
        raise RuleBroken("sweep has no end")

    # the feed and waiting, which know no `now`

    async def _events(self, args: Args) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
        origin, limit = args["origin"], args["limit"]
        if origin == "next":
            self._cursor = (await self.run(self.broker.events(None))).cursor
            return {name: [] for name in self._cursor}, ()
        if origin == "oldest":
            self._cursor = {}
        cursor = self._cursor
        if origin == "beyond":
            cursor = dict.fromkeys(cursor, 1 << 30)
        entries, self._cursor, gaps = await self._feed(cursor, limit)
        return flat(entries), gaps

    async def _feed(
        self, cursor: dict[str, int], limit: int
    ) -> tuple[list[Entry], dict[str, int], tuple[str, ...]]:
        """All entries after a cursor. Their numbers must follow it without a gap."""
        entries: list[Entry] = []
        gaps: set[str] = set()
        for _ in range(PAGES_MAX):
            feed = await self.run(self.broker.events(cursor, limit=limit))
            gaps.update(feed.gaps)
            if len(feed.entries) > limit:
                raise RuleBroken(f"{len(feed.entries)} entries where {limit} were asked for")
            for entry in feed.entries:
                last = cursor.get(entry.queue, entry.number - 1)  # the first of a queue is the oldest kept
                if entry.queue not in gaps and entry.number != last + 1:
                    raise RuleBroken(f"entry {entry.number} of {entry.queue} follows {last}")
                cursor = cursor | {entry.queue: entry.number}
            if not feed.entries:
                return entries, feed.cursor, tuple(sorted(gaps))
            if feed.cursor != cursor:
                raise RuleBroken(f"the cursor is {feed.cursor} after entries up to {cursor}")
            entries += feed.entries
        raise RuleBroken("the feed has no end")

    async def _wait(self, args: Args) -> Reply:
        return await self.run(self.broker.wait(args["interest"], 0))

    async def _wait_take(self, args: Args) -> Reply:
        interest = Interest(queues=args["queues"], filter=args["filter"], session=args["session"])
        wake = await self.run(self.broker.wait(interest, 0))
        taken = await self.run(self.broker.take(**args))
        if taken and not wake.work:
            raise RuleBroken("wait said that there is no work, but there was some to take")
        return wake, taken

    async def _asleep(self, args: Args) -> tuple[list[Taken], Reply, list[Taken]]:
        """What a session takes; the reply to a call while it sleeps; the run that it was given meanwhile."""
        session, queues, then = args["session"], args["queues"], args["then"]
        first = {name: value for name, value in args.items() if name != "then"}
        # A run that was handed over may come as it was then: its session knows what it wrote since.
        found = [replace(one, memos=0) for one in await self.run(self.broker.take(want=50, **first))]
        if (await self.broker.wait(Interest(session=session), 0)).told:
            return found, await self._tried(then), []  # it would not sleep
        take = NextTake(args["request"] + 1, queues)
        interest = Interest(queues=queues, filter=args["filter"], session=session, next_take=take)
        before = await self._held(session, queues[0])
        wait = asyncio.ensure_future(self.broker.wait(interest, SLEEP_MAX))
        await self._until(lambda sleepers: wait.done() or sleepers > 0, queues[0])
        reply = await self._tried(then)
        handed = await self._held(session, queues[0]) - before
        if handed:
            taken = list((await wait).taken)
            if {(one.job.id, one.run) for one in taken} != handed:
                raise RuleBroken(f"{handed} was handed over, but {taken} came with the wake-up")
            return found, reply, taken
        wait.cancel()
        await asyncio.wait([wait])
        await self._until(lambda sleepers: sleepers == 0, queues[0])
        return found, reply, []

    async def _tried(self, step: Op) -> Reply:
        try:
            return await self.make(step.verb, step.args, step.at, step.clock)
        except DrayError as error:
            return error

    async def _held(self, session: str, queue: str) -> set[Ref]:
        found = await self._find({"query": Query(state=State.RUNNING, queue=queue), "limit": 1000})
        return {(one.id, run.number) for one in found for run in one.runs if run.session == session}

    async def _until(self, reached: Callable[[int], bool], queue: str) -> None:
        """Look until the number of registered sleepers is right."""
        while not reached(await count_sleepers(self.broker, queue)):
            await asyncio.sleep(0.001)

    # reading what durable jobs have, which knows no `now`

    async def _recall(self, args: Args) -> Reply:
        return await self.run(self.broker.recall(args["id"], args["position"], limit=args["limit"]))

    async def _mailbox(self, args: Args) -> Reply:
        return await self.run(self.broker.mailbox(args["id"], args["name"], args["after"]))

    async def _tally(self, args: Args) -> Reply:
        return await self.run(self.broker.tally(args["owner"], args["queues"]))

    # refused calls and the whole state

    async def _refused(self, args: Args) -> Reply:
        args = dict(args)
        verb = args.pop("call")
        if verb in ("events", "recall", "mailbox", "tally"):
            args.pop("now", None)
        return await self.run(getattr(self.broker, verb)(**args))

    async def _check(self, args: Args) -> dict[str, Any]:
        """The whole visible state, after an audit."""
        now = args.get("now")
        entries, self._checked, _ = await self._feed(self._checked, 1000)
        problems = await self.run(self.broker.audit())
        if problems:
            raise RuleBroken(f"audit: {problems}")
        records = await self._find({"query": Query(), "limit": 1000, "now": now})
        if len({record.id for record in records}) < len(records):
            raise RuleBroken("find lists a job twice")
        mail = WATCHERS if args.get("mail") else ()
        return {
            "records": {record.id: record for record in records},
            "queues": await self.run(self.broker.queues(now=now)),
            "logs": {
                record.id: await self.run(self.broker.recall(record.id)) for record in records if record.memos
            },
            "docs": [doc for kind in KINDS for doc in await self.run(self.broker.docs(kind, now=now))],
            "events": flat(entries),
            "mail": [
                sorted((await self.run(self.broker.wait(Interest(watcher=name), 0))).finished)
                for name in mail
            ],
        }

    async def look(self, now: int) -> object:
        """The same without moving on in the feed or reading mail."""
        records = await self._find({"query": Query(), "limit": 1000, "now": now})
        feed = await self.run(self.broker.events(None))
        docs = [await self.run(self.broker.docs(kind, now=now)) for kind in KINDS]
        return records, feed, docs, await self.run(self.broker.queues(now=now))


async def count_sleepers(broker: Broker, queue: str) -> int:
    """The sleepers that are registered in a queue and offer a take."""
    if isinstance(broker, MemoryBroker):
        return sum(
            interest is not None and interest.next_take is not None for interest in broker._sleepers.values()
        )
    core = cast(RedisBroker, broker)._core
    key = core.keys.queue(queue) + "sleep"
    return int(await core.call(command(key, "HLEN", key)))


def flat(entries: list[Entry]) -> dict[str, list[Any]]:
    """Events per queue, in order; brokers may cut them into entries differently."""
    events: dict[str, list[Any]] = {}
    for entry in entries:
        events.setdefault(entry.queue, []).extend((entry.at, *_parts(event)) for event in entry.events)
    return events


def _parts(event: Any) -> tuple[str, str, int]:
    return str(event.kind), event.id, event.run


def copies_of(job: Job, copies: int) -> tuple[Job, ...]:
    """Copies of a job with different ids and without a key."""
    return tuple(replace(job, id=f"{job.id}-{n}", key=None, key_ttl=None) for n in range(copies))
