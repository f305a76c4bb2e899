"""Notes, ours, that a backup and a check leave behind.

COPY/fsstore/backup.json    of which store a directory is a backup, and up to where
STORE/fsstore/check.json    how far a check beside the writer is, and what it found
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from engine.files.disk import Disk, read_own_file, whole_number, write_own_file

VERSION = 1

SILENT_MS = 60_000
"""A check that has noted nothing for so long was interrupted."""
MOST_NOTED, LONGEST_NOTED = 10, 1_000
_NUMBERS = ("begun_ms", "seen_ms", "ended_ms", "done_bytes", "total_bytes", "findings")


@dataclass(frozen=True, slots=True)
class BackupNote:
    """What `backup.json` says: the copy is of `store`, physical offsets [begin, end), made at `made_ms`.

    `is_complete`: the last run came to its end; else the copy may reach further. `end` -1: none ever did. `stamps` are
    the modification times (ns) of the store's log files that are in the copy, by their first physical offset.
    """

    store: str
    is_complete: bool
    begin: int
    end: int
    made_ms: int
    stamps: dict[int, int]


def read_backup_note(path: Path) -> BackupNote | None:
    """The note at `path`; None when there is none, or none that can be understood."""
    stored = read_own_file(path)
    try:
        if stored["version"] != VERSION:
            return None
        return BackupNote(
            str(stored["store"]),
            stored["is_complete"] is True,
            whole_number(stored["begin"]),
            whole_number(stored["end"], -1),
            whole_number(stored["made_ms"]),
            {int(start): whole_number(time_ns) for start, time_ns in stored["stamps"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def write_backup_note(path: Path, note: BackupNote, disk: Disk) -> None:
    """Store the note, durably. OSError."""
    write_own_file(path, {"version": VERSION, **asdict(note)}, disk)


@dataclass(frozen=True, slots=True)
class CheckNote:
    """A check beside the writer, as it was noted last, at `seen_ms`: how many bytes of the log it had read. `ended_ms`
    is 0 until its end; then its findings are known, `first` are some in words."""

    begun_ms: int
    seen_ms: int
    ended_ms: int
    done_bytes: int
    total_bytes: int
    findings: int = 0
    first: tuple[str, ...] = ()

    def state(self, now_ms: int) -> str:
        """ended, running or interrupted."""
        if self.ended_ms:
            return "ended"
        return "running" if now_ms - self.seen_ms < SILENT_MS else "interrupted"


def read_check_note(path: Path) -> CheckNote | None:
    """The note at `path`; None when there is none, or none that can be understood."""
    stored = read_own_file(path)
    try:
        begun, seen, ended, done, total, findings = (whole_number(stored[name]) for name in _NUMBERS)
        first = tuple(str(text)[:LONGEST_NOTED] for text in stored["first"][:MOST_NOTED])
        return CheckNote(begun, seen, ended, done, total, findings, first)
    except (ValueError, KeyError, TypeError):
        return None


def write_check_note(path: Path, note: CheckNote, disk: Disk) -> None:
    """Store the note, durably. OSError."""
    write_own_file(path, asdict(note), disk)
