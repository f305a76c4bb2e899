"""Gathered keys: those of single messages, in memory until some thousand go into the index together (docs/format.md,
7)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.record.hashes import hash_texts, topic_hashes, topic_key_hashes

Array = np.ndarray[Any, Any]


class GatheredKeys:
    """Keys in log order, in columns: no object a key that a garbage collector would have to look at. Thread safety: one
    writer; any thread asks."""

    def __init__(self) -> None:
        self._topics: list[str] = []
        self._places: list[int] = []
        self._times_ms: list[int] = []
        self._keys: list[str] = []
        self._look_lock = threading.Lock()
        self._rows: dict[str, list[int]] = {}
        self._looked = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, topic: str, keys: Sequence[str], physical_offset: int, store_time_ms: int) -> int:
        """Add the keys of the next record; how many there are now."""
        for key in keys:
            self._topics.append(topic)
            self._places.append(physical_offset)
            self._times_ms.append(store_time_ms)
            self._keys.append(key)  # last: who asks looks at as many rows as there are keys
        return len(self._keys)

    def places(self, topic: str, key: str) -> list[int]:
        """Physical offsets of the records with that key, newest first. Costs the keys added since the last question."""
        if not self._keys:
            return []
        with self._look_lock:
            for row in range(self._looked, len(self._keys)):
                self._rows.setdefault(self._keys[row], []).append(row)
                self._looked = row + 1
            return [self._places[row] for row in reversed(self._rows.get(key, ())) if self._topics[row] == topic]

    def before(self, physical_end: int) -> GatheredKeys:
        """Only the keys of records before `physical_end`."""
        kept = GatheredKeys()
        for row in range(bisect_left(self._places, physical_end)):
            kept.add(self._topics[row], (self._keys[row],), self._places[row], self._times_ms[row])
        return kept

    @property
    def last_physical_offset(self) -> int:
        """Physical offset of the newest record; -1 when there is none."""
        return self._places[-1] if self._places else -1

    def hashed(self) -> tuple[Array, Array, Array]:
        """The keys in order, as index files take them: index hashes, physical offsets, store times in ms."""
        hashes, units = hash_texts(self._keys)
        numbers = {topic: number for number, topic in enumerate(dict.fromkeys(self._topics))}
        rows = np.fromiter(map(numbers.__getitem__, self._topics), np.int64, len(self._topics))
        joined = topic_key_hashes(topic_hashes(list(numbers))[rows], hashes, units)
        return joined, np.array(self._places, np.int64), np.array(self._times_ms, np.int64)
