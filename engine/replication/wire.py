"""The bytes of RocketMQ's replication: one TCP connection for each replica, all integers big-endian.

    replica -> master    offset i64                     the end of the replica's log. The first report is the request
                                                        where to begin, every one is an acknowledgement
    master -> replica    offset i64 | size i32 | data   bytes of the log; size 0 is a heartbeat

There is no handshake and no checksum. A frame never crosses the end of a log file, and cuts records anywhere. A broker
with a controller speaks another protocol on the same port. Everything here is pure: sockets are the caller's. Whatever
comes is checked against its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from engine.errors import ProtocolError
from engine.record.header import MAX_OFFSET

MAX_FRAME_BYTES = 64 << 20
"""Limit of a frame's data. A master's frames have `haTransferBatchSize` bytes, 32 KiB by default."""

_REPORT = Struct(">q")
_FRAME = Struct(">qi")
assert (_REPORT.size, _FRAME.size) == (8, 12)


@dataclass(frozen=True, slots=True)
class Frame:
    """`data` is the log from `physical_offset` on; empty: a heartbeat."""

    physical_offset: int
    data: bytes

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

    def __init__(self, peer: str) -> None:
        """`peer` names the master in errors."""
        self._peer = peer
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with `data`, in order. ProtocolError: a header's field is out of its bounds."""
        rest, found, position = self._rest, list[Frame](), 0
        rest += data
        while len(rest) - position >= _FRAME.size:
            physical_offset, size_bytes = _FRAME.unpack_from(rest, position)
            self._check(physical_offset, size_bytes)
            start = position + _FRAME.size
            if len(rest) - start < size_bytes:
                break
            position = start + size_bytes
            found.append(Frame(physical_offset, bytes(memoryview(rest)[start:position])))
        del rest[:position]
        return found

    def _check(self, physical_offset: int, size_bytes: int) -> None:
        if not 0 <= size_bytes <= MAX_FRAME_BYTES:
            raise ProtocolError(self._peer, f"a frame has {size_bytes:,} bytes, of at most {MAX_FRAME_BYTES:,}")
        if not 0 <= physical_offset <= MAX_OFFSET - size_bytes:
            raise ProtocolError(self._peer, f"a frame begins at the physical offset {physical_offset}")
