"""The duty that finishes flows whose client died: it puts the jobs of committed ones, and removes old
drafts."""

from __future__ import annotations

from typing import Final

from dray.broker.verbs import Broker, Doc
from dray.flows.pages import GRAPHS, HEADS, JOBS, delete_pages
from dray.flows.placement import Head, finish, read_jobs, tidy, unpack_head
from dray.worker.retrying_broker import RetryingBroker

EVERY: Final = 2.0
CLIENT: Final = 10_000
"""Milliseconds that a client has to put the jobs itself."""
DRAFT: Final = 3_600_000
"""Milliseconds after which a draft is withdrawn."""


class Placing:
    """Finishes what clients that died had begun."""

    name = "the placing of flows"

    async def step(self, retrying: RetryingBroker) -> float:
        await retrying.ask(place_flows)
        return EVERY


async def place_flows(broker: Broker) -> int:
    """Finish every flow whose client did not; returns how many."""
    now, done = broker.clock(), 0
    for doc in await broker.docs(HEADS):
        head = unpack_head(doc.value)
        age = now - head.written
        if head.state == "committed" and age > CLIENT:
            done += await _place(broker, doc.name, head)
        elif head.state == "draft" and age > DRAFT:
            done += await _withdraw(broker, doc, head)
        elif head.state == "placed":
            done += await _forget(broker, doc.name, head)
    return done


async def _place(broker: Broker, flow: str, head: Head) -> int:
    jobs = await read_jobs(broker, flow, head)
    if jobs is None:  # another leader, or the client, was quicker
        return 0
    await finish(broker, flow, head, jobs)
    return 1


async def _withdraw(broker: Broker, doc: Doc, head: Head) -> int:
    """Remove a draft, unless its client commits it at this moment."""
    reply = await broker.doc(HEADS, doc.name, None, expect_version=doc.version)
    if not reply.written:
        return 0
    await delete_pages(broker, JOBS, doc.name, head.jobs)
    await delete_pages(broker, GRAPHS, doc.name, head.graph)
    return 1


async def _forget(broker: Broker, flow: str, head: Head) -> int:
    """Remove the graph of a flow whose record is gone; and what was left of the jobs' pages."""
    if head.graph:
        if (await broker.get([flow]))[0] is not None:
            return 0
        await delete_pages(broker, GRAPHS, flow, head.graph)
        await broker.doc(HEADS, flow, None)
    else:
        await tidy(broker, flow, head)
    return 1
