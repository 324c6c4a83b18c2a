"""Why a job stands where it stands: one test per reason, on every broker."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from by_hand import Hand, Say
from redis_server import Server, running

from dray import App, Why
from dray.broker.actions import Ids, Speculate
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, ProgressReport, run_blocking
from dray.documents.worker_registry import ExecutorInfo, WorkerInfo, write_worker
from dray.job import Error, Job, Progress, Record, State, Suspension, Undo
from dray.stats.sketch import Sketch
from dray.stats.tallies import KIND, Tally, WorkerTallies
from dray.why import CODES, explain
from dray.why.position import jobs_ahead


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("valkey"), cluster=True) as server:
        yield server


@pytest.fixture(params=["memory blocking", "memory awaited", "sqlite blocking", "valkey awaited"])
def how(request: pytest.FixtureRequest) -> list[str]:
    """Which broker, and in which form the calls are made."""
    words: str = request.param
    return words.split()


@pytest.fixture
def app(request: pytest.FixtureRequest, how: list[str], tmp_path: Path) -> Iterator[App]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    url = urls.get(how[0])
    if url is None:
        server: Server = request.getfixturevalue("server")
        server.command("FLUSHALL")
        url = f"redis://127.0.0.1:{server.port}"
    app = App("shop", broker=url)
    yield app
    app.close()


@pytest.fixture
def say(how: list[str], app: App) -> Iterator[Say]:
    if how[1] == "blocking":
        yield Say(None)
        return
    with asyncio.Runner() as runner:
        yield Say(runner)
        runner.run(_hang_up(app))


async def _hang_up(app: App) -> None:
    await (await app.client.loop_link()).broker.close()


@pytest.fixture
def hand(app: App) -> Iterator[Hand]:
    with Hand(app) as hand:
        yield hand


@pytest.fixture
def send(app: App) -> Any:
    @app.task
    def send(n: int = 0) -> None: ...

    return send


def worker(hand: Hand, id: str = "w1", **fields: Any) -> None:
    executors = tuple(ExecutorInfo(number=n, pid=n, slots=8) for n in (1, 2))
    usual = {
        "queues": ("default",),
        "tasks": ("send",),
        "seen": 1,
        "processes": 2,
        "concurrency": 8,
        "executors": executors,
    }
    info = WorkerInfo(id=id, host="h", pid=1, started=1, **{**usual, **fields})
    run_blocking(write_worker(hand.broker, info, ttl=60_000))


def told(why: Why, code: str, *words: str) -> Why:
    assert why.code == code, why.text
    msgspec.json.encode(why)
    assert str(why) == why.text
    for word in words:
        assert word in why.text
    return why


def test_not_found(app: App, say: Say) -> None:
    told(say(app.job("nobody").why), "not_found", "does not know this id")


def test_scheduled(app: App, send: Any, say: Say) -> None:
    why = told(say(send.using(delay="1h").enqueue().why), "due_later", "not due before")
    assert "due_at" in why.details


def test_retrying(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    hand.retry(hand.one(), at=app.now() + 60_000)
    told(say(job.why), "retry_later", "attempt 1 of 4 failed: OSError: line is down")


def test_waiting_for_other_jobs(app: App, send: Any, say: Say, hand: Hand) -> None:
    first = send.enqueue()
    job = type(app.job_builder.build(send.call()))(id="second", task="send", waits_for=(first.id,))
    run_blocking(hand.broker.put([job]))
    why = told(say(app.job("second").why), "waits_for_jobs", "1 other job to succeed", f"{first.id} (ready)")
    assert why.details == {"waits_for": [first.id], "states": {first.id: "ready"}}


def test_running_and_stopping(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    taken = hand.one()
    why = told(say(job.why), "running", "hand/1", "attempt 1", "no such worker is on the roster")
    assert (why.details["worker"], why.details["seen_at"], why.details["run"]) == ("hand/1", None, 1)
    worker(hand, "hand", seen=app.now() - 60_000)
    why = told(say(job.why), "running", "its worker was last heard of 1m")
    assert why.details["worker"] == "hand"
    worker(hand, "hand", seen=app.now() + 60_000)
    told(say(job.why), "running", "heard of just now")
    report = ProgressReport(job.id, taken.run, Progress(3, 4, "pages", {"failed": [7]}))
    run_blocking(hand.broker.renew([Beat(hand.session, 60_000, (report,))]))
    why = told(say(job.why), "running", 'at 3 of 4 pages {"failed":[7]}')
    assert why.details["progress"] == {"done": 3, "total": 4, "note": "pages", "data": {"failed": [7]}}
    job.cancel("enough")
    why = told(say(job.why), "stopping", "asked to stop (enough)")
    assert why.details["cancel"] == "enough"


def test_running_twice(app: App, say: Say, hand: Hand) -> None:
    @app.task(name="send", speculate=True)
    def send() -> None: ...

    job = send.enqueue()
    hand.one()
    run_blocking(hand.broker.edit(Ids((job.id,)), Speculate()))
    with Hand(app, "other/1") as other:
        other.one()
        why = told(say(job.why), "running", "it runs on other/1", "another run is on hand/1")
    assert [run["session"] for run in why.details["runs"]] == ["hand/1", "other/1"]


def test_finished(app: App, send: Any, say: Say, hand: Hand) -> None:
    good, bad, gone = send.enqueue(), send.enqueue(), send.enqueue()
    hand.succeed(hand.one())
    hand.die(hand.one(), "ValueError", "no good", reason="retries used up")
    gone.cancel("not needed")
    told(say(good.why), "succeeded")
    told(say(bad.why), "dead", "retries used up", "ValueError: no good", f"dray jobs retry {bad.id}")
    told(say(gone.why), "cancelled", "not needed", "before it had started")
    assert say(bad.why).details["kind"] == "failed"
    assert say(bad.why).details["error"] == {"type": "ValueError", "message": "no good"}


def test_dead_for_want_of_room(app: App, say: Say) -> None:
    full = app.task(name="full", max_ready=1, overflow="drop-oldest")(lambda: None)
    dropped, _ = full.enqueue(), full.enqueue()
    assert told(say(dropped.why), "dead", "dropped: default is full").details["kind"] == "dropped"


def test_ready_without_any_worker(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    told(say(job.why), "no_workers", "dray worker")
    worker(hand, state="stopping")
    told(say(job.why), "no_workers")


def test_ready_without_a_worker_for_it(app: App, send: Any, say: Say, hand: Hand) -> None:
    worker(hand, priorities=(0, 1, 2, 3))
    worker(hand, "w2", queues=("cpu",), tasks=("other",))
    lost = say(send.using(queue="gpu", priority=1).enqueue().why)
    told(lost, "no_worker_for_queue", "dray worker -Q gpu", "served are: cpu, default", "w1 lacks queue gpu")
    assert lost.details["nearly"] == [
        {"worker": "w1", "lacks": ["queue"]},
        {"worker": "w2", "lacks": ["queue", "task"]},
    ]
    newer = app.enqueue("newer.task")
    told(say(newer.why), "no_worker_for_task", "newer.task", "nobody's way", "w1 lacks task newer.task and")
    told(say(send.enqueue().why), "no_worker_for_priority", "w1 lacks priority 5")
    worker(hand, "w3", tasks=())
    told(say(newer.why), "workers_starting", "w3")
    told(say(send.using(priority="high").enqueue().why), "in_line")


def test_patterns_and_dedicated_queues_count(hand: Hand, app: App, send: Any, say: Say) -> None:
    worker(hand, queues=("tenant-*",), dedicated=("tenant-gpu",), tasks=("send",))
    assert say(send.using(queue="tenant-1").enqueue().why).code == "in_line"
    told(say(send.using(queue="other").enqueue().why), "no_worker_for_queue", "served are: tenant-*")
    lost = say(send.using(queue="tenant-gpu").enqueue().why)
    told(lost, "no_worker_for_queue", "it is dedicated, so that only workers that list it serve it")
    assert lost.details["dedicated"] is True
    worker(hand, "w2", queues=("tenant-gpu",), tasks=("send",))
    assert say(send.using(queue="tenant-gpu").enqueue().why).code == "in_line"
    worker(hand, "w3", queues=(), tasks=())
    told(say(send.using(queue="other").enqueue().why), "workers_starting", "w3")


def test_ready_but_paused(app: App, send: Any, say: Say, hand: Hand) -> None:
    worker(hand)
    job = send.enqueue()
    app.queues.pause("default", task="send", reason="bug", by="ada")
    why = told(say(job.why), "task_paused", "by ada", "(bug)", "dray queues resume default --task send")
    assert why.details["by"] == "ada"
    app.queues.pause("default")
    told(say(job.why), "queue_paused", "queue default is paused since", "dray queues resume default")


def test_ready_but_limited(app: App, send: Any, say: Say, hand: Hand) -> None:
    worker(hand)
    app.queues.limit("default", max_running=1)
    send.enqueue()
    hand.one()
    told(say(send.enqueue().why), "limited", "queue default runs 1 job, and may run 1 at once")


def test_ready_but_its_task_is_limited(app: App, say: Say, hand: Hand) -> None:
    @app.task(name="send", max_running=1)
    def send() -> None: ...

    worker(hand)
    first = send.enqueue()
    hand.one()
    why = told(say(send.enqueue().why), "limited", "task send", "1 at once", f"when one ends: {first.id}")
    assert (why.details["max_running"], why.details["running"], why.details["scope"]) == (1, 1, "task")
    assert why.details["held_by"] == [first.id]
    app.queues.limit("default", task="send", max_running=3)
    told(say(send.enqueue().why), "in_line")


def test_ready_but_its_key_or_its_group_is_limited(app: App, say: Say, hand: Hand) -> None:
    @app.task(name="send", max_running=1, running_key="{to}")
    def send(to: str) -> None: ...

    worker(hand)
    send.using(group="g").enqueue("a")
    hand.one()
    told(say(send.enqueue("b").why), "in_line")
    told(say(send.enqueue("a").why), "limited", "key a in queue default runs 1 job")
    app.queues.limit("default", group_running=1)
    told(say(send.using(group="g").enqueue("c").why), "limited", "group g in queue default runs 1 job")


def test_ready_and_in_line(app: App, send: Any, say: Say, hand: Hand) -> None:
    worker(hand)
    jobs = [send.enqueue(n) for n in range(3)]
    urgent = send.using(priority="high").enqueue()
    why = told(say(urgent.why), "in_line", "0 ahead of it")
    assert why.details["slots"] == 16
    why = told(say(jobs[0].why), "in_line")
    assert why.details["ahead"] == 1
    limited = app.task(name="slow", rate_limit="10/m", max_running=7)(lambda: None).enqueue()
    worker(hand, tasks=("send", "slow"))
    told(say(limited.why), "in_line", "task slow in queue default may start 10/m", "may run 7 at once")


@pytest.mark.parametrize("scope", ["queue", "task", "key"])
def test_ready_but_over_a_rate(app: App, say: Say, hand: Hand, scope: str) -> None:
    options: dict[str, Any] = {"rate_limit": "1/m"} if scope != "queue" else {}
    options |= {"rate_key": "customer:{n}"} if scope == "key" else {}

    @app.task(name="send", **options)
    def send(n: int) -> None: ...

    if scope == "queue":
        app.queues.limit("default", rate="1/m")
    worker(hand)
    of = {"queue": "queue default", "task": "task send in queue default", "key": "key customer:7 in queue"}
    jobs = [send.enqueue(7) for _ in range(2)]
    started = app.now()
    hand.one()
    why = told(say(jobs[1].why), "rate_limited", of[scope], "may start 1/m, and has: the next may start in")
    free = datetime.fromisoformat(why.details["frees_at"]).timestamp() * 1000
    assert abs(free - started - 60_000) < 20_000
    assert (why.details["scope"], why.details["rate"]) == (scope, "1/m")


def test_in_line_with_an_estimate(app: App, send: Any, say: Say, hand: Hand) -> None:
    busy = ExecutorInfo(number=1, pid=1, running=2, slots=2)
    worker(hand, executors=(busy,))
    jobs = [send.enqueue(n) for n in range(7)]
    hand.take(2)
    why = told(say(jobs[6].why), "in_line", "4 ahead of it", "all 2 slots")
    assert "starts_at" not in why.details
    assert "auto" not in why.text
    worker(hand, concurrency=None, executors=(busy,))
    told(say(jobs[6].why), "in_line", "all 2 slots", "concurrency is auto")
    took = Sketch()
    took.add([10.0] * 50)
    tallies = WorkerTallies(seen=app.now(), tasks={"send": Tally(runs=50, took=took)})
    run_blocking(hand.broker.doc(KIND, "w1", msgspec.msgpack.encode(tallies)))
    why = told(say(jobs[6].why), "in_line", "it may start in about 25s")
    assert why.details["starts_in"] == pytest.approx(25, abs=3)
    worker(hand, executors=(ExecutorInfo(number=1, pid=1, slots=20),))
    told(say(jobs[6].why), "in_line", "at any moment")


def test_in_line_for_workers_with_a_rate_of_their_own(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    worker(hand, rate="1/m")
    why = told(say(job.why), "in_line", "keep to a rate of their own: w1 at most 1/m")
    assert why.details["worker_rates"] == {"w1": "1/m"}
    worker(hand, "w2")
    assert "worker_rates" not in told(say(job.why), "in_line").details


def test_in_line_after_a_worker_died(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    hand.one()
    run_blocking(hand.broker.release(hand.session))
    worker(hand)
    assert told(say(job.why), "in_line", "its worker died").details["suspect"] is True


def test_a_deadline_before_and_after_it_has_passed() -> None:
    clock = 1_000_000_000_000
    broker = MemoryBroker("shop", clock=lambda: clock)
    run_blocking(broker.put([Job(id="slow", task="send", deadline=60_000)]))
    why = told(
        run_blocking(explain(broker, "slow")), "no_workers", "; its deadline is 2001-09-09 01:47:40 UTC"
    )
    assert why.details["deadline_at"] == "2001-09-09T01:47:40+00:00"
    clock += 60_000
    run_blocking(broker.sweep())
    why = told(run_blocking(explain(broker, "slow")), "dead", "deadline: it was not finished in time;")
    assert why.details["kind"] == "deadline"
    assert "deadline_at" not in why.details


def test_groups_take_turns_in_the_position_too() -> None:
    def stands(id: str, created: int, group: str | None = None, **fields: Any) -> Record:
        job = Job(id=id, task=fields.pop("task", "t"), group=group, **fields)
        return Record(job=job, state=State.READY, created=created)

    many = [stands(f"a{n}", n, "a") for n in range(500)]
    mine = stands("b", 1000, "b")
    assert jobs_ahead(mine, [*many, mine]).total() == 1
    second = stands("b2", 1001, "b")
    assert jobs_ahead(second, [*many, mine, second]).total() == 3
    urgent = [stands("u", 2000, "a", priority=1), stands("old", 1, task="else"), stands("late", 3000, "b")]
    assert jobs_ahead(mine, [*many, mine, *urgent]) == {"t": 2, "else": 1}


def test_reasons_of_durable_jobs() -> None:
    job = Job(id="j", task="t")

    def why(state: State, what: Suspension | None = None, **fields: Any) -> Why:
        record = Record(job=job, state=state, created=0, suspended=what, **fields)
        return run_blocking(explain(One(record), "j"))

    told(why(State.SCHEDULED, Suspension(until=60_000)), "sleeping", "1970-01-01 00:01:00")
    error = Error("OSError", "down")
    told(why(State.RETRYING, Suspension(until=9), due=9, error=error), "step_retry", "OSError: down")
    told(why(State.WAITING, Suspension(events={"go": 0})), "waits_for_event", "event 'go'")
    told(why(State.WAITING, Suspension(jobs=("a", "b"))), "waits_for_child", "2 jobs that it called: a, b")
    reason = "changed: something else"
    told(why(State.WAITING, Suspension(parked=True), reason=reason), "parked", "something else")
    told(why(State.SCHEDULED, due=9, undo=Undo(State.DEAD, "no")), "undoing", "and then dead: no")


class One(MemoryBroker):
    """A broker with one record, as it stands."""

    def __init__(self, record: Record) -> None:
        super().__init__("one")
        self._record = record

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        return [self._record]


def test_every_reason_has_a_test() -> None:
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call)]
    told_here = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "told"]
    assert {code.value for code in told_here if isinstance(code, ast.Constant)} == set(CODES)
