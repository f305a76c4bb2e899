"""The meaning of the kernel's inode numbers."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from fsstore.handover.layout import NEXT_NUMBER_WORD
from fsstore.handover.records import NODE, Records


class NodeText(NamedTuple):
    """A path of the tree as text that a later version understands."""

    kind: str
    topic: str | None
    queue: int | None
    detail: Hashable


@lru_cache(maxsize=1024)
def _encoded(text: NodeText) -> bytes:
    return json.dumps(text).encode()


class NodeRecords:
    """The path of each inode number that the kernel knows, and how often a look-up returned it."""

    def __init__(self, words: memoryview, records: Records) -> None:
        self._words = words
        self._records = records
        self._record_of = records.of[NODE]

    @property
    def next_number(self) -> int:
        """The lowest inode number that was never given."""
        return self._words[NEXT_NUMBER_WORD]

    @next_number.setter
    def next_number(self, number: int) -> None:
        self._words[NEXT_NUMBER_WORD] = number

    def all(self) -> Iterator[tuple[int, NodeText, bool, int, int | None]]:
        """Yield (inode, text, is_named, look-ups, user) of each."""
        for inode, record in self._record_of.items():
            lookups, _, size, is_named, user = self._words[record + 2 : record + 7]
            kind, topic, queue, detail = json.loads(self._records.data(record, size))
            text = NodeText(kind, topic, queue, tuple(detail) if isinstance(detail, list) else detail)
            yield inode, text, bool(is_named), lookups, user - 1 if user else None

    def add(self, inode: int, text: NodeText, *, is_named: bool, lookups: int = 0, user: int | None = None) -> None:
        """Note an inode number, and the user to whose share of names it counts. OSError: there is no room."""
        data = _encoded(text)
        self.next_number = max(self.next_number, inode + 1)
        self._records.add(NODE, inode, (lookups, 0, len(data), is_named, 0 if user is None else user + 1, 0), data)

    def count(self, inode: int, lookups: int) -> None:
        """Note how often look-ups returned the inode number."""
        record = self._record_of.get(inode)
        if record is not None:
            self._words[record + 2] = lookups

    def extra(self, inode: int) -> int:
        """The value that was noted with an inode number; 0 at first."""
        record = self._record_of.get(inode)
        return self._words[record + 3] if record is not None else 0

    def set_extra(self, inode: int, value: int) -> None:
        """Note a value with an inode number. Thread safety: any thread."""
        with self._records.lock:
            record = self._record_of.get(inode)
            if record is not None:
                self._words[record + 3] = value

    def drop(self, inode: int) -> None:
        if inode in self._record_of:
            with self._records.lock:
                self._records.drop(NODE, inode)
