"""The options of a job: one table for calls, tasks, schedules, HTTP, gRPC and the command line.

Each row says how a value is checked, which field of the job it fills, where it may be given, and its purpose.
A new option is one row here, and one line in each of the typed dicts below that allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypedDict, get_args

import msgspec
from msgspec import Meta

from dray.duration import MAX_DURATION, parse_duration
from dray.errors import InvalidInput, did_you_mean
from dray.job import OnDuplicate, Overflow, check_name, check_word, parse_priority
from dray.policy import Backoff, BackoffFunction, Rate, check_description, check_headers

LAST_MOMENT: Final = 253_402_300_799_999
"""The last millisecond of 9999 in UTC: the calendar ends there."""
RETRIES_MAX: Final = 1_000_000
_MANY: Final = 1_000_000_000

Duration = int | float | str | timedelta
Priority = int | Literal["high", "normal", "low"]
Durability = Literal["normal", "full"]
Isolation = Literal["thread", "process"]
Errors = type[BaseException] | tuple[type[BaseException], ...]
Place = Literal["call", "task", "schedule"]
"""Where an option may be given: `using(...)` and HTTP, `@app.task(...)`, or a schedule (for its jobs)."""

# the types of JSON requests
Name = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.\-]+$", min_length=1, max_length=128, description="Letters, digits, _ . -"),
]
Word = Annotated[str, Meta(min_length=1, max_length=256, description="Printable characters")]
JsonDuration = Annotated[
    float | str, Meta(description="Seconds, or a text like 30s, 5m, 1h30m, 250ms", examples=[30, "5m"])
]
JsonPriority = Annotated[int, Meta(ge=0, le=9)] | Literal["high", "normal", "low"]
JsonRetries = Annotated[int, Meta(ge=0, le=RETRIES_MAX)]


class Using(TypedDict, total=False):
    """Options of one call, `task.using(...)`; they win over the task's own."""

    delay: Duration
    at: datetime
    queue: str
    priority: Priority
    retries: int
    backoff: str
    timeout: Duration
    deadline: Duration
    key: str
    key_ttl: Duration
    on_duplicate: OnDuplicate
    once: Duration
    id: str
    group: str
    ttl: Duration
    result_ttl: Duration
    tags: Sequence[str]
    description: str
    durability: Durability
    headers: dict[str, str]


class TaskSettings(TypedDict, total=False):
    """Options of `@app.task(...)`, besides `name`."""

    queue: str
    priority: Priority
    retries: int
    backoff: str | BackoffFunction
    timeout: Duration | None
    deadline: Duration | None
    ttl: Duration | None
    result_ttl: Duration | None
    once: Duration | None
    rate_limit: str | None
    rate_key: str | None
    max_running: int | None
    running_key: str | None
    max_ready: int | None
    overflow: Overflow
    max_crashes: int
    isolate: Isolation
    speculate: bool
    dedicated: bool
    retry_on: Errors
    give_up_on: Errors
    tags: list[str] | tuple[str, ...]
    description: str
    durability: Durability
    codec: str


