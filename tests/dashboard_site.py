"""A project in a folder of its own, run by `dray dev`: a worker and the server with the dashboard."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from dray.app import App

SHOP = """
import asyncio
from pathlib import Path
from typing import Any

from dray import App, Context

app = App("shop")


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
def echo(value: Any, **more: Any) -> Any:
    return value


@app.task(queue="email", retries=0)
def send(to: str) -> str:
    if Path("mail-works").exists():
        return f"sent to {to}"
    raise ConnectionRefusedError(f"mail server refused {to}")


@app.task(queue="slow")
async def wait_for(ctx: Context, name: str, note: str = "waiting", data: str = "") -> str:
    ctx.progress(3, 10, note, data={"data": data} if data else {})
    while not Path(name).exists():
        await asyncio.sleep(0.02)
    return name


def charge(number: int) -> int:
    return number + 1


@app.task
async def order(ctx: Context, number: int) -> int:
    first = await ctx.step(charge, number)
    await ctx.event("approved")
    return first


@app.cron("0 3 * * *", tz="Europe/London")
@app.task
def nightly() -> str:
    return "done"
"""


class Site:
    """What runs, and its app as seen from here."""

    def __init__(self, folder: Path, *command: str, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.url, self.said = folder, "", list[str]()
        (folder / "shop.py").write_text(SHOP)
        (folder / "dray.toml").write_text('app = "shop:app"\n')
        self.broker = f"sqlite:///{folder / 'dray.db'}"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}
        self.environ = kept | {"DRAY_BROKER_URL": self.broker, "DRAY_HEARTBEAT": "1s"}
        self.environ |= {f"DRAY_{name.upper()}": text for name, text in settings.items()}
        self.command = [
            sys.executable,
            "-m",
            "dray",
            *(command or ("dev", "-c", "64", "--http", "127.0.0.1:0")),
        ]
        self.process: subprocess.Popen[str] | None = None
        self.app = App("shop", broker=self.broker)

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        self.url = self.says(r"(?:dashboard: |dray server: )(http://[^\s/]+)")[1]

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.said.append(line)

    def says(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """What a line that it printed matches, once it is there."""
        found: re.Match[str] = until(
            lambda: re.search(pattern, "".join(self.said)), seconds, lambda: "".join(self.said)
        )
        return found

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=30).raise_for_status().json()


def until(
    ask: Callable[[], Any], seconds: float = 60, say: Callable[[], object] = lambda: "it did not happen"
) -> Any:
    """The first answer that is true."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < end, say()
        time.sleep(0.02)
    return answer


@contextmanager
def running_site(folder: Path, *command: str, **settings: str) -> Iterator[Site]:
    site = Site(folder, *command, **settings)
    site.start()
    try:
        yield site
    finally:
        site.app.close()
        if site.process is not None and site.process.poll() is None:
            site.stop()
