"""Files of a file queue by name: the folders that they are in, and what lies there (docs/format.md, 1 and 3).

    storePathCommitLog=/disk1/commitlog,/disk2/commitlog    files 0, 2, 4 ... in the first, 1, 3, 5 ... in the second
    readOnlyCommitLogStorePaths=/old/commitlog              files there are read and expire; none is made

A file is looked for in every folder, whichever folder was next when it was made: folders are added, and full ones are
passed over.
"""

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
"""So many folders of queues are looked into where some of them tell."""


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Folders that share the files of one queue: `writable` ones take turns, those in `read_only` get none."""

    writable: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.writable:
            raise ValueError("no folder is left that a file could be made in")

    @property
    def folders(self) -> tuple[Path, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.writable, *self.read_only)))

    def in_turn(self, number: int, full: frozenset[Path] = frozenset()) -> list[Path]:
        """The folders for the `number`-th file of the log, the best first; in one of `full` if there is no other.

        A broker does the same: of the paths with space, sorted, the one that the file's number names.
        """
        usable = sorted((folder for folder in self.writable if folder not in full), key=str)
        rest = sorted((folder for folder in self.writable if folder in full), key=str)
        if not usable:
            usable, rest = rest, []
        first = number % len(usable)
        return [*usable[first:], *usable[:first], *rest]


def log_paths(default: Path, chosen: tuple[Path, ...] | None, read_only: tuple[Path, ...]) -> LogPaths:
    """The paths that `chosen` and `read_only` name, absolute; `default` when none is chosen. A path in both is
    read-only. ValueError when no path is left for new files."""
    kept = tuple(dict.fromkeys(path.absolute() for path in read_only))
    named = (path.absolute() for path in chosen) if chosen else (default,)
    return LogPaths(tuple(path for path in dict.fromkeys(named) if path not in kept), kept)


def as_paths(directory: Path | LogPaths) -> LogPaths:
    """One folder, as one that shares its files with no other."""
    return directory if isinstance(directory, LogPaths) else LogPaths((directory,))


def file_name(start: int) -> str:
    """Name of the file that holds offset `start` first: 20 digits."""
    return f"{start:0{NAME_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A directory member that is not as it should be: `kind` is "foreign", "short", "long", "empty" or "twice"."""

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


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a queue, as long as it was found."""

    path: Path
    size: int

    @property
    def has_data(self) -> bool:
        """Whether its first bytes are not zeros: a file that was made ahead, and never used, has nothing."""
        try:
            descriptor = open_file(self.path)
        except (FileNotFoundError, ObstructedError):
            return False
        try:
            return any(os.pread(descriptor, HEAD_BYTES, 0))
        except OSError:  # nobody can say: it may have records
            return True
        finally:
            os.close(descriptor)


def one_of_each(files: Iterable[FoundFile]) -> tuple[dict[int, FoundFile], tuple[FileProblem, ...]]:
    """Files of several directories by their starts; of those with one name the one with data counts, then the first."""
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


def written_ns(path: Path) -> int:
    """When a file was last written, in epoch ns; 0 when it is gone. The time of `lock` tells of a store's writers: each
    writes it once."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def log_files(paths: LogPaths) -> list[Path]:
    """Files of a log, in order."""
    files = (file for folder in paths.folders for file in numbered_files(folder))
    return sorted(files, key=lambda file: file.name)


def numbered_files(directory: Path, digits: int = NAME_DIGITS) -> list[Path]:
    """Files in a folder of numbered files, by name."""
    try:
        members = list(directory.iterdir())
    except FileNotFoundError:
        return []
    return sorted(file for file in members if len(file.name) == digits and file.name.isdecimal() and file.is_file())


def queue_folders(directory: Path) -> Iterator[Path]:
    """Folders of queues in the folders of topics, by name."""
    return (queue for topic in _directories(directory) for queue in _directories(topic))


def _directories(directory: Path) -> list[Path]:
    return sorted(member for member in directory.iterdir() if member.is_dir()) if directory.is_dir() else []


def folders_in(directory: Path) -> list[str]:
    """Names of the folders in a directory; none when it is missing. OSError."""
    try:
        with os.scandir(directory) as members:
            return [member.name for member in members if member.is_dir()]
    except FileNotFoundError:
        return []
