"""docs/spark.md, 4: an export to a Delta table, over a real mount."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from engine import FileSizes, Message, MessageStore, Retention, StoreConfig
from fsstore.jobs.delta import COLUMNS, PARTITIONS, DeltaFolder
from fsstore.jobs.export import BusyExportError, Export, ExportFolder, ExportSelection, Threads
from tests.mount.claims import carried, promised
from tests.mount.harness import REPOSITORY, Mounted, mounted
from tests.mountctl.conftest import mountctl, succeed
from tests.spark.deltajob import POINTS

SIZES = FileSizes(commit_log_bytes=1 << 16, consume_queue_entries=10_000, index_slots=5_000, index_entries=20_000)
CONFIG = StoreConfig(sizes=SIZES)
DOCUMENT = REPOSITORY / "docs/spark.md"
Row = tuple[str, int, int, bytes]


def test_every_promise_has_a_test() -> None:
    """4.0 The numbered promises of section 4 are these."""
    found = [claim for claim in promised(DOCUMENT) if claim[0].startswith("4.")]
    assert len(found) > 4
    assert carried(Path(__file__))[1:] == found


def fill(store: Path, count: int, topics: tuple[str, ...] = ("orders", "%RETRY%bills")) -> None:
    """`count` messages to each of two queues of each topic."""
    with MessageStore.open(store, CONFIG, create=True) as opened:
        for topic in topics:
            opened.create_topic(topic, 2)
            for queue in range(2):
                opened.put_batch([Message(topic, b"%0150d" % n, keys=[f"K-{n}"]) for n in range(count)], queue)


def rows_of(table: pa.Table) -> list[Row]:
    """Topic, queue, queue offset and body of each message, in order; each offset is there once."""
    columns = [table[name].to_pylist() for name in ("topic", "queue", "queue_offset", "body")]
    return sorted(zip(*columns, strict=True))


def in_mount(mount: Mounted) -> list[Row]:
    partitions = ds.partitioning(pa.schema([("topic", pa.string()), ("queue", pa.int32())]), flavor="hive")
    return rows_of(ds.dataset(mount.root / "@parquet", format="parquet", partitioning=partitions).to_table())


def in_table(folder: Path) -> list[Row]:
    return rows_of(DeltaTable(folder).to_pyarrow_dataset().to_table())


def export(place: Path, folder: Path, *options: str) -> str:
    return succeed("export", place, folder, "--format", "delta", "--quiet", *options)


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("delta")
    fill(folder / "store", 500)
    with mounted(folder, store=folder / "store") as mount:
        yield mount


def test_readers_of_delta_tables_find_each_message_once(mount: Mounted, tmp_path: Path) -> None:
    """4.1 `--format delta` makes DIR a Delta table, partitioned by `topic` and `date`, with the columns of
    `@parquet` and `queue`. deltalake, Polars and DuckDB find each message of the store once."""
    assert export(mount.root, tmp_path / "t") == f"2,000 messages in 2 files below {tmp_path / 't'}\n"
    there, table = in_mount(mount), DeltaTable(tmp_path / "t")
    assert len({row[:3] for row in there}) == len(there) == 2_000
    assert in_table(tmp_path / "t") == there
    frame = polars.scan_delta(str(tmp_path / "t"))
    assert rows_of(frame.collect().to_arrow()) == there
    late = frame.filter(polars.col("queue_offset") >= 490, polars.col("topic") == "orders").collect()
    assert rows_of(late.to_arrow()) == [row for row in there if row[0] == "orders" and row[2] >= 490]
    with duckdb.connect() as database:
        database.register("messages", table.to_pyarrow_dataset())
        query = "select topic, queue, queue_offset, body from messages where keys[1] = 'K-7' and date > '2020-01-01'"
        assert sorted(database.sql(query).fetchall()) == [row for row in there if row[2] == 7]
    actions = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    assert (sum(actions["num_records"]), actions["min.queue_offset"], actions["max.queue_offset"]) == (
        2_000, [0, 0], [499, 499],
    )  # fmt: skip


@contextmanager
def exporter() -> Iterator[Callable[..., int]]:
    """A function that runs an export and returns its exit status, negative for the signal that killed it."""
    command = [sys.executable, "-m", "tests.spark.deltajob"]
    with subprocess.Popen(command, cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdin is not None
        assert job.stdout is not None

        def run(**asked: Any) -> int:
            print(json.dumps(asked), file=job.stdin, flush=True)
            return int(job.stdout.readline())  # type: ignore[union-attr]

        yield run
        job.stdin.close()


def test_an_export_killed_twenty_times_has_each_message_once(tmp_path: Path) -> None:
    """4.2 Each unit is one commit, with the unit's number as its transaction identifier. After a kill at any moment
    the same command continues. No message is duplicated or missing, and files that an unfinished unit left are
    removed."""
    fill(tmp_path / "store", 700)
    table, moments = tmp_path / "table", random.Random(20)
    with mounted(tmp_path, store=tmp_path / "store") as mount, exporter() as run:
        job = {"mount": str(mount.root), "table": str(table)}
        for point in [*POINTS, *list(POINTS)[2:] * 2]:
            assert run(**job, die=point) == -9, point
        kills = 14
        while kills < 20:
            (mount.root / "orders/0/append").write_bytes(b"one more\n")
            kills += run(**job, after_s=moments.uniform(0.001, 0.2)) == -9
        assert run(**job) == 0
        assert DeltaTable(table).version() > 20
        assert in_table(table) == in_mount(mount)
        assert len({row[:3] for row in in_table(table)}) == len(in_table(table)) > 4 * 700
    assert sorted(map(str, table.rglob("*.parquet"))) == sorted(DeltaTable(table).file_uris())


def test_other_programs_may_change_the_table(tmp_path: Path) -> None:
    """4.3 Other programs may compact and vacuum the table, and delete messages from it. The next export adds only
    messages that are new."""
    fill(tmp_path / "store", 20)
    with mounted(tmp_path, store=tmp_path / "store") as mount:
        for _ in range(3):
            (mount.root / "orders/0/append").write_bytes(b"one more\n")
            export(mount.root, tmp_path / "t")
        DeltaTable(tmp_path / "t").optimize.compact()
        DeltaTable(tmp_path / "t").delete("topic = '%RETRY%bills'")
        DeltaTable(tmp_path / "t").vacuum(0, dry_run=False, enforce_retention_duration=False)
        DeltaTable(tmp_path / "t").create_checkpoint()
        (mount.root / "orders/0/append").write_bytes(b"the last\n")
        assert "1 message in 1 file added" in export(mount.root, tmp_path / "t")
        assert in_table(tmp_path / "t") == [row for row in in_mount(mount) if row[0] == "orders"]


def test_messages_that_are_missing_are_told(tmp_path: Path) -> None:
    """4.4 Damaged messages, and messages that retention removed before their turn, are left out and counted on
    standard error."""
    store, table = tmp_path / "store", tmp_path / "table"
    fill(store, 10, ("orders",))
    export(store, table)
    with MessageStore.open(store, StoreConfig(sizes=SIZES, retention=Retention(max_bytes=1))) as opened:
        opened.put_batch([Message("orders", b"%0150d" % n) for n in range(1_000)], 0)
        assert opened.clean()
        gone = opened.bounds("orders", 0).min_offset - 10
    with (store / "commitlog" / max(file.name for file in (store / "commitlog").iterdir())).open("r+b") as log:
        text = log.read()
        log.seek(text.index(b"%0150d" % 990))
        log.write(b"damaged")
    done = mountctl("export", store, table, "--format", "delta")
    assert (done.returncode, done.stdout) == (
        3, f"{1_000 - gone - 1:,} messages in 1 file added, {1_020 - gone - 1:,} messages in 2 files below {table}\n",
    )  # fmt: skip
    assert done.stderr == (
        f"mountctl: 1 message left out: damaged\nmountctl: {gone} messages left out: expired during the export\n"
    )
    assert len(in_table(table)) == 1_020 - gone - 1


@pytest.mark.parametrize("kind", [DeltaFolder, ExportFolder])
def test_one_export_at_a_time_writes_a_directory(mount: Mounted, tmp_path: Path, kind: type[ExportFolder]) -> None:
    """4.5 Only one export at a time writes to a directory, whether it is a table or not. A second one exits with 75,
    and changes nothing."""
    words = ("export", mount.root, tmp_path / "t", "--format", kind.format)
    with kind(tmp_path / "t").locked():
        done = mountctl(*words)
        assert (done.returncode, done.stderr) == (
            75, f"mountctl: another export writes to {tmp_path / 't'}: start again when it has ended\n",
        )  # fmt: skip
        assert [file.name for file in (tmp_path / "t").rglob("*") if file.is_file()] == ["lock"]
    first, second = (Export(mount.root, tmp_path / "t", ExportSelection(), kind) for _ in range(2))
    assert len(first.run(Threads())) == 2
    with pytest.raises(BusyExportError):
        second.run(Threads())
    assert succeed(*words).startswith("nothing new: 2,000 messages")


def plain(mount: Mounted, folder: Path) -> None:
    succeed("export", mount.root, folder)


def anothers(mount: Mounted, folder: Path) -> None:
    write_deltalake(folder, pa.table({"id": [1, 2, 3]}))


def of_another_store(mount: Mounted, folder: Path) -> None:
    fill(folder.parent / "store", 500)
    export(folder.parent / "store", folder)


def of_other_topics(mount: Mounted, folder: Path) -> None:
    fill(folder.parent / "store", 5, ("bills",))
    export(folder.parent / "store", folder)


def with_another_column(mount: Mounted, folder: Path) -> None:
    export(mount.root, folder)
    DeltaTable(folder).alter.add_columns(Field("checked", "boolean"))


def without_a_log(mount: Mounted, folder: Path) -> None:
    export(mount.root, folder)
    shutil.rmtree(folder / "_delta_log")


def replaced(mount: Mounted, folder: Path) -> None:
    without_a_log(mount, folder)
    DeltaTable.create(folder, COLUMNS, partition_by=PARTITIONS)


def torn(mount: Mounted, folder: Path) -> None:
    export(mount.root, folder)
    max((folder / "_delta_log").glob("*.json")).write_text("{")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (plain, "was started with --format parquet"),
        (anothers, "is not empty and holds no export"),
        (of_another_store, "%RETRY%bills/0 was deleted and made again since {} was written, or this is another store"),
        (of_other_topics, "was exported from another store"),
        (with_another_column, "is a table with other columns than an export (checked)"),
        (without_a_log, "has lost its _delta_log"),
        (replaced, "has 0 units of an export, and descriptions of 2"),
        (torn, "Kernel error"),
    ],
)
def test_another_target_is_refused(
    mount: Mounted, tmp_path: Path, made: Callable[[Mounted, Path], None], reason: str
) -> None:
    """4.6 A directory is refused by name, and left as it is, if it holds an export without `--format delta`, or a
    table of another program, store or shape, or a table whose log is lost or damaged."""

    def contents() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    folder = tmp_path / "t"
    made(mount, folder)
    before = contents()
    done = mountctl("export", mount.root, folder, "--format", "delta")
    assert (done.returncode, done.stdout) == (65, "")
    assert reason.format(folder) in done.stderr
    assert str(folder) in done.stderr
    assert contents() == before


def test_a_missing_library_is_named(mount: Mounted, tmp_path: Path) -> None:
    """4.7 deltalake (the extra `delta`) is loaded only for `--format delta`. If it is missing, one line says what to
    install."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['deltalake'] = None")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def done(form: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "mountctl", "export", str(mount.root), str(tmp_path / form), "--format", form]
        run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        return run.returncode, run.stderr

    installing = f"{sys.executable} -m pip install deltalake pyarrow"
    assert done("delta") == (69, f"mountctl: deltalake is not installed: {installing}\n")
    assert done("parquet") == (0, "")
    assert not (tmp_path / "delta").exists()
