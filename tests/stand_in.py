"""An executor that is none: it speaks the channel, and behaves as a test of the supervisor wants it to.

`python stand_in.py '{"number": 1, "channel": 5, ...}'`. What a job does is in its task's name.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dray.broker import Broker, connect
from dray.broker.verbs import Beat, Filter, run_blocking
from dray.errors import BrokerAway, SessionLost
from dray.job import Outcome, OutcomeKind, Taken
from dray.worker import shared_memory as clock
from dray.worker.channel import (
    Broken,
    FromSupervisor,
    Message,
    Retiring,
    RunCounts,
    SessionLapsed,
    SessionNews,
    Started,
    Stop,
    Stuck,
    frame,
)
from dray.worker.shared_memory import SharedHeartbeat
from dray.worker.supervisor.executor_process import Launch, Plan, SpawnedExecutor

TURN = 0.02


def plan(url: str, folder: Path, behaviour: str = "work", lease: int = 30_000) -> Plan:
    """Start stand-ins of one behaviour; a file `behaviour` in the folder overrides it for later ones."""

    def launch(number: int, channel: int, pulse: int, stacks: int) -> SpawnedExecutor:
        override = folder / "behaviour"
        given = {
            "behaviour": override.read_text() if override.exists() else behaviour,
            "folder": str(folder),
            "url": url,
            "lease": lease,
            "number": number,
            "channel": channel,
            "pulse": pulse,
            "stacks": stacks,
        }
        command = [sys.executable, __file__, json.dumps(given)]
        return SpawnedExecutor(Launch(command), (channel, pulse, stacks))

    return launch


def append(folder: str, name: str, line: str) -> None:
    handle = os.open(Path(folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


class StandIn:
    def __init__(self, given: dict[str, Any]) -> None:
        self.behaviour: str = given["behaviour"]
        self.folder: str = given["folder"]
        self.number: int = given["number"]
        self.lease: int = given["lease"]
        self.openings = 0
        self.request = 0
        self.held: list[Taken] = []
        self.told: list[SessionNews] = []
        self.succeeded = 0
        self.quota = 1_000_000
        self.pulse = SharedHeartbeat(given["pulse"])
        self.channel = socket.socket(fileno=given["channel"])
        self.channel.setblocking(False)
        self.received = bytearray()
        self.decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(FromSupervisor).decode
        self.stop: Stop | None = None
        self.stop_at = 0.0
        faulthandler.register(signal.SIGUSR1, file=given["stacks"], all_threads=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        append(self.folder, "born", f"{self.number} {os.getpid()}")
        self.url: str = given["url"]

    def begin(self) -> None:
        match self.behaviour:
            case "die":
                os._exit(7)
            case "broken":
                self.say(Broken("no module named shop"))
                os._exit(1)
            case "silent":
                time.sleep(3600)
        self.broker: Broker = run_blocking(connect(self.url, blocking=True))
        self.open()

    def open(self) -> None:
        self.openings += 1
        self.session = f"stand-in-{os.getpid()}/{self.number}.{self.openings}"
        (heard,) = run_blocking(self.broker.renew([Beat(self.session, self.lease)]))
        tasks = {
            name: (function.__code__.co_filename, function.__code__.co_firstlineno)
            for name, function in TASKS.items()
        }
        self.say(Started(self.session, heard.epoch, tasks))

    def say(self, message: Message) -> None:
        self.channel.setblocking(True)
        self.channel.sendall(frame(message))
        self.channel.setblocking(False)

    def hear(self) -> None:
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        self.received += data
        while len(self.received) >= 4:
            end = 4 + int.from_bytes(self.received[:4], "big")
            if len(self.received) < end:
                return
            self.obey(self.decode(bytes(self.received[4:end])))
            del self.received[:end]

    def obey(self, message: Message) -> None:
        append(self.folder, "heard", f"{self.number} {type(message).__name__}")
        match message:
            case Stop():
                self.stop, self.stop_at = message, time.monotonic() + message.grace / 1000
            case SessionLapsed():
                self.held.clear()
                self.open()
            case SessionNews():
                self.told.append(message)

    def turn(self) -> None:
        self.pulse.write("beat", clock.now())
        self.hear()
        if self.stop is None and len(self.held) < 4:
            self.take()
        for taken in self.held[:]:
            TASKS[taken.job.task](self, taken)
        self.pulse.write("running", len(self.held))
        self.say(RunCounts(self.succeeded, 0, len(self.held)))
        if self.succeeded >= self.quota and self.stop is None:
            self.say(Retiring("quota"))
            self.stop, self.stop_at = Stop(0), time.monotonic() + 3600
        done = not self.held or time.monotonic() >= self.stop_at
        if self.stop is not None and self.behaviour != "stubborn" and done:
            os._exit(0)

    def take(self) -> None:
        self.request += 1
        try:
            self.held += run_blocking(
                self.broker.take(self.session, self.request, ["default"], Filter(), 4 - len(self.held))
            )
        except (SessionLost, BrokerAway):
            return
        self.pulse.write("tried", clock.now())

    def settle(self, taken: Taken, kind: OutcomeKind) -> None:
        run_blocking(self.broker.settle(self.session, [Outcome(id=taken.job.id, run=taken.run, kind=kind)]))
        self.held.remove(taken)
        self.succeeded += 1


def begun(executor: StandIn, taken: Taken) -> bool:
    """Whether this is the first time here; logs it then."""
    key = f"{taken.job.id} {taken.run}"
    if key in SEEN:
        return False
    SEEN.add(key)
    append(executor.folder, "runs", f"{taken.job.id} {taken.run} {int(taken.suspect > 0)} {time.time()}")
    return True


SEEN: set[str] = set()


def ok(executor: StandIn, taken: Taken) -> None:
    begun(executor, taken)
    executor.settle(taken, OutcomeKind.SUCCEEDED)


def retire(executor: StandIn, taken: Taken) -> None:
    begun(executor, taken)
    executor.quota = 0
    executor.settle(taken, OutcomeKind.SUCCEEDED)


def hold(executor: StandIn, taken: Taken) -> None:
    """Runs until a file `let go` is there, or for ever."""
    begun(executor, taken)
    if Path(executor.folder, "let go").exists():
        executor.settle(taken, OutcomeKind.SUCCEEDED)


def leave(executor: StandIn, taken: Taken) -> None:
    """Takes the process with it the first time."""
    begun(executor, taken)
    if not taken.suspect:
        os._exit(3)
    executor.settle(taken, OutcomeKind.SUCCEEDED)


def hang(executor: StandIn, taken: Taken) -> None:
    """Blocks the loop, past its deadline, the first time."""
    begun(executor, taken)
    if taken.suspect:
        executor.settle(taken, OutcomeKind.SUCCEEDED)
        return
    executor.pulse.write("deadline", clock.now() + 200_000_000)
    nap_of_an_hour()


def nap_of_an_hour() -> None:
    time.sleep(3600)


def stuck(executor: StandIn, taken: Taken) -> None:
    """As if a thread of this job could not be stopped."""
    if begun(executor, taken):
        dead = Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.DEAD, reason="timed out")
        executor.say(Stuck([dead]))


TASKS: dict[str, Callable[[StandIn, Taken], None]] = {
    "ok": ok,
    "retire": retire,
    "hold": hold,
    "leave": leave,
    "hang": hang,
    "stuck": stuck,
}


def main() -> None:
    executor = StandIn(json.loads(sys.argv[1]))
    executor.begin()
    while True:
        executor.turn()
        time.sleep(TURN)


if __name__ == "__main__":
    main()
