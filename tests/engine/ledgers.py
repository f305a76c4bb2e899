"""Commit logs as DLedger writes them, for tests: entries, a filler at each file's end, and the consume queues."""

from __future__ import annotations

import struct
from pathlib import Path

from engine import Message
from engine.record.hashes import tags_hash
from tests.engine.records import encoder

HEADER = struct.Struct(">iiqqqiiii")
QUEUE_ENTRY = struct.Struct(">qiq")
INDEX_ENTRY = struct.Struct(">iqiqq")
RECORD, NOOP = 1, 2


class Ledger:
    """The broker of a store at `root`, from the physical offset `end` and the entry number `entry` on."""

    def __init__(
        self, root: Path, file_bytes: int, queue_bytes: int, *, end: int = 0, entry: int = 0, term: int = 0
    ) -> None:
        self.root = root
        self.end = end
        self.entry = entry
        self.term = term
        self._file_bytes = file_bytes
        self._queue_bytes = queue_bytes
        self._undispatched: list[tuple[Message, int, int, int, int]] = []
        for folder in ("data", "index"):
            (root / "dledger-n0" / folder).mkdir(parents=True, exist_ok=True)

    def append(self, message: Message, queue_id: int, queue_offset: int, now_ms: int = 1_700_000_000_000) -> int:
        """Append a message; its physical offset. No queue leads to it before `dispatch`."""
        encoded = encoder.encode(message, queue_id, now_ms)
        self._roll(HEADER.size + encoded.size)
        place = self.end + HEADER.size
        encoded.place(queue_offset, place, now_ms)
        self._write_entry(RECORD, bytes(encoded.buffer))
        self._undispatched.append((message, queue_id, queue_offset, place, encoded.size))
        return place

    def append_noop(self) -> None:
        """Append an entry without a record, as a new leader may."""
        self._roll(HEADER.size)
        self._write_entry(NOOP, b"")

    def dispatch(self) -> None:
        """Add the consume queue entries of the appended messages."""
        for message, queue_id, queue_offset, place, size in self._undispatched:
            position = queue_offset * QUEUE_ENTRY.size
            start = position - position % self._queue_bytes
            folder = self.root / "consumequeue" / message.topic / str(queue_id)
            code = tags_hash(message.tags)
            write_at(folder, start, position, QUEUE_ENTRY.pack(place, size, code), self._queue_bytes)
        self._undispatched.clear()

    def commit(self) -> None:
        """Say in DLedger's checkpoint that all entries are committed."""
        text = f"committedIndex={self.entry - 1}\nendIndex={self.entry - 1}\n"
        (self.root / "dledger-n0" / "checkpoint").write_text(text)

    def _roll(self, size: int) -> None:
        left = self._file_bytes - self.end % self._file_bytes
        if size + 8 > left:
            self._write(struct.pack(">ii", -1, left))
            self.end += left

    def _write_entry(self, magic: int, body: bytes) -> None:
        size = HEADER.size + len(body)
        header = HEADER.pack(magic, size, self.entry, self.term, self.end, 0, 0, 0, len(body))
        self._write(header + body)
        place = self.entry * INDEX_ENTRY.size
        index = INDEX_ENTRY.pack(magic, self.end, size, self.entry, self.term)
        write_at(self.root / "dledger-n0" / "index", 0, place, index, 1 << 20)
        self.end += size
        self.entry += 1

    def _write(self, data: bytes) -> None:
        start = self.end - self.end % self._file_bytes
        write_at(self.root / "dledger-n0" / "data", start, self.end, data, self._file_bytes)


def write_at(folder: Path, start: int, position: int, data: bytes, file_bytes: int) -> None:
    """Write `data` at `position` of a row of files, into the one that begins at `start`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{start:020d}"
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(file_bytes)
        file.seek(position - start)
        file.write(data)
