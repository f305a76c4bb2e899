"""An expression of `--where` over Arrow tables with the columns of `@parquet`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine import SliceColumn
from fsstore.query.where import Where

Array = np.ndarray[Any, Any]


def mask(where: Where, queue: int, table: pa.Table) -> Array:
    """For which messages of a queue the expression is true: bool (n,). `table` is a row group of `@parquet`."""
    columns = _TableColumns(table)
    return where.mask_of(queue, columns, columns.texts("body"))


class _TableColumns:
    """The columns of a table as an expression takes them, and the properties."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.properties = self

    def _column(self, name: str) -> pa.Array:
        return self._table[name].combine_chunks()

    def texts(self, name: str) -> SliceColumn:
        """A column of texts or bytes."""
        return _slices(self._column(name))

    @property
    def queue_offset(self) -> Array:
        return np.asarray(self._column("queue_offset"))

    @property
    def store_time_ms(self) -> Array:
        return np.asarray(self._column("store_time").cast(pa.int64())) // 1000

    def keys(self) -> tuple[Array, SliceColumn]:
        keys = self._column("keys")
        starts = np.asarray(keys.offsets)
        return starts - starts[:1], _slices(keys.flatten())

    def value(self, name: bytes) -> SliceColumn:
        return _slices(pc.map_lookup(self._column("properties"), pa.scalar(name.decode()), "last"))


def _slices(texts: pa.Array) -> SliceColumn:
    """The bytes of a column of texts; nulls are empty."""
    _, offsets, data = pc.fill_null(texts.cast(pa.large_binary()), b"").buffers()
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1) if offsets is not None else np.zeros(1, np.int64)
    return SliceColumn(np.frombuffer(data or b"", np.uint8), ends[:-1], np.diff(ends))
