"""export and import over a real mount: all of it once, whatever is interrupted, and back again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import fsstore.spark.export as exporting
from engine import FileSizes, Message, MessageStore, StoreConfig
from fsstore.spark import messages
from fsstore.spark.export import ExportError, ExportFolder, Wanted, export
from tests.mount.harness import Mounted, mounted, sh
from tests.mountctl.conftest import mountctl, succeed

SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=70_000, index_slots=5_000, index_entries=100_000)
ORDERS, BILLS = 5_000, 300
NAMES_IN_HELP = {"archive", "november", "orders.jsonl", "prices.csv"}


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("export")
    with MessageStore.open(folder / "store", StoreConfig(sizes=SIZES)) as store:
        store.create_topic("orders", 2)
        store.put_lines("orders", b"".join(b'{"id": %d, "price": 7}\n' % number for number in range(ORDERS - 1)), 0)
        store.put(Message("orders", bytes(range(256)), keys=["K"], tags="t"), 1)
        store.create_topic("%RETRY%bills", 1)
        store.put_lines("%RETRY%bills", b"".join(b"%d\n" % number for number in range(BILLS)), 0)
        store.create_topic("silent", 1)
    with mounted(folder, store=folder / "store") as mount:
        yield mount


def contents(spark: SparkSession, folder: Path) -> list[tuple[str, int, int, bytes]]:
    """Every message of a dataset, in order."""
    rows = spark.read.parquet(str(folder)).select("topic", "queue", "queue_offset", "body").collect()
    return sorted((str(row.topic), row.queue, row.queue_offset, bytes(row.body)) for row in rows)


def in_mount(spark: SparkSession, mount: Mounted) -> list[tuple[str, int, int, bytes]]:
    rows = messages(spark, mount.root, ["orders", "%RETRY%bills"]).select("topic", "queue", "queue_offset", "body")
    return sorted((row.topic, row.queue, row.queue_offset, bytes(row.body)) for row in rows.collect())


def test_an_export_has_every_message_by_topic_and_date(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    said = succeed("export", mount.root, tmp_path / "archive", "--quiet")
    assert said == f"{ORDERS + BILLS:,} messages in 2 files below {tmp_path / 'archive'}\n"
    assert contents(spark, tmp_path / "archive") == in_mount(spark, mount)
    (file,) = (tmp_path / "archive").glob("topic=orders/date=*/*.parquet")
    assert file.parent.name == sh("date -u -r orders/0/@first +date=%F", mount.root).strip()
    assert (tmp_path / "archive/topic=%25RETRY%25bills").is_dir()


def test_an_interrupted_export_goes_on_and_has_nothing_twice(
    spark: SparkSession, mount: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved = tmp_path / "archive", list[Path]()

    def die(*_: object) -> None:
        moved.extend(folder.glob("topic=*/date=*/*.parquet"))
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "FILE_BYTES", 1 << 10)  # a unit for nearly each segment
    with monkeypatch.context() as dying:
        dying.setattr(ExportFolder, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            export(spark, mount.root, folder, Wanted())
    assert moved
    told: list[tuple[int, int]] = []
    units = export(spark, mount.root, folder, Wanted(), lambda done, total: told.append((done, total)))
    assert len(units) >= 2
    assert told[-1] == (ORDERS + BILLS, ORDERS + BILLS)
    assert contents(spark, folder) == in_mount(spark, mount)
    assert {str(file.relative_to(folder)) for file in folder.glob("topic=*/date=*/*.parquet")} == {
        file for unit in units for file in unit.files
    }
    assert export(spark, mount.root, folder, Wanted()) == units


def test_what_was_written_wrongly_is_found(
    spark: SparkSession, mount: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring_and_damage(*arguments: Any) -> exporting.Part:  # on a worker, where nothing is patched
        write_file = exporting.write_file

        def write_another_body(file: Path, table: pa.Table) -> None:
            body = table.schema.get_field_index("body")
            bodies = pa.array([value.as_py()[1:] for value in table["body"]], pa.binary())
            write_file(file, table.set_column(body, "body", bodies))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporting, "write_file", write_another_body)
            return exporting.bring(*arguments)

    monkeypatch.setattr(exporting, "bring", bring_and_damage)
    with pytest.raises(ExportError, match="is not what was read"):
        export(spark, mount.root, tmp_path / "archive", Wanted(topics=("orders",)))
    assert not list((tmp_path / "archive").glob("topic=*"))


def test_an_export_of_something_else_is_not_mixed_in(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive/notes.txt").write_text("mine")
    done = mountctl("export", mount.root, tmp_path / "archive")
    assert (done.returncode, "not empty" in done.stderr) == (65, True)
    done = mountctl("export", mount.root, tmp_path / "other", "--topic", "absent")
    assert (done.returncode, "absent" in done.stderr) == (65, True)


def test_days_become_partitions_and_times_bound_an_export(spark: SparkSession, tmp_path: Path) -> None:
    clock_ms = iter(range(1_700_000_000_000, 1_800_000_000_000, 40_000_000))  # two or three a day
    config = StoreConfig(sizes=SIZES, clock=lambda: next(clock_ms))
    with MessageStore.open(tmp_path / "store", config) as store:
        for number in range(9):
            store.put(Message("days", b"%d" % number), 0)
        times = [store.get("days", 0, number).store_time_ms for number in range(9)]
    with mounted(tmp_path, store=tmp_path / "store") as mount:
        export(spark, mount.root, tmp_path / "all", Wanted())
        export(spark, mount.root, tmp_path / "some", Wanted(None, times[3], times[6]))
    dated = spark.read.parquet(str(tmp_path / "all")).selectExpr("date", "cast(store_time as date) as day").collect()
    assert len({row.day for row in dated}) > 2
    assert all(row.date == row.day for row in dated)
    assert [body for *_, body in contents(spark, tmp_path / "some")] == [b"3", b"4", b"5"]


@pytest.mark.parametrize("damaged_day", [0, 1, 2])
def test_a_day_whose_messages_are_all_damaged_is_left_out_and_told(
    spark: SparkSession, tmp_path: Path, damaged_day: int
) -> None:
    day_ms, clock_ms = 86_400_000, 1_700_006_400_000  # midnight
    day = 0
    config = StoreConfig(sizes=SIZES, clock=lambda: clock_ms + day * day_ms)
    with MessageStore.open(tmp_path / "store", config) as store:
        for number in range(9):
            day = number // 3
            store.put(Message("days", b"body %d of day %d" % (number, number // 3)), 0)
        store.put(Message("others", b"so that what is damaged is not the end of the log"), 0)
        stored = [store.get("days", 0, number).store_time_ms for number in range(9)]
    assert [(time_ms - clock_ms) // day_ms for time_ms in stored] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for log in (tmp_path / "store/commitlog").iterdir():
        text, ending = log.read_bytes(), b" of day %d" % damaged_day
        log.write_bytes(text.replace(ending, ending.upper()))
    with mounted(tmp_path, store=tmp_path / "store") as mount:
        (unit,) = export(spark, mount.root, tmp_path / "archive", Wanted(topics=("days",)))
    assert (unit.messages, unit.left_out, unit.expired) == (6, 3, 0)
    good = [number for number in range(9) if number // 3 != damaged_day]
    assert [body for *_, body in contents(spark, tmp_path / "archive")] == [
        b"body %d of day %d" % (number, number // 3) for number in good
    ]


def test_json_lines_csv_and_parquet_become_messages(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id":"1",  "kind":"new"}\n\n{"id":2}\n')
    (tmp_path / "b.csv").write_text("id,kind\n3,old\n4,\n")
    spark.createDataFrame([("5", b"\xff\x00")], "id string, raw binary").write.parquet(str(tmp_path / "c.parquet"))
    topic = ("--topic", "imported", "--key", "id", "--quiet")
    assert (
        succeed("import", tmp_path / "a.jsonl", mount.root, *topic, "--tag", "kind")
        == "2 messages published to imported\n"
    )
    succeed("import", tmp_path / "b.csv", mount.root, *topic, "--tag", "kind")
    succeed("import", tmp_path / "c.parquet", mount.root, *topic, "--body", "raw")
    found = {row["keys"][0]: row for row in messages(spark, mount.root, ["imported"]).collect()}
    assert {key: bytes(row.body) for key, row in found.items()} == {
        "1": b'{"id":"1",  "kind":"new"}',
        "2": b'{"id":2}',
        "3": b'{"id":"3","kind":"old"}',
        "4": b'{"id":"4"}',
        "5": b"\xff\x00",
    }
    assert [found[key].tags for key in "12345"] == ["new", "", "old", "", ""]


def test_an_export_can_be_imported(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    succeed("export", mount.root, tmp_path / "archive", "--topic", "orders")
    succeed(
        "import",
        tmp_path / "archive",
        mount.root,
        "--topic",
        "copy",
        "--body",
        "body",
        "--key",
        "keys",
        "--tag",
        "tags",
    )
    (keyed,) = messages(spark, mount.root, ["copy"]).where("tags = 't'").collect()
    assert (keyed["keys"], bytes(keyed.body)) == (["K"], bytes(range(256)))
    copied, orders = (messages(spark, mount.root, [topic]).count() for topic in ("copy", "orders"))
    assert copied == orders >= ORDERS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["notes.txt", "--topic", "t"], "--format"),
        (["b.csv", "--topic", "t", "--key", "absent"], "absent"),
    ],
)
def test_what_cannot_be_imported_is_said(
    spark: SparkSession, mount: Mounted, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "notes.txt").write_text("x\n")
    (tmp_path / "b.csv").write_text("id\n1\n")
    done = mountctl("import", tmp_path / arguments[0], mount.root, *arguments[1:])
    assert done.returncode == 64
    assert words in done.stderr


def test_the_examples_in_the_help_work(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "prices.csv").write_text("article,currency\n1,EUR\n")
    for verb in ("export", "import"):
        words = succeed(verb, "--help").partition("Examples:")[2].partition("\n\n")[0]
        for example in (line.strip() for line in words.splitlines() if line.startswith("    mountctl ")):
            typed = example.replace("/mnt/mq", str(mount.root)).removeprefix("mountctl ")
            succeed(*(str(tmp_path / word) if word in NAMES_IN_HELP else word for word in shlex.split(typed)))
