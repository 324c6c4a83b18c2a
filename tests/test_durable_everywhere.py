"""Durable jobs over HTTP and gRPC, in `why` and in traces, and replayed in this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rpc_client import Failed, Stage, play

from dray import App, Context, State
from dray.serve.http import HttpService
from dray.testing.harness import Harness
from dray.worker.run.replay import replay


def charge(id: str) -> str:
    return f"charge-{id}"


def refund(value: str) -> None: ...


def ship(id: str) -> None:
    raise OSError("no lorry")


@pytest.fixture
def app() -> App:
    app = App("everywhere", broker="memory://", result_ttl="60d", done_ttl="60d")

    @app.task
    async def order(ctx: Context, id: str) -> Any:
        paid = await ctx.step(charge, id, undo=refund)
        return paid, await ctx.event("approved", timeout="7d")

    @app.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep("1d")

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.call(nap.call())

    @app.task
    async def stubborn(ctx: Context) -> None:
        await ctx.step(ship, "x", backoff="fixed:1h")

    return app


def serve(app: App) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=HttpService(app, access="open"))
    return httpx.AsyncClient(transport=transport, base_url="http://shop.example")


def test_an_event_sent_over_http_is_received_once(app: App) -> None:
    async def scene() -> None:
        async with app.testing() as t, serve(app) as http:
            job = await app.tasks["order"].aenqueue("42")
            await t.adrain()
            url = f"/api/jobs/{job.id}/events/approved"
            first = await http.post(url, params={"id": "m1"}, json={"by": "ann"})
            assert (first.status_code, first.json()["accepted"]) == (200, True)
            assert (await http.post(url, params={"id": "m1"}, json={"by": "ann"})).json()["accepted"] is False
            await t.adrain()
            assert await job.aget(0) == ("charge-42", {"by": "ann"})
            late = await http.post(url, json=1)
            assert (late.status_code, late.json()["error"]["code"]) == (409, "job_finished")
            assert (await http.post("/api/jobs/nothing/events/approved", json=1)).status_code == 404
            assert (await http.post(f"/api/jobs/{job.id}/events/dray.x", json=1)).status_code == 422

    asyncio.run(scene())


def test_http_shows_steps_and_runs_again_from_one(app: App) -> None:
    async def scene() -> None:
        async with app.testing() as t, serve(app) as http:
            job = await app.tasks["order"].aenqueue("42")
            await t.adrain()
            shown = (await http.get(f"/api/jobs/{job.id}")).json()
            assert [(step["id"], step["status"]) for step in shown["steps"]] == [
                ("charge", "done"),
                ("event(approved)", "waiting"),
            ]
            assert shown["steps"][0]["value"] == "charge-42"
            assert shown["waits_for_events"] == ["approved"]
            again = await http.post(
                f"/api/jobs/{job.id}/rerun", json={"step": "event(approved)", "args": ["43"]}
            )
            assert again.status_code == 201
            assert again.json()["rerun_of"] == job.id
            assert (await http.post(f"/api/jobs/{job.id}/rerun", json={"step": "gone"})).status_code == 422
            assert (await http.post(f"/api/jobs/{job.id}/continue")).json()["changed"] is False
            await t.adrain()
            other = app.job(again.json()["id"])
            await other.asend("approved", 1)
            await t.adrain()
            assert await other.aget(0) == ("charge-42", 1)

    asyncio.run(scene())


def test_a_parked_job_goes_on_over_http(app: App) -> None:
    async def changed(ctx: Context, id: str) -> Any:
        paid = await ctx.step(charge, id + "!")
        return paid, await ctx.event("approved")

    async def scene() -> None:
        async with app.testing() as t, serve(app) as http:
            job = await app.tasks["order"].aenqueue("42")
            await t.adrain()
            del app.tasks["order"]
            app.task(name="order")(changed)
            await job.asend("approved", 1)
            await t.adrain()
            shown = (await http.get(f"/api/jobs/{job.id}")).json()
            assert shown["parked"]
            assert shown["status"] == "waiting"
            assert shown["reason"] == (
                "changed: the arguments of step 'charge' were ('42'), and are ('42!') now"
            )
            why = (await http.get(f"/api/jobs/{job.id}/why")).json()
            assert why["code"] == "parked"
            assert why["details"]["difference"] in why["text"]
            assert (await http.post(f"/api/jobs/{job.id}/continue")).json()["changed"] is True
            await t.adrain()
            assert await job.aget(0) == ("charge-42", 1)

    asyncio.run(scene())


def test_an_event_sent_over_grpc(app: App) -> None:
    async def scene(stage: Stage) -> None:
        async with app.testing() as t:
            job = await app.tasks["order"].aenqueue("42")
            await t.adrain()
            call: dict[str, Any] = {
                "id": job.id,
                "event": "approved",
                "value_json": '{"by": "ann"}',
                "message_id": "m",
            }
            assert (await stage.client("SendEvent", **call)).accepted
            assert not (await stage.client("SendEvent", **call)).accepted
            await t.adrain()
            assert await job.aget(0) == ("charge-42", {"by": "ann"})
            for wrong, code in (
                ({"id": "gone"}, "NOT_FOUND"),
                ({"value_json": "{"}, "INVALID_ARGUMENT"),
            ):
                with pytest.raises(Failed, match=code):
                    await stage.client("SendEvent", **(call | wrong))

    play(app, scene)


def why(t: Harness, id: str) -> tuple[str, str]:
    found = t.app.job(id).why()
    return found.code, found.text


def test_why_says_what_a_durable_job_waits_for(app: App) -> None:
    with app.testing() as t:
        jobs = {name: app.enqueue(name) for name in ("nap", "parent", "stubborn")}
        order = app.enqueue("order", "42")
        t.drain()
        assert why(t, jobs["nap"].id)[0] == "sleeping"
        code, text = why(t, jobs["parent"].id)
        assert (code, "1 job that it called" in text) == ("waits_for_child", True)
        code, text = why(t, jobs["stubborn"].id)
        assert (code, "OSError: no lorry" in text) == ("step_retry", True)
        code, text = why(t, order.id)
        assert code == "waits_for_event"
        assert f"'approved' since {t.now:%Y-%m-%d %H:%M:%S}" in text
        assert "at the latest" in text
        order.cancel("enough")
        code, text = why(t, order.id)
        assert code == "undoing"
        assert "then cancelled: enough" in text
        assert order.info().undoing
        t.drain()
        assert order.status() is State.CANCELLED


def test_a_trace_has_a_span_for_each_step_and_spans_all_runs(app: App) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app.trace(provider)

    @app.task
    async def two(ctx: Context) -> None:
        await ctx.step(charge, "1")
        await ctx.sleep("1d")
        await ctx.step(charge, "2")

    with app.testing() as t:
        two.enqueue()
        t.drain()
        t.advance("1d")
    spans = exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    assert [span.name for span in spans if span.name.startswith("step")] == ["step charge", "step charge#2"]
    assert len([span for span in spans if span.name == "process default"]) == 2


def test_a_replay_uses_what_is_remembered_and_runs_nothing_new(app: App) -> None:
    async def changed(ctx: Context, id: str) -> Any:
        return await ctx.step(charge, id + "!")

    async def ends(ctx: Context, id: str) -> Any:
        return await ctx.step(charge, id)

    async def goes_on(ctx: Context, id: str) -> Any:
        await ctx.step(charge, id)
        return await ctx.step(refund, "x")

    async def fails(ctx: Context, id: str) -> Any:
        raise ValueError(await ctx.step(charge, id))

    async def scene() -> None:
        async with app.testing() as t:
            job = await app.tasks["order"].aenqueue("42")
            await t.adrain()
            broker = await app.connect()

            async def tried(**how: Any) -> tuple[str, str, int]:
                (record,) = await broker.get([job.id])
                assert record is not None
                done = await replay(app, broker, record, **how)
                return done.kind, done.text, done.steps

            assert await tried() == ("waits", "it sleeps or waits here", 1)
            event = "remembered 'event(approved)'"
            for function, expected in (
                (changed, ("differs", "the arguments of step 'charge' were ('42'), and are ('42!') now", 0)),
                (ends, ("returned", "'charge-42'", 1)),
                (goes_on, ("differs", f"the new step 'refund' comes where the {event} should", 1)),
                (fails, ("raised", "ValueError: charge-42", 1)),
            ):
                del app.tasks["order"]
                app.task(name="order")(function)
                assert await tried() == expected
            del app.tasks["order"]
            app.task(name="order")(goes_on)
            assert await tried(step="event(approved)") == ("new", "the next step is new: refund", 1)
            assert await tried(step="event(approved)", live=True) == ("returned", "None", 1)
            assert await tried(step="charge") == ("new", "the next step is new: charge", 0)
            assert [step.id for step in await job.asteps()] == ["charge", "event(approved)"]

    asyncio.run(scene())


def test_a_plain_task_is_replayed_too(app: App) -> None:
    @app.task
    def plain(ctx: Context, id: str) -> str:
        paid = ctx.blocking.step(charge, id)
        ctx.blocking.sleep("1d")
        return paid

    async def scene() -> None:
        async with app.testing() as t:
            job = await plain.aenqueue("42")
            await t.adrain()
            broker = await app.connect()
            (record,) = await broker.get([job.id])
            assert record is not None
            done = await replay(app, broker, record)
            assert (done.kind, done.steps) == ("waits", 1)

    asyncio.run(scene())


def test_a_log_as_json_can_be_shown(app: App) -> None:
    with app.testing() as t:
        job = app.enqueue("order", "42")
        t.drain()
        step = job.steps()[0]
        assert (step.arguments, step.undo) == ("('42')", f"{__name__}:refund")
        assert json.dumps(step.arguments)
