"""The bytes of replication: what is decoded is what was encoded, whatever the pieces, and nothing else is taken."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ProtocolError
from engine.replication.epochs import Epoch
from engine.replication.wire import (
    MAX_FRAME_BYTES,
    Frame,
    FrameDecoder,
    ReportDecoder,
    decode_handshake,
    encode_epoch_report,
    encode_frame_header,
    encode_handshake,
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


@given(FRAMES, SIZES)
def test_frames_with_epochs_are_decoded_from_pieces_of_any_size(frames: list[Frame], sizes: list[int]) -> None:
    frames = [Frame(one.physical_offset, one.data, Epoch(3, 70), one.end) for one in frames]
    sent = b"".join(pack(">iiqiqq", 2, len(one.data), one.physical_offset, 3, 70, one.end) + one.data for one in frames)
    decoder = FrameDecoder("master", has_epochs=True)
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


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ((1, 0, 0, 1, 0, 0), "the state 1"),
        ((2, -3, 0, 1, 0, 0), "-3 bytes"),
        ((2, MAX_FRAME_BYTES + 1, 0, 1, 0, 0), "bytes, of at most"),
        ((2, 0, -9, 1, 0, 0), "physical offset -9"),
        ((2, 5, -1, 1, 0, 0), "physical offset -1"),
        ((2, 0, 0, -1, 0, 0), "epoch -1"),
        ((2, 0, 0, 1, -5, 0), "begins at -5"),
        ((2, 0, 0, 1, 0, -2), "confirms the physical offset -2"),
    ],
)
def test_each_field_of_a_header_with_epochs_has_bounds(fields: tuple[int, ...], what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        FrameDecoder("master", has_epochs=True).feed(pack(">iiqiqq", *fields))


def answer(state: int, epochs: list[tuple[int, int]], end: int, last: int, size: int | None = None) -> bytes:
    size = 12 * len(epochs) if size is None else size
    return pack(">iiqi", state, size, end, last) + b"".join(pack(">iq", *one) for one in epochs)


def test_a_handshake_is_answered_with_epochs() -> None:
    sent = answer(1, [(1, 0), (3, 400)], 900, 3)
    assert [decode_handshake(sent[:size], "m") for size in range(len(sent))] == [None] * len(sent)
    assert decode_handshake(sent, "m") == (900, (Epoch(1, 0), Epoch(3, 400)))
    assert decode_handshake(answer(1, [], 0, -1), "m") == (0, ())


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (answer(2, [], 0, -1), "the state 2"),
        (answer(1, [], 0, -1, size=13), "13 bytes"),
        (answer(1, [], 0, -1, size=-12), "-12 bytes"),
        (answer(1, [], 0, -1, size=12 * 65_537), "786,444 bytes"),
        (answer(1, [(3, 0), (2, 5)], 9, 2), "do not rise"),
        (answer(1, [(1, 8), (2, 8)], 9, 2), "do not rise"),
        (answer(1, [(1, -8)], 9, 1), "do not rise"),
        (answer(1, [(1, 0)], 9, 1) + b"x", "more follows"),
        (answer(1, [(1, 0)], 9, 2), "last epoch is 2"),
        (answer(1, [], 9, 0), "last epoch is 0"),
        (answer(1, [(1, 10)], 9, 1), "ends at 9"),
        (answer(1, [], -9, -1), "ends at -9"),
    ],
)
def test_an_answer_to_a_handshake_that_is_none_is_refused(sent: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_handshake(sent, "master")


def test_a_replica_shakes_hands_as_a_learner_without_a_broker_id() -> None:
    assert encode_handshake() == pack(">ihhq", 1, 0, 1, -1)
    assert encode_epoch_report(4_711) == pack(">iq", 2, 4_711)
