"""Keys: `app.keys` and `dray keys`."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from served import wait_until
from shell import Shell, make_shell

from dray import App, InvalidInput, LastAdminKey
from dray.admin.api_keys import AUDIT_MAX, ROLES, digest_of, id_of, keys_in_settings


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}")
    yield app
    app.close()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(tmp_path / "shop", monkeypatch, capsys)


def test_a_key_is_kept_as_its_hash_only(app: App, tmp_path: Path) -> None:
    made = app.keys.create("ci", ["submit", "read"], queues=["a"], tasks=["t"], expires="1h")
    assert made.secret.startswith(f"dray_{made.key.id}_")
    assert id_of(made.secret) == made.key.id
    [kept] = app.keys.list()
    assert kept == made.key
    assert kept.matches(digest_of(made.secret))
    assert not kept.matches(digest_of(made.secret + "x"))
    assert kept.roles == frozenset({"read", "submit"})
    assert (kept.queues, kept.tasks) == (frozenset({"a"}), frozenset({"t"}))
    assert kept.expires is not None
    assert kept.expires - kept.created == 3_600_000
    app.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("jobs.db*") if file.is_file())
    assert kept.digest in stored
    assert made.secret.split("_", 2)[2].encode() not in stored


def test_the_last_admin_key_is_revoked_only_by_force(app: App) -> None:
    full = app.keys.create("full", ["admin"]).key
    others = [
        app.keys.create("limited", ["admin"], queues=["a"]).key,
        app.keys.create("expired", ["admin"], expires="1ms").key,
        app.keys.create("reader", ["read"]).key,
    ]
    wait_until(lambda: not others[1].lives(app.now()), "it does not expire")
    with pytest.raises(LastAdminKey, match="keys create") as caught:
        app.keys.revoke(full.id)
    assert caught.value.id == full.id
    assert full in app.keys.list()
    second = app.keys.create("second", ["admin"]).key
    assert app.keys.revoke(full.id)
    assert [app.keys.revoke(key.id) for key in others] == [True] * 3
    with pytest.raises(LastAdminKey):
        app.keys.revoke(second.id)
    assert app.keys.revoke(second.id, force=True)


def test_no_key_is_called_as_the_mark_is(app: App) -> None:
    app.keys.create("a")
    assert app.keys.revoke("ever") is False
    assert [key.name for key in app.keys.list()] == ["a"]


def test_a_key_is_revoked_once(app: App) -> None:
    made = app.keys.create("x")
    assert app.keys.revoke(made.key.id) is True
    assert app.keys.revoke(made.key.id) is False
    assert app.keys.list() == []


@pytest.mark.parametrize(
    ("name", "roles", "limits", "field"),
    [
        ("a b", ["read"], {}, "name"),
        ("a", ["root"], {}, "roles"),
        ("a", [], {}, "roles"),
        ("a", "read", {}, "roles"),
        ("a", ["read"], {"queues": []}, "queues"),
        ("a", ["read"], {"tasks": ["a b"]}, "tasks"),
        ("a", ["read"], {"expires": "soon"}, "expires"),
    ],
)
def test_a_wrong_key_is_refused(
    app: App, name: str, roles: list[str], limits: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        app.keys.create(name, roles, **limits)
    assert caught.value.field == field


def test_the_audit_log_keeps_the_latest_and_looks_push_out_no_changes(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AUDIT_MAX >= 10_000
    monkeypatch.setattr("dray.admin.api_keys.AUDIT_MAX", 30)
    monkeypatch.setattr("dray.admin.api_keys.LOOKS_MAX", 10)
    for number in range(35):
        app.keys.record("me", "did", str(number))
        app.keys.record("me", "looked", str(number), changes=False)
    found = app.keys.audit(limit=1000)
    did = {int(entry.target) for entry in found if entry.action == "did"}
    looked = {int(entry.target) for entry in found if entry.action == "looked"}
    assert (did, looked) == (set(range(5, 35)), set(range(25, 35)))


def test_the_audit_log_keeps_what_was_asked_for_in_whole(app: App) -> None:
    app.keys.record("me", "made a schedule", "x" * 50_000 + "the end")
    (entry,) = app.keys.audit()
    assert entry.target.endswith("the end")
    app.keys.record("me", "made a larger one", "ü" * 2_000_000)
    (entry,) = (entry for entry in app.keys.audit() if entry.action == "made a larger one")
    assert "(4000000 bytes, sha256=" in entry.target


def test_keys_of_the_settings_are_plain_or_hashed_with_roles_or_without() -> None:
    secret = "0123456789abcdef"
    hashed = sha256(secret.encode()).hexdigest()
    found = keys_in_settings([secret, f"read+submit:{secret}", f"admin:sha256={hashed}", f"read:a:{secret}"])
    assert [key.roles for key in found] == [set(ROLES), {"read", "submit"}, {"admin"}, {"read"}]
    assert [key.matches(digest_of(secret)) for key in found] == [True, True, True, False]
    for wrong in ("short", "read:short", "read:sha256=abc", "sha256=" + "g" * 64):
        with pytest.raises(InvalidInput) as caught:
            keys_in_settings([wrong])
        assert wrong not in str(caught.value)


@pytest.mark.parametrize("roles", ["Read", "reed", "write", "read+reed", "read,submit", " read", "", "http"])
def test_what_stands_before_a_colon_in_the_settings_is_a_role_or_an_error(roles: str) -> None:
    secret = "0123456789abcdef"
    with pytest.raises(InvalidInput, match="read, submit, work, admin") as caught:
        keys_in_settings([f"{roles}:{secret}"])
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "secret", ["change-me-to-32-random-characters", "ChangeMe1234567890", "change_me" * 3]
)
def test_the_secret_of_an_example_is_refused(secret: str) -> None:
    for text in (secret, f"admin:{secret}"):
        with pytest.raises(InvalidInput, match="of your own"):
            keys_in_settings([text])


def test_keys_are_made_listed_and_revoked_from_the_shell(shell: Shell) -> None:
    made = shell.json("keys", "create", "ci", "--role", "submit", "--queue", "email", "--expires", "30d")
    assert made["secret"].startswith(f"dray_{made['id']}_")
    assert (made["roles"], made["queues"], made["tasks"]) == (["submit"], ["email"], None)
    plain = shell.run("keys", "create", "dash")
    assert plain.out.startswith("dray_")
    assert "shown only now" in plain.err
    listed = shell.json("keys", "ls")
    assert [key["name"] for key in listed] == ["ci", "dash"]
    assert not any("secret" in key or "digest" in key for key in listed)
    table = shell.run("keys", "ls").out
    assert "email" in table
    assert made["secret"] not in table
    assert shell.json("keys", "revoke", made["id"]) == {"revoked": [made["id"]]}
    assert "no key nope" in shell.run("keys", "revoke", "nope", code=1).err
    assert [key["name"] for key in shell.json("keys", "ls")] == ["dash"]
    done = [entry["action"] for entry in shell.json("keys", "audit")]
    assert sorted(done) == ["keys create", "keys create", "keys revoke"]
    assert "keys revoke" in shell.run("keys", "audit", "--limit", "1").out + shell.run("keys", "audit").out
    assert "--role='root'" in shell.run("keys", "create", "x", "--role", "root", code=1).err


def test_the_shell_revokes_the_last_admin_key_only_by_force_and_says_what_follows(shell: Shell) -> None:
    made = shell.json("keys", "create", "boss", "--role", "admin")
    told = shell.run("keys", "revoke", "boss", code=1).err
    assert "--force" in told
    assert [key["id"] for key in shell.json("keys", "ls")] == [made["id"]]
    told = shell.run("keys", "revoke", "boss", "--force").err
    assert "stay closed" in told
    assert "dray keys create" in told
    assert shell.json("keys", "ls") == []


def test_a_key_is_revoked_by_its_name_if_that_is_clear(shell: Shell) -> None:
    alone = shell.json("keys", "create", "alone")
    twins = [shell.json("keys", "create", "twin")["id"] for _ in range(2)]
    told = shell.run("keys", "revoke", "twin", code=1).err
    assert all(id in told for id in twins)
    assert shell.json("keys", "revoke", "alone") == {"revoked": [alone["id"]]}
    assert sorted(key["id"] for key in shell.json("keys", "ls")) == sorted(twins)
