"""Spark over a mounted store beside the same data as plain files: `./run bench spark [--messages N] [--docs]`.

Both sides take turns in one session (`local[2]`, reads of 1 MiB as in docs/spark.md, 2), with warm page caches, after
turns that don't count, in which Java compiles what it needs; a row's ratio is the median of its rounds' ratios. Raw
numbers go to build/bench-spark.json, with --docs the table to docs/spark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from engine import BROKER_SIZES, FileSizes, Message, MessageStore, StoreConfig
from fsstore.jobs.export import Export, ExportSelection, Runner, Threads
from fsstore.parquet.file_map import map_file
from fsstore.parquet.layout import measure, range_key
from fsstore.parquet.row_groups import read_columns
from fsstore.parquet.segments import QueueSegments
from fsstore.spark import messages
from fsstore.spark.running import SparkTasks
from tests.bench.measure import interleave, seconds
from tests.interop.mounts import mounted

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "build/bench-spark.json"
PAGE = PROJECT / "docs/spark.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"

TOPIC, QUEUES, BATCH = "orders", 4, 1_000
FILES, SEGMENTS = 20_000, 1_000
WARMING_TURNS = 3
NOTE_BYTES, PROSE_WORDS = 248, 1_000_000
SMALL_LOG = FileSizes(commit_log_bytes=1 << 16, consume_queue_entries=65_536, index_slots=5_000, index_entries=20_000)
CLICK = "id long, user string, amount double, note string"


@dataclass(frozen=True, slots=True)
class Result:
    """A row: seconds of both sides, round by round; `ratio` is the median of peer / ours."""

    work: str
    against: str
    target: float | None
    ours: list[float]
    peer: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(peer / ours for ours, peer in zip(self.ours, self.peer, strict=True))

    @property
    def cells(self) -> tuple[str, ...]:
        times = (f"{statistics.median(times):.3g} s" for times in (self.ours, self.peer))
        verdict = ("", "") if self.target is None else (f"≥ {self.target}", "met" if self.is_met else "missed")
        return self.work, self.against, *times, f"{self.ratio:.2f}", *verdict

    @property
    def is_met(self) -> bool:
        return self.target is None or self.ratio >= self.target


class Bench:
    """The data on both sides, and the session."""

    def __init__(self, spark: SparkSession, folder: Path, count: int, rounds: int) -> None:
        self.spark = spark
        self.folder = folder
        self.count = count
        self.rounds = rounds
        self.plain = folder / "plain"

    def turns(
        self, work: str, against: str, target: float | None, ours: Callable[[], object], peer: Callable[[], object]
    ) -> Result:
        """Let both sides take turns."""
        return self.timed_turns(work, against, target, partial(seconds, ours), partial(seconds, peer))

    def timed_turns(
        self, work: str, against: str, target: float | None, ours: Callable[[], float], peer: Callable[[], float]
    ) -> Result:
        """As `turns`, of sides that say themselves how many seconds they took."""
        pairs = interleave(ours, peer, WARMING_TURNS + self.rounds)
        return shown(Result(work, against, target, list(pairs.ours[WARMING_TURNS:]), list(pairs.peer[WARMING_TURNS:])))

    # the jobs

    def json_aggregate(self, path: str) -> None:
        rows = self.spark.read.schema(CLICK).json(path)
        rows.groupBy((f.col("id") % 10).alias("g")).agg(f.count("*"), f.sum("amount"), f.max("user")).collect()

    def parquet_aggregate(self, frame: DataFrame) -> None:
        frame.groupBy("queue", "tags").agg(f.count("*"), f.min("store_time"), f.max("store_time")).collect()

    def aggregate_with_bodies(self, frame: DataFrame) -> None:
        sums = (f.count("*"), f.sum(f.length("body")), f.max("store_time"))
        frame.groupBy("queue", "tags").agg(*sums).collect()

    def binary_files(self, folder: Path) -> None:
        self.spark.read.format("binaryFile").load(str(folder)).agg(f.sum(f.length("content"))).collect()

    def read_and_write_json(self) -> None:
        target = self.folder / "from-json"
        shutil.rmtree(target, ignore_errors=True)
        self.spark.read.json(f"{self.plain}/*.jsonl").write.parquet(str(target))

    def export(self, root: Path, runner: Runner) -> None:
        target = self.folder / "exported"
        shutil.rmtree(target, ignore_errors=True)
        Export(root, target, ExportSelection()).run(runner)


def prose() -> bytes:
    """Text that compresses as text does: words, some of them often."""
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlucmfwyp", k=chance.randint(2, 10))) for _ in range(5_000)]
    often = [1 / rank for rank in range(1, len(words) + 1)]
    return " ".join(chance.choices(words, often, k=PROSE_WORDS)).encode()


def body(number: int, text: bytes) -> bytes:
    """About 300 bytes of JSON, with a note out of `text`."""
    begin = number * 2_654_435_761 % (len(text) - NOTE_BYTES)
    note = text[begin : begin + NOTE_BYTES]
    return b'{"id":%d,"user":"u%d","amount":%d.25,"note":"%s"}' % (number, number % 5_000, number % 977, note)


def fill(store: Path, count: int) -> None:
    """The messages of the table: a key, a tag and two properties each, in files as long as a broker's."""
    text = prose()
    with MessageStore.open(store, StoreConfig(sizes=BROKER_SIZES), create=True) as opened:
        opened.create_topic(TOPIC, QUEUES)
        for begin in range(0, count, BATCH):
            numbers = range(begin, min(begin + BATCH, count))
            batch = [
                Message(
                    TOPIC, body(n, text), [f"K{n:08}"], ("paid", "new")[n % 2], {"region": "eu", "trace": f"{n:016x}"}
                )
                for n in numbers
            ]
            opened.put_batch(batch, begin // BATCH % QUEUES)


def fill_segments(store: Path) -> None:
    """A queue whose log has so many files that `@parquet` lists a thousand."""
    with MessageStore.open(store, StoreConfig(sizes=SMALL_LOG), create=True) as opened:
        opened.create_topic(TOPIC, 1)
        while opened.bounds(TOPIC, 0).max_offset < SEGMENTS * 2:
            opened.put_batch([Message(TOPIC, bytes(30_000)), Message(TOPIC, bytes(30_000))], 0)


class Costs(NamedTuple):
    """What the daemon pays for Parquet: seconds of processor time to measure a message, bytes of memory that one takes
    which was looked through, and bytes of log that a second of processor time lays out and renders."""

    measuring_seconds: float
    kept_bytes: float
    rendering_rate: float

    def __str__(self) -> str:
        measuring = f"measuring: {self.measuring_seconds * 1e6:.2f} µs of processor time a message"
        kept = f"looked through: {self.kept_bytes:.0f} bytes of memory a message"
        return f"{measuring}; {kept}; rendering: {self.rendering_rate / 1e6:.0f} MB of log a second of processor time"


def costs(store: Path) -> Costs:
    """Those of a queue."""
    with MessageStore.open(store) as opened:
        segments = QueueSegments(opened, TOPIC, 0).now()
        begun = time.process_time()
        layouts = [measure(opened, range_key(opened, TOPIC, 0, begin, end)) for begin, end, _ in segments]
        measuring, kept_bytes = time.process_time() - begun, 0
        for layout in layouts:
            row_groups = [read_columns(opened, layout.key, row_group) for row_group in layout.row_groups]
            map_file(layout, row_groups)
            for columns in row_groups:
                kept_bytes += columns.kept_bytes
                for chunk in columns.chunks.values():
                    chunk.encode()
        spent = time.process_time() - begun
        sizes = opened.entries(TOPIC, 0, segments[0].begin, segments[-1].end)["size"]
    return Costs(measuring / len(sizes), kept_bytes / len(sizes), int(sizes.sum()) / spent)


def copy_lines(root: Path, plain: Path) -> None:
    """The streams, as files on ext4."""
    plain.mkdir()
    for queue in range(QUEUES):
        shutil.copyfile(root / TOPIC / f"{queue}.log", plain / f"{queue}.jsonl")


def copy_files(root: Path, plain: Path) -> None:
    """Messages, as files on ext4."""
    plain.mkdir()
    for entry in os.scandir(root):
        if entry.name.isdigit():
            shutil.copyfile(entry.path, plain / entry.name)


def list_with_sizes(folder: Path) -> int:
    """`ls -l`."""
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def queue_rows(bench: Bench, root: Path) -> Iterator[Result]:
    """The rows over the large store."""
    spark, jsonl, logs = bench.spark, f"{bench.plain}/*.jsonl", f"{root}/{TOPIC}/*.log"
    copy_lines(root, bench.plain)
    frame = messages(spark, root)
    yield bench.turns(
        "JSON aggregate over `*.log`", "the same lines as .jsonl on ext4", 0.9,
        lambda: bench.json_aggregate(logs), lambda: bench.json_aggregate(jsonl),
    )  # fmt: skip
    frame.write.partitionBy("topic", "queue").parquet(f"{bench.folder}/parquet")
    written = spark.read.parquet(f"{bench.folder}/parquet")
    yield bench.turns(
        "Parquet aggregate, warm", "the same dataset written by Spark on ext4", 0.9,
        lambda: bench.parquet_aggregate(frame), lambda: bench.parquet_aggregate(written),
    )  # fmt: skip
    yield bench.turns(
        "Parquet aggregate with lengths of bodies, warm", "the same dataset written by Spark on ext4", None,
        lambda: bench.aggregate_with_bodies(frame), lambda: bench.aggregate_with_bodies(written),
    )  # fmt: skip
    yield bench.turns(
        "export", "`spark.read.json` and write of the same data", 1.0,
        lambda: bench.export(root, SparkTasks(spark)), bench.read_and_write_json,
    )  # fmt: skip
    yield bench.turns(
        "export without Spark", "`spark.read.json` and write of the same data", None,
        lambda: bench.export(root, Threads()), bench.read_and_write_json,
    )  # fmt: skip


def first_read_rows(bench: Bench, store: Path) -> Iterator[Result]:
    """The Parquet aggregates over a mount that nobody has listed or read from: a new one each time."""
    mountpoint, jsonl = bench.folder / "first-mount", f"{bench.plain}/*.jsonl"

    def first_read(aggregate: Callable[[DataFrame], None]) -> float:
        with mounted(store, mountpoint) as root:
            return seconds(lambda: aggregate(messages(bench.spark, root)))

    works = {
        "Parquet aggregate, first read (rendering included)": (1.0, bench.parquet_aggregate),
        "Parquet aggregate with lengths of bodies, first read": (None, bench.aggregate_with_bodies),
    }
    for work, (target, aggregate) in works.items():
        yield bench.timed_turns(
            work, "the same JSON aggregate from .jsonl", target,
            partial(first_read, aggregate), lambda: seconds(lambda: bench.json_aggregate(jsonl)),
        )  # fmt: skip


def file_rows(bench: Bench, root: Path) -> Iterator[Result]:
    """binaryFile over one queue."""
    folder, plain = root / TOPIC / "0", bench.folder / "files"
    copy_files(folder, plain)
    yield bench.turns(
        f"binaryFile over one queue of {FILES:,} messages", "the same as files on ext4", 1.0,
        lambda: bench.binary_files(folder), lambda: bench.binary_files(plain),
    )  # fmt: skip


def listing_rows(bench: Bench, root: Path) -> Iterator[Result]:
    """Listing a thousand segments, by processes' own calls: Spark's listing is these calls and its own work."""
    folder, plain = root / f"@parquet/topic={TOPIC}/queue=0", bench.folder / "segments"
    plain.mkdir()
    names = os.listdir(folder)
    for name in names:
        (plain / name).write_bytes(bytes(1_000))
    yield bench.turns(
        f"listing `@parquet` of {len(names):,} segments", "ext4", 0.5,
        lambda: list_with_sizes(folder), lambda: list_with_sizes(plain),
    )  # fmt: skip


def shown(result: Result) -> Result:
    print(" · ".join(result.cells), flush=True)
    return result


@contextmanager
def new_session(folder: Path) -> Iterator[SparkSession]:
    """Two threads on the loopback."""
    os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("bench").config("spark.driver.memory", "3g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.local.dir", str(folder / "local"))
    session = builder.config("spark.buffer.size", 1 << 20).config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def run(folder: Path, count: int, rounds: int) -> tuple[list[Result], Costs]:
    """Every row, and the daemon's cost."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    results: list[Result] = []
    try:
        fill(folder / "store", count)
        paid = costs(folder / "store")
        print(paid, flush=True)
        fill(folder / "few", FILES * QUEUES)
        fill_segments(folder / "many")
        with new_session(folder) as spark:
            bench = Bench(spark, folder, count, rounds)
            with mounted(folder / "store", folder / "store-mount") as root:
                results += queue_rows(bench, root)
            results += first_read_rows(bench, folder / "store")
            with mounted(folder / "few", folder / "few-mount") as root:
                results += file_rows(bench, root)
            with mounted(folder / "many", folder / "many-mount") as root:
                results += listing_rows(bench, root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results, paid


def table(results: Sequence[Result]) -> str:
    """Markdown."""
    head = ("work", "against", "ours", "other", "ratio", "target", "")
    rows = [head, tuple("---" for _ in head), *(result.cells for result in results)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_page(results: Sequence[Result], said: str) -> None:
    """The table, into its place in docs/spark.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{said}\n\n{table(results)}\n{END}{after}")


def main(arguments: Sequence[str]) -> int:
    """Run it; returns 0 if it could be run, with any verdicts."""
    parser = argparse.ArgumentParser(prog="./run bench spark", description="Spark over a mount beside plain files.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/spark.md")
    asked = parser.parse_args(arguments)
    loads = [os.getloadavg()[0]]
    results, paid = run(PROJECT / "build" / f"bench-spark-{os.getpid()}", asked.messages, asked.rounds)
    loads.append(os.getloadavg()[0])
    record = {
        "messages": asked.messages, "cores": os.cpu_count(), "load": loads,
        "costs": paid._asdict(),
        "rows": [asdict(result) | {"ratio": result.ratio} for result in results],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(record, indent=2))
    if asked.docs:
        said = f"{asked.messages:,} messages of about 300 bytes, {os.cpu_count()} cores, one run"
        write_page(results, f"{said}; {paid}:")
    return 0
