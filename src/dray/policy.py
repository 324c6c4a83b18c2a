"""Rates, backoff and retention as values, and the check of every job that is put.

Nothing here does I/O or reads a clock. Lengths of time are whole milliseconds, as in `dray.job`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, get_args

import msgspec

from dray.duration import (
    DAY,
    HOUR,
    MAX_DURATION,
    MINUTE,
    PLAIN_NUMBER,
    SECOND,
    format_duration,
    parse_duration,
)
from dray.errors import InvalidInput
from dray.job import NAME, Job, OnDuplicate, Orphan, Overflow, check_name, check_word, queue_of

MAX_TIME: Final = 2**52

_PERIODS: Final = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_PERIOD_NAMES: Final = {period: name for name, period in _PERIODS.items()}
_RATE = re.compile(r"([0-9]{1,15})/([smhd])(?:\+([0-9]{1,15}))?")
_RATE_FORMS = "a whole number per s, m, h or d like 100/m, with a burst like 100/m+20, is allowed"
_MAX_PER_SECOND: Final = 1_000_000
_MAX_BURST_SPAN: Final = 366 * DAY * 1000
_CLOCK_SLACK = 60_000_000
"""Microseconds a clock may go back before rates are counted afresh."""


class Rate(msgspec.Struct, frozen=True):
    """A number of starts per period, and how many of them may come at once.

    The limit is the generic cell rate algorithm on one number, the *tat*: the time, in microseconds, at which
    all starts so far would be paid for. Each start adds one `interval`; a start is allowed while the tat is
    less than `burst` intervals ahead. The interval is rounded up, so that no window of any length ever sees
    more than rate × window + burst starts.

    A tat more than a minute further ahead than starts could bring it comes from a clock that went back or a
    limit that was raised, and is ignored.

    Clocks tick in milliseconds, so a rate above 1000/s needs a burst of several to be reached: the default is
    a tenth of a second's worth, at least 1.
    """

    count: int
    period: int
    """Milliseconds: one of a second, a minute, an hour, a day."""
    burst: int

    def __post_init__(self) -> None:
        shown = f"{self.count}/{_PERIOD_NAMES.get(self.period, self.period)}+{self.burst}"
        if self.count < 1 or self.burst < 1 or self.period not in _PERIOD_NAMES:
            raise InvalidInput("rate", shown, _RATE_FORMS)
        if self.count * SECOND > _MAX_PER_SECOND * self.period:
            raise InvalidInput("rate", shown, "at most 1000000/s is allowed")
        if self.burst * self.interval > _MAX_BURST_SPAN:
            raise InvalidInput("rate", shown, "a burst of at most a year's worth is allowed")

    @staticmethod
    def parse(text: str) -> Rate:
        """`"100/m"` or, with a burst, `"100/m+20"`. The same text gives the same object.

        >>> Rate.parse("1000/s").burst
        100
        """
        if not isinstance(text, str):
            raise InvalidInput("rate", text, _RATE_FORMS)
        return _parse_rate(text)

    def __str__(self) -> str:
        text = f"{self.count}/{_PERIOD_NAMES[self.period]}"
        return text if self.burst == _default_burst(self.count, self.period) else f"{text}+{self.burst}"

    @property
    def interval(self) -> int:
        """Microseconds that one start costs."""
        return -(-self.period * 1000 // self.count)

    def available(self, tat: int, now_ms: int) -> int:
        """The number of starts allowed now. After a clock went back it is smaller, never larger."""
        now = now_ms * 1000
        interval = self.interval
        return max(0, (now + self.burst * interval - self._credible(tat, now)) // interval)

    def spend(self, tat: int, now_ms: int, n: int = 1) -> int:
        """The tat after `n` starts now. Ask `available` first: this does not refuse."""
        return self._credible(tat, now_ms * 1000) + n * self.interval

    def free_at(self, tat: int, now_ms: int) -> int:
        """The first millisecond, from now on, at which at least one may start."""
        tat = self._credible(tat, now_ms * 1000)
        return max(now_ms, -(((self.burst - 1) * self.interval - tat) // 1000))

    def _credible(self, tat: int, now: int) -> int:
        return now if tat < now or tat > now + self.burst * self.interval + _CLOCK_SLACK else tat


def _default_burst(count: int, period: int) -> int:
    return max(1, count * 100 // period)


@lru_cache(maxsize=1024)
def _parse_rate(text: str) -> Rate:
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput("rate", text, _RATE_FORMS)
    count, period = int(match[1]), _PERIODS[match[2]]
    return Rate(count, period, _default_burst(count, period) if match[3] is None else int(match[3]))


BackoffKind = Literal["exponential", "linear", "fixed"]
_BACKOFF_FORMS = (
    "exponential, linear or fixed is allowed, with options like exponential:3,cap=2m,jitter=0 or linear:10s"
)
_MAX_BASE: Final = MAX_DURATION / 1000


class Backoff(msgspec.Struct, frozen=True):
    """The wait before the next attempt, after attempt n = 1, 2, 3 … has failed.

    | kind | seconds | with the default base of 2 |
    |---|---|---|
    | exponential | base ** n | 2, 4, 8, 16 … |
    | linear | base × n | 2, 4, 6, 8 … |
    | fixed | base | 2, 2, 2, 2 … |

    Text form: the kind, then `:` and options separated by commas: `base=` (or just the base, if it comes
    first), `cap=` and `jitter=`. The base of an exponential backoff is a number from 1; the other bases and
    the cap are durations. `"exponential"`, `"exponential:3,cap=2m,jitter=0"`, `"linear:10s"`, `"fixed:5s"`.
    """

    kind: BackoffKind = "exponential"
    base: float = 2.0
    cap: int = 600 * SECOND
    """Milliseconds; never exceeded, jitter included."""
    jitter: float = 0.1
    """The share by which a delay varies at random, so that jobs do not come back together."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(BackoffKind):
            raise InvalidInput("backoff", self.kind, _BACKOFF_FORMS)
        least = 1.0 if self.kind == "exponential" else 0.0
        # Between 0 and 1 ms the text form would need exponents; no timer is that fine.
        if not (least <= self.base <= _MAX_BASE) or 0 < self.base < 0.001:
            raise InvalidInput("backoff", self.base, f"a base of {least:g} or more (from 1 ms) is allowed")
        if not 0 <= self.cap <= MAX_DURATION:
            raise InvalidInput("backoff", self.cap, "a cap from 0 to 100 years is allowed")
        if not 0 <= self.jitter <= 1 or 0 < self.jitter < 0.001:
            raise InvalidInput("backoff", self.jitter, "a jitter of 0, or from 0.001 to 1, is allowed")

    @staticmethod
    def parse(text: str) -> Backoff:
        """The value of a text form. The same text gives the same object."""
        if not isinstance(text, str):
            raise InvalidInput("backoff", text, _BACKOFF_FORMS)
        return _parse_backoff(text)

    def __str__(self) -> str:
        options = []
        if self.base != 2:
            options.append(_plain(self.base))
        if self.cap != 600 * SECOND:
            options.append(f"cap={format_duration(self.cap)}")
        if self.jitter != 0.1:
            options.append(f"jitter={_plain(self.jitter)}")
        return f"{self.kind}:{','.join(options)}" if options else self.kind

    def delay(self, attempt: int, random: Callable[[], float]) -> int:
        """Milliseconds to wait after `attempt` (from 1) has failed; `random` gives numbers from 0 to 1."""
        length = min(self._seconds(attempt) * 1000, self.cap)
        length *= 1 + self.jitter * (2 * random() - 1)
        # Folded back rather than cut off at the cap, or half of the jobs there would come back together.
        return round(length if length <= self.cap else 2 * self.cap - length)

    def _seconds(self, attempt: int) -> float:
        if self.kind == "fixed":
            return self.base
        try:
            return self.base**attempt if self.kind == "exponential" else self.base * attempt
        except OverflowError:
            return math.inf


