"""`app.keys`: the server's API keys with their roles, and the audit log.

A key is shown once, when it is made. The broker keeps its SHA-256. The secret is 256 random bits, which
cannot be guessed, so a slow hash is not needed.

    dray_<id>_<secret>

A namespace that ever had a key is marked. The mark outlives all keys: revoking the last key opens no server.
"""

from __future__ import annotations

import builtins
import hmac
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from dray.broker.verbs import Broker, Doc
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.duration import parse_duration
from dray.errors import InvalidInput, LastAdminKey
from dray.info import moment
from dray.job import check_name
from dray.options import Duration

if TYPE_CHECKING:
    from dray.app import App

Role = Literal["read", "submit", "work", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
AUDIT_MAX: Final = 10_000
"""Changes that the audit log keeps; the oldest make room for new ones."""
LOOKS_MAX: Final = 1000
"""Entries of requests that changed nothing, kept apart so that they displace no others."""
SECRET_MIN: Final = 16
PLACEHOLDERS: Final = ("change-me", "change_me", "changeme")
"""Beginnings of secrets in example files, which are publicly known."""
_KIND: Final = "key"
_MARK: Final = "ever"
"""The document that records that there was a key. No key has this id."""
UNREADABLE: Final = "unreadable"
"""The name of a listed key that this version of dray cannot read."""
_AUDIT: Final = "audit"
_LOOKS: Final = "audit-looks"
_COUNTER: Final = "audit-count"
_TEXT_MAX: Final = 1000
"""Characters of each text except the target, which holds the whole request."""
_TARGET_MAX: Final = 1_000_000
"""Bytes of a target: what a document can hold."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key: everything but its secret."""

    id: str
    name: str
    digest: bytes
    """SHA-256 of the whole key."""
    roles: frozenset[Role]
    queues: frozenset[str] | None = None
    """The only queues it may use; None: all."""
    tasks: frozenset[str] | None = None
    created: int = 0
    """Milliseconds since the epoch, like `expires`."""
    expires: int | None = None
    hides_values: bool = False
    """It may not see arguments, results and errors."""

    @property
    def limited(self) -> bool:
        """True if it may use only certain queues or tasks."""
        return self.queues is not None or self.tasks is not None

    @property
    def created_at(self) -> datetime:
        return moment(self.created)

    @property
    def expires_at(self) -> datetime | None:
        return None if self.expires is None else moment(self.expires)

    def lives(self, now: int) -> bool:
        """True until it expires."""
        return self.expires is None or self.expires > now

    def matches(self, digest: bytes) -> bool:
        """Compare digests in constant time."""
        return hmac.compare_digest(self.digest, digest)


class NewApiKey(msgspec.Struct, frozen=True):
    """A new key; `secret`, the text that clients send, cannot be read again."""

    key: ApiKey
    secret: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action of an administrator, written before it was done."""

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
    """The id in a key of the form `dray_<id>_<secret>`."""
    parts = secret.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "dray" else None


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(ApiKey).decode
_decode_entry = msgspec.msgpack.Decoder(AuditEntry).decode


class ApiKeys(AppApi):
    """`app.keys`: keys of the server, and the audit log."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.ever = False
        """The namespace has or had a key. Remembered here in case the broker loses its data."""

    async def _create(
        self,
        link: Link,
        name: str,
        roles: Sequence[str] = ("read",),
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        expires: Duration | None = None,
        hides_values: bool = False,
    ) -> NewApiKey:
        """Make a key. `admin` includes all roles; `queues` and `tasks` limit what it may use.

        With `hides_values` it does not see arguments, results and errors of jobs.
        """
        id = secrets.token_hex(6)
        secret = f"dray_{id}_{secrets.token_urlsafe(32)}"
        now = self._app.now()
        key = ApiKey(
            id=id,
            name=check_name("name", name),
            digest=digest_of(secret),
            roles=read_roles(roles),
            queues=_names("queues", queues),
            tasks=_names("tasks", tasks),
            created=now,
            expires=None if expires is None else now + parse_duration("expires", expires),
            hides_values=hides_values,
        )
        await self._guard(link)  # first: revoking a key without a mark would leave no trace
        await link.broker.doc(_KIND, id, _encode(key), expect_version=0)
        return NewApiKey(key, secret)

    async def _list(self, link: Link) -> builtins.list[ApiKey]:
        """Every key that was not revoked, the oldest first; also those that have expired.

        A key that cannot be read (another version's) is listed as `unreadable`, with its id and no roles.
        """
        docs = await link.broker.docs(_KIND)
        self.ever = self.ever or bool(docs)
        if self.ever and not any(doc.name == _MARK for doc in docs):  # keys of older versions, or lost data
            await self._guard(link)
        found = [_read_key(doc) for doc in docs if doc.name != _MARK]
        return sorted(found, key=lambda key: (key.created, key.id))

    async def _guard(self, link: Link) -> None:
        """Close all servers of the namespace to requests without a key, from now on."""
        await link.broker.doc(_KIND, _MARK, b"", expect_version=0)
        self.ever = True

    async def _revoke(self, link: Link, id: str, *, force: bool = False) -> bool:
        """Delete a key; servers refuse it within a second or two. False if there is no such key.

        The last admin key is revoked only with `force`; else `LastAdminKey` is raised.
        """
        known = {key.id: key for key in await self._list(link)}
        key = known.pop(check_name("id", id), None)
        if key is None:
            return False
        if not force and _last_admin(key, known.values(), self._app.now()):
            raise LastAdminKey(id)
        return (await link.broker.doc(_KIND, id, None)).written

    async def _record(
        self, link: Link, who: str, action: str, target: str = "", *, request: str = "", changes: bool = True
    ) -> None:
        """Write an entry into the audit log. With `changes=False` it goes to a smaller log of its own."""
        entry = AuditEntry(
            at=self._app.now(),
            who=who[:_TEXT_MAX],
            action=action[:_TEXT_MAX],
            target=_fitting(target),
            request=request[:_TEXT_MAX],
        )
        kind, most = (_AUDIT, AUDIT_MAX) if changes else (_LOOKS, LOOKS_MAX)
        place = await _next_place(link.broker, kind)
        await link.broker.doc(kind, f"{place % most:04}", _encode(entry))

    async def _audit(self, link: Link, limit: int = 100) -> builtins.list[AuditEntry]:
        """The audit log, latest entry first."""
        docs = [*await link.broker.docs(_AUDIT), *await link.broker.docs(_LOOKS)]
        found = [_decode_entry(doc.value) for doc in docs]
        return sorted(found, key=lambda entry: entry.at, reverse=True)[:limit]

    create, acreate = sync_and_async(_create)
    list, alist = sync_and_async(_list)
    guard, aguard = sync_and_async(_guard)
    revoke, arevoke = sync_and_async(_revoke)
    record, arecord = sync_and_async(_record)
    audit, aaudit = sync_and_async(_audit)


def _read_key(doc: Doc) -> ApiKey:
    """An unreadable key grants nothing, but still counts as a key: servers stay closed."""
    try:
        return _decode_key(doc.value)
    except msgspec.MsgspecError:
        return ApiKey(id=doc.name, name=UNREADABLE, digest=b"", roles=frozenset())


def _last_admin(key: ApiKey, others: Iterable[ApiKey], now: int) -> bool:
    """True if no other live key could administer what this key can."""
    if "admin" not in key.roles or not key.lives(now):
        return False
    return not any(
        "admin" in other.roles and other.lives(now) and (key.limited or not other.limited) for other in others
    )


def _fitting(target: str) -> str:
    """The target; if a document cannot hold it, as much as fits and a hash of the whole."""
    data = target.encode("utf-8", "replace")
    if len(data) <= _TARGET_MAX:
        return target
    rest = f"… ({len(data)} bytes, sha256={sha256(data).hexdigest()})"
    return data[:_TARGET_MAX].decode("utf-8", "ignore") + rest


async def _next_place(broker: Broker, kind: str) -> int:
    """The next number of a kind of entry; two writers never get the same."""
    name = "next" if kind == _AUDIT else kind
    while True:
        doc = (await broker.doc(_COUNTER, name)).doc
        number = 0 if doc is None else int(doc.value)
        version = 0 if doc is None else doc.version
        written = await broker.doc(_COUNTER, name, b"%d" % (number + 1), expect_version=version)
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


def keys_in_settings(texts: Sequence[str]) -> tuple[ApiKey, ...]:
    """The keys of the setting `api_keys`: `[role+role:]secret` or `[role+role:]sha256=hex`.

    A key without a role may do everything.
    """
    return tuple(_key_in_settings(number, text) for number, text in enumerate(texts, 1))


def _key_in_settings(number: int, text: str) -> ApiKey:
    prefix, colon, secret = text.partition(":")
    roles = frozenset(ROLES)
    if not colon:
        secret = text
    elif all(role in ROLES for role in prefix.split("+")):
        roles = read_roles(prefix.split("+"))
    else:  # perhaps a misspelt role: a wrong guess could make a key with all roles
        allowed = f"only roles ({', '.join(ROLES)}; joined by +) may stand before a colon, like read:SECRET"
        raise InvalidInput("api_keys", "hidden", allowed)
    if secret.lower().startswith(PLACEHOLDERS):
        raise InvalidInput("api_keys", "hidden", "a secret of your own is allowed, not the example's")
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
    return ApiKey(id=name, name=name, digest=digest, roles=roles)
