"""Of which store a directory is a backup, and up to where: COPY/fsstore/backup.json (ours)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from engine.files.disk import Disk, read_own_file, whole_number, write_own_file

VERSION = 1


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
