"""Following: reading a store while another process writes it.

The log is read on from where it was read to, record by record, and what is whole is shown: the writer's own consume
queues lead to it. Nothing is locked and nothing written; a look when nothing happened costs a few calls, whatever the
store's size.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from engine.consumequeue import is_pre_blank
from engine.consumequeues import ConsumeQueues
from engine.errors import StoreError
from engine.listeners import Expired
from engine.logscan import ScannedRecords, ScanStop, scan_records
from engine.mappedfile import Access
from engine.parts import StoreParts
from engine.record import record_problem
from engine.sequence import queued_rows
from engine.topicview import TopicView
from engine.watch import Watch

REFRESH_BYTES = 32 << 20
"""Of the log that one refresh reads at most, so that it ends soon; the next goes on."""

STUCK_SECONDS = 1.0
"""How long bytes that are no record may still become one; then they are damage, passed when a queue leads behind it."""

MAX_LOOKS = 200
"""How often the queue of the newest record is looked at for its entry; a deleted topic's never comes."""

NEWEST_ENTRIES = 64
"""So many of a queue's newest entries are looked at for one that leads to a whole record."""

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


class Follower:
    """Takes in what the writer did. Thread safety: one refresh at a time; readers go on meanwhile."""

    def __init__(
        self,
        parts: StoreParts,
        topics: TopicView,
        *,
        appended: Callable[[str, int], None],
        expired: Callable[[Expired], None],
        queue_gone: Callable[[str, int], None],
        topics_changed: Callable[[], None],
    ) -> None:
        """Positions are found by the first `refresh`; the callbacks tell listeners."""
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self._topics = topics
        self._appended = appended
        self._expired = expired
        self._queue_gone = queue_gone
        self._topics_changed = topics_changed
        self._end = 0
        self._published = 0
        self._told_generation = 0
        self._awaited: Place | None = None
        self._looks = 0
        self._stuck_since: float | None = None
        layout = parts.layout
        self._log_watch, self._queues_watch = Watch(layout.commit_log), Watch(layout.consume_queues)
        self._topics_watch = Watch(layout.topics)

    def begin(self) -> None:
        """Find where the writer's queues end, and what the log has behind that."""
        self._end = self._queues_end(self._queues)
        self._publish()
        self._queues.truncate(self._end)
        self._queues.expire(self._log.min_offset)
        self._queues.refresh(self._end)
        self._told_generation = self._queues.generation
        self.refresh()

    def refresh(self) -> bool:
        """Look for new records, queues and topics, and for files that came or went; whether anything changed. After an
        error (StoreError, OSError) the next call looks at everything."""
        try:
            return self._refresh()
        except BaseException:
            for watch in self._watches():
                watch.forget()
            raise

    def _watches(self) -> tuple[Watch, ...]:
        return self._log_watch, self._queues_watch, self._topics_watch

    def _refresh(self) -> bool:
        listed = self._log_watch.changed() and self._log.files.refresh()
        if listed:
            self._publish()
        self._advance()
        grown = self._end != self._published
        if grown:
            self._publish()
        changed = listed or grown
        if self._topics_watch.changed():
            changed |= self._topics.reload()
        if self._queues_watch.changed() or changed or self._is_behind():
            changed |= self._follow_queues()
        self._parts.index.refresh()  # each time: the writer indexes its last records after they are in their queues
        return changed

    def _publish(self) -> None:
        """Let readers see the log up to where it is whole."""
        self._log.resume(self._end, 0)
        self._published = self._end

    def _is_behind(self) -> bool:
        """Whether the queues need another look though nothing may have happened since."""
        return self._awaited is not None or self._queues.is_behind

    def _follow_queues(self) -> bool:
        min_offset = self._log.min_offset
        for expired in self._queues.expire(min_offset):
            self._expired(expired)
        appended = self._queues.refresh(self._end)
        for topic, queue_id in self._queues.gone():
            self._queue_gone(topic, queue_id)
        for topic, queue_id in appended:
            self._appended(topic, queue_id)
        if self._awaited is not None:
            self._looks += 1
            queue = self._queues.get(*self._awaited[:2])
            if self._looks >= MAX_LOOKS or (queue is not None and queue.max_offset > self._awaited[2]):
                self._awaited = None
        generation = self._queues.generation
        came_or_went = generation != self._told_generation
        if came_or_went:
            self._told_generation = generation
            self._topics_changed()
        return bool(appended) or came_or_went

    # the log

    def _advance(self) -> None:
        """Move the end over what is whole behind it."""
        began = self._end
        limit = began + REFRESH_BYTES
        while self._end < limit and self._advance_in_file(limit):
            pass
        if self._end != began:
            self._stuck_since = None

    def _advance_in_file(self, limit: int) -> bool:
        """Move within one file, or to the next one; whether there may be more."""
        file = self._log.files.find(self._end)
        if file is None:
            return self._skip_expired()
        try:
            view = file.whole()
        except StoreError:
            return False
        position = self._end - file.start
        if not any(view[position : position + 8]):
            return False
        stop = ScanStop.END
        for found in scan_records(view, position, file.start, min(len(view), limit - file.start)):
            self._note_newest(found)
            stop = found.stop or stop
            self._end = file.start + found.end
        following = file.start + file.size
        if stop is ScanStop.BLANK and self._log.files.find(following) is not None:
            self._end = following
            return True
        if self._end == file.start + position and stop is ScanStop.DAMAGED:
            return self._pass_damage()
        return False

    def _skip_expired(self) -> bool:
        """Retention overtook us: go on where the log begins now."""
        if self._end >= self._log.min_offset:
            return False
        self._end = self._log.min_offset
        return True

    def _note_newest(self, found: ScannedRecords) -> None:
        """Remember the newest record that a queue must lead to, to know when its writer's dispatch has caught up."""
        rows = queued_rows(found)
        if len(rows):
            row = int(rows[-1])
            topic = found.topics[int(found.topic_rows[row])]
            place = (int(found.records.queue_ids[row]), int(found.records.headers["queue_offset"][row]))
            self._awaited, self._looks = (topic, *place), 0

    def _pass_damage(self) -> bool:
        """Go on behind bytes that are no record once a queue leads behind them; whether that helped."""
        now = time.monotonic()
        if self._stuck_since is None:
            self._stuck_since = now
        if now - self._stuck_since < STUCK_SECONDS:
            return False
        self._stuck_since = now
        layout = self._parts.layout
        queues = ConsumeQueues(layout.consume_queues, self._queues.file_bytes, Access.READ)
        queues.load()
        try:
            end = self._queues_end(queues)
        finally:
            queues.close()
        if end <= self._end:
            return False
        self._end = end
        return True

    def _queues_end(self, queues: ConsumeQueues) -> int:
        """End of the newest whole record that a queue leads to; the log's begin when there is none."""
        found: list[tuple[int, int]] = []
        for queue in queues:
            newest = queue.entries(max(queue.max_offset - NEWEST_ENTRIES, queue.first_offset), NEWEST_ENTRIES)
            newest = newest[~is_pre_blank(newest)]
            places = newest["physical_offset"].astype(np.int64)
            found += zip((places + newest["size"]).tolist(), places.tolist(), strict=True)
        for end, physical_offset in sorted(found, reverse=True):
            if self._is_whole(physical_offset):
                return end
        return self._log.min_offset

    def _is_whole(self, physical_offset: int) -> bool:
        file = self._log.files.find(physical_offset)
        try:
            return file is not None and not record_problem(
                file.whole()[physical_offset - file.start :], physical_offset
            )
        except StoreError:
            return False
