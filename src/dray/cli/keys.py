"""`dray keys`: who may use the server, and what administrators did there."""

from __future__ import annotations

import getpass
from typing import Any, Final

import click

from dray.cli.main import Suggesting
from dray.cli.opening import open_store
from dray.cli.output import Column, age, note, plain, say, say_json, say_table, stamp
from dray.cli.target import json_option, target_options, wants_json
from dray.keys import AuditEntry, Key

_COLUMNS: Final = tuple(map(Column, ("ID", "NAME", "ROLES", "QUEUES", "TASKS", "CREATED", "EXPIRES")))
_AUDIT_COLUMNS: Final = tuple(map(Column, ("WHEN", "WHO", "DID", "TO")))


@click.group("keys", cls=Suggesting)
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
@target_options
@json_option
def create(
    name: str, roles: tuple[str, ...], queues: tuple[str, ...], tasks: tuple[str, ...], expires: str | None
) -> None:
    """Make a key and print it. It is not to be had again: only its hash is kept."""
    app = open_store(must_exist=False)
    made = app.keys.create(name, roles, queues=queues or None, tasks=tasks or None, expires=expires)
    app.keys.record(_user(), "keys create", f"{name} ({made.key.id})")
    if wants_json():
        say_json(_key_json(made.key) | {"secret": made.secret})
        return
    note(f"key {made.key.id} of {name}; send it as `Authorization: Bearer KEY`. It is shown only now:")
    say(made.secret)


@keys_command.command("ls")
@target_options
@json_option
def ls() -> None:
    """List the keys that were not revoked."""
    app = open_store()
    found = app.keys.list()
    if wants_json():
        say_json([_key_json(key) for key in found])
    elif found:
        say_table(_COLUMNS, [_key_row(key) for key in found])
    else:
        note(f"there are no keys in namespace {app.settings.namespace}: `dray keys create` makes one")


@keys_command.command("revoke")
@click.argument("given", nargs=-1, required=True, metavar="ID|NAME...")
@target_options
@json_option
def revoke(given: tuple[str, ...]) -> int:
    """Revoke keys. Servers refuse them within a second or two.

    A name does if only one key has it.
    """
    app = open_store()
    known = app.keys.list()
    gone = []
    for text in given:
        id = _named(text, known)
        if id is not None and app.keys.revoke(id):
            app.keys.record(_user(), "keys revoke", id)
            gone.append(id)
    if wants_json():
        say_json({"revoked": gone})
    elif gone:
        say(f"revoked: {', '.join(gone)}")
    return 0 if len(gone) == len(given) else 1


@keys_command.command("audit")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most.")
@target_options
@json_option
def audit(limit: int) -> None:
    """Tell what administrators did over the network, and who made and revoked keys; the latest first."""
    app = open_store()
    found = app.keys.audit(limit)
    if wants_json():
        say_json([_entry_json(entry) for entry in found])
    elif found:
        say_table(
            _AUDIT_COLUMNS, [[stamp(entry.when), entry.who, entry.action, entry.target] for entry in found]
        )
    else:
        note("nothing was done yet")


def _named(text: str, known: list[Key]) -> str | None:
    """The id that is meant; names need not be unique, and guessing could leave the leaked key in force."""
    if any(key.id == text for key in known):
        return text
    ids = [key.id for key in known if key.name == text]
    if not ids:
        note(f"there is no key {text}")
    elif len(ids) > 1:
        note(f"several keys are named {text}: give the ids of those to revoke ({', '.join(ids)})")
    return ids[0] if len(ids) == 1 else None


def _key_json(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "roles": sorted(key.roles),
        "queues": None if key.queues is None else sorted(key.queues),
        "tasks": None if key.tasks is None else sorted(key.tasks),
        "created_at": plain(key.created_at),
        "expires_at": plain(key.expires_at),
    }


def _key_row(key: Key) -> list[str]:
    def listed(names: frozenset[str] | None) -> str:
        return "all" if names is None else ",".join(sorted(names))

    expires = "never" if key.expires_at is None else age(key.expires_at)
    roles = ",".join(sorted(key.roles))
    return [key.id, key.name, roles, listed(key.queues), listed(key.tasks), age(key.created_at), expires]


def _entry_json(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": plain(entry.when),
        "who": entry.who,
        "action": entry.action,
        "target": entry.target,
        "request": entry.request,
    }


def _user() -> str:
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError, ImportError):  # no name for this user id, as in containers
        return "somebody (command line)"
