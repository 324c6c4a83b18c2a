"""`chain`, `group`, `chord` and `app.flow()`: what users write. Nothing is sent before `enqueue`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from dray.client.client import Client
from dray.client.link import Link
from dray.client.sync_async import sync_and_async
from dray.codec.inputs import When
from dray.errors import InvalidInput
from dray.flows.assembly import ITEM, NOTHING, Assembly, Before, Ref, free_name, refs_in, replace_in
from dray.flows.handle import FlowHandle, NodeHandle, NoFlow
from dray.flows.placement import accept
from dray.job import check_name, check_word
from dray.options import one_of
from dray.task import Call, Prepared, Task

if TYPE_CHECKING:
    from dray.app import App

R = TypeVar("R")
A = TypeVar("A")
_read_when = one_of(When, spelled_out=True)


class _Parts:
    """Elements in order. The app is that of the first call that names one."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements = tuple(elements)
        for element in self.elements:
            if not isinstance(element, Call | _Parts | Flow):
                allowed = "calls (task.call(...)), chains, groups, chords and flows are allowed"
                raise InvalidInput(type(self).__name__.lower(), element, allowed)

    @property
    def app(self) -> App | None:
        """None if there is no call among them."""
        return next((element.app for element in self.elements if element.app is not None), None)

    @property
    def client(self) -> Client:
        return self.own_app().client

    def own_app(self) -> App:
        if self.app is None:
            allowed = "at least one call is allowed: there is no last job, and no app"
            raise InvalidInput(type(self).__name__.lower(), self.elements, allowed)
        return self.app


class Chain(_Parts, Generic[R]):
    """Elements one after the other; made by `chain`."""

    def assemble(self, to: Assembly, before: Before, name: str) -> Before:
        for place, element in enumerate(self.elements):
            before = to.add(element, before, name if place == len(self.elements) - 1 else "")
        return before

    async def _enqueue(self, link: Link) -> NodeHandle[R]:
        """Enqueue all; returns the handle of the last job."""
        return await _enqueue_for_last(link, self)

    enqueue, aenqueue = sync_and_async(_enqueue)


class Group(_Parts, Generic[R]):
    """Elements side by side; made by `group`."""

    def assemble(self, to: Assembly, before: Before, name: str) -> Before:
        ends = [to.add(element, before, name) for element in self.elements]
        if not ends:
            return Before([], before.waits())
        after = dict.fromkeys(node for end in ends for node in end.after)
        return Before([None if end.value is NOTHING else end.value for end in ends], tuple(after))

    async def _enqueue(self, link: Link) -> FlowHandle[list[R]]:
        """Enqueue all; `.get()` of the returned handle is the list of results, in order."""
        assembly = Assembly(self.own_app())
        end = assembly.add(self, Before())
        return await accept(link, assembly, end, "group")

    _send, _asend = sync_and_async(_enqueue)

    def enqueue(self) -> FlowHandle[list[R]]:
        """Enqueue all; `.get()` of the returned handle is the list of results, in order."""
        return NoFlow([None] * len(self.elements)) if self.app is None else self._send()

    async def aenqueue(self) -> FlowHandle[list[R]]:
        return NoFlow([None] * len(self.elements)) if self.app is None else await self._asend()


class Chord(_Parts, Generic[R]):
    """A group, and a call that gets the list of its results; made by `chord`."""

    def assemble(self, to: Assembly, before: Before, name: str) -> Before:
        header, callback = self.elements
        return to.add(callback, to.add(header, before), name)

    async def _enqueue(self, link: Link) -> NodeHandle[R]:
        """Enqueue all; returns the handle of the callback."""
        return await _enqueue_for_last(link, self)

    enqueue, aenqueue = sync_and_async(_enqueue)


async def _enqueue_for_last(link: Link, element: Chain[R] | Chord[R]) -> NodeHandle[R]:
    assembly = Assembly(element.own_app())
    end = assembly.add(element, Before())
    flow = await accept(link, assembly, end, type(element).__name__.lower())
    return flow.handle_of(end.value.place if isinstance(end.value, Ref) else None)


@overload
def chain(last: Call[R], /) -> Chain[R]: ...
@overload
def chain(first: Any, last: Call[R], /) -> Chain[R]: ...
@overload
def chain(first: Any, second: Any, last: Call[R], /) -> Chain[R]: ...
@overload
def chain(first: Any, second: Any, third: Any, last: Call[R], /) -> Chain[R]: ...
@overload
def chain(first: Any, second: Any, third: Any, fourth: Any, last: Call[R], /) -> Chain[R]: ...
@overload
def chain(*elements: Any) -> Chain[Any]: ...
def chain(*elements: Any) -> Chain[Any]:
    """One after the other: each gets the result of the one before it as its first argument.

    chain(fetch.call(url), parse.call(), store.call()).enqueue()
    """
    return Chain(elements)


_Element = Call[R] | Chain[R] | Chord[R]


