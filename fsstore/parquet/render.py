"""Rendering: the messages of a range as Parquet, by pyarrow, from arrays that were gathered out of the mapped log.

The only module that needs pyarrow; it is loaded with the first file that somebody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine import Block, ByteColumn, CodedColumn, ExpiredMessageError, MessageStore, SliceColumn
from fsstore.parquet.layout import Layout, RangeKey, RowGroup, range_key

Array = np.ndarray[Any, Any]

_TIME = pa.timestamp("us", "UTC")
_KEYS = pa.large_list(pa.field("element", pa.large_string(), nullable=False))
_CODED = pa.dictionary(pa.int32(), pa.large_string())
"""Text of which few values differ. Such an array is written without looking at each; in the file it is text as all."""
_PROPERTIES = pa.map_(_CODED, pa.field("value", pa.large_string(), nullable=False))
_ITEM = pa.struct([_PROPERTIES.key_field, _PROPERTIES.item_field])

SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("queue_offset", pa.int64()),
            ("physical_offset", pa.int64()),
            ("body", pa.binary_view()),
            ("keys", _KEYS),
            ("tags", pa.large_string()),
            ("unique_key", pa.large_string()),
            ("properties", _PROPERTIES),
            ("born_time", _TIME),
            ("store_time", _TIME),
            ("born_host", _CODED),
            ("store_host", _CODED),
            ("flag", pa.int32()),
            ("sys_flag", pa.int32()),
            ("reconsume_times", pa.int32()),
        )
    ]
)
_FEW_VALUES = ("tags", "properties.key_value.key", "born_host", "store_host", "flag", "sys_flag", "reconsume_times")
_PRUNED_BY = ("queue_offset", "physical_offset", "born_time", "store_time", "flag", "sys_flag", "reconsume_times")
_FIRST_TIME_MS, _LAST_TIME_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader can show: a publisher's clock may say anything."""

_REPLACEMENT = "\ufffd"
_BATCH_VALUES = 4096  # looked at together: with fewer it takes longer, with more a page gets longer than a MiB
_VERSION = version("fsstore")  # asked once: it stands in a file
_ZEROS = bytes(256 << 10)  # short enough to stay in the processor's cache while pyarrow copies them

_KEPT_BY_MALLOC_BYTES = 31 << 20
np.empty(_KEPT_BY_MALLOC_BYTES, np.uint8)
"""Once glibc has seen a block of that length come and go, it keeps what is freed up to twice of it, and does not map
shorter ones anew each time. Without it, rendering takes up to a quarter longer, for page faults, and leaves some 50 MiB
less behind."""


class BoundError(Exception):
    """A part of a rendered file is longer than the place that was computed for it: the records have changed."""


class Rendered(NamedTuple):
    """The footer of a rendered file, and how many messages it leaves out because they are damaged."""

    footer: bytes
    left_out: int


