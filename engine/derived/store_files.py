"""StoreFiles: the parts of an opened store, for recovery, check, backup and repair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.log.entries import ENTRY
from engine.settings.config import FileSizes

if TYPE_CHECKING:
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.deleted_topics import DeletedTopics
    from engine.derived.derived import Derived
    from engine.derived.index import Index
    from engine.files.disk import Disk
    from engine.files.ignored import IgnoredErrors
    from engine.files.layout import StoreLayout
    from engine.files.mapped_file import Access
    from engine.log.commit_log import CommitLog
    from engine.settings.delay_levels import DelayLevels


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The parts of one store. A class that needs only some takes those instead."""

    layout: StoreLayout
    access: Access
    disk: Disk
    log: CommitLog
    queues: ConsumeQueues
    index: Index
    derived: tuple[Derived, ...]
    """The kinds of derived data, in the order in which a record is dispatched."""
    levels: DelayLevels
    deleted: DeletedTopics
    multi_dispatch: bool
    """Whether the config allows secondary slots."""
    ignored: IgnoredErrors

    @property
    def sizes(self) -> FileSizes:
        """The sizes of its files as they are now."""
        entries = self.queues.file_bytes // ENTRY.itemsize
        return FileSizes(self.log.files.file_bytes, entries, self.index.slots, self.index.entries)

    def close(self) -> None:
        """Unmap and close all files."""
        self.queues.close()
        self.index.close()
        self.log.files.close()
