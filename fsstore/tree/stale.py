"""What a kernel may know that has gone: by retention, or with its topic.

The kernel is notified by inode, never by name: dropping a name takes its directory's lock, which a look-up that waits
for us may hold; a daemon that is killed at that moment could not end. So what went is asked for again (attributes alone
are dropped), is answered ESTALE, and the kernel then walks the path again and finds that the name is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine import Expired
from fsstore.tree.directories import QueueDirectory
from fsstore.tree.inodes import MESSAGE, NodeKey
from fsstore.tree.nodes import Context
from fsstore.tree.streams import StreamFile


def retire_expired(context: Context, expired: Expired) -> Iterator[int]:
    """Inodes of the message files. (A stream's name is looked up each time: it needs no notice.)

    Where some of them are not known any more, the queue's directory instead: the kernel then forgets all its names.
    """
    queue = NodeKey(QueueDirectory, expired.topic, expired.queue)
    if context.inodes.find(queue) is None:
        return
    for physical_offset in expired.physical_offsets.tolist():
        yield physical_offset + context.computed.begin | MESSAGE
    if len(expired.physical_offsets) < expired.new_min - expired.old_min:
        yield from context.inodes.retire(lambda name: name == queue)


def retire_queue(context: Context, topic: str, queue: int) -> list[int]:
    """Inodes of whatever belonged to a queue that went, though one of its name may be there again; of its topic's
    stream, too."""

    def belonged(name: NodeKey) -> bool:
        is_stream = name.queue is None and issubclass(name.kind, StreamFile)
        return name.topic == topic and (name.queue == queue or is_stream)

    return context.inodes.retire(belonged)


def retire_gone(context: Context) -> list[int]:
    """Inodes of whatever belonged to topics and queues that the store no longer has; each once, never used again."""
    queues = context.store.queues_by_topic()

    def is_gone(name: NodeKey) -> bool:
        if name.topic is None:
            return False
        known = queues.get(name.topic)
        return known is None or (name.queue is not None and name.queue not in known)

    return context.inodes.retire(is_gone)
