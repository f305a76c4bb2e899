"""The bytes of RocketMQ's replication: one TCP connection for each replica, all integers big-endian.

Without a controller:

    replica -> master    offset i64                     the end of the replica's log. The first report is the request
                                                        where to begin, every one is an acknowledgement
    master -> replica    offset i64 | size i32 | data   bytes of the log; size 0 is a heartbeat

With one (AutoSwitchHAService of 5.x), on the same port:

    replica -> master    1 i32 | last file only i16 | learner i16 | broker id i64
    master -> replica    1 i32 | epochs' bytes i32 | max offset i64 | last epoch i32 | (epoch i32 | begin i64) ...
    replica -> master    2 i32 | offset i64
    master -> replica    2 i32 | size i32 | offset i64 | epoch i32 | epoch's begin i64 | confirmed offset i64 | data

There is no handshake without a controller, and no checksum in either. A frame never crosses the end of a log file, and
cuts records anywhere. Everything here is pure: sockets are the caller's. Whatever comes is checked against its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

from engine.errors import ProtocolError
from engine.record.header import MAX_OFFSET

MAX_FRAME_BYTES = 64 << 20
"""Limit of a frame's data. A master's frames have `haTransferBatchSize` bytes, 32 KiB by default."""

MAX_EPOCHS = 65_536
"""Limit of the epochs in a handshake."""

_REPORT = Struct(">q")
_FRAME = Struct(">qi")
_HANDSHAKE = Struct(">ihhq")
_REPLY = Struct(">iiqi")
_EPOCH = Struct(">iq")
_STATE_REPORT = Struct(">iq")
_STATE_FRAME = Struct(">iiqiqq")
assert (_REPORT.size, _FRAME.size, _HANDSHAKE.size, _REPLY.size) == (8, 12, 16, 20)
assert (_EPOCH.size, _STATE_REPORT.size, _STATE_FRAME.size) == (12, 12, 36)

HANDSHAKE, TRANSFER = 1, 2
"""States of a connection in controller mode."""

UNCONFIRMED = -1
"""`confirmed_end` of a master that has confirmed nothing yet."""


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """A term of a master: its number, and the physical offset of the first byte that was written in it."""

    number: int
    begin: int


@dataclass(frozen=True, slots=True)
class Frame:
    """`data` is the log from `physical_offset` on; empty: a heartbeat. `epoch` and `confirmed_end`, the physical offset
    up to which consumers may read, are there in controller mode only."""

    physical_offset: int
    data: bytes
    epoch: Epoch | None = None
    confirmed_end: int | None = None

    @property
    def end(self) -> int:
        """Physical offset of the byte after the data."""
        return self.physical_offset + len(self.data)


def encode_report(physical_offset: int) -> bytes:
    """A replica's request or acknowledgement: its log ends at `physical_offset`."""
    return _REPORT.pack(physical_offset)


def encode_frame_header(physical_offset: int, size_bytes: int) -> bytes:
    """The header of a frame: `size_bytes` of the log from `physical_offset` on follow it; 0: a heartbeat."""
    return _FRAME.pack(physical_offset, size_bytes)


class ReportDecoder:
    """Decodes what a replica sends, in pieces of any size."""

    def __init__(self, peer: str) -> None:
        """`peer` names the replica in errors."""
        self._peer = peer
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The physical offsets that are complete with `data`, oldest first. ProtocolError: one is negative."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        reports = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        if any(offset < 0 for offset in reports):
            raise ProtocolError(self._peer, f"it reported the physical offset {min(reports)}")
        return reports