class _Sink:
    """The file that pyarrow writes: keeps what was written since the last `take`, and only counts what is skipped."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._is_skipping = False
        self.position = 0
        self.file = pa.PythonFile(self, mode="w")

    def write(self, data: bytes) -> int:
        size = len(data)
        self.position += size
        if not self._is_skipping:
            self._written.append(data)
        return size

    def flush(self) -> None:
        """Part of what pyarrow asks of a file."""

    def close(self) -> None:
        """Part of what pyarrow asks of a file."""

    def skip_to(self, position: int) -> None:
        """Zeros up to `position`."""
        self._is_skipping = True
        while self.position < position:
            self.file.write(_ZEROS[: position - self.position])
        self._is_skipping = False

    def take(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)


def _writer(sink: _Sink) -> pq.ParquetWriter:
    """Nothing is compressed, so that sizes are bounded and a warm read costs no more than a copy."""
    return pq.ParquetWriter(
        sink.file,
        SCHEMA,
        version="2.6",
        data_page_version="1.0",
        data_page_size=1 << 20,
        write_batch_size=_BATCH_VALUES,
        dictionary_pagesize_limit=1 << 20,
        compression="NONE",
        use_dictionary=list(_FEW_VALUES),
        write_statistics=list(_PRUNED_BY),
        write_page_index=False,
        store_schema=False,
    )


def render(store: MessageStore, layout: Layout, keep: Callable[[int, bytes], None]) -> Rendered:
    """Render a whole file: `keep` gets each row group with its index, then the footer is returned.

    ExpiredMessageError when its first message is gone, BoundError.
    """
    sink = _Sink()
    left_out = 0
    with _writer(sink) as writer:
        sink.take()
        for index, row_group in enumerate(layout.row_groups):
            sink.skip_to(row_group.position)
            table, damaged = _table(store, layout.key, row_group)
            left_out += damaged
            keep(index, _written(sink, writer, table, row_group))
        sink.skip_to(layout.footer_position)
        writer.add_key_value_metadata(_metadata(layout.key, left_out))
    footer = sink.take()
    if len(footer) > layout.size - layout.footer_position:
        raise BoundError(f"footer of {layout.key}")
    return Rendered(footer, left_out)


def render_row_group(store: MessageStore, layout: Layout, index: int) -> bytes:
    """Render one row group: the very bytes that `render` makes of it. Errors as `render`."""
    row_group = layout.row_groups[index]
    sink = _Sink()
    with _writer(sink) as writer:
        sink.skip_to(row_group.position)
        sink.take()
        return _written(sink, writer, _table(store, layout.key, row_group)[0], row_group)


def _written(sink: _Sink, writer: pq.ParquetWriter, table: pa.Table, row_group: RowGroup) -> bytes:
    if len(table):
        writer.write_table(table, row_group_size=len(table))
    written = sink.take()
    if len(written) > row_group.size:
        raise BoundError(f"row group at queue offset {row_group.begin}")
    return written


def _metadata(key: RangeKey, left_out: int) -> dict[str, str]:
    return {
        "fsstore.version": _VERSION,
        "fsstore.pyarrow": pa.__version__,
        "fsstore.topic": key.topic.encode("utf-8", "replace").decode(),
        "fsstore.queue": str(key.queue),
        "fsstore.range": f"{key.begin}-{key.end}",
        "fsstore.left_out": str(left_out),
    }


def _table(store: MessageStore, key: RangeKey, row_group: RowGroup) -> tuple[pa.Table, int]:
    """The good messages of a row group, and how many are not."""
    block = _block(store, key, row_group)
    table = table_of(block)
    if _has_grown(block) and _alone_bytes(table) > row_group.size:
        table = table_of(block, replacement="?")
    return table, block.damaged


def _block(store: MessageStore, key: RangeKey, row_group: RowGroup) -> Block:
    if range_key(store, key.topic, key.queue, key.begin, key.end) != key:
        raise ExpiredMessageError(key.topic, key.queue, key.begin, key.end)
    with store.hold(key.first_physical):
        block = store.block(key.topic, key.queue, row_group.begin, row_group.end - row_group.begin)
    store.hold(key.first_physical).release()  # what retention took meanwhile would pass for damaged
    return block


def _has_grown(block: Block) -> bool:
    """Whether text may be longer than it was in the log: what is no UTF-8 there has a sign of three bytes here."""
    names = block.property_names
    texts = (block.tags, block.unique_key, block.keys, block.property_values)
    arrays = [text.data for text in (*texts, names.texts if isinstance(names, CodedColumn) else names)]
    return any(data.max(initial=0) >= 0x80 and _REPLACEMENT.encode() in data.tobytes() for data in arrays)


def _alone_bytes(table: pa.Table) -> int:
    sink = _Sink()
    with _writer(sink) as writer:
        if len(table):
            writer.write_table(table, row_group_size=len(table))
        return sink.position


def table_of(block: Block, replacement: str = _REPLACEMENT) -> pa.Table:
    """A block as a table of SCHEMA. `replacement` stands for what was no text."""

    def text(column: ByteColumn) -> pa.Array:
        array = _bytes_array(pa.large_string(), column)
        return array if replacement == _REPLACEMENT else _replaced(array, replacement)

    def coded(column: ByteColumn | CodedColumn) -> pa.Array:
        if isinstance(column, ByteColumn):
            return text(column).dictionary_encode()
        return pa.DictionaryArray.from_arrays(_numbers(pa.int32(), column.codes), text(column.texts), safe=False)

    items = pa.StructArray.from_arrays([coded(block.property_names), text(block.property_values)], fields=list(_ITEM))
    columns: list[pa.Array] = [
        _numbers(pa.int64(), block.queue_offset),
        _numbers(pa.int64(), block.physical_offset),
        _views_array(block.body),
        _nested(_KEYS, block.key_starts, text(block.keys)),
        text(block.tags),
        text(block.unique_key),
        _nested(_PROPERTIES, block.property_starts.astype(np.int32), items),
        _times(block.born_time_ms),
        _times(block.store_time_ms),
        coded(block.born_host),
        coded(block.store_host),
        *(
            _numbers(pa.int32(), values.astype(np.int32))
            for values in (block.flag, block.sys_flag, block.reconsume_times)
        ),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _replaced(array: pa.Array, replacement: str) -> pa.Array:
    from pyarrow import compute  # hardly ever needed, and loading it takes as long as rendering many messages

    return compute.replace_substring(array, _REPLACEMENT, replacement)


def _bytes_array(kind: pa.DataType, column: ByteColumn) -> pa.Array:
    return pa.Array.from_buffers(kind, len(column), [None, _buffer(column.offsets), _buffer(column.data)])


def _views_array(column: SliceColumn) -> pa.Array:
    """Those bytes where they are: pyarrow takes them from there."""
    buffers = [None, _buffer(column.views()), _buffer(column.data)]
    return pa.Array.from_buffers(pa.binary_view(), len(column), buffers)


def _nested(kind: pa.DataType, starts: Array, values: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(kind, len(starts) - 1, [None, _buffer(starts)], children=[values])


def _times(times_ms: Array) -> pa.Array:
    return _numbers(_TIME, np.clip(times_ms, _FIRST_TIME_MS, _LAST_TIME_MS) * 1000)


def _numbers(kind: pa.DataType, values: Array) -> pa.Array:
    """`values`, which have the width of `kind`. (`pa.array` would load pandas, which takes longer than to
    render many files.)"""
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)])


def _buffer(values: Array) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values))
