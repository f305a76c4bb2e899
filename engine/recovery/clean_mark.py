"""Clean mark: the store was closed, and this is what its files looked like (docs/format.md, 13).

    STORE/fsstore/clean.json

With it, opening reads no record: whatever the number of messages, it costs one look at each file's size and time. It is
removed, durably, before anything is written, and counts for nothing when any file is not as it was left.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files.disk import Disk, read_own_file, write_own_file
from engine.files.layout import StoreLayout
from engine.recovery.recovery_point import Coverage, coverage_object, parse_coverage

Stamp = tuple[int, int]
"""Size in bytes and modification time in ns."""

STAMPED = ("consumequeue", "index")
STAMPED_FILES = ("checkpoint",)


@dataclass(frozen=True, slots=True)
class CleanMark:
    """What was covered at the close, and the stamp of every file by its path below the store, or its absolute path."""

    coverage: Coverage
    files: dict[str, Stamp]


def stamp_files(layout: StoreLayout) -> dict[str, Stamp]:
    """Stamps of all files of the log and of what is derived from it."""
    store = layout.root
    stamps: dict[str, Stamp] = {}
    for folder in layout.commit_log.folders:
        _stamp_directory(folder, layout.shown(folder), stamps)
    for name in STAMPED:
        _stamp_directory(store / name, name, stamps)
    for name in STAMPED_FILES:
        if (store / name).exists():
            status = (store / name).stat()
            stamps[name] = (status.st_size, status.st_mtime_ns)
    return stamps


def _stamp_directory(directory: Path, name: str, stamps: dict[str, Stamp]) -> None:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir():
            _stamp_directory(Path(entry.path), f"{name}/{entry.name}", stamps)
        else:
            status = entry.stat()
            stamps[f"{name}/{entry.name}"] = (status.st_size, status.st_mtime_ns)


def read_clean_mark(layout: StoreLayout) -> CleanMark | None:
    """The store's mark if every file is as it says; else None."""
    try:
        mark = _parse(read_own_file(layout.clean_mark))
        return mark if mark is not None and mark.files == stamp_files(layout) else None
    except OSError:
        return None


def _parse(stored: Any) -> CleanMark | None:
    try:
        coverage = parse_coverage(stored["coverage"])
        files = {str(name): (size, mtime_ns) for name, (size, mtime_ns) in stored["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return CleanMark(coverage, files) if coverage is not None else None


def write_clean_mark(path: Path, mark: CleanMark, disk: Disk) -> None:
    """Store the mark, durably: the last thing before the lock is let go. OSError."""
    write_own_file(path, {"coverage": coverage_object(mark.coverage), "files": mark.files}, disk)
