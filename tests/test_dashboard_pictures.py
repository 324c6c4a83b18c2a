"""Pictures of the dashboard for README and docs, of a busy shop: `make pictures` writes them to docs/img."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Tab, browsing
from dashboard_site import Site, until

from dray.app import App

SIZE_MAX = 200_000
SHOP = """
import asyncio
import random

from dray import App, Context

app = App("shop")


@app.task(name="email.send", queue="email", retries=2, backoff="fixed")
async def send(to: str, subject: str = "Welcome") -> str:
    await asyncio.sleep(random.uniform(0.02, 0.4))
    if to.endswith("@example.net"):
        raise ConnectionRefusedError(f"mail server refused {to}")
    return f"sent to {to}"


@app.task(name="image.resize", queue="images")
async def resize(ctx: Context, image: str, width: int = 800) -> dict[str, object]:
    for done in range(20):
        ctx.progress(done, 20, f"resizing {image}")
        await asyncio.sleep(random.uniform(0.05, 0.15))
    return {"image": image, "width": width}


@app.task(name="report.daily", queue="reports", retries=0)
def report(day: int) -> int:
    return 1000 // (day % 6)


@app.task(name="payment.capture", queue="payments", priority="high")
async def capture(order: int, cents: int) -> str:
    await asyncio.sleep(random.uniform(0.1, 0.3))
    return f"captured {cents} for order {order}"


@app.cron("0 3 * * *", tz="Europe/London")
@app.task(name="report.nightly")
def nightly() -> None: ...


@app.every("30s")
@app.task(name="stock.sync")
def sync() -> str:
    return "in step"
"""
LOAD_SECONDS = float(os.environ.get("PICTURE_SECONDS", "5"))


def load(app: App, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.05):
        number += 1
        bad = number % 23 == 0
        app.using(queue="email", retries=1, tags=["welcome"]).enqueue(
            "email.send", f"user{number}@{'example.net' if bad else 'example.org'}", subject="Welcome"
        )
        if number % 4 == 0:
            app.using(queue="payments", priority="high").enqueue("payment.capture", number, 100 * number)
        if number % 9 == 0:
            app.using(queue="images", tags=["upload"]).enqueue(
                "image.resize", f"photo{number}.jpg", width=640
            )
        if number % 30 == 0:
            app.using(queue="reports", retries=0).enqueue("report.daily", number // 30)


@pytest.fixture(scope="module")
def busy() -> Iterator[Site]:
    site = Site(Path(tempfile.mkdtemp(prefix="shop-")), "dev", "-c", "8", "--http", "127.0.0.1:0")
    (site.folder / "shop.py").write_text(SHOP)
    site.start()
    stop = threading.Event()
    loading = threading.Thread(target=load, args=(site.app, stop))
    loading.start()
    try:
        until(lambda: site.app.jobs.count(state="dead"), 120)
        stop.wait(LOAD_SECONDS)
        site.app.queues.pause("reports", reason="the ledger is being moved", by="ops")
        yield site
    finally:
        stop.set()
        loading.join()
        site.stop()
        site.app.close()


@pytest.mark.slow
def test_pictures_are_made_and_small(busy: Site, tmp_path: Path) -> None:
    folder = Path(os.environ.get("PICTURES", tmp_path))
    until(lambda: busy.app.jobs.find(state="dead", queue="email", limit=1), 60)
    dead = busy.app.jobs.find(state="dead", queue="email", limit=1)
    pages = {"now": "/", "jobs": "/jobs", "job": f"/jobs/{dead[0].id}", "errors": "/errors"}
    with browsing() as browser:
        for scheme in ("light", "dark"):
            for name, path in pages.items():
                picture = take(browser, busy, path, scheme, folder / f"dashboard-{name}-{scheme}.png")
                assert picture.stat().st_size <= SIZE_MAX


def take(browser: Any, site: Site, path: str, scheme: str, target: Path) -> Path:
    tab = Tab(browser, site.url, color_scheme=scheme, reduced_motion="reduce")
    try:
        page = tab.open(path)
        page.locator(".connection.live").wait_for()
        if path == "/":
            page.locator(".chart canvas").first.wait_for()
            page.wait_for_function(
                "() => !/^0$/.test(document.querySelectorAll('.tile strong')[2].textContent)"
            )
        page.screenshot(path=str(target), animations="disabled")
        assert tab.problems == []
    finally:
        tab.close()
    return target
