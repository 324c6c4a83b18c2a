"""`app.history`: search what happened, statistics over time, errors by fingerprint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.duration import parse_duration
from dray.errors import HistoryOff, InvalidInput, JobNotFound
from dray.history.broker_view import ErrorList, HistoryStats, errors_of_broker, stats_of_broker
from dray.history.database import HistoryThread, open_database
from dray.history.language import parse
from dray.history.search import (
    HistoryPage,
    JobHistory,
    Scope,
    job_history,
    job_without_values,
    search,
    without_values,
)
from dray.history.store import Store
from dray.history.summary import read_error_groups, read_stats
from dray.job import check_word
from dray.options import Duration

if TYPE_CHECKING:
    from dray.app import App

T = TypeVar("T")
LIMIT_MAX = 1000


class History(AppApi):
    """`app.history`: what happened to jobs, as the database of `history_url` records it.

    Without that setting `search` and `job` raise `HistoryOff`; `stats` and `errors` answer from what the
    broker keeps, and say so in `source` and `note`.
    """

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._thread: HistoryThread[Store] | None = None

    async def _search(
        self,
        link: Link,
        q: str = "",
        *,
        limit: int = 50,
        cursor: str | None = None,
        queues: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        values: bool = True,
    ) -> HistoryPage:
        """Jobs that match, the newest change first: `search('task:email.* state:dead after:1d')`.

        `queues` and `tasks` are the only ones that are looked at, whatever the text says. `values=False`
        leaves out arguments, results and texts of errors, and refuses searches in them.
        """
        terms, scope = parse(q, self._app.now()), _scope(queues, tasks)
        _check_limit(limit)
        if not values and (terms.words or terms.args or terms.errors):
            raise InvalidInput("q", q, "words, error: and arg. look into values, which are hidden here")
        page = await self._ask(link, lambda store: search(store, terms, scope, limit, cursor))
        if not values:
            page[:] = map(job_without_values, page)
        return page

    async def _job(self, link: Link, id: str, *, values: bool = True) -> JobHistory:
        """Everything that is recorded of one id: the job, its attempts and its events."""
        check_word("id", id)
        found: JobHistory = await self._ask(link, lambda store: job_history(store, id))
        if not found.jobs and not found.events:
            raise JobNotFound(id, f"the history knows no job {id}")
        return found if values else without_values(found)

    async def _stats(
        self,
        link: Link,
        window: Duration = "24h",
        *,
        queues: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
    ) -> HistoryStats:
        """Runs that ended within the window, over time and by task."""
        length, scope = parse_duration("window", window), _scope(queues, tasks)
        if not length:
            raise InvalidInput("window", window, "a length of time like 1h, 24h or 7d is allowed")
        if self._app.settings.history_url is None:
            return await stats_of_broker(link.broker, scope)
        now = self._app.now()
        return await self._ask(link, lambda store: read_stats(store, scope, now, length))

    async def _errors(
        self,
        link: Link,
        window: Duration = "7d",
        *,
        limit: int = 100,
        queues: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        values: bool = True,
    ) -> ErrorList:
        """Errors by fingerprint that were seen within the window, the last one first.

        `values=False` leaves out their messages.
        """
        now, scope = self._app.now(), _scope(queues, tasks)
        since = now - parse_duration("window", window)
        _check_limit(limit)
        if self._app.settings.history_url is None:
            found = await errors_of_broker(link.broker, scope, since, now, limit)
        else:
            found = await self._ask(link, lambda store: read_error_groups(store, scope, since, now, limit))
        if not values:
            found[:] = [msgspec.structs.replace(group, message="") for group in found]
        return found

    search, asearch = sync_and_async(_search)
    job, ajob = sync_and_async(_job)
    stats, astats = sync_and_async(_stats)
    errors, aerrors = sync_and_async(_errors)

    def close(self) -> None:
        """Close the connection to the database; the next call opens a new one."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def _ask(self, link: Link, work: Callable[[Store], T]) -> T:
        url = self._app.settings.history_url
        if url is None:
            raise HistoryOff
        if self._thread is None or self._thread.process != os.getpid():
            self._thread = open_thread(url, self._app.settings.namespace)
        if link.blocking:
            answer: T = self._thread.submit(work).result()
            return answer
        return await self._thread.run(work)  # type: ignore[no-any-return]


def open_thread(url: str, namespace: str) -> HistoryThread[Store]:
    """A thread for the history of a namespace; nothing is opened yet."""
    return HistoryThread(lambda: Store(open_database(url), namespace), _close)


def _close(store: Store) -> None:
    store.database.close()


def _scope(queues: Iterable[str] | None, tasks: Iterable[str] | None) -> Scope:
    return Scope(*(None if names is None else frozenset(names) for names in (queues, tasks)))


def _check_limit(limit: Any) -> None:
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput("limit", limit, f"a number from 1 to {LIMIT_MAX} is allowed")
