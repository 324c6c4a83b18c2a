"""Turns chains, groups, chords and flows into one graph and its jobs. No I/O.

Elements add their nodes to an `Assembly`, each given what comes before it. `Assembly.template` then checks
every call and builds the jobs; nothing has been written until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from dray.codec.inputs import Slot, When, places_of, runs_of
from dray.errors import InvalidInput, TooLarge
from dray.flows.annotations import fits, item_of, list_of
from dray.flows.graph import MAP_TASK, NODES_MAX, Part, Shape, Template, pack_template
from dray.job import Job
from dray.task import Call, Task, check_complete

if TYPE_CHECKING:
    from dray.app import App

BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that the jobs of one flow may have together."""
BUILT_IN_RETRIES: Final = 1000
"""Tries of a built-in task, which fails only if its broker does."""
HOUR: Final = 3_600_000


class Ref:
    """The result of a node, where it stands in the arguments of another."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __repr__(self) -> str:
        return f"<result of node {self.place}>"

    def __format__(self, spec: str) -> str:
        raise TypeError("the result of another node is known only when the job runs")


class _Item:
    """The item of a map, where it stands in arguments."""

    def __repr__(self) -> str:
        return "<item>"

    __format__ = Ref.__format__


ITEM: Final = _Item()
NOTHING: Final = object()
"""No element comes before this one."""


class Before(NamedTuple):
    """What an element follows: the result it gets, nodes that must end first, and when its first nodes
    run."""

    value: Any = NOTHING
    after: tuple[int, ...] = ()
    when: When = "success"

    def waits(self) -> tuple[int, ...]:
        return (*self.after, *(ref.place for ref in refs_in(self.value)))


class Element(Protocol):
    """A part of a flow: a chain, group, chord or flow. A call is one as well."""

    def assemble(self, to: Assembly, before: Before, name: str) -> Before:
        """Add the nodes; what comes next follows the returned."""
        ...


class Planned(msgspec.Struct):
    """A node whose call is not checked yet."""

    name: str
    call: Call[Any]
    after: tuple[int, ...]
    when: When
    headers: dict[str, str] | None = None
    inner: Assembly | None = None
    """Of a map: what is made of each item, ..."""
    inner_result: Any = None
    """... and the result of that."""


class Assembly:
    """The nodes of a flow, in the order in which they were added: inputs first."""

    def __init__(self, app: App, prefix: str = "") -> None:
        self.app, self.prefix = app, prefix
        self.planned: list[Planned] = []
        self.durable = False
        """A node asks for `durability="full"`."""
        self._names: dict[str, int] = {}
        self._returns: list[Any] = []
        self._bytes = 0

    def add(self, element: Any, before: Before, name: str = "") -> Before:
        """Add a call or another element."""
        if isinstance(element, Call):
            return self._add_call(element, before, name)
        if not hasattr(element, "assemble"):
            allowed = "a call (task.call(...)), chain, group, chord or flow is allowed"
            raise InvalidInput("flow", element, allowed)
        result: Before = element.assemble(self, before, name)
        return result

    def _add_call(self, call: Call[Any], before: Before, name: str) -> Before:
        if call.app is not None and call.app is not self.app:
            raise InvalidInput("flow", call, f"it is a call of another app, {call.app.name!r}")
        if before.value is not NOTHING:
            call = self._with_first(call, before.value)
        check_complete(call)
        if call.options.get("on_duplicate", "return") != "return":
            wrong = "in a flow only return is allowed: the job that has the key becomes the node"
            raise InvalidInput("on_duplicate", call.options["on_duplicate"], wrong)
        if "id" in call.options:
            raise InvalidInput("id", call.options["id"], "in a flow ids are made from the flow's: give a key")
        task = self.app.tasks.get(call.task)
        self._returns.append(Any if task is None else task.hints.returns)
        return self._plan(Planned(self._name(name or call.task), call, before.after, before.when))

    def _with_first(self, call: Call[Any], value: Any) -> Call[Any]:
        task, args = self.app.tasks.get(call.task), (value, *call.args)
        if task is not None and not task.hints.fits(args, call.kwargs):
            raise TypeError(
                f"{call.task}(): no room for the result before it, which is its first argument; "
                "for order alone, use f.add(call, after=node) of app.flow()"
            )
        return Call(call.task, args, call.kwargs, call.options, call.app)

    def add_map(self, inner: Assembly, result: Any, items: Any, before: Before, name: str) -> Before:
        """Add a map of `inner`, whose result is `result`, over the items."""
        refs = list(refs_in(items))
        if not refs and not isinstance(items, list | tuple) and items is not ITEM:
            raise InvalidInput("items", items, "a node whose result is a list, or a list, is allowed")
        if isinstance(items, Ref) and item_of(self._returns[items.place]) is None:
            where = self.planned[items.place].name
            raise TypeError(f"map: {where} returns {_shown(self._returns[items.place])}, which is no list")
        self._returns.append(list_of([inner.annotation_of(result)]))
        name = self._name(name or inner.planned[-1].call.task)
        call: Call[Any] = Call(MAP_TASK, (b"", items))
        return self._plan(Planned(name, call, before.after, before.when, None, inner, result))

    def _plan(self, node: Planned) -> Before:
        if len(self.planned) >= NODES_MAX:
            raise InvalidInput("flow", f"{NODES_MAX + 1:,} nodes", f"at most {NODES_MAX:,} are allowed")
        self.planned.append(node)
        return Before(Ref(len(self.planned) - 1))

    def _name(self, wanted: str) -> str:
        """The name of a node, with a number if it is taken."""
        return free_name(self.prefix + wanted, self._names)

    def annotation_of(self, value: Any) -> Any:
        """The annotation of a result."""
        if isinstance(value, Ref):
            return self._returns[value.place]
        return list_of([self.annotation_of(one) for one in value]) if isinstance(value, list) else Any

    # the jobs

    def each(self) -> Iterator[Planned]:
        """Every call, those of maps' items included."""
        for node in self.planned:
            if node.inner is None:
                yield node
            else:
                yield from node.inner.each()

    def template(self, result: Any) -> Template:
        """The checked nodes, with their jobs; `result` says where results belong."""
        return Template([self._part(node) for node in self.planned], shape_of(result))

    def _part(self, node: Planned) -> Part:
        call, task = node.call, self.app.tasks.get(node.call.task)
        items: list[tuple[str, str]] = []
        if node.inner is not None:
            template = node.inner.template(node.inner_result)
            first = template.parts[0].job
            items = list(dict.fromkeys(one for part in template.parts for one in part.made))
            options = {"queue": first.queue, "priority": first.priority}
            call = Call(MAP_TASK, (pack_template(template), *call.args[1:]), {}, options)
        inputs: dict[int, int] = {}
        slots: list[Slot] = []
        args = [_take_out(value, [n], inputs, slots) for n, value in enumerate(call.args)]
        kwargs = {key: _take_out(value, [key], inputs, slots) for key, value in call.kwargs.items()}
        if task is not None:
            task.hints.check_call(call.args, call.kwargs)
            self._check_types(task, slots, list(inputs))
        for one in node.after:
            inputs.setdefault(one, len(inputs))
        plain: Call[Any] = Call(call.task, tuple(args), kwargs, call.options)
        job = self._job(plain, node.headers, bool(slots))
        if task is not None and slots:  # refused if a key needs a result
            rate_key, running_key = task.keys(call.args, call.kwargs)
            job = msgspec.structs.replace(job, rate_key=rate_key, running_key=running_key)
        self._bytes += len(job.payload)
        if self._bytes > BYTES_MAX:
            raise TooLarge(f"the calls of the flow have more than {BYTES_MAX >> 20} MiB")
        return Part(node.name, job, runs_of(inputs), node.when, slots, items)

    def _job(self, call: Call[Any], headers: dict[str, str] | None, incomplete: bool) -> Job:
        job, durability = self.app.job_builder.outgoing(call, headers, incomplete=incomplete)
        self.durable = self.durable or durability == "full"
        if call.task == MAP_TASK:
            job = msgspec.structs.replace(job, retries=BUILT_IN_RETRIES, timeout=HOUR)
        return job

    def _check_types(self, task: Task[..., Any], slots: Sequence[Slot], inputs: Sequence[int]) -> None:
        for slot in slots:
            hint = task.hints.of_place(slot.path[0])
            if hint is None or len(slot.path) > 1 or not slot.at:
                continue
            nodes = [inputs[place] for place in places_of(slot.at)]
            given = [self._returns[node] for node in nodes]
            kind = list_of(given) if slot.many else given[0]
            if not fits(kind, hint.annotation):
                whose = self.planned[nodes[0]].name + (" and others" if len(nodes) > 1 else "")
                raise TypeError(
                    f"{task.hints.name}(): argument {task.hints.name_of(slot.path[0])!r} is "
                    f"{_shown(hint.annotation)}, but gets the result of {whose}, which is {_shown(kind)}"
                )


