"""A real Chromium that looks at the dashboard, and what tests ask of its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECONDS = 30


def browser_binary() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser with an empty profile. Playwright is loaded here: `make servers` needs only the name."""
    from playwright.sync_api import sync_playwright

    path = browser_binary()
    assert path is not None, "chromium is needed: `make servers` installs it, or says how"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One tab. Errors of the page, and whatever its policy had to stop, fail the test that asks."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        self.context.set_default_timeout(SECONDS * 1000)
        self.url, self.problems = url, list[str]()
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("dialog", self._asked_by_script)
        self.page.on("request", self._asked)

    def _heard(self, message: Any) -> None:
        # A reply like 401 or 404 is logged by the browser itself; pages handle it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def _asked_by_script(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.problems.append(f"request: {request.url}")

    def open(self, path: str, heading: str | None = None) -> Any:
        """Open a page and wait until it shows its data."""
        self.page.goto(self.url + path)
        self.settled(heading)
        return self.page

    def settled(self, heading: str | None = None) -> None:
        if heading is not None:
            self.page.get_by_role("heading", level=1, name=heading, exact=True).wait_for()
        self.page.wait_for_function(
            "() => document.querySelector('h1') && !document.querySelector('.loading')"
        )

    def axe(self) -> list[str]:
        """What axe finds wrong. It runs in a world of its own, past the policy of the page."""
        session = self.context.new_cdp_session(self.page)
        tree = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        world = session.send("Page.createIsolatedWorld", {"frameId": tree, "worldName": "axe"})
        context = world["executionContextId"]
        session.send("Runtime.evaluate", {"expression": AXE.read_text("utf-8"), "contextId": context})
        asked = {
            "expression": "axe.run(document, {resultTypes: ['violations']})"
            ".then(found => found.violations.flatMap(one => one.nodes.map(node =>"
            " one.id + ': ' + node.target.join(' ') + ' ' + node.failureSummary)))",
            "contextId": context,
            "awaitPromise": True,
            "returnByValue": True,
        }
        reply = session.send("Runtime.evaluate", asked)
        session.detach()
        found: list[str] = reply["result"]["value"]
        return found

    def close(self) -> None:
        self.context.close()
