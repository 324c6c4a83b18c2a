"""Reads the options of a `redis://` URL."""

from __future__ import annotations

import ssl
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.policy import ConnectionSettings

SCHEMES: Final = (
    "redis",
    "rediss",
    "redis+unix",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+unix",
    "valkey+cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "valkey+sentinel",
)
_FORMS: Final = "redis://[user:password@]host[:port][/db][?options] is the form; see docs/brokers.md"
_ENCODED: Final = "write / as %2F, ? as %3F, # as %23 and @ as %40 in a password"


class Address(msgspec.Struct, frozen=True):
    """The address of a server: a host and a port, or the path of a socket."""

    host: str
    port: int = 6379
    path: str | None = None

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    addresses: tuple[Address, ...] = ()
    """Empty if sentinels name the server."""
    sentinels: tuple[Address, ...] = ()
    primary: str = ""
    """The name under which the sentinels watch it."""
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    sentinel_tls: bool | None = None
    """None: as the server."""
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True
    connect_timeout: float = 5.0
    """Seconds to connect and log in."""
    timeout: float = 10.0
    """Seconds until an unanswered call fails."""
    pool_size: int = 10
    """Connections to each server that the threads of a blocking broker share."""

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise InvalidInput("broker_url", error.filename or self.ca, f"TLS: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def read_url(url: str, access: ConnectionSettings | None = None) -> Options:
    """Options of the URL; `access` fills in the missing ones."""
    login = url.rpartition("@")[0].partition("://")[2]
    try:
        return _read(url, access or ConnectionSettings())
    except InvalidInput:
        if not any(sign in login for sign in "/?#"):
            raise
        # The text taken for a database or an option may be part of the password, so it is not shown.
        raise InvalidInput("broker_url", url, _ENCODED) from None


def _read(url: str, reach: ConnectionSettings) -> Options:
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise InvalidInput("broker_url", url, _FORMS)
    query = rest.partition("?")[2]
    tls = scheme.startswith(("rediss", "valkeys"))
    fields: dict[str, Any] = {
        "tls": tls,
        "connect_timeout": reach.connect_timeout / 1000,
        "timeout": reach.read_timeout / 1000,
        "pool_size": reach.pool_size,
    }
    if scheme.endswith("+unix"):
        path = unquote(rest.partition("?")[0])
        if not path.startswith("/"):
            raise InvalidInput("broker_url", url, "redis+unix:///path/to/socket is the form")
        fields["addresses"] = (Address("", 0, path),)
    elif scheme.endswith("+sentinel"):
        fields |= _sentinels(url, rest)
    else:
        fields |= _network(url, rest)
    for name, value in parse_qsl(query, keep_blank_values=True):
        fields["timeout" if name == "read_timeout" else name] = _option(url, name, value)
    return Options(**fields)


def _network(url: str, rest: str) -> dict[str, Any]:
    place = rest.partition("?")[0]
    where, _, db = place.partition("/")
    login, _, hosts = where.rpartition("@")
    fields: dict[str, Any] = {"addresses": tuple(_address(url, host) for host in hosts.split(","))}
    return fields | _login(login) | ({"db": _database(url, db)} if db else {})


def _sentinels(url: str, rest: str) -> dict[str, Any]:
    """`host1:26379,host2:26379/name[/db]`; the login is the server's."""
    where, _, place = rest.partition("?")[0].partition("/")
    name, _, db = place.partition("/")
    login, _, hosts = where.rpartition("@")
    if not name:
        raise InvalidInput("broker_url", url, "redis+sentinel://host1:26379,host2:26379/name is the form")
    sentinels = tuple(_address(url, host, 26379) for host in hosts.split(","))
    fields: dict[str, Any] = {"sentinels": sentinels, "primary": unquote(name)}
    return fields | _login(login) | ({"db": _database(url, db)} if db else {})


def _login(text: str) -> dict[str, Any]:
    username, _, password = text.partition(":")
    return {"username": unquote(username) or None, "password": unquote(password) or None} if text else {}


def _address(url: str, text: str, port: int = 6379) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        return Address(parts.hostname or "localhost", parts.port or port)
    except ValueError:
        raise InvalidInput("broker_url", url, _FORMS) from None


def _database(url: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput("broker_url", url, "the database is a number: redis://host:6379/0")
    return int(text)


def _option(url: str, name: str, value: str) -> Any:
    if name in ("connect_timeout", "read_timeout", "timeout"):
        seconds = parse_duration(name, value) / 1000
        if not 0.01 <= seconds <= 3600:
            raise InvalidInput(name, value, "10ms to 1h is allowed")
        return seconds
    if name == "db":
        return _database(url, value)
    if name == "pool_size":
        if not (value.isascii() and value.isdigit() and len(value) <= 5 and 1 <= int(value) <= 10_000):
            raise InvalidInput("pool_size", value, "a whole number from 1 to 10000 is allowed")
        return int(value)
    if name in ("verify", "sentinel_tls"):
        if value not in ("yes", "no"):
            raise InvalidInput(name, value, "yes or no is allowed")
        return value == "yes"
    if name in ("username", "password", "ca", "cert", "key", "sentinel_username", "sentinel_password"):
        return value
    allowed = (
        "connect_timeout, read_timeout (or timeout), pool_size, db, username, password, ca, cert, key, "
        "verify, sentinel_username, sentinel_password and sentinel_tls"
    )
    raise InvalidInput("broker_url", url, f"unknown option {name!r}: {allowed} are allowed")
