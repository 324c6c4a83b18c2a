"""Who takes part. A subject's own file in subjects/ says which settings it has, and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SUBJECTS = Path(__file__).parent / "subjects"
MODULE = "bench.peers.subjects."
CORES = 2
"""Worker processes for everybody who can use them: goals and figures are for two."""


@dataclass(frozen=True)
class Group:
    """Measures that share a worker: those whose best settings are the same."""

    measures: frozenset[str]
    """Of `enqueue`, `noop`, `plain`, `io`, `latency`, `trip`, `idle`, `load`."""
    workers: tuple[tuple[str, ...], ...]
    """Commands; `{python}`, `{here}` (the folder of the subjects' files) and `{url}` are filled in."""
    environ: Mapping[str, str] = field(default_factory=dict)


EVERYTHING = frozenset({"enqueue", "noop", "plain", "io", "latency", "trip", "idle", "load"})
IO = frozenset({"io", "load"})


@dataclass(frozen=True)
class Subject:
    name: str
    env: str
    driver: tuple[str, ...]
    groups: tuple[Group, ...]
    pace: Mapping[str, float]
    """Jobs per second it is known to drain, roughly, by kind: only for choosing how many to give it."""
    package: str
    """Whose version is shown."""
    redis: bool = True
    has_async: bool = True
    """Without async tasks, `noop` is a plain function."""
    has_plain: bool = True
    settings: str = ""
    """In short, for the table."""
    language: str = "Python"
    warm: bool = False
    """It is given work of each kind before that kind is measured, as its concurrency may adapt."""

    def command(self, command: Sequence[str], folder: Path, url: str) -> list[str]:
        python = str(folder / "bin" / "python")
        return [part.format(python=python, here=str(SUBJECTS), url=url) for part in command]


def _python(module: str) -> tuple[str, ...]:
    return ("{python}", "-m", "bench.peers.inside", module)


def _paces(noop: float, plain: float, io: float) -> dict[str, float]:
    return {"noop": noop, "plain": plain, "io": io}


def _dray(*options: str, module: str = "dray") -> tuple[tuple[str, ...], ...]:
    app = f"{MODULE}{module}:app"
    return (("{python}", "-m", "dray", "worker", "-A", app, "--log-level", "warning", *options),)


def dray(
    name: str,
    *options: str,
    redis: bool = True,
    settings: str = "",
    pace: float = 30_000,
    module: str = "dray",
    warm: bool = False,
) -> Subject:
    """A dray subject with these options of the worker."""
    return Subject(
        name,
        "dray",
        _python(module),
        (Group(EVERYTHING, _dray(*options, module=module)),),
        _paces(pace, pace / 2, pace / 4),
        "dray",
        redis=redis,
        settings=settings,
        warm=warm,
    )


TUNED = ("-p", str(CORES), "-c", "100")
DRAY = dray("dray", *TUNED, settings="-p 2 -c 100; results stored, fenced leases", warm=True)
MUTED = dray(
    "dray, no events", *TUNED, module="muted", settings="without feed and statistics, for comparison"
)
DEFAULTS = dray("dray, no settings", settings="none", warm=True)
EMBEDDED = dray(
    "dray, embedded",
    *TUNED,
    redis=False,
    pace=4000,
    settings="SQLite file, durability normal; -p 2 -c 100; results stored",
)


def bare(processes: int = CORES) -> Subject:
    return Subject(
        "bare loop" if processes == CORES else f"bare loop × {processes}",
        "bare",
        _python("bare"),
        (Group(EVERYTHING, (("{python}", "-m", MODULE + "bare"),) * processes),),
        _paces(60_000, 0, 12_000),
        "hiredis",
        has_plain=False,
        settings=f"{processes} processes, 100 slots",
    )


FLOOR = Subject(
    "bare command",
    "bare",
    _python("command"),
    (Group(EVERYTHING - IO, (("{python}", "-m", MODULE + "command"),) * CORES),),
    _paces(16_000, 16_000, 0),
    "hiredis",
    has_async=False,
    settings="LPUSH and BRPOP in 2 processes; no acknowledgement, lost with its process",
)


def _celery(name: str, *pool: str, times: int, settings: str) -> Subject:
    worker = ("{python}", "-m", "celery", "-A", MODULE + "celery", "worker", "-l", "ERROR")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    noops = tuple((*worker, *quiet, "-n", f"w{number}@bench", *pool) for number in range(times))
    greens = tuple(
        (*worker, *quiet, "-n", f"g{number}@bench", "-P", "gevent", "-c", "100") for number in range(CORES)
    )
    groups = [Group(EVERYTHING - IO, noops)]
    if "solo" in pool:
        groups.append(Group(IO, greens))
    return Subject(
        name, "celery", _python("celery"), tuple(groups), _paces(2000, 2000, 2000), "celery", has_async=False,
        settings=settings,
    )  # fmt: skip


CELERY = _celery("celery solo", "-P", "solo", times=CORES, settings="2 × solo; 10 ms: 2 × gevent -c 100")
PREFORK = _celery(
    "celery prefork",
    "-P",
    "prefork",
    "-c",
    str(CORES),
    "-O",
    "fair",
    times=1,
    settings="prefork -c 2 -O fair",
)
DRAMATIQ = Subject(
    "dramatiq",
    "dramatiq",
    _python("dramatiq"),
    tuple(
        Group(
            measures,
            (("{python}", "-m", "dramatiq", MODULE + "dramatiq", "-p", str(CORES), "-t", threads),),
            {"dramatiq_queue_prefetch": "1000"},
        )
        for measures, threads in ((EVERYTHING - IO, "8"), (IO, "64"))
    ),
    _paces(12_000, 12_000, 6000),
    "dramatiq",
    has_async=False,
    settings="-p 2 -t 8, queue prefetch 1000; 10 ms: -t 64",
)


def _rq(count: int) -> tuple[tuple[str, ...], ...]:
    pool = (
        "{python}",
        "-m",
        "rq.cli",
        "worker-pool",
        "bench",
        "-w",
        "rq.worker.SimpleWorker",
        "-q",
        "-l",
        "ERROR",
    )
    return ((*pool, "-n", str(count), "-u", "{url}"),)


RQ = Subject(
    "rq",
    "rq",
    _python("rq"),
    (Group(EVERYTHING - IO, _rq(CORES)), Group(IO, _rq(20))),
    _paces(600, 600, 600),
    "rq",
    has_async=False,
    settings="worker-pool of 2 SimpleWorkers; 10 ms: of 20",
)
ARQ = Subject(
    "arq",
    "arq",
    _python("arq"),
    (Group(EVERYTHING, (("{python}", "-m", MODULE + "arq"),)),),
    _paces(1500, 1200, 1500),
    "arq",
    settings="1 process, max_jobs 100, poll_delay 10 ms",
)
_TASKIQ_WORKER = (
    "{python}", "-m", "taskiq", "worker", MODULE + "taskiq:broker", "--workers", str(CORES), "--no-parse",
    "--max-async-tasks", "100", "--max-prefetch", "100", "--log-level", "ERROR",
)  # fmt: skip
TASKIQ = Subject(
    "taskiq",
    "taskiq",
    _python("taskiq"),
    (Group(EVERYTHING, (_TASKIQ_WORKER,)),),
    _paces(4500, 3000, 4500),
    "taskiq",
    settings="stream broker, 2 workers × 100, --max-prefetch 100, --no-parse, orjson",
)
SAQ = Subject(
    "saq",
    "saq",
    _python("saq"),
    (Group(EVERYTHING, (("{python}", "-m", MODULE + "saq"),) * CORES),),
    _paces(3000, 2500, 3000),
    "saq",
    settings="2 processes × 100, orjson",
)


def _huey(*options: str, times: int) -> tuple[tuple[str, ...], ...]:
    return (("{python}", "-m", "huey.bin.huey_consumer", MODULE + "huey.huey", "-q", "-n", *options),) * times


HUEY = Subject(
    "huey",
    "huey",
    _python("huey"),
    (
        Group(EVERYTHING - IO, _huey("-k", "process", "-w", "4", times=1)),
        Group(IO, _huey("-k", "thread", "-w", "100", times=CORES)),
    ),
    _paces(6000, 6000, 4000),
    "huey",
    has_async=False,
    settings="-k process -w 4; 10 ms: 2 × 100 threads; no acknowledgement",
)
STREAQ = Subject(
    "streaq",
    "streaq",
    _python("streaq"),
    (
        Group(
            EVERYTHING,
            (("{python}", "-m", "streaq", "run", MODULE + "streaq:worker", "--workers", str(CORES)),),
        ),
    ),
    _paces(2000, 1500, 2000),
    "streaq",
    settings="2 workers × 100",
)
PYDOCKET = Subject(
    "pydocket",
    "pydocket",
    _python("pydocket"),
    (
        Group(EVERYTHING - {"trip"}, (("{python}", "-m", MODULE + "pydocket"),) * CORES),
        Group(
            frozenset({"trip"}), (("{python}", "-m", MODULE + "pydocket"),) * CORES, {"BENCH_RESULTS": "1"}
        ),
    ),
    _paces(3000, 0, 3000),
    "pydocket",
    has_plain=False,
    settings="2 processes × 50, execution_ttl 0, check interval 10 ms",
)
BULLMQ = Subject(
    "BullMQ",
    "bullmq",
    ("node", "{here}/bullmq.cjs", "drive"),
    (Group(EVERYTHING, (("node", "{here}/bullmq.cjs", "work"),) * CORES),),
    _paces(10_000, 0, 7000),
    "bullmq",
    has_plain=False,
    settings="2 processes × 100, removeOnComplete",
    language="Node",
)


def _sidekiq(threads: str) -> tuple[tuple[str, ...], ...]:
    return (("ruby", "{here}/sidekiq.rb", "work", threads),) * CORES


SIDEKIQ = Subject(
    "Sidekiq",
    "sidekiq",
    ("ruby", "{here}/sidekiq.rb", "drive"),
    (Group(EVERYTHING - IO, _sidekiq("10")), Group(IO, _sidekiq("100"))),
    _paces(12_000, 12_000, 5000),
    "ruby-sidekiq",
    has_async=False,
    settings="2 processes × 10 threads; 10 ms: × 100; no acknowledgement, no results",
    language="Ruby",
)

ALL = (
    DRAY, DEFAULTS, EMBEDDED, FLOOR, bare(), CELERY, PREFORK, DRAMATIQ, RQ, ARQ, TASKIQ, SAQ, HUEY, STREAQ,
    PYDOCKET, BULLMQ, SIDEKIQ,
)  # fmt: skip
OURS = ("dray", "dray, no settings", "dray, embedded", "bare command", "bare loop")
"""All others are peers."""


def stub(name: str, program: Path) -> Subject:
    """A program of the tests, which is its own driver and worker."""
    drive, work = ((sys.executable, str(program), part) for part in ("drive", "work"))
    return Subject(
        name,
        "",
        drive,
        (Group(EVERYTHING, (work,)),),
        _paces(1000, 1000, 1000),
        "",
        redis=False,
        has_plain=False,
    )
