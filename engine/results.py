"""Frozen records that the engine returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from engine.record.header import message_id


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Queue offsets [min_offset, max_offset): the oldest message kept, and the offset the next message will get."""

    min_offset: int
    max_offset: int

    @property
    def count(self) -> int:
        """Queue offsets between the bounds."""
        return self.max_offset - self.min_offset


class PutResult(NamedTuple):
    """Position of one stored message. `topic` and `queue` of a delayed message are those of the schedule topic.

    `store_host` is encoded as in the record.
    """

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    store_size: int
    store_time_ms: int
    store_host: bytes

    @property
    def physical_end(self) -> int:
        """Physical offset just past the record: what `wait_durable` takes."""
        return self.physical_offset + self.store_size

    @property
    def msg_id(self) -> str:
        """Upper-case hex of store host and physical offset, as RocketMQ names a stored message."""
        return message_id(self.store_host, self.physical_offset)


@dataclass(frozen=True, slots=True)
class PutRange:
    """Position of a stored batch: queue offsets [queue_offset, queue_offset + count); count is 0 for an empty batch.

    `physical_offset` is the first record's, `physical_end` just past the last (equal when count is 0).
    """

    topic: str
    queue: int
    queue_offset: int
    count: int
    physical_offset: int
    physical_end: int
    store_time_ms: int


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of the recovery at an opening.

    `clean`: the last writer closed the store. `scanned_bytes` of the commit log were read and checked. `cut_bytes` of
    a torn or stale tail were dropped. `damaged`: physical offsets of damaged ranges, which stay in the log and read
    as errors. `rebuilt`: names of the derived data that was rebuilt. `notes`: sentences for the user.
    """

    clean: bool = True
    scanned_bytes: int = 0
    scanned_messages: int = 0
    cut_bytes: int = 0
    damaged: tuple[int, ...] = ()
    rebuilt: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Deletion:
    """Log files that retention deleted at `at_ms`, or would delete now, for one reason. `messages` counts those in the
    queues; `oldest_ms` and `newest_ms` are their first and last store times (None: no messages)."""

    at_ms: int
    reason: str
    files: int
    bytes: int
    messages: int
    oldest_ms: int | None
    newest_ms: int | None

    def __str__(self) -> str:
        stored = "".join(
            f" {word} {datetime.fromtimestamp(time_ms / 1000).isoformat(sep=' ', timespec='milliseconds')}"
            for word, time_ms in (("stored", self.oldest_ms), ("to", self.newest_ms))
            if time_ms is not None
        )
        files, messages = "file" if self.files == 1 else "files", "message" if self.messages == 1 else "messages"
        what = f"{self.files:,} {files} of the log, {self.bytes:,} bytes, with {self.messages:,} {messages}"
        return f"{what}{stored}: {self.reason}"

    def and_then(self, later: Deletion) -> Deletion:
        """Both deletions as one. The files of `later` follow these in the log."""
        return Deletion(
            self.at_ms,
            self.reason,
            self.files + later.files,
            self.bytes + later.bytes,
            self.messages + later.messages,
            later.oldest_ms if self.oldest_ms is None else self.oldest_ms,
            self.newest_ms if later.newest_ms is None else later.newest_ms,
        )


class IndexState(NamedTuple):
    """State of the key index: "in use", "rebuilt" (at the opening), "derived" (from the followed log), "none" (a
    follower finds no key) or "not proved" (a follower may miss keys). `reason` is a sentence, None for "in use"."""

    state: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The store in figures; JSON-able with `dataclasses.asdict`. Sizes in bytes, counters since this open."""

    path: str
    mode: str
    read_only_reason: str | None
    messages: int
    topics: int
    queues: int
    min_physical_offset: int
    physical_end: int
    durable_end: int
    commit_log_files: int
    consume_queue_files: int
    index_files: int
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    index_slots: int
    index_entries: int
    size_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    put_messages: int
    put_bytes: int
    read_messages: int
    read_bytes: int
    queries: int
    flushes: int
    expired_files: int
    expired_messages: int
    expired_bytes: int
    sync_flush: bool
    opened_at_ms: int
    commit_log_kind: str = "RocketMQ"
    """Format of the commit log: RocketMQ's own, or DLedger's."""
    index: str = "in use"
    """`IndexState.state`."""
    index_reason: str | None = None
    queues_derived: str | None = None
    """Reason why consume queues are derived from the log; None: the store's own are used."""
    not_shown: tuple[str, ...] = ()
    """Sentences: data in a form that is not read, and the offset after which a follower can't read the log."""
    damaged_places: int = 0
    """Count of log offsets where readers met a damaged record since this open."""
    no_space_reason: str | None = None
    """Reason why the newest publication found no space, while that lasts; None: it found space."""
    last_deletion: Deletion | None = None
    """The last deletion by retention since this open."""
    refused_pages: int = 0
    """Failed page reads of logs, queues and indexes, of all stores of this process since it began; retries count."""
    ignored_errors: int = 0
    """Disk errors since this open that cost only time or memory: an unwritten mark, unwritten sizes, delayed keys."""
    last_ignored_error: str | None = None
    recovery: RecoveryReport = field(default_factory=RecoveryReport)


@dataclass(frozen=True, slots=True)
class NewestRecord:
    """The last good record of a log; `size` in bytes."""

    physical_offset: int
    size: int
    store_time_ms: int

    @property
    def end(self) -> int:
        """Physical offset just past it."""
        return self.physical_offset + self.size


class DamageKind(Enum):
    """Cause of a range without a good record."""

    UNREADABLE = "no record can be made out"
    LOST_SECTOR = "a sector of zeros where topic and properties should be"
    MISNUMBERED = "a record whose queue offset can't be right"
    MISPLACED = "a record whose topic or queue id can't be right"
    MOVED = "a record that another queue holds for its own"
    BLANK = "the blank at a file's end, which may stand for what was damaged"
    TOMBSTONE = "framed by a repair: whoever reads the log passes it"


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [start, end) of the commit log that hold no good record, between good ones."""

    start: int
    end: int
    reason: str
    kind: DamageKind
    since_ms: int
    """Store time of the newest record before it."""

    @property
    def is_new(self) -> bool:
        """Whether the damage is not handled yet: neither repaired nor explained by another record."""
        return self.kind not in (DamageKind.MOVED, DamageKind.BLANK, DamageKind.TOMBSTONE)


class ProblemKind(Enum):
    """Kind of a broken invariant; `mountctl check` prints the values."""

    BAD_RECORD = "bad record"
    STALE_TAIL = "stale tail"
    MISSING_FILE = "missing file"
    FOREIGN_FILE = "foreign file"
    WRONG_SIZE = "wrong size"
    CONSUME_QUEUE = "consume queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    DERIVED = "derived data"
    LIVE_WRITER = "live writer"
    BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant. `path` is relative to the store; `position` is a byte of that file, or -1 for the whole
    file."""

    kind: ProblemKind
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        place = self.path if self.position < 0 else f"{self.path} at byte {self.position}"
        return f"{self.kind.value}: {place}: {self.text}"


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """Progress of a check or repair in bytes of the commit log; `stage` is a word to show."""

    stage: str
    done_bytes: int
    total_bytes: int
