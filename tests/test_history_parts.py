"""The parts of the history by themselves: fingerprints, words, redaction, gaps, the duty's manners."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import PostgresServer
from recorded import Recorded

from dray.broker.checks import FEED_KEPT
from dray.broker.verbs import Entry, Event
from dray.errors import HistoryError
from dray.history.api import open_thread
from dray.history.database import open_database
from dray.history.fingerprint import fingerprint, normalize
from dray.history.language import parse
from dray.history.redaction import HIDDEN, JSON_MAX, Redaction, as_json
from dray.history.rows import RowMaker
from dray.history.search import Scope, job_history, search
from dray.history.sqlite import SqliteDatabase
from dray.history.store import Batch, Store
from dray.history.words import joined, split
from dray.job import RUN_ERROR_MAX, Error, Job, Progress, Record, Run, State, short_error
from dray.settings import Settings
from dray.worker.duties.history import IDLE, HistoryWriter, gap_before
from dray.worker.retrying_broker import RetryingBroker

# fingerprints


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no user 42", "no user 7"),
        ("no table 'a'", "no table 'b'"),
        ('key "x" is missing', 'key "y" is missing'),
        ("order 3f2a9c1b-77 failed", "order 99aa9c1b-12 failed"),
        ("first line\nmore 1", "first line\nother"),
    ],
)
def test_errors_that_differ_in_numbers_and_quoted_values_are_one_group(one: str, other: str) -> None:
    assert fingerprint("t", "E", one) == fingerprint("t", "E", other)


def test_task_type_and_words_tell_groups_apart() -> None:
    prints = {
        fingerprint("t", "E", "no user"),
        fingerprint("t", "E", "no table"),
        fingerprint("u", "E", "no user"),
        fingerprint("t", "F", "no user"),
    }
    assert len(prints) == 4
    assert fingerprint("t", "pkg.mod.E", "x") == fingerprint("t", "E", "x")


@given(st.text(max_size=400))
def test_a_shortened_error_has_the_fingerprint_of_the_full_one(message: str) -> None:
    error = Error("ValueError", message)
    kind, _, short = short_error(error).partition(": ")
    if len(message[:100].encode("utf-8", "replace")) < RUN_ERROR_MAX - 20 and message.strip() == message:
        assert fingerprint("t", kind, short) == fingerprint("t", error.type, error.message)


def test_an_open_quote_ends_with_the_line() -> None:
    assert normalize("no 'user") == "no …"


# words


def test_texts_are_split_into_words_at_humps_and_signs() -> None:
    assert split("HTTPError: user_id=42, a.b@c-d") == [
        "http",
        "error",
        "user",
        "id",
        "42",
        "a",
        "b",
        "c",
        "d",
    ]
    assert split("ÜberGroß 1e5") == ["über", "groß", "1e5"]
    assert len(joined(["x " * 5000]).split()) == 1000


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_both_databases_find_the_words_of_any_text(
    kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = open_database(f"sqlite:///{tmp_path}/words.db" if kind == "sqlite" else postgres.url())
    store, rows = Store(database, "shop"), RowMaker(Settings(broker_url="", namespace="shop"))
    count = iter(range(1, 1_000_000))

    @given(st.text(min_size=1, max_size=30))
    def check(text: str) -> None:
        job = Job(id=f"job{next(count)}", task="t", description=text)
        store.write(Batch(jobs=[rows.job(Record(job=job, state=State.DEAD, created=1, finished=2))]))
        quoted = '"' + re.sub(r'(["\\\\])', r"\\\1", text) + '"'
        found = search(store, parse(f"{quoted} id:{job.id}", 0), Scope(), 10, None)
        assert [one.id for one in found] == [job.id]

    try:
        check()
    finally:
        database.close()


# redaction


def test_fields_are_hidden_by_name_at_any_depth_and_in_any_case() -> None:
    hide = Redaction(["*password*", "email.*:body", "pin"])
    found = hide.arguments(
        "email.send",
        ("hi", {"Password2": 1, "list": [{"PIN": 2, "ok": 3}]}),
        {"to": "a"},
        ["body", "more"],
    )
    assert found == {
        "body": HIDDEN,
        "more": {"Password2": HIDDEN, "list": [{"PIN": HIDDEN, "ok": 3}]},
        "to": "a",
    }
    assert hide.arguments("other", ("hi",), {}, ["body"]) == {"body": "hi"}


def test_arguments_beyond_the_known_names_keep_their_place() -> None:
    assert Redaction([]).arguments("t", (1, 2, 3), {}, ["a"]) == {"a": 1, "1": 2, "2": 3}
    assert Redaction([]).arguments("t", (1,), {}, None) == {"0": 1}
    assert Redaction(["x"]).arguments("t", (1,), {}, None) == {"0": HIDDEN}


def test_large_values_and_nul_are_replaced() -> None:
    assert "too large" in as_json("x" * (JSON_MAX + 1))
    assert as_json("a\0b") == '"a\\ufffdb"'


def test_a_payload_that_cannot_be_read_here_is_left_out() -> None:
    rows = RowMaker(Settings(broker_url="", namespace="shop"))
    for payload in (b"", b"\x04pickled", b"\x63own codec", b"\x01\xff\xff"):
        record = Record(job=Job(id="a", task="t", payload=payload), state=State.DEAD, created=1)
        assert rows.job(record).args is None


def test_texts_that_postgresql_cannot_store_are_recorded(history_url: str) -> None:
    rows = RowMaker(Settings(broker_url="", namespace="shop"))
    job = Job(id="a", task="t", description="nul \0 and \ud800", tags=("x",))
    error = Error("E\0", "m\0\ud800", "t\0")
    record = Record(job=job, state=State.DEAD, created=1, finished=2, error=error, reason="r\0")
    database = open_database(history_url)
    try:
        store = Store(database, "shop")
        store.write(Batch(jobs=[rows.job(record)], attempts=list(rows.attempts(record))))
        (found,) = search(store, parse("", 0), Scope(), 10, None)
        assert found.error == "m\ufffd?"
    finally:
        database.close()


# gaps


def entry(number: int, at: int = 0) -> Entry:
    return Entry("q", number, at, (Event("put", "a"),))


def test_holes_in_the_numbers_are_gaps() -> None:
    assert gap_before(entry(1), None, 9) is None
    assert gap_before(entry(2), None, 9) is not None, "the first entries were dropped"
    assert gap_before(entry(8), (7, 0), 9) is None
    assert gap_before(entry(9, 5), (7, 0), 9) is not None
    lost = gap_before(entry(20), (7, 0), 9)
    assert lost is not None
    assert (lost.after, lost.until, lost.at) == (7, 20, 9)
    assert gap_before(entry(1), (7, 0), 9) is not None, "the store began anew"


def test_the_number_that_is_skipped_with_the_feed_of_an_idle_queue_is_no_gap() -> None:
    assert gap_before(entry(9, FEED_KEPT), (7, 0), 9) is None
    assert gap_before(entry(10, FEED_KEPT), (7, 0), 9) is not None, "two entries were dropped unread"


# the duty


def test_a_database_that_is_away_is_logged_once_and_jobs_go_on(caplog: pytest.LogCaptureFixture) -> None:
    shop = Recorded("postgresql://dray@127.0.0.1:1/x")
    shop.app.enqueue("add", 1)
    shop.run()

    async def steps() -> list[float]:
        async with shop.broker() as broker:
            return [await shop.writer.step(RetryingBroker(broker, 1.0)) for _ in range(3)]

    with caplog.at_level(logging.WARNING, "dray.worker"):
        pauses = asyncio.run(steps())
    assert all(pause > 0 for pause in pauses)
    assert sum("the history is not written" in text for text in caplog.messages) == 1
    shop.close()


def test_it_catches_up_after_an_outage(history_url: str, caplog: pytest.LogCaptureFixture) -> None:
    shop = Recorded(history_url)
    shop.app.enqueue("add", 1)
    shop.run()
    away = open_thread("postgresql://dray@127.0.0.1:1/x", "shop")
    there, shop.writer._thread = shop.writer._thread, away

    async def step() -> float:
        async with shop.broker() as broker:
            return await shop.writer.step(RetryingBroker(broker, 1.0))

    asyncio.run(step())
    shop.writer._thread = there
    with caplog.at_level(logging.WARNING, "dray.worker"):
        asyncio.run(step())
    assert "the history is written again" in caplog.messages
    shop.record()
    assert len(shop.ids("")) == 1
    assert asyncio.run(step()) == IDLE
    away.close()
    shop.close()


def test_two_leaders_at_once_write_each_thing_once(history_url: str) -> None:
    shop = Recorded(history_url)
    for number in range(30):
        shop.app.enqueue("add", number)
    shop.app.enqueue("email.send", "nobody")
    shop.run()
    other = HistoryWriter(shop.app.settings)

    async def both() -> None:
        async with shop.broker() as one, shop.broker() as two:
            for _ in range(8):
                await asyncio.gather(
                    shop.writer._step(RetryingBroker(one, 1.0)), other._step(RetryingBroker(two, 1.0))
                )

    asyncio.run(both())
    counts = {task.task: (task.succeeded, task.failed) for task in shop.app.history.stats("1h").tasks}
    assert counts == {"add": (30, 0), "email.send": (0, 2)}
    assert [group.count for group in shop.app.history.errors()] == [2]
    assert len(shop.ids("", limit=100)) == 31
    other._thread.close()
    shop.close()


def test_a_row_of_an_older_record_does_not_replace_a_newer_one(history_url: str) -> None:
    rows = RowMaker(Settings(broker_url="", namespace="shop"))
    job = Job(id="a", task="t")
    old = Record(job=job, state=State.RUNNING, created=1, started=5)
    new = Record(job=job, state=State.SUCCEEDED, created=1, started=5, finished=9)
    database = open_database(history_url)
    try:
        store = Store(database, "shop")
        store.write(Batch(jobs=[rows.job(new)]))
        store.write(Batch(jobs=[rows.job(old)]))
        assert [one.state for one in search(store, parse("", 0), Scope(), 10, None)] == ["succeeded"]
    finally:
        database.close()


def test_with_a_history_finished_jobs_are_kept_until_they_are_read() -> None:
    settings = Settings(broker_url="", namespace="shop", done_ttl=0)
    assert settings.retention.done_ttl == 0
    assert (
        Settings(broker_url="", namespace="shop", done_ttl=0, history_url="x").retention.done_ttl == 600_000
    )


def test_worker_and_progress_of_a_run_outlive_its_end(history_url: str) -> None:
    rows = RowMaker(Settings(broker_url="", namespace="shop"))
    job = Job(id="a", task="t")
    run = Run(1, "host-1-ab/1.1", 5, Progress(3, 10, "pages"))
    running = Record(job=job, state=State.RUNNING, created=1, started=5, run=1, runs=(run,))
    done = Record(job=job, state=State.SUCCEEDED, created=1, started=5, finished=9, run=1, settled=1)
    database = open_database(history_url)
    try:
        store = Store(database, "shop")
        for record in (running, done, done):
            store.write(Batch(jobs=[rows.job(record)], attempts=list(rows.attempts(record))))
        (found,) = search(store, parse("worker:host-1-ab", 0), Scope(), 10, None)
        assert (found.state, found.worker, found.progress) == ("succeeded", "host-1-ab", [3, 10, "pages", {}])
        (attempt,) = job_history(store, "a").attempts
        assert (attempt.outcome, attempt.worker, attempt.run) == ("succeeded", "host-1-ab", 1)
    finally:
        database.close()


# databases


def test_without_fts5_the_same_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plain.db"
    SqliteDatabase(url, index=False).close()
    shop = Recorded(url)
    first = shop.app.using(tags=["vip"]).enqueue("email.send", "nobody", "", 42).id
    shop.app.enqueue("add", 42)
    shop.run()
    shop.record()
    for q in ("tag:vip", "arg.user_id:42", "error:timeout", 'error:"no server"', "connection err"):
        assert shop.ids(q) == [first], q
    assert shop.ids("error:server timeout") == [first]
    assert shop.ids("tag:vi") == []
    with shop.store() as store:
        assert not store.database.indexed
    shop.close()


def test_the_file_of_a_broker_or_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    shop = Recorded(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(HistoryError, match="another use"):
        shop.app.history.search("")
    shop.close()


def test_a_newer_layout_is_refused(history_url: str) -> None:
    database = open_database(history_url)
    if database.dialect == "sqlite":
        database.fetch("PRAGMA user_version = 99")
    else:
        database.fetch("INSERT INTO layout VALUES (99)")
    database.close()
    with pytest.raises(HistoryError, match="layout 99"):
        open_database(history_url)


def test_a_search_after_the_server_came_back_answers(postgres: PostgresServer) -> None:
    shop = Recorded(postgres.url())
    shop.record()
    assert shop.app.history.search("") == []
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    with shop.store() as store:
        store.database.fetch(f"SELECT pg_terminate_backend(pid) {others}")
    with pytest.raises(HistoryError):
        shop.app.history.search("")
    assert shop.app.history.search("") == []
    shop.close()


def test_namespaces_in_one_database_do_not_see_each_other(history_url: str) -> None:
    shop, other = Recorded(history_url), Recorded(history_url, namespace="other")
    shop.app.enqueue("add", 1)
    shop.run()
    shop.record()
    other.record()
    assert len(shop.ids("")) == 1
    assert other.ids("") == []
    assert other.app.history.stats().tasks == []
    shop.close()
    other.close()
