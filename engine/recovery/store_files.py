"""The files of a store, opened and not yet recovered: commit log, consume queues, index, deleted topics."""

from __future__ import annotations

from dataclasses import dataclass

from engine.files.disk import Disk
from engine.files.file_queue import FileQueue
from engine.files.layout import StoreLayout
from engine.files.mapped_file import Access
from engine.files.open_files import OpenFiles
from engine.files.preallocate import BufferPool, Preallocator
from engine.log.commit_log import CommitLog
from engine.log.consume_queues import ConsumeQueues
from engine.log.delay import DelayLevels
from engine.log.deleted_topics import DeletedTopics
from engine.log.dispatch import Dispatcher
from engine.log.index import Index
from engine.settings.config import CONSUME_QUEUE_ENTRY_BYTES, FileSizes, StoreConfig


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """What recovery, check and repair work on: all of a store. Others take what they use of it."""

    layout: StoreLayout
    access: Access
    disk: Disk
    log: CommitLog
    queues: ConsumeQueues
    index: Index
    dispatcher: Dispatcher
    deleted: DeletedTopics
    multi_dispatch: bool
    """Whether the config says that records have further places."""

    def close(self) -> None:
        """Unmap and close all files."""
        self.queues.close()
        self.index.close()
        self.log.files.close()


def sizes_of(log: CommitLog, queues: ConsumeQueues, index: Index) -> FileSizes:
    """The sizes that the files of a store are read with."""
    entries = queues.file_bytes // CONSUME_QUEUE_ENTRY_BYTES
    return FileSizes(log.files.file_bytes, entries, index.slots, index.entries)


def open_store_files(layout: StoreLayout, config: StoreConfig, sizes: FileSizes, access: Access) -> StoreFiles:
    """Open the store at `layout` with these sizes. Nothing is changed on disk, no position is known yet. OSError."""
    writes = access is Access.WRITE
    source = None
    if writes and config.preallocate:
        source = Preallocator(layout.commit_log, sizes.commit_log_bytes, config.disk, warm=config.warm_files)
    pool = None
    if writes and config.transient_pool_buffers:
        pool = BufferPool(config.transient_pool_buffers, sizes.commit_log_bytes)
    open_files = OpenFiles()
    files = FileQueue(
        layout.commit_log,
        sizes.commit_log_bytes,
        access,
        disk=config.disk,
        source=source,
        pool=pool,
        open_files=open_files,
        framing=layout.framing,
    )
    queues = ConsumeQueues(layout.consume_queues, sizes.consume_queue_bytes, access, config.disk, open_files)
    queues.load()
    index = Index(layout.index, sizes.index_slots, sizes.index_entries, access, config.clock, config.disk)
    index.load()
    return StoreFiles(
        layout,
        access,
        config.disk,
        CommitLog(files, config.clock),
        queues,
        index,
        Dispatcher(queues, index, DelayLevels.parse()),
        DeletedTopics(layout.deleted_topics, config.disk),
        config.multi_dispatch,
    )
