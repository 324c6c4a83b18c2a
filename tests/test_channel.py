"""The framing of messages between the processes of a worker."""

from __future__ import annotations

import pytest

from dray.worker.channel import Broken, Frames, FrameTooLong, frame


def test_messages_are_cut_out_of_the_stream_however_it_is_split() -> None:
    sent = [frame(Broken(text)) for text in ("", "a", "b" * 1000)]
    frames = Frames()
    received: list[bytes] = []
    for byte in b"".join(sent):
        received += frames.feed(bytes((byte,)))
    assert [len(body).to_bytes(4, "big") + body for body in received] == sent


def test_messages_before_one_that_is_too_long_arrive() -> None:
    bodies = Frames(longest=100).feed(frame(Broken("why")) + b"\xff" * 4)
    assert next(bodies) == frame(Broken("why"))[4:]
    with pytest.raises(FrameTooLong, match="bytes"):
        next(bodies)
