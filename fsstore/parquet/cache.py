"""A cache in memory for rendered files and measured layouts. It evicts the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values up to a total size; the least recently used are evicted. Thread safety: none."""

    def __init__(self, most_bytes: int) -> None:
        """A value that alone is larger than `most_bytes` is not kept."""
        self._most_bytes = most_bytes
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.kept_bytes = 0

    def kept(self) -> list[tuple[K, V]]:
        """All keys and values, the least recently used first."""
        return [(key, value) for key, (value, _) in self._values.items()]

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        self.take(key)
        self._values[key] = (value, size)
        self.kept_bytes += size
        while self.kept_bytes > self._most_bytes:
            _, (_, evicted_bytes) = self._values.popitem(last=False)
            self.kept_bytes -= evicted_bytes

    def take(self, key: K) -> V | None:
        """Remove a value and return it."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self.kept_bytes -= found[1]
        return found[0]
