"""Inodes to invalidate after retention, or the removal of a queue or topic.

The kernel is notified by inode, never by name. Dropping a name takes its directory's lock, which a look-up that waits
for us may hold: a daemon killed at that moment could not end. So only attributes are dropped. The kernel asks for
them again, gets ESTALE, walks the path again and finds that the name does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine import Expired
from fsstore.tree.directories import QueueDirectory
from fsstore.tree.inodes import MESSAGE, NodeKey
from fsstore.tree.nodes import Context
from fsstore.tree.streams import StreamFile


def invalidate_expired(context: Context, expired: Expired) -> Iterator[int]:
    """Inodes of expired message files. (A queue's stream is looked up each time, so it needs no notice.)

    If some are no longer known, the queue's directory is invalidated too: the kernel then drops all names in it.
    """
    queue = NodeKey(QueueDirectory, expired.topic, expired.queue)
    if context.inodes.find(queue) is None:
        return
    for physical_offset in expired.physical_offsets.tolist():
        yield physical_offset + context.computed.begin | MESSAGE
    if len(expired.physical_offsets) < expired.new_min - expired.old_min:
        yield from context.inodes.invalidate(lambda name: name == queue, (expired.topic, expired.queue))


def invalidate_queue(context: Context, topic: str, queue: int) -> list[int]:
    """Inodes of a removed queue and all below it, and of its topic's stream. Its name may be in use again."""
    inodes = context.inodes
    of_queue = inodes.invalidate(lambda _: True, (topic, queue))
    return of_queue + inodes.invalidate(lambda name: issubclass(name.kind, StreamFile), (topic, None))


def invalidate_removed(context: Context) -> list[int]:
    """Inodes of topics and queues that the store no longer has, and of all below them. Each is returned once."""
    queues = context.store.queues_by_topic()

    def is_gone(name: NodeKey) -> bool:
        if name.topic is None:
            return False
        known = queues.get(name.topic)
        return known is None or (name.queue is not None and name.queue not in known)

    return context.inodes.invalidate(is_gone)
