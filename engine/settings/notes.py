"""Notes of backups and online checks (ours).

COPY/fsstore/backup.json    the backed-up store, and the range of its log in the copy
STORE/fsstore/check.json    progress and findings of an online check
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from engine.figures import gauge
from engine.files.disk import Disk, read_own_file, whole_number, write_own_file

VERSION = 1

SILENT_MS = 60_000
"""Time in ms after its last note from which a check counts as interrupted."""
MOST_NOTED, LONGEST_NOTED = 10, 1_000
_NUMBERS = ("begun_ms", "seen_ms", "ended_ms", "done_bytes", "total_bytes", "findings")


@dataclass(frozen=True, slots=True)
class BackupNote:
    """Content of `backup.json`: the copy has physical offsets [begin, end) of `store`, and was made at `made_ms`.

    `is_complete`: the last run finished; else the copy may have more. `end` is -1 if no run ever finished. `stamps`:
    first physical offset -> modification time (ns) of the store's log files in the copy.
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
    """State of an online check at its last note, `seen_ms`, with the bytes of the log that it had read. `ended_ms` is 0
    until its end. Then `findings` is their number, and `first` describes the first ones."""

    begun_ms: int
    seen_ms: int
    ended_ms: int = gauge(
        "Time when the last check of the mounted store ended, in seconds since 1970; 0 until then",
        metric="end_time_seconds",
        number=lambda time_ms: time_ms / 1000,
    )
    done_bytes: int = gauge("Bytes of the log that the last check has read so far")
    total_bytes: int = gauge("Bytes of the log that it reads in total")
    findings: int = gauge("Findings of the last check, once it has ended", default=0)
    first: tuple[str, ...] = ()

    def state(self, now_ms: int) -> str:
        """State at `now_ms`: "ended", "running" or "interrupted"."""
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
