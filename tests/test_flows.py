"""Flows in `app.testing()`: shapes, results, conditions, failures, replays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dray import (
    App,
    Context,
    FlowHandle,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Reject,
    State,
    TooLarge,
    chain,
    chord,
    group,
)
from dray.testing.harness import Harness

app = App("flows", broker="memory://")
fails: set[str] = set()
"""What `work` fails for."""
ran: list[str] = []


@dataclass
class Order:
    id: int
    paid: bool = False


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
async def total(values: list[int]) -> int:
    return sum(values)


@app.task
def pages(count: int) -> list[int]:
    return list(range(count))


@app.task
def text(value: int) -> str:
    return str(value)


@app.task
def charge(id: int) -> Order:
    return Order(id, paid=True)


@app.task
def ship(order: Order, *more: Any) -> str:
    assert isinstance(order, Order)
    return f"shipped {order.id}"


@app.task(retries=0)
def work(name: str, *inputs: Any) -> str:
    ran.append(name)
    if name in fails:
        raise Reject(f"{name} is broken")
    return name


@app.task
def anything(value: Any) -> Any:
    return value


@app.task
def seen(*inputs: Any) -> list[str]:
    return [f"{type(one).__name__}:{getattr(one, 'type', one)}" for one in inputs]


@app.task(queue="other")
def far(value: int) -> int:
    return value * 10


@pytest.fixture
def t() -> Iterator[Harness]:
    fails.clear()
    ran.clear()
    with app.testing() as harness:
        yield harness


def run(t: Harness, handle: Any) -> Any:
    t.drain()
    return handle.get(timeout=0)


def states(flow: FlowHandle[Any]) -> dict[str, str]:
    return {node.name: "skipped" if node.skipped else str(node.status) for node in flow.info().nodes}


class TestShapes:
    def test_each_call_of_a_chain_gets_the_result_before_it(self, t: Harness) -> None:
        assert run(t, chain(add.call(1, 2), add.call(3), add.call(b=4)).enqueue()) == 10

    def test_the_handle_of_a_chain_is_its_last_job(self, t: Harness) -> None:
        job = chain(add.call(1, 2), text.call()).enqueue()
        t.drain()
        assert job.info().task == "text"
        assert job.flow.status() == "succeeded"

    def test_a_group_gives_its_results_in_order(self, t: Harness) -> None:
        assert run(t, group(add.call(n, n) for n in range(20)).enqueue()) == [2 * n for n in range(20)]

    def test_the_callback_of_a_chord_gets_the_list(self, t: Harness) -> None:
        assert run(t, chord(group(add.call(n) for n in range(10)), total.call()).enqueue()) == 45

    def test_a_chain_ends_in_a_group(self, t: Harness) -> None:
        assert run(t, chain(add.call(1, 1), group(add.call(1), add.call(2))).enqueue()) == [3, 4]

    def test_a_chain_in_a_group_in_a_chord_in_a_chain(self, t: Harness) -> None:
        inner = chord(group(chain(add.call(1), add.call(n)) for n in range(3)), total.call())
        assert run(t, chain(add.call(100), inner, text.call()).enqueue()) == "306"

    def test_groups_in_groups(self, t: Harness) -> None:
        nested = group(group(add.call(1), add.call(2)), group([]), add.call(3))  # type: ignore[arg-type]
        assert run(t, nested.enqueue()) == [[1, 2], [], 3]

    def test_an_empty_group_is_an_empty_list(self, t: Harness) -> None:
        assert run(t, chord(group([]), total.call()).enqueue()) == 0
        flow = app.flow("empty")
        flow.add(group([]))
        assert run(t, flow.enqueue()) == []
        nothing: FlowHandle[Any] = group([]).enqueue()
        assert (nothing.get(), nothing.status(), nothing.cancel(), nothing.retry()) == (
            [],
            "succeeded",
            False,
            False,
        )

    def test_what_follows_an_empty_group_still_waits_for_what_came_before_it(self, t: Harness) -> None:
        fails.add("first")
        job = chain(work.call("first"), group([]), total.call()).enqueue()
        with pytest.raises(JobCancelled, match=r"first|dead"):
            run(t, job)

    def test_an_empty_chain_passes_its_value_on(self, t: Harness) -> None:
        assert run(t, chain(add.call(1), chain(), add.call(1)).enqueue()) == 2
        with pytest.raises(InvalidInput, match="no last job"):
            chain().enqueue()

    def test_an_empty_flow_has_no_result(self, t: Harness) -> None:
        assert run(t, app.flow("empty").enqueue()) is None

    def test_the_awaited_forms(self) -> None:
        async def main() -> None:
            async with app.testing() as t:
                job = await chain(add.call(1), add.call(1)).aenqueue()
                flow = await group([add.call(5)]).aenqueue()
                await t.adrain()
                assert await job == 2
                assert await flow.aget(timeout=0) == await flow == [5]
                assert await flow.astatus() == "succeeded"
                assert (await flow.ainfo()).nodes[0].name == "add"
                assert not await flow.acancel()
                assert not await flow.aretry()

        asyncio.run(main())

    def test_nodes_may_be_in_any_queue(self, t: Harness) -> None:
        assert run(t, chain(add.call(1, 1), far.call(), add.call(1)).enqueue()) == 21


class TestGraphs:
    def test_a_node_among_the_arguments_means_its_result(self, t: Harness) -> None:
        f = app.flow("order")
        a = f.add(charge, 42)
        b = f.add(work, "pack")
        f.add(ship, a, b, [b, {"x": b}])
        assert run(t, f.enqueue()) == "shipped 42"

    def test_several_last_nodes_give_a_dict_by_name(self, t: Harness) -> None:
        f = app.flow("two")
        one = f.add(add, 1, 1)
        f.add(add.call(5), name="five", after=one)
        f.add(text, one)
        assert run(t, f.enqueue()) == {"five": 5, "text": "2"}

    def test_nodes_in_lists_and_dicts_of_arguments(self, t: Harness) -> None:
        f = app.flow("nested")
        one, two = f.add(add, 1), f.add(add, 2)
        f.add(seen, [one, 7, {"two": two}])
        assert run(t, f.enqueue()) == ["list:[1, 7, {'two': 2}]"]

    def test_flows_nest(self, t: Harness) -> None:
        inner = app.flow("inner")
        start = inner.add(add.call(b=1))
        inner.add(add, start, 10)
        outer = app.flow("outer")
        outer.add(text, outer.add(chain(add.call(1), inner)))
        flow = outer.enqueue()
        assert run(t, flow) == "12"
        assert [node.name for node in flow.info().nodes] == ["add", "inner.add", "inner.add-2", "text"]

    def test_a_flow_key_allows_one_unfinished_flow(self, t: Harness) -> None:
        def order() -> FlowHandle[Any]:
            f = app.flow("order", key="order:42")
            f.add(add, 1)
            return f.enqueue()

        first, second = order(), order()
        assert second.id == first.id
        assert (first.duplicate, second.duplicate) == (False, True)
        assert run(t, second) == 1
        assert order().id != first.id

    def test_a_node_whose_key_is_taken_has_the_result_of_the_job_that_took_it(self, t: Harness) -> None:
        existing = work.using(key="k").enqueue("existing")
        job = chain(work.using(key="k").call("another"), seen.call()).enqueue()
        assert run(t, job) == ["str:existing"]
        assert ran == ["existing"]
        assert existing.get(timeout=0) == "existing"

    def test_every_option_of_a_job_works_on_a_node(self, t: Harness) -> None:
        job = chain(add.call(1), add.using(delay=60, tags=["x"], priority="low", queue="q").call(1)).enqueue()
        t.drain()
        info = job.info()
        assert (info.status, info.tags, info.priority, info.queue) == ("scheduled", ("x",), 9, "q")
        t.advance(60)
        assert job.get(timeout=0) == 2

    def test_a_result_is_kept_for_the_flow_although_results_are_off(self, t: Harness) -> None:
        assert run(t, chain(add.using(result_ttl=0).call(1), add.call(1)).enqueue()) == 2

    def test_middleware_changes_the_calls_of_a_flow(self) -> None:
        own = App("own", broker="memory://")

        @own.task
        def shown(ctx: Context, value: int) -> str:
            return ctx.headers["from"]

        @own.enqueue_middleware
        async def mark(outgoing: Any, call_next: Any) -> Any:
            outgoing.headers["from"] = "middleware"
            return await call_next()

        with own.testing() as t:
            flow = group([shown.call(1)]).enqueue()
            assert run(t, flow) == ["middleware"]


class TestRefused:
    def test_what_is_still_missing_is_a_type_error_that_names_it(self, t: Harness) -> None:
        with pytest.raises(TypeError, match="'value'"):
            text.enqueue()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="'value'"):
            app.enqueue_many([text.call()])
        with pytest.raises(TypeError, match="'value'"):
            chain(text.call(), text.call()).enqueue()
        f = app.flow("f")
        f.add(text)
        with pytest.raises(TypeError, match="'value'"):
            f.enqueue()
        assert t.enqueued() == []

    def test_a_call_with_too_many_arguments_is_refused_at_once(self) -> None:
        with pytest.raises(TypeError):
            text.call(1, 2, 3)  # type: ignore[call-overload]

    def test_no_room_for_the_result_before_it(self, t: Harness) -> None:
        with pytest.raises(TypeError, match="no room"):
            chain(add.call(1), text.call(5)).enqueue()

    def test_annotations_that_cannot_fit_are_refused(self, t: Harness) -> None:
        with pytest.raises(TypeError, match=r"'a' is int, but gets the result of text, which is str"):
            chain(add.call(1), text.call(), add.call()).enqueue()
        with pytest.raises(TypeError, match=r"list\[int\]"):
            chord(group(text.call(n) for n in range(2)), total.call()).enqueue()
        f = app.flow("f")
        f.map(text, f.add(add, 1))
        with pytest.raises(TypeError, match="no list"):
            f.enqueue()
        assert t.enqueued() == []

    def test_a_node_of_another_flow(self) -> None:
        node = app.flow("one").add(add, 1)
        other = app.flow("two")
        with pytest.raises(InvalidInput, match="another flow"):
            other.add(add, node)
        with pytest.raises(InvalidInput, match="another flow"):
            other.map(add, node)

    def test_a_call_of_another_app(self) -> None:
        other = App("other", broker="memory://")

        @other.task
        def stranger(value: int) -> int:
            return value

        with pytest.raises(InvalidInput, match="another app"):
            chain(add.call(1), stranger.call()).enqueue()

    def test_a_flow_that_contains_itself(self) -> None:
        one, two = app.flow("one"), app.flow("two")
        one.add(two)
        two.add(one)
        with pytest.raises(InvalidInput, match="cycle"):
            one.enqueue()

    @pytest.mark.parametrize("how", ["raise", "replace"])
    def test_on_duplicate_of_a_node(self, how: Any) -> None:
        with pytest.raises(InvalidInput, match="on_duplicate"):
            chain(add.using(key="k", on_duplicate=how).call(1), add.call()).enqueue()

    def test_names_that_are_taken_or_wrong(self) -> None:
        f = app.flow("f")
        f.add(add.call(1), name="x")
        with pytest.raises(InvalidInput, match="has it already"):
            f.add(add.call(1), name="x")
        with pytest.raises(InvalidInput, match="when"):
            f.add(add, 1, when="never")  # type: ignore[call-overload]
        with pytest.raises(InvalidInput):
            f.add("add")  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match="dray's own"):
            app.task(name="dray.mine")(lambda: None)

    def test_a_key_that_needs_a_result(self, t: Harness) -> None:
        own = App("own", broker="memory://")

        @own.task(rate_limit="1/s", rate_key="{value}")
        def limited(value: int) -> int:
            return value

        with own.testing(), pytest.raises(InvalidInput, match="known only when the job runs"):
            chain(limited.call(1), limited.call()).enqueue()

    def test_too_many_nodes_and_too_many_bytes(self, t: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dray.flows.assembly.NODES_MAX", 10)
        with pytest.raises(InvalidInput, match="at most 10"):
            group(add.call(n) for n in range(11)).enqueue()
        monkeypatch.setattr("dray.flows.assembly.BYTES_MAX", 1000)
        with pytest.raises(TooLarge):
            group(work.call("x" * 600) for n in range(2)).enqueue()
        assert t.enqueued() == []


class TestMaps:
    def test_one_job_per_item_of_a_result(self, t: Harness) -> None:
        f = app.flow("map")
        d = f.map(text, f.add(pages, 5))
        f.add(seen, d)
        flow = f.enqueue()
        assert run(t, flow) == ["list:['0', '1', '2', '3', '4']"]
        assert flow.status().counts == {State.SUCCEEDED: 8}
        [node] = [node for node in flow.info().nodes if node.is_map]
        assert node.items == {State.SUCCEEDED: 5}

    def test_over_an_empty_list(self, t: Harness) -> None:
        f = app.flow("map")
        f.map(text, f.add(pages, 0))
        assert run(t, f.enqueue()) == []

    def test_over_something_else_than_a_list(self, t: Harness) -> None:
        f = app.flow("map")
        f.map(text, f.add(anything, "no list"))
        flow = f.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="needs a list, and got str"):
            flow.get(timeout=0)
        assert flow.status() == "failed"

    def test_of_a_chain_depth_first(self, t: Harness) -> None:
        g = app.flow("deep")
        g.map(chain(add.call(1), far.call(), add.call(1)), g.add(pages, 3))
        assert run(t, g.enqueue()) == [11, 21, 31]

    def test_of_a_flow(self, t: Harness) -> None:
        one = app.flow("one")
        a = one.add(add, one.item, 1)
        one.add(add.using(tags=["x"]), a, 1)
        one.add(text, a)
        f = app.flow("map")
        f.map(one, f.add(pages, 2))
        assert run(t, f.enqueue()) == [{"add-2": 2, "text": "1"}, {"add-2": 3, "text": "2"}]

    def test_of_a_chord_and_a_group(self, t: Harness) -> None:
        f = app.flow("map")
        f.map(chord(group(add.call(1), add.call(2)), total.call()), f.add(pages, 2))
        f.map(group(add.call(1), add.call(2)), f.add(pages, 2), name="groups")
        assert run(t, f.enqueue()) == {"chord": [3, 5], "groups": [[1, 2], [2, 3]]}

    def test_a_map_in_a_map(self, t: Harness) -> None:
        inner = app.flow("inner")
        inner.map(add.call(100), inner.add(pages.call()))
        f = app.flow("map")
        f.map(inner, f.add(pages, 4))
        flow = f.enqueue()
        assert run(t, flow) == [[], [100], [100, 101], [100, 101, 102]]
        [node] = [node for node in flow.info().nodes if node.is_map]
        assert node.items == {State.SUCCEEDED: 14}

    def test_over_nodes_and_over_a_plain_list(self, t: Harness) -> None:
        f = app.flow("map")
        a, b = f.add(add, 1), f.add(add, 2)
        f.map(text, [a, b, 3])
        assert run(t, f.enqueue()) == ["1", "2", "3"]

    def test_a_map_of_1_500_items(self, t: Harness) -> None:
        f = app.flow("map")
        f.add(total, f.map(add.call(1), f.add(pages, 1500)))
        assert run(t, f.enqueue()) == sum(range(1, 1501))

    def test_an_item_that_dies_makes_the_map_dead_and_its_replay_revives_it(self, t: Harness) -> None:
        fails.add("b")
        f = app.flow("map")
        f.add(seen, f.map(work, ["a", "b", "c"]))
        flow = f.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match=r"b is broken") as caught:
            flow.get(timeout=0)
        assert "work[1]" in (caught.value.reason or "")
        assert states(flow) == {"work": "dead", "seen": "cancelled"}
        fails.clear()
        ran.clear()
        [item] = [job for job in t.dead() if job.task == "work"]
        assert app.job(item.id).retry()
        assert run(t, flow) == ["list:['a', 'b', 'c']"]
        assert ran == ["b"]

    def test_retry_of_the_flow_replays_dead_items_of_nested_maps(self, t: Harness) -> None:
        fails.add("b")
        inner = app.flow("inner")
        inner.map(work, inner.add(seen.call()))
        f = app.flow("map")
        f.map(chain(work.call(), seen.call()), ["a", "b"])
        flow = f.enqueue()
        t.drain()
        assert flow.status() == "failed"
        fails.clear()
        assert flow.retry()
        assert run(t, flow) == [["str:a"], ["str:b"]]


class TestWhen:
    def flow(self, *broken: str) -> tuple[FlowHandle[Any], dict[str, str]]:
        fails.update(broken)
        f = app.flow("when")
        a, b = f.add(work.call("a"), name="a"), f.add(work.call("b"), name="b")
        f.add(work.call("success", a, b), name="success")
        f.add(seen.call(a, b), name="done", when="done")
        f.add(seen.call(a, b), name="failed", when="failed")
        f.add(seen.call(a, b), name="any", when="any")
        with app.testing() as t:
            flow = f.enqueue()
            t.drain()
            found = states(flow)
            found["flow"] = flow.status()
            self.results = {node.name: app.job(node.id).info().result for node in flow.info().nodes}
        return flow, found

    def test_nothing_fails(self) -> None:
        _, found = self.flow()
        assert found == {
            **dict.fromkeys(("a", "b", "success", "done", "any"), "succeeded"),
            "failed": "skipped",
            "flow": "succeeded",
        }

    def test_one_fails(self) -> None:
        _, found = self.flow("b")
        assert found == {
            **dict.fromkeys(("a", "done", "failed", "any"), "succeeded"),
            "b": "dead",
            "success": "cancelled",
            "flow": "failed",
        }
        assert self.results["done"] == self.results["failed"] == ["str:a", "JobFailed:Reject"]

    def test_all_fail(self) -> None:
        _, found = self.flow("a", "b")
        assert found["any"] == "dead"
        assert found["done"] == found["failed"] == "succeeded"

    def test_a_failure_that_another_node_takes_does_not_fail_the_flow(self, t: Harness) -> None:
        fails.add("a")
        f = app.flow("tolerant")
        f.add(seen, f.add(work, "a"), when="done")
        flow = f.enqueue()
        assert run(t, flow) == ["JobFailed:Reject"]
        assert flow.status() == "succeeded"

    def test_what_depends_on_a_skipped_node_is_skipped_too(self, t: Harness) -> None:
        f = app.flow("skip")
        a = f.add(work.call("a"), name="a")
        clean = f.add(work.call("clean", a), name="clean", when="failed")
        after = f.add(work.call("after", clean), name="after")
        f.add(seen.call(after), name="late", when="failed")
        f.map(work.call(), f.add(seen.call(clean), name="list"), name="map")
        flow = f.enqueue()
        t.drain()
        assert states(flow) == {
            "a": "succeeded",
            **dict.fromkeys(("clean", "after", "late", "list", "map"), "skipped"),
        }
        assert flow.status() == "succeeded"
        assert flow.get(timeout=0) == {"late": None, "map": None}

    def test_any_starts_with_the_first_success(self, t: Harness) -> None:
        f = app.flow("race")
        slow = f.add(work.call("slow"), name="slow")
        late = f.add(add.using(delay=3600).call(1), name="late")
        f.add(seen, slow, late, when="any")
        flow = f.enqueue()
        t.drain()
        assert states(flow) == {"slow": "succeeded", "late": "scheduled", "seen": "succeeded"}
        assert flow.status() == "running"
        t.advance(3600)
        assert flow.get(timeout=0) == ["str:slow", "NoneType:None"]


class TestFailures:
    def diamond(self) -> FlowHandle[Any]:
        f = app.flow("diamond")
        top = f.add(work.call("top"), name="top")
        left, right = (f.add(work.call(side, top), name=side) for side in ("left", "right"))
        f.add(work.call("bottom", left, right), name="bottom")
        return f.enqueue()

    def test_a_dead_node_cancels_what_depends_on_it_and_names_it(self, t: Harness) -> None:
        fails.add("left")
        flow = self.diamond()
        t.drain()
        assert states(flow) == {
            "top": "succeeded",
            "left": "dead",
            "right": "succeeded",
            "bottom": "cancelled",
        }
        info = flow.info()
        assert info.status == "failed"
        assert "node left is dead" in (info.reason or "")
        assert info.nodes[1].id in (info.nodes[3].reason or "")
        with pytest.raises(JobFailed, match="left is broken"):
            flow.get(timeout=0)

    @pytest.mark.parametrize("by", ["flow", "job", "dead list"])
    def test_a_replay_revives_what_was_cancelled_because_of_it(self, t: Harness, by: str) -> None:
        fails.add("left")
        flow = self.diamond()
        t.drain()
        fails.clear()
        ran.clear()
        if by == "flow":
            assert flow.retry()
        elif by == "job":
            assert app.job(flow.info().nodes[1].id).retry()
        else:
            app.dead.replay(task="work")
        t.drain()
        assert states(flow) == dict.fromkeys(("top", "left", "right", "bottom"), "succeeded")
        assert flow.get(timeout=0) == "bottom"
        assert ran == ["left", "bottom"]
        assert not flow.retry()

    def test_two_dead_nodes_are_both_needed(self, t: Harness) -> None:
        fails.update(("left", "right"))
        flow = self.diamond()
        t.drain()
        nodes = {node.name: node.id for node in flow.info().nodes}
        fails.clear()
        app.job(nodes["left"]).retry()
        t.drain()
        assert states(flow)["bottom"] == "cancelled"
        assert flow.status() == "failed"
        app.job(nodes["right"]).retry()
        t.drain()
        assert flow.get(timeout=0) == "bottom"

    def test_a_chord_whose_member_dies(self, t: Harness) -> None:
        fails.add("1")
        job = chord(group(work.call(str(n)) for n in range(3)), seen.call()).enqueue()
        t.drain()
        with pytest.raises(JobCancelled):
            job.get(timeout=0)
        fails.clear()
        assert job.flow.retry()
        assert run(t, job) == ["list:['0', '1', '2']"]

    def test_cancel(self, t: Harness) -> None:
        f = app.flow("cancel")
        a = f.add(work, "a")
        f.add(add.using(delay=60).call(1), after=a)
        f.map(work.using(delay=60).call(), ["x", "y"])
        flow = f.enqueue()
        t.drain()
        assert flow.cancel("enough")
        assert not flow.cancel()
        assert t.enqueued() == []
        assert flow.status() == "cancelled"
        with pytest.raises(JobCancelled, match="enough"):
            flow.get(timeout=0)
        t.advance(60)
        assert ran == ["a"]

    def test_a_cancelled_flow_goes_on_after_retry(self, t: Harness) -> None:
        flow = self.diamond()
        t.run(flow.info().nodes[0].id)
        flow.cancel()
        t.drain()
        assert ran == ["top"]
        assert flow.retry()
        assert run(t, flow) == "bottom"
        assert sorted(ran) == ["bottom", "left", "right", "top"]

    def test_a_node_that_is_cancelled_by_hand_cancels_the_flow(self, t: Harness) -> None:
        flow = self.diamond()
        app.job(flow.info().nodes[1].id).cancel("not wanted")
        t.drain()
        assert flow.status() == "cancelled"
        assert "not wanted" in (flow.info().reason or "")

    def test_a_node_that_is_deleted_by_hand_ends_the_flow(self, t: Harness) -> None:
        flow = self.diamond()
        nodes = {node.name: node.id for node in flow.info().nodes}
        app.jobs.delete([nodes["left"]])
        t.drain()
        assert states(flow) == {
            "top": "succeeded",
            "left": "not_found",
            "right": "succeeded",
            "bottom": "cancelled",
        }
        assert flow.status() == "failed"
        assert "left was deleted" in (flow.info().reason or "")

    def test_an_unknown_task_leaves_the_flow_running_and_cancellable(self, t: Harness) -> None:
        flow = group([app.call("elsewhere", 1)]).enqueue()
        t.drain()
        assert flow.status() == "running"
        assert flow.status().counts == {State.READY: 1}
        assert flow.cancel()

    def test_unknown_flows(self, t: Harness) -> None:
        handle: FlowHandle[Any] = FlowHandle(app, "default:" + "0" * 32)
        assert handle.status() == "not_found"
        for call in (handle.get, handle.info, handle.cancel, handle.retry):
            with pytest.raises(JobNotFound):
                call()
        with pytest.raises(JobNotFound):
            FlowHandle(app, add.enqueue(1).id).info()

    def test_an_input_that_is_replayed_while_its_dependant_is_ready_is_waited_for(self, t: Harness) -> None:
        job = chain(add.call(1), add.call(1)).enqueue()
        first = job.flow.info().nodes[0].id
        t.run(first)
        app.job(first).retry()
        t.run(job)
        assert job.status() == "waiting"
        assert run(t, job) == 2

    def test_a_result_of_several_megabytes_as_input(self) -> None:
        own = App("own", broker="memory://", max_result=1 << 24)

        @own.task
        def large() -> bytes:
            return b"x" * (10 << 20)

        @own.task
        def size(data: bytes) -> int:
            return len(data)

        with own.testing() as t:
            assert run(t, chain(large.call(), size.call()).enqueue()) == 10 << 20
            f = own.flow("large")
            f.map(chain(size.call()), f.add(group(large.call(), large.call())))
            flow = f.enqueue()
            assert run(t, flow) == [10 << 20] * 2
            both = group(large.call(), large.call()).enqueue()
            assert [len(one) for one in run(t, both)] == [10 << 20] * 2
