"""The example project of Django, with real workers, and the backend's rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from redis_server import running

ROOT = Path(__file__).parent.parent
PLACE = """
import json
from django.db import transaction
from orders.models import Order
from orders.tasks import confirm, count

with transaction.atomic():
    order = Order.objects.create(email="ann@x.org")
    kept = confirm.enqueue(order.pk)
try:
    with transaction.atomic():
        undone = confirm.enqueue(Order.objects.create(email="bob@x.org").pk)
        raise KeyError("no stock")
except KeyError:
    pass
counted, failing = count.using(priority=-50).enqueue(10), confirm.enqueue(999)
print(json.dumps([kept.id, undone.id, counted.id, failing.id]))
"""
LOOK = """
import json, sys
from django.utils import timezone
from orders.tasks import confirm, count
from dray.contrib.django.framework import TaskResultDoesNotExist, TaskResultStatus

kept, undone, counted, failing = json.loads(IDS)
result = confirm.get_result(kept)
assert result.status == TaskResultStatus.SUCCESSFUL and result.return_value == "mail to ann@x.org", result
assert result.enqueued_at <= result.started_at <= result.finished_at and result.attempts == 1
assert (result.task.queue_name, result.task.priority, result.args) == ("mail", 10, [1])
try:
    confirm.get_result(undone)
    raise SystemExit("the job of a transaction that was rolled back exists")
except TaskResultDoesNotExist:
    pass
result = count.get_result(counted)
assert (result.return_value, result.task.priority) == ({"orders": 1, "attempt": 1}, -50)
result = confirm.get_result(failing)
assert result.status == TaskResultStatus.FAILED and result.attempts == 6, result
assert result.errors[-1].exception_class_path == "orders.models.Order.DoesNotExist"
assert "Order matching query does not exist" in result.errors[-1].traceback
print("all seen")
"""


class Project:
    """A copy of the example, with a database and a broker of its own."""

    def __init__(self, folder: Path, broker: str | None) -> None:
        self.folder = folder / "shop"
        shutil.copytree(ROOT / "examples" / "django-shop", self.folder)
        self.environ = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}
        if broker is not None:
            self.environ["DRAY_BROKER_URL"] = broker
        self.manage("migrate", "-v0")

    def manage(self, *command: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "manage.py", *command],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def shell(self, code: str) -> str:
        return self.manage("shell", "-v0", "-c", code)

    def set(self, old: str, new: str) -> None:
        path = self.folder / "proj" / "settings.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def check_the_shop(project: Project) -> None:
    ids = project.shell(PLACE).strip().splitlines()[-1]
    assert len(json.loads(ids)) == 4
    project.manage("dray", "worker", "--burst", "-p", "1")
    assert "all seen" in project.shell(f"IDS = {ids!r}\n{LOOK}")
    assert "orders.tasks.confirm" in project.manage("dray", "jobs", "ls")


def test_the_project_runs_on_the_embedded_broker(tmp_path: Path) -> None:
    project = Project(tmp_path, None)
    check_the_shop(project)
    assert "OK" in project.manage("test")


def test_the_project_runs_on_redis(tmp_path: Path) -> None:
    with running("valkey", tmp_path) as server:
        check_the_shop(Project(tmp_path, f"redis://127.0.0.1:{server.port}"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"TRANSACTION": "on_commit"',
            '"TRANSACTION": "later"',
            "TRANSACTION is 'later'; allowed: now or on_commit",
        ),
        ('"TRANSACTION"', '"TRANSACTIONS"', "OPTIONS has TRANSACTIONS; allowed: APP, DATABASE, TRANSACTION"),
        ('"proj.jobs:app"', '"proj.jobs:nothing"', "APP 'proj.jobs:nothing' cannot be used"),
        ('"APP": "proj.jobs:app", ', "", 'OPTIONS needs "APP": "proj.jobs:app"'),
        ('"on_commit"', '"on_commit", "DATABASE": "other"', "DATABASE 'other' is not in DATABASES"),
    ],
)
def test_manage_check_names_a_wrong_option(tmp_path: Path, old: str, new: str, said: str) -> None:
    project = Project(tmp_path, None)
    project.set(old, new)
    assert said in project.manage("check", code=1)


def test_manage_check_warns_of_atomic_requests_without_on_commit(tmp_path: Path) -> None:
    project = Project(tmp_path, None)
    project.set('"TRANSACTION": "on_commit"', '"TRANSACTION": "now"')
    project.set('"NAME":', '"ATOMIC_REQUESTS": True, "NAME":')
    assert "dray.W001" in project.manage("check")


def test_an_option_that_dray_refuses_is_an_invalid_task(tmp_path: Path) -> None:
    project = Project(tmp_path, None)
    tasks = project.folder / "orders" / "tasks.py"
    tasks.write_text(tasks.read_text().replace("retries=5", "retries=-1"))
    said = project.manage(
        "shell", "-v0", "-c", "from orders.tasks import confirm; confirm.enqueue(1)", code=1
    )
    assert "InvalidTask" in said
    assert "retries" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_djangos_own_tests_of_tasks_pass_on_sqlite_and_redis(tmp_path: Path) -> None:
    python = _with_django_6(tmp_path)
    with running("valkey", tmp_path) as server:
        for broker in (f"sqlite:///{tmp_path}/suite.db", f"redis://127.0.0.1:{server.port}"):
            done = subprocess.run(
                [python, str(ROOT / "tests/django_suite/run_suite.py"), str(tmp_path / "tests")],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "DRAY_BROKER_URL": broker},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "64 passed, 0 failed" in done.stdout


def _with_django_6(folder: Path) -> Path:
    """A Python with Django 6, and `tests` of its source distribution beside it."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([newer_python(), "-m", "venv", folder / "venv"], check=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    needed = ["click", "cronsim", "msgspec", "rich", "uuid-utils", "hiredis", "setuptools", "wheel"]
    pinned = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", *pinned, "Django", *needed], check=True)
    source = [
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
        "-d",
        str(folder),
        *pinned,
        "Django",
    ]
    subprocess.run([*pip, "download", *source], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "source", filter="data")
    next((folder / "source").iterdir()).joinpath("tests").rename(folder / "tests")
    return python


def newer_python() -> str:
    """An interpreter that Django 6 runs on."""
    found = [path for minor in (12, 13, 14) if (path := shutil.which(f"python3.{minor}"))]
    found += map(str, sorted(Path(sys.base_prefix).parent.glob("3.1[2-9]*/bin/python")))  # pyenv
    found.insert(0, sys.executable)
    for python in found:
        newer = [python, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 12))"]
        if subprocess.run(newer, capture_output=True).returncode == 0:
            return python
    said = "Django 6 needs Python 3.12 or newer, and none was found: install one as python3.12 or later"
    if os.environ.get("CI"):
        pytest.fail(said)
    pytest.skip(said)


def test_priorities_of_django_keep_their_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRIORITIES], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["9", "5", "0", "True"]


PRIORITIES = """
from django.conf import settings
settings.configure()
from dray.contrib.django.backend import dray_priority
mapped = [dray_priority(priority) for priority in range(-100, 101)]
every = sorted(set(mapped)) == list(range(10))
print(mapped[0], mapped[100], mapped[-1], every and mapped == sorted(mapped)[::-1])
"""
