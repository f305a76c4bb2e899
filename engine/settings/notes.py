"""Notes of backups, online checks and replicas (ours).

COPY/fsstore/backup.json      the backed-up store, and the range of its log in the copy
STORE/fsstore/check.json      progress and findings of an online check
STORE/fsstore/replica.json    the master of a replica, and the state of the replication
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from engine.figures import counter, gauge
from engine.files.disk import Disk, read_own_file, replace_own_file, whole_number, write_own_file
from engine.results import MasterFigures, ReplicaFigures

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


NO_NEWS_MS = 10_000
"""Time in ms after its last note from which a replica's process counts as ended."""


class ReplicaState(Enum):
    """The state of a replica's process. STOPPED: it ended. REFUSED: it ended, because the master's log does not
    continue the copy's."""

    CONNECTING = "connecting"
    CATCHING_UP = "catching up"
    IN_SYNC = "in sync"
    NO_SPACE = "no space"
    REFUSED = "refused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaNote:
    """State of a replica, noted each second, last at `noted_ms`. `reason`: of the last interruption, empty once it is
    over. `lacks` names what the master does not give. `settings` are the master's with which the copy was made.
    `physical_end` is the copy's end, `master_end` the newest known end of the master's log; -1: unknown. `newest_ms` is
    the store time of the newest record. `serves` has the replicas of the copy itself; None: it serves none."""

    master: str = ""
    remoting: str = ""
    cluster: str = ""
    broker: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    state: ReplicaState = ReplicaState.CONNECTING
    noted_ms: int = 0
    reason: str = ""
    lacks: str = ""
    physical_end: int = 0
    master_end: int = -1
    newest_ms: int = 0
    heard_ms: int = gauge(
        "Time when the master was heard last, in seconds since 1970; 0: never",
        metric="heard_time_seconds",
        number=lambda time_ms: time_ms / 1000,
        default=0,
    )
    received_bytes: int = counter("Bytes of log that the replica's process has received", default=0)
    connections: int = counter("Connections to the master that the replica's process has made", default=0)
    refused_frames: int = counter("Connections that ended because of bytes that are no records", default=0)
    epoch: int = gauge("Newest epoch of the master's log; -1: it has no controller", default=-1)
    confirmed_end: int = gauge("Physical offset up to which the master's log is confirmed", default=-1)
    serves: MasterFigures | None = None

    @property
    def lag_bytes(self) -> int:
        """Bytes of the master's log that the copy lacks; -1: unknown."""
        return max(self.master_end - self.physical_end, 0) if self.master_end >= 0 else -1

    @property
    def lag_ms(self) -> int:
        """Age of the newest record while the copy lacks bytes, by the clocks of both hosts; 0: it lacks none."""
        return max(self.noted_ms - self.newest_ms, 0) if self.lag_bytes > 0 and self.newest_ms else 0

    def is_running(self, now_ms: int) -> bool:
        """Whether the replica's process seems to run."""
        has_ended = self.state in (ReplicaState.STOPPED, ReplicaState.REFUSED)
        return not has_ended and abs(now_ms - self.noted_ms) < NO_NEWS_MS


def read_replica_note(path: Path) -> ReplicaNote | None:
    """The note at `path`; None when there is none, or none that can be understood."""
    stored = read_own_file(path)
    try:
        if stored["version"] != VERSION:
            return None
        settings = {str(name): str(value) for name, value in stored["settings"].items()}
        texts = {name: str(stored[name])[:LONGEST_NOTED] for name in _REPLICA_TEXTS}
        numbers = {name: whole_number(stored.get(name, -1), -1) for name in _REPLICA_NUMBERS}
        serves = _master_figures(found) if (found := stored.get("serves")) else None
        state = ReplicaState(stored["state"])
        return ReplicaNote(settings=settings, state=state, serves=serves, **texts, **numbers)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _master_figures(stored: Any) -> MasterFigures:
    """KeyError, TypeError, ValueError, AttributeError: they are not ours."""
    numbers = {name: whole_number(stored[name]) for name in _MASTER_NUMBERS}
    refusal = stored["last_refusal"]
    return MasterFigures(
        role=str(stored["role"])[:LONGEST_NOTED],
        address=str(stored["address"])[:LONGEST_NOTED],
        remoting_address=str(stored["remoting_address"])[:LONGEST_NOTED],
        last_refusal=None if refusal is None else str(refusal)[:LONGEST_NOTED],
        replicas=tuple(map(_replica_figures, stored["replicas"])),
        **numbers,
    )


def _replica_figures(stored: Any) -> ReplicaFigures:
    """As `_master_figures`."""
    lag_ms, heard_seconds = stored["lag_ms"], stored["last_heard_seconds"]
    if not isinstance(heard_seconds, int | float):
        raise ValueError("no time that we write")
    return ReplicaFigures(
        replica=str(stored["replica"])[:LONGEST_NOTED],
        is_in_sync=stored["is_in_sync"] is True,
        is_in_oldest_file=stored["is_in_oldest_file"] is True,
        acknowledged_end=whole_number(stored["acknowledged_end"]),
        lag_bytes=whole_number(stored["lag_bytes"]),
        lag_ms=None if lag_ms is None else whole_number(lag_ms),
        last_heard_seconds=heard_seconds,
        sent_bytes=whole_number(stored["sent_bytes"]),
    )


def write_replica_note(path: Path, note: ReplicaNote, disk: Disk, *, durably: bool) -> None:
    """Store the note; its existence marks a replica. Each second it is not worth a sync. OSError."""
    content = {"version": VERSION, **asdict(note), "state": note.state.value}
    if durably:
        write_own_file(path, content, disk)
    else:
        replace_own_file(path, content)


_REPLICA_TEXTS = ("master", "remoting", "cluster", "broker", "reason", "lacks")
_REPLICA_NUMBERS = tuple(
    one.name for one in fields(ReplicaNote) if one.name not in (*_REPLICA_TEXTS, "settings", "state", "serves")
)
_MASTER_NUMBERS = ("connected", "in_sync", "in_oldest_file", "needed", "confirmed_end", "timeouts", "refused")


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
