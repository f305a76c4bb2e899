"""Frozen records that the engine returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from operator import not_
from typing import NamedTuple

from engine.figures import counter, gauge
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


class QueueState(NamedTuple):
    """The state of a queue: its bounds as in `QueueBounds`, and the number of its files. `refused`: the error
    with which its files can't be read; the numbers are zeros then."""

    topic: str
    queue: int
    min_offset: int = 0
    max_offset: int = 0
    files: int = 0
    refused: Exception | None = None

    @property
    def messages(self) -> int:
        """Number of queue offsets between the bounds."""
        return self.max_offset - self.min_offset


class TextAtRest(NamedTuple):
    """The `.log` of a topic whose queues are not open."""

    first_offset: int
    """Physical offset of the first message."""
    bytes: int
    newest_store_time_ms: int


class QueueAtRest(NamedTuple):
    """A queue that is not open."""

    min_offset: int
    newest_store_time_ms: int | None
    """None: it never had a message."""


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

    clean: bool = gauge("1 if the last writer had not closed the store", metric="recovered", number=not_, default=True)
    scanned_bytes: int = gauge("Bytes of the log that it read", metric="recovery_scanned_bytes", default=0)
    scanned_messages: int = 0
    cut_bytes: int = gauge("Bytes of a torn tail that it cut", metric="recovery_cut_bytes", default=0)
    damaged: tuple[int, ...] = gauge(
        "Places of the log that it could not read",
        metric="recovery_damaged",
        number=len,
        notice="damage place in the log can't be read (mountctl check)",
        default=(),
    )
    rebuilt: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = gauge("Duration of the opening", metric="recovery_seconds", number=float, default=0.0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The store in figures; JSON-able with `dataclasses.asdict`. Sizes in bytes, counters since this open."""

    path: str
    mode: str
    read_only_reason: str | None = gauge("1 if nothing can be published", metric="read_only", number=bool)
    messages: int = gauge("Messages that can be read")
    topics: int = gauge("Topics")
    queues: int = gauge("Queues of all topics")
    min_physical_offset: int = gauge("Physical offset at which the log begins: records before it have expired")
    physical_end: int = gauge("Physical offset at which the next record is stored")
    durable_end: int = gauge("Physical offset up to which the log is on disk")
    commit_log_files: int = gauge("Files of the log")
    consume_queue_files: int = gauge("Files of consume queues")
    index_files: int = gauge("Files of the index")
    commit_log_file_bytes: int = gauge("Size of each file of the log")
    consume_queue_file_bytes: int = gauge("Size of each file of a consume queue")
    index_slots: int = gauge("Hash slots of an index file")
    index_entries: int = gauge("Keys that an index file holds at most")
    size_bytes: int = gauge("Size of all these files; the next file of the log is made ahead")
    disk_free_bytes: int = gauge("Free space of the store's disk; of several disks, the largest")
    disk_total_bytes: int = gauge("Size of that disk")
    put_messages: int = counter("Messages stored since this daemon opened the store")
    put_bytes: int = counter("Bytes of records stored since then")
    read_messages: int = counter("Messages read since then, without reads that the kernel's cache answered")
    read_bytes: int = counter("Bytes of bodies read since then")
    queries: int = counter("Look-ups of keys since then")
    flushes: int = counter("Flushes of the log to disk since then")
    expired_files: int = counter("Files of the log that retention deleted since then")
    expired_messages: int = counter("Messages in these files")
    expired_bytes: int = counter("Bytes of these files")
    sync_flush: bool = gauge("1 if a write is answered when it is on disk")
    opened_at_ms: int = gauge("Time when this daemon opened the store, in milliseconds since 1970")
    commit_log_kind: str
    """Format of the commit log: RocketMQ's own, or DLedger's."""
    index: str = gauge(
        "0 if a follower can't find keys, or not all of them",
        metric="index_in_use",
        number=lambda state: state in ("in use", "rebuilt", "derived"),
    )
    """`IndexState.state`."""
    index_reason: str | None
    queues_derived: str | None = gauge(
        "1 if queues are made from the log, not read from the writer's files", number=bool
    )
    """Reason why consume queues are derived from the log; None: the store's own are used."""
    not_shown: tuple[str, ...] = gauge("Kinds of data in the store that are not read", number=len)
    """Sentences: data in a form that is not read, and the offset after which a follower can't read the log."""
    damaged_places: int = gauge(
        "Places of the log that readers could not read since then",
        notice="unreadable place in the log, found by readers since the opening",
    )
    no_space_reason: str | None = gauge(
        "1 if a publication found no space, and there still is none", metric="no_space", number=bool
    )
    """Reason why the newest publication found no space, while that lasts; None: it found space."""
    last_deletion: Deletion | None
    """The last deletion by retention since this open."""
    refused_pages: int = gauge(
        "Pages of the log, queues and index that the disk refused to read, since this daemon began",
        notice="refused read by the disk: mountctl check tells where",
    )
    """Counts all stores of this process, and retries."""
    ignored_errors: int = gauge(
        "Errors of the disk since then that cost only time or memory: marks or sizes not written",
        notice="ignored error of the disk, last: {last_ignored_error}",
    )
    last_ignored_error: str | None
    recovery: RecoveryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFigures:
    """A replica that a master serves. `lag_ms` is the age of the oldest record that it has not acknowledged; None: it
    acknowledged a part of a record."""

    replica: str
    """Its address."""
    is_in_sync: bool = gauge("1 if the replica counts for inSyncReplicas", metric="in_sync", number=bool)
    is_in_oldest_file: bool = gauge(
        "1 if the next byte of the replica is in the oldest file of the log", metric="in_oldest_file", number=bool
    )
    acknowledged_end: int = gauge("Physical offset up to which the replica has acknowledged the log")
    lag_bytes: int = gauge("Bytes of the log that the replica has not acknowledged")
    lag_ms: int | None = gauge("Age of the oldest record among them", number=lambda ms: ms or 0)
    last_heard_seconds: float = gauge("Seconds since the replica sent something", number=float)
    sent_bytes: int = counter("Bytes of the log that the replica was sent since it connected")


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFigures:
    """A writer that serves replicas. `needed` is how many of them a sync waits for; 0: it does not wait."""

    role: str
    address: str
    """The address at which it serves the log."""
    remoting_address: str
    """The address at which it answers a replica's other requests."""
    connected: int = gauge("Replicas that are connected")
    in_sync: int = gauge("Replicas that count for inSyncReplicas")
    in_oldest_file: int = gauge(
        "Replicas whose next byte is in the oldest file of the log",
        notice="behind replica that needs the oldest file of the log: retention waits for none",
    )
    needed: int = gauge("Replicas that a sync waits for")
    confirmed_end: int = gauge("Physical offset up to which so many replicas have the log; 0 for ASYNC_MASTER")
    timeouts: int = counter(
        "Syncs that failed because too few replicas acknowledged in time",
        notice="failed sync that timed out: too few replicas acknowledged in time",
    )
    refused: int = counter(
        "Connections that were refused or closed for a reason",
        notice="refused connection of a replica, last: {last_refusal}",
    )
    last_refusal: str | None
    replicas: tuple[ReplicaFigures, ...]


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
        position = self.path if self.position < 0 else f"{self.path} at byte {self.position}"
        return f"{self.kind.value}: {position}: {self.text}"


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """Progress of a check or repair in bytes of the commit log; `stage` is a word to show."""

    stage: str
    done_bytes: int
    total_bytes: int
