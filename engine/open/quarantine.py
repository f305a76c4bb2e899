"""Quarantine: moves files out of the way that are not the store's, or are malformed.

No file is deleted: files and folders go to STORE/fsstore/damaged, under their paths. So do copies of a log file's bytes
past its size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ReadError, RefusedReadError
from engine.files.disk import Disk, make_directory
from engine.files.file_scan import scan_directory
from engine.files.layout import StoreLayout
from engine.files.mapped_file import Access, MappedFile, used_end
from engine.files.paths import open_file, rename
from engine.log.tombstone import keep_bytes
from engine.record.record import CLOSING_ZEROS
from engine.record.scan import holds_record
from engine.results import Problem, ProblemKind
from engine.settings.config_file import BACKUP_SUFFIX, intact

if TYPE_CHECKING:
    from engine.files.file_queue import FileQueue


def quarantine_foreign(layout: StoreLayout, problems: Sequence[Problem], disk: Disk) -> Iterator[str]:
    """Move the foreign files among `problems`; yield a sentence for each. OSError.

    These include files of queues and index that are too long: the next opening makes them again.
    """
    for problem in problems:
        found = layout.root / problem.path
        if problem.kind is not ProblemKind.FOREIGN_FILE or not os.path.lexists(found):
            continue
        if found.parent in layout.commit_log.read_only:
            yield f"left {found}, which is no file of this store: {found.parent} is only read"
        elif found.is_relative_to(layout.root) or found.stat().st_dev == layout.root.stat().st_dev:
            moved = quarantine(layout, problem.path, disk)
            yield f"moved {problem.path}, which is no file of this store, to {moved}"
        else:
            yield f"left {found}, which is no file of this store: it is on another disk; move it away"


def quarantine_config(layout: StoreLayout, path: str, disk: Disk) -> Iterator[str]:
    """Move a malformed config file and its backup out of the way; yield a sentence for each. OSError.

    A good backup stays if the disk refuses its file.
    """
    backup = f"{path}{BACKUP_SUFFIX}"
    stays = intact(layout.root / path) is None and intact(layout.root / backup) is not None
    for name in (path,) if stays else (path, backup):
        if os.path.lexists(layout.root / name):
            yield f"moved {name}, which can't be understood, to {quarantine(layout, name, disk)}"


def written_after(files: FileQueue, end: int) -> int:
    """Number of bytes from the physical offset `end` to the log's last byte that is not zero."""
    for file in reversed(files.files):
        if file.start + file.size <= end:
            break
        behind = max(end - file.start, 0)
        try:
            used = used_end(file, behind)
        except ReadError:
            continue
        if used > behind:
            return file.start + used - end
    return 0


def keep_records(layout: StoreLayout, files: FileQueue, end: int, disk: Disk) -> Iterator[str]:
    """Copy the bytes after the physical offset `end` of each log file that has whole records there, before they are
    cut; yield a sentence for each file. OSError."""
    for file in files.files:
        try:
            pages = file.pages()
        except ReadError:
            continue
        first = max(end - file.start, 0)
        if first >= len(pages) or (last := used_end(file, first)) == first:
            continue
        last = min(last + CLOSING_ZEROS, len(pages))
        if holds_record(pages, first, last, file.start):
            kept = keep_bytes(layout.quarantine, file, first, last, disk).relative_to(layout.root)
            yield (
                f"{last - first:,} bytes at physical offset {file.start + first} were cut, which hold whole records"
                f" that are none of this log's: a copy is in {kept}"
            )


def quarantine(layout: StoreLayout, path: str, disk: Disk) -> Path:
    """Move `path`, below the store's folder, to the quarantine, durably; return its new path. OSError."""
    source = layout.root / path
    kept = path if source.is_relative_to(layout.root) else f"commitlog/{source.name}"
    target = _free_name(layout.quarantine / kept)
    for changed in make_directory(target.parent):
        disk.sync_directory(changed)
    rename(source, target)
    disk.sync_directory(target.parent)
    disk.sync_directory(source.parent)
    return target.relative_to(layout.root)


def set_aside(layout: StoreLayout, refused: RefusedReadError, disk: Disk) -> str:
    """Quarantine a file of derived data that the disk refuses: the next opening makes it again. Returns a sentence.
    Raises `refused` if the file is not derived data. Call it under the store's lock. OSError."""
    is_derived = any(refused.path.is_relative_to(folder) for folder in (layout.consume_queues, layout.index))
    if not is_derived or not os.path.lexists(refused.path):
        raise refused
    moved = quarantine(layout, str(refused.path.relative_to(layout.root)), disk)
    return f"moved {layout.shown(refused.path)} to {moved}, to make it again from the log: {refused}"


def _free_name(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in chain([path], numbered) if not os.path.lexists(name))


def cut_long_files(layout: StoreLayout, file_bytes: int, disk: Disk) -> Iterator[str]:
    """Cut longer log files to `file_bytes`, after a copy of the rest; yield a sentence for each. OSError."""
    for folder in layout.commit_log.writable:
        for problem in scan_directory(folder, file_bytes)[1]:
            if problem.kind == "long":
                size = problem.found_bytes
                file = MappedFile(problem.path, size, Access.WRITE, start=int(problem.path.name), disk=disk)
                kept = keep_bytes(layout.quarantine, file, file_bytes, size, disk)
                file.close()
                _cut(problem.path, file_bytes)
                yield f"cut {problem.path.name} to its size; what it had more is in {kept.relative_to(layout.root)}"


def _cut(path: Path, file_bytes: int) -> None:
    descriptor = open_file(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, file_bytes)
    finally:
        os.close(descriptor)
