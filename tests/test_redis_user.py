"""The user that docs/brokers.md describes: dray works as this user, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import end, until
from redis_server import Server, need, running
from walk import shrink, side, walk

from dray import App
from dray.broker import connect
from dray.broker.redis.blocking_connection import BlockingConnection
from dray.broker.redis.connection import pack
from dray.broker.redis.options import read_url
from dray.broker.redis.scripts import SCRIPTS
from dray.broker.redis.server import ServerFacts
from dray.broker.verbs import run_blocking
from dray.cli import doctor_redis
from dray.cli.doctor_redis import has_lua_faults
from dray.errors import BrokerReadOnly
from dray.observe import metrics
from dray.settings import Settings

ROOT = Path(__file__).parents[1]
SERVERS = [("redis", False), ("valkey", False), ("valkey", True)]
CODE = """
import os
from dray import App

app = App("shop", broker=os.environ["SHOP_BROKER"], lease="2s")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.every("1s")
@app.task
def tick() -> None: ...
"""


def recipe(namespace: str = "shop") -> list[str]:
    """As the page has it, for this namespace."""
    page = (ROOT / "docs" / "brokers.md").read_text("utf-8")
    [text] = re.findall(r"```\n(ACL SETUSER .*?)```", page, re.DOTALL)
    return [
        word.replace("{shop", "{" + namespace).replace(":shop:", f":{namespace}:") for word in text.split()
    ]


@pytest.fixture(params=SERVERS, ids=["redis", "valkey", "valkey cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    kind, cluster = request.param
    need(kind)
    with running(kind, tmp_path / "server", cluster=cluster) as server:
        server.command(*recipe())
        yield server


def url_of(server: Server) -> str:
    return f"redis://shop:secret@127.0.0.1:{server.port}"


def test_every_command_of_dray_is_in_the_recipe_and_no_other() -> None:
    scripts = "".join(script.source for script in SCRIPTS.values())
    used = set(re.findall(r"\b(?:call|many|fetch|stretch)\('([A-Z]+)'", scripts))
    for file in (ROOT / "src" / "dray" / "broker" / "redis").glob("*.py"):
        text = file.read_text("utf-8")
        used |= set(re.findall(r"command\([^()]*?(?:\([^()]*\)[^()]*?)?, \"([A-Z]+)\"", text))
        used |= {
            "|".join(filter(None, found))
            for found in re.findall(r'pack(?:_all\()?\("([A-Z]+)"(?:, "([A-Z]+)")?', text)
        }
    # Every user may log in; CONFIG shows secrets and SCAN foreign names, and the doctor can do without both.
    used -= {"HELLO", "CONFIG|GET", "SCAN"}
    allowed = {word[1:].upper() for word in recipe() if word.startswith("+")}
    assert used == allowed


def test_every_verb_works(server: Server) -> None:
    server.command(*recipe("walk-*"))
    memory, redis = side("memory://"), side(url_of(server))
    for seed in range(15):
        found = walk(seed, memory, redis)
        if found is not None:
            pytest.fail(str(shrink(found, memory, redis, budget=200)))


def test_workers_schedules_waiters_the_doctor_and_metrics_work(server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CODE)
    environment = os.environ | {"SHOP_BROKER": url_of(server)}

    def dray(*args: str) -> str:
        call = [sys.executable, "-m", "dray", "-A", "shop:app", *args]
        done = subprocess.run(
            call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with (tmp_path / "log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )
    app = App("shop", broker=url_of(server))
    try:
        assert "3" in dray("enqueue", "add", "1", "2", "--wait")
        assert app.enqueue("add", 2, 2).get(timeout=60) == 4
        until(lambda: [one for one in app.schedules.list() if one.run_count > 1], "ticks")
        told = dray("doctor")
        assert re.search(r"(Redis|Valkey) \d+\.\d+\.\d+", told)
        assert "not known" not in told
        assert "dray_queue_jobs" in metrics(app)
    finally:
        worker.kill()
        end(worker)
        app.close()
    assert "NOPERM" not in (tmp_path / "log").read_text()


REFUSED = """
FUNCTION LOAD #!lua; FUNCTION FLUSH; FUNCTION LIST; FUNCTION DELETE f; FCALL f 0; FLUSHALL; FLUSHDB
KEYS *; SCAN 0; RANDOMKEY; DBSIZE; CONFIG SET maxmemory 1; CONFIG GET *; DEBUG SLEEP 0; SHUTDOWN NOSAVE
REPLICAOF NO ONE; MONITOR; CLIENT KILL TYPE normal; CLIENT LIST; CLIENT PAUSE 1; ACL LIST; SCRIPT FLUSH
SCRIPT KILL; EVAL 1 0; SAVE; SLAVEOF NO ONE; MODULE LIST; SWAPDB 0 1; MIGRATE h 1 k 0 1; PUBSUB CHANNELS
BLPOP dray:{shop}:x 0; SORT dray:{shop}:x; CLUSTER RESET; GET other; SET dray:{other}:layout 1
PUBLISH dray:other:b:x 1; SUBSCRIBE dray:other:b:x; DEL dray:{shopping}:layout
"""


def test_what_dray_does_not_need_and_what_is_not_of_the_namespace_is_refused(server: Server) -> None:
    options = read_url(url_of(server))
    connection = run_blocking(BlockingConnection.connect(options.addresses[0], options))
    replies = {}
    for text in REFUSED.replace("\n", ";").split(";"):
        if text.strip():
            [replies[text]] = run_blocking(connection.exchange(pack(*text.split()), 1))
    connection.close()
    assert len(replies) > 30
    allowed = {
        text: reply
        for text, reply in replies.items()
        if not str(reply).startswith(("NOPERM", "ERR DEBUG command not allowed"))
    }
    assert allowed == {}


def test_another_namespace_is_refused_in_plain_words(server: Server) -> None:
    async def test() -> None:
        with pytest.raises(BrokerReadOnly, match="permission"):
            await connect(url_of(server), "other")

    asyncio.run(test())


@pytest.mark.parametrize(
    ("kind", "version", "faults"),
    [
        ("Redis", "6.2.19", True),
        ("Redis", "6.2.20", False),
        ("Redis", "7.0.15", True),
        ("Redis", "7.2.10", True),
        ("Redis", "7.4.6", False),
        ("Redis", "8.2.1", True),
        ("Redis", "8.4.0", False),
        ("Redis", "255.255.255", False),
        ("Valkey", "7.2.11", False),
        ("Valkey", "8.0.5", True),
        ("Valkey", "8.1.4", False),
        ("Valkey", "9.0.0", False),
        ("Dragonfly", "1.2", False),
        ("Redis", "?", False),
    ],
)
def test_versions_with_known_faults_of_the_lua_engine_are_known(
    kind: str, version: str, faults: bool
) -> None:
    assert has_lua_faults(kind, version) is faults


def test_the_doctor_warns_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ServerFacts(address="h:1", kind="Redis", version="7.0.15", appendonly=True, policy="noeviction")

    async def read(url: str) -> list[ServerFacts]:
        return [facts]

    monkeypatch.setattr(doctor_redis, "read_facts", read)
    settings = Settings(broker_url="redis://h", namespace="shop")
    [warning] = [one for one in doctor_redis.check_servers(settings) if one.status == "warn"]
    assert "CVE-2025-49844" in warning.text
    assert "7.2.11" in warning.todo
