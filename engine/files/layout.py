"""Where things are below a store's root (docs/format.md, 1)."""

from dataclasses import dataclass
from pathlib import Path

from engine.files.file_scan import LogPaths, log_paths
from engine.record.log_framing import LEDGER, PLAIN, Framing

LEDGER_PREFIX = "dledger-"


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Paths below `root`. All but `own` are RocketMQ's; below `own` are ours, which RocketMQ leaves alone.

    The commit log may be elsewhere, and in several folders: `commit_log_paths` (None: where it is by default) and
    `read_only_log_paths`, as StoreConfig has them.
    """

    root: Path
    commit_log_paths: tuple[Path, ...] | None = None
    read_only_log_paths: tuple[Path, ...] = ()

    @property
    def commit_log(self) -> LogPaths:
        """Folders of the commit log's files. ValueError when none is left to write."""
        for ledger in self.ledgers():
            return log_paths(ledger / "data", None, self.read_only_log_paths)
        return log_paths(self.default_commit_log, self.commit_log_paths, self.read_only_log_paths)

    @property
    def log_before_ledger(self) -> LogPaths:
        """Where a store with a ledger has the log of the time before it had one."""
        return log_paths(self.default_commit_log, self.commit_log_paths, ())

    @property
    def framing(self) -> Framing:
        """What is between the records of the commit log."""
        return LEDGER if self.ledgers() else PLAIN

    @property
    def ledger_checkpoint(self) -> Path | None:
        """DLedger's own checkpoint, if the commit log is DLedger's."""
        return next((ledger / "checkpoint" for ledger in self.ledgers()), None)

    def ledgers(self) -> list[Path]:
        """Folders of DLedger's logs (`dledger-<id>`), if the store's commit log is one. OSError."""
        try:
            return sorted(member for member in self.root.iterdir() if member.name.startswith(LEDGER_PREFIX))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @property
    def default_commit_log(self) -> Path:
        """Where the log's files are unless somebody says otherwise."""
        return self.root / "commitlog"

    @property
    def names_log_paths(self) -> bool:
        """Whether somebody said where the log is."""
        return self.commit_log_paths is not None or bool(self.read_only_log_paths)

    def shown(self, path: Path) -> str:
        """`path` as messages show it: below the store's folder, or absolute."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def consume_queues(self) -> Path:
        """Folder of a folder for each topic."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """Folder of the index files."""
        return self.root / "index"

    @property
    def checkpoint(self) -> Path:
        """Up to when each kind of data is on disk."""
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """There while the store is open for writing: found at open, it means a crash."""
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        """What the one writer locks."""
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
        """How far each consumer group is."""
        return self.config / "consumerOffset.json"

    @property
    def lmq_consumer_offsets(self) -> Path:
        """The same for light message queues."""
        return self.config / "lmqConsumerOffset.json"

    @property
    def sizes(self) -> Path:
        """The file sizes that the store was made with (ours)."""
        return self.config / "sizes.json"

    @property
    def used_log_paths(self) -> Path:
        """Where the log's files are, if they are not where they are by default (ours)."""
        return self.config / "commitlog.json"

    @property
    def retention(self) -> Path:
        """What may be deleted, and when (ours)."""
        return self.config / "retention.json"

    @property
    def own(self) -> Path:
        """Derived data of ours; may be deleted while the store is closed."""
        return self.root / "fsstore"

    @property
    def coverage(self) -> Path:
        """Up to where in the log derived data is on disk."""
        return self.own / "coverage.json"

    @property
    def deleted_topics(self) -> Path:
        """Topics that were deleted, and up to where in the log: a rebuild leaves them out."""
        return self.own / "deleted.json"

    @property
    def identity(self) -> Path:
        """Which store this is; a copy gets another."""
        return self.own / "id"

    @property
    def backup_note(self) -> Path:
        """Of which store this one is a backup, if it is one."""
        return self.own / "backup.json"

    @property
    def check_note(self) -> Path:
        """How far the last check beside a writer came, and what it found."""
        return self.own / "check.json"

    @property
    def clean_mark(self) -> Path:
        """Left by a clean close: what opening may then take on trust."""
        return self.own / "clean.json"
