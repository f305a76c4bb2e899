"""Messages as an Arrow table, for a program that opened the store itself. Rows and columns are those of `@parquet`.

    with MessageStore.open("/srv/store", StoreConfig(mode=OpenMode.FOLLOW)) as store:
        table = to_arrow(store, "orders")

pyarrow does the rest: `table.to_pandas()`, `polars.from_arrow(table)`, `duckdb.sql("select ... from table")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from engine import ExpiredMessageError, MessageStore
from fsstore.parquet.file_map import chunk_index, map_file
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.layout import MAGIC, PAGE_BYTES, Layout, RangeKey, measure, range_key
from fsstore.parquet.row_groups import RowGroupColumns, read_columns

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_MESSAGES = 65_536
"""Messages that are rendered at once."""


def to_arrow(
    store: MessageStore, topic: str, queue: int | None = None, start: int = 0, count: int | None = None
) -> pa.Table:
    """The messages of a topic, or of one queue, from queue offset `start` on, up to `count` of each queue. The table
    has a row per message, queue by queue, with the columns of `@parquet` and `queue`; damaged messages are left out. It
    is a copy in memory.

    Raises TopicNotFoundError; ImportError if pyarrow is not installed.

    >>> from engine import MessageStore, OpenMode, StoreConfig
    >>> from fsstore.arrow import to_arrow
    >>> with MessageStore.open("store", StoreConfig(mode=OpenMode.READ_ONLY)) as store:
    ...     table = to_arrow(store, "orders", queue=0)
    >>> table.select(["queue_offset", "tags"]).to_pylist()[0]
    {'queue_offset': 0, 'tags': 'paid'}
    """
    import pyarrow as pa

    nothing = RangeKey(topic, 0, 0, 0, 0, 0, 0)
    tables = [_with_queue(_table(Layout(nothing, (), 2 * PAGE_BYTES, 0), []), 0)]
    for number in store.queues(topic) if queue is None else [queue]:
        bounds = store.bounds(topic, number)
        end = bounds.max_offset if count is None else min(start + count, bounds.max_offset)
        for begin in range(max(start, bounds.min_offset), end, PIECE_MESSAGES):
            with suppress(ExpiredMessageError):  # retention has removed them meanwhile
                layout = measure(store, range_key(store, topic, number, begin, min(begin + PIECE_MESSAGES, end)))
                columns = [read_columns(store, layout.key, row_group) for row_group in layout.row_groups]
                tables.append(_with_queue(_table(layout, columns), number))
    return pa.concat_tables(tables)


def _table(layout: Layout, columns: Sequence[RowGroupColumns]) -> pa.Table:
    """The rows of a file of `@parquet`, which is made in memory and read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = map_file(layout, columns)
    data = bytearray(layout.size)
    data[: len(MAGIC)] = MAGIC
    for number, start in enumerate(found.starts[:-1].tolist()):
        row_group, column = chunk_index(number)
        chunk = columns[row_group].chunks[SCHEMA.in_file[column].name].encode()
        data[start : start + len(chunk)] = chunk
    data[-len(found.footer) :] = found.footer
    return pq.read_table(pa.BufferReader(data)).replace_schema_metadata()


def _with_queue(table: pa.Table, queue: int) -> pa.Table:
    import pyarrow as pa

    return table.append_column("queue", pa.array([queue] * len(table), pa.int32()))
