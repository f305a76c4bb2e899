"""What a kernel may know that has gone: by retention, or with its topic.

The kernel is notified by inode, never by name: dropping a name takes its directory's lock, which a look-up that waits
for us may hold; a daemon that is killed at that moment could not end. So what went is asked for again (attributes alone
are dropped), is answered ESTALE, and the kernel then walks the path again and finds that the name is gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress

from engine import Expired, MessageStore, TopicNotFoundError
from fsstore.tree.computed_links import MatchesName, QueueLinkName
from fsstore.tree.directories import KeysName, ListedAppendName, QueueName, TopicName
from fsstore.tree.inodes import MESSAGE
from fsstore.tree.nodes import Context
from fsstore.tree.streams import StreamName

OF_TOPIC = (TopicName, KeysName, MatchesName)
"""What is known by names that begin with a topic."""

OF_QUEUE = (QueueName, ListedAppendName, StreamName, QueueLinkName)
"""The same, and a queue."""


class StaleInodes:
    """Finds out which inodes went, among those that a kernel may know."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def expired(self, expired: Expired) -> Iterator[int]:
        """The message files. (A stream's name is looked up each time: it needs no notice.)

        Where some of them are not known any more, the queue's directory instead: the kernel then forgets all its names.
        """
        queue = QueueName(expired.topic, expired.queue)
        if self._context.inodes.find(queue) is None:
            return
        for physical_offset in expired.physical_offsets.tolist():
            yield physical_offset + self._context.computed.begin | MESSAGE
        if len(expired.physical_offsets) < expired.new_min - expired.old_min:
            yield from self._context.inodes.retire(lambda name: name == queue)

    def queue_gone(self, topic: str, queue: int) -> list[int]:
        """Whatever belonged to a queue that went, though one of its name may be there again."""

        def is_gone(name: Hashable) -> bool:
            return isinstance(name, OF_QUEUE) and (name.topic, name.queue) == (topic, queue)

        return self._context.inodes.retire(is_gone)

    def gone(self) -> list[int]:
        """Whatever belonged to topics and queues that the store no longer has; each once, never used again."""
        queues = _queues_by_topic(self._context.store)

        def is_gone(name: Hashable) -> bool:
            if isinstance(name, OF_QUEUE):
                known = queues.get(name.topic)
                return known is None or (name.queue is not None and name.queue not in known)
            return isinstance(name, OF_TOPIC) and name.topic not in queues

        return self._context.inodes.retire(is_gone)


def _queues_by_topic(store: MessageStore) -> dict[str, frozenset[int]]:
    queues = {}
    for topic in store.topics():
        with suppress(TopicNotFoundError):  # deleted this moment
            queues[topic] = frozenset(store.queues(topic))
    return queues
