"""Counts the calls, replies and transitions of a walk, on the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from dray.broker.actions import Edited
from dray.broker.memory import MemoryBroker
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore
from dray.broker.verbs import Broker, DocReply, Swept, Wake
from dray.errors import DrayError
from dray.job import TRANSITIONS, Move, Sign, State
from dray.policy import Retention

Transition = tuple[Move, State, State]

UNREACHABLE: Final[dict[Transition, str]] = {
    (Move.DELETED, State.RUNNING, State.NOT_FOUND): "a running job is refused: cancel it first",
}


class Coverage:
    """Counters of calls, replies and transitions of jobs."""

    def __init__(self) -> None:
        self.transitions: Counter[Transition] = Counter()
        self.signs: Counter[str] = Counter()
        self.answers: Counter[tuple[str, ...]] = Counter()
        self.ops = 0

    def watch(self, broker: Broker) -> None:
        """Count the transitions inside an unused reference broker."""
        if isinstance(broker, MemoryBroker):
            broker._store = _CountingStore(broker.retention, self)

    def missing(self) -> list[Transition]:
        """Possible transitions that have not happened."""
        return [
            (move, before, after)
            for move, table in TRANSITIONS.items()
            for before, afters in table.items()
            for after in sorted(afters)
            if not self.transitions[move, before, after] and (move, before, after) not in UNREACHABLE
        ]

    def note(self, verb: str, args: dict[str, Any], reply: Any) -> None:
        self.ops += 1
        for words in _categories(verb, args, reply):
            self.answers[words] += 1

    def table(self) -> str:
        lines = [f"{self.ops} calls"]
        for (move, before, after), n in sorted(self.transitions.items()):
            lines.append(f"{n:9}  {move}: {before} -> {after}")
        lines += [f"{'never':>9}  {move}: {before} -> {after}" for move, before, after in self.missing()]
        lines += [f"{n:9}  {sign}" for sign, n in sorted(self.signs.items())]
        lines += [f"{n:9}  {' '.join(words)}" for words, n in sorted(self.answers.items())]
        return "\n".join(lines)


def _categories(verb: str, args: dict[str, Any], reply: Any) -> Sequence[tuple[str, ...]]:
    match verb, reply:
        case _, DrayError():
            field = str(getattr(reply, "field", ""))
            return [(verb, str(args.get("call", "")), type(reply).__name__, field)]
        case "put", list():
            return [("put", one.verdict, "replaced" if one.replaced else "") for one in reply]
        case "settle", list():
            pairs = zip(args["outcomes"], reply, strict=True)
            return [("settle", outcome.kind, one.verdict, one.state) for outcome, one in pairs]
        case "edit", Edited():
            action = type(args["action"]).__name__
            by = type(args["selection"]).__name__
            done = [("edit", action, by, "changed")] * len(reply.changed)
            return done + [("edit", action, by, why.split(" by ")[0]) for _, why in reply.refused]
        case "sweep", Swept():
            return [("sweep", name) for name in reply.__struct_fields__ if getattr(reply, name)]
        case "renew", list():
            words = [("renew", "opened") for one in reply if one.opened]
            words += [("renew", "lost") for one in reply for _ in one.lost]
            return words + [("renew", "cancelled") for one in reply for _ in one.cancelled]
        case "doc", DocReply():
            return [("doc", "write" if "value" in args else "read", str(reply.written), str(bool(reply.doc)))]
        case ("wait", Wake() as wake) | ("wait_take", (Wake() as wake, _)):
            told, mail = "told" if wake.told else "", "mail" if wake.finished else ""
            return [(verb, "work" if wake.work else "", told, mail)]
        case "asleep", (_, _, list(taken)):
            return [(verb, args["then"].verb, "handed over" if taken else "")]
        case _:
            return [(verb, "some" if reply else "none")]


class _CountingStore(JobStore):
    def __init__(self, retention: Retention, coverage: Coverage) -> None:
        super().__init__(retention)
        self._coverage = coverage

    def move(self, kept: JobEntry, move: Move, to: State, run: int = 0) -> None:
        before = kept.state
        super().move(kept, move, to, run)
        self._coverage.transitions[move, before, to] += 1

    def delete(self, kept: JobEntry, now: int) -> None:
        self._coverage.transitions[Move.DELETED, kept.state, State.NOT_FOUND] += 1
        super().delete(kept, now)

    def note(self, kept: JobEntry, kind: Move | Sign, run: int = 0) -> None:
        super().note(kept, kind, run)
        if isinstance(kind, Sign):
            self._coverage.signs[kind] += 1
