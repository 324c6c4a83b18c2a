"""Why a job stands where it stands: one test per reason."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import Hand, Say

from dray import App, Why
from dray.broker.verbs import Beat, Report, run_blocking
from dray.job import Progress
from dray.roster import WorkerInfo, write_worker

pytest_plugins = ["shop"]


@pytest.fixture
def send(app: App) -> Any:
    @app.task
    def send(n: int = 0) -> None: ...

    return send


def worker(hand: Hand, **fields: Any) -> None:
    fields = {"queues": ("default",), "tasks": ("send",), "processes": 2, "concurrency": 8, **fields}
    info = WorkerInfo(id="w1", host="h", pid=1, started=1, seen=1, **fields)
    run_blocking(write_worker(hand.broker, info, ttl=60_000))


def told(why: Why, code: str, *words: str) -> Why:
    assert why.code == code, why.text
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
    job = type(app.envelope(send.call()))(id="second", task="send", waits_for=(first.id,))
    run_blocking(hand.broker.put([job]))
    told(say(app.job("second").why), "waits_for_jobs", "1 other job to succeed", first.id)


def test_running_and_stopping(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    taken = hand.one()
    told(say(job.why), "running", "hand/1", "attempt 1")
    report = Report(job.id, taken.run, Progress(3, 4, "pages"))
    run_blocking(hand.broker.renew([Beat(hand.session, 60_000, (report,))]))
    told(say(job.why), "running", "at 3 of 4 pages")
    job.cancel("enough")
    told(say(job.why), "stopping", "asked to stop (enough)")


def test_finished(app: App, send: Any, say: Say, hand: Hand) -> None:
    good, bad, gone = send.enqueue(), send.enqueue(), send.enqueue()
    hand.succeed(hand.one())
    hand.die(hand.one(), "ValueError", "no good", reason="retries used up")
    gone.cancel("not needed")
    told(say(good.why), "succeeded")
    told(say(bad.why), "dead", "retries used up", "ValueError: no good", f"dray jobs retry {bad.id}")
    told(say(gone.why), "cancelled", "not needed")


def test_ready_without_any_worker(app: App, send: Any, say: Say, hand: Hand) -> None:
    job = send.enqueue()
    told(say(job.why), "no_workers", "dray worker")
    worker(hand, state="stopping")
    told(say(job.why), "no_workers")


def test_ready_without_a_worker_for_it(app: App, send: Any, say: Say, hand: Hand) -> None:
    worker(hand, priorities=(0, 1, 2, 3))
    told(say(send.using(queue="gpu").enqueue().why), "no_worker_for_queue", "gpu", "served are: default")
    told(say(app.enqueue("newer.task").why), "no_worker_for_task", "newer.task", "nobody's way")
    told(say(send.enqueue().why), "no_worker_for_priority", "priority 5")
    told(say(send.using(priority="high").enqueue().why), "in_line")


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
    send.enqueue()
    hand.one()
    why = told(say(send.enqueue().why), "limited", "task send", "1 at once")
    assert why.details == {"max_running": 1, "running": 1}
    app.queues.limit("default", task="send", max_running=3)
    told(say(send.enqueue().why), "in_line")


def test_ready_but_its_key_or_its_group_is_limited(app: App, say: Say, hand: Hand) -> None:
    @app.task(name="send", max_running=1, running_key="{to}")
    def send(to: str) -> None: ...

    worker(hand)
    send.using(group="g").enqueue("a")
    hand.one()
    told(say(send.enqueue("b").why), "in_line")
    told(say(send.enqueue("a").why), "limited", "with key a runs 1 job")
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
    told(say(limited.why), "in_line", "may start 10 per 1m", "at most 7 of its kind")
