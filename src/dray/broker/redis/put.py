"""`put`: one script call per queue for jobs with generated ids and no dependencies, the usual case.

Otherwise in this order, so that nothing is lost if the client dies in between:

1. claim ids that clients made up in the directory, so that one queue has each;
2. register dependants with their dependencies, so that no end is missed;
3. put the jobs;
4. check the dependencies again, for an end between 2 and 3.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from dray.broker.checks import check_dependency
from dray.broker.redis.core import Core
from dray.broker.redis.encoding import BY_NAME, body, encode, shape_of, to_json
from dray.broker.redis.ids import public_id, stored_id
from dray.broker.redis.outbox import (
    add_dependants,
    deliver_ends,
    follow_up,
    follow_up_all,
    free_ids,
    read_states,
    remove_dependants,
    take_back,
    watch_queues,
)
from dray.broker.redis.router import Arg, command, script
from dray.broker.rules import is_first
from dray.broker.verbs import PUT_STEP, Accepted, DocWrite
from dray.codec.payload import pack, unpack
from dray.errors import BrokerAway, CodecError
from dray.job import FINISHED, GENERATED, Job, State, queue_of

log = logging.getLogger("dray.broker")
_decode_intent = msgspec.msgpack.Decoder(list[bytes]).decode
INTENT_GRACE = 5_000_000
"""Microseconds after which the client that wrote an intent counts as dead."""
TOKEN_OLD = 11 * 60_000_000
"""Microseconds: a minute more than the limit in lua/put.lua, for servers whose clocks differ."""
_REFUSED = frozenset({"full", "limited"})
_NOT_STARTED = frozenset({State.WAITING, State.SCHEDULED, State.RETRYING, State.READY})


class _Broker(Protocol):
    _core: Core


async def put_checked(
    broker: _Broker, jobs: Sequence[Job], *, durability: str | None = None
) -> list[Accepted]:
    """Put jobs as the client does, usually a plain one: nothing stands between the two."""
    core = broker._core
    if jobs and _are_plain(core, jobs):
        return await _put_plain(core, jobs, None)
    return await put(core, jobs, None, None)


async def put(core: Core, jobs: Sequence[Job], when: DocWrite | None, now: int | None) -> list[Accepted]:
    if when is None and jobs and _are_plain(core, jobs):
        return await _put_plain(core, jobs, now)
    await _check_dependencies(core, jobs)
    token = ""
    if when is not None:
        token = await _intend(core, jobs, when, now)
        if not token:
            return []
    accepted: list[Accepted] = []
    owners = await _claim(core, jobs)
    for first in range(0, len(jobs), PUT_STEP):
        accepted += await put_step(core, jobs[first : first + PUT_STEP], owners, token, now)
    if token:
        await forget_intent(core, token)
    return accepted


def _are_plain(core: Core, jobs: Sequence[Job]) -> bool:
    """True if one call is enough: few simple jobs with generated ids, of one enlisted queue."""
    queue = jobs[0].queue
    if len(jobs) > PUT_STEP or not core.knows(queue):
        return False
    # `check_puts` refused generated ids that name another queue.
    return all(job.queue == queue and GENERATED.fullmatch(job.id) and shape_of(job) != "f" for job in jobs)


async def _put_plain(core: Core, jobs: Sequence[Job], now: int | None) -> list[Accepted]:
    queue, args = jobs[0].queue, _job_args(enumerate(jobs), core.stamps(len(jobs)), core.given_time(now), {})
    known, answers, aftermath = await core.call(core.on_queue("put", queue, now, "", *args))
    if not known:
        await core.enlist([queue])
    if core.backlog or any(aftermath):
        await follow_up(core, queue, aftermath, now)
    return _read_answers(jobs, answers)


async def _check_dependencies(core: Core, jobs: Sequence[Job]) -> None:
    asked = {dependency for job in jobs for dependency in job.waits_for if queue_of(dependency) is None}
    if not asked:
        return
    together = {job.id for job in jobs}
    known = await read_states(core, asked - together)
    for job in jobs:
        for dependency in job.waits_for:
            check_dependency(job, dependency, dependency in together or dependency in known)


# documents


async def _intend(core: Core, jobs: Sequence[Job], when: DocWrite, now: int | None) -> str:
    """Write the document together with the jobs (the intent); if we die, `sweep` puts them."""
    token = _new_token(core)
    jobs_packed = encode([pack(job) for job in jobs]) if jobs else b""
    written, _ = await core.call(write_doc(core, when, now, token if jobs else "", jobs_packed))
    return token if written else ""


def write_doc(core: Core, write: DocWrite, now: int | None, token: str = "", jobs: bytes = b"") -> Any:
    expect = "" if write.expect_version is None else write.expect_version
    ttl = "" if write.ttl is None else write.ttl
    how = "delete" if write.value is None else "write"
    value = b"" if write.value is None else write.value
    return core.on_own("doc", now, write.kind, write.name, how, expect, ttl, value, token, jobs)


async def forget_intent(core: Core, token: str) -> None:
    key = core.keys.own + "intent"
    await core.call(command(key, "HDEL", key, token))


def _new_token(core: Core) -> str:
    return f"{core.stamps(1)}-{secrets.token_hex(4)}"


async def finish_intents(core: Core, now: int | None, older_than: int | None = None) -> int:
    """Put the jobs of intents whose client died. A token is never put twice.

    An unreadable intent is left alone: a newer dray may have written it, and will finish it. The store does
    not remember a token forever, so an old one is replaced, and a client that was frozen with it is refused.
    """
    older_than = INTENT_GRACE if older_than is None else older_than
    key = core.keys.own + "intent"
    found = await core.call(command(key, "HGETALL", key))
    done = 0
    for token, packed in zip(found[::2], found[1::2], strict=True):
        name, age = token.decode(), core.stamps(1) - int(token.partition(b"-")[0])
        jobs = _read_intent(core, name, packed) if age >= older_than else None
        if jobs is None:
            continue
        if age > TOKEN_OLD:
            old, name = name, _new_token(core)
            if not await core.call(core.on_own("renew_token", now, old, name)):
                continue
        await put_step(core, jobs, await _claim(core, jobs), name, now)
        await forget_intent(core, name)
        done += 1
    return done


def _read_intent(core: Core, token: str, packed: bytes) -> list[Job] | None:
    try:
        return [unpack(data, 1 << 52) for data in _decode_intent(packed)]
    except (msgspec.DecodeError, CodecError) as error:
        if token not in core.unread:  # every sweep meets it
            core.unread.add(token)
            log.warning("what a schedule was about to enqueue cannot be read and is left alone: %s", error)
        return None


# one step


async def put_step(
    core: Core, jobs: Sequence[Job], owners: dict[str, str], token: str, now: int | None
) -> list[Accepted]:
    base = core.stamps(len(jobs) or 1)
    step = _Step(core, base, token, now)
    await step.enlist(jobs)
    if not owners and not any(job.waits_for for job in jobs):
        accepted = await step.put(list(enumerate(jobs)), {})
    else:
        accepted = await _put_in_order(step, jobs, owners)
    await step.follow_up()
    return accepted


async def _put_in_order(step: _Step, jobs: Sequence[Job], owners: dict[str, str]) -> list[Accepted]:
    """One call, split where a job repeats an id, moves queue, or depends on one that may end before."""
    accepted: list[Accepted] = []
    together: list[tuple[int, Job]] = []
    ids: set[str] = set()
    for index, job in enumerate(jobs):
        elsewhere = owners.get(job.id, job.queue) != job.queue
        behind = job.waits_for and any(_may_end_others(other) for _, other in together)
        if elsewhere or behind or job.id in ids:
            accepted += await step.put_waiting(together, owners)
            together, ids = [], set()
        if elsewhere:
            accepted.append(await _put_elsewhere(step, index, job, owners))
        else:
            together.append((index, job))
            ids.add(job.id)
            if job.waits_for and job.on_duplicate == "replace":  # the next dependant is registered behind it
                accepted += await step.put_waiting(together, owners)
                together, ids = [], set()
    accepted += await step.put_waiting(together, owners)
    await _tell_dependants(step, jobs, accepted, owners)
    return accepted


def _may_end_others(job: Job) -> bool:
    return job.on_duplicate == "replace" or (job.overflow == "drop-oldest" and job.max_ready is not None)


async def _claim(core: Core, jobs: Sequence[Job]) -> dict[str, str]:
    """Claim ids that clients made up; returns the queue that has each."""
    parts: dict[str, dict[str, str]] = {}
    for job in jobs:
        if queue_of(job.id) is None:
            parts.setdefault(core.keys.directory(job.id), {}).setdefault(job.id, job.queue)
    replies = await core.calls(
        [
            script("id_directory", key, "claim", *(name for pair in wanted.items() for name in pair))
            for key, wanted in parts.items()
        ]
    )
    owners: dict[str, str] = {}
    for wanted, queues in zip(parts.values(), replies, strict=True):
        owners |= {id: queue.decode() for id, queue in zip(wanted, queues, strict=True)}
    return owners


async def _put_elsewhere(step: _Step, index: int, job: Job, owners: dict[str, str]) -> Accepted:
    """Put a job whose id another queue has: as a duplicate, to replace it, or because it is awaited there."""
    core, home = step.core, owners[job.id]
    name, run, _ = await core.call(core.on_queue("job_states", home, step.now, stored_id(job.id, home)))
    state = BY_NAME[name]
    if state is not State.NOT_FOUND:
        if job.on_duplicate != "replace" or run or state not in _NOT_STARTED:
            return Accepted(job.id, state, "duplicate")
        [reply] = await step.put_waiting([(index, job)], owners, replaces=True)
        if reply.verdict != "created":
            return reply
    await core.call(script("id_directory", core.keys.directory(job.id), "move", job.id, home, job.queue))
    owners[job.id] = job.queue
    moved = await core.call(core.on_queue("move_id_out", home, step.now, stored_id(job.id, home), 1))
    dependants, watchers, (posted, forgotten, gone) = moved
    waits = {stored_id(dependency, home) for dependency in job.waits_for}
    kept_pairs = zip(forgotten[::2], forgotten[1::2], strict=True)
    apart = [id for pair in kept_pairs if pair[0] not in waits for id in pair]
    for watcher in watchers:
        await watch_queues(core, watcher.decode(), [job.queue])
    if dependants or watchers:
        own = [stored_id(public_id(one, home), job.queue) for one in dependants]
        args = (stored_id(job.id, job.queue), len(own), *own, *watchers)
        _, aftermath = await core.call(core.on_queue("move_id_in", job.queue, step.now, *args))
        await follow_up(core, job.queue, aftermath, step.now)
    await follow_up(core, home, (posted, apart, gone), step.now)
    if state is State.NOT_FOUND:
        [reply] = await step.put_waiting([(index, job)], owners)
    return reply


async def _tell_dependants(
    step: _Step, jobs: Sequence[Job], accepted: Sequence[Accepted], owners: dict[str, str]
) -> None:
    """Tell the dependants of refused jobs, so that none waits forever, and free the ids."""
    for job, reply in zip(jobs, accepted, strict=True):
        if reply.verdict in _REFUSED or reply.id != job.id:
            queue = owners.get(job.id, job.queue)
            _, aftermath = await step.core.call(
                step.core.on_queue("tell_dependants", queue, step.now, stored_id(job.id, queue))
            )
            step.left.append((queue, aftermath))
            await free_ids(step.core, queue, [job.id])


class _Step:
    """One step of `put`: up to a thousand jobs, one script call per queue."""

    def __init__(self, core: Core, base: int, token: str, now: int | None) -> None:
        self.core, self._base, self._token, self.now = core, base, token, now
        self._created = core.given_time(now)
        self.left: list[tuple[str, Any]] = []
        self._waits: list[tuple[_Waits, list[Job], list[Accepted]]] = []

    async def enlist(self, jobs: Sequence[Job]) -> None:
        names = {job.queue for job in jobs}
        await self.core.enlist([name for name in names if not self.core.knows(name)])

    async def put_waiting(
        self, jobs: Sequence[tuple[int, Job]], owners: dict[str, str], replaces: bool = False
    ) -> list[Accepted]:
        """Register the dependants, then put."""
        waits = _Waits(self.core, owners)
        await waits.register([job for _, job in jobs])
        extra = waits.extra
        if replaces:
            extra[jobs[0][1].id] = {**extra.get(jobs[0][1].id, {}), "elsewhere": 1}
        accepted = await self.put(jobs, extra)
        anew = {reply.id for reply in accepted if reply.replaced == reply.id}
        await waits.register_anew([job for _, job in jobs if job.id in anew])
        self._waits.append((waits, [job for _, job in jobs], accepted))
        return accepted

    async def put(self, jobs: Sequence[tuple[int, Job]], extra: dict[str, dict[str, Any]]) -> list[Accepted]:
        parts: dict[str, list[tuple[int, Job]]] = {}
        for index, job in jobs:
            parts.setdefault(job.queue, []).append((index, job))
        calls = []
        for queue, part in parts.items():
            token = f"{self._token}.{part[0][0]}" if self._token else ""
            args = _job_args(part, self._base, self._created, extra)
            calls.append(self.core.on_queue("put", queue, self.now, token, *args))
        accepted: dict[int, Accepted] = {}
        for (queue, part), reply in zip(parts.items(), await self.core.calls(calls), strict=True):
            await self._answers(queue, part, reply, accepted)
        return [accepted[index] for index, _ in jobs]

    async def _answers(
        self, queue: str, part: Sequence[tuple[int, Job]], reply: Any, accepted: dict[int, Accepted]
    ) -> None:
        known, answers, aftermath = reply
        jobs = [job for _, job in part]
        if answers == -1:
            raise BrokerAway("it took more than ten minutes to put these jobs: somebody else does it by now")
        if answers == 0:  # put before, under the same token
            states = await read_states(self.core, [job.id for job in jobs])
            replies = [Accepted(job.id, states.get(job.id, State.NOT_FOUND)) for job in jobs]
        else:
            replies = _read_answers(jobs, answers)
        accepted |= {index: one for (index, _), one in zip(part, replies, strict=True)}
        if not known:
            await self.core.enlist([queue])
        self.left.append((queue, aftermath))

    async def follow_up(self) -> None:
        """Do the follow-up work, once every id is where the directory says."""
        await follow_up_all(self.core, self.left, self.now)
        for waits, jobs, accepted in self._waits:
            await waits.look_again(jobs, accepted, self.now)


def _job_args(
    jobs: Iterable[tuple[int, Job]], base: int, created: int | None, extra: dict[str, dict[str, Any]]
) -> list[Arg]:
    """The arguments of lua/put.lua from the fourth on."""
    args: list[Arg] = [b""]
    extras: dict[int, dict[str, Any]] = {}
    for place, (index, job) in enumerate(jobs, 1):
        shape = "f" if job.id in extra else shape_of(job)
        if shape == "f":
            extras[place] = _extra(job, extra.get(job.id, {}))
        args += (stored_id(job.id, job.queue), body(job, shape, base + index, created))
    if extras:
        args[0] = to_json(extras)
    return args


def _extra(job: Job, waits: dict[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "on_duplicate": job.on_duplicate,
        "due": job.due,
        "max_ready": job.max_ready,
        "overflow": job.overflow,
        "has_waits": 1 if job.waits_for else None,
    }
    return {name: value for name, value in (extra | waits).items() if value is not None}


def _read_answers(jobs: Sequence[Job], answers: Any) -> list[Accepted]:
    if answers == 1:
        return [Accepted(job.id, State.READY) for job in jobs]
    if isinstance(answers[0], bytes):
        return [Accepted(job.id, BY_NAME[state]) for job, state in zip(jobs, answers, strict=True)]
    return [_accepted(job.queue, *answer) for job, answer in zip(jobs, answers[0], strict=True)]


def _accepted(queue: str, verdict: bytes, state: bytes, id: bytes, replaced: bytes, met: Any) -> Accepted:
    number = int(met) if met != b"" else None
    limited = verdict == b"limited"
    return Accepted(
        public_id(id, queue),
        BY_NAME[state],
        verdict.decode(),  # type: ignore[arg-type]
        public_id(replaced, queue) or None,
        None if limited else number,
        number if limited else None,
    )


class _Waits:
    """The dependencies of the jobs of a step."""

    def __init__(self, core: Core, owners: dict[str, str]) -> None:
        self._core, self._owners = core, owners
        self.extra: dict[str, dict[str, Any]] = {}
        self._seen: dict[tuple[str, str], State] = {}
        self._added: dict[tuple[str, str], int] = {}

    async def register(self, jobs: Sequence[Job]) -> None:
        pairs = [(dependency, job.id) for job in jobs for dependency in job.waits_for]
        if not pairs:
            return
        for pair, (state, added) in (await add_dependants(self._core, pairs, self._owners)).items():
            self._seen[pair] = state
            if added:
                self._added[pair] = added
        for job in jobs:
            if job.waits_for:
                self.extra[job.id] = self._waits(job)

    async def register_anew(self, jobs: Sequence[Job]) -> None:
        """A job that replaced a waiting one under its id is registered again, behind the others."""
        pairs = [(dependency, job.id) for job in jobs for dependency in job.waits_for]
        known = [pair for pair in pairs if pair not in self._added]
        if known:
            await remove_dependants(self._core, known)
            await self.register(jobs)

    def _waits(self, job: Job) -> dict[str, Any]:
        states = {dependency: self._seen[dependency, job.id] for dependency in job.waits_for}
        left = [dependency for dependency, state in states.items() if state is not State.SUCCEEDED]
        if any(is_first(state, job.orphan) for state in states.values()):
            left = []
        own = {dependency: stored_id(dependency, job.queue).decode() for dependency in left}
        ended = [text for d in left if states[d] in FINISHED for text in (own[d], str(states[d]))]
        return {"waits": list(own.values()), "ended": ended}

    async def look_again(self, jobs: Sequence[Job], accepted: Sequence[Accepted], now: int | None) -> None:
        """Deliver ends between registering and putting; remove registrations of jobs that were not put."""
        if not self._seen:
            return
        created = {reply.id for reply in accepted if reply.verdict == "created"}
        await take_back(
            self._core, {pair: new for pair, new in self._added.items() if pair[1] not in created}
        )
        await remove_dependants(self._core, self._unneeded(jobs, created))
        watched = {d: state for (d, dependant), state in self._seen.items() if dependant in created}
        states = await read_states(self._core, [d for d, state in watched.items() if state not in FINISHED])
        for job in jobs:
            for dependency in job.waits_for if job.id in created else ():
                before, after = watched[dependency], states.get(dependency, State.NOT_FOUND)
                if (
                    before in FINISHED
                    or after is before
                    or (after not in FINISHED and after is not State.NOT_FOUND)
                ):
                    continue
                left = await deliver_ends(self._core, job.queue, [((dependency, job.id), after)], now)
                await follow_up_all(self._core, left, now)

    def _unneeded(self, jobs: Sequence[Job], created: set[str]) -> list[tuple[str, str]]:
        """Registrations of jobs that were put, but need not wait."""
        free = [job for job in jobs if job.id in created and not self.extra.get(job.id, {}).get("waits")]
        return [(d, job.id) for job in free for d in job.waits_for]
