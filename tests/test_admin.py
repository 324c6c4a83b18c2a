"""What operators do: find, cancel, retry, delete; queues and their limits; dead jobs; workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from by_hand import Hand, Say

from dray import App, InvalidInput, JobHandle, State
from dray.admin.selection import ChangeResult
from dray.broker.verbs import run_blocking
from dray.documents.worker_registry import WorkerInfo, write_worker

pytest_plugins = ["shop"]


@pytest.fixture
def send(app: App) -> Any:
    @app.task(tags=["mail"], timeout=5)
    def send(to: str) -> str:
        return to

    return send


@pytest.fixture
def jobs(app: App, send: Any) -> dict[str, JobHandle[Any]]:
    """One job in each state, named after it."""
    with Hand(app, "making") as hand:
        made = {}
        for state in ("succeeded", "dead", "retrying", "running"):
            made[state] = send.using(key=state, group="g", queue="made").enqueue(state)
            taken = hand.one("made")
            if state == "succeeded":
                hand.succeed(taken, state)
            elif state == "dead":
                hand.die(taken)
            elif state == "retrying":
                hand.retry(taken, at=app.now() + 3_600_000)
    made["cancelled"] = send.using(queue="made").enqueue("cancelled")
    made["cancelled"].cancel()
    made["scheduled"] = send.using(queue="made", delay="1h").enqueue("scheduled")
    made["ready"] = send.using(queue="made", priority=2, tags=["urgent"]).enqueue("ready")
    made["other"] = app.using(priority=6).enqueue("other.task")
    return made


def names(jobs: dict[str, JobHandle[Any]], found: Any) -> set[str]:
    by_id = {job.id: name for name, job in jobs.items()}
    return {by_id[getattr(one, "id", one)] for one in found}


# find


def test_what_fits_is_counted_where_that_costs_little(app: App, send: Any, say: Say) -> None:
    say(app.enqueue_many, [send.call(str(n)) for n in range(7)])
    say(app.enqueue_many, [send.using(queue="other", delay=60).call(str(n)) for n in range(3)])
    assert say(app.jobs.count) == 10
    assert say(app.jobs.count, queue="other") == 3
    assert say(app.jobs.count, state="ready") == 7
    assert say(app.jobs.count, state="ready", queue="other") == 0
    assert say(app.jobs.count, task="send") is None
    assert say(app.jobs.count, since="1h") is None


def test_jobs_are_found_by_when_they_were_created_and_by_their_parent(app: App, send: Any, say: Say) -> None:
    job = say(send.enqueue, "a")
    assert [info.id for info in say(app.jobs.find, since="1h")] == [job.id]
    assert [info.id for info in say(app.jobs.find, since=datetime(2020, 1, 1, tzinfo=UTC))] == [job.id]
    assert say(app.jobs.find, since=datetime(2100, 1, 1, tzinfo=UTC)) == []
    assert say(app.jobs.find, parent=job.id) == []
    odd: list[Any] = ["soon", -5, object()]
    for wrong in odd:
        with pytest.raises(InvalidInput, match="since"):
            say(app.jobs.find, since=wrong)


def test_a_queue_is_dedicated_and_not_any_more(app: App, say: Say) -> None:
    say(app.queues.limit, "gpu", dedicated=True, max_running=2)
    [info] = say(app.queues.list)
    assert (info.name, info.dedicated, info.limits.max_running) == ("gpu", True, 2)
    say(app.queues.limit, "gpu", dedicated=None, max_running=None)
    assert say(app.queues.list) == []
    for wrong in ({"dedicated": "yes"}, {"dedicated": True, "task": "t"}):
        with pytest.raises(InvalidInput, match="dedicated"):
            say(app.queues.limit, "gpu", max_running=3, **wrong)
    assert say(app.queues.list) == [], "nothing is done by halves"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({}, "succeeded dead retrying running cancelled scheduled ready other"),
        *(({"state": state}, state) for state in ("succeeded", "dead", "retrying", "running", "scheduled")),
        ({"state": State.CANCELLED}, "cancelled"),
        ({"state": "ready"}, "ready other"),
        ({"queue": "default"}, "other"),
        ({"queue": "nowhere"}, ""),
        ({"task": "other.task"}, "other"),
        ({"tag": "urgent"}, "ready"),
        ({"tag": "mail", "state": "ready"}, "ready"),
        ({"group": "g", "state": "dead"}, "dead"),
        ({"key": "running"}, "running"),
        ({"priority": "high"}, "ready"),
        ({"priority": 2}, "ready"),
        ({"priority": "low"}, ""),
        ({"priority": "normal", "task": "other.task"}, "other"),
        ({"priority": 5, "task": "other.task"}, ""),
        ({"state": None, "queue": "default"}, "other"),
    ],
)
def test_jobs_are_found_by_what_they_are(
    app: App, jobs: dict[str, JobHandle[Any]], say: Say, where: Any, found: str
) -> None:
    assert names(jobs, say(app.jobs.find, **where)) == set(found.split())


@pytest.mark.parametrize(
    ("where", "field", "allowed"),
    [
        ({"state": "pending"}, "state", "waiting, scheduled, ready"),
        ({"state": "not_found"}, "state", "waiting, scheduled, ready"),
        ({"priority": 10}, "priority", "0 to 9"),
        ({"priority": "urgent"}, "priority", "high, normal, low"),
        ({"queue": "a b"}, "queue", "1-128 characters"),
        ({"colour": "red"}, "filter", "state, queue, task"),
        ({"limit": 0}, "limit", "a number from 1"),
        ({"limit": "5"}, "limit", "a number from 1"),
        ({"cursor": "x"}, "cursor", "an earlier page"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(
    app: App, say: Say, where: Any, field: str, allowed: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        say(app.jobs.find, **where)
    assert refused.value.field == field
    assert allowed in str(refused.value)


def test_find_comes_in_pages_or_all_at_once(app: App, send: Any, say: Say) -> None:
    made = say(app.enqueue_many, [send.call(str(n)) for n in range(1050)])
    page = say(app.jobs.find)
    assert len(page) == 100
    assert page.cursor is not None
    more = say(app.jobs.find, cursor=page.cursor, limit=30)
    assert len(more) == 30
    assert not {info.id for info in page} & {info.id for info in more}
    everything = say(app.jobs.find, limit=None)
    assert [info.id for info in everything] == [job.id for job in made[::-1]], "the newest first"
    assert everything.cursor is None
    assert [info.id for info in page] == [job.id for job in made[:-101:-1]]
    assert len(say(app.jobs.find, limit=1040)) == 1040


# change


def test_a_change_takes_ids_handles_infos_or_what_find_found(
    app: App, jobs: dict[str, JobHandle[Any]], say: Say
) -> None:
    selections: list[Any] = [
        jobs["ready"].id,
        jobs["ready"],
        say(jobs["ready"].info),
        [jobs["ready"].id, jobs["ready"]],
        say(app.jobs.find, tag="urgent"),
        (job for job in [jobs["ready"]]),
    ]
    for selection in selections:
        changed = say(app.jobs.cancel, selection, dry_run=True)
        assert changed.ids == [jobs["ready"].id]
        assert (len(changed), bool(changed), changed.dry_run) == (1, True, True)
    assert say(jobs["ready"].status) == "ready"
    assert say(app.jobs.cancel, []) == ChangeResult(ids=[], refused={})


def test_what_could_not_be_changed_says_why(app: App, jobs: dict[str, JobHandle[Any]], say: Say) -> None:
    picked: list[Any] = [jobs["ready"], jobs["succeeded"], "nobody"]
    changed = say(app.jobs.cancel, picked, reason="spring cleaning")
    assert changed.ids == [jobs["ready"].id]
    assert changed.refused.keys() == {jobs["succeeded"].id, "nobody"}
    assert "succeeded" in changed.refused[jobs["succeeded"].id]
    assert say(jobs["ready"].info).reason == "spring cleaning"
    assert say(app.jobs.delete, jobs["running"]).refused == {
        jobs["running"].id: "it is running: cancel it first"
    }


@pytest.mark.parametrize("selection", [5, [5], [None], object(), [""]])
def test_what_is_no_selection_is_refused(app: App, say: Say, selection: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^(selection|id)="):
        say(app.jobs.delete, selection)


@pytest.mark.parametrize("where", [{}, {"queue": None}, {"state": None, "task": None}])
def test_a_change_of_everything_has_to_be_asked_for(
    app: App, jobs: dict[str, JobHandle[Any]], say: Say, where: Any
) -> None:
    for change in (app.jobs.cancel, app.jobs.retry, app.jobs.delete):
        with pytest.raises(InvalidInput, match="give either jobs or a filter"):
            say(change, **where)
    with pytest.raises(InvalidInput, match="give either jobs or a filter"):
        say(app.jobs.delete, jobs["ready"], queue="made")
    assert len(say(app.jobs.find)) == 8


def test_changes_by_filter_are_tried_first_and_then_made(
    app: App, jobs: dict[str, JobHandle[Any]], say: Say
) -> None:
    would = say(app.jobs.cancel, queue="made", dry_run=True)
    assert names(jobs, would.ids) == {"retrying", "running", "scheduled", "ready"}
    assert say(jobs["ready"].status) == "ready"
    assert set(say(app.jobs.cancel, queue="made").ids) == set(would.ids)
    assert say(jobs["ready"].status) == "cancelled"
    assert say(jobs["running"].info).cancelling
    retried = say(app.jobs.retry, state="cancelled", tag="urgent")
    assert names(jobs, retried.ids) == {"ready"}
    deleted = say(app.jobs.delete, state=State.DEAD)
    assert names(jobs, deleted.ids) == {"dead"}
    assert say(jobs["dead"].status) == "not_found"


def test_long_changes_tell_how_far_they_are(app: App, send: Any, say: Say) -> None:
    made = say(app.enqueue_many, [send.call(str(n)) for n in range(1100)])
    told: list[int] = []
    assert len(say(app.jobs.cancel, queue="default", progress=told.append)) == 1100
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == 1100
    told.clear()
    assert len(say(app.jobs.delete, made, progress=told.append)) == 1100
    assert told == [1000, 1100]
    assert say(app.jobs.find) == []


# queues


def test_queues_are_listed_with_what_they_hold(app: App, jobs: dict[str, JobHandle[Any]], say: Say) -> None:
    default, made = say(app.queues.list)
    assert (default.name, made.name) == ("default", "made")
    assert default.counts[State.READY] == 1
    counts = {state: count for state, count in made.counts.items() if count}
    assert counts == dict.fromkeys((State(name) for name in jobs if name != "other"), 1)


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(
    app: App, send: Any, say: Say, hand: Hand
) -> None:
    say(send.enqueue, "a")
    say(app.enqueue, "other.task")
    say(app.queues.pause, "default", reason="deploy", by="ops")
    assert hand.take() == []
    (queue,) = say(app.queues.list)
    assert queue.paused is not None
    assert (queue.paused.reason, queue.paused.by) == ("deploy", "ops")
    say(app.queues.resume, "default")
    say(app.queues.pause, "default", task="send")
    assert [taken.job.task for taken in hand.take()] == ["other.task"]
    say(app.queues.resume, "default", task="send")
    assert len(hand.take()) == 1


def test_limits_hold_for_all_and_can_be_taken_back(app: App, send: Any, say: Say, hand: Hand) -> None:
    say(app.enqueue_many, [send.call(str(n)) for n in range(5)])
    say(app.queues.limit, "default", max_running=2)
    assert len(hand.take()) == 2
    say(app.queues.limit, "default", max_running=None, rate="1/h")
    assert len(hand.take()) == 1
    (queue,) = say(app.queues.list)
    assert (queue.limits.max_running, queue.limits.rate) == (None, "1/h")
    say(app.queues.limit, "default", rate=None)
    say(app.queues.limit, "default", task="send", max_running=4)
    assert len(hand.take()) == 1


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({}, "limit"),
        ({"speed": 1}, "limit"),
        ({"rate": "fast"}, "rate"),
        ({"max_running": 0}, "max_running"),
        ({"overflow": "explode"}, "overflow"),
        ({"task": "send", "max_ready": 5}, "max_ready"),
    ],
)
def test_limits_that_mean_nothing_are_refused(app: App, say: Say, limits: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        say(app.queues.limit, "default", **limits)
    assert refused.value.field == field


def test_purge_deletes_what_waits_and_leaves_the_rest(
    app: App, jobs: dict[str, JobHandle[Any]], say: Say
) -> None:
    would = say(app.queues.purge, "made", dry_run=True)
    assert names(jobs, would.ids) == {"retrying", "scheduled", "ready"}
    only = say(app.queues.purge, "made", states="scheduled")
    assert names(jobs, only.ids) == {"scheduled"}
    assert names(jobs, say(app.queues.purge, "made", task="other.task").ids) == set()
    assert names(jobs, say(app.queues.purge, "made").ids) == {"retrying", "ready"}
    left = say(app.jobs.find)
    assert names(jobs, left) == {"succeeded", "dead", "running", "cancelled", "other"}
    with pytest.raises(InvalidInput, match="cancel them first"):
        say(app.queues.purge, "made", states=["running"])
    for queue in (None, "", "a b"):
        with pytest.raises(InvalidInput, match=r"^queue="):
            say(app.queues.purge, queue)  # type: ignore[arg-type]
    assert len(say(app.jobs.find)) == 5


# dead


@pytest.fixture
def graves(app: App, send: Any) -> list[JobHandle[Any]]:
    made = [send.enqueue("a"), send.using(queue="slow").enqueue("b"), app.enqueue("other.task")]
    with Hand(app, "burying") as hand:
        for taken in hand.take(queues=("default", "slow")):
            hand.die(taken)
    return made


def test_dead_jobs_are_listed_replayed_and_purged_by_task_queue_and_age(
    app: App, graves: list[JobHandle[Any]], say: Say
) -> None:
    a, b, c = (job.id for job in graves)

    def listed(**which: Any) -> set[str]:
        return {info.id for info in say(app.dead.list, **which)}

    assert listed() == {a, b, c}
    assert listed(task="send") == {a, b}
    assert listed(queue="slow") == {b}
    assert listed(older="1h") == set()
    assert listed(older=0) == {a, b, c}
    assert len(listed(limit=2)) == 2
    clock = app.clock
    app.clock = lambda: clock() + 3_700_000
    assert listed(older="1h", task="send") == {a, b}
    assert set(say(app.dead.replay, older="1h", dry_run=True).ids) == {a, b, c}
    app.clock = clock
    assert say(app.dead.replay, queue="slow").ids == [b]
    assert say(app.job(b).status) == "ready"
    assert say(app.dead.purge, task="other.task").ids == [c]
    assert say(app.dead.purge, [a, b, "nobody"]) == ChangeResult(
        ids=[a], refused={b: "it is ready, not dead", "nobody": "there is no such job"}
    )
    assert say(app.job(b).status) == "ready", "only the dead are purged"
    assert say(app.dead.purge).ids == []


def test_filters_of_dead_jobs_are_checked(app: App, graves: list[JobHandle[Any]], say: Say) -> None:
    calls: list[Any] = [app.dead.list, app.dead.replay, app.dead.purge]
    for call in calls:
        with pytest.raises(InvalidInput, match=r"'state'.*task, queue, older"):
            say(call, state="ready")
        with pytest.raises(InvalidInput, match=r"^older="):
            say(call, older="long")
    with pytest.raises(InvalidInput, match="either jobs or a filter"):
        say(app.dead.purge, graves[0], task="send")
    assert say(app.dead.replay, graves[0], task=None).ids == [graves[0].id]


# workers


def test_workers_are_those_heard_of_lately(app: App, say: Say, hand: Hand) -> None:
    assert say(app.workers.list) == []
    info = WorkerInfo(id="w1", host="h", pid=1, started=1, seen=2, queues=("default",), tasks=("send",))
    run_blocking(write_worker(hand.broker, info, ttl=60_000))
    run_blocking(write_worker(hand.broker, WorkerInfo(id="w0", host="h", pid=2, started=1, seen=2), 60_000))
    assert [worker.id for worker in say(app.workers.list)] == ["w0", "w1"]
    assert say(app.workers.list)[1] == info


def test_every_operation_has_a_twin_with_the_same_signature_and_text(memory_app: App) -> None:
    import inspect

    desks = [memory_app, memory_app.jobs, memory_app.queues, memory_app.dead, memory_app.workers]
    for desk in [*desks, memory_app.job("x")]:
        for name, method in inspect.getmembers(type(desk), inspect.isfunction):
            if name.startswith("_") or inspect.iscoroutinefunction(method):
                continue
            twin = getattr(type(desk), "a" + name, None)
            if twin is not None:
                assert inspect.iscoroutinefunction(twin), name
                assert inspect.signature(method).parameters == inspect.signature(twin).parameters, name
                assert method.__doc__, name


# reschedule


def test_a_job_is_rescheduled_by_its_handle_or_by_filter(
    app: App, jobs: dict[str, JobHandle[Any]], say: Say
) -> None:
    end = datetime(9999, 12, 31, tzinfo=UTC)
    assert say(jobs["scheduled"].reschedule, at=end)
    assert say(jobs["scheduled"].info).due_at == end
    assert say(jobs["retrying"].reschedule, delay=0)
    assert say(jobs["retrying"].status) is State.READY
    assert say(jobs["ready"].reschedule, delay="2d")
    assert not say(jobs["running"].reschedule, delay=1)
    changed = say(app.jobs.reschedule, queue="made", state="scheduled", delay="1h")
    assert names(jobs, changed.ids) == {"scheduled", "ready"}
    assert say(app.jobs.reschedule, [jobs["dead"]], delay=1).refused == {jobs["dead"].id: "it is dead"}


@pytest.mark.parametrize("when", [{}, {"delay": 1, "at": datetime.now(UTC)}, {"at": "noon"}, {"delay": ""}])
def test_a_reschedule_without_one_time_is_refused(app: App, when: Any) -> None:
    with pytest.raises(InvalidInput):
        app.job("any").reschedule(**when)


# guarantees


def test_guarantees_are_those_of_the_broker(app: App, say: Say) -> None:
    found = say(app.guarantees.read)
    assert (found.losses, found.repairs.counts, found.servers, found.warnings) == (0, {}, (), ())
    assert found.broker == app.settings.broker_url.partition(":")[0]
    assert found.survives_restart is (found.broker == "sqlite")
