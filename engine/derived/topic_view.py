"""Topics as the store shows them: the topics of config/topics.json, and the topics with consume queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from engine.derived.consume_queues import ConsumeQueues
from engine.errors import TopicNotFoundError, TopicPermissionError
from engine.settings.topics_file import TopicTable


class TopicView:
    """The union of table and queues. Either may lack topics of the other. Thread safety: any thread."""

    def __init__(self, table: TopicTable, queues: ConsumeQueues, changed: Callable[[], None]) -> None:
        """`changed` is called after a topic or queue was added or removed."""
        self.table = table
        self._queues = queues
        self._changed = changed

    @property
    def removals(self) -> int:
        """Changes after topics or queues were removed."""
        return self.table.removals + self._queues.removals

    def names(self) -> list[str]:
        """All topics, sorted."""
        found, in_table = self._queues.topics(), self.table.names()
        if found == in_table:
            return found
        return sorted([*found, *set(in_table).difference(found)])  # quick, because most are in order

    def has(self, topic: str) -> bool:
        """Whether the topic is in the table or has a queue."""
        return self.table.get(topic) is not None or self._queues.has_topic(topic)

    def queue_ids(self, topic: str) -> list[int]:
        """Queue ids of a topic, ascending. TopicNotFoundError."""
        config = self.table.get(topic)
        found = self._queues.queue_ids(topic)
        if config is None and not found:
            raise TopicNotFoundError(topic)
        return sorted({*range(config.queues if config else 0), *found})

    def queue_ids_by_topic(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """The topics (None: all, sorted) with their queue ids, which are sorted. A topic that is not there is left
        out."""
        found = {}
        for topic in self.names() if topics is None else topics:
            with suppress(TopicNotFoundError):
                found[topic] = self.queue_ids(topic)
        return found

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the table gives the topic that queue, or the queue exists."""
        config = self.table.get(topic)
        if config is not None and 0 <= queue_id < config.queues:
            return True
        return self._queues.has_queue(topic, queue_id)

    def require_queue(self, topic: str, queue_id: int) -> None:
        """TopicNotFoundError, with the queue id if only the queue is missing."""
        if not self.has_queue(topic, queue_id):
            raise TopicNotFoundError(topic, queue_id if self.has(topic) else None)

    def require_writable(self, topic: str) -> None:
        """TopicPermissionError if the topic's permission forbids writing."""
        if topic in self.table.unwritable:
            config = self.table.get(topic)
            raise TopicPermissionError(topic, 0 if config is None else config.permission)

    def writable_ids(self, topic: str) -> list[int]:
        """Ids of the queues over which messages without a queue are distributed; empty for an unknown topic."""
        config = self.table.get(topic)
        return list(range(config.write_queues)) if config else self._queues.queue_ids(topic)

    def create(self, topics: Mapping[str, int]) -> None:
        """Add topics: see `TopicTable.create`."""
        self.table.create(topics, exists=self._queues.has_topic)
        self._changed()

    def ensure(self, topic: str, queues: int) -> None:
        """Create the topic, or extend it to at least `queues` queues. IllegalTopicError, OSError."""
        if self.table.ensure(topic, queues):
            self._changed()

    def forget(self, topic: str) -> None:
        """Remove a topic from the table. Call `remove_queues` next. ConfigFileError, OSError."""
        self.table.discard(topic)

    def remove_queues(self, topic: str) -> None:
        """Remove a topic's queues and their files: see `ConsumeQueues.remove_topic`. OSError."""
        self._queues.remove_topic(topic)
        self._changed()

    def reload(self) -> bool:
        """Read the table again, which another process writes; return whether it changed."""
        if not self.table.reload():
            return False
        self._changed()
        return True
