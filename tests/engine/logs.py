"""A log in memory with its derived data, for tests of the derived parts."""

from __future__ import annotations

from pathlib import Path

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.dispatch import WriteDispatcher
from engine.derived.index import Index
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.log.commit_log import CommitLog
from engine.log.delay import scheduled, tags_code
from engine.record.message import Host, Message
from engine.record.multi_dispatch import secondary_slots
from engine.record.record import RecordEncoder
from engine.results import PutResult
from engine.settings.delay_levels import DelayLevels
from tests.engine.light_queues import add_further

NOW_MS = 1_700_000_000_000


def write_dispatcher(index: Index) -> WriteDispatcher:
    """A listener's source without listeners."""
    return WriteDispatcher(index, None, lambda *_: None, lambda _: None)


class SmallStore:
    """Commit log, consume queues and index with tiny files, fed one message at a time."""

    def __init__(self, folder: Path, *, log_bytes: int = 4096, queue_entries: int = 16, access: Access = Access.WRITE):
        self.now_ms = NOW_MS
        self.log_files = FileQueue(folder / "commitlog", log_bytes, access)
        self.log_files.set_end(0)
        self.log = CommitLog(self.log_files, lambda: self.now_ms)
        self.queues = ConsumeQueues(folder / "consumequeue", queue_entries * 20, access)
        self.index = Index(folder / "index", 7, 20, access, lambda: self.now_ms)
        self.levels = DelayLevels.parse()
        self.dispatcher = write_dispatcher(self.index)
        self.encoder = RecordEncoder(Host(b"\x7f\x00\x00\x01", 10911), 1 << 20)

    def put(self, message: Message, queue_id: int = 0) -> int:
        """Store and dispatch; the physical offset."""
        message, queue_id = scheduled(message, queue_id, self.levels)
        encoded = self.encoder.encode(message, queue_id, self.now_ms)
        queue = None if message.sys_flag & 0x4 else self.queue(message.topic, queue_id)
        queue_offset = queue.max_offset if queue is not None else 0
        physical_offset, time_ms = self.log.append(encoded, queue_offset)
        encoded.tags_code = tags_code(message.topic, {**message.properties, "TAGS": message.tags}, time_ms, self.levels)
        place = (message.topic, queue_id, queue_offset, physical_offset)
        stored = PutResult(*place, encoded.size, time_ms, b"")
        self.dispatcher.put(queue, stored, encoded)
        further = secondary_slots(message.properties, queue_id) if queue is not None else ()
        add_further(self.dispatcher, self.queues, stored, encoded, further)
        self.now_ms += 137
        return physical_offset

    def queue(self, topic: str, queue_id: int = 0) -> ConsumeQueue:
        """A queue, made when it is new."""
        return self.queues.get_or_create(topic, queue_id)

    def close(self) -> None:
        """Let go of all files."""
        self.index.close()
        self.queues.close()
        self.log_files.close()

    def damage(self, physical_offset: int, position: int) -> None:
        """Flip a bit of the record there."""
        file = self.log_files.find(physical_offset)
        assert file is not None
        file.writable()[physical_offset - file.start + position] ^= 1
