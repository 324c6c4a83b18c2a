"""The rows of the table: what is done to a store, in batches of what size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bench.measure import Parameters
from bench.sqlite.plan import Plan
from bench.sqlite.script import Play, Work
from bench.sqlite.store import QUEUE, Supply
from dray.broker.verbs import Beat, Filter
from dray.job import Outcome, OutcomeKind, Taken

LEASE = 86_400_000
SOON = 1000
LATER = 60_000
RESULT = b"\x01\xa4done"
UNREACHED_RATE = "1000000/s+1000000"
UNREACHED = 1_000_000
ANY = Filter()

Step = Callable[[Play, Supply, int], int]
"""Handles about so many jobs; returns how many it were."""


@dataclass(frozen=True)
class Case:
    """One row. `prepare` is done to the file before, unmeasured; `later` milliseconds pass before `step`."""

    name: str
    parameters: Parameters
    step: Step
    count: int
    """Jobs per lap."""
    laps: int = 1
    restore: Step | None = None
    """Brings the store back to where the step began."""
    prepare: Work | None = None
    later: int = 0
    store: str = "plain"
    """Which kind of jobs are pending: see `STORES`."""

    @property
    def depth(self) -> int:
        return int(self.parameters["pending"])

    def works(self) -> Iterator[tuple[bool, Work]]:
        """A small lap to warm up, then the laps that are timed, each but the last followed by a restoring."""
        step, restore = self.step, self.restore
        if restore is not None:
            batch = int(self.parameters["batch"])
            warm = max(batch, self.count // 10 // batch * batch)
            yield False, lambda play, supply: step(play, supply, warm)
            yield False, lambda play, supply: restore(play, supply, warm)
        for lap in range(self.laps):
            yield True, lambda play, supply: step(play, supply, self.count)
            if restore is not None and lap < self.laps - 1:
                yield False, lambda play, supply: restore(play, supply, self.count)


STORES: dict[str, dict[str, object]] = {
    "plain": {},
    "max_running": {"max_running": UNREACHED},
    "rate": {"rate": UNREACHED_RATE},
    "groups": {"group": lambda number: f"tenant-{number}"},
}
"""What the pending jobs of a store declare, beyond task, priority and payload."""


def groups_of(plan: Plan) -> list[list[Case]]:
    """All rows. Those of a group differ in depth or in a limit, and are measured in the same rounds."""
    shallow = [depth for depth in plan.depths if depth <= plan.copied]
    groups = [[put_case(plan, depth, batch) for depth in plan.depths] for batch in (1, 10, 100, 1000)]
    groups += [[cycle_case(plan, depth, batch) for depth in plan.depths] for batch in (1, 10, 100)]
    for batch in (1, 100):
        groups += [
            [put_case(plan, depth, batch, key=lambda number: f"key-{number}") for depth in shallow],
            [take_case(plan, depth, batch) for depth in shallow],
            [settle_case(plan, depth, batch, "settle success", succeed) for depth in shallow],
            [settle_case(plan, depth, batch, "settle retry", retry) for depth in shallow],
        ]
    groups += [
        [promote_case(plan, depth) for depth in shallow],
        [lapse_case(plan, depth) for depth in shallow],
    ]
    groups += [limit_cases(plan, depth, batch) for batch in (10, 100) for depth in shallow]
    many = shallow[-1]
    return groups + [[cycle_case(plan, many, batch, store="groups", groups=many)] for batch in (10, 100)]


def limit_cases(plan: Plan, depth: int, batch: int) -> list[Case]:
    """With limits beside without."""
    return [
        cycle_case(plan, depth, batch, limit="none"),
        cycle_case(plan, depth, batch, store="max_running", limit="max_running"),
        cycle_case(plan, depth, batch, store="rate", limit="rate"),
        crowded_case(plan, depth, batch),
    ]


def put_case(plan: Plan, depth: int, batch: int, **fields: object) -> Case:
    def step(play: Play, supply: Supply, count: int) -> int:
        return put(play, supply, count, batch, fields)

    name = "put with key" if "key" in fields else "put"
    shown: Parameters = {"batch": batch, "pending": depth}
    return Case(name, shown, step, *plan.laps(depth, batch), restore=finish, prepare=open_session)


def cycle_case(
    plan: Plan,
    depth: int,
    batch: int,
    *,
    store: str = "plain",
    held: int = 0,
    **parameters: str | int,
) -> Case:
    """Of the pending jobs, `held` are held by another session."""

    def prepare(play: Play, supply: Supply) -> int:
        if held:
            open_session(play, supply)
            take(play, supply, held)
        return open_session(play, supply)

    def step(play: Play, supply: Supply, count: int) -> int:
        for _ in range(count // batch):
            taken = take(play, supply, batch)
            play("settle", supply.session, [succeed(one, supply) for one in taken])
        return count

    def restore(play: Play, supply: Supply, count: int) -> int:
        return put(play, supply, count, fields=STORES[store])

    shown: Parameters = {"batch": batch, "pending": depth, **parameters}
    laps = plan.laps(depth, batch, held)
    return Case("take + settle", shown, step, *laps, restore=restore, prepare=prepare, store=store)


def crowded_case(plan: Plan, depth: int, batch: int) -> Case:
    """A limit on running jobs is checked by counting them: so with many of them."""
    held = min(1000, depth // 4)
    limit = f"max_running, {held} running"
    return cycle_case(plan, depth, batch, store="max_running", held=held, limit=limit)


def take_case(plan: Plan, depth: int, batch: int) -> Case:
    held: list[Taken] = []

    def step(play: Play, supply: Supply, count: int) -> int:
        for _ in range(count // batch):
            held.extend(take(play, supply, batch))
        return count

    def restore(play: Play, supply: Supply, count: int) -> int:
        play("settle", supply.session, [succeed(one, supply) for one in held])
        held.clear()
        return put(play, supply, count)

    shown: Parameters = {"batch": batch, "pending": depth}
    return Case("take", shown, step, *plan.laps(depth, batch), restore=restore, prepare=open_session)


def settle_case(
    plan: Plan, depth: int, batch: int, name: str, outcome: Callable[[Taken, Supply], Outcome]
) -> Case:
    count, laps = plan.laps(depth, batch)
    held: list[Taken] = []

    def prepare(play: Play, supply: Supply) -> int:
        open_session(play, supply)
        held.extend(take(play, supply, count))
        return count

    def step(play: Play, supply: Supply, count: int) -> int:
        for _ in range(count // batch):
            play("settle", supply.session, [outcome(one, supply) for one in held[:batch]])
            del held[:batch]
        return count

    def restore(play: Play, supply: Supply, count: int) -> int:
        put(play, supply, count)
        held.extend(take(play, supply, count))
        return count

    shown: Parameters = {"batch": batch, "pending": depth}
    return Case(name, shown, step, count, laps, restore=restore, prepare=prepare)


def promote_case(plan: Plan, depth: int) -> Case:
    count = plan.upkeep

    def prepare(play: Play, supply: Supply) -> int:
        return put(play, supply, count, fields={"due": supply.now() + SOON})

    def step(play: Play, supply: Supply, count: int) -> int:
        return sweep(play, "promoted", count)

    shown: Parameters = {"batch": 1000, "pending": depth}
    return Case("sweep: due jobs", shown, step, count, prepare=prepare, later=LATER)


def lapse_case(plan: Plan, depth: int, each: int = 10) -> Case:
    """Sessions that held `each` jobs and were not heard of again."""
    count = min(plan.upkeep, depth * 9 // 10) // each * each

    def prepare(play: Play, supply: Supply) -> int:
        for _ in range(count // each):
            open_session(play, supply, SOON * 10)
            take(play, supply, each)
        return count

    def step(play: Play, supply: Supply, count: int) -> int:
        return sweep(play, "freed", count, limit=1000 // each)

    shown: Parameters = {"batch": 1000, "pending": depth}
    return Case("sweep: lapsed leases", shown, step, count, prepare=prepare, later=LATER * 60)


def open_session(play: Play, supply: Supply, lease: int = LEASE) -> int:
    play("renew", [Beat(supply.new_session(), lease)])
    return 0


def take(play: Play, supply: Supply, want: int) -> list[Taken]:
    taken: list[Taken] = play("take", supply.session, supply.request(), (QUEUE,), ANY, want)
    if len(taken) < want:
        raise AssertionError(f"the store ran dry: {want} jobs wanted, {len(taken)} taken")
    return taken


def put(
    play: Play, supply: Supply, count: int, batch: int = 1000, fields: Mapping[str, object] | None = None
) -> int:
    for first in range(0, count, batch):
        play("put", supply.jobs(min(batch, count - first), **(fields or {})))
    return count


def finish(play: Play, supply: Supply, count: int) -> int:
    """Take as many as were put, and settle them."""
    for first in range(0, count, 1000):
        taken = take(play, supply, min(1000, count - first))
        play("settle", supply.session, [succeed(one, supply) for one in taken])
    return count


def sweep(play: Play, what: str, count: int, limit: int = 1000) -> int:
    done = 0
    while done < count:
        some = getattr(play("sweep", limit), what)
        if not some:
            raise AssertionError(f"sweep found only {done} of {count} jobs ({what})")
        done += some
    return done


def succeed(taken: Taken, supply: Supply) -> Outcome:
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED, result=RESULT)


def retry(taken: Taken, supply: Supply) -> Outcome:
    at = supply.now() + LATER  # comes to at least ten seconds by the clock of the call
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.RETRY, at=at)
