"""Jobs and payloads as bytes: nothing lost, nothing run, and broken bytes end in one kind of error."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import tracemalloc
import zlib
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_values import anything, circle, datetimes, deep, same, text

from dray.codec import compression, payload
from dray.codec.payload import Codecs, ValueCodec, pack, unpack
from dray.codec.signature import Hints
from dray.errors import (
    CodecError,
    DecodeError,
    EncodeError,
    InvalidInput,
    MissingLibrary,
    NewerVersion,
    TooLarge,
)
from dray.job import ENVELOPE_VERSION, Job

MINIMAL = Job(id="j", task="t")
FULL = Job(
    id="email:0123456789abcdef0123456789abcdef",
    task="email.send",
    queue="email",
    payload=b"\x01\x92\x90\x80",
    priority=1,
    created=1_700_000_000_000,
    due=1_700_000_001_000,
    ttl=1,
    key="k",
    key_ttl=2,
    once=3,
    on_duplicate="replace",
    group="g",
    rate="100/m",
    rate_key="rk",
    max_running=4,
    running_key="nk",
    max_ready=5,
    overflow="drop-oldest",
    waits_for=("a", "b"),
    orphan="run",
    parent="p",
    tags=("x",),
    description="é",
    retries=6,
    backoff="linear:10s",
    timeout=7,
    max_crashes=8,
    result_ttl=9,
    isolate="process",
    speculate=True,
    headers={"h": "v"},
)
WITH_DEADLINE = msgspec.structs.replace(FULL, deadline=10)
NODE = msgspec.structs.replace(MINIMAL, owner="f", node="a[0]")
GOLDEN = {
    "minimal": (
        MINIMAL,
        "dc002101a16aa174a764656661756c74c4000500c0c0c0c0c0a672657475726ec0c0c0c0c0c0a5726169736590a66361"
        "6e63656cc090a003c0c003c0c0c280",
    ),
    "full": (
        FULL,
        "dc002101d926656d61696c3a3031323334353637383961626364656630313233343536373839616263646566aa656d61"
        "696c2e73656e64a5656d61696cc4040192908001cf0000018bcfe56800cf0000018bcfe56be801a16b0203a77265706c"
        "616365a167a53130302f6da2726b04a26e6b05ab64726f702d6f6c6465737492a161a162a372756ea17091a178a2c3a9"
        "06aa6c696e6561723a313073070809a770726f63657373c381a168a176",
    ),
    "node": (
        NODE,
        "dc002401a16aa174a764656661756c74c4000500c0c0c0c0c0a672657475726ec0c0c0c0c0c0a5726169736590a66361"
        "6e63656cc090a003c0c003c0c0c280c0a166a4615b305d",
    ),
    "deadline": (
        WITH_DEADLINE,
        "dc002201d926656d61696c3a3031323334353637383961626364656630313233343536373839616263646566aa656d61"
        "696c2e73656e64a5656d61696cc4040192908001cf0000018bcfe56800cf0000018bcfe56be801a16b0203a77265706c"
        "616365a167a53130302f6da2726b04a26e6b05ab64726f702d6f6c6465737492a161a162a372756ea17091a178a2c3a9"
        "06aa6c696e6561723a313073070809a770726f63657373c381a168a1760a",
    ),
}


@pytest.mark.parametrize(("job", "stored"), GOLDEN.values(), ids=GOLDEN)
def test_stored_jobs_never_change(job: Job, stored: str) -> None:
    """Brokers hold jobs of every release like this: lines may be added to GOLDEN, none is ever changed."""
    assert unpack(bytes.fromhex(stored)) == job
    assert pack(job).hex() == stored


words = st.text(min_size=1, max_size=10).filter(str.isprintable)
jobs = st.builds(
    Job,
    id=words,
    task=words,
    payload=st.binary(max_size=50),
    due=st.none() | st.integers(0, 2**52),
    key=st.none() | words,
    waits_for=st.lists(words, max_size=3).map(tuple),
    description=text,
    headers=st.dictionaries(text, text, max_size=3),
    speculate=st.booleans(),
    deadline=st.none() | st.integers(1, 2**52),
    owner=st.none() | words,
    node=st.just("") | words,
)


@given(jobs)
def test_a_job_comes_back_as_it_went_in(job: Job) -> None:
    assert unpack(pack(job)) == job


def test_a_job_that_no_bytes_can_hold_is_an_encode_error() -> None:
    with pytest.raises(EncodeError):
        pack(Job(id="\ud800", task="t"))


@given(st.binary(max_size=200))
def test_random_bytes_are_no_job(data: bytes) -> None:
    with contextlib.suppress(DecodeError, NewerVersion):
        unpack(data)


@given(jobs, st.data())
def test_damaged_jobs_are_a_codec_error_if_they_are_no_job(job: Job, data: st.DataObject) -> None:
    stored = bytearray(pack(job))
    place = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(DecodeError):
        unpack(bytes(stored[:place]))
    stored[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DecodeError, NewerVersion):
        unpack(bytes(stored))


@pytest.mark.parametrize(
    "data", [b"\x91" * 1_000_000, b"\xdd\xff\xff\xff\xff", pack(MINIMAL) + b"\0", b"\x90"]
)
def test_hostile_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack(data)


@pytest.mark.parametrize(
    "rest",
    [
        ["id", "task"],
        [{"other": "types"}, None, 5],
        [],
        ["id", "task", *range(100)],
        [msgspec.msgpack.Ext(5, b"x")],
    ],
)
def test_a_job_of_a_newer_version_is_told_from_a_broken_one(rest: list[Any]) -> None:
    data = msgspec.msgpack.encode([ENVELOPE_VERSION + 1, *rest])
    with pytest.raises(NewerVersion, match=f"version {ENVELOPE_VERSION + 1}"):
        unpack(data)
    with pytest.raises(DecodeError):
        unpack(data[:-1])


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_that_never_was_is_a_decode_error(version: int) -> None:
    with pytest.raises(DecodeError, match="version"):
        unpack(pack(msgspec.structs.replace(MINIMAL, version=version)))


def test_a_newer_field_of_this_version_is_passed_over() -> None:
    fields = msgspec.msgpack.decode(pack(NODE))
    assert unpack(msgspec.msgpack.encode([*fields, "new"])) == NODE


@dataclass
class Item:
    name: str
    when: datetime
    data: bytes = b""


def send(to: str, item: Item, count: int = 1, **more: Decimal) -> list[Item]: ...  # type: ignore[empty-body]


CODECS = Codecs()
PICKLING = Codecs(allow_pickle=True)
HINTS = Hints.of(send)
ITEM = Item("n", datetime(2026, 1, 1, tzinfo=UTC), b"\0\xff")


@given(st.lists(anything, max_size=3), st.dictionaries(text, anything, max_size=3))
def test_a_call_comes_back_as_it_went_in(args: list[Any], kwargs: dict[str, Any]) -> None:
    back = CODECS.decode_call(CODECS.encode_call(tuple(args), kwargs))
    assert same(back, (tuple(args), kwargs))


@given(anything)
def test_a_result_comes_back_as_it_went_in(value: Any) -> None:
    assert same(CODECS.decode_value(CODECS.encode_value(value)), value)


@pytest.mark.parametrize("name", ["msgpack", "json", "pickle"])
def test_annotated_arguments_and_results_come_back_as_their_classes(name: str) -> None:
    call = (("a@x", ITEM), {"count": 2, "price": Decimal("1.50")})
    assert PICKLING.decode_call(PICKLING.encode_call(*call, codec=name), HINTS) == call
    result = PICKLING.encode_value([ITEM], codec=name)
    assert PICKLING.decode_value(result, HINTS.returns) == [ITEM]


@pytest.mark.parametrize("name", ["msgpack", "json"])
def test_an_argument_that_does_not_fit_is_named(name: str) -> None:
    with pytest.raises(DecodeError, match="'count' of send"):
        CODECS.decode_call(CODECS.encode_call(("a", ITEM, "many"), {}, codec=name), HINTS)


def test_a_result_that_does_not_fit_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        CODECS.decode_value(CODECS.encode_value("x"), int)


def test_stored_calls_never_change() -> None:
    assert CODECS.encode_call((), {}).hex() == "01929080"
    assert CODECS.encode_call((1, "a"), {"k": None}).hex() == "01929201a16181a16bc0"
    assert CODECS.encode_call(((1,),), {}).hex() == "019291d501910180"
    assert CODECS.encode_call((1,), {}, codec="json") == b'\x02{"args":[1],"kwargs":{}}'
    assert CODECS.encode_value(5).hex() == "0105"


def test_json_is_what_other_languages_write() -> None:
    data = b'\x02{"args": ["a", {"name": "n", "when": "2026-01-01T00:00:00Z", "data": "AP8="}]}'
    assert CODECS.decode_call(data, HINTS) == (("a", ITEM), {})
    assert CODECS.decode_call(b"\x02{}") == ((), {})


def test_json_carries_the_rest_as_text() -> None:
    value = {"t": (1, 2), "s": {3}, "b": b"hi", "u": UUID(int=1), "d": Decimal("1.5"), "n": 2**70, "f": [1.5]}
    stored = CODECS.encode_value(value, codec="json")
    assert json.loads(stored[1:]) == {
        "t": [1, 2],
        "s": [3],
        "b": "aGk=",
        "u": str(UUID(int=1)),
        "d": "1.5",
        "n": 2**70,
        "f": [1.5],
    }


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        [{None: 1}],
        float("nan"),
        [float("inf")],
        object(),
        "\ud800",
        circle(),
        deep(5000, lambda v: [v]),
    ],
)
def test_what_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError):
        CODECS.encode_value(value, codec="json")
    with pytest.raises(EncodeError):
        CODECS.encode_call((value,), {}, codec="json")


@given(datetimes)
def test_json_keeps_the_moment_a_datetime_means(value: datetime) -> None:
    try:
        stored = CODECS.encode_value(value, codec="json")
    except EncodeError:
        assert value.year in (1, 9999)  # an offset with seconds, and UTC outside of the calendar
        return
    back = CODECS.decode_value(stored, datetime)
    assert back.astimezone(UTC) == value.astimezone(UTC) if value.utcoffset() is not None else back == value


def test_json_has_no_time_with_seconds_in_its_offset() -> None:
    with pytest.raises(EncodeError, match="offset"):
        CODECS.encode_value(time(1, tzinfo=timezone(timedelta(seconds=1))), codec="json")


def note(message: Struct) -> Timestamp: ...  # type: ignore[empty-body]


def test_protobuf_carries_one_message() -> None:
    message = Struct()
    message.update({"a": 1, "b": ["x"]})
    hints = Hints.of(note)
    data = CODECS.encode_call((message,), {}, codec="protobuf")
    assert data == b"\x03" + message.SerializeToString()
    assert CODECS.decode_call(data, hints) == ((message,), {})
    result = Timestamp(seconds=5)
    assert CODECS.decode_value(CODECS.encode_value(result, codec="protobuf"), hints.returns) == result


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((5,), {}), ((Struct(), Struct()), {}), ((), {"m": Struct()}), ((Struct,), {})],
)
def test_other_calls_do_not_fit_protobuf(args: Any, kwargs: Any) -> None:
    with pytest.raises(EncodeError, match="protobuf carries"):
        CODECS.encode_call(args, kwargs, codec="protobuf")


def test_protobuf_needs_the_class_and_the_right_bytes() -> None:
    for hints in (None, HINTS, Hints.of(lambda: None)):
        with pytest.raises(DecodeError, match="annotation"):
            CODECS.decode_call(b"\x03", hints)
    with pytest.raises(DecodeError):
        CODECS.decode_call(b"\x03\xff\xff", Hints.of(note))


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_pickle_is_never_read_unless_allowed(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = pickle.dumps([[Bomb(mark)], {}])
    for data in (b"\x04" + body, b"\x84" + zlib.compress(body)):
        for read in (CODECS.decode_call, CODECS.decode_value):
            with pytest.raises(DecodeError, match="allow_pickle"):
                read(data)
    with pytest.raises(InvalidInput, match="allow_pickle"):
        CODECS.encode_value(1, codec="pickle")
    assert not mark.exists()
    PICKLING.decode_call(b"\x04" + body)
    assert mark.exists()


def test_pickle_carries_what_others_cannot() -> None:
    assert PICKLING.decode_call(PICKLING.encode_call((1 + 2j,), {"a": Struct}, codec="pickle")) == (
        (1 + 2j,),
        {"a": Struct},
    )
    with pytest.raises(EncodeError):
        PICKLING.encode_value(lambda: 1, codec="pickle")
    with pytest.raises(DecodeError):
        PICKLING.decode_value(b"\x04nonsense")


class Reversed(ValueCodec):
    name, number = "reversed", 16

    def write(self, value: Any) -> bytes:
        return json.dumps(value)[::-1].encode()

    def read(self, data: bytes) -> Any:
        return json.loads(data[::-1])


class Named(Reversed):
    def __init__(self, name: Any, number: Any) -> None:
        self.name, self.number = name, number


def test_a_registered_codec_reads_and_writes() -> None:
    codecs = Codecs()
    codecs.register(Reversed())
    data = codecs.encode_call((1, [2]), {"a": "b"}, codec="reversed")
    assert data[0] == 16
    assert codecs.decode_call(data) == ((1, [2]), {"a": "b"})
    assert codecs.decode_value(codecs.encode_value({"id": 1}, codec="reversed")) == {"id": 1}
    with pytest.raises(EncodeError):
        codecs.encode_value(object(), codec="reversed")
    for broken in (b"\x10nonsense", b"\x10" + b"]5["[::-1], b"\x10" + b"}{"):
        with pytest.raises(DecodeError):
            codecs.decode_call(broken)
    with pytest.raises(DecodeError, match="16"):
        CODECS.decode_call(data)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("msgpack", 20),
        ("json", 20),
        ("pickle", 20),
        ("reversed", 20),
        ("new", 16),
        ("new", 1),
        ("new", 4),
        ("new", 15),
        ("new", 0),
        ("new", 128),
        ("new", -1),
        ("new", True),
        ("new", "20"),
        ("", 20),
        ("a b", 20),
    ],
)
def test_taken_and_reserved_names_and_numbers_are_refused(name: str, number: Any) -> None:
    codecs = Codecs()
    codecs.register(Reversed())
    with pytest.raises(InvalidInput):
        codecs.register(Named(name, number))


def test_registering_stays_in_its_registry() -> None:
    Codecs().register(Reversed())
    with pytest.raises(InvalidInput, match="msgpack, json, protobuf"):
        Codecs().encode_value(1, codec="reversed")


def test_a_codec_that_gives_no_bytes_is_an_encode_error() -> None:
    class Wrong(Reversed):
        def write(self, value: Any) -> Any:
            return value

    codecs = Codecs()
    codecs.register(Wrong())
    for value in ("text", 5, None):
        with pytest.raises(EncodeError):
            codecs.encode_value(value, codec="reversed")


NOISE = b"".join(zlib.crc32(bytes([n % 256, n // 256])).to_bytes(4, "big") for n in range(60_000))
A_FRAME = "0f0128b52ffda0a586010075000030db000186a06101009c86392802"
"""`"a" * 100_000`, as it was once stored."""


@pytest.fixture
def without_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_zstd", lambda: None)


@pytest.mark.parametrize("value", ["a" * 100_000, b"\0" * 1_000_000, ["text"] * 50_000])
@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
def test_large_values_that_shrink_are_compressed(value: Any, codec: str) -> None:
    stored = PICKLING.encode_value(value, codec=codec)
    assert stored[:2] == bytes((15, 1 if codec == "msgpack" else 4))
    assert len(stored) < 20_000
    assert PICKLING.decode_value(stored) == value


@pytest.mark.parametrize("value", ["a" * 60_000, NOISE, b64encode(NOISE), NOISE[:100_000] + bytes(20_000)])
def test_small_values_and_those_that_shrink_little_are_not_compressed(value: Any) -> None:
    stored = CODECS.encode_value(value)
    assert stored[0] == 1
    assert CODECS.decode_value(stored) == value


def test_a_value_with_an_even_middle_is_compressed_only_if_the_whole_shrinks() -> None:
    middle = bytes(40_000)
    assert CODECS.encode_value(NOISE[:40_000] + middle + NOISE[:40_000])[0] == 15  # noise again shrinks
    assert CODECS.encode_value(NOISE[:80_000] + middle + NOISE[80_000:160_000])[0] == 1


def test_stored_compressed_payloads_stay_readable() -> None:
    body = b"\xdb" + (100_000).to_bytes(4, "big") + b"a" * 100_000
    for stored in (bytes.fromhex(A_FRAME), b"\x81" + zlib.compress(body, 1)):
        assert CODECS.decode_value(stored) == "a" * 100_000


def test_without_zstd_nothing_is_compressed_and_the_error_says_what_to_install(without_zstd: None) -> None:
    stored = CODECS.encode_value("a" * 100_000)
    assert stored[0] == 1
    assert CODECS.decode_value(stored) == "a" * 100_000
    with pytest.raises(MissingLibrary, match=re.escape("pip install 'dray[zstd]'")):
        CODECS.decode_value(bytes.fromhex(A_FRAME))


def test_the_limit_is_on_the_size_before_compression_both_ways() -> None:
    fits = b"\0" * (payload.MAX_PAYLOAD - 8)
    stored = CODECS.encode_call((fits,), {})
    assert CODECS.decode_call(stored) == ((fits,), {})
    size = payload.MAX_PAYLOAD
    with pytest.raises(TooLarge, match=rf"{size + 1} bytes .* max_payload={size}"):
        CODECS.encode_call((fits + b"\0",), {})
    with pytest.raises(TooLarge, match=f"max_payload={size - 1}"):
        CODECS.decode_call(stored, limit=size - 1)
    with pytest.raises(TooLarge, match=r"11 bytes .* max_result=10"):
        CODECS.encode_value("a" * 10, limit=10)
    with pytest.raises(TooLarge, match=r"11 bytes .* max_result=10"):
        CODECS.decode_value(CODECS.encode_value("a" * 10), limit=10)
    assert CODECS.decode_value(CODECS.encode_value("a" * 9, limit=10), limit=10) == "a" * 9


def _zstd_stream(size: int, window: int = 20) -> bytes:
    """Zeros in a frame that does not say how many."""
    zstd = compression._zstd()
    parameter = zstd.CompressionParameter
    stream = zstd.ZstdCompressor(options={parameter.window_log: window, parameter.content_size_flag: 0})
    zeros = bytes(1_000_000)
    return b"".join(stream.compress(zeros) for _ in range(size // len(zeros))) + bytes(stream.flush())


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x81" + zlib.compress(bytes(300_000_000), 9),
        b"\x0f\x01" + compression._zstd().compress(bytes(300_000_000)),
        b"\x0f\x01" + _zstd_stream(300_000_000),
    ],
    ids=["zlib", "zstd", "zstd of unknown size"],
)
def test_a_decompression_bomb_costs_no_memory(bomb: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(TooLarge, match="max_payload"):
        CODECS.decode_call(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


def test_a_frame_that_asks_for_more_memory_than_the_limit_is_refused() -> None:
    with pytest.raises(DecodeError, match="memory"):
        CODECS.decode_call(b"\x0f\x01" + _zstd_stream(2_000_000, window=27))


@pytest.mark.parametrize("header", [b"\x0f\x01", b"\x81"])
def test_broken_compression_is_a_decode_error(header: bytes) -> None:
    body = msgspec.msgpack.encode("a" * 100_000)
    pack = zlib.compress if header == b"\x81" else compression._zstd().compress
    stored = header + pack(body)
    assert CODECS.decode_value(stored) == "a" * 100_000
    at = len(header)
    for broken in (stored[:-1], stored[:5], stored[:at], stored[:1], stored + b"x", stored + stored[at:]):
        with pytest.raises(DecodeError):
            CODECS.decode_value(broken)
    with pytest.raises(DecodeError):
        CODECS.decode_value(header + b"y" + stored[at + 1 :])


def test_no_bytes_are_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="empty"):
        CODECS.decode_call(b"")
    with pytest.raises(DecodeError, match="empty"):
        CODECS.decode_value(b"")


def test_depth_bombs_are_a_decode_error() -> None:
    for bomb in (b"\x01" + b"\x91" * 1_000_000, b"\x02" + b"[" * 1_000_000, b"\x02" + b'{"args":' * 100_000):
        for read in (CODECS.decode_call, CODECS.decode_value):
            with pytest.raises(DecodeError):
                read(bomb)


EVERYTHING = Hints.of(send)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 255), st.binary(max_size=100), st.booleans())
def test_random_bytes_under_any_header_are_a_value_or_a_codec_error(
    header: int, body: bytes, compress: bool
) -> None:
    codecs = Codecs()
    codecs.register(Reversed())
    if compress:
        body = zlib.compress(body)
    for hints in (None, EVERYTHING, Hints.of(note)):
        with contextlib.suppress(CodecError):
            codecs.decode_call(bytes([header]) + body, hints)
    for type in (Any, int, list[Item], Timestamp):
        with contextlib.suppress(CodecError):
            codecs.decode_value(bytes([header]) + body, type)


def test_every_header_is_read_or_refused() -> None:
    for header in range(256):
        for body in (b"", b"\x92\x90\x80", b"{}", b"\0" * 10, zlib.compress(b"\x92\x90\x80")):
            with contextlib.suppress(CodecError):
                CODECS.decode_call(bytes([header]) + body, HINTS)


@given(st.lists(anything, max_size=3), st.data())
def test_damaged_payloads_are_a_value_or_a_codec_error(args: list[Any], data: st.DataObject) -> None:
    stored = bytearray(CODECS.encode_call(tuple(args), {}))
    place = data.draw(st.integers(0, len(stored) - 1))
    stored[place] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(stored), bytes(stored[:place])):
        with contextlib.suppress(CodecError):
            CODECS.decode_call(broken, HINTS)