def group(elements: Iterable[_Element[R]] | _Element[R], /, *more: _Element[R]) -> Group[R]:
    """Side by side; the result is the list of their results: `group(resize.call(p) for p in paths)`."""
    if isinstance(elements, Call | _Parts | Flow):
        return Group((elements, *more))
    return Group((*elements, *more))


def chord(header: Group[Any] | Iterable[Any], callback: Call[R] | Chain[R], /) -> Chord[R]:
    """A group, then `callback` with the list of its results."""
    return Chord((header if isinstance(header, Group) else Group(header), callback))


class Node(Generic[R]):
    """A node of a flow that is being built. Passed as an argument, it means its result."""

    __slots__ = ("after", "element", "flow", "items", "name", "named", "when")

    def __init__(self, flow: Flow, element: Any, when: str, name: str, after: tuple[Node[Any], ...]) -> None:
        self.flow, self.element, self.when, self.name, self.after = flow, element, when, name, after
        self.named = True
        """Its job has its name; else the jobs of the element have their own."""
        self.items: Any = NOTHING
        """Of a map: the node, or list, whose items it maps."""

    def __repr__(self) -> str:
        return f"<Node {self.name} of flow {self.flow.name}>"


def _call(task: Task[..., Any] | Prepared[..., Any], args: tuple[Any, ...], kwargs: Any) -> Call[Any]:
    """A call whose arguments are checked when the flow is enqueued: nodes are among them."""
    options = task.options if isinstance(task, Prepared) else {}
    of = task.task if isinstance(task, Prepared) else task
    return Call(of.name, args, kwargs, options, of.app)


