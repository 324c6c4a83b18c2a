"""Flows over HTTP and gRPC, drawn in the terminal, in metrics and traces, explained by `why`, fetched by
workers in other languages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx
import pytest
from rpc_client import Client
from shell import Shell

from dray import App, Reject, chain, chord, group
from dray.cli.flow_tree import tree
from dray.observe import ametrics
from dray.serve import asgi
from dray.serve.grpc import serve_grpc
from dray.testing.harness import Harness

fails: set[str] = set()


@pytest.fixture
def app() -> App:
    fails.clear()
    app = App("surfaces", broker="memory://")

    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task
    def pages(count: int) -> list[int]:
        return list(range(count))

    @app.task(retries=0)
    def work(name: str, *inputs: Any) -> str:
        if name in fails:
            raise Reject(f"{name} is broken")
        return name

    @app.task
    def anything(value: Any) -> None:
        return None

    @app.task(queue="email")
    def send(to: str) -> str:
        return to

    return app


Scene = Callable[[httpx.AsyncClient, Harness], Awaitable[None]]


def served(app: App, scene: Scene, *, open: bool = True, key: str = "") -> None:
    async def main() -> None:
        async with app.testing() as t:
            headers = {"Authorization": f"Bearer {await _key(app, key)}"} if key else {}
            transport = httpx.ASGITransport(asgi(app, open=open))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as http:
                await scene(http, t)

    asyncio.run(main())


async def _key(app: App, name: str) -> str:
    limits: dict[str, Any] = {"email": {"queues": ["email"]}, "adder": {"tasks": ["add"]}}
    key = await app.keys.acreate(name, roles=["read", "submit", "admin"], **limits[name])
    return key.secret


GRAPH = {
    "name": "order",
    "key": "order:42",
    "nodes": [
        {"name": "sum", "task": "add", "args": [{"$node": "one"}], "kwargs": {"b": {"$node": "two"}}},
        {"name": "one", "task": "add", "args": [1], "tags": ["x"]},
        {"name": "two", "task": "add", "args": [2], "after": ["one"]},
        {"name": "list", "task": "pages", "args": [{"$node": "sum"}]},
        {"name": "each", "task": "add", "map": "list", "kwargs": {"b": 10}},
        {"name": "clean", "task": "work", "args": ["clean"], "after": ["each"], "when": "failed"},
    ],
}


class TestHttp:
    def test_a_graph_in_json_is_enqueued_shown_and_listed(self, app: App) -> None:
        async def scene(http: httpx.AsyncClient, t: Harness) -> None:
            reply = await http.post("/api/flows", json=GRAPH)
            assert reply.status_code == 201, reply.text
            made = reply.json()
            assert (made["status"], made["duplicate"]) == ("running", False)
            again = await http.post("/api/flows", json=GRAPH)
            assert (again.status_code, again.json()["id"], again.json()["duplicate"]) == (
                200,
                made["id"],
                True,
            )
            await t.adrain()
            shown = (await http.get(f"/api/flows/{made['id']}")).json()
            assert (shown["name"], shown["status"], shown["key"]) == ("order", "succeeded", "order:42")
            assert shown["counts"] == {"succeeded": 8, "cancelled": 1}
            nodes = {node["name"]: node for node in shown["nodes"]}
            assert nodes["each"]["items"] == {"succeeded": 3}
            assert nodes["each"]["items_of"] == ["add"]
            assert nodes["clean"]["skipped"]
            assert sorted(shown["edges"]) == [
                ["each", "clean"],
                ["list", "each"],
                ["one", "sum"],
                ["one", "two"],
                ["sum", "list"],
                ["two", "sum"],
            ]
            job = (await http.get(f"/api/jobs/{nodes['sum']['id']}")).json()
            assert (job["flow"], job["node"], job["result"]) == (made["id"], "sum", 3)
            assert job["args"] == [{"result_of": nodes["one"]["id"]}]
            page = (await http.get("/api/flows?state=succeeded")).json()
            assert [(flow["id"], flow["nodes"]) for flow in page["flows"]] == [(made["id"], 6)]
            assert (await http.get("/api/flows?state=failed")).json() == {"flows": [], "cursor": None}
            result = (await http.get(f"/api/jobs/{made['id']}/result")).json()
            assert result["result"] is None  # its only last node was skipped

        served(app, scene)

    def test_cancel_and_retry(self, app: App) -> None:
        async def scene(http: httpx.AsyncClient, t: Harness) -> None:
            fails.add("b")
            nodes = [
                {"name": "a", "task": "work", "args": ["a"]},
                {"name": "b", "task": "work", "args": ["b", {"$node": "a"}]},
                {"name": "c", "task": "work", "args": ["c", {"$node": "b"}]},
            ]
            id = (await http.post("/api/flows", json={"nodes": nodes})).json()["id"]
            await t.adrain()
            shown = (await http.get(f"/api/flows/{id}")).json()
            assert shown["status"] == "failed"
            assert "node b is dead" in shown["reason"]
            fails.clear()
            done = (await http.post(f"/api/flows/{id}/retry")).json()
            assert done == {"id": id, "status": "running", "changed": True}
            await t.adrain()
            assert (await http.get(f"/api/flows/{id}")).json()["status"] == "succeeded"
            other = (await http.post("/api/flows", json={"nodes": nodes})).json()["id"]
            done = (await http.post(f"/api/flows/{other}/cancel", json={"reason": "enough"})).json()
            assert done == {"id": other, "status": "cancelled", "changed": True}
            assert not (await http.post(f"/api/flows/{other}/cancel")).json()["changed"]

        served(app, scene)

    @pytest.mark.parametrize(
        ("nodes", "said"),
        [
            ([{"name": "a", "task": "add", "args": [{"$node": "b"}]}], "there is none"),
            (
                [
                    {"name": "a", "task": "add", "args": [{"$node": "b"}]},
                    {"name": "b", "task": "add", "args": [{"$node": "a"}]},
                ],
                "no cycle",
            ),
            ([{"name": "a", "task": "add", "args": [1]}] * 2, "name of its own"),
            ([{"name": "a", "task": "add"}], "'a'"),
            ([{"name": "a", "task": "add", "args": ["x"]}], "Expected `int`"),
            ([{"name": "a", "task": "nothing"}], "nothing"),
            ([{"name": "a", "task": "add", "args": [1], "when": "never"}], "when"),
            ([{"name": "a", "task": "add", "args": [1], "prioritee": 1}], "prioritee"),
            (
                [
                    {"name": "a", "task": "send", "args": [{"$node": "b"}]},
                    {"name": "b", "task": "add", "args": [1]},
                ],
                "str",
            ),
        ],
    )
    def test_a_wrong_graph_is_refused_as_a_whole(self, app: App, nodes: Any, said: str) -> None:
        async def scene(http: httpx.AsyncClient, t: Harness) -> None:
            reply = await http.post("/api/flows", json={"nodes": nodes})
            assert reply.status_code in (404, 422), reply.text
            assert said in reply.json()["error"]["message"]
            assert t.enqueued() == []

        served(app, scene)

    @pytest.mark.parametrize(("key", "mine", "other"), [("email", "send", "add"), ("adder", "add", "send")])
    def test_a_key_sees_only_flows_within_its_limits(self, app: App, key: str, mine: str, other: str) -> None:
        values = {"send": "x", "add": 1}

        async def scene(http: httpx.AsyncClient, t: Harness) -> None:
            node = {"name": "a", "task": mine, "args": [values[mine]]}
            reply = await http.post("/api/flows", json={"nodes": [node]})
            assert reply.status_code == 201, reply.text
            both = [node, {"name": "b", "task": other, "args": [values[other]]}]
            assert (await http.post("/api/flows", json={"nodes": both})).status_code == 403
            hidden = await group([app.call(mine, values[mine]), app.call(other, values[other])]).aenqueue()
            shown = (await http.get("/api/flows")).json()["flows"]
            assert [flow["id"] for flow in shown] == [reply.json()["id"]]
            for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
                refused = await http.request(method, f"/api/flows/{hidden.id}{path}")
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "flow_not_found")

        served(app, scene, open=False, key=key)

    def test_unknown_flows_and_cursors(self, app: App) -> None:
        async def scene(http: httpx.AsyncClient, t: Harness) -> None:
            assert (await http.get("/api/flows/none")).status_code == 404
            job = await app.aenqueue("add", 1)
            assert (await http.get(f"/api/flows/{job.id}")).status_code == 404
            for number in range(5):
                await group([app.call("add", number)]).aenqueue()
            found: list[Any] = []
            cursor: Any = ""
            while cursor is not None:
                more = f"&cursor={cursor}" if cursor else ""
                page = (await http.get(f"/api/flows?limit=2{more}")).json()
                found += page["flows"]
                cursor = page["cursor"]
            assert len({flow["id"] for flow in found}) == 5

        served(app, scene)


class TestGrpc:
    def test_flows_are_read(self, app: App) -> None:
        async def main() -> None:
            async with app.testing() as t:
                flow = app.flow("order")
                flow.map(app.tasks["add"], flow.add(app.tasks["pages"], 3))
                made = await flow.aenqueue()
                await t.adrain()
                server = await serve_grpc(app, "127.0.0.1:0")
                try:
                    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                        client = Client(channel)
                        shown = await client("GetFlow", id=made.id)
                        assert (shown.name, shown.status, shown.node_count) == ("order", "succeeded", 2)
                        assert dict(shown.counts) == {"succeeded": 5}
                        assert [(node.name, list(node.inputs)) for node in shown.nodes] == [
                            ("pages", []),
                            ("add", ["pages"]),
                        ]
                        assert dict(shown.nodes[1].items) == {"succeeded": 3}
                        listed = await client("ListFlows", state="succeeded")
                        assert [one.id for one in listed.flows] == [made.id]
                        assert (await client("Get", id=shown.nodes[0].id)).node == "pages"
                        assert (await client.fails("GetFlow", id="none")).status == "NOT_FOUND"
                        assert (await client.fails("ListFlows", state="x")).status == "INVALID_ARGUMENT"
                finally:
                    await server.stop(0.5)

        asyncio.run(main())


class TestElsewhere:
    def test_a_worker_in_another_language_gets_the_inputs(self, app: App) -> None:
        job = chain(app.call("add", 1, 1), app.call("elsewhere", 5)).enqueue()
        (first,) = app.external.fetch(["default"], tasks=["add"])
        app.external.ack(first.id, first.token, result=2)
        (held,) = app.external.fetch(["default"], tasks=["elsewhere"])
        assert (held.id, held.args) == (job.id, (2, 5))
        app.external.ack(held.id, held.token, result=7)
        assert job.get(timeout=0) == 7

    def test_a_failed_input_is_a_dict_for_a_worker_in_another_language(self, app: App) -> None:
        flow = app.flow("f")
        flow.add(app.call("elsewhere", flow.add(app.call("work", "x"))), when="done", name="late")
        flow.enqueue()
        (first,) = app.external.fetch(["default"], tasks=["work"])
        app.external.nack(first.id, first.token, how="dead", error="broken")
        (held,) = app.external.fetch(["default"], tasks=["elsewhere"])
        assert held.args is not None
        assert held.args[0]["error"]["message"] == "broken"

    def test_a_node_that_must_not_run_is_not_handed_out(self, app: App) -> None:
        flow = app.flow("f")
        flow.add(app.call("elsewhere"), after=flow.add(app.call("add", 1)), when="failed", name="clean")
        handle = flow.enqueue()
        (first,) = app.external.fetch(["default"], tasks=["add"])
        app.external.ack(first.id, first.token, result=1)
        assert app.external.fetch(["default"], tasks=["elsewhere"]) == []
        assert handle.info().nodes[1].skipped

    def test_why_names_the_nodes_that_it_waits_for(self, app: App) -> None:
        with app.testing() as t:
            flow = app.flow("f")
            first = flow.add(app.call("add", 1), name="first")
            flow.add(app.call("add", 1), after=first, name="second")
            handle = flow.enqueue()
            nodes = {node.name: node.id for node in handle.info().nodes}
            why = app.job(nodes["second"]).why()
            assert (why.code, why.details["nodes"]) == ("waits_for_jobs", {nodes["first"]: "first"})
            assert f"node first, {nodes['first']} (ready)" in why.text
            assert "node second" in app.job(handle.id).why().text
            mapped = app.flow("map")
            mapped.map(app.tasks["work"].using(delay=60), ["a"], name="map")
            waits = mapped.enqueue()
            t.drain()
            (node,) = waits.info().nodes
            assert "node map[0]" in app.job(node.id).why().text

    def test_metrics_count_flows(self, app: App) -> None:
        async def main() -> None:
            async with app.testing() as t:
                await group([app.call("add", 1)]).aenqueue()
                await t.adrain()
                await app.astats()
                text = await ametrics(app)
                assert 'dray_flows_total{state="accepted"} 1.0' in text

        asyncio.run(main())

    def test_all_nodes_of_a_flow_are_in_one_trace(self, app: App) -> None:
        trace = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        processors = pytest.importorskip("opentelemetry.sdk.trace.export")
        spans = export.InMemorySpanExporter()
        provider = trace.TracerProvider()
        provider.add_span_processor(processors.SimpleSpanProcessor(spans))
        app.trace(provider)
        with app.testing() as t:
            chord(group(app.call("work", str(n)) for n in range(3)), app.call("anything")).enqueue()
            t.drain()
        found = [span for span in spans.get_finished_spans() if span.name.startswith("process")]
        assert len(found) == 5
        assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1


class TestTree:
    def draw(self, app: App, handle: Any) -> list[str]:
        return tree(handle.info())

    def test_a_flow_is_drawn_with_what_depends_on_what(self, app: App) -> None:
        fails.add("left")
        with app.testing() as t:
            work = app.tasks["work"]
            f = app.flow("diamond")
            top = f.add(work.call("top"), name="top")
            sides = [f.add(app.call("work", side, top), name=side) for side in ("left", "right")]
            f.add(app.call("work", "bottom", *sides), name="bottom")
            f.add(app.call("work", "clean", sides[0]), name="clean", when="failed")
            handle = f.enqueue()
            t.drain()
            lines = tree(handle.info())
        assert lines == [
            "diamond  failed: node left is dead: rejected: left is broken  (1 failed, 1 cancelled, 3 done)",
            "└─ top (work)  succeeded",
            "   ├─ left (work)  dead: rejected: left is broken",
            "   │  ↓ clean (work) (when failed)  succeeded",
            "   └─ right (work)  succeeded",
            "      ↓ bottom (work)  cancelled",
        ]

    def test_many_alike_are_one_line(self, app: App) -> None:
        fails.update(("3", "7"))
        with app.testing() as t:
            calls = [app.call("work", str(n)) for n in range(1000)]
            handle = chord(group(calls), app.call("anything")).enqueue().flow
            mapped = app.flow("map")
            mapped.map(app.tasks["work"], [str(n) for n in range(10)], name="resize")
            of_map = mapped.enqueue()
            t.drain()
            assert tree(handle.info())[1:] == [
                "└─ work × 1,000: 2 failed, 998 done",
                "   ↓ anything  cancelled",
            ]
            (line,) = tree(of_map.info())[1:]
            assert line.startswith("└─ resize (work) × 10: 2 failed, 8 done; the map  dead: item resize[3]")

    def test_a_long_chain_stays_at_one_depth(self, app: App) -> None:
        with app.testing():
            handle = chain(app.call("add", 1), *(app.call("add") for _ in range(99))).enqueue().flow
            lines = tree(handle.info())
        assert len(lines) == 101
        assert max(map(len, lines)) < 40


class TestCommands:
    def test_flows_are_listed_drawn_cancelled_and_retried(self, shell: Shell) -> None:
        shell.enqueue("send", "x")
        assert "no flows" in str(shell.run("flows", "ls"))
        app = shell.app()
        flow = app.flow("order", key="order:42")
        first = flow.add(app.call("add", 1), name="first")
        flow.add(app.call("add", 1), after=first, name="second")
        made = flow.enqueue()
        app.close()
        lines = shell.run("flows", "ls").out.splitlines()
        assert lines[0].split() == ["ID", "NAME", "STATE", "NODES", "CREATED", "ENDED", "NOTE"]
        assert lines[1].split()[:4] == [made.id, "order", "running", "2"]
        assert shell.run("flows", "show", made.id).out.splitlines() == [
            "order  running  (1 ready, 1 waiting)",
            "└─ first (add)  ready",
            "   ↓ second (add)  waiting",
        ]
        nodes = {node["name"]: node["id"] for node in shell.json("flows", "show", made.id)["nodes"]}
        assert "node first" in shell.run("why", nodes["second"]).out
        assert f"{made.id}, node first" in shell.run("jobs", "show", nodes["first"]).out
        shell.finish(nodes["first"])
        assert shell.json("flows", "show", made.id)["counts"] == {"dead": 1, "cancelled": 1}
        assert shell.json("flows", "retry", made.id) == {"id": made.id, "changed": True}
        assert shell.json("flows", "show", made.id)["counts"] == {"ready": 1, "waiting": 1}
        assert shell.json("flows", "cancel", made.id, "--reason", "enough") == {
            "id": made.id,
            "changed": True,
        }
        (listed,) = shell.json("flows", "ls", "--state", "cancelled")
        assert (listed["id"], listed["status"], listed["key"]) == (made.id, "cancelled", "order:42")
        assert "no flow none" in shell.run("flows", "show", "none", code=1).err
