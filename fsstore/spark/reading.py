"""Reading a range on an executor: Arrow batches from its file below `@parquet/`, also across restarts of the daemon and
of a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from fsstore.fleet.datasets import BrokerError
from fsstore.fleet.sources import FAILURES, Slot, Source
from fsstore.jobs.mount import RETRY_PAUSE_S, DataLossError, QueueRange, within
from fsstore.spark.offsets import Position, Queues

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_MESSAGES = 10_000
_CONSTANTS = ("topic", "queue", "broker")
"""Columns that are in no file."""


class RangeReader:
    """Reads ranges of queues at a place of their broker, with the columns of `schema`."""

    def __init__(
        self, sources: Sequence[Source], schema: StructType, patience_s: float, fail_on_data_loss: bool
    ) -> None:  # fmt: skip
        """The first of `sources` is read; another one if it does not answer. They may be away for `patience_s`."""
        self._sources = sources
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._patience_s = patience_s
        self._fail_on_data_loss = fail_on_data_loss

    def read(self, part: QueueRange, end: Position) -> Iterator[pa.RecordBatch]:
        """The messages of a range in queue order, each once. `end`, a position at or behind the end of the range,
        identifies the queue.

        If the store's daemon or server ends meanwhile, reading continues after the last message when it is back.
        DataLossError: messages have expired or were deleted (without `fail_on_data_loss` they are skipped).
        BrokerError, MountGoneError, OSError: no place has answered in time.
        """
        turns, deadline = cycle(self._sources), time.monotonic() + self._patience_s
        source, is_first = next(turns), True
        while part.begin < part.end:
            try:
                source.require_there()
                part = self._what_is_left(source, part, end, may_trust=is_first)
                for begin, batch in _batches(source, part, self._wanted):
                    yield batch
                    part = part._replace(begin=begin)
                    deadline = time.monotonic() + self._patience_s
                return
            except FAILURES:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_PAUSE_S)
            source, is_first = next(turns), False

    def _what_is_left(self, source: Source, part: QueueRange, end: Position, *, may_trust: bool) -> QueueRange:
        """`part` without messages that were removed from the store since it was planned. The one question whether its
        end is what it was is enough if `may_trust`. BrokerError: a spare place lacks them."""
        last = Slot(part.topic, part.queue, end.offset - 1)
        is_known = end.last_physical is not None and source.physical_offsets([last])[last] == end.last_physical
        if may_trust and (is_known or end.last_physical is None):
            return part
        if source is not self._sources[0] and not is_known:
            raise BrokerError(source.broker, source.place, "it lacks messages that must be read")
        there = source.bounds()
        if Queues(there, source.physical_offsets).is_of(end, part.topic, part.queue):
            left, why = within(there, part), "they expired"
        else:
            left, why = part._replace(begin=part.end), "the topic was deleted"
        if left != part and self._fail_on_data_loss:
            found = left.begin if left.begin > part.begin else left.end
            raise DataLossError(part.topic, part.queue, part.begin, found, why)
        return left


def _batches(source: Source, part: QueueRange, wanted: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches, each with the queue offset after its last message."""
    if part.begin >= part.end:
        return
    columns = [name for name in wanted.names if name not in _CONSTANTS]
    constants = {"topic": part.topic, "queue": part.queue, "broker": source.broker}
    with (
        source.range_file(part) as found,
        pq.ParquetFile(found, pre_buffer=False) as file,  # else all of it is read into memory
    ):
        for batch in file.iter_batches(BATCH_MESSAGES, columns=list({*columns, "queue_offset"})):
            if batch.num_rows:
                yield batch.column("queue_offset")[-1].as_py() + 1, _shaped(batch, constants, wanted)


def _shaped(batch: pa.RecordBatch, constants: Mapping[str, object], wanted: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows)
        if field.name in constants
        else batch.column(field.name).cast(field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
