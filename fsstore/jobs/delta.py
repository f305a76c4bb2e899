"""A Delta table as the target of an export: a unit is a commit, and its files are written once.

The commit adds the unit's files, and has the unit's number as the version of a transaction identifier. So the table
alone says which units are finished: `_fsstore/unit-00007.json` is written before the commit, and describes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from fsstore.jobs.export import ExportError, ExportFolder, ExportSelection, Store, Unit, sync_path
from fsstore.jobs.mount import QueueRange
from fsstore.parquet.format import FIELDS, Type
from fsstore.parquet.names import parse_topic_partition

APPLICATION = "fsstore.export"
"""Identifier of the transactions; their version is the number of the unit that was finished last."""
PARTITIONS = ["topic", "date"]

_TYPES = {
    Type.INT: pa.int32(),
    Type.LONG: pa.int64(),
    Type.TIME: pa.timestamp("us", "UTC"),
    Type.BYTES: pa.binary(),
    Type.TEXT: pa.string(),
    Type.HOST: pa.string(),
    Type.TEXTS: pa.list_(pa.string()),
    Type.MAP: pa.map_(pa.string(), pa.string()),
}
_FIELDS = [(field.name, _TYPES[field.type]) for field in FIELDS]
COLUMNS = Schema.from_arrow(pa.schema([*_FIELDS, ("queue", pa.int32()), ("topic", pa.string()), ("date", pa.date32())]))
_BOUNDED = ("queue", "queue_offset", "physical_offset")
_DATE_LENGTH = len("2026-11-22")
_YEAR_10000_US = 253_402_300_800_000_000


class DeltaFolder(ExportFolder):
    """A Delta table with its plan and the descriptions of its units."""

    format = "delta"

    def plan(self, wanted: ExportSelection, store: Store) -> list[QueueRange]:
        """As of a dataset. Makes the table if there is none.

        ExportError: also if the table has other columns, or is gone.
        """
        with self._deltalake():
            is_there = DeltaTable.is_deltatable(str(self.path))
            if is_there:
                self._table()
            parts = super().plan(wanted, store)
            if not is_there and super().units():
                raise ExportError(f"{self.path} has lost its _delta_log: name another directory")
            if not is_there:
                DeltaTable.create(self.path, COLUMNS, partition_by=PARTITIONS)
        return parts

    def units(self) -> list[Unit]:
        """Units that the table has, the oldest first. ExportError: they are not those that are described."""
        described = super().units()
        with self._deltalake():
            last = self._table().transaction_version(APPLICATION)
        number = 0 if last is None else last + 1
        if number not in (len(described), len(described) - 1):
            found = f"{number} units of an export, and descriptions of {len(described)}"
            raise ExportError(f"{self.path} has {found}: name another directory")
        return described[:number]

    def finish(self, unit: Unit) -> None:
        """Describe `unit`, and commit it, durably. ExportError: another program has changed the table so that it can't
        be."""
        super().finish(unit)
        files = [self._add_action(name) for name in unit.files]
        mark = CommitProperties(app_transactions=[Transaction(APPLICATION, unit.number)])
        with self._deltalake():
            self._table().create_write_transaction(files, "append", COLUMNS, PARTITIONS, commit_properties=mark)

    def _table(self) -> DeltaTable:
        """The table as it is now. ExportError: it has other columns."""
        table = DeltaTable(self.path)
        wanted, there = ({field.to_json() for field in schema.fields} for schema in (COLUMNS, table.schema()))
        if wanted != there or table.metadata().partition_columns != PARTITIONS:
            names = ", ".join(sorted({json.loads(field)["name"] for field in wanted ^ there})) or "its partitions"
            raise ExportError(
                f"{self.path} is a table with other columns than an export ({names}): name another directory"
            )
        return table

    @contextmanager
    def _deltalake(self) -> Iterator[None]:
        """Sync what the block adds to the table's log, which deltalake does not. ExportError for deltalake's errors."""
        log = self.path / "_delta_log"
        before = set(os.listdir(log)) if log.exists() else set()
        try:
            yield
        except DeltaError as error:
            raise ExportError(f"{self.path}: {str(error).splitlines()[0]}") from error
        if added := [log / name for name in os.listdir(log) if name not in before]:
            for path in (*added, log, self.path):
                sync_path(path)

    def _add_action(self, name: str) -> AddAction:
        """The action that adds a file of a unit to the table."""
        topic, day, _ = Path(name).parts
        date, file = day.removeprefix("date="), self.path / name
        values = {
            "topic": parse_topic_partition(os.fsencode(topic)),
            "date": date if len(date) == _DATE_LENGTH else None,  # readers know years of four digits
        }
        at = file.stat()
        return AddAction(name, at.st_size, values, at.st_mtime_ns // 1_000_000, True, json.dumps(_statistics(file)))


def _statistics(file: Path) -> dict[str, Any]:
    """Number of messages, and bounds of offsets and store times, by which readers leave out files."""
    metadata = pq.read_metadata(file)
    columns = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]

    def bounds(name: str) -> tuple[int, int]:
        found = [group.column(columns[name]).statistics for group in groups]
        return min(one.min_raw for one in found), max(one.max_raw for one in found)

    known: dict[str, tuple[Any, Any]] = {name: bounds(name) for name in _BOUNDED}
    first, last = bounds("store_time")
    if first >= 0 and last < _YEAR_10000_US:
        known["store_time"] = f"{np.datetime64(first, 'us')}Z", f"{np.datetime64(last, 'us')}Z"
    least, most = ({name: pair[end] for name, pair in known.items()} for end in (0, 1))
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most}
