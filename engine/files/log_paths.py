"""LogPaths: the folders that a commit log's files are in, and which of them gets the next file (docs/format.md, 1).

    storePathCommitLog=/disk1/commitlog,/disk2/commitlog    files 0, 2, 4 ... in the first, 1, 3, 5 ... in the second
    readOnlyCommitLogStorePaths=/old/commitlog              files there are read, and go with retention; none is made

A file is looked for in every folder, wherever its turn would have been: folders are added, and full ones passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        """Where the `number`-th file of the log goes, the best place first; in one of `full` if there is no other.

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
