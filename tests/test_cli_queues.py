"""`dray queues` and `dray workers`."""

from __future__ import annotations

import pytest
from shell import Shell

from dray.client.link import Link
from dray.documents.worker_registry import ExecutorInfo, WorkerInfo, write_worker
from dray.job import OutcomeKind, State
from dray.stats.sketch import Sketch
from dray.stats.tallies import Tally, WorkerTallies, write_tallies


def test_queues_are_listed_as_a_table_and_as_json(shell: Shell) -> None:
    shell.enqueue("add", 1)
    shell.enqueue("send", "x", delay=60)
    lines = shell.run("queues", "ls").out.splitlines()
    assert lines[0].split() == [
        "QUEUE",
        "SCHEDULED",
        "READY",
        "RUNNING",
        "OLDEST",
        "WORKERS",
        "STATE",
        "LIMITS",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["default", "email"]
    default, email = shell.json("queues", "ls")
    assert set(default) == {
        "name",
        "counts",
        "paused",
        "limits",
        "paused_tasks",
        "task_limits",
        "next_due_at",
        "oldest_ready_at",
        "dedicated",
        "workers",
    }
    assert set(default["counts"]) == {state.value for state in State} - {"not_found"}
    assert default["counts"]["ready"] == 1
    assert default["oldest_ready_at"].startswith("20")
    assert email["next_due_at"].startswith("20")


def test_a_queue_that_no_worker_serves_is_named(shell: Shell) -> None:
    shell.enqueue("add", 1)
    shell.enqueue("send", "x", queue="gpu")
    told = shell.run("queues", "ls").err
    assert "1 job waits in queue default, which no worker serves: dray worker\n" in told
    assert "1 job waits in queue gpu, which no worker serves: dray worker -Q gpu" in told
    enlist(shell, queues=("all",), dedicated=("gpu",))
    told = shell.run("queues", "ls").err
    assert told == "1 job waits in queue gpu, which is dedicated, and no worker serves: dray worker -Q gpu\n"
    default, gpu = shell.json("queues", "ls")
    assert (default["workers"], default["dedicated"]) == (1, False)
    assert (gpu["workers"], gpu["dedicated"]) == (0, True)
    enlist(shell, id="host-2", queues=("gpu",))
    assert shell.run("queues", "ls").err == ""


def test_a_queue_is_dedicated_by_an_operator(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert shell.json("queues", "limit", "default", "--dedicated", "--max-running", "3")["dedicated"] is True
    assert "dedicated" in shell.run("queues", "ls").out
    enlist(shell, queues=("all",))
    assert shell.json("queues", "limit", "default", "--not-dedicated")["dedicated"] is False
    wrong = shell.run("queues", "limit", "default", "--task", "add", "--dedicated", code=1)
    assert "dedicated=True: it can be set for a whole queue only" in wrong.err


def test_no_queues_are_told_on_stderr_only(shell: Shell) -> None:
    shell.run("jobs", "delete", shell.enqueue("add", 1))
    ended = shell.run("queues", "ls")
    assert (ended.out, "no queue holds" in ended.err) == ("", True)
    assert shell.json("queues", "ls") == []


def test_a_queue_is_paused_with_a_reason_and_goes_on(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert "default is paused" in shell.run("queues", "pause", "default", "--reason", "deploy").out
    [queue] = shell.json("queues", "ls")
    assert queue["paused"]["reason"] == "deploy"
    assert queue["paused"]["at"].startswith("20")
    assert "paused" in shell.run("queues", "ls").out
    assert shell.json("queues", "resume", "default")["paused"] is None


def test_one_task_of_a_queue_is_paused(shell: Shell) -> None:
    shell.enqueue("add", 1)
    shell.run("queues", "pause", "default", "--task", "add")
    assert list(shell.json("queues", "ls")[0]["paused_tasks"]) == ["add"]
    assert "paused: add" in shell.run("queues", "ls").out
    shell.run("queues", "resume", "default", "--task", "add")
    assert shell.json("queues", "ls")[0]["paused_tasks"] == {}


@pytest.mark.parametrize("verb", ["pause", "resume", "limit", "purge"])
def test_a_queue_nobody_has_heard_of_gets_a_suggestion(shell: Shell, verb: str) -> None:
    shell.enqueue("add", 1)
    ended = shell.run("queues", verb, "emial", *(["--yes"] if verb == "purge" else []), code=1)
    assert "no queue is named 'emial'; did you mean email?" in ended.err
    assert "Missing argument" in shell.run("queues", verb, code=2).err
    assert [queue["name"] for queue in shell.json("queues", "ls")] == ["default"]


def test_a_new_queue_can_be_paused_before_its_first_job(shell: Shell) -> None:
    shell.enqueue("add", 1)
    shell.run("queues", "pause", "later", "--new")
    assert [queue["name"] for queue in shell.json("queues", "ls")] == ["default", "later"]


def test_limits_are_set_told_and_taken_back(shell: Shell) -> None:
    shell.enqueue("send", "x")
    assert "no limits" in shell.run("queues", "limit", "email").out
    shell.run("queues", "limit", "email", "--rate", "100/m", "--max-running", "5", "--max-ready", "1000")
    shell.run("queues", "limit", "email", "--overflow", "drop-oldest", "--group-running", "2")
    shell.run("queues", "limit", "email", "--task", "send", "--max-running", "1")
    shell.run("queues", "limit", "email", "--enqueue-rate", "5/s+10")
    told = shell.run("queues", "limit", "email").out
    for part in (
        "rate=100/m",
        "enqueue_rate=5/s+10",
        "max_running=5",
        "max_ready=1000",
        "drop-oldest",
        "send: max_running=1",
    ):
        assert part in told
    queue = shell.json("queues", "limit", "email", "--rate", "none", "--max-running", "NONE")
    assert (queue["limits"]["rate"], queue["limits"]["max_running"]) == (None, None)
    assert queue["limits"]["max_ready"] == 1000
    assert queue["task_limits"]["send"]["max_running"] == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--rate", "fast"], "a whole number per s, m, h or d"),
        (["--enqueue-rate", "fast"], "--enqueue-rate='fast': a whole number per s, m, h or d"),
        (["--max-running", "0"], "'0' is not a number from 1, or none"),
        (["--max-ready", "x"], "'x' is not a number from 1, or none"),
        (["--overflow", "explode"], "'explode' is not one of"),
        (["--task", "send", "--max-ready", "5"], "for a whole queue only"),
        (["--task", "a b", "--max-running", "5"], "1-128 characters"),
    ],
)
def test_a_wrong_limit_is_refused(shell: Shell, args: list[str], says: str) -> None:
    shell.enqueue("send", "x")
    ended = shell.run("queues", "limit", "email", *args, code=None)
    assert ended.code in (1, 2)
    assert says in ended.err


def test_a_purge_deletes_what_has_not_started(shell: Shell) -> None:
    done = shell.enqueue("add", 0)
    shell.finish(done, OutcomeKind.SUCCEEDED)
    shell.enqueue("add", 1)
    shell.enqueue("add", 2, delay=60)
    assert "--yes" in shell.run("queues", "purge", "default", code=2).err
    assert shell.run("queues", "purge", "default", "--dry-run").out == "would purge: 2 jobs\n"
    assert shell.json("queues", "purge", "default", "--state", "scheduled", "--yes")["changed"] == 1
    assert shell.run("queues", "purge", "default", "--yes").out == "purge: 1 job\n"
    assert [job["id"] for job in shell.json("jobs", "ls")] == [done]
    assert shell.run("queues", "purge", "default", "--state", "succeeded", "-y").out == "purge: 1 job\n"
    assert (
        "'running' is not one of" in shell.run("queues", "purge", "default", "--state", "running", code=2).err
    )


# workers


async def _enlist(link: Link, info: WorkerInfo) -> None:
    await write_worker(link.broker, info, 60_000)


def enlist(shell: Shell, **more: object) -> None:
    """A worker as it writes about itself."""
    app = shell.app()
    now = app.now()
    fields: dict[str, object] = {"id": "host-1", "host": "host", "pid": 1, "started": now, "seen": now} | more
    app.client.block(_enlist, WorkerInfo(**fields))  # type: ignore[arg-type]
    app.close()


def test_workers_are_listed_as_a_table_and_as_json(shell: Shell) -> None:
    executor = ExecutorInfo(number=1, pid=2, session="s", running=3, slots=8, succeeded=40, failed=2)
    enlist(
        shell,
        queues=("gpu", "any"),
        priorities=(0, 1, 2, 3),
        executors=(executor,),
        leader=True,
        skew=-2_400,
    )
    header, line = shell.run("workers", "ls").out.splitlines()
    assert header.split()[:3] == ["WORKER", "STATE", "QUEUES"]
    for part in ("host-1", "running", "gpu,any [0-3]", "3/8", "40", "leader", "clock 2.4 s behind"):
        assert part in line
    [worker] = shell.json("workers", "ls")
    assert set(worker) == {
        *("id", "host", "pid", "started_at", "seen_at", "queues", "priorities", "tasks", "processes"),
        *("concurrency", "mode", "version", "state", "executors", "leader", "running", "slots"),
        *("average", "p95", "against_crew", "lag", "stalls", "round_trip", "skew", "rate", "dedicated"),
    }
    assert (worker["running"], worker["slots"], worker["concurrency"]) == (3, 8, None)
    assert worker["executors"][0]["succeeded"] == 40


def test_no_workers_are_told_on_stderr_only(shell: Shell) -> None:
    shell.enqueue("add", 1)
    ended = shell.run("workers", "ls")
    assert (ended.out, "no worker is running" in ended.err) == ("", True)
    assert shell.json("workers", "ls") == []


async def _tell(link: Link, told: WorkerTallies, worker: str = "host-1") -> None:
    await write_tallies(link.broker, worker, told, 0)


def test_workers_are_ranked_by_how_slow_they_are_at_what_others_do_too(shell: Shell) -> None:
    # host-2 runs longer tasks, but is the faster one at what both do.
    for worker, tasks in (
        ("host-1", {"resize": 0.2}),
        ("host-2", {"resize": 0.1, "render": 60.0}),
        ("host-3", {}),
    ):
        enlist(shell, id=worker, average=sum(tasks.values()), p95=1.0)
        tallies = {}
        for task, seconds in tasks.items():
            took = Sketch()
            took.add([seconds] * 20)
            tallies[task] = Tally(runs=20, took=took)
        app = shell.app()
        app.client.block(_tell, WorkerTallies(seen=app.now(), tasks=tallies), worker)
        app.close()
    told = shell.json("workers", "ls", "--sort", "latency")
    assert [worker["id"] for worker in told] == ["host-1", "host-2", "host-3"]
    assert told[0]["against_crew"] == pytest.approx(0.2 / 0.15)
    assert told[2]["against_crew"] is None
    assert [worker["id"] for worker in shell.json("workers", "ls")] == ["host-1", "host-2", "host-3"]
    header, first, *_ = shell.run("workers", "ls", "--sort", "latency").out.splitlines()
    assert {"AVG", "P95", "CREW"} <= set(header.split())
    assert "1.3×" in first


def test_how_tasks_fare_is_told_for_all_workers_and_for_one(shell: Shell) -> None:
    app = shell.app()
    assert app.queues.list() == []
    ended = shell.run("workers", "ls", "--tasks")
    assert (ended.out, "no worker has run anything" in ended.err) == ("", True)
    took = Sketch()
    took.add([0.25] * 40)
    tally = Tally(runs=42, failed=2, took=took, cpu=0.5, metered=10, memory=64 << 20, stalls=1)
    app.client.block(_tell, WorkerTallies(seen=app.now(), tasks={"resize": tally, "new": Tally(runs=1)}))
    app.close()
    for told in (shell.run("workers", "ls", "--tasks").out, shell.run("workers", "show", "host-1").out):
        header, new, resize = told.splitlines()
        assert header.split()[:5] == ["TASK", "ACCEPTED", "RUNS", "FAILED", "AVG"]
        assert new.split() == ["new", "-", "1", "0", *["-"] * 9]
        assert resize.split()[:10] == ["resize", "-", "42", "2", "250", "ms", "250", "ms", "250", "ms"]
        for part in ("50 ms", "64 MiB"):
            assert part in resize
    listed = shell.json("workers", "ls", "--tasks")
    assert [(one["task"], one["runs"]) for one in listed] == [("new", 1), ("resize", 42)]
    assert shell.json("workers", "show", "host-1")["resize"] == listed[1]
    nobody = shell.run("workers", "show", "nobody", code=1)
    assert "no worker nobody has told" in nobody.err
