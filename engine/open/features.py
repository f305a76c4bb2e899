"""Features: data of a broker's store that fsstore does not read, and its consequences for readers and writers.

    consumequeue/CURRENT, consumequeue_rocksdb/CURRENT    consume queues in RocksDB
    batchconsumequeue/, queue.type=BatchCQ                topics whose queue entries stand for batches
    compaction/compactionLog/, cleanup.policy=COMPACTION  topics that the broker rewrites by key, beside its log
    consumequeue_ext/                                     further facts about entries, for filters
    config/<name>/CURRENT                                 topics, groups or offsets in RocksDB

The commit log of such a store is readable, because every record has its topic, queue id and queue offset. So queues
that are not readable as files are derived from the log. Only writers are refused: they would have to update all data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.files.file_scan import folders_in
from engine.files.layout import StoreLayout
from engine.settings.topics_file import TopicTable

ROCKSDB_QUEUES = ("consumequeue", "consumequeue_rocksdb")
ROCKSDB_MARK = "CURRENT"
"""File in every RocksDB database."""

BATCH_QUEUES = "batchconsumequeue"
_BATCH_TYPE = ("queue.type", "BatchCQ")
_COMPACTED = ("cleanup.policy", "COMPACTION")

_NOT_SHOWN = {
    "topics": "topics without messages, and permissions and attributes of all of them",
    "consumerOffsets": "offsets of consumer groups",
    "subscriptionGroups": "settings of consumer groups",
    "metadata": "topics without messages, permissions, and offsets of consumer groups",
    "rdb": "topics without messages, permissions, and offsets of consumer groups",
}
"""Contents of a broker's RocksDB databases below config/."""

_TOPICS_ELSEWHERE = ("topics", "metadata", "rdb")


@dataclass(frozen=True, slots=True)
class StoreFeatures:
    """Data of a store that is not read.

    `queues`: the reason why consume queues are derived from the log; None if they are readable files. `has_both`: some
    queues may also exist as files. `unwritable`: the data that a writer could not update, or None. `not_shown`:
    sentences about data that no reader gets. `topics_known`: topics.json names each topic. `has_batches`: a record may
    hold several messages, whose keys are in no index of the broker's.
    """

    queues: str | None = None
    has_both: bool = False
    unwritable: str | None = None
    not_shown: tuple[str, ...] = ()
    topics_known: bool = True
    has_batches: bool = False


def features_of(layout: StoreLayout, table: TopicTable) -> StoreFeatures:
    """The features of the store as it is now. OSError."""
    root = layout.root
    marks = (f"{name}/{ROCKSDB_MARK}" for name in ROCKSDB_QUEUES)
    rocksdb = next((mark for mark in marks if (root / mark).is_file()), None)
    batch, compacted = _batch_topics(root, table), _compacted_topics(root, table)
    databases = [] if not layout.config.is_dir() else sorted(layout.config.glob(f"*/{ROCKSDB_MARK}"))
    elsewhere = [database.parent.name for database in databases if database.is_file()]
    queues = f"a RocksDB consume queue ({rocksdb})" if rocksdb else None
    if queues is None and batch:
        queues = f"a batch consume queue (topic {batch[0]})"
    unwritable = queues
    if unwritable is None and compacted:
        unwritable = f"a compaction topic ({compacted[0]})"
    if unwritable is None and has_extensions(layout):
        unwritable = "a consume queue with extension files (consumequeue_ext)"
    return StoreFeatures(
        queues,
        has_both=rocksdb is not None and not batch and bool(folders_in(layout.consume_queues)),
        unwritable=unwritable,
        not_shown=(*_of_databases(elsewhere), *_of_compacted(compacted)),
        topics_known=not any(name in _TOPICS_ELSEWHERE for name in elsewhere),
        has_batches=bool(batch),
    )


def has_extensions(layout: StoreLayout) -> bool:
    """Whether tags codes of entries may be addresses in extension files."""
    return _holds_file(layout.root / "consumequeue_ext")


def _batch_topics(root: Path, table: TopicTable) -> list[str]:
    return sorted({*_with_attribute(table, *_BATCH_TYPE), *_topics_below(root / BATCH_QUEUES)})


def _compacted_topics(root: Path, table: TopicTable) -> list[str]:
    return sorted({*_with_attribute(table, *_COMPACTED), *_topics_below(root / "compaction" / "compactionLog")})


def _with_attribute(table: TopicTable, name: str, value: str) -> Iterator[str]:
    return (config.topic for config in table.with_attributes() if config.attributes.get(name) == value)


def _topics_below(folder: Path) -> list[str]:
    """Topics of which a folder of queues has a file."""
    return [topic.name for topic in sorted(folder.iterdir()) if _holds_file(topic)] if folder.is_dir() else []


def _holds_file(folder: Path) -> bool:
    return any(member.is_file() for member in folder.rglob("*"))


def _of_databases(names: list[str]) -> Iterator[str]:
    for name in names:
        what = _NOT_SHOWN.get(name, "what it holds")
        yield f"config/{name} is a RocksDB database, which is not read: {what} are not shown"


def _of_compacted(topics: list[str]) -> Iterator[str]:
    for topic in topics:
        yield f"topic {topic} is a compaction topic: it is shown as the log has it, not as its broker compacted it"
