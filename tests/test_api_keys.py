"""Keys: `app.keys` and `dray keys`."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from shell import Shell, make_shell

from dray import App, InvalidInput
from dray.keys import AUDIT_MAX, ROLES, digest_of, id_of, keys_in_settings


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
    assert made.secret.rpartition("_")[2].encode() not in stored


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


def test_the_audit_log_keeps_the_latest(app: App) -> None:
    for number in range(AUDIT_MAX + 5):
        app.keys.record("me", "did", str(number))
    found = app.keys.audit(limit=AUDIT_MAX * 2)
    assert len(found) == AUDIT_MAX
    assert {int(entry.target) for entry in found} == set(range(5, AUDIT_MAX + 5))


def test_keys_of_the_settings_are_plain_or_hashed_with_roles_or_without() -> None:
    secret = "0123456789abcdef"
    hashed = sha256(secret.encode()).hexdigest()
    found = keys_in_settings([secret, f"read+submit:{secret}", f"admin:sha256={hashed}", f"http://{secret}"])
    assert [key.roles for key in found] == [set(ROLES), {"read", "submit"}, {"admin"}, set(ROLES)]
    assert [key.matches(digest_of(secret)) for key in found] == [True, True, True, False]
    for wrong in ("short", "read:short", "read:sha256=abc", "sha256=" + "g" * 64):
        with pytest.raises(InvalidInput) as caught:
            keys_in_settings([wrong])
        assert wrong not in str(caught.value)


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
    assert "roles" in shell.run("keys", "create", "x", "--role", "root", code=1).err


def test_a_key_is_revoked_by_its_name_if_that_is_clear(shell: Shell) -> None:
    alone = shell.json("keys", "create", "alone")
    twins = [shell.json("keys", "create", "twin")["id"] for _ in range(2)]
    told = shell.run("keys", "revoke", "twin", code=1).err
    assert all(id in told for id in twins)
    assert shell.json("keys", "revoke", "alone") == {"revoked": [alone["id"]]}
    assert sorted(key["id"] for key in shell.json("keys", "ls")) == sorted(twins)
