"""Keys that a stray hand damaged: sweeps put them right, and say what was wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from damage import HOUR, QUEUE, check_sound, furnish, job, records, swept
from redis_server import Server, running

from dray.broker import Broker, connect
from dray.broker.redis.keys import BUCKETS, KeyNames
from dray.broker.redis.repair import GRACE
from dray.broker.verbs import run_blocking
from dray.job import Job

NOW = 1_800_000_000_000
Q = f"dray:{{dray:{QUEUE}}}:"
LANE = "5|work|1\n\n\n"
LIMITED = "5|work|1\ng\n\nk"

Damage = tuple[list[tuple[str, ...]], str, set[str]]
DAMAGE: dict[str, Damage] = {
    # what happened: (commands on keys of the queue, kind of repair, jobs that cannot run any more)
    "a lane lost a job": ([("LPOP", "l:0|work|1\n\n\n")], "place", set()),
    "a lane is gone": ([("DEL", "l:0|work|1\n\n\n")], "place", set()),
    "a lane is missing from its group": ([("ZREM", "g:5|work|1\ng", LIMITED)], "lane", set()),
    "a group is missing from its ring": ([("DEL", "r:0|work|1")], "lane", set()),
    "a class is missing from the index": ([("ZREM", "index", "1|work|1")], "lane", set()),
    "the index is gone": ([("DEL", "index")], "lane", set()),
    "a lane has a wrong head": ([("ZADD", "g:0|work|1\n", "77", "0|work|1\n\n\n")], "lane", set()),
    "an empty lane": ([("ZADD", "g:0|work|1\n", "7", "0|work|1\n\nx\n")], "lane", set()),
    "an empty group": ([("ZADD", "r:0|work|1", "7", "x")], "lane", set()),
    "an empty class": ([("ZADD", "index", "7", "7|work|1")], "lane", set()),
    "a lane is held back and is not": ([("ZADD", "blocked", "1e12", LIMITED)], "lane", set()),
    "a lane has a job of nobody": ([("RPUSH", "l:0|work|1\n\n\n", "99 nobody")], "place", set()),
    "a lane has a job of nobody first": ([("LPUSH", "l:0|work|1\n\n\n", "0 nobody")], "place", set()),
    "a lane has a job that is elsewhere": ([("RPUSH", "l:0|work|1\n\n\n", "99 later")], "place", set()),
    "a job stands in two lanes": ([("RPUSH", "l:0|work|1\n\n\n", "99 ready-1")], "place", set()),
    "a job stands twice in its lane": ([("RPUSH", "l:0|work|1\n\n\n", "99 ready-0")], "place", set()),
    "nonsense in a lane": ([("RPUSH", "l:0|work|1\n\n\n", "nonsense")], "place", set()),
    "a job of nobody came back": ([("ZADD", "z:0|work|1\n\n\n", "0.5", "nobody")], "place", set()),
    "a job that is elsewhere came back": ([("ZADD", "z:0|work|1\n\n\n", "9", "later")], "place", set()),
    "a job of another lane came back": ([("ZADD", "z:0|work|1\n\n\n", "9", "ready-1")], "place", set()),
    "stale entries of nobody": ([("HSET", "stale", "0|work|1\n\n\n", "3")], "lane", set()),
    "stale entries of no lane": ([("HSET", "stale", "7|work|1\n\n\n", "3")], "lane", set()),
    "a delayed job stands nowhere": ([("DEL", "due")], "place", set()),
    "a log is gone": ([("DEL", "log:sleeps")], "record", set()),
    "mail is gone": ([("DEL", "box:awaits")], "record", set()),
    "called jobs are gone": ([("DEL", "kids:parent")], "record", set()),
    "nodes are counted wrong": ([("HSET", "flow:ready-0", "ready", "7")], "count", set()),
    "nodes are not counted": ([("DEL", "flow:ready-0")], "count", set()),
    "wakes are counted wrong": ([("HSET", "n", "wakes", "7")], "count", set()),
    "a suspended job does not know what it waits for": ([("ZREM", "waiting", "awaits")], "place", set()),
    "a waiting job stands nowhere": ([("ZREM", "waiting", "waits")], "place", set()),
    "finished jobs stand nowhere": ([("DEL", "ended")], "place", set()),
    "a due entry of nobody": ([("ZADD", "due", "1", "0000000000000000nobody")], "place", set()),
    "an ended entry of nobody": ([("ZADD", "ended", "1e13", "0000000000000000nobody")], "place", set()),
    "a waiting entry of nobody": ([("ZADD", "waiting", "1", "nobody")], "place", set()),
    "a ready job is listed as waiting": ([("ZADD", "waiting", "1", "ready-1")], "place", set()),
    "a ttl of nobody": ([("ZADD", "ttl", "1e13", "0000000000000000nobody")], "place", set()),
    "a ttl is gone": ([("DEL", "ttl")], "place", set()),
    "a deadline of nobody": ([("ZADD", "deadline", "1e13", "0000000000000000nobody")], "place", set()),
    "the index of deadlines is gone": ([("DEL", "deadline")], "place", set()),
    "a job lost the moment of its deadline": ([("HDEL", "head", "limited-in-time")], "record", set()),
    "a session does not know what it holds": ([("DEL", "h:ann")], "run", set()),
    "a session is gone, its runs are not": ([("HDEL", "s", "ann")], "run", set()),
    "a hold of nobody": ([("SADD", "h:ann", "1 nobody")], "run", set()),
    "a hold of a run that is over": ([("SADD", "h:ann", "7 held")], "run", set()),
    "a slot of the queue is lost": ([("HINCRBY", "running", "q", "1")], "slot", set()),
    "a slot of a task is lost": ([("HINCRBY", "running", "t:work", "-1")], "slot", set()),
    "a slot of a group is lost": ([("HINCRBY", "running", "g:g", "1")], "slot", set()),
    "a slot of a key is lost": ([("HINCRBY", "running", "k:k", "3")], "slot", set()),
    "slots of nobody": ([("HSET", "running", "k:x", "3")], "slot", set()),
    "slots are gone": ([("DEL", "running")], "slot", set()),
    "keys are gone": ([("DEL", "key")], "key", set()),
    "a key of nobody": ([("HSET", "key", "x", "nobody\n")], "key", set()),
    "a key of a job that has ended": ([("HSET", "key", "x", "dead\n")], "key", set()),
    "a count is wrong": ([("HINCRBY", "counts", "ready", "1")], "count", set()),
    "counts are exchanged": (
        [("HINCRBY", "counts", "succeeded", "1"), ("HINCRBY", "counts", "dead", "-1")], "count", set()
    ),
    "counts are gone": ([("DEL", "counts")], "count", set()),
    "an offer is gone": ([("DEL", "offer")], "offer", set()),
    "an offer of nobody": ([("ZADD", "offer", "1", "nobody")], "offer", set()),
    "an offer of a job that does not run": ([("ZADD", "offer", "1", "ready-1")], "offer", set()),
    "a result of nobody": ([("HSET", "res", "nobody", "x")], "record", set()),
    "an end that nobody waits for": ([("SADD", "ends", "nobody")], "record", set()),
    "a job lost its body": ([("HDEL", "job", "grouped")], "record", {"grouped"}),
    "a running job lost its body": ([("HDEL", "job", "held-limited")], "record", {"held-limited"}),
    "a dependency does not know who waits": ([("DEL", "d:held")], "dependency", set()),
    "a dependency of nobody": ([("ZADD", "d:held", "9", "nobody")], "dependency finished", set()),
    "a dependency of one who does not wait": (
        [("ZADD", "d:held", "9", "ready-1")], "dependency finished", set()
    ),
}  # fmt: skip
DIRECTORY = {
    "an id leads to no job": ("id finished", "HSET", "nobody", QUEUE),
    "a job that its id does not lead to": ("id", "HDEL", "ready-1"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("damage") / "server", cluster=True) as server:
        yield server


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    server.command("FLUSHALL")
    broker = run_blocking(connect(f"redis://127.0.0.1:{server.port}", blocking=True))
    run_blocking(furnish(broker, NOW))
    yield broker
    run_blocking(broker.close())


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_mended_and_named(server: Server, broker: Broker, what: str) -> None:
    commands, kind, lost = DAMAGE[what]
    before = set(run_blocking(records(broker, NOW)))
    for name, key, *args in commands:
        server.command(name, Q + key, *args)
    repairs = run_blocking(swept(broker, NOW))
    assert repairs[kind] > 0, repairs
    assert before - set(run_blocking(records(broker, NOW))) <= lost
    run_blocking(check_sound(broker, NOW, lost))


def test_a_deadline_that_was_lost_counts_from_the_due_time_again(server: Server, broker: Broker) -> None:
    run_blocking(broker.put([job("far", due=NOW + 24 * HOUR, deadline=HOUR)], now=NOW))
    server.command("HDEL", Q + "head", "far")
    run_blocking(swept(broker, NOW))
    assert run_blocking(records(broker, NOW))["far"].deadline == NOW + 25 * HOUR


@pytest.mark.parametrize("what", DIRECTORY)
def test_the_directory_of_ids_is_mended(server: Server, broker: Broker, what: str) -> None:
    kind, command, id, *args = DIRECTORY[what]
    server.command(command, KeyNames("dray").directory(id), id, *args)
    found: Counter[str] = Counter()
    for n in range(BUCKETS + 2):
        step = run_blocking(broker.sweep(now=NOW + n * 2 * GRACE))
        found.update(step.repairs)
        found.update({f"{kind} finished": count for kind, count in step.finished.items()})
    assert found == {kind: 1}
    [accepted] = run_blocking(broker.put([Job(id="ready-1", task="work", queue="other")], now=NOW + 1))
    assert accepted.verdict == "duplicate"
    run_blocking(check_sound(broker, NOW, set()))
