"""Settings for opening, sizing, flushing and retention of a store: frozen values for the constructors of the engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from engine.files.disk import Disk
from engine.record.header import Host
from engine.record.kernel.append import wall_clock_ms
from engine.settings.delay_levels import DelayLevels

Clock = Callable[[], int]
"""Returns the time in epoch milliseconds; injected, so that tests can set it."""

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
"""Names of sizes and folders in broker.conf and in our own config files."""


class OpenMode(Enum):
    """WRITE: the only writer. READ_ONLY: there must be no writer. FOLLOW: read while another process writes."""

    WRITE = "write"
    READ_ONLY = "read-only"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Sizes of a store's files. All files of a kind have one size, which the files do not store (docs/format.md, 1)."""

    commit_log_bytes: int
    consume_queue_entries: int
    index_slots: int
    index_entries: int

    def __post_init__(self) -> None:
        if min(self.commit_log_bytes, self.consume_queue_entries, self.index_slots) < 1 or self.index_entries < 2:
            raise ValueError(f"file sizes must be positive, and an index needs two entries: {self}")

    @property
    def consume_queue_bytes(self) -> int:
        """Size of a consume-queue file in bytes."""
        return self.consume_queue_entries * CONSUME_QUEUE_ENTRY_BYTES

    @property
    def index_bytes(self) -> int:
        """Size of an index file in bytes: header, slots, entries."""
        return INDEX_HEADER_BYTES + self.index_slots * INDEX_SLOT_BYTES + self.index_entries * INDEX_ENTRY_BYTES


EMBEDDED_SIZES = FileSizes(16 << 20, 65_536, 100_000, 400_000)
"""Default for new stores: small files, which are quick to make and to expire."""

BROKER_SIZES = FileSizes(1 << 30, 300_000, 5_000_000, 20_000_000)
"""RocketMQ's defaults."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """Intervals of flushes (docs/format.md, 4). Pages are 4096 bytes.

    sync                                writers wait until their bytes are on disk (group commit)
    interval_ms, least_pages            interval of flushes of the commit log if it has `least_pages` unflushed pages
    thorough_interval_ms                interval of flushes of the commit log if it has any unflushed byte
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
    """Rules for deleting whole commit log files, never the newest (docs/format.md, 10). `str` gives a sentence.

    max_age_hours              age after the last write from which files are deleted at `delete_when_hours`; None: never
    max_bytes                  oldest files are deleted while the commit log is larger; None: no limit
    delete_when_hours          local hours of the day in which old files are deleted
    disk_use_ratio             used part of the disk above which old files are deleted at any hour; None: never
    disk_clean_ratio           used part above which files of any age are deleted (if `clean_forcibly`); None: never
    disk_warn_ratio            used part above which writes are refused
    clean_forcibly             whether `disk_clean_ratio` applies
    forced_destroy_interval_ms time for which readers may hold a deleted file
    clean_interval_ms          interval of retention rounds
    delete_pause_ms            pause between two deletions
    delete_batch_files         maximum number of files deleted in one round
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
"""A broker's disk limits if its broker.conf does not set them."""


@dataclass(frozen=True, slots=True)
class MasterConfig:
    """The settings with which a writer serves its log to replicas (docs/replication.md). `str` gives the role.

    sync                       a writer that waits for the disk also waits for `in_sync_replicas` acknowledgements
    address                    IP address to listen at
    ha_port, remoting_port     ports for the log, and for what a replica asks beside it; 0: any free one
    allow                      networks that may connect from beyond this machine
    in_sync_replicas           number of replicas that must acknowledge, without the master itself
    timeout_ms                 limit for their acknowledgements
    max_gap_bytes              a replica further behind is not in sync, and does not count
    heartbeat_interval_ms      time without data after which a heartbeat is sent
    housekeeping_interval_ms   silence of a replica after which its connection is closed
    batch_bytes                largest frame
    """

    sync: bool = False
    address: str = "127.0.0.1"
    ha_port: int = 10_912
    remoting_port: int = 10_911
    allow: tuple[IPv4Network | IPv6Network, ...] = ()
    in_sync_replicas: int = 1
    timeout_ms: int = 3_000
    max_gap_bytes: int = 256 << 20
    heartbeat_interval_ms: int = 5_000
    housekeeping_interval_ms: int = 20_000
    batch_bytes: int = 32 << 10

    def __str__(self) -> str:
        return "SYNC_MASTER" if self.sync else "ASYNC_MASTER"


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Identity of a store: its `name`, "" if it has none yet, None if that can't be read; the inode number of its
    folder."""

    name: str | None
    inode: int


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """Progress of an opening in bytes of the commit log; `stage` is a word to show."""

    stage: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Options for opening a store.

    mode                     writer, reader of an idle store, or follower of a live one
    sizes                    None: those of the existing store; EMBEDDED_SIZES for a new one
    commit_log_paths         folders for the commit log's new files, used in turn; None: STORE/commitlog
    read_only_log_paths      further folders with files of the commit log, in which no file is made or written
    flush                    intervals of flushes
    retention                None: that of config/retention.json; without that file nothing is deleted
    max_message_bytes        limit of a body
    store_host               store host that is written to records
    default_queues           number of queues of a topic that is made by publishing to it
    delay_levels             delays of the messages in SCHEDULE_TOPIC_XXXX
    multi_dispatch           records may be in the secondary queues named by INNER_MULTI_DISPATCH, even if no such queue
                             exists; a put with that property is refused then
    transient_pool_buffers   number of write buffers, each of a commit log file's size; 0: write to the mapped file
    preallocate              make the next commit log files ahead, on their own thread
    warm_files               write to each page of a preallocated file, so that the first write has no page faults
    master                   WRITE: serve replicas; None: no port is opened
    identity                 the expected store (`MessageStore.identity`); None: any
    serves_readers           WRITE: if the disk refuses writes, open the store for reading
    stopped                  WRITE: reason why the store takes no messages; it is opened for reading
    is_replica               WRITE: the store is a replica; only its master's log is appended to it
    cache                    FOLLOW: directory for queues that are derived from the log; None: in memory
    progress                 called repeatedly during a long opening
    clock                    returns the time in epoch ms
    disk                     allocates and syncs files
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
    master: MasterConfig | None = None
    identity: StoreIdentity | None = None
    serves_readers: bool = False
    stopped: str | None = None
    is_replica: bool = False
    cache: Path | None = None
    progress: Callable[[RecoveryProgress], None] | None = None
    clock: Clock = wall_clock_ms
    disk: Disk = field(default_factory=Disk)

    def __post_init__(self) -> None:
        if self.transient_pool_buffers and self.flush.sync:
            raise ValueError("a transient pool holds bytes back from the file: it can't be used with a sync flush")
