"""dray.v1 over a real connection, on the embedded broker and on a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis_server
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_client import Client, Failed, Stage, play, until

from dray.app import App
from dray.serve.rpc import dray_pb2 as pb


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redis_server.need("valkey")
    with redis_server.running("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture(params=["sqlite", "valkey"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("valkey")
    namespace = f"n{time.monotonic_ns()}"
    app = App("shop", broker=url, namespace=namespace, accept_unknown_tasks=True, sweep_interval="50ms")
    yield app
    app.close()


# producers


def test_a_job_goes_in_with_all_it_can_have_and_comes_out_the_same(app: App) -> None:
    async def scene(stage: Stage) -> None:
        done = await stage.client(
            "Enqueue",
            task="resize",
            queue="images",
            args_json='[1, "ü", 12345678901234567890]',
            kwargs_json='{"wide": true}',
            priority=2,
            id="photo/7",
            key="photo",
            max_retries=7,
            timeout_seconds=12.5,
            tags=["a", "b"],
            group="tenant",
            description="a photo",
            headers={"traceparent": "00-1"},
        )
        assert done == pb.EnqueueResponse(id="photo/7", status=pb.STATE_READY)
        job = await stage.client("Get", id="photo/7")
        assert json.loads(job.args_json) == [1, "ü", 12345678901234567890]
        assert (job.task, job.queue, job.priority, job.key) == ("resize", "images", 2, "photo")
        assert (job.max_retries, job.timeout_seconds, list(job.tags)) == (7, 12.5, ["a", "b"])
        assert abs(job.created_at.seconds - time.time()) < 60
        assert not job.HasField("result_json")
        held = await stage.client.one("images")
        assert json.loads(held.args_json) == [1, "ü", 12345678901234567890]
        assert json.loads(held.kwargs_json) == {"wide": True}
        assert held.headers == {"traceparent": "00-1"}
        assert (held.group, held.description, held.payload) == ("tenant", "a photo", b"")

    play(app, scene)


def test_jobs_can_be_delayed_by_seconds_or_until_a_time(app: App) -> None:
    async def scene(stage: Stage) -> None:
        soon = await stage.client("Enqueue", task="a", delay_seconds=0.2)
        assert (await stage.app.astats()).accepted == {"a": {"default": {"grpc": 1}}}
        assert soon.status == pb.STATE_SCHEDULED
        at = Timestamp()
        at.FromDatetime(datetime(2099, 1, 1, tzinfo=UTC).replace(tzinfo=None))
        late = await stage.client("Enqueue", task="a", at=at)
        assert (await stage.client("Get", id=late.id)).due_at == at
        assert (await stage.client.one(wait=20)).id == soon.id

    play(app, scene)


def test_the_same_id_or_key_again_is_a_duplicate_or_an_error(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        first = await client("Enqueue", task="a", id="mine", key="k")
        assert not first.duplicate
        both: tuple[dict[str, Any], ...] = ({"id": "mine"}, {"key": "k"})
        for again in both:
            answer = await client("Enqueue", task="a", **again)
            assert (answer.id, answer.duplicate) == ("mine", True)
            failed = await client.fails("Enqueue", task="a", on_duplicate=pb.ON_DUPLICATE_RAISE, **again)
            assert (failed.status, failed.code) == ("ALREADY_EXISTS", "duplicate_job")
            assert failed.trailers["dray-existing-id"] == "mine"
        await client("Enqueue", task="b", id="mine", on_duplicate=pb.ON_DUPLICATE_REPLACE)
        assert (await client("Get", id="mine")).task == "b"

    play(app, scene)


def test_every_item_of_a_batch_has_its_own_result(app: App) -> None:
    async def scene(stage: Stage) -> None:
        jobs = [
            pb.EnqueueRequest(task="a", id="1"),
            pb.EnqueueRequest(task="no name"),
            pb.EnqueueRequest(task="a", args_json="{"),
            pb.EnqueueRequest(task="a", id="1"),
            pb.EnqueueRequest(task="a", key="k", id="2"),
            pb.EnqueueRequest(task="a", id="1", on_duplicate=pb.ON_DUPLICATE_RAISE),
        ]
        answer = await stage.client("EnqueueBatch", jobs=jobs)
        told = [one.accepted.id or (one.refused.status, one.refused.field) for one in answer.results]
        assert told == ["1", (3, "task"), (3, "args_json"), "1", "2", (6, "key")]
        assert [one.accepted.duplicate for one in answer.results][:4] == [False, False, False, True]
        for jobs in ([], [pb.EnqueueRequest(task="a")] * 1001):
            assert (await stage.client.fails("EnqueueBatch", jobs=jobs)).field == "jobs"
        many = [pb.EnqueueRequest(task="a") for _ in range(1000)]
        answer = await stage.client("EnqueueBatch", jobs=many)
        assert len({one.accepted.id for one in answer.results}) == 1000

    play(app, scene)


def test_cancel_and_delete(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        job = await client("Enqueue", task="a")
        assert (await client("Cancel", id=job.id, reason="not wanted")).cancelled
        assert not (await client("Cancel", id=job.id)).cancelled
        assert (await client("Get", id=job.id)).reason == "not wanted"
        await client("Delete", id=job.id)
        for method in ("Get", "Cancel", "Delete", "WaitResult"):
            assert (await client.fails(method, id=job.id)).status == "NOT_FOUND"
        await client("Enqueue", task="a")
        held = await client.one()
        failed = await client.fails("Delete", id=held.id)
        assert (failed.status, failed.code) == ("FAILED_PRECONDITION", "not_deleted")

    play(app, scene)


def test_a_result_is_waited_for_until_it_is_there(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        job = await client("Enqueue", task="a")
        waiting = asyncio.create_task(client("WaitResult", id=job.id))
        held = await client.one(wait=20)
        await client("Ack", id=held.id, token=held.token, result_json='{"size": 42}')
        ended = await waiting
        assert (ended.status, ended.result_json) == (pb.STATE_SUCCEEDED, '{"size":42}')
        assert await stage.app.job(job.id).aget(5) == {"size": 42}
        job = await client("Enqueue", task="a", max_retries=0)
        early = await client("WaitResult", id=job.id, wait=0.05)
        assert early.status == pb.STATE_READY
        held = await client.one(wait=20)
        error = pb.Error(type="TypeError", message="no", traceback="at x.js:1")
        answer = await client("Nack", id=held.id, token=held.token, error=error)
        assert answer.status == pb.STATE_DEAD
        ended = await client("WaitResult", id=job.id)
        assert ended.error == error
        assert not ended.HasField("result_json")

    play(app, scene)


def test_a_job_without_a_result_says_why(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        job = await client("Enqueue", task="a", result_ttl_seconds=0)
        held = await client.one(wait=20)
        await client("Ack", id=held.id, token=held.token, result_json="42")
        for method in ("WaitResult", "Get"):
            ended = await client(method, id=job.id)
            assert ended.status == pb.STATE_SUCCEEDED
            assert not ended.HasField("result_json")
            assert "results are off (result_ttl=0" in ended.reason
        job = await client("Enqueue", task="a")
        held = await client.one(wait=20)
        await client("Ack", id=held.id, token=held.token, result_json="null")
        ended = await client("WaitResult", id=job.id)
        assert (ended.result_json, ended.reason) == ("null", "")

    play(app, scene)


def test_a_deadline_ends_a_wait_and_nothing_is_left_of_it(app: App) -> None:
    async def scene(stage: Stage) -> None:
        job = await stage.client("Enqueue", task="a", delay_seconds=3600)
        assert (await stage.client.fails("WaitResult", id=job.id, timeout=0.2)).status == "DEADLINE_EXCEEDED"
        call = stage.client.start("WaitResult", id=job.id)
        link = await stage.app.client.loop_link()

        async def watched() -> bool:
            return job.id in link.waiters.by_job

        await until(watched, "nobody waits")
        call.cancel()

        async def forgotten() -> bool:
            return not await watched()

        await until(forgotten, "a wait that nobody wants goes on")

    play(app, scene)


# workers


def test_what_is_fetched_is_settled_in_every_way(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        ids = [(await client("Enqueue", task="a", args_json=f"[{n}]", max_retries=1)).id for n in range(5)]
        held = (await client("FetchAndHold", queues=["default"], limit=10, lease=30)).jobs
        assert [job.id for job in held] == ids
        kinds = (
            (pb.NACK_KIND_UNSPECIFIED, pb.STATE_RETRYING),
            (pb.NACK_KIND_DEAD, pb.STATE_DEAD),
            (pb.NACK_KIND_GIVE_BACK, pb.STATE_READY),
            (pb.NACK_KIND_CRASHED, pb.STATE_READY),
        )
        for job, (kind, status) in zip(held, kinds, strict=False):
            answer = await client("Nack", id=job.id, token=job.token, kind=kind)
            assert answer.status == status
        last = held[4]
        for _ in range(2):
            answer = await client("Ack", id=last.id, token=last.token)
            assert answer.status == pb.STATE_SUCCEEDED
        assert (await client("Get", id=last.id)).result_json == "null"
        failed = await client.fails("Extend", id=last.id, token=last.token)
        assert (failed.status, failed.code) == ("FAILED_PRECONDITION", "lease_lost")

    play(app, scene)


def test_extend_carries_progress_and_brings_word_of_a_cancel(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        job = await client("Enqueue", task="a")
        held = await client.one(lease=60)
        progress = pb.Progress(done=3, total=10, note="tiles", data_json='{"left":["b.png"]}')
        answer = await client("Extend", id=held.id, token=held.token, lease=3600, progress=progress)
        assert not answer.cancelling
        assert answer.lease_until.seconds > time.time() + 3000
        told = await client("Get", id=job.id)
        assert told.progress == progress
        assert [run.outcome for run in told.run_history] == ["running"]
        assert (await client("Cancel", id=job.id, force=True)).cancelled
        assert (await client("Extend", id=held.id, token=held.token)).cancelling
        assert (await client("Get", id=job.id)).cancelling
        answer = await client("Ack", id=held.id, token=held.token)
        assert answer.status == pb.STATE_CANCELLED

    play(app, scene)


def test_a_lease_that_ran_out_is_noticed_by_the_server_itself_and_fences_the_first_holder(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        await client("Enqueue", task="a")
        late = await client.one(lease=0.2)
        held = await client.one(wait=25)
        assert (held.id, held.suspect) == (late.id, True)
        for method in ("Ack", "Nack", "Extend"):
            failed = await client.fails(method, id=late.id, token=late.token)
            assert (failed.status, failed.field) == ("FAILED_PRECONDITION", "token")
        assert (await client("Ack", id=held.id, token=held.token)).status == pb.STATE_SUCCEEDED

    play(app, scene)


def test_a_fetch_waits_for_work_but_not_beyond_its_deadline(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        waiting = asyncio.create_task(client.one(wait=25, tasks=["b"]))
        for seconds in (0.5, 5, 25):  # a machine that is busy may need longer to answer at all
            with contextlib.suppress(Failed):
                answer = await client("FetchAndHold", queues=["default"], wait=60, timeout=seconds)
                break
        assert len(answer.jobs) == 0
        await client("Enqueue", task="a")
        job = await client("Enqueue", task="b")
        assert (await waiting).id == job.id

    play(app, scene)


def test_a_fetch_whose_client_went_away_keeps_nothing_from_the_others(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        gone = [
            client.start("FetchAndHold", queues=["default"], limit=5, lease=3600, wait=60) for _ in range(5)
        ]
        await asyncio.sleep(0.1)
        for call in gone:
            call.cancel()
        job = await client("Enqueue", task="a")
        assert (await client.one(wait=20)).id == job.id, "one who is not there got it"

    play(app, scene)


def test_a_fetch_that_ends_before_its_answer_leaves_gives_the_jobs_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client goes away in the very moment in which the jobs are taken."""

    async def scene(stage: Stage) -> None:
        jobs = [(await stage.client("Enqueue", task="a")).id for _ in range(5)]
        broker = (await stage.app.client.loop_link()).broker
        take = broker.take
        calls: list[bool] = []

        async def interrupted(*args: Any, **kwargs: Any) -> Any:
            taken = await take(*args, **kwargs)
            if taken and len(calls) < 3:
                calls.append(fetching.cancel())
                await asyncio.sleep(0.1)
            return taken

        monkeypatch.setattr(broker, "take", interrupted)
        for _ in range(3):
            fetching = stage.client.start("FetchAndHold", queues=["default"], limit=5, lease=3600, wait=30)
            await asyncio.gather(fetching, return_exceptions=True)
        answer = await stage.client("FetchAndHold", queues=["default"], limit=5, wait=20)
        assert calls == [True] * 3
        assert [job.id for job in answer.jobs] == jobs
        assert not any(job.suspect for job in answer.jobs)

    play(app, scene)


