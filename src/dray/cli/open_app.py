"""From the options of a command to the app it works on."""

from __future__ import annotations

import functools
import os
import sys
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path

import click

from dray.app import App
from dray.broker.verbs import run_blocking
from dray.cli.target import REACHING, chosen
from dray.client.client import Client, opener
from dray.errors import AppNotFound, DrayError
from dray.loading import load_app
from dray.settings import Loaded, hide_password, load, override
from dray.stats.arrivals import SOURCE


def settings_here() -> Loaded:
    """The settings of this folder and environment, with the command's own options on top."""
    return override(load(), options())


def options() -> dict[str, object]:
    """`--broker` and `--namespace`, as settings."""
    given = {"broker_url": chosen("broker"), "namespace": chosen("namespace")}
    return {name: value for name, value in given.items() if value is not None}


def app_path(loaded: Loaded) -> str | None:
    """`module:attribute`. The app of a settings file is found from every folder of its project."""
    given = chosen("app")
    if given is None and loaded.app is not None:
        folder = str(loaded.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        # For the processes that a worker starts.
        paths = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return given or loaded.app


def needed_app_path() -> str:
    path = app_path(load())
    if path is None:
        raise click.UsageError(
            'which app? Give -A module:attribute, set DRAY_APP, or write app = "module:attribute" under'
            " [tool.dray] in pyproject.toml"
        )
    return path


def open_app() -> App:
    """The user's app, on the broker that the options name."""
    return _ready(_with_options(load_app(needed_app_path())), must_exist=False)


def open_store(*, must_exist: bool = True) -> App:
    """The app if one is named, else one without tasks for the broker alone."""
    loaded = settings_here()
    path = app_path(loaded)
    given = options()
    if path is not None and len(given) < 2:
        try:
            return _ready(_with_options(load_app(path)), must_exist)
        except AppNotFound as error:
            raise AppNotFound(f"{error}\n  --broker URL and --namespace NAME work without the app") from error
    return _ready(app_without_tasks(namespace_here(loaded)), must_exist)


def app_without_tasks(loaded: Loaded) -> App:
    """An app for commands that need only the broker."""
    return point(App("dray"), loaded)


def point(app: App, loaded: Loaded) -> App:
    """Give an app other settings than it was created with."""
    loaded.check_place()
    settings = loaded.settings
    app.loaded, app.settings = loaded, settings
    app.client = Client(
        opener(settings.broker_url, settings.namespace, settings.retention, access=settings.access),
        settings.broker_url,
    )
    return app


def _with_options(app: App) -> App:
    given = options()
    return point(app, override(app.loaded, given)) if given else app


def _ready(app: App, must_exist: bool) -> App:
    app.loaded.check_place()
    url = app.settings.broker_url
    if url.startswith("memory:"):
        raise click.ClickException(
            "memory:// lives inside one process, so there is nothing to see or do from here; "
            "use sqlite:///path or a server, or `app.testing()` in that process"
        )
    if must_exist and url.startswith("sqlite:") and not store_file(url).exists():
        raise click.ClickException(
            f"there is no database at {store_file(url)}: nothing was enqueued yet, or it is another one\n"
            "  -A module:attribute uses the app's broker, --broker URL names one; the embedded default\n"
            "  belongs to the nearest folder with pyproject.toml, dray.toml or .git"
        )
    ctx = click.get_current_context()
    ctx.call_on_close(functools.partial(SOURCE.reset, SOURCE.set("cli")))
    ctx.meta[REACHING] = (url, time.monotonic())
    ctx.call_on_close(app.close)
    return app


def store_file(url: str) -> Path:
    """The file behind a sqlite URL."""
    from dray.broker.sqlite.options import read_url

    return Path(read_url(url).path).absolute()


def namespace_here(loaded: Loaded) -> Loaded:
    """Without an app the namespace is unknown: take the only one of the database file."""
    if loaded.origins["namespace"] != "default":
        return loaded
    loaded.check_place()
    names = namespaces(loaded.settings.broker_url)
    if len(names) == 1:
        return override(loaded, {"namespace": names[0]})
    if names and loaded.settings.namespace not in names:
        raise click.UsageError(
            f"{hide_password(loaded.settings.broker_url)} holds several namespaces ({', '.join(names)}):"
            " choose with --namespace, or give -A"
        )
    return loaded


def namespace_text(app: App) -> str:
    """The namespace and the others on the broker, for a message that nothing was found."""
    mine, url = app.settings.namespace, app.settings.broker_url
    names = namespaces(url) if url.startswith("sqlite:") else _server_namespaces(url)
    others = [name for name in names if name != mine]
    if not others:
        return f"namespace {mine}"
    return f"namespace {mine} (this broker has {', '.join(others)}: choose with --namespace)"


def _server_namespaces(url: str) -> list[str]:
    try:
        found: list[str] = run_blocking(import_module("dray.broker.redis.server").read_namespaces(url))
    except (DrayError, OSError):
        return []
    return found


def namespaces(url: str) -> list[str]:
    """The namespaces in a database file; none if it cannot be read (opening it gives the error)."""
    if not url.startswith("sqlite:"):
        return []
    file = store_file(url)
    if not file.is_file():
        return []
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
            return [row[0] for row in connection.execute("SELECT name FROM namespaces ORDER BY name")]
    except sqlite3.Error:
        return []
