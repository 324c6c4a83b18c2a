"""schemathesis against the running server, on both brokers: it finds nothing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from served import serving
from starlette.applications import Starlette
from starlette.routing import Mount

from dray import App
from dray.serve import asgi
from dray.serve.http import ROUTES, _document
from dray.serve.openapi import document

KEY = "a-key-for-schemathesis"
CONFIG = """
[[operations]]
include-path = "/api/jobs/batch"
checks.negative_data_rejection.enabled = false
"""
"""A batch with a wrong job in it is answered: the job has its own error."""


@pytest.mark.parametrize(("kind", "phase"), [("sqlite", "coverage"), ("valkey", "fuzzing")])
def test_schemathesis_finds_nothing(kind: str, phase: str, tmp_path: Path) -> None:
    """Systematic cases on one broker and random ones on the other: what differs is below the routes."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with serving(kind, tmp_path / "served", accept_unknown_tasks="yes", api_keys=f"admin:{KEY}") as served:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml"),
                *("run", f"{served.url}/api/openapi.json", "--header", f"Authorization: Bearer {KEY}"),
                # Events never end. What no schema can say (a rate, a cron rule) is refused all the same.
                *("--exclude-path", "/api/events", "--exclude-checks", "positive_data_acceptance"),
                *("--phases", phase, "--max-examples", "5", "--request-timeout", "30"),
                *("--generation-deterministic", "--no-color"),
            ],
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "schema_hooks", "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        tried = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
        assert tried is not None, done.stdout[-3000:]
        assert int(tried[1]) == int(tried[2]) > 100
        assert httpx.get(f"{served.url}/readyz").status_code == 200


def test_the_document_tells_of_every_route_and_of_its_role() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(document(ROUTES, "1")))
    assert shown["openapi"] == "3.1.0"
    for route in ROUTES:
        operation = shown["paths"][route.path][route.method.lower()]
        assert operation.get("x-role") == route.role
        assert {str(status) for status in route.replies} <= operation["responses"].keys()
    names = [one["operationId"] for path in shown["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _schemas(inner)


def test_generators_of_clients_find_what_they_need() -> None:
    """Lists without `items` are dropped by some, free objects become empty, defaults become required."""
    shown = document(ROUTES, "1")
    for schema in _schemas(shown["components"]["schemas"]):
        assert schema.get("type") != "array" or "items" in schema
        assert schema.get("type") != "object" or {"properties", "additionalProperties"} & schema.keys()
    schemas = shown["components"]["schemas"]
    assert schemas["JobIn"]["required"] == ["task"]
    assert not any("default" in field for field in schemas["JobIn"]["properties"].values())
    assert set(schemas["JobOut"]["required"]) == set(schemas["JobOut"]["properties"])
    assert schemas["ResultOut"]["required"] == ["id", "status"], "neither result nor error is always there"


def test_the_document_is_made_once_and_names_the_path_it_is_mounted_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counting(routes: Any, version: str, root: str) -> dict[str, Any]:
        made.append(root)
        return document(routes, version, root)

    monkeypatch.setattr("dray.serve.http.document", counting)
    _document.cache_clear()
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}")
    web = Starlette(routes=[Mount("/tools/my dray", asgi(app, open=True)), Mount("/", asgi(app))])

    async def ask() -> None:
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://any.example") as http:
            for _ in range(3):
                mounted = (await http.get("/tools/my%20dray/api/openapi.json")).json()
                alone = (await http.get("/api/openapi.json")).json()
            assert mounted["servers"] == [{"url": "/tools/my%20dray"}]
            assert alone["servers"] == [{"url": "/"}]
            path = mounted["servers"][0]["url"] + "/api/jobs"
            assert (await http.get(path)).status_code == 200

    asyncio.run(ask())
    assert sorted(made) == ["", "/tools/my dray"]
    _document.cache_clear()
    app.close()
