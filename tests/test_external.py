"""Jobs held by whoever is not a dray worker: the same rules on every broker, in both ways to call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis_server

from dray import App, InvalidInput, LeaseLost, State, TooLarge
from dray.admin.held_job import HeldJob
from dray.broker.verbs import Beat, Broker, run_blocking
from dray.codec import compression
from dray.documents.lease_token import read_token
from dray.job import Error, Progress

BROKERS = ("memory", "sqlite", "valkey")


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redis_server.need("valkey")
    with redis_server.running("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture(params=BROKERS)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    kind = request.param
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(kind)
    namespace = f"n{time.monotonic_ns()}"
    app = App("shop", broker=url or request.getfixturevalue("valkey"), namespace=namespace)
    yield app
    assert run_blocking(app.client.thread_link().broker.audit()) == []
    app.close()


def sweep(app: App) -> int:
    swept = run_blocking(app.client.thread_link().broker.sweep())
    return swept.freed


def lapse(app: App, lease: float = 0.1) -> None:
    """Wait until the lease of whatever is held has run out, and somebody saw it."""
    time.sleep(lease)
    redis_server.wait_until(lambda: sweep(app), "no lease runs out")


async def closing(app: App, scene: Callable[[], Awaitable[None]]) -> None:
    try:
        await scene()
    finally:
        await (await app.client.loop_link()).broker.close()


def one(app: App, **options: Any) -> HeldJob:
    (held,) = app.external.fetch(["default"], **options)
    return held


def test_a_job_is_fetched_with_its_call_and_acked_with_its_result(app: App) -> None:
    job = app.using(priority="high", tags=["x"], retries=7, timeout=5).enqueue("resize", 1, "ü", wide=True)
    held = one(app, lease="1m")
    assert (held.id, held.task, held.queue, held.priority) == (job.id, "resize", "default", 1)
    assert (held.args, held.kwargs) == ((1, "ü"), {"wide": True})
    assert (held.attempt, held.retries, held.timeout, held.tags) == (1, 7, 5.0, ("x",))
    assert not held.suspect
    assert job.status() is State.RUNNING
    assert "an external worker holds it" in str(job.why())
    assert app.external.fetch(["default"]) == []
    assert app.external.ack(held.id, held.token, {"size": 42}) is State.SUCCEEDED
    assert app.external.ack(held.id, held.token, {"size": 42}) is State.SUCCEEDED, "said twice"
    assert job.get(timeout=5) == {"size": 42}


def test_only_what_was_asked_for_is_fetched_in_the_order_of_any_worker(app: App) -> None:
    for n in range(3):
        app.enqueue("a", n)
    app.using(priority="high").enqueue("a", "first")
    app.enqueue("b", 1)
    app.using(queue="other").enqueue("a", 1)
    app.using(delay=3600).enqueue("a", "later")
    held = app.external.fetch(["default"], limit=10, tasks=["a"])
    assert [job.args for job in held] == [("first",), (0,), (1,), (2,)]
    assert len({job.token for job in held}) == 4
    assert [job.task for job in app.external.fetch(["other", "default"], limit=5)] == ["a", "b"]


def test_a_failed_attempt_is_tried_again_by_the_jobs_own_rules_until_it_is_dead(app: App) -> None:
    job = app.using(retries=1, backoff="fixed:0.05,jitter=0").enqueue("a")
    held = one(app)
    error = Error("TypeError", "x is undefined", "at index.js:1")
    assert app.external.nack(held.id, held.token, error=error) is State.RETRYING
    held = one(app, wait=10)
    assert held.attempt == 2
    assert app.external.nack(held.id, held.token, error="again") is State.DEAD
    info = job.info()
    assert info.reason == "failed: Failed: again (2 attempts)"
    assert (info.failures, info.attempt) == (2, 2)


def test_a_nack_may_say_when_and_how(app: App) -> None:
    later, never, back = (app.enqueue("a", n) for n in range(3))
    held = app.external.fetch(["default"], limit=3)
    assert app.external.nack(held[0].id, held[0].token, delay="1h") is State.RETRYING
    assert app.external.nack(held[1].id, held[1].token, how="dead", error="no such file") is State.DEAD
    assert app.external.nack(held[2].id, held[2].token, how="give_back") is State.READY
    due = later.info().due_at
    assert due is not None
    assert due.timestamp() > time.time() + 3000
    assert never.info().reason == "rejected: no such file"
    assert one(app).attempt == 1
    assert back.info().failures == 0


TILES = Progress(2, 3, "tiles", {"left": ["b.png"]})


def test_extend_keeps_all_jobs_of_a_fetch_and_passes_progress_on(app: App) -> None:
    first, second = app.enqueue("a", 1), app.enqueue("a", 2)
    held = app.external.fetch(["default"], limit=2, lease=0.3)
    told = app.external.extend(held[0].id, held[0].token, lease=60, progress=TILES)
    assert not told.cancelling
    time.sleep(0.4)
    assert sweep(app) == 0
    assert first.info().progress == TILES
    assert app.external.ack(held[1].id, held[1].token) is State.SUCCEEDED
    with pytest.raises(LeaseLost):
        app.external.extend(held[1].id, held[1].token)
    assert second.get(timeout=5) is None
    assert (
        app.external.extend(held[0].id, held[0].token, lease="1h").lease_until.timestamp()
        > time.time() + 3000
    )


def test_with_the_last_job_of_a_fetch_its_session_ends(app: App) -> None:
    broker = app.client.thread_link().broker
    for n in range(3):
        app.enqueue("a", n)
    held = app.external.fetch(["default"], limit=3, lease="1h")
    session = app.job(held[0].id).info().worker or ""
    app.external.ack(held[0].id, held[0].token)
    app.external.nack(held[1].id, held[1].token, how="dead")
    assert not _opens(broker, session)
    app.external.nack(held[2].id, held[2].token, how="give_back")
    assert app.external.ack(held[0].id, held[0].token) is State.SUCCEEDED, "said twice, after its end"
    assert _opens(broker, session)


def _opens(broker: Broker, session: str) -> bool:
    """Whether a beat of this session is its first."""
    (heard,) = run_blocking(broker.renew([Beat(session, 1000)]))
    return heard.opened


def test_any_process_of_the_app_understands_a_token(app: App) -> None:
    url, namespace = app.settings.broker_url, app.settings.namespace
    other = app if url == "memory://" else App("shop", broker=url, namespace=namespace)
    app.enqueue("a", 1)
    app.enqueue("a", 2)
    first, second = app.external.fetch(["default"], limit=2)
    assert not other.external.extend(first.id, first.token).cancelling
    assert other.external.ack(first.id, first.token) is State.SUCCEEDED
    assert app.external.ack(second.id, second.token) is State.SUCCEEDED
    assert app.external.ack(first.id, first.token) is State.SUCCEEDED
    other.close()


def test_who_let_the_lease_run_out_has_no_say_any_more(app: App) -> None:
    job = app.enqueue("a")
    late = one(app, lease=0.1)
    lapse(app)
    with pytest.raises(LeaseLost, match="not held by this token"):
        app.external.extend(late.id, late.token)
    held = one(app)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            app.external.ack(late.id, late.token, "late")
        with pytest.raises(LeaseLost):
            app.external.nack(late.id, late.token)
        with pytest.raises(LeaseLost):
            app.external.extend(late.id, late.token)
    assert app.external.ack(held.id, held.token, "in time") is State.SUCCEEDED
    assert job.get(timeout=5) == "in time"


def test_a_token_is_good_for_its_own_job_only_and_cannot_be_made_from_what_is_shown(app: App) -> None:
    app.enqueue("a")
    app.using(queue="other").enqueue("a")
    mine, theirs = one(app), app.external.fetch(["other"])[0]
    with pytest.raises(LeaseLost):
        app.external.ack(theirs.id, mine.token)
    shown = app.job(theirs.id).info().worker
    assert shown is not None
    assert shown.startswith("external:")
    assert shown.removeprefix("external:") not in theirs.token
    for wrong in ("", "nonsense", mine.token[:-3], mine.token + "x", "é", "A" * 300, shown):
        with pytest.raises((InvalidInput, LeaseLost)):
            app.external.ack(theirs.id, wrong)
    with pytest.raises(LeaseLost):
        app.external.nack("never-was", mine.token)
    assert app.external.ack(theirs.id, theirs.token) is State.SUCCEEDED


def test_a_cancel_is_told_with_the_next_extension_and_wins(app: App) -> None:
    job = app.enqueue("a")
    held = one(app)
    job.cancel()
    assert app.external.extend(held.id, held.token).cancelling
    assert app.external.ack(held.id, held.token, 1) is State.CANCELLED


def test_one_whose_holder_died_comes_alone_and_is_dead_as_poison_after_three_more_crashes(app: App) -> None:
    poison = app.enqueue("a", "poison")
    neighbour = app.enqueue("a", "neighbour")
    assert len(app.external.fetch(["default"], limit=10, lease=0.1)) == 2
    lapse(app)
    for _ in range(3):
        (held,) = app.external.fetch(["default"], limit=10, lease=0.1)
        assert held.suspect
        assert held.args == ("poison",)
        lapse(app)
    held = one(app, limit=10)
    assert poison.status() is State.DEAD
    assert (poison.info().reason or "").startswith("poison")
    assert held.args == ("neighbour",)
    assert app.external.ack(held.id, held.token) is State.SUCCEEDED
    assert neighbour.info().crashes == 0


def forged(held: HeldJob, **fields: Any) -> str:
    """A token that looks right for a job, made by somebody who never held it."""
    token = msgspec.structs.replace(read_token(held.id, held.token), secret=b"x" * 16, **fields)
    return msgspec.structs.replace(token, seal=token.seal_of(held.id)).text()


def test_a_forged_token_takes_no_mark_off_and_opens_no_session(app: App) -> None:
    app.using(queue="default").enqueue("shape")
    one(app, lease=0.1)
    lapse(app)
    held = one(app)
    assert held.suspect
    broker = app.client.thread_link().broker
    epoch = read_token(held.id, held.token).epoch + 1  # that of the next session: easily guessed
    token = forged(held, epoch=epoch, lease=86_400_000)
    for call in (app.external.extend, app.external.ack, app.external.nack):
        with pytest.raises(LeaseLost):
            call(held.id, token)
    assert app.external.release(held.id, token) == 0
    assert run_blocking(broker.doc("external", held.id)).doc is not None, "the poison mark is gone"
    session = read_token(held.id, token).session
    (heard,) = run_blocking(broker.renew([Beat(session, 100)]))
    assert heard.opened, "the session was open"
    run_blocking(broker.release(session, suspect=False))
    assert app.external.ack(held.id, held.token) is State.SUCCEEDED
    assert run_blocking(broker.doc("external", held.id)).doc is None


def test_numbers_in_a_token_are_bounded(app: App) -> None:
    app.using(queue="default").enqueue("shape")
    held = one(app)
    for fields in ({"run": 2**63}, {"run": -1}, {"epoch": 2**64 - 1}, {"lease": -5}):
        with pytest.raises(InvalidInput, match="token"):
            app.external.ack(held.id, forged(held, **fields))
    for lease in (0, 2**52):
        wrong = msgspec.structs.replace(read_token(held.id, held.token), lease=lease)
        with pytest.raises(InvalidInput, match="lease"):
            app.external.extend(held.id, wrong.text())
    assert app.external.ack(held.id, held.token) is State.SUCCEEDED


def test_a_suspect_that_was_given_back_or_failed_is_not_blamed(app: App) -> None:
    job = app.using(backoff="fixed:0").enqueue("a")
    one(app, lease=0.1)
    lapse(app)
    for how in ("give_back", "retry", "give_back"):
        held = one(app, wait=5)
        assert held.suspect
        app.external.nack(held.id, held.token, how=how)
    held = one(app, wait=5)
    app.external.release(held.id, held.token)
    held = one(app)
    assert app.external.nack(held.id, held.token, how="crashed", error="SIGSEGV") is State.READY
    assert job.info().crashes == 1


def test_a_fetch_that_waits_is_woken_by_a_job(app: App) -> None:
    async def scene() -> None:
        waiting = asyncio.create_task(app.external.afetch(["default"], wait=60))
        await asyncio.sleep(0.1)
        await app.aenqueue("a", 1)
        (held,) = await asyncio.wait_for(waiting, 20)
        assert await app.external.aack(held.id, held.token) is State.SUCCEEDED
        assert await app.external.afetch(["default"], wait=0.05) == []

    asyncio.run(closing(app, scene))


def test_a_fetch_that_is_broken_off_keeps_nothing(app: App) -> None:
    async def scene() -> None:
        jobs = [await app.aenqueue("a", n) for n in range(20)]
        for pause in range(12):
            fetching = asyncio.create_task(app.external.afetch(["default"], limit=20, lease="1h"))
            for _ in range(pause):
                await asyncio.sleep(0)
            fetching.cancel()
            done = (await asyncio.gather(fetching, return_exceptions=True))[0]
            if isinstance(done, list):
                await app.external.arelease(done[0].id, done[0].token)
        held = await app.external.afetch(["default"], limit=20, wait=10)
        assert [job.id for job in held] == [job.id for job in jobs]
        assert not any(job.suspect for job in held)

    asyncio.run(closing(app, scene))


def test_what_does_not_fit_goes_back_and_what_cannot_be_read_is_dead(app: App) -> None:
    broken = app.enqueue("a", 1)
    run_blocking(_spoil(app, broken.id))
    big = [app.enqueue("a", str(n) * 1000) for n in range(3)]
    held = app.external.fetch(["default"], limit=10, max_bytes=2500)
    assert [job.id for job in held] == [job.id for job in big[:2]]
    assert (app.job("spoilt").info().reason or "").startswith("undecodable: ")
    assert [job.id for job in app.external.fetch(["default"], limit=10)] == [big[2].id]


def test_what_another_server_can_read_is_left_to_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    job = app.enqueue("a", "a" * 100_000)
    with monkeypatch.context() as patch:
        patch.setattr(compression, "_zstd", lambda: None)
        assert app.external.fetch(["default"]) == []
    info = job.info()
    assert info.status is State.RETRYING
    assert "dray[zstd]" in str(info.error)
    job.retry()
    assert [held.args for held in app.external.fetch(["default"])] == [("a" * 100_000,)]


async def _spoil(app: App, id: str) -> None:
    """There is no way to store a broken payload but to put one."""
    broker = app.client.thread_link().broker
    (record,) = await broker.get([id])
    assert record is not None
    spoilt = msgspec.structs.replace(record.job, id="spoilt", payload=b"\x01\xc1")
    await broker.put([spoilt])
    await app.jobs._delete(app.client.thread_link(), id)


WRONG: dict[str, Callable[[App, HeldJob], object]] = {
    "queues": lambda app, held: app.external.fetch([]),
    "queue": lambda app, held: app.external.fetch(["no spaces"]),
    "limit": lambda app, held: app.external.fetch(["a"], limit=0),
    "lease": lambda app, held: app.external.fetch(["a"], lease=0),
    "tasks": lambda app, held: app.external.fetch(["a"], tasks="abc"),
    "wait": lambda app, held: app.external.fetch(["a"], wait=-1),
    "how": lambda app, held: app.external.nack(held.id, held.token, how="maybe"),  # type: ignore[arg-type]
    "delay": lambda app, held: app.external.nack(held.id, held.token, how="dead", delay=1),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_refused_by_its_name(field: str) -> None:
    app = App("shop", broker="memory://")
    app.enqueue("a")
    held = one(app)
    with pytest.raises(InvalidInput, match=field.removesuffix("s")):
        WRONG[field](app, held)
    with pytest.raises(TooLarge):
        app.external.ack(held.id, held.token, "x" * 2_000_000)
    assert app.external.ack(held.id, held.token, "shorter") is State.SUCCEEDED
