"""How a store is opened, sized, flushed and kept: frozen values that the engine's parts take in their constructors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from engine.files.disk import Disk
from engine.record.header import Host
from engine.record.kernel.append import wall_clock_ms
from engine.settings.delay_levels import DelayLevels

Clock = Callable[[], int]
"""Answers the time in epoch milliseconds; injected, so that tests turn their own hands."""

CONSUME_QUEUE_ENTRY_BYTES = 20
INDEX_HEADER_BYTES = 40
INDEX_SLOT_BYTES = 4
INDEX_ENTRY_BYTES = 20


COMMIT_LOG_BYTES = "mappedFileSizeCommitLog"
CONSUME_QUEUE_BYTES = "mappedFileSizeConsumeQueue"
INDEX_SLOTS = "maxHashSlotNum"
INDEX_ENTRIES = "maxIndexNum"
WRITABLE_PATHS = "storePathCommitLog"
READ_ONLY_PATHS = "readOnlyCommitLogStorePaths"
"""What broker.conf, and our files beside it, call sizes and folders."""


class OpenMode(Enum):
    """WRITE: the only writer. READ_ONLY: no writer may be there. FOLLOW: read while another process writes."""

    WRITE = "write"
    READ_ONLY = "read-only"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Sizes of a store's files; all files of a kind have one size, and no file says it (docs/format.md, 1)."""

    commit_log_bytes: int
    consume_queue_entries: int
    index_slots: int
    index_entries: int

    def __post_init__(self) -> None:
        if min(self.commit_log_bytes, self.consume_queue_entries, self.index_slots) < 1 or self.index_entries < 2:
            raise ValueError(f"file sizes must be positive, and an index needs two entries: {self}")

    @property
    def consume_queue_bytes(self) -> int:
        """Size of a consume queue file."""
        return self.consume_queue_entries * CONSUME_QUEUE_ENTRY_BYTES

    @property
    def index_bytes(self) -> int:
        """Size of an index file: header, slots, entries."""
        return INDEX_HEADER_BYTES + self.index_slots * INDEX_SLOT_BYTES + self.index_entries * INDEX_ENTRY_BYTES


EMBEDDED_SIZES = FileSizes(16 << 20, 65_536, 100_000, 400_000)
"""For a store of our own: small files, quick to make and to expire."""

