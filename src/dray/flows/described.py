"""A flow described in JSON types, as servers receive it: its nodes in any order, naming each other.

    {"name": "order", "key": "order:42", "nodes": [
        {"name": "charge", "task": "charge", "args": [42]},
        {"name": "ship", "task": "ship", "args": [{"$node": "charge"}], "when": "success", "after": []},
        {"name": "labels", "task": "label", "map": "ship"}]}

`{"$node": NAME}` anywhere among the arguments means the result of that node. `map` names the node, or is
the list, whose items the task gets one by one as its first argument. All options of a job are allowed on a
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from dray.codec.inputs import When
from dray.errors import InvalidInput, did_you_mean
from dray.flows.assembly import NOTHING, replace_in
from dray.options import Using, read_options
from dray.task import Call

if TYPE_CHECKING:
    from dray.app import App
    from dray.flows.builders import Flow, Node

_OWN: Final = frozenset({"name", "task", "args", "kwargs", "when", "after", "map"})


class DescribedNode(msgspec.Struct, kw_only=True):
    """One node of a described flow."""

    name: str
    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    when: When = "success"
    after: list[str] = []
    map: Any = msgspec.UNSET
    options: dict[str, Any] = {}
    """Options of the job, as `using` takes them."""

    def inputs(self) -> set[str]:
        """The nodes that it waits for."""
        found = set(self.after)

        def look(value: Any) -> Any:
            if (name := _named(value)) is not None:
                found.add(name)
            return NOTHING

        replace_in([self.args, self.kwargs], look)
        if isinstance(self.map, str):
            found.add(self.map)
        elif self.map is not msgspec.UNSET:
            replace_in(self.map, look)
        return found


class DescribedFlow(msgspec.Struct, kw_only=True):
    """A described flow."""

    nodes: list[DescribedNode]
    name: str = "flow"
    key: str | None = None

    @classmethod
    def of(cls, graph: Mapping[str, Any]) -> DescribedFlow:
        """Read a description; InvalidInput says what is wrong with it."""
        plain = dict(graph)
        nodes = plain.get("nodes")
        if isinstance(nodes, list):
            plain["nodes"] = [_with_options(node) if isinstance(node, dict) else node for node in nodes]
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise InvalidInput("flow", _short(graph), str(error)) from None

    def build(self, app: App) -> Flow:
        """The flow, its nodes in an order in which inputs come first."""
        flow = app.flow(self.name, key=self.key)
        nodes: dict[str, Node[Any]] = {}
        for node in self._in_order():
            nodes[node.name] = _add(app, flow, node, nodes)
        return flow

    def _in_order(self) -> list[DescribedNode]:
        left = {node.name: node for node in self.nodes}
        if len(left) < len(self.nodes):
            names = [node.name for node in self.nodes]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput("name", twice, "each node needs a name of its own")
        waits = {name: node.inputs() for name, node in left.items()}
        dependants: dict[str, list[str]] = {name: [] for name in left}
        for node, inputs in waits.items():
            for name in inputs:
                if name not in left:
                    hint = did_you_mean(name, left)
                    raise InvalidInput("node", name, f"{hint}node {node!r} names it, and there is none")
                dependants[name].append(node)
        free = [name for name, inputs in waits.items() if not inputs]
        for name in free:  # grows meanwhile
            for dependant in dependants[name]:
                waits[dependant].discard(name)
                if not waits[dependant]:
                    free.append(dependant)
        if len(free) < len(left):
            stuck = ", ".join(sorted(left.keys() - set(free))[:5])
            raise InvalidInput("nodes", stuck, "they wait for each other: a flow must have no cycle")
        return [left[name] for name in free]


def _with_options(node: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in node.items() if name not in _OWN}
    return {name: value for name, value in node.items() if name in _OWN} | {"options": options}


def _named(value: Any) -> str | None:
    """The node that `{"$node": NAME}` names."""
    if type(value) is dict and len(value) == 1 and isinstance(value.get("$node"), str):
        return cast(str, value["$node"])
    return None


def _add(app: App, flow: Flow, node: DescribedNode, nodes: dict[str, Node[Any]]) -> Node[Any]:
    def look(value: Any) -> Any:
        name = _named(value)
        return NOTHING if name is None else nodes[name]

    args, kwargs = tuple(replace_in(node.args, look)), replace_in(node.kwargs, look)
    options = read_options(cast(Using, node.options))
    if node.map is msgspec.UNSET:
        call: Call[Any] = Call(node.task, args, kwargs, options, app)
        return flow.add(call, when=node.when, name=node.name, after=[nodes[one] for one in node.after])
    items = nodes[node.map] if isinstance(node.map, str) else replace_in(node.map, look)
    missing: Call[Any] = Call(node.task, args, kwargs, options, app, "item")
    return flow.map(missing, items, when=node.when, name=node.name)


def _short(graph: Mapping[str, Any]) -> str:
    return str(graph.get("name", "flow"))
