"""Paths of a store's files below its root, and of its commit log (docs/format.md, 1).

    storePathCommitLog=/disk1/commitlog,/disk2/commitlog    files 0, 2, 4 ... in the first, 1, 3, 5 ... in the second
    readOnlyCommitLogStorePaths=/old/commitlog              files there are read and expire; none is made

A file may be in any of the folders, because folders may be added later and full ones are skipped.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from engine.files.file_scan import numbered_files
from engine.record.log_framing import LEDGER, PLAIN, Framing

LEDGER_PREFIX = "dledger-"


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Folders that share the files of one file queue. New files go to the `writable` ones in turn. `framing` is that of
    the records, in a commit log."""

    writable: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()
    framing: Framing = PLAIN

    def __post_init__(self) -> None:
        if not self.writable:
            raise ValueError("no folder is left that a file could be made in")

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders without duplicates."""
        return tuple(dict.fromkeys((*self.writable, *self.read_only))) if self.read_only else self.writable

    def in_turn(self, number: int, full: frozenset[Path] = frozenset()) -> list[Path]:
        """Folders to try for the `number`-th file of the log, in order of preference; those in `full` come last.

        The order is a broker's: of the sorted paths with space, the one at the file's number modulo their count.
        """
        usable = sorted((folder for folder in self.writable if folder not in full), key=str)
        rest = sorted((folder for folder in self.writable if folder in full), key=str)
        if not usable:
            usable, rest = rest, []
        first = number % len(usable)
        return [*usable[first:], *usable[:first], *rest]


def log_paths(default: Path, chosen: tuple[Path, ...] | None, read_only: tuple[Path, ...]) -> LogPaths:
    """Absolute paths from `chosen` (else `default`) and `read_only`. A path in both is read-only. ValueError: no path
    is left for new files."""
    kept = tuple(dict.fromkeys(path.absolute() for path in read_only))
    named = (path.absolute() for path in chosen) if chosen else (default,)
    return LogPaths(tuple(path for path in dict.fromkeys(named) if path not in kept), kept)


def as_paths(directory: Path | LogPaths) -> LogPaths:
    """`LogPaths` of a single folder, or the argument if it is one already."""
    return directory if isinstance(directory, LogPaths) else LogPaths((directory,))


def log_files(paths: LogPaths) -> list[Path]:
    """Files of a log, by name."""
    files = (file for folder in paths.folders for file in numbered_files(folder))
    return sorted(files, key=lambda file: file.name)


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Paths below `root`. RocketMQ ignores those below `own`; all others are its own, except where marked (ours).

    The commit log may be elsewhere, and in several folders: `commit_log_paths` (None: the default folder) and
    `read_only_log_paths`, as in StoreConfig.
    """

    root: Path
    commit_log_paths: tuple[Path, ...] | None = None
    read_only_log_paths: tuple[Path, ...] = ()

    @property
    def commit_log(self) -> LogPaths:
        """Folders of the commit log's files. ValueError: none is writable."""
        for ledger in self.ledgers():
            return replace(log_paths(ledger / "data", None, self.read_only_log_paths), framing=LEDGER)
        return log_paths(self.default_commit_log, self.commit_log_paths, self.read_only_log_paths)

    @property
    def log_before_ledger(self) -> LogPaths:
        """Folders of the log that a store wrote before it used a ledger."""
        return log_paths(self.default_commit_log, self.commit_log_paths, ())

    @property
    def ledger_checkpoint(self) -> Path | None:
        """DLedger's own checkpoint; None: the commit log is RocketMQ's."""
        return next((ledger / "checkpoint" for ledger in self.ledgers()), None)

    def ledgers(self) -> list[Path]:
        """Folders of DLedger's logs (`dledger-<id>`); empty for RocketMQ's own commit log. OSError."""
        try:
            return sorted(member for member in self.root.iterdir() if member.name.startswith(LEDGER_PREFIX))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @property
    def default_commit_log(self) -> Path:
        """Default folder of the log's files."""
        return self.root / "commitlog"

    @property
    def names_log_paths(self) -> bool:
        """Whether the log's folders were configured."""
        return self.commit_log_paths is not None or bool(self.read_only_log_paths)

    def shown(self, path: Path) -> str:
        """`path` for messages: relative to the store if it is below it, else absolute."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def consume_queues(self) -> Path:
        """Folder with one folder for each topic."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """Folder of the index files."""
        return self.root / "index"

    @property
    def checkpoint(self) -> Path:
        """Store times before which each kind of data is on disk."""
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """Exists while the store is open for writing. At an opening it shows a crash."""
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        """File that the writer locks."""
        return self.root / "lock"

    @property
    def config(self) -> Path:
        """Folder of JSON files: topics, offsets, settings."""
        return self.root / "config"

    @property
    def topics(self) -> Path:
        """Topics and their queue counts."""
        return self.config / "topics.json"

    @property
    def consumer_offsets(self) -> Path:
        """Committed queue offsets of the consumer groups."""
        return self.config / "consumerOffset.json"

    @property
    def lmq_consumer_offsets(self) -> Path:
        """Committed offsets for light message queues."""
        return self.config / "lmqConsumerOffset.json"

    @property
    def sizes(self) -> Path:
        """The file sizes that the store was made with (ours)."""
        return self.config / "sizes.json"

    @property
    def used_log_paths(self) -> Path:
        """Folders of the log's files, if they are not the default (ours)."""
        return self.config / "commitlog.json"

    @property
    def retention(self) -> Path:
        """Retention settings (ours)."""
        return self.config / "retention.json"

    @property
    def own(self) -> Path:
        """Our own data; may be deleted while the store is closed."""
        return self.root / "fsstore"

    @property
    def quarantine(self) -> Path:
        """Copies of bytes and files that a repair or a recovery cut, framed or set aside."""
        return self.own / "damaged"

    @property
    def drop(self) -> Path:
        """Files that wait in drop boxes."""
        return self.own / "drop"

    @property
    def sums(self) -> Path:
        """Sums of body sizes, with which streams find their messages."""
        return self.own / "sums"

    @property
    def ranges(self) -> Path:
        """Data that readers have derived from ranges of queues whose messages are all good."""
        return self.own / "ranges"

    @property
    def coverage(self) -> Path:
        """Recovery point: physical offset before which derived data is on disk."""
        return self.own / "coverage.json"

    @property
    def deleted_topics(self) -> Path:
        """Deleted topics with the physical offset of the deletion: a rebuild leaves out earlier records."""
        return self.own / "deleted.json"

    @property
    def identity(self) -> Path:
        """Identity of the store; a copy gets another."""
        return self.own / "id"

    @property
    def backup_note(self) -> Path:
        """In a backup: identity of the store that was backed up."""
        return self.own / "backup.json"

    @property
    def check_note(self) -> Path:
        """Progress and findings of the last online check."""
        return self.own / "check.json"

    @property
    def epochs(self) -> Path:
        """Epochs of the log's masters, of a broker with a controller."""
        return self.root / "epochFileCheckpoint"

    @property
    def replica_note(self) -> Path:
        """In a replica: its master, and the state of the replication."""
        return self.own / "replica.json"

    @property
    def replica_news(self) -> Path:
        """In a replica: a file that is written whenever messages have come, for followers that wait."""
        return self.own / "news"

    @property
    def clean_mark(self) -> Path:
        """Mark of a clean close: the state that the next opening need not check."""
        return self.own / "clean.json"
