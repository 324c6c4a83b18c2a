"""Keys of the server (`app.keys`): who may do what over the network, and a record of what administrators did.

A key is shown once, when it is made. The broker keeps its SHA-256: the secret is 256 random bits, so there is
nothing to guess and no reason for a slow hash.

    dray_<id>_<secret>
"""

from __future__ import annotations

import builtins
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final, Literal, get_args

import msgspec

from dray.broker.verbs import Broker
from dray.call import Duration
from dray.client import Link
from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.info import moment
from dray.job import check_name
from dray.operate import Desk
from dray.twins import awaits, blocks

Role = Literal["read", "submit", "work", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
AUDIT_MAX: Final = 1000
"""Entries of the audit log that are kept; the oldest make room for new ones."""
SECRET_MIN: Final = 16
_KIND: Final = "key"
_AUDIT: Final = "audit"
_COUNTER: Final = "audit-count"
_TEXT_MAX: Final = 1000


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a key: all but its secret."""

    id: str
    name: str
    digest: bytes
    """SHA-256 of the whole key."""
    roles: frozenset[Role]
    queues: frozenset[str] | None = None
    """The only queues it is good for; None: all."""
    tasks: frozenset[str] | None = None
    created: int = 0
    """Milliseconds since the epoch, like `expires`."""
    expires: int | None = None

    @property
    def created_at(self) -> datetime:
        return moment(self.created)

    @property
    def expires_at(self) -> datetime | None:
        return None if self.expires is None else moment(self.expires)

    def matches(self, digest: bytes) -> bool:
        """Whether it is the key of that digest; takes as long for any other."""
        return hmac.compare_digest(self.digest, digest)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made; `secret`, the text that clients send, is not to be had again."""

    key: Key
    secret: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an administrator did, or began to do."""

    at: int
    who: str
    action: str
    target: str = ""
    request: str = ""
    """The request's id (`X-Request-ID`)."""

    @property
    def when(self) -> datetime:
        return moment(self.at)


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def id_of(secret: str) -> str | None:
    """The id that a key of the form `dray_<id>_<secret>` names."""
    parts = secret.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "dray" else None


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(Key).decode
_decode_entry = msgspec.msgpack.Decoder(AuditEntry).decode


class Keys(Desk):
    """`app.keys`: keys of the server, and the audit log."""

    async def _create(
        self,
        link: Link,
        name: str,
        roles: Sequence[str] = ("read",),
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        expires: Duration | None = None,
    ) -> NewKey:
        """Make a key. `admin` includes all roles; `queues` and `tasks` limit what it is good for."""
        id = secrets.token_hex(6)
        secret = f"dray_{id}_{secrets.token_urlsafe(32)}"
        now = self._app.now()
        key = Key(
            id=id,
            name=check_name("name", name),
            digest=digest_of(secret),
            roles=read_roles(roles),
            queues=_names("queues", queues),
            tasks=_names("tasks", tasks),
            created=now,
            expires=None if expires is None else now + parse_duration("expires", expires),
        )
        await link.broker.doc(_KIND, id, _encode(key), expect_version=0)
        return NewKey(key, secret)

    async def _list(self, link: Link) -> builtins.list[Key]:
        """Every key that was not revoked, the oldest first; also those that have expired."""
        return sorted(await read_keys(link.broker), key=lambda key: (key.created, key.id))

    async def _revoke(self, link: Link, id: str) -> bool:
        """A server forgets the key within a second or two. False if there is no such key."""
        check_name("id", id)
        if (await link.broker.doc(_KIND, id)).doc is None:
            return False
        return (await link.broker.doc(_KIND, id, None)).written

    async def _record(
        self, link: Link, who: str, action: str, target: str = "", *, request: str = ""
    ) -> None:
        """Write an entry into the audit log."""
        entry = AuditEntry(
            at=self._app.now(),
            who=who[:_TEXT_MAX],
            action=action[:_TEXT_MAX],
            target=target[:_TEXT_MAX],
            request=request[:_TEXT_MAX],
        )
        place = await _next_place(link.broker)
        await link.broker.doc(_AUDIT, f"{place % AUDIT_MAX:04}", _encode(entry))

    async def _audit(self, link: Link, limit: int = 100) -> builtins.list[AuditEntry]:
        """What administrators did, the latest first."""
        found = [_decode_entry(doc.value) for doc in await link.broker.docs(_AUDIT)]
        return sorted(found, key=lambda entry: entry.at, reverse=True)[:limit]

    create, acreate = blocks(_create), awaits(_create)
    list, alist = blocks(_list), awaits(_list)
    revoke, arevoke = blocks(_revoke), awaits(_revoke)
    record, arecord = blocks(_record), awaits(_record)
    audit, aaudit = blocks(_audit), awaits(_audit)


async def read_keys(broker: Broker) -> list[Key]:
    """All keys. One that cannot be read (another version's) opens nothing."""
    found = []
    for doc in await broker.docs(_KIND):
        try:
            found.append(_decode_key(doc.value))
        except msgspec.MsgspecError:
            continue
    return found


async def _next_place(broker: Broker) -> int:
    """A number for each entry; two writers never get the same."""
    while True:
        doc = (await broker.doc(_COUNTER, "next")).doc
        number = 0 if doc is None else int(doc.value)
        version = 0 if doc is None else doc.version
        written = await broker.doc(_COUNTER, "next", b"%d" % (number + 1), expect_version=version)
        if written.written:
            return number


def read_roles(given: Sequence[str]) -> frozenset[Role]:
    wrong = [role for role in given if role not in ROLES]
    if wrong or not given or isinstance(given, str):
        raise InvalidInput("roles", wrong[0] if wrong else given, f"some of {', '.join(ROLES)} are allowed")
    return frozenset(role for role in ROLES if role in given)


def _names(field: str, given: Sequence[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    if isinstance(given, str) or not given:
        raise InvalidInput(field, given, "a list of names is allowed, or None for all")
    return frozenset(check_name(field, name) for name in given)


def keys_in_settings(texts: Sequence[str]) -> tuple[Key, ...]:
    """The keys that the setting `api_keys` names: `[role+role:]secret` or `[role+role:]sha256=hex`.

    Without a role it may do everything.
    """
    return tuple(_key_in_settings(number, text) for number, text in enumerate(texts, 1))


def _key_in_settings(number: int, text: str) -> Key:
    said, colon, rest = text.partition(":")
    roles, secret = (frozenset(ROLES), text)
    if colon and all(role in ROLES for role in said.split("+")):
        roles, secret = read_roles(said.split("+")), rest
    if secret.startswith("sha256="):
        try:
            digest = bytes.fromhex(secret.removeprefix("sha256="))
        except ValueError:
            digest = b""
        if len(digest) != sha256().digest_size:
            raise InvalidInput("api_keys", "hidden", "64 hexadecimal digits are allowed after sha256=")
    elif len(secret) < SECRET_MIN:
        raise InvalidInput("api_keys", "hidden", f"a key of at least {SECRET_MIN} characters is allowed")
    else:
        digest = digest_of(secret)
    name = f"settings-{number}"
    return Key(id=name, name=name, digest=digest, roles=roles)
