"""The bytes of RocketMQ's replication: one TCP connection for each replica, all integers big-endian.

    replica -> master    offset i64                     the end of the replica's log. The first report is the request
                                                        where to begin, every one is an acknowledgement
    master -> replica    offset i64 | size i32 | data   bytes of the log; size 0 is a heartbeat

A broker with a controller (AutoSwitchHAService of 5.x) speaks another protocol on the same port:

    replica -> master    1 i32 | newest file only i16 | learner i16 | broker id i64
    master -> replica    1 i32 | epochs' bytes i32 | log's end i64 | last epoch i32 | (epoch i32 | begin i64) ...
    replica -> master    2 i32 | offset i64
    master -> replica    2 i32 | size i32 | offset i64 | epoch i32 | its begin i64 | confirmed end i64 | data

There is no handshake without a controller, and no checksum in either. A frame never crosses the end of a log file, and
cuts records anywhere. Everything here is pure: sockets are the caller's. Whatever comes is checked against its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

from engine.errors import ProtocolError
from engine.record.header import MAX_OFFSET
from engine.replication.epochs import MAX_EPOCHS, Epoch, is_rising

MAX_FRAME_BYTES = 64 << 20
"""Limit of a frame's data. A master's frames have `haTransferBatchSize` bytes, 32 KiB by default."""

_REPORT = Struct(">q")
_FRAME = Struct(">qi")
_HANDSHAKE = Struct(">ihhq")
_REPLY = Struct(">iiqi")
_EPOCH = Struct(">iq")
_EPOCH_REPORT = Struct(">iq")
_EPOCH_FRAME = Struct(">iiqiqq")
assert (_REPORT.size, _FRAME.size, _HANDSHAKE.size, _REPLY.size) == (8, 12, 16, 20)
assert (_EPOCH.size, _EPOCH_REPORT.size, _EPOCH_FRAME.size) == (12, 12, 36)

_SHAKING_HANDS, _TRANSFER = 1, 2
"""States of a connection to a broker with a controller."""

_NO_BROKER = -1
"""Our broker id: none of those that a controller gives, so the master takes us for no member of its set."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`data` is the log from `physical_offset` on; empty: a heartbeat. A master with a controller also tells its
    `epoch`, and the physical offset up to which no other master will take the log back."""

    physical_offset: int
    data: bytes
    epoch: Epoch | None = None
    confirmed_end: int = MAX_OFFSET

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

    def __init__(self, peer: str, *, has_epochs: bool = False) -> None:
        """`peer` names the master in errors. `has_epochs`: it has a controller."""
        self._peer = peer
        self._header = _EPOCH_FRAME if has_epochs else _FRAME
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray) -> list[Frame]:
        """The frames that are complete with `data`, in order. ProtocolError: a header's field is out of its bounds."""
        rest, found, position = self._rest, list[Frame](), 0
        rest += data
        while len(rest) - position >= self._header.size:
            size_bytes, physical_offset, *terms = self._checked(*self._header.unpack_from(rest, position))
            start = position + self._header.size
            if len(rest) - start < size_bytes:
                break
            position = start + size_bytes
            found.append(Frame(physical_offset, bytes(memoryview(rest)[start:position]), *terms))
        del rest[:position]
        return found

    def _checked(self, *fields: int) -> tuple[Any, ...]:
        """Size of the data, physical offset, and with a controller epoch and confirmed end."""
        if self._header is _FRAME:
            physical_offset, size_bytes = fields
            self._check(physical_offset, size_bytes)
            return size_bytes, physical_offset
        state, size_bytes, physical_offset, number, begin, confirmed_end = fields
        if state != _TRANSFER:
            raise ProtocolError(self._peer, f"a frame has the state {state}, not {_TRANSFER}")
        if physical_offset != -1 or size_bytes:  # -1: a heartbeat of a log without a byte
            self._check(physical_offset, size_bytes)
        if not is_rising([Epoch(number, begin)]):
            raise ProtocolError(self._peer, f"a frame is of epoch {number} that begins at {begin}")
        if not -1 <= confirmed_end <= MAX_OFFSET:  # -1: nothing yet
            raise ProtocolError(self._peer, f"a frame confirms the physical offset {confirmed_end}")
        return size_bytes, physical_offset, Epoch(number, begin), confirmed_end

    def _check(self, physical_offset: int, size_bytes: int) -> None:
        if not 0 <= size_bytes <= MAX_FRAME_BYTES:
            raise ProtocolError(self._peer, f"a frame has {size_bytes:,} bytes, of at most {MAX_FRAME_BYTES:,}")
        if not 0 <= physical_offset <= MAX_OFFSET - size_bytes:
            raise ProtocolError(self._peer, f"a frame begins at the physical offset {physical_offset}")


# a master with a controller


def encode_handshake() -> bytes:
    """A replica's first bytes: it is a learner, for which the master never waits, and asks for all files."""
    return _HANDSHAKE.pack(_SHAKING_HANDS, False, True, _NO_BROKER)


def encode_epoch_report(physical_offset: int) -> bytes:
    """As `encode_report`, after a handshake."""
    return _EPOCH_REPORT.pack(_TRANSFER, physical_offset)


def decode_handshake(data: bytes, peer: str) -> tuple[int, tuple[Epoch, ...]] | None:
    """The end of a master's log and its epochs, oldest first, in its answer to a handshake; None: more of it has to
    come. ProtocolError: `data` is none."""
    if len(data) < _REPLY.size:
        return None
    state, size_bytes, log_end, last = _REPLY.unpack_from(data)
    if state != _SHAKING_HANDS:
        raise ProtocolError(peer, f"it answered a handshake with the state {state}, not {_SHAKING_HANDS}")
    if size_bytes % _EPOCH.size or not 0 <= size_bytes <= MAX_EPOCHS * _EPOCH.size:
        raise ProtocolError(peer, f"its epochs have {size_bytes:,} bytes")
    if len(data) < _REPLY.size + size_bytes:
        return None
    epochs = tuple(Epoch(*fields) for fields in _EPOCH.iter_unpack(data[_REPLY.size :][:size_bytes]))
    if len(data) > _REPLY.size + size_bytes or not is_rising(epochs):
        raise ProtocolError(peer, f"its {len(epochs):,} epochs do not rise, or more follows them")
    if last != (epochs[-1].number if epochs else -1):
        raise ProtocolError(peer, f"its last epoch is {last}, and not of its {len(epochs):,} epochs")
    if not (epochs[-1].begin if epochs else 0) <= log_end <= MAX_OFFSET:
        raise ProtocolError(peer, f"its log ends at {log_end}, and its epochs do not")
    return log_end, epochs
