"""`dray keys`: API keys of the server, and the audit log of administrators."""

from __future__ import annotations

from typing import Any, Final

import click

from dray.admin.api_keys import AUDIT_MAX, LOOKS_MAX, ApiKey, AuditEntry
from dray.app import App
from dray.cli.main import CommandGroup
from dray.cli.open_app import open_store
from dray.cli.output import age, note, one_line, plain, say, say_json, show_list, stamp, user_name
from dray.cli.target import common_options, wants_json
from dray.errors import LastAdminKey

_TITLES: Final = ("ID", "NAME", "ROLES", "QUEUES", "TASKS", "CREATED", "EXPIRES")


@click.group("keys", cls=CommandGroup)
def keys_command() -> None:
    """Make, list and revoke keys of the server."""


@keys_command.command("create")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    default=("read",),
    show_default=True,
    metavar="ROLE",
    help="read, submit, work or admin (which includes all); may be repeated.",
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only this task; may be repeated.")
@click.option("--expires", metavar="DURATION", help="Good for this long; by default until it is revoked.")
@click.option("--hide-values", is_flag=True, help="It does not see arguments, results and errors of jobs.")
@common_options
def create(
    name: str,
    roles: tuple[str, ...],
    queues: tuple[str, ...],
    tasks: tuple[str, ...],
    expires: str | None,
    hide_values: bool,
) -> None:
    """Make a key and print it. It is not to be had again: only its hash is kept."""
    app = open_store(must_exist=False)
    limits = {"queues": queues or None, "tasks": tasks or None}
    made = app.keys.create(name, roles, expires=expires, hides_values=hide_values, **limits)
    app.keys.record(_user(), "keys create", f"{name} ({made.key.id})")
    if wants_json():
        say_json(_key_json(made.key) | {"secret": made.secret})
        return
    note(f"key {made.key.id} of {name}; send it as `Authorization: Bearer KEY`. It is shown only now:")
    say(made.secret)


@keys_command.command("ls")
@common_options
def ls() -> None:
    """List the keys that were not revoked."""
    app = open_store()
    found = app.keys.list()
    none = f"there are no keys in namespace {app.settings.namespace}: `dray keys create` makes one"
    show_list(found, _TITLES, _key_row, lambda: none, to_json=_key_json)


@keys_command.command("revoke")
@click.argument("given", nargs=-1, required=True, metavar="ID|NAME...")
@click.option("--force", is_flag=True, help="Revoke also the last admin key.")
@common_options
def revoke(given: tuple[str, ...], force: bool) -> int:
    """Revoke keys. Servers refuse them within a second or two.

    A name does if only one key has it. Without its last admin key nobody administers a namespace over the
    network: that one is revoked only with --force. No server becomes open by it.
    """
    app = open_store()
    known = app.keys.list()
    gone = []
    for text in given:
        id = _named(text, known)
        if id is not None and _revoke(app, id, force):
            gone.append(id)
    if wants_json():
        say_json({"revoked": gone})
    elif gone:
        say(f"revoked: {', '.join(gone)}")
    if gone and not app.keys.list():
        note(
            "no keys are left: servers of this namespace stay closed and, apart from keys of the setting"
            " api_keys, answer nobody until `dray keys create NAME --role admin` makes one"
        )
    return 0 if len(gone) == len(given) else 1


@keys_command.command("audit")
@click.option(
    "--limit", type=click.IntRange(1, AUDIT_MAX + LOOKS_MAX), default=100, show_default=True, help="At most."
)
@common_options
def audit(limit: int) -> None:
    """Tell what administrators did over the network, and who made and revoked keys; the latest first."""
    app = open_store()
    found = app.keys.audit(limit)
    show_list(
        found, ("WHEN", "WHO", "DID", "TO"), _entry_row, lambda: "nothing was done yet", to_json=_entry_json
    )


def _revoke(app: App, id: str, force: bool) -> bool:
    try:
        done = app.keys.revoke(id, force=force)
    except LastAdminKey as error:
        note(str(error))
        return False
    if done:
        app.keys.record(_user(), "keys revoke", id)
    return done


def _named(text: str, known: list[ApiKey]) -> str | None:
    """The id of the key. Names need not be unique, and a wrong guess could leave a leaked key valid."""
    if any(key.id == text for key in known):
        return text
    ids = [key.id for key in known if key.name == text]
    if not ids:
        note(f"there is no key {text}")
    elif len(ids) > 1:
        note(f"several keys are named {text}: give the ids of those to revoke ({', '.join(ids)})")
    return ids[0] if len(ids) == 1 else None


def _key_json(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "roles": sorted(key.roles),
        "queues": None if key.queues is None else sorted(key.queues),
        "tasks": None if key.tasks is None else sorted(key.tasks),
        "created_at": plain(key.created_at),
        "expires_at": plain(key.expires_at),
    }


def _key_row(key: ApiKey) -> list[str]:
    def listed(names: frozenset[str] | None) -> str:
        return "all" if names is None else ",".join(sorted(names))

    if not key.roles:
        return [key.id, f"({key.name})", "none", "", "", "", ""]
    expires = "never" if key.expires_at is None else age(key.expires_at)
    roles = ",".join(sorted(key.roles))
    return [key.id, key.name, roles, listed(key.queues), listed(key.tasks), age(key.created_at), expires]


def _entry_row(entry: AuditEntry) -> list[str]:
    return [stamp(entry.when), entry.who, entry.action, one_line(entry.target, 200)]


def _entry_json(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": plain(entry.when),
        "who": entry.who,
        "action": entry.action,
        "target": entry.target,
        "request": entry.request,
    }


def _user() -> str:
    return f"{user_name() or 'somebody'} (command line)"
