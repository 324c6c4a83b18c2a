"""The method `Work` over a real connection: fencing, admission, nonsense, the end of worker and server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis_server
from rpc_client import Failed, Stage, Worker, play, until

from dray.app import App
from dray.serve.grpc import serve_grpc
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


async def put(stage: Stage, count: int = 1, **fields: Any) -> list[str]:
    jobs = [pb.EnqueueRequest(task="a", args_json=f"[{n}]", **fields) for n in range(count)]
    return [one.accepted.id for one in (await stage.client("EnqueueBatch", jobs=jobs)).results]


def test_jobs_are_pushed_and_what_became_of_them_is_answered(app: App) -> None:
    async def scene(stage: Stage) -> None:
        ids = await put(stage, 25)
        async with Worker(stage.client) as worker:
            seen: list[pb.HeldJob] = []
            while len(seen) < 25:
                jobs = await worker.jobs()
                assert len(jobs) <= 10
                assert not any(job.token or job.HasField("lease_until") for job in jobs)
                seen += jobs
                told = await worker.ack(*jobs, result_json='{"size": 42}')
                assert [one.status for one in told] == [pb.STATE_SUCCEEDED] * len(jobs)
            assert [job.id for job in seen] == ids
            waiting = asyncio.create_task(worker.jobs())
            (late,) = await put(stage)
            assert [job.id for job in await waiting] == [late]
        assert (await stage.client("WaitResult", id=ids[7])).result_json == '{"size":42}'

    play(app, scene)


def test_nacks_progress_and_cancels_travel_on_the_stream(app: App) -> None:
    async def scene(stage: Stage) -> None:
        ids = await put(stage, 3, max_retries=1)
        async with Worker(stage.client) as worker:
            first, second, third = await worker.jobs(3)
            error = pb.Error(type="TypeError", message="no")
            await worker.say(
                nacks=[
                    pb.WorkNack(id=first.id, run=first.run, error=error, delay_seconds=60),
                    pb.WorkNack(id=second.id, run=second.run, kind=pb.NACK_KIND_DEAD, error=error),
                ],
                progress=[pb.WorkProgress(id=third.id, run=third.run, progress=pb.Progress(done=1, total=2))],
            )
            told = {one.id: one.status for one in await worker.settled(2)}
            assert told == {ids[0]: pb.STATE_RETRYING, ids[1]: pb.STATE_DEAD}

            async def reported() -> bool:
                job = await stage.client("Get", id=ids[2])
                return bool(job.progress == pb.Progress(done=1, total=2))

            await until(reported, "no progress")
            await stage.client("Cancel", id=ids[2])
            (stop,) = await worker.stops()
            assert stop == pb.WorkStop(id=third.id, run=third.run)
            (ended,) = await worker.ack(third)
            assert ended.status == pb.STATE_CANCELLED

    play(app, scene)


def test_a_worker_that_leaves_gives_back_and_one_whose_connection_breaks_is_suspected_at_once(
    app: App,
) -> None:
    async def scene(stage: Stage) -> None:
        await put(stage, 2)
        async with Worker(stage.client, lease=3600) as worker:
            left = await worker.jobs(2)
            await worker.say(acks=[pb.WorkAck(id=left[0].id, run=left[0].run)], leave=True)
            with pytest.raises(EOFError):
                await worker.until(lambda news: False)
            assert [one.status for one in worker.news.settled] == [pb.STATE_SUCCEEDED]
        async with Worker(stage.client, lease=3600) as worker:
            (held,) = await worker.jobs()
            assert (held.id, held.suspect) == (left[1].id, False)
        async with Worker(stage.client, lease=3600) as worker:
            (again,) = await worker.jobs()
            assert (again.id, again.suspect) == (held.id, True)
            (told,) = await worker.ack(held)
            assert (told.refused.code, told.refused.status) == ("lease_lost", 9)
            await worker.call.done_writing()
            with pytest.raises(EOFError):
                await worker.until(lambda news: False)
        async with Worker(stage.client) as worker:
            (last,) = await worker.jobs()
            assert last.suspect, "whoever closes without a goodbye did not leave in good order"

    play(app, scene)


def test_a_silent_worker_loses_its_jobs_and_one_that_shows_life_does_not(app: App) -> None:
    async def scene(stage: Stage) -> None:
        (id,) = await put(stage)
        async with Worker(stage.client, lease=0.3) as worker:
            (late,) = await worker.jobs()
            for _ in range(8):
                await asyncio.sleep(0.1)
                await worker.say()
            assert (await stage.client("Get", id=id)).status == pb.STATE_RUNNING
            failed = await worker.fails()
            assert (failed.status, failed.code) == ("FAILED_PRECONDITION", "session_lost")
        async with Worker(stage.client) as worker:
            (held,) = await worker.jobs()
            assert (held.id, held.suspect) == (id, True)
            await worker.say(
                acks=[pb.WorkAck(id=late.id, run=late.run), pb.WorkAck(id=held.id, run=held.run)]
            )
            told = {one.run: one.refused.code for one in await worker.settled(2)}
            assert told == {late.run: "lease_lost", held.run: ""}

    play(app, scene)


def test_each_item_that_cannot_be_accepted_has_its_own_answer(app: App) -> None:
    async def scene(stage: Stage) -> None:
        await put(stage)
        async with Worker(stage.client) as worker:
            (held,) = await worker.jobs()
            await worker.say(
                acks=[
                    pb.WorkAck(id=held.id, run=held.run, result_json="{"),
                    pb.WorkAck(id="never-was", run=1),
                    pb.WorkAck(id="", run=1),
                    pb.WorkAck(id=held.id, run=held.run + 1),
                ],
                nacks=[pb.WorkNack(id=held.id, run=held.run, kind=77)],  # type: ignore[arg-type]
            )
            told = {(one.id, one.run, one.refused.code, one.refused.field) for one in await worker.settled(5)}
            assert told == {
                (held.id, held.run, "invalid_result_json", "result_json"),
                ("never-was", 1, "lease_lost", "token"),
                ("", 1, "invalid_id", "id"),
                (held.id, held.run + 1, "lease_lost", "token"),
                (held.id, held.run, "invalid_kind", "kind"),
            }
            for _ in range(2):
                (ended,) = await worker.ack(held)
                assert ended.status == pb.STATE_SUCCEEDED, "said twice"

    play(app, scene)


NONSENSE: dict[str, tuple[list[Any], str]] = {
    "nothing to begin with": ([pb.WorkRequest()], "invalid_start"),
    "no queues": ([pb.WorkRequest(start=pb.WorkStart(credits=1))], "invalid_queues"),
    "no lease": ([pb.WorkRequest(start=pb.WorkStart(queues=["a"], lease=0))], "invalid_lease"),
    "more than allowed": (
        [pb.WorkRequest(start=pb.WorkStart(queues=["a"], credits=1001))],
        "invalid_credits",
    ),
    "no name": ([pb.WorkRequest(start=pb.WorkStart(queues=["no name"]))], "invalid_queues"),
    "no message": ([b"\xff\xff\xff"], "invalid_message"),
    "two beginnings": ([pb.WorkRequest(start=pb.WorkStart(queues=["a"]))] * 2, "invalid_start"),
    "no message later": ([pb.WorkRequest(start=pb.WorkStart(queues=["a"])), b"\xff"], "invalid_message"),
    "credits": (
        [pb.WorkRequest(start=pb.WorkStart(queues=["a"])), pb.WorkRequest(credits=1001)],
        "invalid_credits",
    ),
    "too many": (
        [
            pb.WorkRequest(start=pb.WorkStart(queues=["a"])),
            pb.WorkRequest(acks=[pb.WorkAck(id="x", run=1)] * 1001),
        ],
        "invalid_acks",
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_ends_the_stream_with_what_is_wrong(case: str) -> None:
    said, code = NONSENSE[case]

    async def scene(stage: Stage) -> None:
        worker = Worker(stage.client)
        for message in said:
            await worker.say(message)
        failed = await worker.fails()
        assert (failed.status, failed.code) == ("INVALID_ARGUMENT", code)

    play(App("shop", broker="memory://"), scene)


def test_the_jobs_of_a_worker_that_talked_nonsense_are_free(app: App) -> None:
    async def scene(stage: Stage) -> None:
        (id,) = await put(stage)
        async with Worker(stage.client, lease=3600) as worker:
            await worker.jobs()
            await worker.say(b"\xff")
            assert (await worker.fails()).code == "invalid_message"
        async with Worker(stage.client) as worker:
            (held,) = await worker.jobs()
            assert (held.id, held.suspect) == (id, False)

    play(app, scene)


def test_a_key_needs_the_role_and_reaches_only_what_it_may(app: App) -> None:
    async def scene(stage: Stage) -> None:
        keys = stage.app.keys
        admin = (await keys.acreate("admin", roles=["admin"])).secret
        reader = (await keys.acreate("reader", roles=["read"])).secret
        limited = await keys.acreate("limited", roles=["work"], tasks=["a"], queues=["default"])
        stage.client = stage.with_key(admin)
        await put(stage, 2)
        await stage.client("Enqueue", task="b")
        for key, code in ((None, "unauthorized"), ("nonsense", "unauthorized"), (reader, "forbidden")):
            worker = Worker(stage.with_key(key))
            await worker.say(start=pb.WorkStart(queues=["default"], credits=1))
            assert (await worker.fails()).code == code
        for start in ({"queues": ["other"]}, {"tasks": ["b"]}):
            worker = Worker(stage.with_key(limited.secret), **start)
            with pytest.raises(Failed, match="PERMISSION_DENIED"):
                async with worker:
                    pass
        async with (
            Worker(stage.client, tasks=["b"]) as other,
            Worker(stage.with_key(limited.secret)) as worker,
        ):
            (theirs,) = await other.jobs()
            mine = await worker.jobs(2)
            assert {job.task for job in mine} == {"a"}
            await other.ack(theirs)
            (told,) = await worker.ack(theirs)
            assert told.refused.code == "lease_lost", "it learns how a job stands that it may not see"
            assert [one.status for one in await worker.ack(*mine)] == [pb.STATE_SUCCEEDED] * 2
            await keys.arevoke(limited.key.id)
            assert (await worker.fails()).status == "UNAUTHENTICATED"

    play(app, scene)


def test_a_stopping_server_lets_workers_finish_and_sends_no_more(app: App) -> None:
    async def scene(stage: Stage) -> None:
        await put(stage, 2)
        async with Worker(stage.client, credits=1) as worker:
            (held,) = await worker.jobs()
            stopping = asyncio.create_task(stage.server.stop(20))
            await worker.until(lambda news: news.finishing)
            await worker.say(acks=[pb.WorkAck(id=held.id, run=held.run)])
            with pytest.raises(EOFError):
                await worker.until(lambda news: news.jobs)
            assert [one.status for one in worker.news.settled] == [pb.STATE_SUCCEEDED]
            await stopping

    play(app, scene)


def test_jobs_of_a_worker_that_does_not_finish_in_time_go_back_when_the_server_stops(app: App) -> None:
    async def scene(stage: Stage) -> None:
        (id,) = await put(stage)
        async with Worker(stage.client, lease=3600) as worker:
            await worker.jobs()
            await stage.server.stop(0.2)
        (held,) = await stage.app.external.afetch(["default"])
        assert (held.id, held.suspect) == (id, False)

    play(app, scene)


def test_two_servers_fence_each_other(app: App) -> None:
    async def scene(stage: Stage) -> None:
        second = await serve_grpc(stage.app, "127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{second.port}") as channel:
                there = Stage(stage.app, second, channel)
                async with Worker(stage.client) as here, Worker(there.client, tasks=["b"]) as other:
                    (id,) = await put(stage)
                    (held,) = await here.jobs()
                    (told,) = await other.ack(held)
                    assert told.refused.code == "lease_lost"
                    (told,) = await here.ack(held)
                    assert told.status == pb.STATE_SUCCEEDED
            job = await stage.client("Get", id=id)
            assert (job.status, job.runs) == (pb.STATE_SUCCEEDED, 1)
        finally:
            await second.stop(0.5)

    play(app, scene)


def test_a_worker_that_does_not_read_is_sent_no_more_than_its_credits() -> None:
    app = App("shop", broker="memory://", accept_unknown_tasks=True)

    async def scene(stage: Stage) -> None:
        large = '["' + "x" * 200_000 + '"]'
        jobs = [pb.EnqueueRequest(task="a", args_json=large) for _ in range(40)]
        for n in range(0, 40, 10):
            await stage.client("EnqueueBatch", jobs=jobs[n : n + 10])
        async with Worker(stage.client, credits=1000) as worker:
            await asyncio.sleep(1)
            (queue,) = (await stage.client("ListQueues")).queues
            assert queue.counts["running"] < 40, "all were taken for a worker that reads nothing"
            seen = 0
            while seen < 40:
                held = await worker.jobs()
                seen += len(held)
                await worker.say(acks=[pb.WorkAck(id=job.id, run=job.run) for job in held])

    play(app, scene, options=[("grpc.http2.bdp_probe", 0)])  # a client with a window that does not grow
