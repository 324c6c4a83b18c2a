"""The history: what the duty records, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from recorded import Recorded

from dray import UnknownTaskWarning
from dray.broker.verbs import Entry, Event
from dray.errors import HistoryError, HistoryOff, InvalidInput, JobNotFound
from dray.history.language import parse


@pytest.fixture
def shop(history_url: str) -> Iterator[Recorded]:
    recorded = Recorded(history_url)
    yield recorded
    recorded.close()


def enqueue(shop: Recorded, task: str, *args: object, **options: object) -> str:
    return shop.app.using(**options).enqueue(task, *args).id  # type: ignore[arg-type]


def test_a_job_is_recorded_with_its_call_result_and_times(shop: Recorded) -> None:
    id = enqueue(shop, "add", 3, 4, tags=["x"], key="sum", description="a sum")
    shop.run()
    shop.record()
    (job,) = shop.app.history.search("")
    assert (job.id, job.task, job.queue, job.state, job.attempt) == (id, "add", "default", "succeeded", 1)
    assert (job.args, job.result, job.tags, job.key) == ({"a": 3, "b": 4}, 7, ["x"], "sum")
    assert job.finished_at is not None
    assert job.created_at <= job.finished_at


def test_attempts_have_their_errors_and_the_job_has_its_events(shop: Recorded) -> None:
    id = enqueue(shop, "email.send", "nobody")
    shop.run()
    shop.record()
    found = shop.app.history.job(id)
    assert [(run.run, run.outcome, run.error_type) for run in found.attempts] == [
        (1, "failed", "ConnectionError"),
        (2, "failed", "ConnectionError"),
    ]
    assert "no server for 'nobody'" in (found.attempts[-1].error or "")
    assert "Traceback" in (found.attempts[-1].traceback or "")
    kinds = [event.kind for event in found.events]
    assert kinds[0] == "put"
    assert kinds[-1] == "died"
    assert kinds.count("taken") == 2
    assert found.jobs[0].state == "dead"


def test_reading_the_feed_again_changes_nothing(shop: Recorded) -> None:
    enqueue(shop, "add", 1)
    enqueue(shop, "email.send", "nobody")
    shop.run()
    shop.record()
    before = everything(shop)
    with shop.store() as store:
        store.database.fetch("DELETE FROM feeds")
    shop.record()
    assert everything(shop) == before


def everything(shop: Recorded) -> list[object]:
    """All rows but the position and the gaps; `seq` may be numbered anew."""
    with shop.store() as store:
        tables = ("attempts", "events", "rollups", "errors", "error_hours")
        rows = [sorted(store.database.fetch(f"SELECT * FROM {table}"), key=repr) for table in tables]
        jobs = sorted(store.database.fetch("SELECT id, created, state, args, result, worker FROM jobs"))
    return [*rows, jobs]


def test_secret_fields_are_hidden_also_where_they_are_given_by_place(shop: Recorded) -> None:
    enqueue(shop, "email.send", "a@x.org", "hunter2")
    shop.run()
    shop.record()
    (job,) = shop.app.history.search("")
    assert job.args == {"to": "a@x.org", "password": "[hidden]"}
    assert job.result == {"sent": "a@x.org", "api_token": "[hidden]"}
    assert shop.ids("hunter2") == []


def test_arguments_of_a_task_whose_parameters_are_not_known_are_hidden(shop: Recorded) -> None:
    with pytest.warns(UnknownTaskWarning):
        id = shop.app.enqueue("email.sand", "hunter2", who="me").id
    shop.app.jobs.cancel([id])
    shop.record()
    (job,) = shop.app.history.search("")
    assert job.args == {"0": "[hidden]", "who": "me"}


def test_redaction_by_task_and_without_payloads(history_url: str) -> None:
    shop = Recorded(history_url, history_redact="email.*:to,add:*")
    enqueue(shop, "email.send", "a@x.org", "seen")
    enqueue(shop, "add", 3)
    shop.run()
    shop.record()
    by_task = {job.task: job for job in shop.app.history.search("")}
    assert by_task["email.send"].args == {"to": "[hidden]", "password": "seen"}
    assert by_task["add"].args == {"": "[hidden]"}
    assert by_task["add"].result == "[hidden]"
    shop.close()

    bare = Recorded(history_url, namespace="bare", history_payloads=False)
    enqueue(bare, "add", 3)
    bare.run()
    bare.record()
    (job,) = bare.app.history.search("")
    assert (job.args, job.result) == (None, None)
    bare.close()


def test_a_gap_is_stored_and_its_jobs_are_read_anew(shop: Recorded) -> None:
    enqueue(shop, "add", 1)
    shop.run()
    shop.record()
    lost = [enqueue(shop, "add", number) for number in range(5)]
    shop.run()
    forget_feed(shop, keep=1)
    later = enqueue(shop, "add", 9)
    shop.run()
    shop.record()
    assert set(lost) | {later} <= set(shop.ids("task:add"))
    with shop.store() as store:
        gaps = [(gap, mended) for gap, mended in store.gaps() if gap.until]
    assert len(gaps) == 1
    assert gaps[0][1] is not None, "its jobs were read anew"
    assert gaps[0][0].until > gaps[0][0].after + 1


def forget_feed(shop: Recorded, keep: int) -> None:
    """Drop entries of the feed, as a reader that is too slow finds it."""

    async def drop() -> None:
        async with shop.broker() as broker:
            for queue in broker._store.queues.values():
                while len(queue.feed) > keep:
                    queue.feed.popleft()

    asyncio.run(drop())


def test_kinds_of_event_that_are_not_known_pass_through(shop: Recorded) -> None:
    id = enqueue(shop, "add", 1)
    shop.run()
    shop.record()

    async def add() -> None:
        async with shop.broker() as broker:
            queue = broker._store.queues["default"]
            queue.entries += 1
            at = queue.feed[-1].at + 5
            queue.feed.append(Entry("default", queue.entries, at, (Event("woken", id, 1),)))

    asyncio.run(add())
    shop.record()
    assert shop.app.history.job(id).events[-1].kind == "woken"


def test_a_new_history_begins_with_the_finished_jobs_that_the_broker_keeps(shop: Recorded) -> None:
    old = enqueue(shop, "add", 1)
    shop.run()
    forget_feed(shop, keep=0)
    shop.record()
    assert shop.ids("") == [old]


def test_an_id_that_is_used_again_has_two_jobs(shop: Recorded) -> None:
    enqueue(shop, "add", 1, id="daily")
    shop.run()
    shop.record()
    shop.app.jobs.delete(["daily"])
    shop.harness.advance(60)
    enqueue(shop, "add", 2, id="daily")
    shop.run()
    shop.record()
    found = shop.app.history.job("daily")
    assert [job.result for job in found.jobs] == [1, 2]
    assert [run.outcome for run in found.attempts] == ["succeeded", "succeeded"]


def test_old_rows_are_deleted_in_bounded_steps_and_not_written_again(history_url: str) -> None:
    shop = Recorded(history_url, history_ttl="1h", done_ttl="1d")
    old = [enqueue(shop, "add", number) for number in range(3)]
    shop.run()
    shop.record()
    shop.harness.advance(2 * 3600)
    fresh = enqueue(shop, "add", 7)
    shop.run()
    shop.writer._prune_at = 0.0
    shop.record()
    assert shop.ids("") == [fresh]
    with shop.store() as store:
        assert {row[0] for row in store.database.fetch("SELECT id FROM events")} == {fresh}
        assert {row[0] for row in store.database.fetch("SELECT id FROM attempts")} == {fresh}
        store.database.fetch("DELETE FROM feeds WHERE queue <> ''")  # as if all were read again
    shop.record()
    assert not set(old) & set(shop.ids(""))
    shop.close()


def test_a_history_that_is_too_large_loses_its_oldest_jobs(history_url: str) -> None:
    shop = Recorded(history_url, history_max_size="1MiB")
    made = []
    for _ in range(100):
        made.append(enqueue(shop, "email.send", f"a@{'x' * 15_000}"))
        shop.harness.advance(1)
    shop.writer._prune_at = float("inf")
    shop.record(200)
    assert set(shop.ids("", limit=1000)) == set(made)
    shop.writer._prune_at = 0.0
    shop.record(200)
    left = shop.ids("", limit=1000)
    assert 20 < len(left) < 100
    assert left == made[::-1][: len(left)], "the oldest went"
    with shop.store() as store:
        assert store.database.fetch("SELECT sum(bytes) FROM jobs")[0][0] <= 1 << 20
        events = {row[0] for row in store.database.fetch("SELECT id FROM events WHERE kind = 'succeeded'")}
    assert set(left) <= events <= {*left, made[-len(left) - 1]}, "events of deleted jobs are deleted too"
    shop.close()


def test_statistics_count_each_run_once(shop: Recorded) -> None:
    for number in range(4):
        enqueue(shop, "add", number)
    enqueue(shop, "email.send", "nobody")
    shop.run()
    shop.record()
    stats = shop.app.history.stats("1h")
    assert stats.source == "history"
    assert stats.step == 60
    counts = {one.task: (one.succeeded, one.failed) for one in stats.tasks}
    assert counts == {"add": (4, 0), "email.send": (0, 2)}
    assert sum(point.succeeded for point in stats.points) == 4
    assert shop.app.history.stats("24h").step == 3600
    assert {one.task for one in shop.app.history.stats("7d", tasks=["add"]).tasks} == {"add"}


def test_errors_are_grouped_by_fingerprint(shop: Recorded) -> None:
    for to in ("nobody", "someone"):
        enqueue(shop, "email.send", to)
    enqueue(shop, "refuse", 7)
    shop.run()
    shop.record()
    errors = shop.app.history.errors()
    counts = {(group.task, group.type): group.count for group in errors}
    assert counts[("email.send", "ConnectionError")] == 4
    group = next(group for group in errors if group.task == "email.send")
    assert sum(group.hours) == 4
    assert group.queues == ["email"]
    assert group.first_seen <= group.last_seen
    assert len(shop.ids(f"fingerprint:{group.fingerprint}")) == 2
    assert shop.app.history.errors(queues=["default"]) == [one for one in errors if one.task == "refuse"]


def test_searches_find_by_field_and_by_word(shop: Recorded) -> None:
    first = enqueue(shop, "email.send", "ann@x.org", "", 42, tags=["vip", "eu"])
    second = enqueue(shop, "email.send", "nobody", "", 43, key="welcome:43")
    third = enqueue(shop, "add", 42, description="the answer")
    shop.run()
    shop.record()
    for q, found in {
        "": {first, second, third},
        "task:email.*": {first, second},
        "task:add,email.send": {first, second, third},
        "task:nothing.*": set(),
        "queue:email": {first, second},
        "state:dead": {second},
        "state:dead,succeeded task:email.send": {first, second},
        "tag:vip": {first},
        "tag:vi": set(),
        "tag:vip tag:eu": {first},
        "arg.user_id:42": {first},
        "arg.a:42": {third},
        "arg.to:nobody": {second},
        'arg.to:"ann@x.org"': {first},
        "arg.user_id:4": set(),
        "key:welcome:43": {second},
        f"id:{third}": {third},
        'error:"timeout"': {second},
        'error:"no server for"': {second},
        "error:answer": set(),
        "answer": {third},
        "answ": {third},
        "42": {first, third},
        "type:ConnectionError": {second},
        "after:1h": {first, second, third},
        "before:1h": set(),
        "after:2020-01-01T00:00Z before:2020-02-01": set(),
        "worker:nobody": set(),
    }.items():
        assert set(shop.ids(q)) == found, q


def test_pages_go_from_the_newest_to_the_oldest(shop: Recorded) -> None:
    made = []
    for number in range(7):
        made.append(enqueue(shop, "add", number))
        shop.run()
    shop.record()
    seen, cursor = [], None
    while True:
        page = shop.app.history.search("", limit=3, cursor=cursor)
        seen += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_scope_limits_what_is_found(shop: Recorded) -> None:
    enqueue(shop, "email.send", "a@x.org")
    third = enqueue(shop, "add", 42)
    shop.run()
    shop.record()
    assert shop.ids("", queues=["default"]) == [third]
    assert shop.ids("task:email.*", queues=["default"]) == []
    assert shop.ids("", tasks=["add"]) == [third]
    assert shop.ids("task:email.send", tasks=["add"]) == []
    assert shop.ids("", queues=[]) == []


def test_values_can_be_left_out_and_are_not_searched_then(shop: Recorded) -> None:
    id = enqueue(shop, "email.send", "nobody", "", 42)
    shop.run()
    shop.record()
    history = shop.app.history
    (job,) = history.search("state:dead task:email.*", values=False)
    assert (job.id, job.args, job.error, job.traceback, job.reason) == (id, None, None, None, None)
    assert job.error_type == "ConnectionError"
    found = history.job(id, values=False)
    assert "nobody" not in repr(found)
    assert [group.message for group in history.errors(values=False)] == [""]
    for q in ("nobody", "error:server", "arg.user_id:42"):
        assert shop.ids(q) == [id]
        with pytest.raises(InvalidInput, match="hidden here"):
            history.search(q, values=False)


@pytest.mark.parametrize(
    ("q", "field", "told"),
    [
        ("state:ded", "state", "one of waiting, scheduled"),
        ("tsk:add", "tsk", "did you mean 'task'"),
        ("after:soon", "after", "30m or 1d"),
        ("http://x", "http", "quote a word with a colon"),
        ('error:"open', "q", 'closing "'),
    ],
)
def test_a_wrong_search_names_the_field_and_what_is_allowed(q: str, field: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        parse(q, 0)
    assert caught.value.field == field


def test_without_a_history_searches_are_refused_and_the_rest_comes_from_the_broker() -> None:
    shop = Recorded("none")
    enqueue(shop, "email.send", "nobody")
    enqueue(shop, "email.send", "a@x.org")
    shop.run()
    with pytest.raises(HistoryOff, match="history_url"):
        shop.app.history.search("")
    with pytest.raises(HistoryOff):
        shop.app.history.job("x")
    errors = shop.app.history.errors()
    assert errors.source == "broker"
    assert "history_url is not set" in errors.note
    assert [(group.task, group.count) for group in errors] == [("email.send", 1)]
    assert shop.app.history.stats().source == "broker"


def test_what_the_history_does_not_know_is_not_found(shop: Recorded) -> None:
    shop.record()
    with pytest.raises(JobNotFound):
        shop.app.history.job("nothing")


def test_awaited_calls_answer_the_same(shop: Recorded) -> None:
    id = enqueue(shop, "email.send", "nobody")
    shop.run()
    shop.record()
    history = shop.app.history

    async def ask() -> None:
        assert await history.asearch("") == history.search("")
        assert await history.astats() == history.stats()
        assert await history.aerrors() == history.errors()
        assert await history.ajob(id) == history.job(id)

    asyncio.run(ask())


def test_a_database_that_is_away_is_an_error_that_names_it() -> None:
    shop = Recorded("postgresql://dray:s3cret@127.0.0.1:1/x")
    with pytest.raises(HistoryError, match=r"127\.0\.0\.1:1/x") as caught:
        shop.app.history.search("")
    assert "s3cret" not in str(caught.value)
    shop.close()
