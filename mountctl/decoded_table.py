"""Decoded bodies as a table of DuckDB's: each message of a query is decoded once, however often its views are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fsstore.query.fields import MOST_BYTES, SAMPLE, Sample
from fsstore.query.json_fields import FieldReader
from mountctl.decoding import Decoder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SLOT = "topic, queue, queue_offset"
"""The columns that say which message a row is."""
_TABLE = "decoded_by_mountctl.bodies"
_ROWS_AT_ONCE = 1_000

SlotAndBody = tuple[str, int, int, bytes]


class DecodedTable:
    """The bodies of messages, decoded, in an in-memory database of DuckDB's."""

    def __init__(self, connection: DuckDBPyConnection, decoder: Decoder) -> None:
        self._connection = connection
        self._decoder = decoder
        self._topics: set[str] = set()
        schema = _TABLE.partition(".")[0]
        columns = "topic varchar, queue int, queue_offset bigint, decoded blob"
        connection.execute(f"create schema {schema}; create table {_TABLE} ({columns})")

    def lacking(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics whose messages were not added."""
        return [topic for topic in topics if topic not in self._topics]

    def add(self, topics: Iterable[str], messages: Iterable[SlotAndBody]) -> None:
        """Decode all messages of some topics. Those that can't be decoded are named on standard error, and left out.
        CommandError: the command can't be run."""
        found = self._decoder.decoded_bodies(messages)
        while rows := list(islice(found, _ROWS_AT_ONCE)):
            self._connection.executemany(f"insert into {_TABLE} values (?, ?, ?, ?)", rows)
        self._topics.update(topics)

    def rows(self, view: str) -> str:
        """A query for the decoded messages of `view`, a query with SLOT, with their bodies in one more column,
        `decoded`."""
        return f"select * from ({view}) join {_TABLE} using ({SLOT})"

    def sample(self, topics: Sequence[str]) -> Sample:
        """The fields of some decoded bodies of the topics. The same messages give the same sample."""
        chosen = f"from {_TABLE} where topic in ({', '.join('?' * len(topics))})"
        [there] = self._connection.execute(f"select count(*) {chosen}", topics).fetchone() or (0,)
        sample, reader, read_bytes = Sample(there), FieldReader([()]), 0
        found = self._connection.execute(f"select decoded {chosen} order by hash({SLOT}) limit {SAMPLE}", topics)
        while row := found.fetchone():
            read_bytes += len(row[0])
            if read_bytes > MOST_BYTES and sample.drawn:
                sample.is_cut = True
                break
            sample.add(reader.decoded(row[0]))
        return sample
