"""Status: a store's files in figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from engine.log.parts import StoreParts


class FileFigures(TypedDict):
    """The part of StoreStats that the files tell."""

    messages: int
    min_physical_offset: int
    physical_end: int
    commit_log_kind: str
    commit_log_files: int
    consume_queue_files: int
    index_files: int
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    index_slots: int
    index_entries: int
    size_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int


def measure_files(parts: StoreParts) -> FileFigures:
    """Count and add up; opens every queue. `messages` are queue offsets between the bounds of all queues."""
    queues = list(parts.queues)
    sizes = parts.sizes
    log_files, index_files = len(parts.log.files.files), len(parts.index.files)
    queue_files = sum(len(queue.files.files) for queue in queues)
    free, total = max(disk_space(folder) for folder in parts.layout.commit_log.writable)
    return FileFigures(
        messages=sum(max(queue.max_offset - queue.min_offset, 0) for queue in queues),
        min_physical_offset=parts.log.min_offset,
        physical_end=parts.log.wrote_end,
        commit_log_kind=parts.log.framing.kind,
        commit_log_files=log_files,
        consume_queue_files=queue_files,
        index_files=index_files,
        commit_log_file_bytes=sizes.commit_log_bytes,
        consume_queue_file_bytes=sizes.consume_queue_bytes,
        index_slots=sizes.index_slots,
        index_entries=sizes.index_entries,
        size_bytes=log_files * sizes.commit_log_bytes
        + queue_files * sizes.consume_queue_bytes
        + index_files * sizes.index_bytes,
        disk_free_bytes=free,
        disk_total_bytes=total,
    )


def disk_space(path: Path) -> tuple[int, int]:
    """(free for us, total) bytes of the disk under `path`; zeros when it can't be asked."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
