"""Forms of settings: how a value is read, what is allowed, how it is shown.

A value comes from a keyword, the environment (always text) or a file, so every form reads text as well as the
plain type. A value that cannot be read is a `ValueError`; the caller names the setting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from dray.duration import MAX_DURATION, format_duration, parse_duration
from dray.errors import InvalidInput
from dray.job import BANDS, NAME
from dray.passwords import hide_password
from dray.policy import Backoff, Rate
from dray.settings.queue_choice import is_entry

NONE: Final = frozenset({"none", "never", "off"})
"""Texts for "no value", where a setting may have none: neither the environment nor TOML has a null."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_URL = re.compile(r"([a-z][a-z0-9+]*)://\S*")


class Form(msgspec.Struct, frozen=True):
    """One kind of value."""

    allowed: str
    """What is allowed, as the end of a sentence: "… is allowed"."""
    read: Callable[[object], object]
    show: Callable[[object], str] = str


def parse_size(value: object) -> int:
    """Bytes of `1048576`, `"1MiB"`, `"500kB"` or `"2G"`. Units with an i, and single letters, count in 1024s.

    >>> parse_size("1MiB"), parse_size("1MB"), parse_size("1M")
    (1048576, 1000000, 1048576)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(value)
    number, unit, binary = float(match[1]), (match[2] or "").lower(), match[3]
    base = 1000 if not binary and match[0].lower().endswith("b") else 1024
    factor: int = base ** _POWERS.get(unit, 0)
    return round(number * factor)


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back as the same number.

    >>> format_size(1048576)
    '1MiB'
    """
    for unit, power in reversed(_POWERS.items()):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit.upper()}iB"
    return f"{size}B"


def duration(least: int = 1, most: int = MAX_DURATION) -> Form:
    def read(value: object) -> int:
        try:
            length = parse_duration("", value)  # type: ignore[arg-type]  # it refuses what it cannot read
        except InvalidInput as wrong:
            raise ValueError from wrong
        return _between(length, least, most)

    limits = f"from {format_duration(least)}" if least else "0 or more"
    if most != MAX_DURATION:
        limits += f" to {format_duration(most)}"
    return Form(f"a duration (seconds, 30s, 5m, 1h30m, 250ms, 2d), {limits},", read, _show(format_duration))


def _show(text_of: Callable[[int], str]) -> Callable[[object], str]:
    return lambda value: text_of(value) if isinstance(value, int) else str(value)


def timeout() -> Form:
    """A duration, of which 0 means no limit, as for a task."""
    form = duration(0)
    return Form(
        f"{form.allowed.removesuffix(' 0 or more,')} 0 for no limit,",
        lambda value: form.read(value) or MAX_DURATION,
        lambda value: "0" if value == MAX_DURATION else form.show(value),
    )


def whole(least: int, most: int) -> Form:
    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(value)
        return _between(value, least, most)

    return Form(f"a whole number from {least} to {most}", read)


def size(least: int, most: int = 1 << 40) -> Form:
    return Form(
        f"bytes, or a text like 500kB, 1MiB or 2GiB, from {format_size(least)} to {format_size(most)},",
        lambda value: _between(parse_size(value), least, most),
        _show(format_size),
    )


def _between(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def choice(*words: str) -> Form:
    def read(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in words:
            raise ValueError(value)
        return word

    return Form(f"one of {', '.join(words)}", read)


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _YES | _NO:
        raise ValueError(value)
    return word in _YES


def _read_switch(value: object) -> bool | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "auto"):
        return None
    return _read_flag(value)


flag: Final = Form("true or false", _read_flag, lambda value: "true" if value else "false")
switch: Final = Form(
    "auto, on or off",
    _read_switch,
    lambda value: "auto" if value is None else "on" if value else "off",
)


def listed(
    allowed: str,
    fits: Callable[[str], object],
    *,
    may_be_empty: bool = True,
    lower: bool = False,
    show: Callable[[object], str] | None = None,
) -> Form:
    """Texts in an order that counts, each once; a text separates them by commas."""

    def read(value: object) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(text.lower() if lower else text for text in _listed(value)))
        if not (found or may_be_empty) or not all(map(fits, found)):
            raise ValueError(value)
        return found

    return Form(f"{allowed}, separated by commas,", read, show or _joined)


def _listed(value: object) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable) or isinstance(parts, bytes | dict):
        raise ValueError(value)
    found = []
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(value)
        if part.strip():
            found.append(part.strip())
    return found