BROKER_SIZES = FileSizes(1 << 30, 300_000, 5_000_000, 20_000_000)
"""RocketMQ's defaults."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When written bytes are brought to disk (docs/format.md, 4). Pages are 4096 bytes.

    sync                                writers are to wait until their bytes are on disk (group commit)
    interval_ms, least_pages            how often the commit log is flushed, if at least so many pages wait
    thorough_interval_ms                how often it is flushed however little waits
    consume_queue_...                   the same for derived data, and for recovery point and checkpoint
    commit_...                          the same for copying write buffers to the file (transient pool only)
    """

    sync: bool = False
    interval_ms: int = 500
    least_pages: int = 4
    thorough_interval_ms: int = 10_000
    consume_queue_interval_ms: int = 1_000
    consume_queue_least_pages: int = 2
    consume_queue_thorough_interval_ms: int = 60_000
    commit_interval_ms: int = 200
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be deleted, and when (docs/format.md, 10). A whole commit log file is deleted at a time, never the
    newest.

    max_age_hours              files not written for so long are deleted, at `delete_when_hours`; None: never by age
    max_bytes                  oldest files are deleted while the commit log is larger; None: no bound
    delete_when_hours          local hours of the day in which old files are deleted
    disk_use_ratio             above it old files are deleted at any hour; None: at no other hour
    disk_clean_ratio           above it the oldest files are deleted whatever their age (if `clean_forcibly`); None:
                               never
    disk_warn_ratio            above it writes are refused
    clean_forcibly             whether a filling disk may cost files that are not old
    forced_destroy_interval_ms how long a reader may keep a deleted file
    clean_interval_ms          how often all this is checked
    delete_pause_ms            pause between two deletions
    delete_batch_files         files deleted in one round at most

    As text it says all of it in a sentence.
    """

    max_age_hours: float | None = None
    max_bytes: int | None = None
    delete_when_hours: tuple[int, ...] = (4,)
    disk_use_ratio: float | None = None
    disk_clean_ratio: float | None = None
    disk_warn_ratio: float = 0.90
    clean_forcibly: bool = True
    forced_destroy_interval_ms: int = 120_000
    clean_interval_ms: int = 10_000
    delete_pause_ms: int = 100
    delete_batch_files: int = 10

    def __str__(self) -> str:
        words = [*self._deletions(), f"writes are refused while the disk is over {self.disk_warn_ratio:.0%}"]
        return "; ".join(words)

    def _deletions(self) -> Iterator[str]:
        hours = ", ".join(f"{hour:02d}" for hour in self.delete_when_hours)
        if self.max_age_hours is not None:
            full = self.disk_use_ratio
            any_hour = "" if full is None else f", and at any hour while the disk is over {full:.0%}"
            yield f"files older than {self.max_age_hours:g} h are deleted at {hours} o'clock{any_hour}"
        if self.max_bytes is not None:
            yield f"the oldest files are deleted while the log is larger than {self.max_bytes:,} bytes"
        if self.disk_clean_ratio is not None and self.clean_forcibly:
            yield f"the oldest files are deleted whatever their age while the disk is over {self.disk_clean_ratio:.0%}"


BROKER_RETENTION = Retention(disk_use_ratio=0.75, disk_clean_ratio=0.85)
"""What a broker's limits of the disk are where its broker.conf does not name them."""


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store a folder is: its `name`, "" where it has none yet, and the `inode` of the folder."""

    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """How far opening is: `done_bytes` of `total_bytes` of the commit log; `stage` is a word to show."""

    stage: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How to open a store.

    mode                     writer, reader of an idle store, or follower of a live one
    sizes                    None: as the store was made; EMBEDDED_SIZES for a new one
    commit_log_paths         folders that the commit log's new files are distributed over; None: STORE/commitlog
    read_only_log_paths      further folders with files of the commit log, in which none is made or written
    flush                    when bytes are brought to disk
    retention                None: as config/retention.json says, and nothing is deleted when that is missing
    max_message_bytes        limit of a body
    store_host               the host that records name as their store
    default_queues           queues of a topic that is made by publishing to it
    delay_levels             how long the delay levels are: when the messages of SCHEDULE_TOPIC_XXXX are due
    multi_dispatch           whether records stand in secondary queues that INNER_MULTI_DISPATCH names, even where no
                             queue shows that; a put that names queues is refused then
    transient_pool_buffers   write buffers of a commit log file each; 0: write to the mapped file
    preallocate              make the next commit log files ahead, on a thread of their own
    warm_files               touch each page of a file made ahead, so that the first write finds it in memory
    identity                 the store that has to be there (`MessageStore.identity`); None: whichever is
    serves_readers           WRITE: a store that the disk lets nobody write is opened all the same, to be read
    stopped                  WRITE: why the store is opened to be read only, as one that has stopped taking messages
    cache                    FOLLOW: directory for queues that are derived from the log; None: in memory
    progress                 called now and then while opening takes long
    clock                    the time
    disk                     allocating and syncing
    """

    mode: OpenMode = OpenMode.WRITE
    sizes: FileSizes | None = None
    commit_log_paths: tuple[Path, ...] | None = None
    read_only_log_paths: tuple[Path, ...] = ()
    flush: FlushPolicy = field(default_factory=FlushPolicy)
    retention: Retention | None = None
    max_message_bytes: int = 4 << 20
    store_host: Host = field(default_factory=lambda: Host(b"\x7f\x00\x00\x01", 10911))
    default_queues: int = 4
    delay_levels: DelayLevels = field(default_factory=DelayLevels.parse)
    multi_dispatch: bool = False
    transient_pool_buffers: int = 0
    preallocate: bool = True
    warm_files: bool = False
    identity: StoreIdentity | None = None
    serves_readers: bool = False
    stopped: str | None = None
    cache: Path | None = None
    progress: Callable[[RecoveryProgress], None] | None = None
    clock: Clock = wall_clock_ms
    disk: Disk = field(default_factory=Disk)

    def __post_init__(self) -> None:
        if self.transient_pool_buffers and self.flush.sync:
            raise ValueError("a transient pool holds bytes back from the file: it can't be used with a sync flush")