class ScheduledJobOptions(TypedDict, total=False):
    """Options of the jobs of a schedule; the task's own are the default."""

    queue: str
    priority: Priority
    retries: int
    backoff: str
    timeout: Duration
    deadline: Duration
    ttl: Duration
    result_ttl: Duration
    group: str
    tags: Sequence[str]
    description: str
    headers: dict[str, str]


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`TaskSettings`, checked and in the units of a job. None: the setting applies, or there is no limit."""

    queue: str | None = None
    priority: int = 5
    retries: int | None = None
    backoff: str | None = None
    timeout: int | None = None
    deadline: int | None = None
    ttl: int | None = None
    result_ttl: int | None = None
    once: int | None = None
    rate: str | None = None
    rate_key: str | None = None
    max_running: int | None = None
    running_key: str | None = None
    max_ready: int | None = None
    overflow: Overflow = "raise"
    max_crashes: int | None = None
    isolate: Isolation = "thread"
    speculate: bool = False
    dedicated: bool = False
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    tags: tuple[str, ...] = ()
    description: str = ""
    durability: Durability | None = None
    codec: str | None = None


# readers: each checks a value and returns it in the units of a job


def read_due(delay: Duration | None, at: datetime | None, now: int) -> int:
    """The due time of a job that is moved, in milliseconds since the epoch."""
    if (delay is None) == (at is None):
        raise InvalidInput("at", at, "give either delay or at")
    if delay is not None:
        return now + parse_duration("delay", delay)
    return read_at("at", at)


def read_at(field: str, value: object) -> int:
    """A moment in milliseconds since the epoch."""
    if not isinstance(value, datetime):
        raise InvalidInput(field, value, "a datetime is allowed")
    try:
        due = round(value.timestamp() * 1000)
    except (OverflowError, ValueError, OSError):  # the first and last days of the calendar, in some zones
        due = -1
    if not 0 <= due <= LAST_MOMENT:
        raise InvalidInput(field, value, "a time from 1970 to 9999, in UTC, is allowed")
    return due


Reader = Callable[[str, Any], Any]
"""`read(name, value)`: `name` is for the error message."""


def _length_above_zero(name: str, value: Any) -> int:
    length = parse_duration(name, value)
    if length == 0:
        raise InvalidInput(name, value, "a length of time above 0 is allowed")
    return length


def _length_or_none(name: str, value: Any) -> int | None:
    return parse_duration(name, value) or None


def _timeout(name: str, value: Any) -> int:
    return parse_duration(name, value) or MAX_DURATION


def whole(least: int, most: int, allowed: str = "") -> Reader:
    """A whole number from `least` to `most`."""

    def read(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(name, value, allowed or f"a whole number from {least} is allowed")
        return value

    return read


def one_of(kind: Any, *, spelled_out: bool = False) -> Reader:
    """One of the values of a `Literal`."""
    values = get_args(kind)
    joined = f"{', '.join(values[:-1])} or {values[-1]}" if spelled_out else f"one of {', '.join(values)}"

    def read(name: str, value: Any) -> Any:
        if value not in values:
            raise InvalidInput(name, value, f"{joined} is allowed")
        return value

    return read


def _tags(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInput(name, value, "a list of texts is allowed")
    return tuple(check_word(name, tag) for tag in value)


def _headers(name: str, value: Any) -> dict[str, str]:
    check_headers(value)
    return dict(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(name, value, "a text is allowed")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(name, value, "True or False is allowed")
    return value


def _errors(name: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple | list | set | frozenset) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidInput(name, kind, "exception classes are allowed")
    return tuple(kinds)


def _rate(name: str, value: Any) -> str:
    try:
        return str(Rate.parse(value))
    except InvalidInput as error:
        raise InvalidInput(name, value, error.allowed) from None


def _backoff(name: str, value: Any) -> str:
    return str(Backoff.parse(value))


def _backoff_or_function(name: str, value: Any) -> str | None:
    return None if callable(value) else _backoff(name, value)


class Option(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    places: tuple[Place, ...]
    read: Reader
    help: str
    """One sentence, shown by docs/api.md, OpenAPI and `--help`."""
    json: Any = None
    """Its type in a JSON request."""
    metavar: str = ""
    """How `--help` names its value; empty: the command line has no flag for it."""
    default: str = "none"
    """The default of a task's option, as the docs show it; `setting`: the setting of the same name."""
    field: str | None = ""
    """The field of `Job` that it fills: by default the one of its name."""
    read_for_task: Reader | None = None
    """Instead of `read`, where a task may say more."""

    def __post_init__(self) -> None:
        if self.field == "":
            msgspec.structs.force_setattr(self, "field", self.name)

    @property
    def json_type(self) -> Any:
        """`json` with the description of the option, or null."""
        form = " Seconds, or a text like 30s, 5m, 1h30m, 250ms." if self.json is JsonDuration else ""
        return Annotated[self.json, Meta(description=self.help + form)] | None