def _plain(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


@lru_cache(maxsize=1024)
def _parse_backoff(text: str) -> Backoff:
    kind, colon, rest = text.strip().partition(":")
    options: dict[str, str] = {}
    for place, option in enumerate(rest.split(",") if colon else ()):
        name, equals, value = option.strip().partition("=")
        if not equals and place == 0:
            name, value = "base", name
        if name not in ("base", "cap", "jitter") or name in options or not value:
            raise InvalidInput("backoff", text, _BACKOFF_FORMS)
        options[name] = value
    number = PLAIN_NUMBER.fullmatch
    base, jitter = options.get("base", "2"), options.get("jitter", "0.1")
    if not number(jitter) or (kind == "exponential" and not number(base)):
        raise InvalidInput("backoff", text, _BACKOFF_FORMS)
    return Backoff(
        kind=kind,  # type: ignore[arg-type]  # __post_init__ checks it
        base=float(base) if number(base) else parse_duration("backoff", base) / 1000,
        cap=parse_duration("backoff", options.get("cap", "600")),
        jitter=float(jitter),
    )


BackoffFunction = Callable[[int, BaseException], float]


def retry_delay(
    backoff: Backoff | BackoffFunction, attempt: int, error: BaseException, random: Callable[[], float]
) -> int:
    """Milliseconds until the next attempt. A function returns seconds, which are used unchanged."""
    if isinstance(backoff, Backoff):
        return backoff.delay(attempt, random)
    answer = backoff(attempt, error)
    try:
        return parse_duration("backoff", answer)
    except InvalidInput as wrong:
        name = getattr(backoff, "__qualname__", repr(backoff))
        raise InvalidInput("backoff", answer, f"{name} returned no delay: {wrong.allowed}") from None


class Retention(msgspec.Struct, frozen=True):
    """How long finished jobs are kept, in milliseconds; None: until purged."""

    result_ttl: int = HOUR
    """0 turns results off."""
    error_ttl: int = DAY
    done_ttl: int = DAY
    dead_ttl: int | None = None


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and connections of a broker; options in its URL win."""

    connect_timeout: int = 5_000
    """Milliseconds until a server that cannot be reached counts as away."""
    read_timeout: int = 10_000
    """Milliseconds until a call that is not answered fails."""
    pool_size: int = 10
    """Connections that threads of one process share, to each server."""


_ON_DUPLICATE: Final = frozenset(get_args(OnDuplicate))
_OVERFLOW: Final = frozenset(get_args(Overflow))
_ORPHAN: Final = frozenset(get_args(Orphan))
_MANY: Final = 1_000_000_000
WAITS_MAX: Final = 100_000
"""Jobs that one job can wait for."""


def check_job(job: Job) -> None:
    """Refuse a job with any wrong value, by the name of its field, before it reaches a broker.

    It runs for every job that is put: each field at its default costs one comparison.
    """
    _check_identity(job)
    _check_lengths(job)
    _check_rules(job)
    if job.waits_for != ():
        _check_waits(job)
    if job.tags != ():
        _check_words("tags", job.tags, at_most=100)
    if job.description != "":
        check_description(job.description)
    if job.headers or type(job.headers) is not dict:
        check_headers(job.headers)
    if job.owner is not None or job.node != "":
        _check_owner(job)


def _check_owner(job: Job) -> None:
    check_word("owner", job.owner)
    if job.owner == job.id:
        raise InvalidInput("owner", job.owner, "a job cannot own itself")
    if job.node != "":
        check_word("node", job.node)
        if job.on_duplicate == "replace":
            raise InvalidInput("on_duplicate", job.on_duplicate, "a node of a flow cannot replace a job")


def _check_identity(job: Job) -> None:
    queue, task, job_id = job.queue, job.task, job.id
    if type(queue) is not str or not _is_name(queue):
        check_name("queue", queue)
    if type(task) is not str or not _is_name(task):
        check_name("task", task)
    check_word("id", job_id)
    # Only an id that ends in `:` and 32 characters can name a queue, and mostly it names the right one.
    if job_id[-33:-32] == ":" and job_id[:-33] != queue and queue_of(job_id) is not None:
        raise InvalidInput("id", job_id, f"an id of this form names its queue, which is {queue!r}")
    if type(job.payload) is not bytes:
        raise InvalidInput("payload", job.payload, "bytes are allowed")
    if job.key is not None:
        check_word("key", job.key)
    if job.group is not None:
        check_word("group", job.group)
    if job.rate_key is not None:
        check_word("rate_key", job.rate_key)
    if job.running_key is not None:
        check_word("running_key", job.running_key)
    if job.parent is not None:
        check_word("parent", job.parent)


@lru_cache(maxsize=4096)
def _is_name(value: str) -> bool:
    return NAME.fullmatch(value) is not None


def _check_lengths(job: Job) -> None:
    if job.created != 0 or type(job.created) is not int:
        _whole("created", job.created, 0, MAX_TIME)
    if job.due is not None:
        _whole("due", job.due, 0, MAX_TIME)
    if job.ttl is not None:
        _whole("ttl", job.ttl, 1, MAX_DURATION)
    if job.deadline is not None:
        _whole("deadline", job.deadline, 1, MAX_DURATION)
    if job.once is not None:
        _whole("once", job.once, 1, MAX_DURATION)
    if job.timeout is not None:
        _whole("timeout", job.timeout, 1, MAX_DURATION)
    if job.result_ttl is not None:
        _whole("result_ttl", job.result_ttl, 0, MAX_DURATION)
    if job.key_ttl is not None:
        _whole("key_ttl", job.key_ttl, 1, MAX_DURATION)
        if job.key is None:
            raise InvalidInput("key_ttl", job.key_ttl, "only a job with a key may have one")


def _check_rules(job: Job) -> None:
    if job.version != 1 or type(job.version) is not int:
        _whole("version", job.version, 1, _MANY)
    if job.priority != 5 or type(job.priority) is not int:
        _whole("priority", job.priority, 0, 9)
    if job.retries != 3 or type(job.retries) is not int:
        _whole("retries", job.retries, 0, 1_000_000)
    if job.max_crashes != 3 or type(job.max_crashes) is not int:
        _whole("max_crashes", job.max_crashes, 1, _MANY)
    if job.max_running is not None:
        _whole("max_running", job.max_running, 1, _MANY)
    if job.max_ready is not None:
        _whole("max_ready", job.max_ready, 1, _MANY)
    if job.rate is not None:
        Rate.parse(job.rate)
    if job.backoff is not None:
        Backoff.parse(job.backoff)
    if job.isolate is not None:
        check_name("isolate", job.isolate)
    if type(job.speculate) is not bool:
        raise InvalidInput("speculate", job.speculate, "True or False is allowed")
    if job.on_duplicate != "return":
        _choice("on_duplicate", job.on_duplicate, _ON_DUPLICATE)
    if job.overflow != "raise":
        _choice("overflow", job.overflow, _OVERFLOW)
    if job.orphan != "cancel":
        _choice("orphan", job.orphan, _ORPHAN)


def _whole(field: str, value: object, least: int, most: int) -> None:
    # `type`, not `isinstance`: True is an int, but not meant as 1.
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most} is allowed")


def _choice(field: str, value: object, allowed: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(field, value, f"one of {', '.join(sorted(allowed))} is allowed")


def _check_words(field: str, words: object, at_most: int) -> None:
    if not isinstance(words, tuple) or len(words) > at_most:
        raise InvalidInput(field, words, f"a tuple of at most {at_most} is allowed")
    for word in words:
        check_word(field, word)


def _check_waits(job: Job) -> None:
    _check_words("waits_for", job.waits_for, at_most=WAITS_MAX)
    if job.id in job.waits_for:
        raise InvalidInput("waits_for", job.waits_for, "a job cannot wait for itself")
    if len(set(job.waits_for)) < len(job.waits_for):
        raise InvalidInput("waits_for", job.waits_for, "each id is allowed once")


def check_description(text: object) -> str:
    if not isinstance(text, str) or len(text) > 4096 or not _is_unicode(text):
        raise InvalidInput("description", text, "a text of at most 4096 characters is allowed")
    return text


def check_headers(headers: object) -> None:
    texts: list[object] = [None]
    if isinstance(headers, dict):
        texts = [text for pair in headers.items() for text in pair]
    size = 0
    for text in texts:
        if not isinstance(text, str) or not _is_unicode(text):
            raise InvalidInput("headers", headers, "a dict of texts to texts is allowed")
        size += len(text.encode())
    if size > 8192:
        raise InvalidInput("headers", headers, "at most 8 KiB, names and values together, is allowed")


def _is_unicode(text: str) -> bool:
    """Half of a surrogate pair is a str to Python, but no UTF-8 and so no part of a stored job."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_batch(jobs: Sequence[Job]) -> None:
    """`check_job` on each, and no circle of jobs waiting for each other: none of them would ever start."""
    waits: dict[str, set[str]] = {}
    for job in jobs:
        check_job(job)
        if job.waits_for:
            waits.setdefault(job.id, set()).update(job.waits_for)
    if waits and (circle := _find_circle(waits)):
        raise InvalidInput("waits_for", " -> ".join(circle), "jobs that wait for each other cannot start")


def _find_circle(waits: dict[str, set[str]]) -> list[str]:
    """The ids along one circle, its first repeated at the end; empty if there is none. Uses up `waits`."""
    blocks: dict[str, list[str]] = {}
    for waiting, needed in waits.items():
        needed.intersection_update(waits)
        for other in needed:
            blocks.setdefault(other, []).append(waiting)
    free = [job_id for job_id, needed in waits.items() if not needed]
    while free:
        done = free.pop()
        del waits[done]
        for waiting in blocks.get(done, ()):
            waits[waiting].discard(done)
            if not waits[waiting]:
                free.append(waiting)
    if not waits:
        return []
    # Every id left waits for another one left: following them leads into a circle.
    path: list[str] = []
    seen: set[str] = set()
    here = min(waits)
    while here not in seen:
        seen.add(here)
        path.append(here)
        here = min(waits[here])
    return [*path[path.index(here) :], here]
