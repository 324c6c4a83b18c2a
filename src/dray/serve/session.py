"""The browser's session: a key kept in a cookie that scripts cannot read, and what its caller may do."""

from __future__ import annotations

import base64
from importlib.metadata import version
from typing import Final

from dray.admin.api_keys import ROLES
from dray.serve.auth import COOKIE, EVERYBODY, secret_in
from dray.serve.http_request import HttpRequest
from dray.serve.models import Out
from dray.serve.routes import Reply, Route

SECONDS: Final = 30 * 24 * 3600


class SessionOut(Out):
    """Who asks, and of what."""

    name: str
    roles: list[str]
    queues: list[str] | None
    """The only queues that the key may use; null: all."""
    tasks: list[str] | None
    hides_values: bool
    """Arguments, results and errors are not shown to this key."""
    open: bool
    """No key is needed."""
    app: str
    namespace: str
    version: str
    broker: str
    """Its kind: `sqlite`, `redis`, …"""


def _session(request: HttpRequest) -> SessionOut:
    caller, settings = request.caller, request.app.settings
    return SessionOut(
        name=caller.name,
        roles=[role for role in ROLES if caller.has_role(role)],
        queues=None if caller.queues is None else sorted(caller.queues),
        tasks=None if caller.tasks is None else sorted(caller.tasks),
        hides_values=caller.hides_values,
        open=caller is EVERYBODY,
        app=request.app.name,
        namespace=settings.namespace,
        version=version("dray"),
        broker=settings.broker_url.partition(":")[0],
    )


async def show(request: HttpRequest) -> Reply:
    return Reply(_session(request))


async def begin(request: HttpRequest) -> Reply:
    """Keep the key of this request in a cookie of the browser, which sends it from then on."""
    secret = secret_in(request.headers)
    headers = {} if secret is None else {"set-cookie": _cookie(request, secret, SECONDS)}
    return Reply(_session(request), headers=headers)


async def end(request: HttpRequest) -> Reply:
    """Forget the cookie."""
    return Reply(_session(request), headers={"set-cookie": _cookie(request, "", 0)})


def _cookie(request: HttpRequest, secret: str, seconds: int) -> str:
    value = base64.urlsafe_b64encode(secret.encode()).decode()
    path = request.scope.get("root_path", "").rstrip("/") or "/"
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    return f"{COOKIE}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


ROUTES: Final = (
    Route("GET", "/api/session", show, "read", "Who asks, and what it may do", {200: SessionOut}),
    Route(
        "POST", "/api/session", begin, "read", "Keep this key in a cookie, for browsers", {200: SessionOut}
    ),
    Route("DELETE", "/api/session", end, "read", "Forget the cookie", {200: SessionOut}),
)
