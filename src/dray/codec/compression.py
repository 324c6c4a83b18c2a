"""Large payloads made smaller, where that is quick and saves much; and what was made smaller, read again.

zstd is in Python from 3.14 on, and comes with `dray[zstd]` before; without it nothing is compressed. Older
payloads are compressed with zlib, which is twenty times slower: they are read, and not written any more.
"""

from __future__ import annotations

import zlib
from functools import cache
from importlib import import_module
from typing import Any, Final

from dray.errors import DecodeError, MissingLibrary, TooLarge

COMPRESS_OVER: Final = 64 * 1024
_LEVEL: Final = 1
_SAMPLE: Final = 16 * 1024
"""Bytes from the middle that are tried first, so that noise costs little."""
_WORTH: Final = 0.7
"""The largest share of the size that is worth the time: text in base64 (0.75) is not, JSON (0.3) is."""


@cache
def _zstd() -> Any:
    """The module `compression.zstd`, or the same for older Pythons; None if there is none."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def compress(body: bytes) -> bytes | None:
    """A body over `COMPRESS_OVER` as a zstd frame; None if it is better left as it is."""
    size = len(body)
    if (zstd := _zstd()) is None:
        return None
    start = (size - _SAMPLE) // 2
    if len(zstd.compress(body[start : start + _SAMPLE], _LEVEL)) > _SAMPLE * _WORTH:
        return None
    smaller: bytes = zstd.compress(body, _LEVEL)
    return smaller if len(smaller) <= size * _WORTH else None


def read_zstd(data: bytes, limit: int, setting: str) -> bytes:
    """The body of a frame, which must be the whole of `data`."""
    zstd = _zstd()
    if zstd is None:
        raise MissingLibrary(
            "the payload is compressed with zstd, which Python has from 3.14 on: "
            "`pip install 'dray[zstd]'` where this process runs"
        )
    try:
        claimed = zstd.get_frame_info(data).decompressed_size
        if claimed is not None and claimed > limit:
            raise _too_large(limit, setting)
        window = max(10, limit.bit_length())  # a frame may ask for much memory before it gives any bytes
        stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window})
        return _read(stream, data, limit, setting)
    except (zstd.ZstdError, EOFError) as error:
        raise _broken(error) from error


def read_zlib(data: bytes, limit: int, setting: str) -> bytes:
    """The body of a stream, which must be the whole of `data`."""
    try:
        return _read(zlib.decompressobj(), data, limit, setting)
    except zlib.error as error:
        raise _broken(error) from error


def _read(stream: Any, data: bytes, limit: int, setting: str) -> bytes:
    """Never more than `limit` bytes, whatever the data claims."""
    body: bytes = stream.decompress(data, limit + 1)
    if len(body) > limit:
        raise _too_large(limit, setting)
    if not stream.eof or stream.unused_data:
        raise DecodeError("the payload is compressed, but cut off or followed by something else")
    return body


def _too_large(limit: int, setting: str) -> TooLarge:
    return TooLarge(f"the payload unpacks to more than {setting}={limit} bytes")


def _broken(error: Exception) -> DecodeError:
    return DecodeError(f"the payload is compressed, but broken: {error}")
