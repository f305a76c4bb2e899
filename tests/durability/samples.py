"""A store that is known to the byte, as files of a folder: which message has a byte of which page."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from engine import FileSizes, Message, MessageStore, StoreConfig
from tests.durability.bodies import body_of

PAGE = 4096
SIZES = FileSizes(commit_log_bytes=128 << 10, consume_queue_entries=1024, index_slots=5_000, index_entries=5_000)
ENTRY_BYTES = 20
INDEX_HEADER_BYTES, SLOT_BYTES = 40, 4
QUEUES = (("orders", 0), ("orders", 1), ("events", 0))
DELETED = "deleted"
DELETED_BODY = b"of a topic that is deleted"
"""A topic that was there."""

GROUPS = {"billing": 5, "auditing": 7}
"""Consumer groups, and where each goes on in orders/0."""

MESSAGES = 660
"""The last one is in the third page of its queue."""

WRITER = 1


@dataclass(frozen=True, slots=True)
class Known:
    """Where a message is: its record is [begin, end) of the log."""

    topic: str
    queue: int
    offset: int
    begin: int
    end: int


@dataclass(frozen=True)
class Sample:
    """The stores `closed` and `killed` of `folder`, which hold the same messages; each by its number."""

    folder: Path
    messages: dict[int, Known]
    log_end: int

    def files(self, part: str) -> list[str]:
        """Paths of the files of a part of the closed store, below it, in order."""
        root = self.folder / "closed"
        return sorted(str(path.relative_to(root)) for path in (root / part).rglob("*") if path.is_file())

    def in_log(self, file: str, first: int, end: int) -> frozenset[int]:
        """Messages with a byte of their record in these bytes of a file of the log."""
        begins = int(Path(file).name)
        return frozenset(
            number
            for number, known in self.messages.items()
            if known.begin < begins + end and known.end > begins + first
        )

    def in_queue(self, file: str, first: int, end: int) -> frozenset[int]:
        """Messages with a byte of their entry in these bytes of a file of a consume queue."""
        _, topic, queue, name = Path(file).parts
        return frozenset(
            number
            for number, known in self.messages.items()
            if (known.topic, known.queue) == (topic, int(queue))
            and known.offset * ENTRY_BYTES < int(name) + end
            and (known.offset + 1) * ENTRY_BYTES > int(name) + first
        )


def key_of(number: int) -> str:
    """The key of a message."""
    return f"K{number}"


def queue_of(number: int) -> tuple[str, int]:
    """The queue of a message: two thirds are in the first one."""
    return QUEUES[max(number % 6 - 3, 0)]


def body(number: int) -> bytes:
    """The body of a message; now and then one is in three pages."""
    return body_of(WRITER, number, 9_000 if number % 100 == 50 else 100 + number * 37 % 900)


def sample(folder: Path) -> Sample:
    """Make one below `folder`. The killed store was on disk as far as half of its messages."""
    messages: dict[int, Known] = {}
    with MessageStore.open(folder / "closed", StoreConfig(sizes=SIZES, preallocate=False), create=True) as store:
        store.create_topic("orders", 2)
        store.create_topic("events", 1)
        store.put(Message(DELETED, DELETED_BODY), 0)
        store.delete_topic(DELETED)
        for number in range(MESSAGES):
            topic, queue = queue_of(number)
            put = store.put(Message(topic, body(number), keys=[key_of(number)]), queue)
            end = put.physical_offset + put.store_size
            messages[number] = Known(topic, queue, put.queue_offset, put.physical_offset, end)
            if number == MESSAGES // 2:
                store.flush()
        for group, offset in GROUPS.items():
            store.commit_offset(group, "orders", 0, offset)
        log_end = store.physical_end
        shutil.copytree(folder / "closed", folder / "killed")
    return Sample(folder, messages, log_end)
