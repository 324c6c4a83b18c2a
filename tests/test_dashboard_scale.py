"""The dashboard on much: 100,000 jobs, 500 workers, 2,000 tasks; and two browsers at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser import Tab, browsing
from dashboard_site import Site, running_site

from dray.documents.worker_registry import ExecutorInfo, WorkerInfo, write_worker

JOBS = int(os.environ.get("SCALE_JOBS", "100000"))
WORKERS, TASKS = 500, 2000
KEPT = 3_600_000
"""Milliseconds for which the broker lists the workers."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def fill(site: Site) -> None:
    app = site.app
    for first in range(0, JOBS, 1000):
        calls = [
            app.using(delay=86_400, queue=f"q{n % 20}", tags=["old"] if n % 1000 == 0 else []).call(
                f"task{n % TASKS}", n
            )
            for n in range(first, first + 1000)
        ]
        app.enqueue_many(calls)


async def crowd(link: Any) -> None:
    now = link.broker.clock()
    for number in range(WORKERS):
        executors = tuple(ExecutorInfo(number=n, pid=n, running=3, slots=8) for n in range(4))
        info = WorkerInfo(
            id=f"host{number}", host=f"host{number}", pid=1, started=now, seen=now + KEPT, executors=executors
        )
        await write_worker(link.broker, info, KEPT)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("scale")) as site:
        fill(site)
        site.app.client.block(crowd)
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as browser:
        yield browser


def test_many_jobs_are_listed_filtered_scrolled_and_changed_as_one(browser: Any, site: Site) -> None:
    tab = Tab(browser, site.url)
    page = tab.open("/jobs", "Jobs")
    page.get_by_text(f"{JOBS:,} jobs").wait_for()
    for _ in range(20):
        page.mouse.wheel(0, 4000)
        page.wait_for_function("() => document.querySelectorAll('.grid-body [role=row]').length > 10")
    assert page.locator(".grid-body [role=row]").count() < 100, "only visible rows are in the page"
    page.get_by_role("combobox", name="Filter jobs").fill("queue:q7 state:scheduled")
    page.keyboard.press("Enter")
    page.get_by_text(f"{JOBS // 20:,} jobs").wait_for()
    page.get_by_role("button", name="cancel all matches").click()
    page.get_by_role("button", name=f"Cancel {JOBS // 20:,} jobs").wait_for()
    assert page.get_by_role("list", name="Samples").locator("li").count() == 6
    page.get_by_role("button", name=f"Cancel {JOBS // 20:,} jobs").click()
    page.get_by_text(f"{JOBS // 20:,} jobs changed").wait_for(timeout=120_000)
    page.get_by_text("No job fits").wait_for()
    assert tab.problems == []
    tab.close()


@pytest.mark.parametrize(
    ("path", "heading"), [("/", "Now"), ("/queues", "Queues"), ("/workers", "Workers"), ("/errors", "Errors")]
)
def test_pages_stay_usable_with_many_of_everything(browser: Any, site: Site, path: str, heading: str) -> None:
    tab = Tab(browser, site.url)
    page = tab.open(path, heading)
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.get_by_role("heading", level=1, name="Jobs").wait_for()
    assert tab.problems == []
    tab.close()


def test_a_worker_is_found_among_many(browser: Any, site: Site) -> None:
    tab = Tab(browser, site.url)
    page = tab.open("/workers", "Workers")
    page.get_by_text(re.compile("^The first 100 of 5")).wait_for()
    page.get_by_role("searchbox", name="Find a worker").fill("host499")
    page.get_by_text("host499").first.wait_for()
    assert page.locator(".cards .panel").count() == 1
    tab.close()


def test_two_browsers_that_act_at_once_see_the_same(browser: Any, site: Site) -> None:
    one, other = Tab(browser, site.url), Tab(browser, site.url)
    first, second = (tab.open("/queues?q=q3", "Queues") for tab in (one, other))
    for page in (first, second):
        page.get_by_role("button", name="Pause q3").click()
        page.get_by_role("button", name="Pause it").wait_for()
    first.get_by_role("button", name="Pause it").click()
    second.get_by_role("button", name="Pause it").click()
    for page in (first, second):
        page.get_by_role("button", name="Resume q3").wait_for()
    first.get_by_role("button", name="Resume q3").click()
    second.get_by_role("button", name="Pause q3").wait_for()
    assert one.problems == other.problems == []
    one.close()
    other.close()
