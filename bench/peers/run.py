"""Rounds of sessions, interleaved; a subject that fails is reported, not left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers import envs
from bench.peers.books import Unfinished
from bench.peers.crew import Broken
from bench.peers.figures import Figured
from bench.peers.lineup import Subject
from bench.peers.plan import Plan
from bench.peers.session import Place, measure

FAILURES = (Broken, Unfinished, envs.NotInstalled, RuntimeError, OSError)
GIVE_UP = 2
"""Failed sessions after which a subject is not tried again."""


def install(subjects: Sequence[Subject], figured: Figured, tell: Callable[[str], None]) -> dict[str, Path]:
    """The environments of all subjects; one that cannot be made fails its subjects."""
    folders: dict[str, Path] = {"": Path()}
    for subject in subjects:
        if subject.env in folders:
            continue
        tell(subject.env)
        try:
            folders[subject.env] = envs.make(subject.env)
        except envs.NotInstalled as error:
            figured.failures[subject.name] = f"not installed: {error}"
    return folders


def rounds(
    plan: Plan, subjects: Sequence[Subject], place: Place, figured: Figured, tell: Callable[[str], None]
) -> None:
    """Each subject once per round, every other round in reverse."""
    figured.subjects += [subject.name for subject in subjects]
    failed: dict[str, int] = {}
    for number in range(plan.rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            if subject.env not in place.folders:
                figured.failures.setdefault(subject.name, "not installed")
                continue
            if failed.get(subject.name, 0) >= GIVE_UP:
                continue
            tell(f"round {number + 1} of {plan.rounds}, {subject.name}")
            try:
                figured.add(subject.name, measure(plan, subject, place))
            except FAILURES as error:
                failed[subject.name] = failed.get(subject.name, 0) + 1
                figured.failures[subject.name] = f"{type(error).__name__}: {error}"