def test_arguments_that_json_cannot_carry_come_as_they_are_stored(app: App) -> None:
    async def scene(stage: Stage) -> None:
        await stage.app.aenqueue("a", {1: 2}, when=datetime(2026, 1, 2, tzinfo=UTC))
        await stage.app.aenqueue("a", when=datetime(2026, 1, 2, tzinfo=UTC))
        odd, plain = (await stage.client("FetchAndHold", queues=["default"], limit=2)).jobs
        assert (odd.args_json, odd.kwargs_json, odd.codec) == ("", "", "msgpack")
        assert odd.payload.startswith(b"\x92")
        assert (plain.payload, plain.codec) == (b"", "")
        assert json.loads(plain.kwargs_json) == {"when": "2026-01-02T00:00:00Z"}

    play(app, scene)


# onlookers


def test_queues_are_listed(app: App) -> None:
    async def scene(stage: Stage) -> None:
        await stage.client("Enqueue", task="a", queue="images")
        await stage.client("Enqueue", task="a", queue="mail", delay_seconds=60)
        await stage.app.queues.apause("mail")
        images, mail = (await stage.client("ListQueues")).queues
        assert (images.name, images.counts["ready"], images.paused) == ("images", 1, False)
        assert abs(images.oldest_ready.seconds - time.time()) < 60
        assert (mail.name, mail.counts["scheduled"], mail.paused) == ("mail", 1, True)
        assert mail.next_due.seconds > time.time()

    play(app, scene)


