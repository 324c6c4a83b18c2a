"""`app.guarantees`: what the broker promises at present, and signs that it did not keep it."""

from __future__ import annotations

import asyncio
from importlib import import_module

import msgspec

from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.documents.data_loss import read_store_identity
from dray.documents.repair_log import Repairs, read_repairs
from dray.documents.worker_registry import SKEWED, WorkerInfo, read_workers
from dray.errors import DrayError
from dray.passwords import hide_password
from dray.settings import Settings


class ServerPromise(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the broker; None where it does not say."""

    address: str
    kind: str
    version: str
    role: str | None = None
    appendonly: bool | None = None
    snapshots: bool | None = None
    eviction: str | None = None
    trouble: str = ""


class WorkerPromise(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's part: its version, and the clock of its machine."""

    id: str
    version: str
    leader: bool
    skew: float
    """Seconds by which its clock is ahead of the broker's."""


class GuaranteesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force now."""

    broker: str
    place: str
    """Its URL, without a password."""
    durability: str
    survives_restart: bool | None
    """Accepted jobs survive a restart of the broker; None: not known."""
    survives_power_cut: bool | None
    """They survive a power cut, up to the last one that was acknowledged."""
    sentence: str
    since: int | None
    """When its data began: milliseconds since the epoch."""
    losses: int
    """How often workers found that all data was gone."""
    repairs: Repairs
    servers: tuple[ServerPromise, ...] = ()
    workers: tuple[WorkerPromise, ...] = ()
    warnings: tuple[str, ...] = ()


class Guarantees(AppApi):
    """`app.guarantees`: durability in force, repairs, losses, clocks."""

    async def _read(self, link: Link) -> GuaranteesInfo:
        """What is promised now: `dray doctor` checks more, and says what to do."""
        settings = self._app.settings
        servers, workers = await _servers(settings), await read_workers(link.broker)
        restart, power, sentence = _durability(settings, servers)
        identity = await read_store_identity(link.broker)
        return GuaranteesInfo(
            broker=settings.broker_url.partition(":")[0],
            place=hide_password(settings.broker_url),
            durability=settings.durability,
            survives_restart=restart,
            survives_power_cut=power,
            sentence=sentence,
            since=None if identity is None else identity.at,
            losses=0 if identity is None else identity.losses,
            repairs=await read_repairs(link.broker),
            servers=servers,
            workers=tuple(_worker(worker) for worker in workers),
            warnings=(*_server_warnings(servers), *_worker_warnings(workers)),
        )

    read, aread = sync_and_async(_read)


async def _servers(settings: Settings) -> tuple[ServerPromise, ...]:
    if settings.broker_url.startswith(("memory:", "sqlite:")):
        return ()
    try:  # it blocks, so that it gets a thread
        read_facts = import_module("dray.broker.redis.server").read_facts
        found = await asyncio.to_thread(lambda: asyncio.run(read_facts(settings.broker_url)))
    except (DrayError, OSError):
        return ()
    return tuple(
        ServerPromise(
            address=one.address,
            kind=one.kind,
            version=one.version,
            role=one.role,
            appendonly=one.appendonly,
            snapshots=one.snapshots,
            eviction=one.policy,
            trouble=one.trouble,
        )
        for one in found
    )


def _durability(
    settings: Settings, servers: tuple[ServerPromise, ...]
) -> tuple[bool | None, bool | None, str]:
    if settings.broker_url.startswith("memory:"):
        return False, False, "Jobs live in one process and end with it."
    if settings.broker_url.startswith("sqlite:"):
        if settings.durability == "full" or "synchronous=full" in settings.broker_url:
            return True, True, "Every accepted job is on disk before it is acknowledged."
        return True, False, "Jobs survive every crash of a process; a power cut may lose the last moments."
    if not servers:
        return None, None, "The server does not say whether it keeps jobs on disk."
    if all(one.appendonly for one in servers):
        return True, None, "The server logs every write (appendonly): accepted jobs survive its restart."
    if any(one.appendonly is None for one in servers):
        return None, None, "The server does not say whether it keeps jobs on disk."
    return False, False, "The server does not log its writes (appendonly no): a restart loses accepted jobs."


def _server_warnings(servers: tuple[ServerPromise, ...]) -> list[str]:
    found = []
    for one in servers:
        if one.appendonly is False:
            found.append(f"{one.address}: appendonly is off, so that a restart loses accepted jobs")
        if one.eviction not in (None, "noeviction"):
            found.append(
                f"{one.address}: eviction policy {one.eviction} throws jobs away when memory is full"
            )
        if one.trouble:
            found.append(f"{one.address}: {one.trouble}")
    return found


def _worker_warnings(workers: list[WorkerInfo]) -> list[str]:
    found = [
        f"the clock of {worker.host} ({worker.id}) is {worker.skew / 1000:+.1f} s off the broker's"
        for worker in workers
        if abs(worker.skew) > SKEWED
    ]
    if workers and not any(worker.leader for worker in workers):
        found.append("no worker leads: schedules and recovery wait for one")
    if len({worker.version for worker in workers}) > 1:
        found.append("workers run different versions of dray")
    return found


def _worker(worker: WorkerInfo) -> WorkerPromise:
    return WorkerPromise(id=worker.id, version=worker.version, leader=worker.leader, skew=worker.skew / 1000)
