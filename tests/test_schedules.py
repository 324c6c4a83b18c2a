"""Schedules in code and at run time: declared, reconciled, made, changed, paused, triggered, deleted."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dray import (
    App,
    Context,
    InvalidInput,
    QueueFull,
    ScheduleExists,
    ScheduleNotFound,
    State,
    UnknownTaskWarning,
)
from dray.schedules.schedule import NEWS


@pytest.fixture
def app() -> App:
    app = App("shop", broker="memory://")

    @app.task(queue="reports", retries=7, tags=["nightly"])
    def report(days: int = 1, *, title: str = "") -> int:
        return days

    return app


# in code


def test_a_declared_schedule_is_there_once_it_is_reconciled_and_has_the_tasks_rules(app: App) -> None:
    app.cron("0 3 * * mon-fri", tz="Europe/London", args=[7], kwargs={"title": "x"}, overlap="skip")(
        app.tasks["report"]
    )
    assert app.schedules.list() == []
    assert app.reconcile_schedules().created == ("report",)
    [info] = app.schedules.list()
    assert (info.name, info.task, info.queue, info.origin) == ("report", "report", "reports", "code")
    assert (info.kind, info.rule, info.tz) == ("cron", "0 3 * * MON-FRI", "Europe/London")
    assert info.description == "at 03:00 on Monday to Friday, Europe/London time"
    assert (info.args, info.kwargs) == ((7,), {"title": "x"})
    assert (info.overlap, info.catch_up, info.jitter) == ("skip", "skip", 0)
    assert (info.last_run, info.run_count, info.last_error, info.last_job) == (None, 0, None, None)
    assert info.next_run is not None
    assert info.upcoming(3)[0] == info.next_run > datetime.now(UTC)
    assert app.schedules.trigger("report").info().retries == 7


def test_schedules_may_be_stacked_and_are_named_after_their_task(app: App) -> None:
    @app.cron("@daily")
    @app.every("30s", name="often")
    @app.every("1h", jitter="5m", queue="slow", priority="low")
    @app.cron("@weekly")
    @app.task
    def tidy() -> None: ...

    assert list(app.declarations) == ["tidy", "tidy-2", "often", "tidy-3"]
    tidy()  # still the task
    app.reconcile_schedules()
    hourly = app.schedules.get("tidy-2")
    assert (hourly.kind, hourly.rule, hourly.tz, hourly.jitter) == ("every", "1h", None, 300)
    assert (hourly.queue, hourly.priority) == ("slow", 9)


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda app: app.cron("@daily")(lambda: None), "write it above @app.task"),
        (lambda app: app.cron("@daily")(App("other", broker="memory://").task(len)), "another app"),
        (lambda app: app.cron("0 0 30 2 *"), "there never is such a day"),
        (lambda app: app.cron("@daily", tz="Mars/Olympus"), "tz="),
        (lambda app: app.cron("@daily", overlap="never")(app.tasks["report"]), "overlap='never'"),
        (lambda app: app.cron("@daily", catch_up="some")(app.tasks["report"]), "catch_up='some'"),
        (lambda app: app.cron("@daily", catch_up_cap=0)(app.tasks["report"]), "1 to 1000"),
        (lambda app: app.cron("@daily", catch_up_cap=1001)(app.tasks["report"]), "1 to 1000"),
        (lambda app: app.cron("@daily", jitter="25h")(app.tasks["report"]), "jitter='25h'"),
        (lambda app: app.cron("@daily", name="a b")(app.tasks["report"]), "name='a b'"),
        (lambda app: app.cron("@daily", args="ab")(app.tasks["report"]), "args='ab'"),
        (lambda app: app.cron("@daily", kwargs=[1])(app.tasks["report"]), "kwargs="),
        (lambda app: app.cron("@daily", delay=5), "one of args"),
        (lambda app: app.cron("@daily", args=[os.urandom(300_000)])(app.tasks["report"]), "may carry"),
        (lambda app: app.every("1ms"), "from 1 second"),
        (lambda app: app.every("1s", queue="no way")(app.tasks["report"]), "queue="),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(
    app: App, declare: Callable[[App], Any], says: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        declare(app)
    assert says in str(caught.value)
    assert app.declarations == {}


def test_arguments_must_fit_the_task_and_names_be_free(app: App) -> None:
    with pytest.raises(TypeError, match="report"):
        app.cron("@daily", args=[1, 2, 3])(app.tasks["report"])
    app.cron("@daily", name="x")(app.tasks["report"])
    with pytest.raises(InvalidInput, match="this name already"):
        app.cron("@daily", name="x")(app.tasks["report"])


# at run time


def test_create_get_list_and_delete(app: App) -> None:
    made = app.schedules.create(
        "weekly",
        app.tasks["report"],
        cron="@weekly",
        args=[7],
        priority="high",
        retries=0,
        tags=["t"],
        ttl="1h",
    )
    assert made == app.schedules.get("weekly")
    assert [info.name for info in app.schedules.list()] == ["weekly"]
    assert (made.origin, made.queue, made.priority, made.tz) == ("user", "reports", 1, "UTC")
    assert made.created_at == made.updated_at
    app.schedules.delete("weekly")
    assert app.schedules.list() == []


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda desk: desk.get("nightli"), ScheduleNotFound, "did you mean nightly?"),
        (lambda desk: desk.pause("zzz"), ScheduleNotFound, "no schedule is named 'zzz'"),
        (lambda desk: desk.resume("zzz"), ScheduleNotFound, "zzz"),
        (lambda desk: desk.trigger("zzz"), ScheduleNotFound, "zzz"),
        (lambda desk: desk.delete("zzz"), ScheduleNotFound, "zzz"),
        (lambda desk: desk.change("zzz", every=5), ScheduleNotFound, "zzz"),
        (lambda desk: desk.get("no way"), InvalidInput, "name="),
        (lambda desk: desk.create("nightly", "report", every=5), ScheduleExists, "'nightly' already"),
        (lambda desk: desk.create("x y", "report", every=5), InvalidInput, "name="),
        (lambda desk: desk.create("x", "re port", every=5), InvalidInput, "task="),
        (lambda desk: desk.create("x", "report"), InvalidInput, "give cron="),
        (lambda desk: desk.create("x", "report", every=5, cron="@daily"), InvalidInput, "either"),
        (lambda desk: desk.create("x", "report", every=5, tz="UTC"), InvalidInput, "no time zone"),
        (lambda desk: desk.create("x", "report", every=5, args=["a", "b"]), TypeError, "report"),
        (lambda desk: desk.create("x", "report", every=5, foo=1), InvalidInput, "foo"),
        (lambda desk: desk.change("nightly"), InvalidInput, "give one of"),
        (lambda desk: desk.change("nightly", foo=1), InvalidInput, "foo"),
        (lambda desk: desk.change("nightly", cron="* *"), InvalidInput, "five fields"),
        (lambda desk: desk.change("often", tz="Asia/Kolkata"), InvalidInput, "no time zone"),
        (lambda desk: desk.change("declared", every=5), InvalidInput, "change it there"),
        (lambda desk: desk.pause("nightly", reason=5), InvalidInput, "reason=5"),
    ],
)
def test_what_goes_wrong_is_said_and_changes_nothing(
    app: App, act: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    app.every("1h", name="declared")(app.tasks["report"])
    app.reconcile_schedules()
    app.schedules.create("nightly", "report", cron="0 3 * * *")
    app.schedules.create("often", "report", every="30s")
    before = app.schedules.list()
    with pytest.raises(error, match=r".*") as caught:
        act(app.schedules)
    assert says in str(caught.value)
    assert app.schedules.list() == before


def test_a_task_that_this_app_does_not_know_is_taken_and_a_near_miss_is_warned_about(app: App) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert app.schedules.create("far", "somewhere.else", every=5).task == "somewhere.else"
    with pytest.warns(UnknownTaskWarning, match="did you mean report"):
        app.schedules.create("near", "reprot", every=5)


def test_change_leaves_what_is_not_said(app: App) -> None:
    desk = app.schedules
    desk.create(
        "x", "report", cron="0 3 * * *", tz="Europe/London", args=[7], kwargs={"title": "a"}, jitter=5
    )
    desk.trigger("x")
    changed = desk.change("x", args=[8])
    assert (changed.args, changed.kwargs, changed.rule, changed.tz) == (
        (8,),
        {"title": "a"},
        "0 3 * * *",
        "Europe/London",
    )
    changed = desk.change("x", cron="0 4 * * *", overlap="skip")
    assert (changed.rule, changed.tz, changed.overlap, changed.jitter) == (
        "0 4 * * *",
        "Europe/London",
        "skip",
        5,
    )
    changed = desk.change("x", tz="Asia/Kolkata")
    assert (changed.rule, changed.tz) == ("0 4 * * *", "Asia/Kolkata")
    changed = desk.change("x", every="1h", queue="q", ttl=0, tags=["b"], kwargs={})
    assert (changed.kind, changed.rule, changed.tz, changed.queue) == ("every", "1h", None, "q")
    assert (changed.args, changed.kwargs) == ((8,), {})
    assert (changed.run_count, changed.last_job is None) == (1, False)
    info = desk.trigger("x").info()
    assert (info.queue, info.tags, info.args) == ("q", ("b", "schedule:x"), (8,))
    with pytest.raises(TypeError):
        desk.change("x", args=[1, 2, 3])


def test_the_next_run_counts_from_now_when_the_rule_changes_and_stays_otherwise(app: App) -> None:
    with app.testing() as t:
        first = app.schedules.create("x", "report", every="1d").next_run
        t.advance("1h")
        assert app.schedules.change("x", args=[2]).next_run == first
        hourly = app.schedules.change("x", every="1h").next_run
        assert hourly is not None
        assert t.now < hourly <= t.now + timedelta(hours=1)


def test_a_paused_schedule_makes_no_jobs_and_what_passed_meanwhile_is_not_made_up_for(app: App) -> None:
    with app.testing() as t:
        app.schedules.create("x", "report", every="1h", catch_up="all")
        paused = app.schedules.pause("x", reason="audit", by="ann")
        assert paused.paused is not None
        assert (paused.paused.by, paused.paused.reason, paused.paused.at) == ("ann", "audit", t.now)
        assert paused.next_run is None
        assert t.advance("5h") == []
        resumed = app.schedules.resume("x")
        assert resumed.paused is None
        assert resumed.next_run is not None
        assert t.now < resumed.next_run <= t.now + timedelta(hours=1)
        assert app.schedules.resume("x") == resumed
        assert len(t.advance("2h")) == 2


def test_trigger_makes_a_job_now_also_while_paused_and_leaves_the_tick_where_it_is(app: App) -> None:
    with app.testing() as t:
        before = app.schedules.create("x", "report", every="1h", args=[3])
        job = app.schedules.trigger("x")
        assert job.status() is State.READY
        assert job.info().tags == ("nightly", "schedule:x")
        t.drain()
        assert job.get(timeout=0) == 3
        after = app.schedules.get("x")
        assert (after.run_count, after.last_job, after.last_run) == (1, job.id, t.now)
        assert after.last_status is State.SUCCEEDED
        assert after.next_run == before.next_run
        app.schedules.pause("x")
        app.schedules.trigger("x")
        app.schedules.trigger("x")
        assert app.schedules.get("x").run_count == 3
        assert len(t.drain()) == 2


def test_trigger_tells_of_a_full_queue_and_counts_nothing(app: App) -> None:
    app.schedules.create("x", "report", every="1h")
    app.queues.limit("reports", max_ready=1)
    app.schedules.trigger("x")
    with pytest.raises(QueueFull):
        app.schedules.trigger("x")
    assert app.schedules.get("x").run_count == 1


def test_every_change_is_announced_to_whoever_runs_schedules(app: App) -> None:
    async def versions() -> None:
        broker = await app.connect()
        desk = app.schedules

        async def version() -> int:
            doc = (await broker.doc(*NEWS)).doc
            return 0 if doc is None else doc.version

        seen = [await version()]
        for act in (
            lambda: desk.acreate("x", "report", every=5),
            lambda: desk.achange("x", every=6),
            lambda: desk.apause("x"),
            lambda: desk.aresume("x"),
            lambda: desk.adelete("x"),
            lambda: app.areconcile_schedules(),
        ):
            await act()
            seen.append(await version())
        assert sorted(set(seen)) == seen

    app.every("1h")(app.tasks["report"])
    asyncio.run(versions())


def test_the_awaited_twins_do_the_same(app: App) -> None:
    async def main() -> None:
        desk = app.schedules
        made = await desk.acreate("x", "report", every="1h")
        assert await desk.alist() == [made]
        assert (await desk.achange("x", every="2h")).rule == "2h"
        assert (await desk.apause("x")).paused is not None
        assert (await desk.aresume("x")).paused is None
        assert (await desk.aget("x")).name == "x"
        assert await (await desk.atrigger("x")).astatus() is State.READY
        await desk.adelete("x")
        assert await desk.alist() == []

    asyncio.run(main())


def test_changes_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Compare-and-set: what one thread writes survives the writes of all others."""
    url = f"sqlite:///{tmp_path / 'db'}"
    first = App("shop", broker=url)
    first.schedules.create("x", "report", every="1h")
    ids: list[str] = []

    def trigger() -> None:
        other = App("shop", broker=url)
        ids.extend(other.schedules.trigger("x").id for _ in range(5))
        other.schedules.change("x", jitter="1s")
        other.close()

    threads = [threading.Thread(target=trigger) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = first.schedules.get("x")
    assert after.run_count == len(ids) == 20
    assert after.last_job in ids
    assert after.jitter == 1
    first.close()


# in testing mode


def test_advance_makes_the_jobs_of_a_day_at_their_times(app: App) -> None:
    seen: list[tuple[str, str, datetime]] = []

    @app.cron("0 */6 * * *", args=["cron"])
    @app.every("8h", name="thrice", args=["every"])
    @app.task
    def note(ctx: Context, what: str) -> None:
        seen.append((what, ctx.headers["schedule"], datetime.fromisoformat(ctx.headers["tick"])))

    with app.testing() as t:
        assert {info.name for info in app.schedules.list()} == {"note", "thrice"}
        ran = t.advance("1d")
        assert len(ran) == 7
        assert {info.started_at for info in ran} == {tick for _, _, tick in seen}
        assert sorted({name for _, name, _ in seen}) == ["note", "thrice"]
        assert app.schedules.get("note").run_count == 4
        assert app.schedules.get("thrice").run_count == 3


def test_advance_finds_schedules_that_a_test_declares_or_makes_on_the_way(app: App) -> None:
    with app.testing() as t:
        app.every("1h")(app.tasks["report"])
        assert len(t.advance("1h")) == 1
        app.schedules.create("x", "report", every="20m")
        assert len(t.advance("1h")) == 4


def test_overlap_rules_hold_in_testing_mode_too(app: App) -> None:
    app.every("1h", overlap="skip")(app.tasks["report"])
    with app.testing() as t:
        app.queues.pause("reports")
        assert t.advance("3h") == []
        info = app.schedules.get("report")
        assert info.run_count == 1
        assert info.last_error is not None
        assert info.last_error.startswith("skipped: the previous run")


def test_a_live_worker_of_a_test_runs_schedules_too(app: App) -> None:
    done = threading.Event()

    @app.every("1s")
    @app.task
    def ring() -> None:
        done.set()

    with app.testing() as t, t.worker():
        assert done.wait(30)
