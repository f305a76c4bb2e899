"""What lies in the directory of a file queue: its files by their offsets, and what is odd there (docs/format.md, 3)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engine.allocate import NAME_DIGITS

MAX_OFFSET = (1 << 63) - 1
"""No byte of a queue can lie behind: its offset would be no int64."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A directory member that is not as it should be: `kind` is "foreign", "short", "long" or "empty"."""

    path: Path
    kind: str
    expected_bytes: int
    found_bytes: int


def scan_directory(directory: Path, file_bytes: int) -> tuple[dict[int, int], tuple[FileProblem, ...]]:
    """The files of a queue in `directory`, start -> size in bytes, and what is odd there. Empty files are left out."""
    sizes: dict[int, int] = {}
    problems: list[FileProblem] = []
    for name, size in sorted(_members(directory).items()):
        start = int(name) if len(name) == NAME_DIGITS and name.isdecimal() and name.isascii() else -1
        kind = _problem_kind(start, size, file_bytes)
        if kind:
            problems.append(FileProblem(directory / name, kind, file_bytes, size))
        if kind not in ("foreign", "empty"):
            sizes[start] = size
    return sizes, tuple(problems)


def _problem_kind(start: int, size: int, file_bytes: int) -> str:
    if start < 0 or start % file_bytes or start > MAX_OFFSET - file_bytes or size < 0:
        return "foreign"
    if size == 0:
        return "empty"
    return "" if size == file_bytes else "short" if size < file_bytes else "long"


def _members(directory: Path) -> dict[str, int]:
    """Names in a directory with their sizes; -1 for what is no regular file."""
    found: dict[str, int] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    found[entry.name] = entry.stat().st_size if entry.is_file() else -1
                except FileNotFoundError:
                    continue  # it went while we looked
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found
