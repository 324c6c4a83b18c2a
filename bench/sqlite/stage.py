"""Where a case is measured: dray on one file, the bare loop on its twin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.measure import Measurement, Sample
from bench.sqlite.cases import Case
from bench.sqlite.script import Script, perform, play_bare, play_dray, record, repeat
from bench.sqlite.store import Supply, copy, differences, remove

DRAY, BARE = "dray", "bare"
PLAYERS: dict[str, Callable[[Path, Script], Sample]] = {BARE: play_bare, DRAY: play_dray}


class Fresh:
    """One case; every sample starts from a fresh copy of the store."""

    def __init__(self, case: Case, store: Path, supply: Supply, folder: Path) -> None:
        self._case, self._folder = case, folder
        folder.mkdir()
        self._base = copy(store, folder / "base.db")
        supply = supply.twin()
        if case.prepare is not None:
            perform(self._base, supply, case.prepare)
        supply.skip(case.later)
        self._script = script_of(case, copy(self._base, folder / "recorded.db"), supply)

    def measurements(self) -> list[Measurement]:
        case = self._case
        return [
            Measurement(case.name, case.parameters, subject, partial(self._sample, subject))
            for subject in PLAYERS
        ]

    def close(self) -> list[str]:
        """Removes the files; returns the tables in which they differ, which there should be none of."""
        found = differences(self._file(DRAY), self._file(BARE))
        for name in ("base", "recorded", DRAY, BARE):
            remove(self._file(name))
        self._folder.rmdir()
        return found

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.db"

    def _sample(self, subject: str, round: int) -> Sample:
        return PLAYERS[subject](copy(self._base, self._file(subject)), self._script)


class Continued:
    """Cases one after the other on a store that takes long to copy: each sample goes on from the last.

    Dray's file, the bare loop's and the one on which scripts are recorded stay the same all the way.
    """

    def __init__(self, store: Path, supply: Supply, folder: Path) -> None:
        self._folder, self._supply = folder, supply.twin()
        folder.mkdir()
        for name in ("recorded", *PLAYERS):
            copy(store, self._file(name))

    def measurements(self, case: Case) -> list[Measurement]:
        if case.prepare is not None:
            start, calls = perform(self._file("recorded"), self._supply, case.prepare)
            for name in PLAYERS:
                repeat(self._file(name), start, calls)
        self._supply.skip(case.later)
        scripts: list[Script] = []

        def sample(subject: str, round: int) -> Sample:
            if round == len(scripts):
                scripts.append(script_of(case, self._file("recorded"), self._supply))
            return PLAYERS[subject](self._file(subject), scripts[round])

        return [
            Measurement(case.name, case.parameters, subject, partial(sample, subject)) for subject in PLAYERS
        ]

    def close(self) -> list[str]:
        """As `Fresh.close`."""
        found = differences(self._file(DRAY), self._file(BARE))
        for name in ("recorded", *PLAYERS):
            remove(self._file(name))
        self._folder.rmdir()
        return found

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.db"


def script_of(case: Case, path: Path, supply: Supply) -> Script:
    return record(path, supply, case.works())
