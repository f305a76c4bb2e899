"""Gathered keys: those of single messages, in memory until some thousand go into the index together (docs/format.md,
7)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from engine.keyhash import hash_texts, topic_hashes, topic_key_hashes

Array = np.ndarray[Any, Any]
Record = tuple[str, Sequence[str], int, int]
"""Topic, keys, physical offset, store time in ms."""


class GatheredKeys:
    """Records with their keys, in log order. Thread safety: one writer; any thread asks."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = list(records)
        self._look_lock = threading.Lock()
        self._by_key: dict[str, list[Record]] = {}
        self._looked = 0

    def __len__(self) -> int:
        return len(self._records)

    def append(self, record: Record) -> None:
        """Add the next record."""
        self._records.append(record)

    def places(self, topic: str, key: str) -> list[int]:
        """Physical offsets of the records with that key, newest first. Costs the records added since the last
        question."""
        if not self._records:
            return []
        with self._look_lock:
            for record in self._records[self._looked :]:
                self._looked += 1
                for one in record[1]:
                    self._by_key.setdefault(one, []).append(record)
            return [record[2] for record in reversed(self._by_key.get(key, ())) if record[0] == topic]

    def before(self, physical_end: int) -> GatheredKeys:
        """Only the records before `physical_end`."""
        return GatheredKeys([record for record in self._records if record[2] < physical_end])

    @property
    def last_physical_offset(self) -> int:
        """Physical offset of the newest record; -1 when there is none."""
        return self._records[-1][2] if self._records else -1

    def hashed(self) -> tuple[Array, Array, Array]:
        """The keys in order, as index files take them: index hashes, physical offsets, store times in ms. Not of
        none."""
        return hash_records(self._records)


def hash_records(records: Sequence[Record]) -> tuple[Array, Array, Array]:
    """The keys of `records` in order, as the files take them: index hashes, physical offsets, store times in ms."""
    topics, key_lists, places, times = zip(*records, strict=True)
    keys = list(chain.from_iterable(key_lists))
    hashes, units = hash_texts(keys)
    numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    rows = np.fromiter(map(numbers.__getitem__, topics), np.int64, len(topics))
    counts = np.fromiter(map(len, key_lists), np.int64, len(key_lists))
    joined = topic_key_hashes(np.repeat(topic_hashes(list(numbers))[rows], counts), hashes, units)
    return joined, np.repeat(np.array(places, np.int64), counts), np.repeat(np.array(times, np.int64), counts)
