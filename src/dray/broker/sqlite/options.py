"""Options of a `sqlite:///` URL."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.policy import ConnectionSettings


class Options(msgspec.Struct, frozen=True):
    path: str
    synchronous: Literal["normal", "full"] = "normal"
    """`full`: nothing acknowledged is lost in a power cut. `normal`: the last moments before it may be."""
    timeout: float = 10.0
    """Seconds to wait for other processes before `BrokerBusy`."""
    poll: float = 1.0
    """Seconds between looks of a sleeper that heard no bell: the longest a lost ring can delay a job."""


def read_url(url: str, access: ConnectionSettings | None = None) -> Options:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, with `?synchronous=`, `timeout=` and `poll=`."""
    body, _, query = url.partition("?")
    if not body.startswith("sqlite:///") or len(body) == len("sqlite:///"):
        raise InvalidInput(
            "broker_url", url, "sqlite:///path (relative) or sqlite:////path (absolute) is allowed"
        )
    patience = (access or ConnectionSettings()).read_timeout / 1000
    options = Options(unquote(body.removeprefix("sqlite:///")), timeout=patience)
    for name, value in parse_qsl(query, keep_blank_values=True):
        options = _set(options, name, value, url)
    return options


def _set(options: Options, name: str, value: str, url: str) -> Options:
    if name == "synchronous":
        if value not in ("normal", "full"):
            raise InvalidInput("synchronous", value, "normal or full is allowed")
        return msgspec.structs.replace(options, synchronous=value)
    if name in ("timeout", "poll"):
        seconds = parse_duration(name, value) / 1000
        if not 0.01 <= seconds <= 3600:
            raise InvalidInput(name, value, "10ms to 1h is allowed")
        return msgspec.structs.replace(options, **{name: seconds})
    raise InvalidInput(
        "broker_url", url, f"unknown option {name!r}: synchronous, timeout and poll are allowed"
    )
