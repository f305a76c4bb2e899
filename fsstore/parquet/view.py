"""`@parquet/` as the filesystem's core sees it: a directory to show, names to forget, figures to report."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from fsstore.interface import CachedName
from fsstore.nodes import Context, Node
from fsstore.parquet.dataset import Dataset, is_available
from fsstore.parquet.layout import RangeKey
from fsstore.parquet.names import segment_name, topic_partition
from fsstore.parquet.nodes import DatasetDirectory, PartitionName
from fsstore.parquet.options import ParquetOptions


class ParquetView:
    """The dataset of one mount; nothing of it is there without pyarrow. Thread safety: the filesystem's thread."""

    def __init__(self, context: Context, options: ParquetOptions) -> None:
        self._inodes = context.inodes
        self._dataset = Dataset(context.store, options) if is_available() else None
        self.root: Node | None = DatasetDirectory(context, self._dataset) if self._dataset is not None else None

    def status(self) -> dict[str, object]:
        """What status.json says of it."""
        if self._dataset is None:
            return {"available": False, "reason": "pyarrow is not installed"}
        return self._dataset.status()

    def expired(self, topic: str, queue: int, new_min: int) -> Iterator[CachedName]:
        """Names of files whose first message is gone, among those that a kernel may know."""
        if self._dataset is not None:
            self._dataset.expired(topic, queue, new_min)
        directory = self._inodes.find(PartitionName(topic, queue))
        if directory is None:
            return
        for name in list(self._inodes.names()):
            if isinstance(name, RangeKey) and (name.topic, name.queue) == (topic, queue) and name.begin < new_min:
                for is_tail in (False, True):
                    yield CachedName(directory, segment_name(name.begin, name.end, is_tail=is_tail))

    def gone(self, topics: Collection[str]) -> list[CachedName]:
        """Partitions of topics that are not among `topics`, each once. Their inodes go to nobody else."""
        if self._dataset is None or self.root is None:
            return []

        def is_gone(name: Hashable) -> bool:
            return isinstance(name, PartitionName | RangeKey) and name.topic not in topics

        names = [name for name in self._inodes.names() if is_gone(name)]
        self._dataset.forget_all_but(topics)
        self._inodes.unname(is_gone)
        return [
            CachedName(self.root.inode, topic_partition(name.topic))
            for name in names
            if isinstance(name, PartitionName) and name.queue is None
        ]

    def close(self) -> None:
        """Let go of what is kept."""
        if self._dataset is not None:
            self._dataset.close()
