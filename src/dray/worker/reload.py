"""Noticing that the code has changed, for `--reload`: the times of all Python files below a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class Watch:
    """The Python files below a folder, as they were when last looked at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """The files that are new, changed or gone since the last call."""
        before, self._seen = self._seen, self._look()
        different = before.items() ^ self._seen.items()
        return sorted({Path(path) for path, _ in different})

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not _skipped(folder, name)]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 (thousands of them, every second)
                    try:
                        seen = os.stat(path)  # noqa: PTH116
                    except OSError:  # gone between the two looks
                        continue
                    found[path] = (seen.st_mtime_ns, seen.st_size)
        return found


def _skipped(folder: str, name: str) -> bool:
    return name.startswith(".") or name in SKIPPED or Path(folder, name, "pyvenv.cfg").exists()
