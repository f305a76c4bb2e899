"""export and import over a real mount: all messages once, after any interruption, and back again."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import fsstore.jobs.export as exporting
from engine import FileSizes, Message, MessageStore, StoreConfig
from fsstore.jobs.export import Export, ExportError, ExportFolder, ExportSelection, Threads, Unit
from tests.mount.harness import SMALL_SIZES, Mounted, mounted, sh
from tests.mountctl.conftest import mountctl, succeed
from tests.spark.streams import PROJECT

SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=70_000, index_slots=5_000, index_entries=100_000)
ORDERS, BILLS = 5_000, 300
EVERYTHING = ExportSelection()
NAMES_IN_HELP = {"archive", "november", "failed", "table", "orders.jsonl", "prices.csv"}


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("export")
    with MessageStore.open(folder / "store", StoreConfig(sizes=SIZES), create=True) as store:
        store.create_topic("orders", 2)
        store.put_lines("orders", b"".join(b'{"id": %d, "price": 7}\n' % number for number in range(ORDERS - 1)), 0)
        store.put(Message("orders", bytes(range(256)), keys=["K"], tags="t"), 1)
        store.create_topic("%RETRY%bills", 1)
        store.put_lines("%RETRY%bills", b"".join(b"%d\n" % number for number in range(BILLS)), 0)
        store.create_topic("silent", 1)
    with mounted(folder, store=folder / "store") as mount:
        yield mount


def messages(folder: Path) -> list[dict[str, Any]]:
    """Every message of a dataset."""
    topics = pa.schema([("topic", pa.string()), ("queue", pa.int32())])
    dataset = ds.dataset(folder, format="parquet", partitioning=ds.partitioning(topics, flavor="hive"))
    found: list[dict[str, Any]] = dataset.to_table().to_pylist(maps_as_pydicts="strict")
    return found


def contents(folder: Path, *topics: str) -> list[tuple[str, int, int, bytes]]:
    """Every message of a dataset, in order."""
    rows = [row for row in messages(folder) if not topics or row["topic"] in topics]
    return sorted((row["topic"], row["queue"], row["queue_offset"], row["body"]) for row in rows)


def in_mount(mount: Mounted) -> list[tuple[str, int, int, bytes]]:
    return contents(mount.root / "@parquet", "orders", "%RETRY%bills")


def of_topic(mount: Mounted, topic: str) -> list[dict[str, Any]]:
    return messages(mount.root / f"@parquet/topic={topic}")


def export(mount: Mounted, folder: Path, wanted: ExportSelection = EVERYTHING) -> list[Unit]:
    return Export(mount.root, folder, wanted).run(Threads())


def test_an_export_has_every_message_by_topic_and_date(mount: Mounted, tmp_path: Path) -> None:
    said = succeed("export", mount.root, tmp_path / "archive", "--quiet")
    assert said == f"{ORDERS + BILLS:,} messages in 2 files below {tmp_path / 'archive'}\n"
    assert contents(tmp_path / "archive") == in_mount(mount)
    (file,) = (tmp_path / "archive").glob("topic=orders/date=*/*.parquet")
    assert file.parent.name == sh("date -u -r orders/0/@first +date=%F", mount.root).strip()
    assert (tmp_path / "archive/topic=%25RETRY%25bills").is_dir()


def test_an_interrupted_export_goes_on_and_has_nothing_twice(
    mount: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved = tmp_path / "archive", list[Path]()

    def die(*_: object) -> None:
        moved.extend(folder.glob("topic=*/date=*/*.parquet"))
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "FILE_BYTES", 1 << 10)  # a unit for nearly each segment
    with monkeypatch.context() as dying:
        dying.setattr(ExportFolder, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            export(mount, folder)
    assert moved
    told: list[tuple[int, int]] = []
    units = Export(mount.root, folder, EVERYTHING).run(Threads(), lambda done, total: told.append((done, total)))
    assert len(units) >= 2
    assert told[-1] == (ORDERS + BILLS, ORDERS + BILLS)
    assert contents(folder) == in_mount(mount)
    assert {str(file.relative_to(folder)) for file in folder.glob("topic=*/date=*/*.parquet")} == {
        file for unit in units for file in unit.files
    }


def test_the_same_command_brings_what_is_new_and_says_so(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        (mount.topic("orders") / "0/append").write_text("1\n2\n")
        archive = tmp_path / "archive"
        assert succeed("export", mount.root, archive) == f"2 messages in 1 file below {archive}\n"
        assert succeed("export", mount.root, archive) == f"nothing new: 2 messages in 1 file below {archive}\n"
        (mount.root / "orders/0/append").write_text("3\n")
        (mount.topic("bills") / "1/append").write_text("4\n")
        added = f"2 messages in 2 files added, 4 messages in 3 files below {archive}\n"
        assert succeed("export", mount.root, archive) == added
        assert [row[3] for row in contents(archive)] == [b"4", b"1", b"2", b"3"]
        succeed("topics", "delete", mount.root, "orders", "--yes")
        (mount.topic("orders") / "0/append").write_text("5\n6\n7\n8\n")
        done = mountctl("export", mount.root, archive)
        assert (done.returncode, "orders/0 was deleted and made again" in done.stderr) == (65, True)


def test_what_was_written_wrongly_is_found(mount: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file = exporting.write_file

    def write_another_body(file: Path, table: pa.Table) -> None:
        body = table.schema.get_field_index("body")
        bodies = pa.array([value.as_py()[1:] for value in table["body"]], pa.binary())
        write_file(file, table.set_column(body, "body", bodies))

    monkeypatch.setattr(exporting, "write_file", write_another_body)
    with pytest.raises(ExportError, match="differs from the messages read"):
        export(mount, tmp_path / "archive", ExportSelection(topics=("orders",)))
    assert not list((tmp_path / "archive").glob("topic=*"))


def test_an_export_of_something_else_is_not_mixed_in(mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive/notes.txt").write_text("mine")
    done = mountctl("export", mount.root, tmp_path / "archive")
    assert (done.returncode, "not empty" in done.stderr) == (65, True)
    done = mountctl("export", mount.root, tmp_path / "other", "--topic", "absent")
    assert (done.returncode, "absent" in done.stderr) == (64, True)


def test_days_become_partitions_and_times_bound_an_export(tmp_path: Path) -> None:
    clock_ms = iter(range(1_700_000_000_000, 1_800_000_000_000, 40_000_000))  # two or three a day
    config = StoreConfig(sizes=SIZES, clock=lambda: next(clock_ms))
    with MessageStore.open(tmp_path / "store", config, create=True) as store:
        for number in range(9):
            store.put(Message("days", b"%d" % number), 0)
        times = [store.get("days", 0, number).store_time_ms for number in range(9)]
    with mounted(tmp_path, store=tmp_path / "store") as mount:
        export(mount, tmp_path / "all")
        export(mount, tmp_path / "some", ExportSelection(None, times[3], times[6]))
    days = [(row["store_time"].date(), file.parent.name) for file in (tmp_path / "all").glob("topic=*/*/*.parquet")
            for row in pq.ParquetFile(file).read().to_pylist()]  # fmt: skip
    assert len(set(days)) > 2
    assert all(f"date={day}" == folder for day, folder in days)
    assert [body for *_, body in contents(tmp_path / "some")] == [b"3", b"4", b"5"]


@pytest.mark.parametrize("damaged_day", [0, 1, 2])
def test_a_day_whose_messages_are_all_damaged_is_left_out_and_told(tmp_path: Path, damaged_day: int) -> None:
    day_ms, clock_ms = 86_400_000, 1_700_006_400_000  # midnight
    day = 0
    config = StoreConfig(sizes=SIZES, clock=lambda: clock_ms + day * day_ms)
    with MessageStore.open(tmp_path / "store", config, create=True) as store:
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
        (unit,) = export(mount, tmp_path / "archive", ExportSelection(topics=("days",)))
    assert (unit.messages, unit.left_out, unit.expired) == (6, 3, 0)
    good = [number for number in range(9) if number // 3 != damaged_day]
    assert [body for *_, body in contents(tmp_path / "archive")] == [
        b"body %d of day %d" % (number, number // 3) for number in good
    ]


RECORDS = {
    "1": b'{"id":"1",  "kind":"new"}',
    "2": b'{"id":2}',
    "3": b'{"id":"3","kind":"old, \xc3\xbc"}',
    "4": b'{"id":"4"}',
    "5": b"\xff\x00",
}


def files_of_records(folder: Path) -> None:
    """RECORDS: two of JSON, two of CSV, one of Parquet."""
    (folder / "a.jsonl").write_bytes(RECORDS["1"] + b"\n\n" + RECORDS["2"] + b"\n")
    with gzip.open(folder / "b.csv.gz", "wt") as file:
        file.write('id,kind\n3,"old, ü"\n4,\n')
    pq.write_table(pa.table({"id": ["5"], "raw": [b"\xff\x00"]}), folder / "c.parquet")


@pytest.mark.parametrize("spark_option", [[], ["--spark"]])
def test_json_lines_csv_and_parquet_become_messages(
    spark: SparkSession, mount: Mounted, tmp_path: Path, spark_option: list[str]
) -> None:
    files_of_records(tmp_path)
    topic = f"imported{len(spark_option)}"
    options = ("--topic", topic, "--key", "id", "--quiet", *spark_option)
    said = succeed("import", tmp_path / "a.jsonl", mount.root, *options, "--tag", "kind")
    assert said == f"2 messages published to {topic}\n"
    succeed("import", tmp_path / "b.csv.gz", mount.root, *options, "--tag", "kind")
    succeed("import", tmp_path / "c.parquet", mount.root, *options, "--body", "raw")
    found = {row["keys"][0]: row for row in of_topic(mount, topic)}
    assert {key: row["body"] for key, row in found.items()} == RECORDS
    assert [found[key]["tags"] for key in "12345"] == ["new", "", "old, ü", "", ""]


@pytest.mark.parametrize("spark_option", [[], ["--spark"]])
def test_a_line_or_a_record_means_the_same_with_spark(
    spark: SparkSession, mount: Mounted, tmp_path: Path, spark_option: list[str]
) -> None:
    lines = [b'{"id":["a","b"],"kind":7}', b'{"id":1.50}', b'{"id":null, "kind":"x \xc3\xbc"}', b"{}"]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    (tmp_path / "b.csv").write_text('id,kind\nc,"two\nlines, ""quoted"" \\"\n,none\n')
    topic = "parallel" if spark_option else "alike"
    options: list[str | Path] = [mount.root, "--topic", topic, "--key", "id", "--tag", "kind", *spark_option]
    said = [mountctl("import", tmp_path / name, *options).stderr.splitlines() for name in ("a.jsonl", "b.csv")]
    assert said == [
        [
            "mountctl: 2 of 4 records have no 'id': their messages have no key",
            "mountctl: 2 of 4 records have no 'kind': their messages have no tag",
            f"mountctl: there is no topic {topic!r} yet: the first message makes it",
        ],
        ["mountctl: 1 of 2 records have no 'id': their messages have no key"],
    ]
    found = sorted((row["body"], row["keys"], row["tags"]) for row in of_topic(mount, topic))
    assert found == sorted(
        [
            (lines[0], ["a", "b"], "7"),
            (lines[1], ["1.5"], ""),
            (lines[2], [], "x ü"),
            (lines[3], [], ""),
            (b'{"id":"c","kind":"two\\nlines, \\"quoted\\" \\\\"}', ["c"], 'two\nlines, "quoted" \\'),
            (b'{"kind":"none"}', [], "none"),
        ]
    )


@pytest.mark.parametrize("spark_option", [[], ["--spark"]])
def test_an_export_can_be_imported(
    spark: SparkSession, mount: Mounted, tmp_path: Path, spark_option: list[str]
) -> None:
    archive, copy = tmp_path / "archive", f"copy{len(spark_option)}"
    said = succeed("export", mount.root, archive, "--topic", "orders", *spark_option)
    assert said == f"{ORDERS:,} messages in 1 file below {archive}\n"
    columns = ("--body", "body", "--key", "keys", "--tag", "tags")
    succeed("import", archive, mount.root, "--topic", copy, *columns, *spark_option)
    (keyed,) = (row for row in of_topic(mount, copy) if row["tags"] == "t")
    assert (keyed["keys"], keyed["body"]) == (["K"], bytes(range(256)))
    bodies = Counter(row[3] for row in contents(mount.root / f"@parquet/topic={copy}"))
    assert bodies == Counter(row[3] for row in contents(mount.root / "@parquet", "orders"))


def test_a_store_that_is_not_mounted_is_exported_and_imported(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    succeed("init", store)
    succeed("put", store, "orders", "a", "b")
    assert succeed("export", store, archive).startswith("2 messages in 1 file")
    succeed("put", store, "orders", "c")
    assert succeed("export", store, archive).startswith("1 message in 1 file added")  # though mounted elsewhere
    columns = ("--body", "body", "--topic", "copy")
    assert succeed("import", archive, store, *columns) == "3 messages published to copy\n"
    assert sorted(succeed("cat", store, "copy").splitlines()) == ["a", "b", "c"]
    (tmp_path / "b.csv").write_text("id\n1\n")
    refused = mountctl("import", store, tmp_path / "b.csv", "--topic", "copy")
    assert "the store or its mount comes last" in refused.stderr
    refused = mountctl("export", store, archive, "--master", "spark://nowhere:7077")
    assert "mount it first, on each host" in refused.stderr


def test_records_of_any_type_become_json(mount: Mounted, tmp_path: Path) -> None:
    when = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    row = {"n": 7, "t": when, "b": b"\xff", "l": [1, 2], "s": {"x": None}, "f": 0.5, "none": None}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "r.parquet")
    succeed("import", tmp_path / "r.parquet", mount.root, "--topic", "typed", "--key", "n", "--tag", "t")
    (found,) = of_topic(mount, "typed")
    assert found["tags"] == "2026-01-31T09:30:00+00:00"
    expected = {"n": 7, "t": "2026-01-31T09:30:00+00:00", "b": "/w==", "l": [1, 2], "s": {"x": None}, "f": 0.5}
    assert (json.loads(found["body"]), found["keys"]) == (expected, ["7"])


def test_without_java_or_pyarrow_one_line_says_what_to_install(
    mount: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*options: str) -> str:
        command = [sys.executable, "-m", "mountctl", "export", str(mount.root), str(tmp_path / "a"), *options]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 69
        return done.stderr

    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert said("--spark").startswith("mountctl: Spark needs Java: install it")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pyarrow'] = None")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert said() == f"mountctl: pyarrow is not installed: {sys.executable} -m pip install pyarrow\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["notes.txt"], 64, "--format"),
        (["b.csv", "--key", "absent"], 64, "absent"),
        (["torn.csv"], 65, "record 3 has 1 values for 2 columns"),
        (["b.csv", "--format", "parquet"], 64, "not Parquet"),
        (["b.csv", "--topic", "a/b"], 64, "topic"),
        (["notes.txt", "--format", "jsonl"], 65, "line 2 is not JSON"),
        (["notes.txt", "--format", "jsonl", "--spark"], 65, "line 2 is not JSON"),
        (["torn.csv", "--spark"], 65, "record 3 has 1 values for 2 columns"),
        (["list.jsonl", "--tag", "id"], 65, "line 1 is not a JSON object"),
        (["list.jsonl", "--body", "id"], 65, "line 1 is not a JSON object"),
        (["other.jsonl", "--body", "id"], 65, "line 2 has no 'id'"),
        (["keys.jsonl", "--key", "id"], 65, "line 2: its key is neither a text nor a number"),
        (["keys.jsonl", "--key", "name"], 65, "line 2: illegal message: keys are a list of texts"),
        (["keys.jsonl", "--key", "nmae"], 64, "no record has a value in 'nmae': name another field"),
        (["keys.jsonl", "--tag", "zone", "--spark"], 65, "line 2: illegal message: a property is not valid Unicode"),
        (["long.jsonl"], 65, "line 2 is longer than 67,108,864 bytes"),
        (["pipe.jsonl"], 64, "can be read only once, and is needed twice: save it to a file first"),
    ],
)
def test_what_cannot_be_imported_is_said_before_anything_is_published(
    mount: Mounted, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "notes.txt").write_text('{"id": 1}\nx\n')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "other.jsonl").write_text('{"id": 1}\n{"di": 1}\n')
    (tmp_path / "keys.jsonl").write_text('{"id": 1, "name": "a"}\n{"id": {}, "name": "a b", "zone": "\\ud800"}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    with (tmp_path / "long.jsonl").open("wb") as long:
        long.write(b"1\n")
        long.truncate(1 << 30)
    (tmp_path / "b.csv").write_text("id\n1\n")
    (tmp_path / "torn.csv").write_text("id,kind\n1,2\n3\n")
    done = mountctl("import", tmp_path / arguments[0], mount.root, "--topic", "refused", *arguments[1:])
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert not (mount.root / "refused").exists()


def test_a_record_longer_than_a_write_is_published_if_it_can_be_a_message(tmp_path: Path) -> None:
    bodies = [b'"a"', b'"' + b"b" * (3 << 20) + b'"', b'"c"']
    (tmp_path / "long.jsonl").write_bytes(b"".join(body + b"\n" for body in bodies))
    (tmp_path / "longer.jsonl").write_bytes(b'"' + b"1" * ((5 << 20) - 2) + b'"')
    with mounted(tmp_path, config={"sizes": SMALL_SIZES | {"commit_log_bytes": 8 << 20}}) as mount:
        said = succeed("import", tmp_path / "long.jsonl", mount.root, "--topic", "long")
        assert said == "3 messages published to long\n"
        assert sorted(row["body"] for row in of_topic(mount, "long")) == sorted(bodies)
        done = mountctl("import", tmp_path / "longer.jsonl", mount.root, "--topic", "long")
        assert done.returncode == 65
        assert "line 1: body of 5,242,880 bytes is over the limit of 4,194,304" in done.stderr


def test_an_export_that_has_no_room_says_where_and_goes_on(mount: Mounted, tmp_path: Path) -> None:
    words = ["-m", "mountctl", "export", str(mount.root), str(tmp_path / "a"), "--topic", "orders"]
    limited = ["prlimit", "--fsize=8192", sys.executable, "-B", *words]
    done = subprocess.run(limited, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        74,
        f"mountctl: {tmp_path / 'a'} can't be written: File too large: the same command continues the run\n",
    )
    assert succeed(*words[2:]) == f"{ORDERS:,} messages in 1 file below {tmp_path / 'a'}\n"
    assert len(messages(tmp_path / "a")) == ORDERS


def test_an_export_of_no_topic_says_which_there_are(mount: Mounted, tmp_path: Path) -> None:
    done = mountctl("export", mount.root, tmp_path / "a", "--topic", "ordres")
    assert done.returncode == 64
    assert done.stderr.startswith("mountctl: no topic 'ordres': there are: ")
    assert not (tmp_path / "a").exists()


def test_an_export_into_a_mount_is_refused_before_it_makes_a_topic(mount: Mounted) -> None:
    done = mountctl("export", mount.root, mount.root / "archive")
    assert (done.returncode, "where a folder is a topic: name a directory elsewhere" in done.stderr) == (64, True)
    assert not (mount.root / "archive").exists()


def test_the_examples_in_the_help_work(mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "prices.csv").write_text("article,currency\n1,EUR\n")
    for verb in ("export", "import"):
        words = succeed(verb, "--help").partition("Examples:")[2].partition("\n\n")[0]
        for example in (line.strip() for line in words.splitlines() if line.startswith("    mountctl ")):
            typed = example.replace("/mnt/mq", str(mount.root)).removeprefix("mountctl ")
            succeed(*(str(tmp_path / word) if word in NAMES_IN_HELP else word for word in shlex.split(typed)))
