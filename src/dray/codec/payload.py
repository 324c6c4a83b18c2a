"""Jobs and payloads as bytes.

**The envelope** (`pack`, `unpack`) is a MessagePack array of a Job's fields, its version first.

**A payload**, the arguments of a call or a result, says itself how to read it. Its first byte is the header:
the number of the codec that wrote the rest:

| number | codec | a call is | carries |
|---|---|---|---|
| 1 | msgpack | `[args, kwargs]` | all of `dray.codec.values`, unchanged |
| 2 | json | `{"args": [], "kwargs": {}}` | what JSON has; the rest as text |
| 3 | protobuf | one message | a call with one message as its only argument |
| 4 | pickle | `(args, kwargs)` | anything; refused unless `Codecs(allow_pickle=True)` |
| 14 | inputs | a call with slots | a call that other jobs' results complete: see `dray.codec.inputs` |
| 15 | zstd | | compressed: the next byte is the number of the codec, the rest a zstd frame |
| 16-127 | registered by users | | |
| 128 + number | zlib | | compressed, as dray wrote it before it had zstd |

`max_payload` and `max_result` limit the size before compression, when writing and when reading: so the limit
does not depend on how well something compresses, and a small payload can't unpack into a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from types import NoneType
from typing import Any, Final, NoReturn, Protocol, TypeVar
from uuid import UUID

import msgspec

from dray.codec import inputs, values
from dray.codec.compression import COMPRESS_OVER, compress, read_zlib, read_zstd
from dray.codec.signature import Hint, Hints
from dray.codec.values import Lower, Lowering
from dray.errors import (
    CodecError,
    DecodeError,
    EncodeError,
    InvalidInput,
    JobFailed,
    NewerVersion,
    TooLarge,
)
from dray.job import ENVELOPE_VERSION, Job, check_name

MAX_PAYLOAD: Final = 1024 * 1024
MAX_RESULT: Final = 1024 * 1024
_ZSTD: Final = 15
_ZLIB: Final = 0x80
_HEADERS: Final = [bytes((number,)) for number in range(128)]

Call = tuple[tuple[Any, ...], dict[str, Any]]
_T = TypeVar("_T")


class _Head(msgspec.Struct, array_like=True):
    """As much of an envelope as every version of dray can read."""

    version: int


_WITHOUT_DEADLINE: Final = bytes((0xDC, 0, 33))
_WITHOUT_OWNER: Final = bytes((0xDC, 0, 34))
"""The MessagePack headers of envelopes of all fields up to that one."""
_pack_job = msgspec.msgpack.Encoder().encode
_unpack_job = msgspec.msgpack.Decoder(Job).decode
_unpack_head = msgspec.msgpack.Decoder(_Head).decode


def pack(job: Job) -> bytes:
    """The stored form of a job; without new fields, its bytes are those of versions without these fields."""
    try:
        packed = _pack_job(job)
    except Exception as error:
        raise values.unwritable(error) from error
    if job.owner is not None or job.node:
        return packed
    return _WITHOUT_DEADLINE + packed[3:-3] if job.deadline is None else _WITHOUT_OWNER + packed[3:-2]


def unpack(data: bytes, newest: int = ENVELOPE_VERSION) -> Job:
    """The job of a stored form. NewerVersion if a newer dray wrote it, DecodeError if it is broken.

    Only types are checked here; values were, before the job was put. `newest` is for a caller that merely
    passes jobs on and knows that the receiver reads newer versions.
    """
    try:
        job = _unpack_job(data)
    except Exception as error:
        _refuse_newer(data)
        raise values.unreadable(error) from error
    if not 1 <= job.version <= newest:
        _refuse_newer(data)
        raise DecodeError(f"the job has version {job.version}, which never was")
    return job


def _refuse_newer(data: bytes) -> None:
    # A newer form may have more fields or other types; only the first field is always readable.
    try:
        version = _unpack_head(data).version
    except Exception:
        return
    if version > ENVELOPE_VERSION:
        raise NewerVersion(
            f"the job has version {version}, this dray reads up to {ENVELOPE_VERSION}: upgrade this worker"
        )


class Codec(Protocol):
    """One way to write calls and results. Any exception becomes an EncodeError or DecodeError.

    The easiest way to write one is to derive from `ValueCodec`.
    """

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes, hint: Hint | None) -> Any: ...

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...

    def decode_call(self, data: bytes, hints: Hints | None) -> Call: ...


class ValueCodec:
    """Base of codecs for any value: a call is the value `[args, kwargs]`.

    A subclass sets `name` and `number` and defines `write` and `read`.
    """

    name: str
    number: int

    def write(self, value: Any) -> bytes:
        raise NotImplementedError

    def read(self, data: bytes) -> Any:
        raise NotImplementedError

    def encode(self, value: Any) -> bytes:
        return self.write(value)

    def decode(self, data: bytes, hint: Hint | None) -> Any:
        value = self.read(data)
        return value if hint is None else hint.convert(value)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.write([list(args), kwargs])

    def decode_call(self, data: bytes, hints: Hints | None) -> Call:
        args, kwargs = msgspec.convert(self.read(data), tuple[list[Any], dict[str, Any]])
        return (tuple(args), kwargs) if hints is None else hints.convert(args, kwargs)


class _Msgpack(ValueCodec):
    name, number = "msgpack", 1
    write = encode = staticmethod(values.encode)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if not kwargs and values.SCALARS.issuperset(map(type, args)):  # most calls: nothing to look into
            try:
                return values.pack((args, kwargs))
            except (OverflowError, UnicodeEncodeError):
                pass  # the full way handles it, or raises a clear error
        return values.encode_call(args, kwargs)

    read = staticmethod(values.decode)

    def decode_call(self, data: bytes, hints: Hints | None) -> Call:
        args, kwargs = values.decode_call(data)
        return (tuple(args), kwargs) if hints is None else hints.convert(args, kwargs)


def _json_float(value: float, walk: Lowering, depth: int) -> float:
    if not math.isfinite(value):
        raise EncodeError(f"JSON cannot carry {value}")
    return value


def _json_dict(value: dict[Any, Any], walk: Lowering, depth: int) -> object:
    raise EncodeError("JSON cannot carry a dict with keys that are not str")


def _json_datetime(value: datetime, walk: Lowering, depth: int) -> datetime:
    # Offsets with seconds, as zones had before 1900, do not exist in JSON's date format: UTC is as true.
    return value.astimezone(UTC) if _odd_offset(value) else value


def _json_time(value: time, walk: Lowering, depth: int) -> time:
    if _odd_offset(value):
        raise EncodeError("JSON cannot carry a time whose offset has seconds")
    return value


def _odd_offset(value: datetime | time) -> bool:
    offset = value.utcoffset()
    return offset is not None and offset % timedelta(minutes=1) != timedelta(0)


def _as_list(value: Any, walk: Lowering, depth: int) -> object:
    return walk.items(value, depth)


def _as_text(value: Any, walk: Lowering, depth: int) -> object:
    return value  # msgspec writes these as text: bytes in base64, dates and times in ISO 8601


_JSON_LEAVES: Final[dict[type, Lower]] = {
    float: _json_float,
    dict: _json_dict,
    **dict.fromkeys((tuple, set, frozenset), _as_list),
    **dict.fromkeys((bytes, bytearray, memoryview), _as_text),
    **dict.fromkeys((date, timedelta, UUID, Decimal), _as_text),
    datetime: _json_datetime,
    time: _json_time,
}


class _JsonCall(msgspec.Struct, forbid_unknown_fields=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _Json:
    """For producers and workers in other languages.

    Tuples and sets become arrays; bytes, dates, UUIDs and Decimals become text, and come back as what they
    were only where an annotation says so. A time zone's name is lost, its offset is not. Keys that are not
    str, inf and nan are refused rather than changed.
    """

    name, number = "json", 2
    _walk = Lowering(frozenset({NoneType, bool, int, str}), _JSON_LEAVES, dict_keys=frozenset({str}))
    _write = msgspec.json.Encoder().encode
    _read = msgspec.json.Decoder().decode
    _read_call = msgspec.json.Decoder(_JsonCall).decode

    def encode(self, value: Any) -> bytes:
        return self._write(self._walk.lower(value))

    def decode(self, data: bytes, hint: Hint | None) -> Any:
        value = self._read(data)
        return value if hint is None else hint.convert(value, text=True)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.encode({"args": list(args), "kwargs": kwargs})

    def decode_call(self, data: bytes, hints: Hints | None) -> Call:
        call = self._read_call(data)
        if hints is None:
            return tuple(call.args), call.kwargs
        return hints.convert(call.args, call.kwargs, text=True)


class _Protobuf:
    """A message, as its class writes it: the annotation of the parameter, or result, must name that class."""

    name, number = "protobuf", 3

    def encode(self, value: Any) -> bytes:
        if not hasattr(type(value), "SerializeToString"):
            raise EncodeError(f"protobuf carries one message, not a value of type {type(value).__qualname__}")
        message: bytes = value.SerializeToString()
        return message

    def decode(self, data: bytes, hint: Hint | None) -> Any:
        if hint is None or not hasattr(hint.annotation, "FromString"):
            raise DecodeError("protobuf needs an annotation that names the class of the message")
        return hint.annotation.FromString(data)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if len(args) != 1 or kwargs:
            raise EncodeError(
                "protobuf carries a call with one positional argument, a message, and no others; "
                f"this one has {len(args)} positional and {len(kwargs)} keyword arguments"
            )
        return self.encode(args[0])

    def decode_call(self, data: bytes, hints: Hints | None) -> Call:
        first = hints.positional[0][1] if hints is not None and hints.positional else None
        return (self.decode(data, first),), {}


class _Pickle(ValueCodec):
    name, number = "pickle", 4

    def __init__(self) -> None:
        self._pickle = import_module("pickle")

    def write(self, value: Any) -> bytes:
        data: bytes = self._pickle.dumps(value)
        return data

    def read(self, data: bytes) -> Any:
        return self._pickle.loads(data)  # only if the registry allows it


class Codecs:
    """The codecs that one app reads and writes. Broken payloads raise CodecErrors and nothing else.

    >>> codecs = Codecs()
    >>> codecs.decode_call(codecs.encode_call(("a@x.org",), {"copies": 2}))
    (('a@x.org',), {'copies': 2})
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        built_in: list[Codec] = [_Msgpack(), _Json(), _Protobuf()]
        if allow_pickle:
            built_in.append(_Pickle())
        self._by_name = {codec.name: codec for codec in built_in}
        self._by_number = {codec.number: codec for codec in built_in}

    def register(self, codec: Codec) -> None:
        """Add a codec, with a number from 16 to 127 that stays its own: stored payloads carry it."""
        name, number = check_name("codec", codec.name), codec.number
        if type(number) is not int or not 16 <= number <= 127:
            raise InvalidInput("codec", number, "a number from 16 to 127 is allowed; lower ones are dray's")
        if name in self._by_name or name == _Pickle.name:
            raise InvalidInput("codec", name, "this name is taken")
        if number in self._by_number:
            raise InvalidInput("codec", number, f"this number is taken by {self._by_number[number].name!r}")
        self._by_name[name] = self._by_number[number] = codec

    def encode_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        codec: str = "msgpack",
        limit: int = MAX_PAYLOAD,
    ) -> bytes:
        """The payload of a call."""
        chosen = self._by_name.get(codec) or self._missing(codec)
        return _write(chosen.number, limit, "max_payload", chosen.encode_call, args, kwargs)

    def decode_call(self, data: bytes, hints: Hints | None = None, *, limit: int = MAX_PAYLOAD) -> Call:
        """The arguments of a payload, converted to what `hints` say."""
        if data[:1] == inputs.HEADER:
            return self._decode_filled(inputs.read(data), hints, limit)
        codec, body = self._open(data, limit, "max_payload")
        try:
            return codec.decode_call(body, hints)
        except CodecError:
            raise
        except Exception as error:
            raise values.unreadable(error) from error

    def _decode_filled(self, filled: inputs.Filled, hints: Hints | None, limit: int) -> Call:
        """The arguments of a call with slots; a slot without inputs holds a `Reference`."""
        codec, body = self._open(filled.payload, limit, "max_payload")
        given, kwargs = _read(codec.decode_call, body, None)
        args = list(given)
        ready: set[int | str] = set()
        """Arguments that have their class already, or hold a failure."""
        for slot in filled.slots:
            first = slot.path[0]
            hint = hints.of_place(first) if hints is not None and len(slot.path) == 1 else None
            value, complete = self._input(slot, hint, first)
            if (len(slot.path) == 1 and not slot.many) or not complete:
                ready.add(first)
            inputs.put_at(args, kwargs, slot.path, value)
        if hints is None:
            return tuple(args), kwargs
        native = {slot.path[0] for slot in filled.slots}
        return hints.convert(args, kwargs, text=codec.number == _Json.number, native=native, ready=ready)

    def _input(self, slot: inputs.Slot, hint: Hint | None, argument: int | str) -> tuple[Any, bool]:
        """What fills a slot, and whether it is without failures."""
        if slot.values is None:
            places = [str(place) for place in inputs.places_of(slot.at)]
            return inputs.Reference(places if slot.many else (places or ["item"])[0]), False
        values = [self._given(one, None if slot.many else hint, argument) for one in slot.values]
        complete = all(one.kind == "value" for one in slot.values)
        return (values if slot.many else values[0]), complete

    def _given(self, given: inputs.Given, hint: Hint | None, argument: int | str) -> Any:
        if given.kind == "none":
            return None
        if given.kind == "failed":
            failed = inputs.unpack_failed(given.body)
            return JobFailed(failed.id, failed.type, failed.message, failed.traceback, failed.reason)
        kind = Any if hint is None else hint.annotation
        try:
            return self.decode_value(given.body, kind, limit=inputs.INPUTS_MAX)
        except DecodeError as error:
            error.argument = str(argument)
            raise

    def encode_value(self, value: object, *, codec: str = "msgpack", limit: int = MAX_RESULT) -> bytes:
        """The payload of a result."""
        chosen = self._by_name.get(codec) or self._missing(codec)
        return _write(chosen.number, limit, "max_result", chosen.encode, value)

    def decode_value(self, data: bytes, type: Any = Any, *, limit: int = MAX_RESULT) -> Any:
        """The value of a payload, converted to the annotation `type`."""
        codec, body = self._open(data, limit, "max_result")
        return _read(codec.decode, body, Hint.of(type))

    def body_of(self, data: bytes, *, limit: int = MAX_PAYLOAD) -> tuple[str, bytes]:
        """The name of the codec that wrote a payload, and what it wrote: for readers in other languages."""
        codec, body = self._open(data, limit, "max_payload")
        return codec.name, body

    def _missing(self, name: str) -> NoReturn:
        pickled = "; pickle needs Codecs(allow_pickle=True)" if name == _Pickle.name else ""
        raise InvalidInput("codec", name, f"one of {', '.join(self._by_name)} is allowed{pickled}")

    def _open(self, data: bytes, limit: int, setting: str) -> tuple[Codec, bytes]:
        if not data:
            raise DecodeError("the payload is empty: not even its header is there")
        header = data[0]
        if header == _ZSTD:
            return self._numbered(data[1] if len(data) > 1 else 0), read_zstd(data[2:], limit, setting)
        if header & _ZLIB:
            return self._numbered(header & ~_ZLIB), read_zlib(data[1:], limit, setting)
        if len(data) - 1 > limit:
            raise TooLarge(f"{len(data) - 1} bytes are more than {setting}={limit}")
        return self._by_number.get(header) or self._numbered(header), data[1:]

    def _numbered(self, number: int) -> Codec:
        codec = self._by_number.get(number)
        if codec is None:
            raise DecodeError(_unknown(number))
        return codec


