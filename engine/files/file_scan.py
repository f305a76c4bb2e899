"""Files of a file queue by name: the scan of a folder (docs/format.md, 3)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ObstructedError
from engine.files.paths import open_file
from engine.record.header import MAX_OFFSET

NAME_DIGITS = 20
HEAD_BYTES = 8
SAMPLED_QUEUES = 200
"""Maximum number of queue folders read by checks for which a sample is enough."""


def file_name(start: int) -> str:
    """Name of the file whose first byte has offset `start`: 20 digits."""
    return f"{start:0{NAME_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """An unexpected directory member: `kind` is "foreign", "short", "long", "empty" or "twice"."""

    path: Path
    kind: str
    expected_bytes: int
    found_bytes: int


def scan_directory(directory: Path, file_bytes: int) -> tuple[dict[int, int], tuple[FileProblem, ...]]:
    """The files in `directory`, start -> size in bytes, and the unexpected members. Empty files are left out."""
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


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a file queue, with its size in bytes when it was found."""

    path: Path
    size: int

    @property
    def has_data(self) -> bool:
        """Whether one of the first HEAD_BYTES is not zero: a preallocated file that was never used has only zeros."""
        try:
            descriptor = open_file(self.path)
        except (FileNotFoundError, ObstructedError):
            return False
        try:
            return any(os.pread(descriptor, HEAD_BYTES, 0))
        except OSError:  # it can't be read: it may have records
            return True
        finally:
            os.close(descriptor)


def one_of_each(files: Iterable[FoundFile]) -> tuple[dict[int, FoundFile], tuple[FileProblem, ...]]:
    """Start -> file, and problems for duplicates. Of files with one name the one with data is taken, then the first."""
    found: dict[int, FoundFile] = {}
    spare: list[FoundFile] = []
    for file in files:
        other = found.setdefault(int(file.path.name), file)
        if other is not file:
            keeps = other.has_data or not file.has_data
            found[int(file.path.name)] = other if keeps else file
            spare.append(file if keeps else other)
    return found, tuple(FileProblem(file.path, "twice", 0, file.size) for file in spare)


def _problem_kind(start: int, size: int, file_bytes: int) -> str:
    if start < 0 or start % file_bytes or start > MAX_OFFSET - file_bytes or size < 0:
        return "foreign"
    if size == 0:
        return "empty"
    return "" if size == file_bytes else "short" if size < file_bytes else "long"


def _members(directory: Path) -> dict[str, int]:
    """Name -> size in bytes for the members of a directory; -1 if it is not a regular file."""
    found: dict[str, int] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    found[entry.name] = entry.stat().st_size if entry.is_file() else -1
                except FileNotFoundError:
                    continue  # it was removed during the scan
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


def written_ns(path: Path) -> int:
    """Modification time in epoch ns; 0 for a missing file. The time of `lock` identifies a writer: each writes it
    once."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def numbered_files(directory: Path, digits: int = NAME_DIGITS) -> list[Path]:
    """Files in a folder whose names have `digits` digits, by name."""
    try:
        members = list(directory.iterdir())
    except FileNotFoundError:
        return []
    return sorted(file for file in members if len(file.name) == digits and file.name.isdecimal() and file.is_file())


def queue_folders(directory: Path) -> Iterator[Path]:
    """Folders of queues in the folders of topics, by name. OSError."""
    for topic in sorted(folders_in(directory)):
        for queue in sorted(folders_in(directory / topic)):
            yield directory / topic / queue


def folders_in(directory: Path | str) -> list[str]:
    """Names of the folders in a directory; none when it is missing. OSError."""
    try:
        with os.scandir(directory) as members:
            return [member.name for member in members if member.is_dir()]
    except FileNotFoundError:
        return []
