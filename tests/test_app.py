"""The app: enqueue alone, together and by name; duplicates; full queues; lifespan; its place on disk."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from by_hand import Hand, Say, ids, in_thread

from dray import (
    App,
    Context,
    DuplicateJob,
    EnqueueLimited,
    InvalidInput,
    JobHandle,
    QueueFull,
    State,
    UnknownTaskWarning,
    WouldBlock,
)
from dray.broker.verbs import run_blocking
from dray.context import CURRENT, _Detached
from dray.settings import override

pytest_plugins = ["shop"]


@pytest.fixture
def add(app: App) -> Any:
    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


# enqueue


def test_enqueue_returns_a_handle_of_a_job_that_is_safe(app: App, add: Any, say: Say, hand: Hand) -> None:
    job = say(add.enqueue, 1, b=2)
    assert isinstance(job, JobHandle)
    assert (job.task, job.queue, job.duplicate, job.app) == ("add", "default", False, app)
    assert job.id.startswith("default:")
    assert say(job.status) == "ready"
    taken = hand.one()
    assert (taken.job.id, taken.job.task) == (job.id, "add")
    assert app.codecs.decode_call(taken.job.payload) == ((1,), {"b": 2})


def test_delay_is_another_name_for_enqueue(app: App, add: Any) -> None:
    assert add.delay(1).status() == "ready"
    assert add.using(delay=60).delay(1).status() == "scheduled"


def test_by_name_reaches_the_same_task_with_the_same_rules(app: App, say: Say) -> None:
    @app.task(name="email.send", queue="email", priority="high", tags=["mail"])
    def send(to: str, body: str = "") -> None: ...

    job = say(app.enqueue, "email.send", "a@x", body="hi")
    info = say(job.info)
    assert (info.task, info.queue, info.priority, info.tags) == ("email.send", "email", 1, ("mail",))
    assert (info.args, info.kwargs) == (("a@x",), {"body": "hi"})
    job = say(app.using(delay=60, queue="slow").enqueue, "email.send", "a@x")
    assert (job.queue, say(job.status)) == ("slow", "scheduled")


def test_a_keyword_named_name_reaches_the_task(app: App, say: Say) -> None:
    @app.task
    def greet(name: str) -> None: ...

    job = say(app.enqueue, "greet", name="Ada")
    assert say(job.info).kwargs == {"name": "Ada"}


def test_an_unknown_name_is_enqueued_for_workers_that_know_it(app: App, add: Any, say: Say) -> None:
    job = say(app.enqueue, "of.another.service", 1, 2, three=3)
    assert say(job.status) is State.READY
    assert say(job.info).task == "of.another.service"


def test_a_misspelt_name_is_enqueued_with_a_warning_at_the_callers_line(app: App, say: Say) -> None:
    @app.task(name="email.send")
    def send() -> None: ...

    for enqueue in (app.enqueue, app.using(delay=5).enqueue):
        with pytest.warns(UnknownTaskWarning, match=r"'email.sned' \(did you mean email.send\?\)") as seen:
            say(enqueue, "email.sned")
        if say.runner is None:
            assert seen[0].filename.endswith("by_hand.py"), "the line that called enqueue"
    assert len(say(app.jobs.find)) == 2


@pytest.mark.parametrize("name", ["", "a b", None, 5])
def test_what_cannot_be_a_name_is_refused(app: App, say: Say, name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^task="):
        say(app.enqueue, name)


def test_scheduled_jobs_wait_for_their_time(app: App, add: Any, say: Say, hand: Hand) -> None:
    job = say(add.using(delay="1h").enqueue, 1)
    assert say(job.status) is State.SCHEDULED
    assert hand.take() == []
    info = say(job.info)
    assert info.due_at is not None
    assert 3590 < (info.due_at - info.created_at).total_seconds() <= 3601


def test_a_job_enqueued_by_a_job_names_its_parent(app: App, add: Any, say: Say) -> None:
    running = _Detached(app, "outer")
    token = CURRENT.set(running)
    try:
        child = add.enqueue(1)
    finally:
        CURRENT.reset(token)
    assert say(child.info).parent == running.taken.job.id
    assert [found.id for found in say(app.jobs.find, parent=running.taken.job.id)] == [child.id]


# duplicates


def test_a_key_allows_one_unfinished_job_per_queue(app: App, add: Any, say: Say, hand: Hand) -> None:
    first = say(add.using(key="k").enqueue, 1)
    again = say(add.using(key="k").enqueue, 2)
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert again == first
    elsewhere = say(add.using(key="k", queue="other").enqueue, 3)
    assert not elsewhere.duplicate
    taken = hand.one()
    assert say(add.using(key="k").enqueue, 4).duplicate, "while it runs, too"
    hand.succeed(taken, 1)
    assert not say(add.using(key="k").enqueue, 5).duplicate


def test_a_duplicate_may_raise_and_names_the_job_that_was_there(app: App, add: Any, say: Say) -> None:
    first = say(add.using(key="k").enqueue, 1)
    with pytest.raises(DuplicateJob, match=first.id) as refused:
        say(add.using(key="k", on_duplicate="raise").enqueue, 2)
    assert refused.value.existing_id == first.id
    assert len(say(app.jobs.find)) == 1


def test_a_duplicate_may_replace_one_that_has_not_started(app: App, add: Any, say: Say, hand: Hand) -> None:
    first = say(add.using(key="k").enqueue, 1)
    second = say(add.using(key="k", on_duplicate="replace").enqueue, 2)
    assert second.id != first.id
    assert not second.duplicate
    assert (say(first.status), say(second.status)) == ("cancelled", "ready")
    assert hand.one().job.id == second.id
    third = say(add.using(key="k", on_duplicate="replace").enqueue, 3)
    assert (third.id, third.duplicate) == (second.id, True), "it had started"


def test_key_ttl_ends_a_key_before_its_job_does(url: str, say: Say) -> None:
    app = App("shop", broker=url)
    task = app.task(name="t")(lambda: None)
    broker = run_blocking(app.connect(blocking=True))
    long_ago = app.job_builder.build(task.using(key="k", key_ttl=5).call())
    run_blocking(broker.put([long_ago], now=app.now() - 6000))
    assert not say(task.using(key="k", key_ttl=5).enqueue).duplicate
    assert say(task.using(key="k", key_ttl=5).enqueue).duplicate
    run_blocking(broker.close())
    app.close()


def test_once_hands_back_the_finished_job_and_its_result(app: App, add: Any, say: Say, hand: Hand) -> None:
    first = say(add.using(key="k", once="24h").enqueue, 1)
    by_id = say(add.using(id="order 1", once="24h").enqueue, 2)
    hand.work()
    for options, job, result in (({"key": "k"}, first, 1), ({"id": "order 1"}, by_id, 2)):
        again = say(add.using(**options, once="24h").enqueue, 99)
        assert (again.id, again.duplicate) == (job.id, True)
        assert say(again.get, timeout=5) == result
    assert hand.work() == 0


def test_a_given_id_that_exists_behaves_like_a_key(app: App, add: Any, say: Say, hand: Hand) -> None:
    first = say(add.using(id="order 1").enqueue, 1)
    assert (first.id, say(add.using(id="order 1").enqueue, 2).duplicate) == ("order 1", True)
    with pytest.raises(DuplicateJob) as refused:
        say(add.using(id="order 1", on_duplicate="raise").enqueue, 3)
    assert refused.value.existing_id == "order 1"
    replaced = say(add.using(id="order 1", on_duplicate="replace").enqueue, 4)
    assert (replaced.id, replaced.duplicate) == ("order 1", False)
    assert say(replaced.info).args == (4,)
    assert hand.work() == 1


# many at once


def test_handles_come_in_the_order_of_the_calls_also_beyond_one_step(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    jobs = say(app.enqueue_many, (add.using(tags=[str(n)]).call(n) for n in range(1200)))
    assert len(set(ids(jobs))) == 1200
    assert hand.work() == 1200
    found = run_blocking(hand.broker.get(ids(jobs)))
    assert [record.job.tags for record in found if record] == [(str(n),) for n in range(1200)]


def test_enqueue_many_takes_calls_of_several_tasks_queues_and_by_name(app: App, add: Any, say: Say) -> None:
    calls = [add.call(1), add.using(queue="q").call(2), app.call("unknown", 3), add.call(b=1, a=2)]
    jobs = say(app.enqueue_many, calls)
    assert [(job.task, job.queue) for job in jobs] == [
        ("add", "default"),
        ("add", "q"),
        ("unknown", "default"),
        ("add", "default"),
    ]
    assert say(app.enqueue_many, []) == []


@pytest.mark.parametrize("wrong", ["add", 5, None, ("add", 1)])
def test_what_is_no_call_is_refused_and_nothing_is_enqueued(app: App, add: Any, say: Say, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"task.call"):
        say(app.enqueue_many, [add.call(1), wrong])
    with pytest.raises(InvalidInput, match=r"task.call"):
        say(app.submit, wrong)
    with pytest.raises(InvalidInput, match="a list of calls"):
        say(app.enqueue_many, add.call(1))
    assert say(app.jobs.find) == []


def test_one_call_that_cannot_be_written_stops_all_of_them(app: App, add: Any, say: Say) -> None:
    with pytest.raises(Exception, match="cannot carry"):
        say(app.enqueue_many, [add.call(1), add.call(object())])
    with pytest.raises(InvalidInput, match="key_ttl"):
        say(app.enqueue_many, [add.call(1), add.using(key_ttl=5).call(2)])
    assert say(app.jobs.find) == []


def test_duplicates_in_a_batch_come_back_in_their_places(app: App, add: Any, say: Say) -> None:
    calls = [add.using(key="a").call(1), add.call(2), add.using(key="a").call(3)]
    first, other, again = say(app.enqueue_many, calls)
    assert (first.duplicate, other.duplicate, again.duplicate) == (False, False, True)
    assert again.id == first.id


def test_a_refused_duplicate_in_a_batch_is_raised_with_the_handles_of_the_others(
    app: App, add: Any, say: Say
) -> None:
    calls = [add.using(key="a", on_duplicate="raise").call(n) for n in range(3)] + [add.call(9)]
    with pytest.raises(DuplicateJob) as refused:
        say(app.enqueue_many, calls)
    assert [type(one) for one in refused.value.accepted] == [JobHandle, JobHandle]
    assert len(say(app.jobs.find)) == 2


# full queues


def bounded(app: App, overflow: Any, **more: Any) -> Any:
    @app.task(max_ready=2, overflow=overflow, **more)
    def small(n: int) -> int:
        return n

    return small


def test_a_full_queue_raises_and_names_itself_and_its_bound(app: App, say: Say) -> None:
    small = bounded(app, "raise")
    with pytest.raises(QueueFull, match="queue 'default' is full: max_ready=2") as refused:
        say(app.enqueue_many, [small.call(n) for n in range(4)])
    assert [say(job.info).args for job in refused.value.accepted] == [(0,), (1,)]  # type: ignore[attr-defined]
    with pytest.raises(QueueFull):
        say(small.enqueue, 5)
    assert len(say(app.jobs.find)) == 2


def test_a_full_queue_may_drop_its_oldest_job_which_is_dead_then(app: App, say: Say) -> None:
    small = bounded(app, "drop-oldest")
    jobs = say(app.enqueue_many, [small.call(n) for n in range(3)])
    assert [say(job.status) for job in jobs] == ["dead", "ready", "ready"]
    assert "dropped" in str(say(jobs[0].info).reason)


def test_a_full_queue_may_be_waited_for(app: App, say: Say) -> None:
    small = bounded(app, "wait")
    say(app.enqueue_many, [small.call(n) for n in range(2)])

    def make_room() -> None:
        with Hand(app) as hand:
            hand.take(2)

    thread = in_thread(make_room, after=0.1)
    jobs = say(app.enqueue_many, [small.call(2)])
    assert say(jobs[0].status) == "ready"
    assert say(say(small.enqueue, 3).status) == "ready"
    thread.join()


def test_the_operators_word_on_full_queues_comes_before_the_tasks(app: App, say: Say) -> None:
    small = bounded(app, "raise")
    say(app.queues.limit, "default", max_ready=1, overflow="wait")
    say(small.enqueue, 1)

    def make_room() -> None:
        app.queues.limit("default", max_ready=5)

    thread = in_thread(make_room, after=0.1)
    assert say(say(small.enqueue, 2).status) == "ready"
    thread.join()
    say(app.queues.limit, "default", max_ready=1, overflow="raise")
    patient = app.task(name="patient", max_ready=1, overflow="wait")(lambda: None)
    with pytest.raises(QueueFull):
        say(patient.enqueue)


def test_a_queue_that_accepts_at_a_rate_says_when_to_come_again(app: App, say: Say) -> None:
    work = app.task(name="work")(lambda n: n)
    say(app.queues.limit, "default", enqueue_rate="1/h+2")
    with pytest.raises(EnqueueLimited, match="accepts no more jobs at this rate: try again in") as refused:
        say(app.enqueue_many, [work.call(n) for n in range(4)])
    assert (refused.value.queue, refused.value.max_ready) == ("default", None)
    assert 3500 < refused.value.retry_after <= 3600
    assert len(refused.value.accepted) == 2
    with pytest.raises(QueueFull):
        say(work.enqueue, 5)
    assert len(say(app.jobs.find)) == 2


def test_a_rate_of_acceptance_may_be_waited_for_and_changed_meanwhile(app: App, say: Say) -> None:
    work = app.task(name="work", overflow="wait")(lambda n: n)
    say(app.queues.limit, "default", enqueue_rate="10/s")
    began = time.monotonic()
    jobs = [say(work.enqueue, n) for n in range(4)]
    assert time.monotonic() - began >= 0.29
    assert [say(job.status) for job in jobs] == ["ready"] * 4
    say(app.queues.limit, "default", enqueue_rate="1/h")
    thread = in_thread(lambda: app.queues.limit("default", enqueue_rate=None), after=0.1)
    assert say(say(work.enqueue, 5).status) == "ready"
    thread.join()


class OnLoop(_Detached):
    """A run on the event loop that all jobs of an executor share."""

    def __init__(self, app: App) -> None:
        super().__init__(app, "outer")
        self.waits = 0

    def waiting(self) -> Any:
        self.waits += 1
        return super().waiting()

    def blocks_loop(self) -> bool:
        return True


def test_waiting_for_room_inside_a_job_gives_the_slot_back_or_is_refused_where_it_would_block(
    memory_app: App,
) -> None:
    app = memory_app
    small = bounded(app, "wait")
    app.enqueue_many([small.call(n) for n in range(2)])
    running = OnLoop(app)

    async def job() -> JobHandle[int]:
        CURRENT.set(running)
        with pytest.raises(WouldBlock, match="aenqueue"):
            small.enqueue(2)
        waiting = asyncio.create_task(small.aenqueue(3))
        await asyncio.sleep(0.05)
        await app.queues.alimit("default", max_ready=9)
        handle: JobHandle[int] = await waiting
        return handle

    assert asyncio.run(job()).status() == "ready"
    assert running.waits == 1


# life


def test_a_lifespan_may_be_a_generator_or_a_context_manager_and_may_take_the_app() -> None:
    async def plain() -> AsyncIterator[str]:
        yield "plain"

    async def with_app(app: App) -> AsyncIterator[str]:
        yield app.name

    @asynccontextmanager
    async def managed() -> AsyncIterator[str]:
        yield "managed"

    class Resources:
        def __init__(self, app: App) -> None:
            self.name = app.name

        async def __aenter__(self) -> str:
            return "resources of " + self.name

        async def __aexit__(self, *_: object) -> None: ...

    async def state(lifespan: Any) -> object:
        app = App("shop", broker="memory://")
        assert app.lifespan(lifespan) is lifespan
        async with app.open_lifespan() as value:
            return value

    wanted = {plain: "plain", with_app: "shop", managed: "managed", Resources: "resources of shop"}
    for lifespan, value in wanted.items():
        assert asyncio.run(state(lifespan)) == value


def test_without_a_lifespan_the_state_is_none_and_a_second_one_is_refused(memory_app: App) -> None:
    async def state() -> object:
        async with memory_app.open_lifespan() as value:
            return value

    assert asyncio.run(state()) is None

    async def resources() -> AsyncIterator[None]:
        yield

    memory_app.lifespan(resources)
    with pytest.raises(InvalidInput, match="one lifespan"):
        memory_app.lifespan(resources)


def test_run_middleware_is_kept_in_order(memory_app: App) -> None:
    @memory_app.middleware
    async def outer(ctx: Context, call_next: Any) -> Any:
        return await call_next()

    @memory_app.middleware
    async def inner(ctx: Context, call_next: Any) -> Any:
        return await call_next()

    assert memory_app.run_middleware == (outer, inner)


# where it lives


def test_the_embedded_broker_makes_its_folder_and_keeps_it_out_of_version_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    monkeypatch.delenv("DRAY_BROKER_URL", raising=False)
    app = App("shop")
    task = app.task(name="t")(lambda: None)
    assert not (tmp_path / ".dray").exists(), "nothing is opened before it is needed"
    task.enqueue()
    assert (tmp_path / ".dray" / "dray.db").is_file()
    assert (tmp_path / ".dray" / ".gitignore").read_text() == "*\n"
    app.close()
    assert len(App("shop").jobs.find()) == 1
    assert App("other").jobs.find() == [], "two apps on one broker never see each other's jobs"


def test_an_app_can_go_on_with_other_settings(tmp_path: Path) -> None:
    app = App("shop", broker="memory://")
    task = app.task(name="t")(lambda: None)
    task.enqueue()
    app.use(override(app.loaded, {"broker_url": f"sqlite:///{tmp_path}/other.db"}))
    assert app.jobs.find() == []
    task.enqueue()
    assert (tmp_path / "other.db").exists()
    app.close()


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 129])
def test_an_app_needs_a_proper_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        App(name, broker="memory://")


@pytest.mark.parametrize("url", ["memory://x", "memory:", "memory:///shared"])
def test_memory_takes_no_path(url: str) -> None:
    with pytest.raises(InvalidInput, match="broker_url"):
        App("shop", broker=url)


def test_settings_of_an_app_are_checked_at_once() -> None:
    with pytest.raises(InvalidInput, match="retries"):
        App("shop", broker="memory://", retries=-1)
    with pytest.raises(InvalidInput, match="did you mean"):
        App("shop", broker="memory://", retrys=1)


def test_an_app_says_what_it_is(memory_app: App) -> None:
    memory_app.task(name="t")(lambda: None)
    assert repr(memory_app) == "<App shop: 1 tasks>"


def test_connect_opens_a_broker_of_ones_own(app: App, add: Any) -> None:
    job = add.enqueue(1)
    broker = run_blocking(app.connect(blocking=True))
    (record,) = run_blocking(broker.get([job.id]))
    run_blocking(broker.close())
    assert record is not None
    assert job.status() == "ready", "the app's own connection is another one"


@pytest.mark.skipif(sys.platform == "win32", reason="threads are enough there")
def test_jobs_put_in_one_turn_of_the_loop_all_land_whatever_becomes_of_their_neighbours(
    app: App, add: Any
) -> None:
    async def main() -> list[Any]:
        calls = [add.aenqueue(n) for n in range(50)]
        calls += [add.using(key_ttl=1).aenqueue(1), add.aenqueue(object())]
        calls += [add.using(durability="full").aenqueue(n) for n in range(5)]
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(main())
    assert [type(one) for one in results[:50]] == [JobHandle] * 50
    assert [type(one).__name__ for one in results[50:52]] == ["InvalidInput", "EncodeError"]
    assert len(app.jobs.find()) == 55


def test_an_enqueue_that_is_cancelled_before_it_was_sent_is_not_sent(app: App, add: Any) -> None:
    async def main() -> None:
        await add.aenqueue(0)  # the link is open
        given_up = asyncio.create_task(add.aenqueue(1))
        await asyncio.sleep(0)
        given_up.cancel()
        await add.aenqueue(2)

    asyncio.run(main())
    assert [info.args for info in app.jobs.find()] == [(2,), (0,)]


def test_enqueue_works_from_many_threads_at_once(app: App, add: Any) -> None:
    made: list[str] = []

    def produce() -> None:
        made.extend(add.enqueue(n).id for n in range(20))

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 160
    assert {info.id for info in app.jobs.find(limit=None)} == set(made)


def test_the_time_a_job_was_enqueued_for_stays_known_and_its_newest_time_is_told() -> None:
    app = App("t", broker="memory://")

    @app.task
    def work() -> None: ...

    with app.testing() as t:
        job = work.using(delay="1h").enqueue()
        before = job.info()
        assert before.updated_at == before.created_at
        t.advance("2h")
        after = job.info()
        assert after.status == "succeeded"
        assert after.due_at == before.due_at
        assert after.updated_at == after.finished_at