class Flow:
    """A graph of jobs; made by `app.flow()`.

    f = app.flow("order", key="order:42")
    charged = f.add(charge, 42)
    f.add(ship, charged, f.add(pack, 42))
    flow = f.enqueue()
    """

    item: Any = ITEM
    """In a flow that is mapped: the item."""

    def __init__(self, app: App, name: str, key: str | None = None) -> None:
        self.app, self.name = app, check_name("name", name)
        self.key = None if key is None else check_word("key", key)
        self.nodes: list[Node[Any]] = []
        self._names: dict[str, int] = {}
        self._assembling = False

    def __repr__(self) -> str:
        return f"<Flow {self.name}: {len(self.nodes)} nodes>"

    @property
    def client(self) -> Client:
        return self.app.client

    @overload
    def add(
        self, task: Task[..., R] | Prepared[..., R], /, *args: Any, when: When = "success", **kwargs: Any
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        element: Call[R] | Chain[R] | Chord[R],
        /,
        *,
        when: When = "success",
        name: str = "",
        after: Node[Any] | Iterable[Node[Any]] = (),
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        element: Group[R],
        /,
        *,
        when: When = "success",
        name: str = "",
        after: Node[Any] | Iterable[Node[Any]] = (),
    ) -> Node[list[R]]: ...
    @overload
    def add(
        self,
        element: Flow,
        /,
        *,
        when: When = "success",
        name: str = "",
        after: Node[Any] | Iterable[Node[Any]] = (),
    ) -> Node[Any]: ...
    def add(self, element: Any, /, *args: Any, when: When = "success", **kwargs: Any) -> Node[Any]:
        """Add a node: a task (or `task.using(...)`) with its arguments, or a call, chain, group, chord or
        flow.

        A node among the arguments, also inside lists and dicts, means its result. `when` says what its inputs
        must have come to. An element other than a task may have a `name`, and nodes that it runs `after`.
        """
        if isinstance(element, Task | Prepared):
            return self._add(_call(element, args, kwargs), when, "", ())
        if args:
            raise InvalidInput("args", args, "give arguments to the call: f.add(task.using(...).call(...))")
        name, after = kwargs.pop("name", ""), kwargs.pop("after", ())
        if kwargs:
            raise InvalidInput("add", next(iter(kwargs)), "with a call, when, name and after are allowed")
        return self._add(element, when, name, (after,) if isinstance(after, Node) else tuple(after))

    def map(
        self,
        element: Task[..., R] | Prepared[..., R] | Call[R] | Chain[R] | Chord[R] | Group[Any] | Flow,
        items: Node[Any] | list[Any],
        /,
        *,
        when: When = "success",
        name: str = "",
    ) -> Node[list[R]]:
        """Add a node that runs `element` for each item of a result, which is known only then.

        The item is the first argument, as in a chain. The result of the node is the list of results.
        """
        one = _call(element, (), {}) if isinstance(element, Task | Prepared) else element
        node: Node[Any] = self._add(one, when, name, ())
        node.items = items
        self._check_own(items)
        return node

    def _add(self, element: Any, when: str, name: str, after: tuple[Node[Any], ...]) -> Node[Any]:
        if not isinstance(element, Call | _Parts | Flow):
            raise InvalidInput(
                "flow", element, "a task, or a call (task.call(...)), chain, group, chord or flow is allowed"
            )
        if name and check_name("name", name) in self._names:
            raise InvalidInput("name", name, "a node of this flow has it already")
        if isinstance(element, Call):
            self._check_own((element.args, element.kwargs))
        self._check_own(after)
        wanted = (
            name or getattr(element, "task", "") or getattr(element, "name", type(element).__name__.lower())
        )
        node: Node[Any] = Node(self, element, _read_when("when", when), free_name(wanted, self._names), after)
        node.named = bool(name) or isinstance(element, Call)
        self.nodes.append(node)
        return node

    def _check_own(self, value: Any) -> None:
        def look(one: Any) -> Any:
            if isinstance(one, Node) and one.flow is not self:
                raise InvalidInput("node", one, f"it is a node of another flow, not of {self.name!r}")
            return NOTHING

        replace_in(value, look)

    # as an element

    def assemble(self, to: Assembly, before: Before, name: str) -> Before:
        if self._assembling:
            raise InvalidInput("flow", self.name, "it contains itself: a flow must have no cycle")
        outer, self._assembling = to.prefix, True
        if before.value is not NOTHING or to.planned or outer:
            to.prefix = f"{outer}{name or self.name}."
        try:
            return self._ends(self._assemble_nodes(to, before))
        finally:
            self._assembling, to.prefix = False, outer

    def _assemble_nodes(self, to: Assembly, before: Before) -> dict[Node[Any], Before]:
        ends: dict[Node[Any], Before] = {}

        def look(one: Any) -> Any:
            if one is ITEM and before.value is not NOTHING:
                return before.value
            if not isinstance(one, Node):
                return NOTHING
            value = ends[one].value
            return None if value is NOTHING else value

        for node in self.nodes:
            ends[node] = self._assemble_node(to, node, before, ends, look)
        return ends

    def _assemble_node(
        self, to: Assembly, node: Node[Any], before: Before, ends: dict[Node[Any], Before], look: Any
    ) -> Before:
        element, when = node.element, cast(When, node.when)
        after = [place for one in node.after for place in ends[one].waits()]
        if node.items is not NOTHING:
            after += self._after_of(node.items, ends)
            items = replace_in(node.items, look)
            if not node.after and not list(refs_in(items)):
                after += before.waits()
            inner = Assembly(self.app)
            result = inner.add(element, Before(ITEM)).value
            if not inner.planned:
                raise InvalidInput("map", element, "an element with at least one call is allowed")
            return to.add_map(inner, result, items, Before(NOTHING, tuple(after), when), node.name)
        first: Any = NOTHING
        if isinstance(element, Call):
            after += self._after_of((element.args, element.kwargs), ends)
            args = replace_in(element.args, look)
            kwargs, missing = replace_in(element.kwargs, look), element.missing
            element = Call(element.task, tuple(args), kwargs, element.options, element.app, missing)
            first = before.value if missing else NOTHING
            own = list(refs_in((args, kwargs)))
        else:
            own, first = [], NOTHING if node.after else before.value
        if not own and not after and first is NOTHING:
            after += before.waits()  # it takes nothing of what comes before the flow, but waits for it
        inherits = before.when if not own and not node.after and when == "success" else when
        before = Before(first, tuple(dict.fromkeys(after)), inherits)
        return to.add(element, before, node.name if node.named else "")

    @staticmethod
    def _after_of(value: Any, ends: dict[Node[Any], Before]) -> list[int]:
        """Nodes that stand behind empty groups among the arguments."""
        found: list[int] = []

        def look(one: Any) -> Any:
            if isinstance(one, Node):
                found.extend(ends[one].after)
            return NOTHING

        replace_in(value, look)
        return found

    def _ends(self, ends: dict[Node[Any], Before]) -> Before:
        """The result: that of the only last node, or a dict of the last nodes by name."""
        used: set[Node[Any]] = set()

        def look(one: Any) -> Any:
            if isinstance(one, Node):
                used.add(one)
            return NOTHING

        for node in self.nodes:
            replace_in([node.items, *node.after], look)
            if isinstance(node.element, Call):
                replace_in([node.element.args, node.element.kwargs], look)
        last = [node for node in self.nodes if node not in used]
        after = tuple(dict.fromkeys(place for node in last for place in ends[node].after))
        values = [None if ends[node].value is NOTHING else ends[node].value for node in last]
        if len(last) == 1:
            return Before(values[0], after)
        named = {node.name: value for node, value in zip(last, values, strict=True)}
        return Before(named or None, after)

    async def _enqueue(self, link: Link) -> FlowHandle[Any]:
        """Enqueue all of it, or nothing. With a key that is taken, the handle is that of the existing
        flow."""
        assembly = Assembly(self.app)
        return await accept(link, assembly, assembly.add(self, Before()), self.name, self.key)

    enqueue, aenqueue = sync_and_async(_enqueue)
