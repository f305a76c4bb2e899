"""The bytes of replication: what is decoded is what was encoded, whatever the pieces, and nothing else is taken."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ProtocolError
from engine.replication.wire import (
    MAX_FRAME_BYTES,
    Frame,
    FrameDecoder,
    ReportDecoder,
    encode_frame_header,
    encode_report,
)

OFFSETS = st.integers(0, (1 << 63) - 1 - (1 << 20))
FRAMES = st.lists(st.builds(Frame, OFFSETS, st.binary(max_size=100)), max_size=8)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """`data` in pieces of these sizes, again and again."""
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        yield data[:size]
        data, turn = data[size:], turn + 1


@given(FRAMES, SIZES)
def test_frames_are_decoded_from_pieces_of_any_size(frames: list[Frame], sizes: list[int]) -> None:
    sent = b"".join(encode_frame_header(one.physical_offset, len(one.data)) + one.data for one in frames)
    decoder = FrameDecoder("master")
    assert [frame for piece in pieces(sent, sizes) for frame in decoder.feed(piece)] == frames


@given(st.lists(OFFSETS), SIZES)
def test_reports_are_decoded_from_pieces_of_any_size(offsets: list[int], sizes: list[int]) -> None:
    sent, decoder = b"".join(map(encode_report, offsets)), ReportDecoder("replica")
    assert [offset for piece in pieces(sent, sizes) for offset in decoder.feed(piece)] == offsets


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (pack(">qi", -1, 10), "begins at the physical offset -1"),
        (pack(">qi", (1 << 63) - 1, 10), "begins at the physical offset"),
        (pack(">qi", 0, -1), "a frame has -1 bytes"),
        (pack(">qi", 0, MAX_FRAME_BYTES + 1), "bytes, of at most"),
    ],
)
def test_a_header_out_of_its_bounds_is_refused_before_its_data_comes(header: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what) as refused:
        FrameDecoder("10.0.0.1:10912").feed(header)
    assert refused.value.peer == "10.0.0.1:10912"


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(ProtocolError, match="-7"):
        ReportDecoder("replica").feed(encode_report(5) + pack(">q", -7))
