"""`@parquet/` as the filesystem's core sees it: a directory to show, inodes to forget, figures to report."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from fsstore.options import ParquetOptions
from fsstore.parquet.dataset import Dataset
from fsstore.parquet.layout import RangeKey
from fsstore.parquet.nodes import DatasetDirectory, PartitionName
from fsstore.tree.nodes import Context, Node


class ParquetView:
    """The dataset of one mount. Thread safety: the filesystem's thread."""

    def __init__(self, context: Context, options: ParquetOptions) -> None:
        self._inodes = context.inodes
        self._dataset = Dataset(context.store, options)
        self.root: Node = DatasetDirectory(context, self._dataset)

    def status(self) -> dict[str, object]:
        """What status.json says of it."""
        return self._dataset.status()

    def expired(self, topic: str, queue: int, new_min: int) -> list[int]:
        """Inodes of files whose first message is gone; they are stale from now on."""

        def is_gone(name: Hashable) -> bool:
            return isinstance(name, RangeKey) and (name.topic, name.queue) == (topic, queue) and name.begin < new_min

        self._dataset.expired(topic, queue, new_min)
        return self._inodes.retire(is_gone)

    def queue_gone(self, topic: str, queue: int) -> list[int]:
        """Inodes of what belonged to a queue that went; they are stale from now on."""

        def is_gone(name: Hashable) -> bool:
            return isinstance(name, PartitionName | RangeKey) and (name.topic, name.queue) == (topic, queue)

        self._dataset.forget_queue(topic, queue)
        return self._inodes.retire(is_gone)

    def gone(self, topics: Collection[str]) -> list[int]:
        """Inodes of what belongs to topics that are not among `topics`; they are stale from now on."""

        def is_gone(name: Hashable) -> bool:
            return isinstance(name, PartitionName | RangeKey) and name.topic not in topics

        self._dataset.forget_all_but(topics)
        return self._inodes.retire(is_gone)

    def ending(self) -> None:
        """No more requests come: a listing that measures files is given up."""
        self._dataset.ending()

    def close(self) -> None:
        """Let go of what is kept."""
        self._dataset.close()
