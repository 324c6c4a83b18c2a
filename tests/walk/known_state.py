"""The state of the brokers as far as the reference's replies show it; makes random calls meaningful."""

from __future__ import annotations

from typing import Any

from dray.broker.durable import Sent
from dray.broker.verbs import Accepted, Beat
from dray.job import Outcome, Record, State, Taken, Verdict


class KnownState:
    """An approximation: the reference may know more, so some calls miss, which is welcome."""

    def __init__(self) -> None:
        self.ids: dict[str, State] = {}
        self.held: dict[str, dict[str, None]] = {}
        self.alive: dict[str, int] = {}
        """Session → the end of its lease."""

    def learn(self, verb: str, args: dict[str, Any], at: int, reply: object) -> None:
        """Update from a reply of the reference."""
        match verb, reply:
            case "put", list():
                self._learn_put(reply)
            case ("take", list(taken)) | ("wait_take", (_, list(taken))):
                self._learn_take(args["session"], taken)
            case "asleep", (list(first), _, list(taken)):
                self._learn_take(args["session"], [*first, *taken])
            case "settle", list():
                self._learn_settle(args["session"], args["outcomes"], reply)
            case "renew", list():
                self._learn_renew(args["beats"], at)
            case "release", int():
                self.alive.pop(args["session"], None)
                self.held.pop(args["session"], None)
            case "send", Sent(state=state) if state is not State.NOT_FOUND:
                self.ids[args["id"]] = state
            case "check", list(records):
                self._learn_records(records)
            case _:
                pass

    def _learn_put(self, accepted: list[Accepted]) -> None:
        for one in accepted:
            if one.verdict == "created":
                self.ids[one.id] = one.state

    def _learn_take(self, session: str, taken: list[Taken]) -> None:
        for one in taken:
            self.held.setdefault(session, {})[one.job.id] = None
            self.ids[one.job.id] = State.RUNNING

    def _learn_settle(self, session: str, outcomes: tuple[Outcome, ...], reply: list[Any]) -> None:
        for outcome, settled in zip(outcomes, reply, strict=True):
            if settled.verdict is Verdict.ACCEPTED:
                self.ids[outcome.id] = settled.state
                self.held.get(session, {}).pop(outcome.id, None)

    def _learn_renew(self, beats: tuple[Beat, ...], at: int) -> None:
        for beat in beats:
            self.alive[beat.session] = at + beat.lease

    def _learn_records(self, records: list[Record]) -> None:
        self.ids = {record.id: record.state for record in records}
        self.held = {}
        for record in records:
            for run in record.runs:
                self.held.setdefault(run.session, {})[record.id] = None