_json = _Json()


def to_json(value: object) -> bytes:
    """The value as the codec `json` writes it, without a header; EncodeError if JSON cannot carry it."""
    try:
        return _json.encode(value)
    except CodecError:
        raise
    except Exception as error:
        raise values.unwritable(error) from error


def _unknown(number: int) -> str:
    if number == _Pickle.number:
        return "the payload is pickled, and reading it would run what it says: see Codecs(allow_pickle=True)"
    return f"the payload was written by codec {number}, which is not registered here"


def _write(number: int, limit: int, setting: str, encode: Callable[..., bytes], *what: Any) -> bytes:
    try:
        body = encode(*what)
    except CodecError:
        raise
    except Exception as error:
        raise values.unwritable(error) from error
    if type(body) is not bytes:
        raise EncodeError(f"codec {number} gave {type(body).__name__} instead of bytes")
    size = len(body)
    if size > limit:
        raise TooLarge(
            f"{size} bytes are more than {setting}={limit}: store large data elsewhere and pass its place"
        )
    smaller = compress(body) if size > COMPRESS_OVER else None
    return _HEADERS[number] + body if smaller is None else bytes((_ZSTD, number)) + smaller


def _read(read: Callable[..., _T], *what: Any) -> _T:
    try:
        return read(*what)
    except CodecError:
        raise
    except Exception as error:
        raise values.unreadable(error) from error
