"""A stream under test: the rows of each of its batches, so that a repeated batch counts once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from fsstore.spark import FsstoreSource

PROJECT = Path(__file__).resolve().parents[2]


class Receiver(Protocol):
    """What takes the batches of a stream."""

    def take(self, batch: DataFrame, number: int) -> None:
        """For foreachBatch."""


class Received:
    """The messages of a stream: batch -> queue -> (queue offset, body)."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int, bytes]]] = {}

    def take(self, batch: DataFrame, number: int) -> None:
        """For foreachBatch."""
        rows = batch.select("queue", "queue_offset", "body").collect()
        self.batches[number] = [(row.queue, row.queue_offset, bytes(row.body)) for row in rows]

    @property
    def count(self) -> int:
        return sum(map(len, self.batches.values()))

    def queues(self) -> dict[int, list[tuple[int, bytes]]]:
        """The received messages of each queue, in the order of their arrival."""
        found = defaultdict(list)
        for number in sorted(self.batches):
            for queue, offset, body in self.batches[number]:
                found[queue].append((offset, body))
        return dict(found)


def source(spark: SparkSession, mount: Path, **options: object) -> DataFrame:
    """A stream of the mount."""
    spark.dataSource.register(FsstoreSource)
    return spark.readStream.format("fsstore").options(**options).load(str(mount))


@contextmanager
def running(stream: DataFrame, received: Receiver, checkpoint: Path, **trigger: object) -> Iterator[Any]:
    """The stream, running into `received`."""
    writer = stream.writeStream.foreachBatch(received.take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()
    try:
        yield query
    finally:
        query.stop()
