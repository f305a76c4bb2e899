"""Names that a kernel may have cached and that have gone: by retention, or with their topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from engine import MessageStore, TopicNotFoundError
from fsstore.interface import ROOT_INODE, CachedName
from fsstore.links import MatchesName, QueueLinkName
from fsstore.listing import offset_names
from fsstore.names import to_name
from fsstore.nodes import Context
from fsstore.streams import StreamName
from fsstore.tree import KeysName, ListedAppendName, QueueName, TopicName, stream_name

_NAMES_AT_A_TIME = 4096

OF_TOPIC = (TopicName, QueueName, KeysName, ListedAppendName, StreamName, MatchesName, QueueLinkName)
"""What is known by names that begin with a topic."""


class StaleNames:
    """Finds out which names went, among those whose inodes a kernel may know."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def expired(self, topic: str, queue: int, old_min: int, new_min: int) -> Iterator[CachedName]:
        """The queue's stream, then messages [old_min, new_min)."""
        inodes = self._context.inodes
        topic_inode, queue_inode = inodes.find(TopicName(topic)), inodes.find(QueueName(topic, queue))
        if topic_inode is not None:
            yield CachedName(topic_inode, stream_name(queue))
        if queue_inode is None:
            return
        for start in range(old_min, new_min, _NAMES_AT_A_TIME):
            offsets = np.arange(start, min(start + _NAMES_AT_A_TIME, new_min), dtype=np.int64)
            for name in offset_names(offsets).tolist():
                yield CachedName(queue_inode, name)

    def gone(self) -> list[CachedName]:
        """Topics, and queues of topics, that the store no longer has; each once. Their inodes go to nobody else."""
        queues = _queues_by_topic(self._context.store)
        gone: list[CachedName] = []
        for name in self._context.inodes.names():
            if isinstance(name, TopicName) and name.topic not in queues:
                gone.append(CachedName(ROOT_INODE, to_name(name.topic)))
            elif isinstance(name, QueueName) and name.queue not in queues.get(name.topic, (name.queue,)):
                gone += self._of_queue(name)
        self._context.inodes.unname(lambda name: isinstance(name, OF_TOPIC) and name.topic not in queues)
        return gone

    def _of_queue(self, name: QueueName) -> Iterator[CachedName]:
        topic_inode = self._context.inodes.find(TopicName(name.topic))
        if topic_inode is not None:
            yield CachedName(topic_inode, b"%d" % name.queue)
            yield CachedName(topic_inode, stream_name(name.queue))


def _queues_by_topic(store: MessageStore) -> dict[str, list[int]]:
    queues = {}
    for topic in store.topics():
        with suppress(TopicNotFoundError):  # deleted this moment
            queues[topic] = store.queues(topic)
    return queues
