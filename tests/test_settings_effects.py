"""Every setting changes something: two values of it make a difference that can be seen from outside.

What shows only in a whole worker or server is seen by the test that is named for it.
"""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis_server import need, running

from dray import App, BrokerAway, DrayError
from dray.broker.verbs import run_blocking
from dray.serve import asgi
from dray.settings.table import TABLE
from dray.worker.duties.duties import duties_of, ignore_event
from dray.worker.retrying_broker import RetryingBroker

TESTS = Path(__file__).parent


def an_app(folder: Path, **settings: Any) -> App:
    settings.setdefault("broker_url", f"sqlite:///{folder}/jobs.db")
    app = App("shop", **settings)

    @app.task
    def echo(value: Any = None) -> Any:
        return value

    @app.task(retries=1)
    def stumble(times: int = 1) -> str:
        tries.append(1)
        if len(tries) <= times:
            raise ValueError("not yet")
        return "done"

    @app.task(retries=0)
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    tries: list[int] = []
    return app


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except DrayError as error:
        return type(error).__name__


def places(folder: Path, **settings: Any) -> list[str]:
    app = an_app(folder, **settings)
    app.enqueue("echo")
    app.close()
    return sorted(path.name for path in folder.glob("*.db"))


def jobs_of_shop(folder: Path, **settings: Any) -> int:
    app, shop = an_app(folder, **settings), an_app(folder)
    app.enqueue("echo")
    seen = len(shop.jobs.find())
    app.close()
    shop.close()
    return seen


def stored(field: str) -> Callable[..., object]:
    """A field of a job as it is stored."""

    def observe(folder: Path, **settings: Any) -> object:
        app = an_app(folder, **settings)
        job = app.enqueue("echo", {"a": 1})
        (record,) = run_blocking(app.client.thread_link().broker.get([job.id]))
        app.close()
        assert record is not None
        return getattr(record.job, field)

    return observe


def enqueued(value: object) -> Callable[..., object]:
    def observe(folder: Path, **settings: Any) -> object:
        app = an_app(folder, **settings)
        try:
            return outcome(lambda: app.tasks["echo"].enqueue(value).status())
        finally:
            app.close()

    return observe


def pickled(folder: Path, **settings: Any) -> object:
    return outcome(lambda: enqueued(1)(folder, codec="pickle", **settings))


def put_with(folder: Path, **settings: Any) -> object:
    """How carefully the broker is asked to keep a job."""
    app = an_app(folder, **settings)
    app.enqueue("echo")
    link, asked = app.client.thread_link(), []
    put = link.put_checked

    async def spy(jobs: Any, **options: Any) -> Any:
        asked.append(options.get("durability"))
        return await put(jobs, **options)

    link.put_checked = spy
    app.enqueue("echo")
    app.close()
    return asked


def after(task: str, *args: object, wait: str = "0s") -> Callable[..., object]:
    """How a job stands after a while on a clock that is moved."""

    def observe(folder: Path, **settings: Any) -> object:
        app = an_app(folder, **settings)
        with app.testing() as t:
            job = app.enqueue(task, *args)
            t.drain()
            t.advance(wait)
            info = next((info for info in app.jobs.find() if info.id == job.id), None)
            if info is None:
                return "gone"
            error = None if info.error is None else info.error.type
            return info.status, info.result, error, info.attempt

    return observe


def traced(folder: Path, **settings: Any) -> bool:
    return an_app(folder, **settings).tracing is not None


# the worker

SHOP = """
from dray import App
app = App("shop")


@app.task(retries=0)
def boom() -> None:
    raise ValueError("boom")
"""


