"""A file that a stray hand damaged: sweeps put it right, and say what was wrong."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from damage import HOUR, check_sound, furnish, job, records, swept

from dray.broker import Broker, connect
from dray.broker.verbs import run_blocking
from dray.policy import Retention

NOW = 1_800_000_000_000
SEQ = "(SELECT seq FROM jobs WHERE id = '%s')"

DAMAGE: dict[str, tuple[str, str, set[str]]] = {
    # what happened: (SQL, kind of repair, jobs that cannot run any more)
    "a lane is gone": ("DELETE FROM lanes WHERE running_key = 'k'", "place", set()),
    "all lanes are gone": ("DELETE FROM lanes", "place", set()),
    "a group is gone": ("DELETE FROM groups WHERE name = 'g'", "lane", set()),
    "a class is gone": ("DELETE FROM classes WHERE priority = 1", "place", set()),
    "the line is gone": ("DELETE FROM lanes; DELETE FROM groups; DELETE FROM classes", "place", set()),
    "a lane has a wrong head": ("UPDATE lanes SET head = head + 100", "lane", set()),
    "a lane of nobody": (
        "INSERT INTO lanes (grp, queue, group_name, rate_key, running_key, head)"
        " SELECT grp, queue, 'x', 'x', 'x', 1 FROM lanes LIMIT 1",
        "lane",
        set(),
    ),
    "a group counts its lanes wrong": ("UPDATE groups SET free = 7", "lane", set()),
    "an empty group": (
        "INSERT INTO groups (class, name, turn) SELECT class, 'x', 9 FROM groups LIMIT 1",
        "lane",
        set(),
    ),
    "an empty class": (
        "INSERT INTO classes (queue, priority, task, version)"
        " SELECT queue, 9, 'x', 1 FROM queues, classes LIMIT 1",
        "lane",
        set(),
    ),
    "a job in the lane of others": (
        "UPDATE jobs SET lane = (SELECT id FROM lanes WHERE running_key = 'k') WHERE id = 'ready-1'",
        "place",
        set(),
    ),
    "a job in no lane": ("UPDATE jobs SET lane = 0 WHERE id = 'ready-2'", "place", set()),
    "a job in a state that is none": ("UPDATE jobs SET state = 11 WHERE id = 'ready-0'", "place", set()),
    "a job left between two places": (
        "UPDATE jobs SET state = -1, lane = 0 WHERE id = 'grouped'",
        "place",
        set(),
    ),
    "a job in a queue that is gone": ("UPDATE jobs SET queue = 77 WHERE id = 'ready-3'", "place", set()),
    "a finished job in a lane": ("UPDATE jobs SET lane = 1 WHERE id = 'done'", "place", set()),
    "a ttl that runs for a held job": (
        f"UPDATE jobs SET expires = {NOW} + 9 WHERE id = 'later'",
        "place",
        set(),
    ),
    "the moment of a deadline without one": (
        f"UPDATE jobs SET deadline_at = {NOW} + 9 WHERE id = 'ready-1'",
        "record",
        set(),
    ),
    "a deadline without its moment": (
        "UPDATE jobs SET deadline = 9999999999 WHERE id = 'ready-1'",
        "record",
        set(),
    ),
    "a running job that nobody holds": ("DELETE FROM runs WHERE job = " + SEQ % "held", "run", set()),
    "runs that nobody counted": ("UPDATE jobs SET runs = 0 WHERE id = 'held'", "run", set()),
    "runs of a session that is gone": ("UPDATE runs SET session = 999", "run", set()),
    "all sessions are gone": ("DELETE FROM sessions", "run", set()),
    "a run of a job that is ready": (
        "INSERT INTO runs (session, job, run, queue, since, task)"
        " SELECT session, (SELECT seq FROM jobs WHERE id = 'ready-1'), 1, queue, 1, 'work' FROM runs LIMIT 1",
        "run",
        set(),
    ),
    "a slot of nobody": (
        "INSERT INTO runs (session, job, run, queue, since, task, grp, running_key)"
        " SELECT session, 4242, 1, queue, 1, 'work', 'g', 'k' FROM runs LIMIT 1",
        "run",
        set(),
    ),
    "a key of a job that is gone": ("UPDATE keys SET job = 999 WHERE key = 'key'", "key", set()),
    "a key of a job that has ended": (
        "UPDATE keys SET job = " + SEQ % "dead" + ", until = NULL WHERE key = 'key'",
        "key",
        set(),
    ),
    "keys are gone": ("DELETE FROM keys", "key", set()),
    "a key of nobody": ("INSERT INTO keys (queue, key, job) VALUES (1, 'x', 999)", "key", set()),
    "a waiting job that waits for nothing": (
        "DELETE FROM dependencies WHERE job = " + SEQ % "waits",
        "dependency",
        set(),
    ),
    "a dependency of a job that does not wait": (
        "INSERT INTO dependencies (ns, dependency, id, job)"
        " SELECT ns, 'held', id, seq FROM jobs WHERE id = 'ready-1'",
        "dependency",
        set(),
    ),
    "a dependency of nobody": (
        "INSERT INTO dependencies (ns, dependency, id, job) SELECT ns, 'held', 'x', 999 FROM jobs LIMIT 1",
        "dependency",
        set(),
    ),
    "a job remembered by one that is no node": (
        "INSERT INTO dependencies (ns, dependency, id) SELECT ns, 'held', 'ready-1' FROM jobs LIMIT 1",
        "dependency",
        set(),
    ),
    "what a suspended job waits for is gone": ("DELETE FROM durables", "record", set()),
    "a job does not know that it is durable": ("UPDATE jobs SET durable = 0", "record", set()),
    "a parent that waits for nothing": (
        "DELETE FROM dependencies WHERE job = " + SEQ % "parent",
        "dependency",
        set(),
    ),
    "a suspension of a ready job": (
        "UPDATE durables SET suspended = x'80', wake = 5 WHERE job = "
        + SEQ % "sleeps"
        + "; UPDATE jobs SET pos = 1 WHERE id = 'sleeps'",
        "record",
        set(),
    ),
    "a log without an entry that was counted": ("DELETE FROM memos", "record", set()),
    "a log of nobody": ("INSERT INTO memos (job, position, entry) VALUES (999, 0, x'')", "record", set()),
    "a message to nobody": (
        "INSERT INTO messages (job, name, number, id) VALUES (999, 'go', 1, 'm')",
        "record",
        set(),
    ),
    "a child of nobody": ("INSERT INTO children (job, id) VALUES (999, 'x')", "record", set()),
    "an offer of nobody": ("INSERT INTO offers (queue, job) VALUES (1, 999)", "record", set()),
    "an offer is gone": ("DELETE FROM offers", "offer", set()),
    "an offer of a job that does not run": (
        "INSERT INTO offers (queue, job) SELECT queue, seq FROM jobs WHERE id = 'ready-1'",
        "offer",
        set(),
    ),
    "a body without a job": ("INSERT INTO bodies (job, envelope) VALUES (999, x'00')", "record", set()),
    "an end without a job": ("INSERT INTO ends (job, ns) VALUES (999, 1)", "record", set()),
    "a watcher of nobody": ("INSERT INTO watchers (job, watcher) VALUES (999, 'w')", "record", set()),
    "word for a session that is gone": (
        "INSERT INTO voids (session, id, run) VALUES (999, 'x', 1)",
        "record",
        set(),
    ),
    "a job lost its body": ("DELETE FROM bodies WHERE job = " + SEQ % "ready-4", "record", {"ready-4"}),
    "a job lost its row": ("DELETE FROM jobs WHERE id = 'grouped'", "record", {"grouped"}),
    "a running job lost its row": ("DELETE FROM jobs WHERE id = 'held-limited'", "run", {"held-limited"}),
}


async def opened(path: Path) -> Broker:
    return await connect(f"sqlite:///{path}", blocking=True, retention=Retention())


def damage(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_mended_and_named(tmp_path: Path, what: str) -> None:
    script, kind, lost = DAMAGE[what]
    path = tmp_path / "dray.db"

    async def play() -> None:
        broker = await opened(path)
        await furnish(broker, NOW)
        before = set(await records(broker, NOW))
        damage(path, script)
        repairs = await swept(broker, NOW)
        assert repairs[kind] > 0, repairs
        assert before - set(await records(broker, NOW)) <= lost
        await check_sound(broker, NOW, lost)
        await broker.close()

    run_blocking(play())


def test_a_deadline_that_was_lost_counts_from_the_due_time_again(tmp_path: Path) -> None:
    async def play() -> None:
        broker = await opened(tmp_path / "dray.db")
        await broker.put([job("far", due=NOW + 24 * HOUR, deadline=HOUR)], now=NOW)
        damage(tmp_path / "dray.db", "UPDATE jobs SET deadline_at = NULL")
        await swept(broker, NOW)
        assert (await records(broker, NOW))["far"].deadline == NOW + 25 * HOUR
        await broker.close()

    run_blocking(play())
