"""What protects a server that browsers can reach: the names it answers to, who may send it what, headers.

A page of another site must not be able to use a server on the reader's own machine: neither by sending it
requests (the origin is checked) nor by a name that suddenly leads to 127.0.0.1 (the host is checked).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from dray.serve.refusals import Refused

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every reply. Nothing here is meant to be drawn, framed or kept by a browser."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-API-Key, X-Request-ID"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_host(headers: Mapping[str, str], hosts: frozenset[str] | None) -> None:
    if hosts is None:
        return
    name = _name(headers.get("host", ""))
    if name not in hosts:
        raise Refused(
            400, "invalid_host", f"this server is not called {name!r} (setting allowed_hosts)", "Host"
        )


def _name(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def check_origin(method: str, headers: Mapping[str, str], origins: frozenset[str]) -> None:
    """Refuse what a page of another site makes a browser send."""
    if method in SAFE_METHODS:
        return
    origin = headers.get("origin")
    if origin is not None and origin.lower() in origins:
        return
    site = headers.get("sec-fetch-site", "none").lower()
    if site not in ("same-origin", "none") or (origin is not None and not _same(origin, headers)):
        raise Refused(403, "cross_site", "requests from other sites are refused (setting cors_origins)")


def _same(origin: str, headers: Mapping[str, str]) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:  # no origin that a browser would send
        return False


def cors_headers(headers: Mapping[str, str], origins: frozenset[str]) -> dict[str, str]:
    """What lets pages of the allowed origins read replies."""
    if not origins:
        return {}
    origin = headers.get("origin", "")
    if origin.lower() not in origins:
        return {"vary": "Origin"}
    return {
        "vary": "Origin",
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "X-Request-ID, Retry-After",
        "cross-origin-resource-policy": "cross-origin",
    }


def preflight_headers(headers: Mapping[str, str], origins: frozenset[str]) -> dict[str, str] | None:
    """The answer to a browser that asks first; None if it is no such question, or nobody may."""
    if headers.get("origin", "").lower() not in origins or "access-control-request-method" not in headers:
        return None
    return {
        "access-control-allow-methods": "GET, POST, PUT, DELETE",
        "access-control-allow-headers": _ALLOWED_HEADERS,
        "access-control-max-age": "600",
    }
