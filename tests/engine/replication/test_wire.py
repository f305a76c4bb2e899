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
    Epoch,
    Frame,
    FrameDecoder,
    HandshakeReply,
    ReportDecoder,
    decode_handshake_reply,
    encode_frame_header,
    encode_handshake,
    encode_report,
    encode_state_report,
    shared_end,
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


def in_controller_mode(frame: Frame) -> bytes:
    assert frame.epoch is not None
    fields = (2, len(frame.data), frame.physical_offset, frame.epoch.number, frame.epoch.begin, frame.confirmed_end)
    return pack(">iiqiqq", *fields) + frame.data


@given(FRAMES, SIZES)
def test_frames_are_decoded_from_pieces_of_any_size(frames: list[Frame], sizes: list[int]) -> None:
    sent = b"".join(encode_frame_header(one.physical_offset, len(one.data)) + one.data for one in frames)
    decoder = FrameDecoder("master")
    assert [frame for piece in pieces(sent, sizes) for frame in decoder.feed(piece)] == frames


@given(FRAMES, SIZES)
def test_frames_of_controller_mode_are_decoded_from_pieces_of_any_size(frames: list[Frame], sizes: list[int]) -> None:
    frames = [Frame(one.physical_offset, one.data, Epoch(3, 70), one.end) for one in frames]
    decoder = FrameDecoder("master", has_states=True)
    sent = b"".join(map(in_controller_mode, frames))
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


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ((1, 0, 0, 1, 0, 0), "state is 1"),
        ((2, 0, 0, -1, 0, 0), "epoch -1"),
        ((2, 0, 0, 1, -5, 0), "begins at -5"),
        ((2, 0, 0, 1, 0, -2), "confirms the physical offset -2"),
        ((2, -3, 0, 1, 0, 0), "-3 bytes"),
        ((2, 0, -9, 1, 0, 0), "physical offset -9"),
    ],
)
def test_each_field_of_a_header_in_controller_mode_has_bounds(fields: tuple[int, ...], what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        FrameDecoder("master", has_states=True).feed(pack(">iiqiqq", *fields))


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(ProtocolError, match="-7"):
        ReportDecoder("replica").feed(encode_report(5) + pack(">q", -7))


def reply(state: int, epochs: list[tuple[int, int]], end: int, last: int, size: int | None = None) -> bytes:
    size = 12 * len(epochs) if size is None else size
    return pack(">iiqi", state, size, end, last) + b"".join(pack(">iq", *one) for one in epochs)


def test_a_handshake_is_answered_with_epochs() -> None:
    sent = reply(1, [(1, 0), (3, 400)], 900, 3)
    assert [decode_handshake_reply(sent[:size], "m") for size in range(len(sent))] == [None] * len(sent)
    assert decode_handshake_reply(sent, "m") == HandshakeReply(900, (Epoch(1, 0), Epoch(3, 400)))


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (reply(2, [], 0, 0), "state 2"),
        (reply(1, [], 0, 0, size=13), "13 bytes"),
        (reply(1, [], 0, 0, size=-12), "-12 bytes"),
        (reply(1, [], 0, 0, size=12 * 65_537), "786,444 bytes"),
        (reply(1, [(3, 0), (2, 5)], 9, 2), "do not rise"),
        (reply(1, [(1, 8), (2, 5)], 9, 2), "do not rise"),
        (reply(1, [(1, -8)], 9, 1), "do not rise"),
        (reply(1, [(1, 0)], 9, 2), "say otherwise"),
        (reply(1, [(1, 0)], -9, 1), "say otherwise"),
        (reply(1, [(1, 0)], 9, 1) + b"x", "before it was asked"),
    ],
)
def test_an_answer_to_a_handshake_that_is_none_is_refused(sent: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_handshake_reply(sent, "master")


def test_a_replicas_bytes_in_controller_mode() -> None:
    assert encode_handshake(7, is_learner=True) == pack(">ihhq", 1, 0, 1, 7)
    assert encode_state_report(4_711) == pack(">iq", 2, 4_711)


@pytest.mark.parametrize(
    ("own", "own_end", "end"),
    [
        ([(1, 0), (2, 500)], 900, 900),
        ([(1, 0), (2, 500)], 2_000, 1_000),
        ([(1, 0)], 700, 500),
        ([(1, 0)], 300, 300),
        ([(1, 0), (2, 450)], 900, 450),
        ([(1, 7)], 900, None),
        ([], 0, None),
    ],
)
def test_epochs_tell_up_to_where_two_logs_are_the_same(
    own: list[tuple[int, int]], own_end: int, end: int | None
) -> None:
    master = HandshakeReply(1_000, (Epoch(1, 0), Epoch(2, 500)))
    assert shared_end([Epoch(*one) for one in own], own_end, master) == end