def _joined(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


names: Final = listed(
    "one or more names (1-128 characters of A-Z a-z 0-9 _ . -)", NAME.fullmatch, may_be_empty=False
)
queues: Final = listed(
    "all, or one or more names (1-128 characters of A-Z a-z 0-9 _ . -) or patterns with * and ?",
    is_entry,
    may_be_empty=False,
    show=lambda value: _joined(value) or "those of the app's tasks",
)
patterns: Final = listed(
    "patterns of field names with * and ?, or TASK:FIELD",
    re.compile(r"(?:[A-Za-z0-9_.*?-]{1,128}:)?[\w.*?-]{1,128}").fullmatch,
)
modules: Final = listed(
    "names of modules like proj.tasks", lambda name: all(part.isidentifier() for part in name.split("."))
)
secrets: Final = listed(
    "texts without spaces",
    lambda text: text.isprintable() and " " not in text and len(text) <= 256,
    show=lambda value: f"{len(value)} hidden" if isinstance(value, tuple) and value else "",
)
hosts: Final = listed(
    "names of hosts, without ports", re.compile(r"[a-z0-9_.-]{1,253}|\[[0-9a-f:.]+\]").fullmatch, lower=True
)
origins: Final = listed(
    "origins like https://app.example.org",
    re.compile(r"https?://[a-z0-9_.-]{1,253}(:[0-9]{1,5})?").fullmatch,
    lower=True,
)


def read_priorities(value: object) -> frozenset[int]:
    """`"high"`, `"0-3"`, `"0,1,normal"`, or a list of such; a name means its band."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable) or isinstance(parts, bytes | dict):
        raise ValueError(value)
    found: set[int] = set()
    for part in parts:
        found.update(_band(part))
    if not found:
        raise ValueError(value)
    return frozenset(found)


def _band(part: object) -> Iterable[int]:
    if isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= 9:
        return [part]
    word = part.strip().lower() if isinstance(part, str) else ""
    if word in BANDS:
        return BANDS[word]
    match = re.fullmatch(r"([0-9])(?:-([0-9]))?", word)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(part)
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def format_priorities(value: object) -> str:
    """The numbers, runs of them as ranges: `0-3,7`."""
    if not isinstance(value, frozenset):
        return str(value)
    runs: list[list[int]] = []
    for number in sorted(value):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


priorities: Final = Form(
    f"numbers from 0 to 9, ranges like 0-3 and names of bands ({', '.join(BANDS)}), separated by commas,",
    read_priorities,
    format_priorities,
)


def _read_name(value: object) -> str:
    word = value.strip() if isinstance(value, str) else ""
    if not NAME.fullmatch(word):
        raise ValueError(value)
    return word


name: Final = Form("1-128 characters of A-Z a-z 0-9 _ . -", _read_name)


def url(*schemes: str) -> Form:
    def read(value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        match = _URL.fullmatch(text.replace(" ", "_"))
        if match is None or match[1] not in schemes:
            raise ValueError(value)
        return text

    starts = ", ".join(f"{scheme}://" for scheme in schemes)
    return Form(f"a URL that starts with one of {starts}", read, lambda value: hide_password(str(value)))


def _read_address(value: object) -> str:
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[2]) > 65535:
        raise ValueError(value)
    return match[0]


address: Final = Form("host:port, like 127.0.0.1:8000 or [::1]:8000,", _read_address)


def _read_backoff(value: object) -> str:
    text = str(value) if isinstance(value, str | Backoff) else ""
    try:
        Backoff.parse(text)
    except InvalidInput as wrong:
        raise ValueError from wrong
    return text.strip()


backoff: Final = Form(
    "exponential, linear or fixed, with options like exponential:3,cap=2m,jitter=0 or linear:10s,",
    _read_backoff,
)


def _read_rate(value: object) -> str:
    try:
        return str(Rate.parse(value))  # type: ignore[arg-type]  # it refuses what is no text
    except InvalidInput as wrong:
        raise ValueError from wrong


rate: Final = Form("a rate like 100/s, 1000/m or, with a burst, 1000/m+50,", _read_rate)


def _read_path(value: object) -> str:
    text = os.fspath(value).strip() if isinstance(value, str | os.PathLike) else ""
    if not text or not text.isprintable():
        raise ValueError(value)
    return text


path: Final = Form("the path of a file", _read_path)


def or_auto(form: Form) -> Form:
    """The form, or auto: None, or the text `auto`."""

    def read(value: object) -> object:
        is_auto = value is None or (isinstance(value, str) and value.strip().lower() == "auto")
        return None if is_auto else form.read(value)

    return Form(f"auto or {form.allowed}", read, lambda value: "auto" if value is None else form.show(value))


def optional(form: Form, default: str = "none") -> Form:
    """The form, or none: None, or the text `none`. `default` is how none is shown."""

    def read(value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().lower() in NONE | {default}):
            return None
        return form.read(value)

    return Form(
        f"{form.allowed.removesuffix(',')}, or {default},",
        read,
        lambda value: default if value is None else form.show(value),
    )
