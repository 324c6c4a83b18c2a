"""Protects a server that browsers can reach: its host names, allowed origins, headers.

A page of another site must not be able to use a server on the reader's own machine: neither by sending it
requests (the origin is checked) nor by a name that suddenly leads to 127.0.0.1 (the host is checked).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from dray.serve.errors import Refused

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every reply: a browser must not render, frame or store it."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_FORWARDED: Final = re.compile(
    r"forwarded|via|cdn-loop|x-forwarded(-.*)?|x-original-.*|x-envoy-.*|x-proxyuser-.*"
    r"|(.*-)?(real|client|connecting|cluster-client|remote)-(ip|addr|port)"
)
"""Headers that only proxies add."""
_ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-API-Key, X-Request-ID"
)


def is_loopback(host: str) -> bool:
    """Only this machine can reach this host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def came_through_proxy(headers: Mapping[str, str], http_version: str) -> bool:
    """A proxy passed the request on, so that it may come from anywhere.

    A proxy that adds no header is recognised by HTTP/1.0, which nginx uses by default.
    """
    if http_version == "1.0":
        return True
    for name in headers:  # noqa: SIM110 (a generator is a call for each)
        if _only_proxies_add(name):
            return True
    return False


@lru_cache(1024)
def _only_proxies_add(name: str) -> bool:
    return _FORWARDED.fullmatch(name) is not None


def check_host(headers: Mapping[str, str], hosts: frozenset[str] | None) -> None:
    if hosts is None:
        return
    name = _without_port(headers.get("host", ""))
    if name not in hosts:
        raise Refused(
            400, "invalid_host", f"this server is not called {name!r} (setting allowed_hosts)", "Host"
        )


@lru_cache(1024)
def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def check_origin(method: str, headers: Mapping[str, str], origins: frozenset[str]) -> None:
    """Refuse requests that a page of another site makes a browser send."""
    if method in SAFE_METHODS:
        return
    origin = headers.get("origin")
    if origin is not None and origin.lower() in origins:
        return
    site = headers.get("sec-fetch-site", "none").lower()
    if site not in ("same-origin", "none") or (origin is not None and not _is_same_origin(origin, headers)):
        raise Refused(403, "cross_site", "requests from other sites are refused (setting cors_origins)")


def _is_same_origin(origin: str, headers: Mapping[str, str]) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:  # not an origin that a browser would send
        return False


def cors_headers(headers: Mapping[str, str], origins: frozenset[str]) -> dict[str, str]:
    """The headers with which pages of the allowed origins may read replies."""
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
    """The headers that answer a preflight request; None if it is none, or its origin is not allowed."""
    if headers.get("origin", "").lower() not in origins or "access-control-request-method" not in headers:
        return None
    return {
        "access-control-allow-methods": "GET, POST, PUT, DELETE",
        "access-control-allow-headers": _ALLOWED_HEADERS,
        "access-control-max-age": "600",
    }
