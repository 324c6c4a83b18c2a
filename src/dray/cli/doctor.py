"""`dray doctor`: finds what is wrong or risky, and says what to do."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import import_module

import click

from dray.app import App
from dray.broker import SCHEMES
from dray.cli import doctor_checks, doctor_sqlite
from dray.cli.doctor_checks import Finding
from dray.cli.open_app import (
    app_path,
    app_without_tasks,
    namespace_here,
    options,
    point,
    settings_here,
    store_file,
)
from dray.cli.output import colored, counted, say, say_json, say_table
from dray.cli.target import common_options, wants_json
from dray.errors import AppNotFound, DrayError, InvalidInput, InvalidSettings
from dray.loading import load_app, without_tasks
from dray.schedules.api import describe as describe_schedule
from dray.settings import Loaded, describe, hide_password, override
from dray.settings import show as shown


@click.command("doctor")
@click.option(
    "--settings", "only_settings", is_flag=True, help="Print every setting and where it comes from."
)
@common_options
def doctor_command(only_settings: bool) -> int:
    """Look for what is wrong or risky: settings, app, broker, store, clock, queues, workers.

    Each finding is ok, warn or fail, and says what to do. Ends with 1 if something failed.
    """
    if only_settings:
        _print_settings(_app_settings())
        return 0
    findings = []
    for finding in examine():
        findings.append(finding)
        if not wants_json():
            _print(finding)
    if wants_json():
        say_json(findings)
    else:
        _summary(findings)
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def _print(finding: Finding) -> None:
    say(f"{colored(finding.status)}{' ' * (5 - len(finding.status))} {finding.check:<10} {finding.text}")
    if finding.todo:
        say(f"{'':17}→ {finding.todo}")


def _summary(findings: list[Finding]) -> None:
    failed, warned = (sum(f.status == status for f in findings) for status in ("fail", "warn"))
    if failed or warned:
        say(f"\n{failed} failed, {warned} to look at")
    else:
        say("\nall is well")


def _app_settings() -> Loaded:
    """The app's own settings if one is named, since keywords in code count too."""
    loaded = settings_here()
    path = app_path(loaded)
    return loaded if path is None else override(load_app(path).loaded, options())


def _print_settings(loaded: Loaded) -> None:
    rows = [
        (info.name, shown(info.name, getattr(loaded.settings, info.name)), loaded.origins[info.name])
        for info in describe()
    ]
    if wants_json():
        say_json([{"name": name, "value": value, "origin": origin} for name, value, origin in rows])
    else:
        say_table(("SETTING", "VALUE", "FROM"), rows)


def examine() -> Iterator[Finding]:
    """All findings; what others depend on is checked first."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        loaded = settings_here()
        if app_path(loaded) is None:
            loaded.check_place()
    except InvalidSettings as error:
        for problem, origin in error.problems:
            yield Finding("settings", "fail", f"{problem} ({origin})", "correct it there")
        return
    app, finding = _app(loaded)
    yield finding
    yield from _store(app or app_without_tasks(namespace_here(loaded)), named=app is not None)


def _app(loaded: Loaded) -> tuple[App | None, Finding]:
    path = app_path(loaded)
    if path is None:
        todo = 'give -A module:attribute, or write app = "module:attribute" in the settings file'
        return None, Finding("app", "warn", "no app is named: its tasks are not checked", todo)
    try:
        app = load_app(path)
        point(app, override(app.loaded, options()))
    except (AppNotFound, InvalidSettings) as error:
        return None, Finding("app", "fail", str(error), "mend it, or start from the app's folder")
    if not app.tasks:
        text, _, todo = without_tasks(path).partition(". ")
        return app, Finding("app", "warn", text, todo)
    return app, Finding("app", "ok", f"{path} has {counted(len(app.tasks), 'task', 'tasks')}")


def _store(app: App, *, named: bool) -> Iterator[Finding]:
    settings = app.settings
    url = settings.broker_url
    scheme = url.partition(":")[0]
    place = f"{hide_password(url)} (namespace {settings.namespace})"
    if scheme == "memory":
        todo = "use sqlite:///path or a server for more than tests"
        yield Finding("broker", "warn", "memory:// lives inside one process and ends with it", todo)
        return
    if scheme not in SCHEMES:
        yield Finding(
            "broker", "fail", f"{place}: this dray cannot open {scheme}://", f"use {', '.join(SCHEMES)}"
        )
        return
    if scheme == "sqlite":
        if not store_file(url).exists():
            todo = "enqueue a job or start a worker, and it is made; or name another with --broker"
            yield Finding("broker", "warn", f"{place}: there is no such file yet", todo)
            return
        yield from doctor_sqlite.check_file(settings)
    try:
        if scheme != "sqlite":
            yield from import_module("dray.cli.doctor_redis").check_servers(settings)  # dray[redis]
        yield from _inside(app, named, place)
    except DrayError as error:
        yield Finding(
            "broker", "fail", f"{place}: {error}", "see to it that it runs and can be reached from here"
        )
    finally:
        app.close()


def _inside(app: App, named: bool, place: str) -> Iterator[Finding]:
    yield from doctor_checks.check_broker(app, place)
    yield from doctor_checks.check_repairs(app)
    yield from doctor_checks.check_losses(app)
    workers, queues = app.workers.list(), app.queues.list()
    yield from doctor_checks.check_clock(workers)
    yield from doctor_checks.check_workers(queues, workers)
    declared = None
    try:
        if named:
            declared = [describe_schedule(one, app, None) for one in app.declared_schedules()]
    except InvalidInput as error:
        yield Finding("schedules", "fail", f"the code declares one that cannot be: {error}", "mend it there")
    yield from doctor_checks.check_schedules(app.schedules.list(), workers, declared)
    yield from doctor_checks.check_queues(queues, workers)
    yield from doctor_checks.check_tasks(app, named, workers)
