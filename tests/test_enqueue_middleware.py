"""Middleware around enqueue: order, headers, changes, batches, errors, and calls without an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from by_hand import Hand, Say

from dray import App, BrokerAway, DrayError, DuplicateJob, InvalidInput, JobHandle, QueueFull
from dray.client.enqueue_middleware import OutgoingCall

pytest_plugins = ["shop"]


@pytest.fixture
def send(app: App) -> Any:
    @app.task(max_ready=3)
    def send(to: str, body: str = "") -> None: ...

    return send


def test_the_first_middleware_is_outmost_and_sees_the_handle_come_back(app: App, send: Any, say: Say) -> None:
    steps: list[Any] = []

    def layer(name: str) -> None:
        @app.enqueue_middleware
        async def middleware(outgoing: OutgoingCall, call_next: Any) -> Any:
            steps.append((name, "in", outgoing.task, outgoing.args))
            job = await call_next()
            steps.append((name, "out", job.id))
            return job

    layer("a")
    layer("b")
    job = say(send.enqueue, "x")
    assert [step[:2] for step in steps] == [("a", "in"), ("b", "in"), ("b", "out"), ("a", "out")]
    assert steps[0][2:] == ("send", ("x",))
    assert steps[2][2] == job.id
    assert say(job.status) == "ready"


def test_jobs_that_middleware_enqueues_do_not_wait_for_room_either(app: App) -> None:
    @app.task(max_ready=1, overflow="wait")
    def crowded() -> None: ...

    @app.task
    def outer() -> None: ...

    @app.enqueue_middleware
    async def also(outgoing: OutgoingCall, call_next: Any) -> Any:
        if outgoing.task == "outer":
            await app.aenqueue_many([crowded.call(), crowded.call()])
        return await call_next()

    async def main() -> None:
        with pytest.raises(QueueFull):
            await asyncio.wait_for(app.asubmit(outer.call(), wait_for_room=False), 30)

    asyncio.run(main())


def test_headers_travel_with_the_job_alone_and_in_a_batch(app: App, send: Any, say: Say, hand: Hand) -> None:
    @app.enqueue_middleware
    async def trace(outgoing: OutgoingCall, call_next: Any) -> Any:
        outgoing.headers["to"] = outgoing.args[0]
        return await call_next()

    say(send.using(headers={"mine": "1"}).enqueue, "a")
    say(app.enqueue_many, [send.call("b"), send.call("c")])
    assert [taken.job.headers for taken in hand.take()] == [
        {"mine": "1", "to": "a"},
        {"to": "b"},
        {"to": "c"},
    ]


def test_middleware_may_change_arguments_task_and_options(app: App, send: Any, say: Say) -> None:
    @app.enqueue_middleware
    async def change(outgoing: OutgoingCall, call_next: Any) -> Any:
        outgoing.args = (outgoing.args[0].lower(),)
        outgoing.kwargs["body"] = "hi"
        assert (outgoing.queue, outgoing.says("queue"), outgoing.says("priority")) == ("quick", True, False)
        outgoing.change(queue="slow", priority="low", headers={"h": "1"})
        assert (outgoing.queue, outgoing.says("priority")) == ("slow", True)
        return await call_next()

    job = say(send.using(queue="quick", key="k").enqueue, "X")
    info = say(job.info)
    assert (info.args, info.kwargs, info.queue, info.priority) == (("x",), {"body": "hi"}, "slow", 9)
    assert (info.key, job.queue) == ("k", "slow")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"queue": "no queue"}, "queue='no queue': 1-128 characters"),
        ({"priority": 12}, "priority=12"),
        ({"queu": "slow"}, "queu"),
        ({"delay": "soon"}, "delay='soon'"),
    ],
)
def test_an_option_that_middleware_sets_is_checked_like_that_of_a_call(
    app: App, send: Any, say: Say, change: Any, says: str
) -> None:
    @app.enqueue_middleware
    async def middleware(outgoing: OutgoingCall, call_next: Any) -> Any:
        outgoing.change(**change)
        return await call_next()

    with pytest.raises(InvalidInput, match=says):
        say(send.enqueue, "x")
    assert say(app.jobs.find) == []


def test_an_option_that_is_assigned_is_refused_and_not_silently_dropped(
    app: App, send: Any, say: Say
) -> None:
    @app.enqueue_middleware
    async def middleware(outgoing: Any, call_next: Any) -> Any:
        outgoing.queue = "slow"
        return await call_next()

    with pytest.raises(AttributeError, match=r"outgoing\.change\(queue='slow'\)"):
        say(send.enqueue, "x")
    with pytest.raises(InvalidInput, match="option='queues'"):
        OutgoingCall(app, send.call("x")).says("queues")


def test_routes_by_name_leave_alone_what_a_call_says_itself(app: App, send: Any, say: Say) -> None:
    @app.enqueue_middleware
    async def route(outgoing: OutgoingCall, call_next: Any) -> Any:
        if outgoing.task.startswith("se") and not outgoing.says("queue"):
            outgoing.change(queue="routed")
        return await call_next()

    assert say(send.enqueue, "x").queue == "routed"
    assert say(send.using(queue="own").enqueue, "x").queue == "own"
    assert [job.queue for job in say(app.enqueue_many, [send.call("a")])] == ["routed"]
    assert say(app.enqueue, "send", "x").queue == "routed"


def test_what_middleware_makes_of_a_call_is_checked_again(app: App, send: Any, say: Say) -> None:
    change: dict[str, Any] = {}

    @app.enqueue_middleware
    async def middleware(outgoing: OutgoingCall, call_next: Any) -> Any:
        for name, value in change.items():
            setattr(outgoing, name, value)
        return await call_next()

    change["args"] = ()
    with pytest.raises(TypeError, match="send"):
        say(send.enqueue, "x")
    change = {"headers": {"a": 5}}
    with pytest.raises(InvalidInput, match="headers"):
        say(send.enqueue, "x")
    assert say(app.jobs.find) == []


def test_a_call_that_is_not_passed_on_is_not_enqueued_and_gives_what_middleware_returns(
    app: App, send: Any, say: Say
) -> None:
    @app.enqueue_middleware
    async def filter(outgoing: OutgoingCall, call_next: Any) -> Any:
        return None if outgoing.args[0] == "spam" else await call_next()

    assert say(send.enqueue, "spam") is None
    made: list[Any] = say(app.enqueue_many, [send.call("a"), send.call("spam"), send.call("b")])
    assert made[1] is None
    assert [say(job.info).args for job in (made[0], made[2])] == [("a",), ("b",)]
    assert len(say(app.jobs.find)) == 2


def test_a_batch_reaches_the_broker_in_one_step_after_all_have_passed(app: App, send: Any, say: Say) -> None:
    seen: list[str] = []

    @app.enqueue_middleware
    async def watch(outgoing: OutgoingCall, call_next: Any) -> Any:
        seen.append("in " + outgoing.args[0])
        job = await call_next()
        seen.append("out " + outgoing.args[0])
        return job

    jobs = say(app.enqueue_many, [send.call("a"), send.call("b")])
    assert seen == ["in a", "in b", "out a", "out b"]
    assert [say(job.info).args for job in jobs] == [("a",), ("b",)]
    assert say(app.enqueue_many, []) == []


def test_middleware_that_raises_stops_its_whole_batch_and_leaves_no_coroutine_behind(
    app: App, send: Any, say: Say
) -> None:
    cleaned: list[str] = []

    @app.enqueue_middleware
    async def refuse(outgoing: OutgoingCall, call_next: Any) -> Any:
        try:
            if outgoing.args[0] == "bad":
                raise PermissionError("not you")
            return await call_next()
        finally:
            cleaned.append(outgoing.args[0])

    with pytest.raises(PermissionError, match="not you"):
        say(send.enqueue, "bad")
    with pytest.raises(PermissionError, match="not you"):
        say(app.enqueue_many, [send.call("a"), send.call("bad"), send.call("c")])
    assert say(app.jobs.find) == []
    if say.runner is not None:
        say.runner.run(asyncio.sleep(0))
    assert sorted(cleaned) == ["a", "bad", "bad"]


def test_middleware_that_raises_afterwards_raises_in_the_caller_though_the_job_is_there(
    app: App, send: Any, say: Say
) -> None:
    @app.enqueue_middleware
    async def late(outgoing: OutgoingCall, call_next: Any) -> Any:
        await call_next()
        raise RuntimeError("too late")

    with pytest.raises(RuntimeError, match="too late"):
        say(send.enqueue, "a")
    with pytest.raises(RuntimeError, match="too late"):
        say(app.enqueue_many, [send.call("b")])
    assert len(say(app.jobs.find)) == 2


def test_each_call_of_a_batch_hears_its_own_refusal_and_may_swallow_it(app: App, send: Any, say: Say) -> None:
    heard: list[tuple[str, str]] = []

    @app.enqueue_middleware
    async def tell(outgoing: OutgoingCall, call_next: Any) -> Any:
        try:
            return await call_next()
        except (QueueFull, DuplicateJob) as error:
            heard.append((outgoing.args[0], type(error).__name__))
            if outgoing.kwargs.get("body") == "optional":
                return None
            raise

    strict = send.using(key="k", on_duplicate="raise")
    with pytest.raises(DuplicateJob) as refused:
        say(app.enqueue_many, [send.call("a"), strict.call("b"), strict.call("c"), send.call("d")])
    assert heard == [("c", "DuplicateJob")]
    assert len(refused.value.accepted) == 3
    heard.clear()
    assert say(send.enqueue, "e", body="optional") is None
    assert say(app.enqueue_many, [send.call("f", body="optional")]) == [None]
    assert heard == [("e", "QueueFull"), ("f", "QueueFull")]


def test_middleware_may_try_again_when_the_broker_is_away(app: App, send: Any, say: Say) -> None:
    failures = [BrokerAway("gone for lunch")] * 2
    put_one = app.put_one

    async def shaky(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await put_one(*args)

    app.put_one = shaky  # type: ignore[method-assign, assignment]

    @app.enqueue_middleware
    async def insist(outgoing: OutgoingCall, call_next: Any) -> Any:
        while True:
            try:
                return await call_next()
            except BrokerAway:
                continue

    assert say(say(send.enqueue, "a").status) == "ready"
    assert len(say(app.jobs.find)) == 1


def test_in_a_blocking_call_middleware_that_needs_an_event_loop_is_told_to_use_the_twin(
    app: App, send: Any
) -> None:
    naps: list[Any] = [lambda: asyncio.sleep(0), lambda: asyncio.sleep(0.01)]

    @app.enqueue_middleware
    async def nap(outgoing: OutgoingCall, call_next: Any) -> Any:
        await naps[int(outgoing.args[0])]()
        return await call_next()

    for which in "01":
        with pytest.raises(DrayError, match="needs an event loop, in a blocking call: use aenqueue"):
            send.enqueue(which)
        with pytest.raises(DrayError, match="needs an event loop"):
            app.enqueue_many([send.call(which), send.call(which)])

    async def main() -> None:
        assert isinstance(await send.aenqueue("1"), JobHandle)
        assert len(await app.aenqueue_many([send.call("0"), send.call("1")])) == 2
        with pytest.raises(DrayError, match="needs an event loop"):
            send.enqueue("1")

    asyncio.run(main())
    assert len(app.jobs.find()) == 3


def test_awaited_middleware_may_use_all_of_asyncio(app: App, send: Any) -> None:
    @app.enqueue_middleware
    async def careful(outgoing: OutgoingCall, call_next: Any) -> Any:
        async with asyncio.timeout(20):
            await asyncio.sleep(0.001)
        return await asyncio.wait_for(asyncio.create_task(call_next()), 20)

    @app.enqueue_middleware
    async def impatient(outgoing: OutgoingCall, call_next: Any) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(20)
        return await call_next()

    async def main() -> None:
        await send.aenqueue("a")
        jobs = await app.aenqueue_many([send.call("b"), send.call("c")])
        assert [type(job) for job in jobs] == [JobHandle, JobHandle]

    asyncio.run(main())
    assert len(app.jobs.find()) == 3


def test_cancelling_an_enqueue_cancels_its_middleware(app: App, send: Any) -> None:
    seen: list[str] = []

    @app.enqueue_middleware
    async def slow(outgoing: OutgoingCall, call_next: Any) -> Any:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen.append(outgoing.args[0])
            raise

    async def main() -> None:
        for call in (send.aenqueue("a"), app.aenqueue_many([send.call("b")])):
            task = asyncio.create_task(call)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0)

    asyncio.run(main())
    assert seen == ["a", "b"]
    assert app.jobs.find() == []