_ALL: Final[tuple[Place, ...]] = ("call", "task", "schedule")
_CALL: Final[tuple[Place, ...]] = ("call",)
_TASK: Final[tuple[Place, ...]] = ("task",)
_LENGTH: Final = "DURATION"

_ROWS: Final = (
    Option("queue", _ALL, check_name, "The queue where the job waits.", Name, "NAME", "`default`"),
    Option(
        *("priority", _ALL, lambda name, value: parse_priority(value)),
        "0 to 9, 0 runs first; high is 1, normal 5, low 9.",
        *(JsonPriority, "0-9|NAME", '`"normal"`'),
    ),
    Option(
        *("delay", _CALL, parse_duration, "Start no sooner than after this time.", JsonDuration, _LENGTH),
        field="due",
    ),
    Option(
        *("at", _CALL, read_at),
        "Start no sooner than then; in Python and on the command line, a time without a zone is local.",
        *(Annotated[datetime, Meta(tz=True)], "TIME"),
        field="due",
    ),
    Option("key", _CALL, check_word, "One unfinished job per key and queue.", Word, "KEY"),
    Option("key_ttl", _CALL, _length_above_zero, "The key is taken for this long at most.", JsonDuration),
    Option(
        *("on_duplicate", _CALL, one_of(OnDuplicate, spelled_out=True)),
        "If key or id is taken: return that job (the default), raise DuplicateJob, or replace that job if it"
        " has not started.",
        OnDuplicate,
    ),
    Option(
        *("once", ("call", "task"), _length_or_none),
        "For how long after success the key or id stays taken.",
        *(JsonDuration, _LENGTH),
    ),
    Option(
        *("id", _CALL, check_word),
        "The job's id, instead of a generated one; an id that exists makes a duplicate.",
        *(Word, "ID"),
    ),
    Option(
        *("retries", _ALL, whole(0, RETRIES_MAX)),
        "Attempts after the first.",
        *(JsonRetries, "NUMBER", "setting"),
    ),
    Option(
        *("backoff", _ALL, _backoff),
        "The wait between attempts, such as exponential:3,cap=2m, linear:10s or fixed:5s.",
        *(str, "", "setting"),
        read_for_task=_backoff_or_function,
    ),
    Option(
        *("timeout", _ALL, _timeout),
        "How long one run may take; 0: no limit.",
        *(JsonDuration, _LENGTH, "setting"),
    ),
    Option(
        *("deadline", _ALL, _length_above_zero),
        "Dead if not finished within this time, all waiting and retries included.",
        *(JsonDuration, _LENGTH),
    ),
    Option(
        *("ttl", _ALL, _length_or_none),
        "Dead as expired if not started within this time.",
        *(JsonDuration, _LENGTH),
    ),
    Option(
        *("result_ttl", _ALL, parse_duration),
        "How long the result is kept; 0: not at all.",
        *(JsonDuration, "", "setting"),
    ),
    Option(
        *("group", ("call", "schedule"), check_word),
        "Groups of a queue (tenants) take turns.",
        *(Word, "GROUP"),
    ),
    Option(
        *("rate_limit", _TASK, _rate),
        'Starts per time: `"100/m"`, or with a burst `"100/m+20"`.',
        field="rate",
    ),
    Option(
        *("rate_key", _TASK, _text),
        '`"{customer}"`: the rate applies to each value of a parameter by itself.',
    ),
    Option("max_running", _TASK, whole(1, _MANY), "How many run at once, on all workers."),
    Option("running_key", _TASK, _text, "As `rate_key`, for `max_running`."),
    Option("max_ready", _TASK, whole(1, _MANY), "How many ready jobs its queue may hold."),
    Option(
        *("overflow", _TASK, one_of(Overflow)),
        'If that is exceeded: `"raise"` `QueueFull`, `"wait"`, or `"drop-oldest"`.',
        default='`"raise"`',
    ),
    Option(
        *("max_crashes", _TASK, whole(1, _MANY)),
        "Crashes, alone in a child, until the job is dead as poison.",
        default="setting",
    ),
    Option(
        *("isolate", _TASK, one_of(Isolation)),
        '`"process"`: run in a child process that can be killed.',
        default='`"thread"`',
    ),
    Option(
        *("dedicated", _TASK, _flag),
        "Its queue, which must be named, is served only by workers that list it.",
        default="`False`",
        field=None,
    ),
    Option(
        *("speculate", _TASK, _flag),
        "Running it twice does no harm: a slow job gets a second run beside the first.",
        default="`False`",
    ),
    Option(
        *("retry_on", _TASK, _errors, "The only errors worth another attempt."),
        default="all errors",
        field=None,
    ),
    Option("give_up_on", _TASK, _errors, "Errors after which there is no other attempt.", field=None),
    Option(
        *("tags", _ALL, _tags),
        "Words to find jobs by; those of a call are added to the task's.",
        *(Annotated[list[Word], Meta(max_length=100)], "TAG"),
    ),
    Option("description", _ALL, lambda name, value: check_description(value), "A text for people.", str),
    Option(
        *("durability", ("call", "task"), one_of(Durability, spelled_out=True)),
        "full: the enqueue returns when the job is safe from a power cut too.",
        *(Durability, "", "setting"),
        field=None,
        read_for_task=one_of(Durability),
    ),
    Option(
        *("headers", ("call", "schedule"), _headers),
        "Texts that travel with the job, such as trace context.",
        dict[str, str],
    ),
    Option(*("codec", _TASK, _text, "How arguments and results are encoded."), default="setting", field=None),
)
TABLE: Final = {option.name: option for option in _ROWS}


