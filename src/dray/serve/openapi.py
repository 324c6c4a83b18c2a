"""The OpenAPI 3.1 document, made from the table of routes and the Structs they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from dray.options import Name, Word
from dray.serve.models import AnyJson, ErrorOut, In
from dray.serve.routes import Route

_REASONS: Final = {
    200: "Done",
    201: "Accepted",
    202: "Not finished yet",
    400: "The request cannot be read",
    401: "No key, or one that nobody knows",
    403: "The key may not do this",
    404: "There is no such thing",
    409: "It cannot be done as things stand",
    413: "The request, or the call in it, is too large",
    422: "A value is wrong: `field` names it",
    429: "Too often, or the queue is full: see Retry-After",
    503: "The broker is away, or the server has too much to do: see Retry-After",
}
_WORD: Final = msgspec.json.schema(Word)
_NAME: Final = msgspec.json.schema(Name)
_ALWAYS: Final = (400, 503)
_WITH_KEY: Final = (401, 403, 422, 429)


def document(routes: Sequence[Route], version: str, root: str = "") -> dict[str, Any]:
    """The document, as served below the path `root`."""
    shown = sorted({kind for route in routes for kind in _bodies(route)}, key=lambda kind: kind.__name__)
    asked = {route.query for route in routes if route.query is not None}
    _, schemas = msgspec.json.schema_components([*shown, *asked], ref_template="#/components/schemas/{name}")
    _allow_any_content(schemas)
    queries = {kind: schemas.pop(kind.__name__) for kind in asked}
    _require_defaults(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, queries)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dray",
            "version": version,
            "description": "A distributed task queue for Python.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": quote(root.rstrip("/")) or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _allow_any_content(schema: Any) -> None:
    """Generators of clients need it said that a list or an object may hold anything."""
    if isinstance(schema, dict):
        if schema.get("type") == "array":
            schema.setdefault("items", {})
        if schema.get("type") == "object" and "properties" not in schema:
            schema.setdefault("additionalProperties", True)
        for inner in schema.values():
            _allow_any_content(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _allow_any_content(inner)


def _require_defaults(schemas: dict[str, dict[str, Any]]) -> None:
    """A field with a default may be left out of a request, and is in every reply.

    Generators of clients take a field with a default for one that is always there; so none is named.
    """
    requests = {kind.__name__ for kind in _subclasses(In)}
    for name, schema in schemas.items():
        has_default = [field for field, kind in schema.get("properties", {}).items() if "default" in kind]
        for field in has_default:
            del schema["properties"][field]["default"]
        if has_default and name not in requests:
            schema["required"] = [*schema.get("required", ()), *has_default]


def _subclasses(base: type[In]) -> Iterator[type[In]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _subclasses(kind)


def _bodies(route: Route) -> Iterable[type[msgspec.Struct]]:
    yield ErrorOut
    yield from route.replies.values()
    if route.body is not None and route.body is not AnyJson:
        yield route.body


def _operation(route: Route, queries: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    words = [part.strip("{}") for part in route.segments if part != "api"]
    shown: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]).replace(".", "_"),
        "summary": route.summary,
        "tags": [route.segments[1] if route.segments[0] == "api" else "health"],
        "parameters": _parameters(route, queries),
        "responses": _responses(route),
    }
    if route.handler.__doc__:
        shown["description"] = " ".join(route.handler.__doc__.split())
    if route.role is not None:
        shown["security"] = [{"bearer": []}, {"header": []}]
        shown["x-role"] = route.role
    if route.body is not None:
        shown["requestBody"] = {"required": route.body_needed, "content": _json(route.body)}
    return shown


def _parameters(route: Route, queries: dict[type[msgspec.Struct], dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _WORD if name == "id" else _NAME,
        }
        for name in route.parameters
    ]
    if route.query is not None:
        schema = queries[route.query]
        required = schema.get("required", ())
        found += [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "schema": _without_null(kind) if name in required else _allow_empty(_without_null(kind)),
            }
            for name, kind in schema["properties"].items()
        ]
    found += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
        for name in route.headers
    ]
    return found


def _allow_empty(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter may be given without a value; then it counts as not given."""
    described: dict[str, Any] = {
        name: schema.pop(name) for name in ("description", "default") if name in schema
    }
    return {"anyOf": [schema, {"type": "string", "maxLength": 0}], **described}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter may be left out, but is never null."""
    shown = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    if "enum" in shown:
        shown["enum"] = [value for value in shown["enum"] if value is not None]
    if "anyOf" in shown:
        kinds = [kind for kind in shown.pop("anyOf") if kind.get("type") != "null"]
        shown |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        if "enum" in shown:
            shown["enum"] = [value for value in shown["enum"] if value is not None]
    return shown


def _responses(route: Route) -> dict[str, Any]:
    found = {
        str(status): {
            "description": _REASONS[status],
            "content": _json(kind) if not route.streams else {"text/event-stream": {}},
        }
        for status, kind in route.replies.items()
    }
    if route.text is not None:
        kind = route.text.partition(";")[0]
        found["200"] = {"description": _REASONS[200], "content": {kind: {"schema": {"type": "string"}}}}
    errors = {*_ALWAYS, *route.errors}
    if route.role is not None:
        errors |= {*_WITH_KEY}
    if route.parameters:
        errors |= {404}
    if route.body is not None:
        errors |= {413}
    for status in sorted(errors):
        found[str(status)] = {"description": _REASONS[status], "content": _json(ErrorOut)}
    return found


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    if kind is AnyJson:
        return {"application/json": {"schema": {}}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
