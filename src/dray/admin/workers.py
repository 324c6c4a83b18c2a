"""`app.workers`: list workers, and profile one of their executors."""

from __future__ import annotations

import builtins

from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.documents.profile import SECONDS_MAX, Profile, executor_of, read_profile, request_profile
from dray.documents.worker_registry import WorkerInfo, read_workers
from dray.errors import InvalidInput, WorkerSilent

PROFILE_PATIENCE = 30.0
"""Seconds that a worker may take beyond the time of the profile itself."""


class Workers(AppApi):
    """`app.workers`."""

    async def _list(self, link: Link) -> builtins.list[WorkerInfo]:
        """Every worker that reported within the last two leases."""
        return await read_workers(link.broker)

    async def _profile(
        self, link: Link, worker: str, *, seconds: float = 10.0, executor: int | None = None
    ) -> Profile:
        """Sample the stacks of one executor, by default the busiest, also while its event loop is blocked.
        Raises `WorkerSilent` if the worker does not answer."""
        if not 0 < seconds <= SECONDS_MAX:
            raise InvalidInput("seconds", seconds, f"a number above 0, up to {SECONDS_MAX}, is allowed")
        number = executor_of(await read_workers(link.broker), worker, executor)
        request = await request_profile(link.broker, worker, number, float(seconds))
        deadline = link.time() + seconds + PROFILE_PATIENCE
        while (profile := await read_profile(link.broker, request.name)) is None:
            if link.time() > deadline:
                raise WorkerSilent(
                    f"executor {number} of {worker} did not send its profile: it has ended, hangs in code"
                    " that is not Python's, or is of a version that cannot"
                )
            await link.sleep(0.25)
        return profile

    list, alist = sync_and_async(_list)
    profile, aprofile = sync_and_async(_profile)