def options_of(place: Place) -> dict[str, Option]:
    """The options that may be given there, by name."""
    return {name: option for name, option in TABLE.items() if place in option.places}


CALL_OPTIONS: Final = options_of("call")
TASK_OPTIONS: Final = options_of("task")
SCHEDULE_OPTIONS: Final = options_of("schedule")


def check_names(field: str, given: Mapping[str, Any], known: Mapping[str, Any], *more: str) -> None:
    """Refuse an option that does not exist; the message names those that do, `more` first."""
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        names = ", ".join((*more, *sorted(known)))
        raise InvalidInput(field, unknown[0], f"{did_you_mean(unknown[0], known)}one of {names} is allowed")


def read_options(given: Using, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check the options of a call, and add them to those given before (`base`); None means not given."""
    check_names("using", given, CALL_OPTIONS)
    checked = {
        name: CALL_OPTIONS[name].read(name, value) for name, value in given.items() if value is not None
    }
    if "delay" in checked and "at" in checked:
        raise InvalidInput("at", given.get("at"), "give either delay or at, not both")
    if not base:
        return checked
    replaced = {"delay": "at", "at": "delay"}
    dropped = {replaced[name] for name in checked if name in replaced}
    return {name: value for name, value in base.items() if name not in dropped} | checked


def read_task_options(task: str, given: TaskSettings) -> TaskOptions:
    """Check the options of a task."""
    check_names("task", given, TASK_OPTIONS, "name")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            option = TASK_OPTIONS[name]
            fields[option.field or name] = (option.read_for_task or option.read)(name, value)
    options = TaskOptions(**fields)
    if options.rate_key is not None and options.rate is None:
        raise InvalidInput("rate_key", options.rate_key, f"it needs a rate_limit on task {task!r} as well")
    if options.running_key is not None and options.max_running is None:
        raise InvalidInput(
            "running_key", options.running_key, f"it needs max_running on task {task!r} as well"
        )
    if options.dedicated and options.queue is None:
        raise InvalidInput("dedicated", True, f"it needs a queue= of its own on task {task!r} as well")
    return options
