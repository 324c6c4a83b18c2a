"""Serves the dashboard: one page for all views, and the files that it loads. Their content is no secret."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dray.serve.routes import Reply

FOLDER: Final = Path(__file__).parent / "ui"
"""Where `ui/build.py` puts the bundle."""
PAGES: Final = frozenset(
    {"", "jobs", "errors", "flows", "queues", "workers", "schedules", "guarantees", "keys"}
)
"""First parts of the paths that show the page; jobs and flows have a page for each id."""
WITH_ID: Final = frozenset({"jobs", "flows"})
MEDIA_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HTML: Final = "text/html; charset=utf-8"
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Only files of this server are loaded; nothing written into the page is ever run."""
FOREVER: Final = "public, max-age=31536000, immutable"
"""The name of a file in `assets` changes with its content."""
MISSING: Final = b"""<!doctype html><html lang="en"><title>dray</title>
<h1>The dashboard is not built</h1>
<p>The HTTP API works: <a href="api/openapi.json">api/openapi.json</a> describes it.
<p>The wheel of dray has the dashboard. In a checkout, <code>make ui</code> builds it (Node comes with .venv);
without make: install Node 20.19 or newer, then <code>python ui/build.py</code>.
"""


def dashboard(parts: Sequence[str], root: str) -> Reply | None:
    """The page, or a file of it, below the path `root`; None if the path is none of the dashboard's."""
    first = parts[0] if parts else ""
    if len(parts) == 1 and first == "icon.svg":
        return _file(FOLDER / first, "no-cache")
    if len(parts) == 2 and first == "assets":
        return _file(FOLDER / "assets" / parts[1], FOREVER) if parts[1] in _assets() else None
    if first in PAGES and (len(parts) == 1 or (len(parts) == 2 and first in WITH_ID and parts[1])):
        return _page(root)
    return None


def _page(root: str) -> Reply:
    try:
        page = _index()
    except FileNotFoundError:
        return Reply(MISSING, media_type=HTML)
    base = escape(quote(root.rstrip("/"))).encode()
    body = page.replace(b'="./', b'="' + base + b"/")
    headers = {"content-security-policy": CSP, "cache-control": "no-cache"}
    return Reply(body, media_type=HTML, headers=headers)


def _file(path: Path, cache: str) -> Reply | None:
    try:
        body = _read(path)
    except FileNotFoundError:
        return None
    return Reply(body, media_type=MEDIA_TYPES[path.suffix], headers={"cache-control": cache})


def _index() -> bytes:
    """Read anew each time, as `make ui` may have written it meanwhile."""
    return (FOLDER / "index.html").read_bytes()


def _assets() -> set[str]:
    """Names that exist: a path from outside is compared with them, and never opened."""
    folder = FOLDER / "assets"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@lru_cache(maxsize=64)
def _read(path: Path) -> bytes:
    return path.read_bytes()
