"""Checks that groups take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.lives import Life, Violation

Class = tuple[str, int, str]
"""Queue, priority, task."""
Witness = tuple[str, int]
"""A job and its number in line: the same again means that it has stood there all the time."""


class Turns:
    """A group that started a job must not start another one while a job of another group could have."""

    def __init__(self) -> None:
        self._passed: dict[Class, dict[tuple[str | None, Witness], set[str | None]]] = {}
        """By class: (group, one of its jobs in line) → the groups that had a turn since it had one."""

    def check(self, taken: Sequence[Life], ready: Sequence[Life], runnable: Callable[[Life], bool]) -> None:
        """`taken` in the order of the reply; `ready` as it is afterwards: what can start now could before."""
        waiting: dict[Class, list[Life]] = {}
        for life in ready:
            waiting.setdefault(_class(life), []).append(life)
        for life in taken:
            self._took_turn(life, [other for other in waiting.get(_class(life), ()) if runnable(other)])

    def _took_turn(self, life: Life, others: Sequence[Life]) -> None:
        group, before = life.job.group, self._passed.get(_class(life), {})
        after: dict[tuple[str | None, Witness], set[str | None]] = {}
        for other in others:
            if other.job.group == group:
                continue
            witness = (other.job.group, (other.id, other.line))
            passed = before.get(witness, set())
            if group in passed:
                text = f"{group} had two turns while {other.id} of group {other.job.group} could have started"
                raise Violation("turns", text, life.id)
            after[witness] = passed | {group}
        # A group that cannot start now keeps its turn, and the turns that were counted for it.
        kept = {witness: passed for witness, passed in before.items() if witness[0] != group}
        self._passed[_class(life)] = {**kept, **after}

    def forget(self, queue: str) -> None:
        """A queue was changed by hand: jobs may have left their class and come back."""
        self._passed = {name: passed for name, passed in self._passed.items() if name[0] != queue}


def _class(life: Life) -> Class:
    return life.job.queue, life.job.priority, life.job.task
