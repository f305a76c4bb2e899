"""Tombstones: damaged bytes of the log, framed as a record that all readers skip (docs/format.md, 8).

A reader of the log stops at bytes that are no record, and RocketMQ's recovery deletes all bytes after them. So `repair`
frames a damaged range:

    header of a rolled-back transaction | the damaged bytes that the frame does not overwrite | topic DAMAGED-BYTES

Such a record is in no queue and in no index. A range that reaches the end of its file becomes a blank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from engine.files.disk import Disk, make_directory, replace_file
from engine.files.paths import read_file
from engine.record.header import BLANK_BYTES, CRC_MASK, HEADERS, MESSAGE_MAGIC, MIN_RECORD_BYTES, TRANSACTION_ROLLBACK
from engine.record.kernel.crc import crc32
from engine.record.kernel.files import require_read
from engine.record.record import encode_blank

if TYPE_CHECKING:
    from engine.files.mapped_file import MappedFile

TOMBSTONE_TOPIC = "DAMAGED-BYTES"
HEADER = HEADERS[0]
NO_HOST = bytes(8)
NO_NUMBER = -1
"""Queue offset in a tombstone: no entry has it, not even in a queue of a topic named DAMAGED-BYTES."""


def is_tombstone(topic: str, store_size: int) -> bool:
    """Whether a rolled-back record of `topic` with `store_size` bytes frames damaged bytes."""
    return topic == TOMBSTONE_TOPIC[: store_size - MIN_RECORD_BYTES]


def fits_tombstone(start: int, end: int, file_end: int) -> bool:
    """Whether the positions [start, end) of a file of `file_end` bytes are long enough for a frame."""
    return end - start > MIN_RECORD_BYTES if end < file_end else end - start >= BLANK_BYTES


def write_tombstone(file: MappedFile, start: int, end: int, store_time_ms: int) -> None:
    """Frame the positions [start, end) of a log file. An interrupted call leaves them damaged. StoreFullError."""
    pages = file.writable(start, end)
    if end == file.size:
        pages[start : start + BLANK_BYTES] = encode_blank(end - start)
        return
    size = end - start
    topic = TOMBSTONE_TOPIC[: size - MIN_RECORD_BYTES].encode()
    tail = len(topic).to_bytes(1, "big") + topic + bytes(2)
    body = bytes(pages[start + HEADER.size : end - len(tail)])
    header = HEADER.pack(
        size,
        MESSAGE_MAGIC,
        crc32(body) & CRC_MASK,
        0,
        0,
        NO_NUMBER,
        file.start + start,
        TRANSACTION_ROLLBACK,
        store_time_ms,
        NO_HOST,
        store_time_ms,
        NO_HOST,
        0,
        0,
        len(body),
    )
    pages[end - len(tail) : end] = tail
    pages[start + BLANK_BYTES : start + HEADER.size] = header[BLANK_BYTES:]
    pages[start : start + BLANK_BYTES] = header[:BLANK_BYTES]


def keep_bytes(folder: Path, file: MappedFile, start: int, end: int, disk: Disk) -> Path:
    """Copy positions [start, end) of a log file unchanged to a file in `folder`, durably; return its path. OSError,
    RefusedReadError: there is no copy."""
    for changed in make_directory(folder):
        disk.sync_directory(changed)
    view = file.whole()[start:end]
    content = bytes(view)
    require_read(view)
    name = f"{file.start + start:020d}-{file.start + end:020d}"
    path = next(path for path in _names(folder, name) if not os.path.lexists(path) or _holds(path, content))
    replace_file(path, content, disk)
    return path


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_file(path, len(content)) == content
    except (OSError, ValueError):
        return False


def _names(folder: Path, name: str) -> Iterator[Path]:
    yield folder / name
    yield from (folder / f"{name}.{number}" for number in count(1))
