"""What gRPC callers are told when something is wrong, and who may do what."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import redis_server
import redis_tls
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rpc_client import METHODS, Client, Failed, Stage, play, until

from dray.app import App
from dray.errors import DrayError, InvalidInput
from dray.serve.grpc import serve_grpc
from dray.serve.grpc_sidecar import GrpcSidecar
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import generate

HELD = ("Ack", "Nack", "Extend")


def shop(**settings: Any) -> App:
    app = App("shop", broker="memory://", **settings)

    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task
    def echo(text: str) -> str:
        return text

    return app


# wrong values


NAN = float("nan")
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("Enqueue", {"task": ""}, "task"),
    ("Enqueue", {"task": "sub"}, "task"),
    ("Enqueue", {"task": "add", "queue": "a b", "args_json": "[1]"}, "queue"),
    ("Enqueue", {"task": "add"}, "args_json"),
    ("Enqueue", {"task": "add", "args_json": '["x"]'}, "a"),
    ("Enqueue", {"task": "add", "args_json": "[1"}, "args_json"),
    ("Enqueue", {"task": "add", "args_json": '{"a": 1}'}, "args_json"),
    ("Enqueue", {"task": "add", "args_json": "[" * 100_000}, "args_json"),
    ("Enqueue", {"task": "add", "kwargs_json": "[1]"}, "kwargs_json"),
    ("Enqueue", {"task": "echo", "args_json": f'["{"x" * 2_000_000}"]'}, "args_json"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "priority": 10}, "priority"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "delay_seconds": -1}, "delay_seconds"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "delay_seconds": NAN}, "delay_seconds"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "ttl_seconds": float("inf")}, "ttl_seconds"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "timeout_seconds": -1}, "timeout_seconds"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "key_ttl_seconds": 1}, "key_ttl_seconds"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "max_retries": 2_000_000}, "max_retries"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "backoff": "never"}, "backoff"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "id": "x" * 300}, "id"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "tags": ["\n"]}, "tags"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "on_duplicate": 9}, "on_duplicate"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "headers": {"a": "x" * 9000}}, "headers"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "at": {"seconds": -5}}, "at"),
    ("Enqueue", {"task": "add", "args_json": "[1]", "at": {"seconds": 10**15}}, "at"),
    ("Get", {"id": ""}, "id"),
    ("FetchAndHold", {}, "queues"),
    ("FetchAndHold", {"queues": [""]}, "queues"),
    ("FetchAndHold", {"queues": ["a"], "limit": 1001}, "limit"),
    ("FetchAndHold", {"queues": ["a"], "lease": 0.0}, "lease"),
    ("FetchAndHold", {"queues": ["a"], "lease": NAN}, "lease"),
    ("FetchAndHold", {"queues": ["a"], "wait": NAN}, "wait"),
    ("FetchAndHold", {"queues": ["a"], "wait": -1}, "wait"),
    ("FetchAndHold", {"queues": ["a"], "tasks": ["a b"]}, "tasks"),
    *((method, {"id": "x", "token": "nonsense"}, "token") for method in HELD),
    *((method, {"id": "", "token": "x"}, "id") for method in HELD),
    ("WatchEvents", {"cursor": "é"}, "cursor"),
]


def test_a_wrong_value_is_an_invalid_argument_that_names_its_field() -> None:
    async def scene(stage: Stage) -> None:
        for method, fields, field in WRONG:
            failed = await stage.client.fails(method, **fields)
            assert (failed.status, failed.field) == ("INVALID_ARGUMENT", field), (method, fields, failed)
            assert failed.message
            assert re.fullmatch(r"[a-z_]+", str(failed.code))
        await stage.client("Enqueue", task="add", args_json="[1]")
        held = await stage.client.one()
        assert (await stage.client.fails("WaitResult", id=held.id, wait=NAN)).field == "wait"
        wrong: tuple[tuple[str, dict[str, Any], str], ...] = (
            ("Nack", {"kind": 99}, "kind"),
            ("Nack", {"kind": pb.NACK_KIND_DEAD, "delay_seconds": 1}, "delay_seconds"),
            ("Nack", {"delay_seconds": NAN}, "delay_seconds"),
            ("Ack", {"result_json": "{"}, "result_json"),
            ("Extend", {"lease": 1e9}, "lease"),
        )
        for method, fields, field in wrong:
            failed = await stage.client.fails(method, id=held.id, token=held.token, **fields)
            assert (failed.status, failed.field) == ("INVALID_ARGUMENT", field), failed
        large = await stage.client.fails("Ack", id=held.id, token=held.token, result_json=f'"{"x" * 2**21}"')
        assert large.status == "INVALID_ARGUMENT"
        assert (await stage.client("Ack", id=held.id, token=held.token)).status == pb.STATE_SUCCEEDED

    play(shop(), scene)


TEXTS = (
    "",
    "x",
    "\0",
    "ü\u202e",
    "a" * 300,
    "[",
    "[]",
    "{}",
    "[1, 2]",
    '{"a": 1}',
    "null",
    "1e999",
    "default:" + "0" * 32,
)
NUMBERS = (0, 1, 2**31, 2**32 - 1)
DOUBLES = (0.0, -0.0, 1e-9, -1.0, 1e300, NAN, float("inf"), 0.5)


def _anything(dice: random.Random, message: Any) -> Any:
    """A message with whatever its fields can hold."""
    for field in message.DESCRIPTOR.fields:
        if dice.random() < 0.4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[dice.choice(TEXTS)] = dice.choice(TEXTS)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            _anything(dice, inner.add() if field.is_repeated else inner)
        elif field.is_repeated:
            getattr(message, field.name).append(dice.choice(TEXTS))
        else:
            setattr(message, field.name, _value(dice, field))
    return message


def _value(dice: random.Random, field: FieldDescriptor) -> object:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return dice.choice(TEXTS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return dice.choice(DOUBLES)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64):
        return dice.choice((0, -1, 2**31 - 1))
    return dice.choice((0, 1, 5, 99)) if field.enum_type else dice.choice(NUMBERS)


def test_whatever_is_sent_is_answered_and_never_with_an_error_of_the_server() -> None:
    seed = random.randrange(1_000_000)
    dice = random.Random(seed)
    fine = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION"}

    async def scene(stage: Stage) -> None:
        for _ in range(60):
            for name, method in METHODS.items():
                request = _anything(dice, getattr(pb, method.input_type.name)())
                if name in ("WaitResult", "FetchAndHold"):
                    request.wait = dice.choice((0.0, -1.0, NAN))
                status = await _status(stage.client, name, request=request)
                assert status in fine, f"seed {seed}: {name} {request} ended with {status}"
        raw: Any = stage.channel.unary_unary("/dray.v1.TaskQueue/Enqueue")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(b"\xff\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await _status(stage.client, "Enqueue", task="add", args_json="[1]") == "OK"

    play(shop(accept_unknown_tasks=True), scene)


def test_too_much_is_resource_exhausted() -> None:
    async def scene(stage: Stage) -> None:
        await stage.app.queues.alimit("default", max_ready=1)
        await stage.client("Enqueue", task="add", args_json="[1]")
        failed = await stage.client.fails("Enqueue", task="add", args_json="[1]")
        assert (failed.status, failed.code) == ("RESOURCE_EXHAUSTED", "queue_full")
        assert int(str(failed.trailers["dray-retry-after"])) >= 1
        failed = await stage.client.fails("Enqueue", task="add", args_json=f'["{"x" * 100_000}"]')
        assert failed.status == "RESOURCE_EXHAUSTED", "max_request_size"
        statuses = {(await _status(stage.client, "ListQueues")) for _ in range(20)}
        assert statuses == {"OK", "RESOURCE_EXHAUSTED"}

    play(shop(key_rate="1/m+10", max_request_size=50_000), scene)


async def _status(client: Client, method: str, request: Any = None, **fields: Any) -> str:
    try:
        await client(method, request, **fields)
    except Failed as failed:
        return failed.status
    return "OK"


def test_a_broker_that_is_away_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    redis_server.need("valkey")
    with redis_server.running("valkey", tmp_path / "valkey") as valkey:
        app = App(
            "shop",
            broker=f"redis://127.0.0.1:{valkey.port}/0",
            accept_unknown_tasks=True,
            connect_timeout="2s",
            read_timeout="2s",
        )

        async def scene(stage: Stage) -> None:
            health: Any = health_pb2_grpc.HealthStub(stage.channel)

            async def serving() -> bool:
                answer = await health.Check(health_pb2.HealthCheckRequest(service="dray.v1.TaskQueue"))
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

            async def ailing() -> bool:
                return not await serving()

            await stage.client("Enqueue", task="a")
            await until(serving, "it does not get healthy")
            valkey.stop()
            calls: dict[str, dict[str, Any]] = {
                "Enqueue": {"task": "a"},
                "FetchAndHold": {"queues": ["a"], "wait": 1.0},
                "ListQueues": {},
            }
            for method, fields in calls.items():
                failed = await stage.client.fails(method, **fields)
                assert failed.status == "UNAVAILABLE", failed
                assert "dray-retry-after" in failed.trailers
            batch = await stage.client("EnqueueBatch", jobs=[pb.EnqueueRequest(task="a")])
            assert batch.results[0].refused.status == grpc.StatusCode.UNAVAILABLE.value[0]
            await until(ailing, "it says that it is well")
            valkey.start()
            await until(serving, "it does not recover")

            async def works() -> bool:
                return await _status(stage.client, "Enqueue", task="a") == "OK"

            await until(works, "it does not recover")

        play(app, scene)


# keys

ROLES = {
    "Enqueue": "submit",
    "EnqueueBatch": "submit",
    "Delete": "admin",
    "Cancel": "submit",
    "Get": "read",
    "WaitResult": "read",
    "FetchAndHold": "work",
    "Ack": "work",
    "Nack": "work",
    "Extend": "work",
    "Work": "work",
    "ListQueues": "read",
    "WatchEvents": "read",
    "SendEvent": "submit",
    "GetFlow": "read",
    "ListFlows": "read",
}


def test_every_method_asks_for_its_role_and_for_a_key_at_all() -> None:
    assert set(ROLES) == set(METHODS)
    app = shop()
    keys = {role: app.keys.create(role, [role]).secret for role in ("read", "submit", "work", "admin")}

    async def scene(stage: Stage) -> None:
        for method, needed in ROLES.items():
            for wrong in (None, "dray_x_y", keys["read"] + "x", ""):
                assert await _status(stage.with_key(wrong), method) == "UNAUTHENTICATED", (method, wrong)
            for role, key in keys.items():
                status = await _status(stage.with_key(key), method)
                allowed = role in (needed, "admin")
                assert (status != "PERMISSION_DENIED") == allowed, (method, role, status)

    play(app, scene)


def test_a_key_with_limits_does_and_sees_nothing_else() -> None:
    app = shop(accept_unknown_tasks=True)
    roles = ("read", "submit", "work")
    mine = app.keys.create("mine", roles, queues=["mine"]).secret
    add = app.keys.create("add", roles, tasks=["add"]).secret

    async def scene(stage: Stage) -> None:
        other = await stage.app.using(queue="other").aenqueue("sub", 1)
        of_mine, of_add = stage.with_key(mine), stage.with_key(add)
        for client, fields in ((of_mine, {"task": "sub"}), (of_add, {"task": "sub", "queue": "mine"})):
            assert (await client.fails("Enqueue", None, **fields)).status == "PERMISSION_DENIED"
            for method in ("Get", "WaitResult", "Cancel", *HELD):
                assert (await client.fails(method, id=other.id)).status == "NOT_FOUND", method
        jobs = [pb.EnqueueRequest(task="sub", queue="mine"), pb.EnqueueRequest(task="sub", queue="other")]
        answer = await of_mine("EnqueueBatch", jobs=jobs)
        assert [one.refused.status for one in answer.results] == [0, 7]
        assert (await of_mine.fails("FetchAndHold", queues=["mine", "other"])).status == "PERMISSION_DENIED"
        assert (await of_add.fails("FetchAndHold", queues=["mine"], tasks=["sub"])).field == "task"
        theirs = await stage.app.using(queue="mine", key="k").aenqueue("sub", 1)
        raising = {"queue": "mine", "key": "k", "on_duplicate": pb.ON_DUPLICATE_RAISE, "args_json": "[1]"}
        failed = await of_add.fails("Enqueue", None, task="add", **raising)
        assert (failed.status, failed.code) == ("ALREADY_EXISTS", "taken")
        assert theirs.id not in f"{failed.message} {failed.trailers}"
        await theirs.acancel()
        await of_add("Enqueue", task="add", queue="mine", args_json="[1]")
        held = (await of_add("FetchAndHold", queues=["mine"], limit=10)).jobs
        assert [job.task for job in held] == ["add"]
        assert (await of_add("Ack", id=held[0].id, token=held[0].token)).status == pb.STATE_SUCCEEDED
        assert [queue.name for queue in (await of_mine("ListQueues")).queues] == ["mine"]
        assert (await of_add.fails("WatchEvents")).status == "PERMISSION_DENIED"
        call = of_mine.start("WatchEvents", from_oldest=True)
        await call.read()
        assert {event.queue for event in (await call.read()).events} == {"mine"}
        call.cancel()

    play(app, scene)


def test_a_key_may_be_kept_from_seeing_arguments_results_and_errors() -> None:
    app = shop()
    blind, seeing = (
        app.keys.create(f"k{hides}", ["read"], hides_values=hides).secret for hides in (True, False)
    )

    async def scene(stage: Stage) -> None:
        job = await stage.app.aenqueue("echo", "the-secret")
        for key, seen in ((blind, False), (seeing, True)):
            shown = await stage.with_key(key)("Get", id=job.id)
            assert (shown.task, "the-secret" in str(shown)) == ("echo", seen)

    play(app, scene)


def test_one_key_cannot_use_up_the_waiting_room_of_the_others() -> None:
    app = shop(max_waiting=4)
    greedy, modest = (app.keys.create(name, ["work"]).secret for name in ("greedy", "modest"))

    async def scene(stage: Stage) -> None:
        one, other = stage.with_key(greedy), stage.with_key(modest)
        waiting = [
            asyncio.ensure_future(_status(one, "FetchAndHold", queues=["default"], wait=20.0))
            for _ in range(6)
        ]

        async def three_are_refused() -> bool:
            return sum(one.done() for one in waiting) == 3

        await until(three_are_refused, "one key may take everything")
        assert {one.result() for one in waiting if one.done()} == {"RESOURCE_EXHAUSTED"}
        assert await _status(other, "FetchAndHold", queues=["default"]) == "OK"
        for one_call in waiting:
            one_call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    play(app, scene)


def test_what_an_administrator_deletes_is_written_down() -> None:
    app = shop()

    async def scene(stage: Stage) -> None:
        job = await stage.client("Enqueue", task="add", args_json="[1]")
        await stage.client("Delete", id=job.id)
        (entry,) = await stage.app.keys.aaudit()
        assert (entry.who, entry.action, entry.target) == ("open", "Delete", job.id)

    play(app, scene)


# where it listens


def test_an_address_in_use_is_told_once_and_in_our_own_words(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from dray import App\n\napp = App('shop')\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "GRPC_"))}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "dray", "server", "-A", "shop:app"),
                *("--http", "127.0.0.1:0", "--grpc", address),
            ],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == f"dray: cannot listen on {address} for gRPC: the address is in use, or not ours"


def test_beyond_this_machine_it_needs_keys_or_an_explicit_word() -> None:
    async def scene() -> None:
        app = shop()
        for bind in ("0.0.0.0:0", "[::]:0", "example.org:0"):
            with pytest.raises(InvalidInput, match="there are no keys"):
                await serve_grpc(app, bind)
        with pytest.raises(InvalidInput, match="host:port"):
            await serve_grpc(app, "9090")
        server = await serve_grpc(app, "0.0.0.0:0", insecure=True)
        with pytest.raises(DrayError, match="cannot listen"):
            await serve_grpc(app, f"127.0.0.1:{server.port}")
        await server.stop(0)
        key = await app.keys.acreate("ops", ["admin"])
        server = await serve_grpc(app, "0.0.0.0:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert await _status(Client(channel), "ListQueues") == "UNAUTHENTICATED"
            assert await _status(Client(channel, key.secret), "ListQueues") == "OK"
        await server.stop(0)

    asyncio.run(scene())


def test_beside_http_an_address_that_was_asked_for_must_be_free(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        taken = await serve_grpc(shop(), "127.0.0.1:0")
        asked = GrpcSidecar(shop(grpc=f"127.0.0.1:{taken.port}"), insecure=False)
        with pytest.raises(DrayError, match="cannot listen"):
            await asked.start()
        app = shop()
        msgspec.structs.force_setattr(app.settings, "grpc", f"127.0.0.1:{taken.port}")
        unasked = GrpcSidecar(app, insecure=False)
        await unasked.start()
        assert "gRPC is not served: cannot listen" in caplog.text
        nowhere = GrpcSidecar(shop(grpc="none"), insecure=False)
        await nowhere.start()
        assert unasked.lines == nowhere.lines == []
        for one in (asked, unasked, nowhere):
            one.stop_soon()
            await one.stop()
        free = GrpcSidecar(shop(grpc="127.0.0.1:0"), insecure=False)
        await free.start()
        assert "grpc://127.0.0.1:" in free.lines[0]
        free.stop_soon()
        free.stop_soon()
        await free.stop()
        await taken.stop(0)

    asyncio.run(scene())


def test_tls_is_spoken_with_the_certificate_of_the_settings(tmp_path: Path) -> None:
    made = redis_tls.certificates(tmp_path)

    async def scene() -> None:
        app = shop(tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"))
        server = await serve_grpc(app, "127.0.0.1:0")
        assert server.address.startswith("grpcs://")
        trusting = grpc.ssl_channel_credentials(made.authority.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{server.port}", trusting) as channel:
            assert await _status(Client(channel), "ListQueues") == "OK"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert (await Client(channel).fails("ListQueues", timeout=1)).status != "OK"
        await server.stop(0)
        with pytest.raises(InvalidInput, match="tls_key"):
            await serve_grpc(shop(), "127.0.0.1:0", tls_cert=tmp_path / "cert.pem")
        with pytest.raises(DrayError, match="cannot be read"):
            await serve_grpc(shop(), "127.0.0.1:0", tls_cert=tmp_path / "no", tls_key=tmp_path / "no")

    asyncio.run(scene())


# generated code


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    code = f"from dray.serve.rpc.generate import generate; generate('--descriptor_set_out={tmp_path}/set')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    (made,) = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    stored = type(made).FromString(pb.DESCRIPTOR.serialized_pb)
    assert stored.name == generate.FILE
    for message in (*made.message_type, *stored.message_type):
        for part in (message, *message.nested_type):
            for field in part.field:
                field.ClearField("json_name")  # which says nothing new, and not every protoc says it
    assert stored == made, "run `python -m dray.serve.rpc.generate` with grpcio-tools 1.62"


def test_the_types_of_the_generated_code_name_everything_in_it() -> None:
    types = Path(pb.__file__).with_suffix(".pyi").read_text()
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        (part,) = re.findall(rf"^class {message.name}\(.*?(?=^class |\Z)", types, re.M | re.S)
        for field in message.fields:
            assert re.search(rf"^    {field.name}: ", part, re.M), f"{message.name}.{field.name}"
