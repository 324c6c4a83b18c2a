"""A folder of the tour's own: it sees nobody's settings, and nothing of it is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, chdir
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import quote

SETTINGS: Final = """\
# The settings of `dray demo`. In this folder, `dray jobs ls` and all the others know which app is meant.
app = "dray.demo.tasks:app"
heartbeat = "500ms"
"""


class Place:
    """The current folder while entered; removed afterwards, unless it is to be kept."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.home = Path.cwd()
        self.folder = Path()
        self._undo = ExitStack()

    def __enter__(self) -> Place:
        self._set_variables()
        self.folder = Path(tempfile.mkdtemp(prefix="dray-demo-")).resolve()
        if not self.keep:
            self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "dray.toml").write_text(SETTINGS, "utf-8")
        self._undo.enter_context(chdir(self.folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def url(self) -> str:
        """The embedded broker of this folder, as a URL."""
        return f"sqlite:///{quote(str(self.folder))}/.dray/dray.db"

    @property
    def log(self) -> Path:
        """What the worker says."""
        return self.folder / "worker.log"

    def _set_variables(self) -> None:
        """No variable may set what the tour relies on, or mean something else in another folder."""
        before = dict(os.environ)
        self._undo.callback(os.environ.update, before)
        for name in before:
            if name.startswith("DRAY_"):
                del os.environ[name]
        if path := before.get("PYTHONPATH"):
            os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
