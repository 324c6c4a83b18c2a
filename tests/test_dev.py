"""`dray init` and `dray dev`: from an empty folder to a running system, and back to nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from dashboard_site import until


def dray(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dray", *words],
        cwd=folder,
        env=clean(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def clean() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}


def processes(mark: str) -> list[int]:
    """Processes that inherited this mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes() and entry.name != str(os.getpid()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_an_empty_folder_becomes_a_running_system_with_a_dashboard(tmp_path: Path) -> None:
    said = dray(tmp_path, "init")
    assert (said.returncode, said.stdout.splitlines()[0]) == (0, "wrote app.py, test_app.py, dray.toml")
    mark = f"DEV_OF_TEST={tmp_path}"
    log = tmp_path / "log"
    with log.open("w") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "dray", "dev", "--http", "127.0.0.1:0"],
            cwd=tmp_path,
            env=clean() | {"DEV_OF_TEST": str(tmp_path)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        found = until(lambda: re.findall(r"dashboard: (http://\S+)", log.read_text()), say=log.read_text)
        assert "dray" in httpx.get(found[0]).text
        until(lambda: "send_email email:" in log.read_text(), say=log.read_text)
        page = tmp_path / "app.py"
        page.write_text(page.read_text() + "\n\n@app.task\ndef added() -> int:\n    return 1\n")
        until(lambda: len(re.findall("dashboard: ", log.read_text())) > 1, say=log.read_text)
        address = re.findall(r"dashboard: (http://\S+)", log.read_text())[-1]
        made = httpx.post(f"{address}/api/jobs", json={"task": "added"})
        assert made.status_code == 201, made.text
        until(lambda: f"added {made.json()['id']} succeeded" in log.read_text(), say=log.read_text)
        page.write_text(page.read_text() + "\nthis is not Python\n")
        until(lambda: log.read_text().count("starts anew") > 1, say=log.read_text)
        page.write_text(page.read_text().replace("\nthis is not Python\n", "\n"))
        until(lambda: len(re.findall("dashboard: ", log.read_text())) > 2, say=log.read_text)
    finally:
        running.send_signal(signal.SIGINT)
        code = running.wait(60)
    assert code == 0, log.read_text()
    assert processes(mark) == []


def test_init_overwrites_nothing_and_its_test_passes(tmp_path: Path) -> None:
    assert dray(tmp_path, "init", "starter").returncode == 0
    (tmp_path / "starter" / "app.py").write_text("mine = 1\n")
    refused = dray(tmp_path / "starter", "init")
    assert refused.returncode == 1
    assert "exists already" in refused.stderr
    assert (tmp_path / "starter" / "app.py").read_text() == "mine = 1\n"
    assert dray(tmp_path, "init", "other").returncode == 0
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "other",
        env=clean(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize(
    ("settings", "reason"),
    [('app = "nothing:app"\n', "nothing"), ('app = "app:app"\nbroker_url = "memory://"\n', "memory://")],
)
def test_dev_says_what_is_wrong(tmp_path: Path, settings: str, reason: str) -> None:
    dray(tmp_path, "init")
    (tmp_path / "dray.toml").write_text(settings)
    said = dray(tmp_path, "dev", "--http", "127.0.0.1:0")
    assert said.returncode != 0
    assert reason in said.stderr


def test_dev_ends_when_the_address_is_taken(tmp_path: Path) -> None:
    dray(tmp_path, "init")
    said = dray(tmp_path, "dev", "--http", "192.0.2.1:9")
    assert said.returncode == 1
    assert "everything stops" in said.stderr
    assert "192.0.2.1" in said.stdout