async def _events(
    call: grpc.aio.UnaryStreamCall[object, pb.WatchEventsResponse], kind: str
) -> list[pb.Event]:
    """All up to the first of that kind."""
    found: list[pb.Event] = []
    while not any(event.kind == kind for event in found):
        message = await call.read()
        assert isinstance(message, pb.WatchEventsResponse)
        found += message.events
    return found


def test_events_are_told_as_they_happen_and_again_from_where_one_left_off(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client = stage.client
        await client("Enqueue", task="a", queue="before")
        call = client.start("WatchEvents")
        begin = await call.read()
        assert not begin.events
        job = await client("Enqueue", task="a")
        held = await client.one()
        await client("Ack", id=held.id, token=held.token)
        told = await _events(call, "succeeded")
        assert [(event.kind, event.id, event.queue) for event in told] == [
            (kind, job.id, "default") for kind in ("put", "taken", "succeeded")
        ]
        call.cancel()
        again = client.start("WatchEvents", cursor=begin.cursor)
        assert await _events(again, "succeeded") == told
        again.cancel()
        oldest = client.start("WatchEvents", from_oldest=True, queues=["before"])
        (put,) = await _events(oldest, "put")
        assert put.queue == "before"
        oldest.cancel()
        assert (await client.fails("WatchEvents", cursor="nonsense")).field == "cursor"

    play(app, scene)


def test_who_was_away_for_too_long_is_told_of_the_gap() -> None:
    app = App("shop", broker="memory://")

    async def scene(stage: Stage) -> None:
        await stage.app.aenqueue("a")
        begin = await stage.client("WatchEvents")
        for _ in range(6000):
            await stage.app.queues.apause("default")
            await stage.app.queues.aresume("default")
        call = stage.client.start("WatchEvents", cursor=begin.cursor)
        await call.read()
        assert list((await call.read()).gaps) == ["default"]
        call.cancel()

    play(app, scene)


# the server


def test_health_and_reflection_are_there(app: App) -> None:
    async def scene(stage: Stage) -> None:
        stub: Any = health_pb2_grpc.HealthStub(stage.channel)
        for name in ("", "dray.v1.TaskQueue"):
            request = health_pb2.HealthCheckRequest(service=name)

            async def serving(request: object = request) -> bool:
                return bool((await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING)

            await until(serving, "it does not get healthy")
        assert await reflected(stage.channel) == {
            "dray.v1.TaskQueue",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }

    play(app, scene)


async def reflected(channel: grpc.aio.Channel) -> set[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # or of aio
    call = stub.ServerReflectionInfo(
        iter(
            [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="dray.v1.TaskQueue"),
            ]
        )
    )
    names, file = [answer async for answer in call]
    assert b"EnqueueRequest" in file.file_descriptor_response.file_descriptor_proto[0]
    return {service.name for service in names.list_services_response.service}


def test_a_server_that_stops_answers_those_who_wait(app: App) -> None:
    async def scene(stage: Stage) -> None:
        client: Client = stage.client
        job = await client("Enqueue", task="a", delay_seconds=3600)
        fetching = asyncio.create_task(client("FetchAndHold", queues=["other"], wait=60))
        waiting = asyncio.create_task(client.fails("WaitResult", id=job.id))
        watching = client.start("WatchEvents")
        await watching.read()
        await asyncio.sleep(0.1)
        await stage.server.stop(20)
        assert len((await fetching).jobs) == 0
        assert (await waiting).code == "stopping"
        assert await watching.read() == grpc.aio.EOF

    play(app, scene)
