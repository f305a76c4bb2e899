"""Compressed bodies: their types in a record's sys_flag, and decompression (docs/format.md, 2)."""

from __future__ import annotations

import mmap
import threading
import zlib
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import lz4.frame
import zstandard

from engine.deadline import check_deadline
from engine.errors import BodyTooLargeError, DamagedRecordError

if TYPE_CHECKING:
    from engine.record.message import StoredMessage

COMPRESSED_FLAG = 0x1
TYPE_MASK = 0x700
LZ4_TYPE = 0x100
ZSTD_TYPE = 0x200
ZLIB_TYPES = (0x000, 0x300)  # the first is from before there was a choice

BODY_LIMIT_BYTES = 64 << 20
"""Default limit of a decompressed body."""

REMEMBERED_SIZES = 32_768
"""Number of cached sizes; they take up to about 5 MiB."""

PIECE_BYTES = 1 << 20
"""A body is decompressed in pieces of this size, so that other threads can run between them."""

_STORED_PIECE_BYTES = 1 << 16
# zstandard does not limit its output: four bytes can become 128 KiB. These input steps keep the output below a piece.
_ZSTD_STEP_BYTES = 32
_ZSTD_LONGEST_STEP_BYTES = 512


def decompress(stored: bytes | memoryview, sys_flag: int, limit_bytes: int) -> memoryview:
    """The decompressed body, read-only; `sys_flag` has the type. A body of more than `limit_bytes` is cut to
    `limit_bytes` + 1.

    ValueError: invalid or incomplete data, or an unknown type; WouldBlock on a nonblocking thread.
    """
    check_deadline()
    compression = sys_flag & TYPE_MASK
    undo = _UNDO.get(compression)
    if undo is None:
        raise ValueError(f"unknown compression type {compression >> 8}")
    body = _Body(limit_bytes + 1)
    try:
        is_whole = undo(memoryview(stored), body)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise ValueError(f"body cannot be decompressed: {error}") from error
    if not is_whole and not body.is_full:
        raise ValueError("compressed body ends early")
    return body.finished()


def decompressed_body(message: StoredMessage, limit_bytes: int) -> memoryview:
    """The decompressed body of a message. BodyTooLargeError, DamagedRecordError; WouldBlock on a nonblocking thread."""
    try:
        body = decompress(message.stored_body, message.sys_flag, limit_bytes)
    except ValueError as error:
        raise DamagedRecordError(message.physical_offset, str(error)) from error
    if len(body) > limit_bytes:
        raise BodyTooLargeError(message.physical_offset, limit_bytes)
    return body


def try_decompress(stored: bytes | memoryview, sys_flag: int, limit_bytes: int) -> memoryview | None:
    """As `decompress`; None for invalid data, or a body of more than `limit_bytes`."""
    try:
        body = decompress(stored, sys_flag, limit_bytes)
    except ValueError:
        return None
    return body if len(body) <= limit_bytes else None


class _Body:
    """Buffer for a decompressed body of up to `most_bytes`. A long body has its own mapping, because a growing buffer
    would fragment the heap."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._memory: bytearray | mmap.mmap = bytearray()
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size == self._most_bytes

    @property
    def next_bytes(self) -> int:
        """Maximum size of the next piece."""
        return min(PIECE_BYTES, self._most_bytes - self._size)

    def add(self, piece: bytes) -> None:
        """Append `piece`, up to `most_bytes` in all."""
        end = min(self._size + len(piece), self._most_bytes)
        if end > PIECE_BYTES and isinstance(self._memory, bytearray):
            begun, flags = self._memory, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._memory = mmap.mmap(-1, self._most_bytes, flags=flags)  # unused pages take no memory
            self._memory[: self._size] = begun
        self._memory[self._size : end] = piece[: end - self._size]
        self._size = end

    def finished(self) -> memoryview:
        """The body, read-only."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.resize(self._size)
        return memoryview(self._memory).toreadonly()


def _zlib(stored: memoryview, body: _Body) -> bool:
    """Decompress `stored` into `body` until it is full; returns whether the stream is complete. As the others below."""
    stream = zlib.decompressobj()
    for start in range(0, len(stored), _STORED_PIECE_BYTES):
        rest: bytes | memoryview = stored[start : start + _STORED_PIECE_BYTES]
        while not stream.eof and not body.is_full:
            piece = stream.decompress(rest, body.next_bytes)
            body.add(piece)
            rest = stream.unconsumed_tail
            if not rest and not piece:
                break
    return stream.eof


def _lz4(stored: memoryview, body: _Body) -> bool:
    stream = lz4.frame.LZ4FrameDecompressor()
    for start in range(0, len(stored), _STORED_PIECE_BYTES):
        rest = bytes(stored[start : start + _STORED_PIECE_BYTES])
        while not stream.eof and not body.is_full:
            body.add(stream.decompress(rest, max_length=body.next_bytes))
            rest = b""
            if stream.needs_input:
                break
    return bool(stream.eof)


def _zstd(stored: memoryview, body: _Body) -> bool:
    stream = zstandard.ZstdDecompressor().decompressobj()
    start, step = 0, _ZSTD_STEP_BYTES
    while start < len(stored) and not stream.eof and not body.is_full:
        piece = stream.decompress(stored[start : start + step])
        body.add(piece)
        start += step
        step = _ZSTD_STEP_BYTES if len(piece) > PIECE_BYTES // 8 else min(2 * step, _ZSTD_LONGEST_STEP_BYTES)
    return bool(stream.eof)


_UNDO: dict[int, Callable[[memoryview, _Body], bool]] = {
    **dict.fromkeys(ZLIB_TYPES, _zlib),
    LZ4_TYPE: _lz4,
    ZSTD_TYPE: _zstd,
}


class BodySizes:
    """Cache of decompressed sizes by physical offset and CRC; the CRC detects a record that replaced another one.
    Thread safety: any thread."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()

    def get(self, physical_offset: int, body_crc: int) -> int | None:
        """Size of a body in bytes; -1: it can't be decompressed; None: unknown."""
        return self._sizes.get(physical_offset << 32 | body_crc & 0xFFFFFFFF)

    def remember(self, physical_offset: int, body_crc: int, size: int) -> None:
        """Store a size for `get`; the oldest ones are evicted."""
        with self._lock:
            self._sizes[physical_offset << 32 | body_crc & 0xFFFFFFFF] = size
            if len(self._sizes) > REMEMBERED_SIZES:
                for oldest in list(islice(self._sizes, REMEMBERED_SIZES // 4)):
                    del self._sizes[oldest]
