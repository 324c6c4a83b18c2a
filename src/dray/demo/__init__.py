"""`dray demo`: a tour on real processes and the embedded broker, with real accidents, every number counted.

tasks      the app: background work of a small shop
view       what a person sees meanwhile: a live view on a terminal, plain lines elsewhere
monitor    the `dray worker` process, and the broker's events: the scenario waits for them, never for time
summary    the results, counted from the broker; the checks; the table or JSON at the end
scenario   what happens, scene by scene
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

from dray.demo.monitor import DemoFailed
from dray.demo.summary import Facts, print_summary
from dray.demo.view import View

SETTINGS: Final = """\
# The settings of `dray demo`. In this folder, `dray jobs ls` and the other commands find the demo's app.
app = "dray.demo.tasks:app"
heartbeat = "500ms"
"""


def run(*, keep: bool = False, json: bool = False, ui: bool = False) -> int:
    """Run the demo; returns the exit code, 0 if every check passed. With `ui` it becomes `dray dev`."""
    kept: list[Path] = []
    code = asyncio.run(_run(keep or ui, json, kept))
    if ui and code == 0:
        os.chdir(kept[0])
        os.execv(sys.executable, [sys.executable, "-m", "dray", "dev"])  # noqa: S606 (our own command)
    return code


async def _run(keep: bool, json: bool, kept: list[Path]) -> int:
    received: list[signal.Signals] = []
    demo = asyncio.current_task()

    def stop(number: signal.Signals) -> None:
        if not received and demo is not None:  # further signals do not disturb the cleaning up
            demo.cancel()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        with _temporary_folder(keep) as folder, View(json=json) as view:
            # Imported only now: an app reads the settings of the current folder and environment.
            facts: Facts = await import_module("dray.demo.scenario").play(view)
    except DemoFailed as error:
        print(f"dray: the demo did not go as it must: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        if not received:
            raise
        print(f"dray: the demo was stopped by {received[0].name}; nothing is left of it", file=sys.stderr)
        return 128 + received[0]
    kept.append(folder)
    return 0 if print_summary(facts, view.seconds, folder if keep else None, json=json) else 1


@contextmanager
def _temporary_folder(keep: bool) -> Iterator[Path]:
    """A new current folder and an environment without the user's settings of dray."""
    with ExitStack() as undo:
        before = dict(os.environ)
        undo.callback(os.environ.update, before)
        for name in before:
            if name.startswith("DRAY_"):
                del os.environ[name]
        if path := before.get("PYTHONPATH"):  # may be relative to the folder we leave
            os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
        folder = Path(tempfile.mkdtemp(prefix="dray-demo-")).resolve()
        if not keep:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "dray.toml").write_text(SETTINGS, "utf-8")
        undo.enter_context(chdir(folder))
        yield folder
