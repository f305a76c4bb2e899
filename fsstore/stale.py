"""Names that a kernel may have cached and that have gone: by retention, or with their topic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine import MessageStore, TopicNotFoundError
from fsstore.interface import ROOT_INODE, CachedName
from fsstore.links import MatchesName, QueueLinkName
from fsstore.listing import offset_names
from fsstore.nodes import Context
from fsstore.streams import StreamName
from fsstore.tree import STREAM_SUFFIX, KeysName, ListedAppendName, QueueName, TopicName

_NAMES_AT_A_TIME = 4096

_OfTopic = TopicName | QueueName | KeysName | ListedAppendName | StreamName | MatchesName | QueueLinkName


class StaleNames:
    """Finds out which names went, from what the store says and from which topics and queues there were before."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues = _queues_by_topic(context.store)

    def expired(self, topic: str, queue: int, old_min: int, new_min: int) -> Iterator[CachedName]:
        """The queue's stream, then messages [old_min, new_min), as far as the kernel can know of their directories."""
        inodes = self._context.inodes
        topic_inode, queue_inode = inodes.find(TopicName(topic)), inodes.find(QueueName(topic, queue))
        if topic_inode is not None:
            yield CachedName(topic_inode, b"%d%s" % (queue, STREAM_SUFFIX))
        if queue_inode is None:
            return
        for start in range(old_min, new_min, _NAMES_AT_A_TIME):
            offsets = np.arange(start, min(start + _NAMES_AT_A_TIME, new_min), dtype=np.int64)
            for name in offset_names(offsets).tolist():
                yield CachedName(queue_inode, name)

    def gone(self) -> list[CachedName]:
        """Topics and queues that were there at the last call; their inodes are not given to others of the same name."""
        before, self._queues = self._queues, _queues_by_topic(self._context.store)
        gone_topics = before.keys() - self._queues.keys()
        names = [CachedName(ROOT_INODE, topic.encode()) for topic in sorted(gone_topics)]
        for topic in before.keys() & self._queues.keys():
            names += self._gone_queues(topic, before[topic] - self._queues[topic])
        self._context.inodes.unname(lambda name: isinstance(name, _OfTopic) and name.topic in gone_topics)
        return names

    def _gone_queues(self, topic: str, queues: frozenset[int]) -> Iterator[CachedName]:
        topic_inode = self._context.inodes.find(TopicName(topic))
        if topic_inode is not None:
            for queue in sorted(queues):
                yield CachedName(topic_inode, b"%d" % queue)
                yield CachedName(topic_inode, b"%d%s" % (queue, STREAM_SUFFIX))


def _queues_by_topic(store: MessageStore) -> dict[str, frozenset[int]]:
    queues = {}
    for topic in store.topics():
        try:
            queues[topic] = frozenset(store.queues(topic))
        except TopicNotFoundError:  # deleted this moment
            continue
    return queues
