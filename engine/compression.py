"""Bodies that a client compressed: what the bits of a record's sys_flag say, and how to undo it (docs/format.md, 2)."""

import threading
import zlib
from itertools import islice

import lz4.frame
import zstandard

from engine.haste import require_time

COMPRESSED_FLAG = 0x1
TYPE_MASK = 0x700
LZ4_TYPE = 0x100
ZSTD_TYPE = 0x200
ZLIB_TYPES = (0x000, 0x300)  # the first is from before there was a choice

REMEMBERED_SIZES = 32_768
"""Some 5 MiB at most."""

# zstandard bounds no output: four bytes can become 128 KiB, so this much at a time becomes at most 16 MiB.
_ZSTD_STEP_BYTES = 512


def decompress(stored: bytes | memoryview, sys_flag: int, limit_bytes: int) -> bytes:
    """The body in `stored`, compressed as `sys_flag` says. A longer body than `limit_bytes` is cut at one byte more.

    ValueError when the bytes are not such a stream, end early, or the type is unknown; TakesLongError in haste.
    """
    require_time()
    compression = sys_flag & TYPE_MASK
    try:
        if compression in ZLIB_TYPES:
            return _zlib(stored, limit_bytes)
        if compression == LZ4_TYPE:
            return _lz4(stored, limit_bytes)
        if compression == ZSTD_TYPE:
            return _zstd(stored, limit_bytes)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise ValueError(f"body cannot be decompressed: {error}") from error
    raise ValueError(f"unknown compression type {compression >> 8}")


def try_decompress(stored: bytes | memoryview, sys_flag: int, limit_bytes: int) -> bytes | None:
    """As `decompress`; None for what is no such stream, or longer than `limit_bytes`."""
    try:
        body = decompress(stored, sys_flag, limit_bytes)
    except ValueError:
        return None
    return body if len(body) <= limit_bytes else None


def _zlib(stored: bytes | memoryview, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    body = stream.decompress(stored, limit_bytes + 1)
    _check_whole(stream.eof, body, limit_bytes)
    return body


def _lz4(stored: bytes | memoryview, limit_bytes: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    body: bytes = stream.decompress(bytes(stored), max_length=limit_bytes + 1)
    _check_whole(stream.eof, body, limit_bytes)
    return body


def _zstd(stored: bytes | memoryview, limit_bytes: int) -> bytes:
    stream = zstandard.ZstdDecompressor().decompressobj()
    body = bytearray()
    for start in range(0, len(stored), _ZSTD_STEP_BYTES):
        body += stream.decompress(stored[start : start + _ZSTD_STEP_BYTES])
        if stream.eof or len(body) > limit_bytes:
            break
    _check_whole(stream.eof, body, limit_bytes)
    return bytes(body[: limit_bytes + 1])


class BodySizes:
    """How long compressed bodies are, as far as they were decompressed lately: by place and CRC, so that a record that
    came in the place of another is not taken for it. Thread safety: any thread."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()

    def get(self, physical_offset: int, body_crc: int) -> int | None:
        """Bytes of a body, -1 for one that can't be decompressed, None where that is not known."""
        return self._sizes.get(physical_offset << 32 | body_crc & 0xFFFFFFFF)

    def remember(self, physical_offset: int, body_crc: int, size: int) -> None:
        """Note what `get` is to say; the oldest ones make room."""
        with self._lock:
            self._sizes[physical_offset << 32 | body_crc & 0xFFFFFFFF] = size
            if len(self._sizes) > REMEMBERED_SIZES:
                for oldest in list(islice(self._sizes, REMEMBERED_SIZES // 4)):
                    del self._sizes[oldest]


def _check_whole(eof: bool, body: bytes | bytearray, limit_bytes: int) -> None:
    if not eof and len(body) <= limit_bytes:
        raise ValueError("compressed body ends early")
