"""A task of an export, without Spark: any files stand for those of `@parquet/`."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.jobs import export as exporting
from fsstore.jobs.export import ExportFolder, Totals, Unit, bring, totals_of
from fsstore.jobs.mount import QueueRange, range_path

ROW_GROUP = 10


def pretend(root: Path, part: QueueRange, hours: int) -> pa.Table:
    """A file with the fields that an export reads, and a message every so many hours."""
    offsets = range(part.begin, part.end)
    begun = datetime(2026, 11, 20, tzinfo=UTC)
    table = pa.table(
        {
            "queue_offset": pa.array(offsets, pa.int64()),
            "body": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
            "store_time": pa.array([begun + timedelta(hours=hours * n) for n in offsets], pa.timestamp("us", "UTC")),
        }
    )
    file = Path(range_path(str(root), part))
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=ROW_GROUP)
    return table


@pytest.mark.parametrize("most_bytes", [1, 1_000, 1 << 20])
def test_files_have_every_message_under_its_day(tmp_path: Path, most_bytes: int) -> None:
    pieces = [QueueRange("orders", queue, 0, 35) for queue in (0, 1)]
    bodies = [body for piece in pieces for body in pretend(tmp_path, piece, 3)["body"].to_pylist()]
    part = bring(str(tmp_path), str(tmp_path / "out"), most_bytes, (0, pieces))
    assert part.read == part.found == Totals(70, sum(map(zlib.crc32, bodies)))
    assert part.left_out == 0
    found = [
        (Path(file).parent.name, row["queue"], row["queue_offset"], row["store_time"])
        for file in part.files
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert sorted(row[1:3] for row in found) == [(queue, offset) for queue in (0, 1) for offset in range(35)]
    assert all(day == f"date={time:%F}" for day, *_, time in found)
    assert len(set(part.files)) == len(list((tmp_path / "out").glob("date=*/*.parquet")))
    if most_bytes == 1 << 20:
        assert len(part.files) == len({day for day, *_ in found}) == 5


def test_a_task_that_is_done_twice_writes_other_files(tmp_path: Path) -> None:
    piece = QueueRange("orders", 0, 0, 5)
    pretend(tmp_path, piece, 1)
    parts = [bring(str(tmp_path), str(tmp_path / "out"), 1 << 20, (0, [piece])) for _ in range(2)]
    assert not set(parts[0].files) & set(parts[1].files)


def test_units_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.locked():
        for number in (100_000, 99_999, 7):
            folder.finish(Unit(number, (QueueRange("orders", 0, 0, number),), 0, 0, 0, 0, ()))
    assert [unit.number for unit in folder.units()] == [7, 99_999, 100_000]


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 20), st.booleans())
def test_figures_are_those_of_the_bodies(bodies: list[bytes], begin: int, is_large: bool) -> None:
    column = pa.chunked_array([pa.array(bodies, pa.large_binary() if is_large else pa.binary()).slice(begin)])
    assert totals_of(column) == Totals(len(bodies[begin:]), sum(map(zlib.crc32, bodies[begin:])))


@given(st.lists(st.integers(0, 3 * exporting.FILE_BYTES), max_size=12))
def test_tasks_have_all_ranges_in_order_and_about_as_much_to_do(sizes: list[int]) -> None:
    pieces = [QueueRange("orders", 0, number, number + 1) for number in range(len(sizes))]
    shares = exporting._shares(pieces, sizes)
    assert [piece for share in shares for piece in share] == pieces
    assert all(shares)
    for share in shares:
        assert sum(sizes[piece.begin] for piece in share) <= exporting.FILE_BYTES + max(sizes)
