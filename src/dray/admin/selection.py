"""Choosing jobs for bulk changes: by filter or by id, one page per broker call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from dray.broker.actions import Ids, JobAction, Query
from dray.broker.verbs import PAGE_MAX, Broker
from dray.client.link import Link
from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.handle import JobHandle
from dray.info import JobInfo
from dray.job import BANDS, Record, State, check_word, parse_priority
from dray.options import Duration, Priority, read_at

OnProgress = Callable[[int], None]
"""Called after each step of a bulk change with the number of jobs handled so far."""


class JobFilter(TypedDict, total=False):
    """Jobs that match every condition given."""

    state: State | str | None
    queue: str | None
    task: str | None
    tag: str | None
    priority: Priority | None
    """A name means its band: high 0-3, normal 4-6, low 7-9."""
    group: str | None
    key: str | None
    parent: str | None
    since: Duration | datetime | None
    """Created then or later; a duration counts back from now."""


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a bulk change changed, or would change (`dry_run`)."""

    ids: list[str]
    refused: dict[str, str]
    """Jobs that were named but could not be changed, and why."""
    dry_run: bool = False

    def __len__(self) -> int:
        return len(self.ids)


Selection = str | JobHandle[Any] | JobInfo | Iterable[str | JobHandle[Any] | JobInfo]


def read_filter(where: JobFilter, now: int) -> Query:
    """The query of a filter; a wrong value is refused by its name."""
    check_names("filter", where, JobFilter)
    fields: dict[str, Any] = {name: value for name, value in where.items() if value is not None}
    if "state" in fields:
        fields["state"] = read_state(fields["state"])
    priority = fields.pop("priority", None)
    if priority is not None:
        band = BANDS.get(priority) if isinstance(priority, str) else None
        fields["priorities"] = frozenset(band or (parse_priority(priority),))
    since = fields.get("since")
    if since is not None:
        at = isinstance(since, datetime)
        fields["since"] = read_at("since", since) if at else max(0, now - parse_duration("since", since))
    return Query(**fields)


def check_names(field: str, given: Mapping[str, object], allowed: type) -> None:
    """Refuse keywords that the TypedDict `allowed` does not have."""
    unknown = sorted(given.keys() - allowed.__annotations__.keys())
    if unknown:
        raise InvalidInput(field, unknown[0], f"one of {', '.join(allowed.__annotations__)} is allowed")


def read_state(value: object) -> State:
    allowed = [state for state in State if state is not State.NOT_FOUND]
    for state in allowed:
        if state == value:
            return state
    raise InvalidInput("state", value, f"one of {', '.join(allowed)} is allowed")


def ids_of(selection: Selection) -> list[str]:
    """The ids of the selected jobs, each once."""
    if isinstance(selection, str | JobHandle | JobInfo):
        selection = [selection]
    if not isinstance(selection, Iterable):
        raise InvalidInput("selection", selection, "ids, handles or infos of jobs are allowed")
    ids = [one.id if isinstance(one, JobHandle | JobInfo) else check_word("id", one) for one in selection]
    return list(dict.fromkeys(ids))


async def all_records(broker: Broker, query: Query) -> AsyncIterator[Record]:
    cursor = None
    while True:
        page = await broker.find(query, cursor=cursor, limit=PAGE_MAX)
        for record in page.records:
            yield record
        cursor = page.cursor
        if cursor is None:
            return


async def change_selected(
    link: Link,
    selection: Selection | None,
    where: JobFilter,
    action: JobAction,
    dry_run: bool,
    progress: OnProgress | None,
) -> ChangeResult:
    """Change the jobs given, or those that match the filter."""
    query = read_filter(where, link.broker.clock())
    # An empty filter would match every job: refused, because it is surely a mistake.
    if (selection is None) == (query == Query()):
        raise InvalidInput("selection", selection, "give either jobs or a filter such as queue= or state=")
    if selection is not None:
        return await change_ids(link, ids_of(selection), action, dry_run, progress)
    return await change_matching(link, [query], action, dry_run, progress)


async def change_matching(
    link: Link, queries: Sequence[Query], action: JobAction, dry_run: bool, progress: OnProgress | None
) -> ChangeResult:
    ids: list[str] = []
    for query in queries:
        cursor = None
        while True:
            edited = await link.broker.edit(query, action, cursor=cursor, dry_run=dry_run)
            ids += edited.changed
            if progress is not None:
                progress(len(ids))
            cursor = edited.cursor
            if cursor is None:
                break
    return ChangeResult(ids=ids, refused={}, dry_run=dry_run)


async def change_ids(
    link: Link, ids: Sequence[str], action: JobAction, dry_run: bool, progress: OnProgress | None
) -> ChangeResult:
    changed: list[str] = []
    refused: dict[str, str] = {}
    for first in range(0, len(ids), PAGE_MAX):
        batch = tuple(ids[first : first + PAGE_MAX])
        edited = await link.broker.edit(Ids(batch), action, dry_run=dry_run)
        changed += edited.changed
        refused |= dict(edited.refused)
        if progress is not None:
            progress(first + len(batch))
    return ChangeResult(ids=changed, refused=refused, dry_run=dry_run)
