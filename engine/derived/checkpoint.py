"""The checkpoint file: up to when each kind of data is on disk (docs/format.md, 4).

    physic_ms i64 | logics_ms i64 | index_ms i64 | master_flushed_offset i64 | confirm_offset i64 | unused, to 4096

Big-endian, no checksum. The times are a hint for recovery: a value that is too old costs time, and one that is too new
loses entries of consume queues. So each is written only after its data is on disk. The last two fields are RocketMQ
5's and are preserved.
"""

import os
import re
import struct
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import ObstructedError
from engine.files.disk import Disk, flush_error
from engine.files.paths import is_refused_read, open_file, open_or_create, read_file

CHECKPOINT_BYTES = 4096
FIELDS = struct.Struct(">5q")
assert FIELDS.size == 40

RECOVERY_MARGIN_MS = 3_000
_COMMITTED = re.compile(rb"^committedIndex=(-?[0-9]{1,19})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times of the newest messages whose log, consume queues and index are on disk; 0 when unknown."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """Messages stored up to this time need not be dispatched again: min(physic, logics) less 3 s, at least 0."""
        return max(0, min(self.physic_ms, self.logics_ms) - RECOVERY_MARGIN_MS)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`; all zeros if the file is missing or unreadable, or a time is negative, which only costs
    time. ObstructedError, OSError."""
    try:
        descriptor = open_file(path)
    except (FileNotFoundError, IsADirectoryError):
        return Checkpoint()
    try:
        head = os.pread(descriptor, FIELDS.size, 0)
    except OSError as error:
        if not is_refused_read(error):
            raise
        return Checkpoint()
    finally:
        os.close(descriptor)
    found = Checkpoint(*FIELDS.unpack(head.ljust(FIELDS.size, b"\0")))
    if min(found.physic_ms, found.logics_ms, found.index_ms) < 0:
        return Checkpoint()
    return found


def read_committed_entry(path: Path) -> int | None:
    """The last committed entry in DLedger's own checkpoint at `path` (`committedIndex=589`), None without it."""
    try:
        text = read_file(path, CHECKPOINT_BYTES)
    except (OSError, ObstructedError, ValueError):
        return None
    found = _COMMITTED.search(text)
    return int(found[1]) if found else None


class CheckpointFile:
    """The checkpoint of a store that is open for writing. Thread safety: any thread."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = threading.Lock()
        self._value = read_checkpoint(path)

    @property
    def value(self) -> Checkpoint:
        """The checkpoint in the file, or after the next update."""
        return self._value

    def note_index_flushed(self, time_ms: int) -> None:
        """Note the store time of the newest record in a full index file on disk. The next update writes it."""
        with self._lock:
            self._value = replace(self._value, index_ms=time_ms)

    def update(self, *, physic_ms: int, logics_ms: int) -> None:
        """Durably store the times up to which log and consume queues are on disk. FlushFailedError,
        NoDescriptorError."""
        with self._lock:
            self._value = replace(self._value, physic_ms=physic_ms, logics_ms=logics_ms)
            try:
                write_checkpoint(self.path, self._value, self._disk)
            except OSError as error:
                raise flush_error(self.path, error) from error


def write_checkpoint(path: Path, checkpoint: Checkpoint, disk: Disk) -> None:
    """Store the checkpoint durably, with a new file's name. OSError.

    It is overwritten as by RocketMQ: the fields lie in one sector, which a power cut leaves old or new.
    """
    head = FIELDS.pack(
        checkpoint.physic_ms,
        checkpoint.logics_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
    )
    descriptor = open_or_create(path)
    try:
        if os.fstat(descriptor).st_size < CHECKPOINT_BYTES:
            disk.allocate(descriptor, path, 0, CHECKPOINT_BYTES)
            disk.sync_directory(path.parent)
        os.pwrite(descriptor, head, 0)
        disk.sync(descriptor, path)
    finally:
        os.close(descriptor)
