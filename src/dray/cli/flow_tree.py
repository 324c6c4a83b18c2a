"""A flow as a tree for the terminal: what depends on a node stands below it, many alike are one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from dray.cli.output import colored, one_line
from dray.flows.reading import FlowInfo, NodeInfo
from dray.job import State

ALIKE = 5
"""More nodes of one task with the same inputs are one line."""
_WORDS = {State.DEAD: "failed", State.SUCCEEDED: "done"}
_ORDER = (State.DEAD, State.CANCELLED, State.RUNNING, State.RETRYING, State.READY, State.SCHEDULED)

Group = tuple[NodeInfo, ...]


def tree(info: FlowInfo) -> list[str]:
    """The lines of a flow's tree."""
    groups = _groups(info.nodes)
    place = {node.name: index for index, group in enumerate(groups) for node in group}
    below: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        inputs = [place[name] for name in group[0].inputs]
        below.setdefault(inputs[-1] if inputs else -1, []).append(index)
    return [_head(info), *(start + _line(groups[index]) for start, index in _walk(below))]


def _groups(nodes: Iterable[NodeInfo]) -> list[Group]:
    alike: dict[tuple[object, ...], list[NodeInfo]] = {}
    for node in nodes:
        alike.setdefault((node.task, node.items_of, node.inputs, node.when, node.is_map), []).append(node)
    return [
        group
        for members in alike.values()
        for group in ([tuple(members)] if len(members) > ALIKE else [(node,) for node in members])
    ]


def _walk(below: Mapping[int, list[int]]) -> Iterator[tuple[str, int]]:
    """Each group with the lines before it. An only dependant stays at the depth of its input: chains are
    long."""
    stack = [("", "", -1)]
    while stack:
        start, indent, index = stack.pop()
        if index >= 0:
            yield start, index
        followers = below.get(index, [])
        if index >= 0 and len(followers) == 1:
            stack.append((f"{indent}↓ ", indent, followers[0]))
            continue
        for follower in reversed(followers):
            last = follower == followers[-1]
            line, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
            stack.append((indent + line, indent + deeper, follower))


def _head(info: FlowInfo) -> str:
    counts = _counted(info.counts) or "no jobs yet"
    reason = f": {one_line(info.reason, 200)}" if info.reason else ""
    return f"{one_line(info.name)}  {colored(info.status)}{reason}  ({counts})"


def _line(group: Group) -> str:
    first = group[0]
    task = ", ".join(first.items_of) or first.task
    if len(group) > 1:
        return f"{task} × {len(group):,}: {_counted(Counter(node.status for node in group))}"
    name = first.name if first.name == task else f"{first.name} ({task})"
    if first.items:
        name = f"{name} × {Counter(first.items).total():,}: {_counted(first.items)}; the map"
    status = "skipped" if first.skipped else str(first.status)
    reason = f": {one_line(first.reason, 100)}" if first.reason and first.status is State.DEAD else ""
    when = f" (when {first.when})" if first.when != "success" else ""
    return f"{name}{when}  {colored(status)}{reason}"


def _counted(counts: Mapping[State, int]) -> str:
    """`3 failed, 20 running`; `done` if that is all."""
    order = (*_ORDER, *(state for state in counts if state not in _ORDER))
    parts = [f"{counts[state]:,} {_WORDS.get(state, state)}" for state in order if counts.get(state)]
    return "done" if set(counts) == {State.SUCCEEDED} else ", ".join(parts)