def burst(look: Callable[[str, str, App], object]) -> Callable[..., object]:
    """What a worker that runs all there is leaves: its log and the jobs."""

    def observe(folder: Path, **settings: Any) -> object:
        (folder / "shop.py").write_text(SHOP)
        url = f"sqlite:///{folder}/jobs.db"
        app = App("shop", broker=url)
        app.task(name="boom")(lambda: None)
        for queue in ("default", "other"):
            app.tasks["boom"].using(queue=queue, retries=0).enqueue()
        env = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}
        env |= {f"DRAY_{name.upper()}": text for name, text in settings.items()}
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1", "--burst"]
        ended = subprocess.run(
            command,
            cwd=folder,
            env=env | {"DRAY_BROKER_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
        )
        seen = look(ended.stdout, ended.stderr, app)
        app.close()
        return seen

    return observe


def sweep_pause(folder: Path, **settings: Any) -> float:
    """In how many seconds the duties of a worker want to sweep again."""
    app = an_app(folder, **settings)

    async def main() -> float:
        broker = await app.connect()
        pause = await duties_of(app.settings, ignore_event)[0].step(RetryingBroker(broker, 1.0))
        await broker.close()
        return pause

    return asyncio.run(main())


def duties(folder: Path, **settings: Any) -> list[str]:
    return [duty.name for duty in duties_of(an_app(folder, **settings).settings)]


# a broker that is a server


def gives_up_connecting(folder: Path, **settings: Any) -> bool:
    """Whether a server that accepts a connection and says nothing is given up in less than five seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        app = an_app(folder, broker_url=f"redis://127.0.0.1:{silent.getsockname()[1]}", **settings)
        began = time.monotonic()
        with pytest.raises(BrokerAway):
            app.jobs.find()
        return time.monotonic() - began < 5


def said_by_a_frozen_server(folder: Path, **settings: Any) -> str:
    need("valkey")
    with running("valkey", folder / "server") as server:
        app = an_app(folder, broker_url=f"redis://127.0.0.1:{server.port}", **settings)
        app.jobs.find()
        server.freeze()
        with pytest.raises(BrokerAway) as caught:
            app.jobs.find()
        server.thaw()
        app.close()
        return str(caught.value).partition("answered within")[2]


def connections(folder: Path, **settings: Any) -> bool:
    """Whether eight threads that call at the same time use more than one connection."""
    need("valkey")
    with running("valkey", folder / "server") as server:
        app = an_app(folder, broker_url=f"redis://127.0.0.1:{server.port}", **settings)
        app.enqueue("echo")
        server.command("CLIENT", "PAUSE", "500", "WRITE")  # all of them are in a call meanwhile
        threads = [threading.Thread(target=app.enqueue, args=("echo", n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = sum(b"addr=127" in line for line in server.command("CLIENT", "LIST").splitlines())
        app.close()
        return used > 1


# the server


def answered(
    method: str, path: str, body: object = None, **headers: str
) -> Callable[..., tuple[int, str | None]]:
    """The status of the last of three requests, and which page of another origin may read it."""

    def observe(folder: Path, **settings: Any) -> tuple[int, str | None]:
        settings.setdefault("api_keys", [KEY])
        app = an_app(folder, **settings)
        app.enqueue("echo")

        async def main() -> tuple[int, str | None]:
            transport = httpx.ASGITransport(app=asgi(app))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                for _ in range(3):
                    reply = await http.request(method, path, json=body, headers=headers | BEARER)
            await (await app.client.loop_link()).broker.close()
            return reply.status_code, reply.headers.get("access-control-allow-origin")

        try:
            return asyncio.run(main())
        finally:
            app.close()

    return observe


JOB = {"task": "echo", "args": ["x" * 2000]}
KEY = "admin+submit+read:a-secret-of-some-length"
BEARER = {"authorization": "Bearer a-secret-of-some-length"}

OBSERVED: dict[str, tuple[Callable[..., object], object, object]] = {
    "broker_url": (places, "sqlite:///{folder}/one.db", "sqlite:///{folder}/other.db"),
    "namespace": (jobs_of_shop, "shop", "other"),
    "retries": (stored("retries"), 1, 5),
    "max_crashes": (stored("max_crashes"), 1, 5),
    "codec": (stored("payload"), "msgpack", "json"),
    "allow_pickle": (pickled, True, False),
    "max_payload": (enqueued("x" * 3000), "1KiB", "1MiB"),
    "durability": (put_with, "normal", "full"),
    "max_result": (after("echo", "x" * 3000), "1KiB", "1MiB"),
    "timeout": (after("sleep", 2.0), "1s", "1m"),
    "backoff": (after("stumble", wait="30s"), "fixed:1s,jitter=0", "fixed:10m,jitter=0"),
    "result_ttl": (after("echo", 1, wait="2h"), "1h", "1d"),
    "error_ttl": (after("stumble", wait="2h"), "1h", "1d"),
    "done_ttl": (after("echo", 1, wait="2h"), "1h", "1d"),
    "dead_ttl": (after("stumble", 9, wait="3h"), "1h", "none"),
    "otel": (traced, True, False),
    "queues": (burst(lambda _out, _err, app: [info.queue for info in app.dead.list()]), "default", "other"),
    "log_level": (burst(lambda out, err, _: "ValueError" in out + err), "critical", "debug"),
    "log_format": (burst(lambda out, err, _: (out + err).startswith("{")), "console", "json"),
    "log_output": (burst(lambda out, err, _: ("ValueError" in out, "ValueError" in err)), "stdout", "stderr"),
    "sweep_interval": (sweep_pause, "1s", "5s"),
    "scheduler": (duties, "on", "off"),
    "history_url": (duties, "sqlite:///{folder}/history.db", "none"),
    "connect_timeout": (gives_up_connecting, "200ms", "5s"),
    "read_timeout": (said_by_a_frozen_server, "200ms", "400ms"),
    "pool_size": (connections, 1, 8),
    "api_keys": (answered("GET", "/api/queues"), [KEY], ["read:another-secret-of-length"]),
    "accept_unknown_tasks": (answered("POST", "/api/jobs", {"task": "unknown"}), True, False),
    "key_rate": (answered("GET", "/api/queues"), "1/m", "none"),
    "max_request_size": (answered("POST", "/api/jobs", JOB), "1KiB", "1MiB"),
    "allowed_hosts": (answered("GET", "/api/queues", host="a.example"), ["a.example"], ["b.example"]),
    "cors_origins": (answered("GET", "/api/queues", origin="https://a.example"), ["https://a.example"], []),
}
"""By setting: what to look at, and two values that make a difference to it."""

SEEN_BY = {
    "imports": "test_loading.py::test_the_setting_imports_names_modules_that_are_imported_as_well",
    "priorities": "test_cli_worker.py::test_only_chosen_tasks_or_priorities_are_taken",
    "tasks": "test_cli_worker.py::test_only_chosen_tasks_or_priorities_are_taken",
    "mode": "test_supervisor.py::test_modes_decide_how_many_executors_there_are",
    "processes": "test_supervisor.py::test_modes_decide_how_many_executors_there_are",
    "concurrency": "test_executor.py::test_waiting_for_another_job_gives_the_slot_back",
    "rate": "test_worker_rate.py::test_all_processes_of_a_worker_keep_to_one_pace",
    "lease": "test_supervisor.py::test_an_executor_whose_session_was_lost_goes_on_under_a_new_name",
    "heartbeat": "test_supervisor.py::test_sessions_are_kept_alive_and_cancellations_passed_on",
    "stall_limit": "test_supervisor.py::test_a_stopped_executor_counts_as_stalled",
    "shutdown_grace": "test_supervisor.py::test_a_second_signal_does_not_wait_for_the_grace",
    "max_jobs_per_process": "test_executor.py::test_it_retires_after_so_many_jobs",
    "max_memory": "test_executor.py::test_it_retires_when_it_uses_too_much_memory",
    "log_file": "test_cli_worker.py::test_the_log_goes_to_a_file_that_may_be_moved_away",
    "http": "test_serve_security.py::test_a_server_that_others_can_reach_does_not_start_without_keys",
    "grpc": "test_grpc_access.py::test_beside_http_an_address_that_was_asked_for_must_be_free",
    "max_requests": "test_serve_admission.py::test_requests_beyond_the_bound_are_shed",
    "max_waiting": "test_serve_faults.py::test_too_many_who_wait_are_sent_away_and_room_is_freed_when_they_leave",  # noqa: E501
    "tls_cert": "test_serve_security.py::test_it_speaks_tls",
    "tls_key": "test_serve_security.py::test_it_speaks_tls",
    "history_payloads": "test_history.py::test_redaction_by_task_and_without_payloads",
    "history_redact": "test_history.py::test_redaction_by_task_and_without_payloads",
    "history_ttl": "test_history.py::test_old_rows_are_deleted_in_bounded_steps_and_not_written_again",
    "history_max_size": "test_history.py::test_a_history_that_is_too_large_loses_its_oldest_jobs",
    "metrics": "test_metrics_live.py::test_what_is_told_is_what_happened_though_a_worker_is_killed",
}
"""By setting: the test that fails if it does nothing."""


def test_every_setting_is_looked_at_once() -> None:
    assert set(OBSERVED) | set(SEEN_BY) == set(TABLE)
    assert len(OBSERVED) + len(SEEN_BY) == len(TABLE)


@pytest.mark.parametrize("name", OBSERVED)
def test_a_setting_makes_a_difference(name: str, tmp_path: Path) -> None:
    observe, one, other = OBSERVED[name]
    seen = []
    for folder, value in ((tmp_path / "one", one), (tmp_path / "other", other)):
        folder.mkdir()
        given = value.format(folder=folder) if isinstance(value, str) else value
        seen.append(observe(folder, **{name: given}))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("name", SEEN_BY)
def test_the_test_that_sees_a_setting_is_there_and_uses_it(name: str) -> None:
    file, _, test = SEEN_BY[name].partition("::")
    text = (TESTS / file).read_text("utf-8")
    assert test in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    forms = (f"{name}=", f'"{name}"', f"--{name.replace('_', '-')}", f"DRAY_{name.upper()}")
    assert any(form in text for form in forms)
