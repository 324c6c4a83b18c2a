"""API keys and the audit log over HTTP, for administrators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta

from dray.admin.api_keys import ApiKey, Role
from dray.errors import LastAdminKey
from dray.job import check_name
from dray.options import JsonDuration, Name
from dray.serve.errors import Refused, forbidden
from dray.serve.http_request import HttpRequest
from dray.serve.models import MANY, In, Out
from dray.serve.routes import Reply, Route


class KeyIn(In):
    """A key to make. `admin` includes all roles."""

    name: Name
    roles: Annotated[list[Role], Meta(min_length=1, max_length=4)]
    queues: Annotated[list[Name], Meta(min_length=1, max_length=MANY)] | None = None
    tasks: Annotated[list[Name], Meta(min_length=1, max_length=MANY)] | None = None
    expires: JsonDuration | None = None
    hides_values: bool = False


class KeyOut(Out):
    """A key, without its secret."""

    id: str
    name: str
    roles: list[str]
    queues: list[str] | None
    tasks: list[str] | None
    hides_values: bool
    created_at: datetime
    expires_at: datetime | None


class NewKeyOut(Out):
    key: KeyOut
    secret: str
    """What clients send; it cannot be read again."""


class KeysOut(Out):
    keys: list[KeyOut]


class KeyQuery(In):
    force: Annotated[bool, Meta(description="Revoke it also if it is the last admin key")] = False


class RevokedOut(Out):
    id: str
    revoked: bool


class AuditQuery(In):
    limit: Annotated[int, Meta(ge=1, le=MANY)] = 100


class AuditEntryOut(Out):
    at: datetime
    who: str
    action: str
    target: str
    request: str


class AuditOut(Out):
    entries: list[AuditEntryOut]


def _key_out(key: ApiKey) -> KeyOut:
    return KeyOut(
        id=key.id,
        name=key.name,
        roles=sorted(key.roles),
        queues=None if key.queues is None else sorted(key.queues),
        tasks=None if key.tasks is None else sorted(key.tasks),
        hides_values=key.hides_values,
        created_at=key.created_at,
        expires_at=key.expires_at,
    )


def _check_unlimited(request: HttpRequest) -> None:
    """A key with limits could make itself one without."""
    if request.caller.limited or request.caller.hides_values:
        raise forbidden("this key has limits: keys and the audit log are for keys without")


async def list_keys(request: HttpRequest) -> Reply:
    _check_unlimited(request)
    return Reply(KeysOut(keys=[_key_out(key) for key in await request.app.keys.alist()]))


async def create(request: HttpRequest) -> Reply:
    """Make a key. Its secret is in this reply and nowhere else."""
    _check_unlimited(request)
    given: KeyIn = request.body
    made = await request.app.keys.acreate(
        given.name,
        given.roles,
        queues=given.queues,
        tasks=given.tasks,
        expires=given.expires,
        hides_values=given.hides_values,
    )
    return Reply(NewKeyOut(key=_key_out(made.key), secret=made.secret), 201)


async def revoke(request: HttpRequest) -> Reply:
    """Delete a key; servers refuse it within a second or two."""
    _check_unlimited(request)
    query: KeyQuery = request.query
    id = check_name("id", request.path["id"])
    try:
        revoked = await request.app.keys.arevoke(id, force=query.force)
    except LastAdminKey as error:
        raise Refused(409, "last_admin_key", str(error)) from error
    if not revoked:
        raise Refused(404, "key_not_found", f"no key has the id {id}")
    return Reply(RevokedOut(id=id, revoked=True))


async def audit(request: HttpRequest) -> Reply:
    """The audit log, latest entry first."""
    _check_unlimited(request)
    query: AuditQuery = request.query
    entries = [
        AuditEntryOut(
            at=entry.when, who=entry.who, action=entry.action, target=entry.target, request=entry.request
        )
        for entry in await request.app.keys.aaudit(query.limit)
    ]
    return Reply(AuditOut(entries=entries))


ROUTES: Final = (
    Route("GET", "/api/keys", list_keys, "admin", "API keys, without their secrets", {200: KeysOut}),
    Route("POST", "/api/keys", create, "admin", "Make an API key", {201: NewKeyOut}, body=KeyIn),
    Route(
        "DELETE",
        "/api/keys/{id}",
        revoke,
        "admin",
        "Revoke an API key",
        {200: RevokedOut},
        query=KeyQuery,
        errors=(409,),
    ),
    Route(
        "GET",
        "/api/audit",
        audit,
        "admin",
        "What administrators did, latest first",
        {200: AuditOut},
        query=AuditQuery,
    ),
)