class FrameDecoder:
    """Decodes what a master sends, in pieces of any size. It holds at most one incomplete frame."""

    def __init__(self, peer: str, *, has_states: bool = False) -> None:
        """`peer` names the master in errors. `has_states`: frames are those of controller mode."""
        self._peer = peer
        self._header = _STATE_FRAME if has_states else _FRAME
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with `data`, in order. ProtocolError: a header's field is out of its bounds."""
        rest, found, position = self._rest, list[Frame](), 0
        rest += data
        while len(rest) - position >= self._header.size:
            frame, size_bytes = self._checked(self._header.unpack_from(rest, position))
            start = position + self._header.size
            if len(rest) - start < size_bytes:
                break
            position = start + size_bytes
            data = bytes(memoryview(rest)[start:position])
            found.append(Frame(frame.physical_offset, data, frame.epoch, frame.confirmed_end))
        del rest[:position]
        return found

    def _checked(self, fields: tuple[int, ...]) -> tuple[Frame, int]:
        """A frame without its data, and the number of bytes of these."""
        epoch = confirmed_end = None
        if self._header is _FRAME:
            physical_offset, size_bytes = fields
        else:
            state, size_bytes, physical_offset, number, begin, confirmed_end = fields
            if state != TRANSFER:
                raise ProtocolError(self._peer, f"a frame's state is {state}, not {TRANSFER}")
            if number < 0 or not 0 <= begin <= MAX_OFFSET:
                raise ProtocolError(self._peer, f"a frame is of epoch {number} that begins at {begin}")
            if confirmed_end < UNCONFIRMED:
                raise ProtocolError(self._peer, f"a frame confirms the physical offset {confirmed_end}")
            epoch = Epoch(number, begin)
        if not 0 <= size_bytes <= MAX_FRAME_BYTES:
            raise ProtocolError(self._peer, f"a frame has {size_bytes:,} bytes, of at most {MAX_FRAME_BYTES:,}")
        if not 0 <= physical_offset <= MAX_OFFSET - size_bytes:
            raise ProtocolError(self._peer, f"a frame begins at the physical offset {physical_offset}")
        return Frame(physical_offset, b"", epoch, confirmed_end), size_bytes


# controller mode


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """A master's answer to a handshake: the end of its log and its epochs, oldest first."""

    physical_end: int
    epochs: tuple[Epoch, ...]


def encode_handshake(broker_id: int, *, is_learner: bool) -> bytes:
    """A replica's first bytes in controller mode. A learner never becomes a master, nor does one wait for it."""
    return _HANDSHAKE.pack(HANDSHAKE, False, is_learner, broker_id)


def encode_state_report(physical_offset: int) -> bytes:
    """As `encode_report`, in controller mode."""
    return _STATE_REPORT.pack(TRANSFER, physical_offset)


def decode_handshake_reply(data: bytes, peer: str) -> HandshakeReply | None:
    """The reply that `data` is; None: more of it has to come. ProtocolError: it is none."""
    if len(data) < _REPLY.size:
        return None
    state, size_bytes, physical_end, last = _REPLY.unpack_from(data)
    if state != HANDSHAKE:
        raise ProtocolError(peer, f"it answered a handshake with state {state}, not {HANDSHAKE}")
    if size_bytes % _EPOCH.size or not 0 <= size_bytes <= MAX_EPOCHS * _EPOCH.size:
        raise ProtocolError(peer, f"its epochs have {size_bytes:,} bytes")
    if len(data) < _REPLY.size + size_bytes:
        return None
    if len(data) > _REPLY.size + size_bytes:
        raise ProtocolError(peer, "it sent more than its handshake before it was asked")
    epochs = tuple(Epoch(*fields) for fields in _EPOCH.iter_unpack(data[_REPLY.size :]))
    is_rising = all(one.number < other.number and one.begin <= other.begin for one, other in pairwise(epochs))
    if not is_rising or any(one.number < 0 or not 0 <= one.begin <= MAX_OFFSET for one in epochs):
        raise ProtocolError(peer, "its epochs do not rise")
    if not 0 <= physical_end <= MAX_OFFSET or (epochs and epochs[-1].number != last):
        raise ProtocolError(peer, f"its log ends at {physical_end} in epoch {last}, and its epochs say otherwise")
    return HandshakeReply(physical_end, epochs)


def shared_end(own: Sequence[Epoch], own_end: int, master: HandshakeReply) -> int | None:
    """Physical offset up to which both logs have the same bytes, by their epochs; None: they share no epoch. `own` are
    the replica's epochs, oldest first, and `own_end` is the end of its log."""
    ends = dict(zip(master.epochs, [*(one.begin for one in master.epochs[1:]), master.physical_end], strict=True))
    end = own_end
    for epoch in reversed(own):
        if epoch in ends:
            return min(end, ends[epoch])
        end = epoch.begin
    return None