def free_name(wanted: str, taken: dict[str, int]) -> str:
    """`wanted`, or with the next number that is free; `taken` counts how often each was wanted."""
    name, number = wanted, taken.get(wanted, 0)
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    taken[wanted] = max(number, 1)
    taken.setdefault(name, 1)
    return name


def refs_in(value: Any) -> Iterator[Ref]:
    """The nodes whose results a value holds."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from refs_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from refs_in(one)


def shape_of(value: Any) -> Shape:
    if isinstance(value, Ref):
        return value.place
    if isinstance(value, list):
        return [shape_of(one) for one in value]
    return {name: shape_of(one) for name, one in value.items()} if isinstance(value, dict) else None


def replace_in(value: Any, look: Callable[[Any], Any]) -> Any:
    """A copy of the value, with what `look` returns for parts of it, unless that is NOTHING."""
    found = look(value)
    if found is not NOTHING:
        return found
    if isinstance(value, list | tuple):
        parts = [replace_in(one, look) for one in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if type(value) is dict:
        return {name: replace_in(one, look) for name, one in value.items()}
    return value


def _take_out(value: Any, path: list[int | str], inputs: dict[int, int], slots: list[Slot]) -> Any:
    """The value with None where results belong; these are added to the slots, and the nodes to the inputs."""
    if isinstance(value, Ref):
        slots.append(Slot(path, [inputs.setdefault(value.place, len(inputs)), 1]))
        return None
    if value is ITEM:
        slots.append(Slot(path))
        return None
    if isinstance(value, list | tuple) and value:
        if all(type(one) is Ref for one in value):
            places = [inputs.setdefault(ref.place, len(inputs)) for ref in value]
            slots.append(Slot(path, runs_of(places), many=True))
            return None
        before = len(slots)
        parts = [_take_out(one, [*path, n], inputs, slots) for n, one in enumerate(value)]
        return parts if len(slots) > before else value
    if type(value) is dict:
        return {name: _take_out(one, [*path, name], inputs, slots) for name, one in value.items()}
    return value


def _shown(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    return annotation.__name__ if plain else str(annotation)
