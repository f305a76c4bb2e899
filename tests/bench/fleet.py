"""Rows `fleet`: what `mountctl serve` costs beside the mount that it serves (`./run bench fleet`).

One broker's store each: in files of 40 MB, as a broker's log has them, and in files of 1 to 6 MB. Spark (`local[2]`)
reads it through the server of this host and through the mount, in turns, warm. Notes have the processor time of a MiB
by process, Spark's own among it. Bytes that left are the server's own count; bytes that were needed are the lengths of
the column chunks of a query, from the files' footers.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import polars
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from engine import BROKER_SIZES, FileSizes, Message, MessageStore, StoreConfig
from fsstore.spark import fleet, messages
from tests.bench.measure import LeftOutError, Pairs, Turn, cpu_seconds, interleave, seconds
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.spark import new_session
from tests.bench.workload import TAG, body, key
from tests.interop.mounts import mounted, status
from tests.mount.harness import unmount_lazily
from tests.mountctl.conftest import eventually
from tests.mountctl.served import Server, served
from tests.mountctl.sshd import network
from tests.mountctl.test_serve_readers import Ranges

MIB = 1 << 20
TOPIC, QUEUES, BATCH = "orders", 4, 1_000
BODY_PARTS = 2
MESSAGE_BYTES = 650
"""Of a message in the log: 65,536 of them, as many as a file of `@parquet` has at most, are 40 MB."""
SMALL_LOG = FileSizes(
    commit_log_bytes=16 << 20, consume_queue_entries=65_536, index_slots=50_000, index_entries=200_000
)
TINY_LOG = FileSizes(commit_log_bytes=1 << 16, consume_queue_entries=1_024, index_slots=5_000, index_entries=20_000)
PLANNED_TOPICS = 20
WARMING_TURNS = 2
ROUNDS, REQUESTS = 3, 2_000
MOST_REQUEST_US, MOST_MIB_MS, MOST_QUERY_S = 200.0, 0.5, 60.0
STILL_S, FIGURES_BYTES = 1.0, 16 << 10
"""How long no more than the answer with the figures has left when nothing is being sent, and a bound of its size."""
PROCESSES = ("server", "server_s"), ("daemon", "daemon_s"), ("client", "client_s")
CLIENT_THREADS = 2
"""Of the session."""
MOUNTS = 10
"""Below the many servers."""
SFTP_SERVER = "/usr/lib/openssh/sftp-server"

Query = Callable[[DataFrame], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A mount, its server, and the processor time of both."""

    root: Path
    server: Server
    daemon: int

    @property
    def server_s(self) -> float:
        """The server's processor time."""
        return cpu_seconds(self.server.process.pid)

    def sent_bytes(self) -> int:
        """Bytes of answers that have left, as soon as their number grows no more: an answer is counted at its end."""
        before, found = -FIGURES_BYTES, self._sent_bytes()
        while found - before >= FIGURES_BYTES:
            time.sleep(STILL_S)
            before, found = found, self._sent_bytes()
        return found

    def _sent_bytes(self) -> int:
        figures = self.server.ask("/metrics").body.decode()
        found = re.search(r"^fsstore_serve_sent_bytes_total (\d+)", figures, re.MULTILINE)
        return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Bench:
    """The session, and how often both sides take their turns."""

    room: Room
    spark: SparkSession

    def through(self, place: Place) -> tuple[DataFrame, DataFrame]:
        """All messages, through the server and through the mount."""
        served_frame = fleet(self.spark, {"a": place.server.origin}).messages([TOPIC])
        return served_frame, messages(self.spark, place.root, [TOPIC])

    def turns(self, work: Callable[[int], object], size: int, place: Place) -> Pairs:
        """Both sides of a row take turns at reading `size` bytes: 0 is the server, 1 the mount. A piece is a MiB, and
        its processor time that of server and daemon. The note has the client's own beside these."""
        spent: tuple[list[Spent], list[Spent]] = [], []

        def turn(side: int) -> Turn:
            server_s, daemon_s, client_s = place.server_s, cpu_seconds(place.daemon), cpu_seconds(self.client)
            took = seconds(lambda: work(side))
            found = Spent(
                took, place.server_s - server_s, cpu_seconds(place.daemon) - daemon_s,
                cpu_seconds(self.client) - client_s,
            )  # fmt: skip
            spent[side].append(found)
            return Turn(size / MIB / took, 1e6 * (found.server_s + found.daemon_s) / (size / MIB))

        for _ in range(WARMING_TURNS):
            work(0)
            work(1)
        pairs = interleave(partial(turn, 0), partial(turn, 1), self.room.scale.rounds)
        return replace(pairs, note=processor_note(*spent, size / MIB))

    @property
    def client(self) -> int:
        """The process of Spark that reads."""
        gateway: Any = self.spark.sparkContext._gateway
        return int(gateway.proc.pid)


class Spent(NamedTuple):
    """What a turn took, and the processor time of server, daemon and client meanwhile, in seconds."""

    took_s: float
    server_s: float
    daemon_s: float
    client_s: float


def processor_note(served: Sequence[Spent], local: Sequence[Spent], mibs: float) -> str:
    """Medians of processor time by process, and the best ratio that the client's own leaves: by HTTP it has
    CLIENT_THREADS processors at most, however little the server takes."""

    def shown(turns: Sequence[Spent], name: str) -> str:
        return f"{1e3 * median(getattr(one, name) for one in turns) / mibs:,.2f}"

    words = [f"{word} {shown(served, name)}, {shown(local, name)}" for word, name in PROCESSES]
    best = median(here.took_s * CLIENT_THREADS / there.client_s for there, here in zip(served, local, strict=True))
    return f"CPU of a MiB in ms, by HTTP and in the mount: {'; '.join(words)}; the client's alone allows {best:.2f}"


def fill(store: Path, size: int, sizes: FileSizes, seed: int = 0) -> None:
    """A store with messages of about `size` bytes."""
    with MessageStore.open(store, StoreConfig(sizes=sizes), create=True) as opened:
        opened.create_topic(TOPIC, QUEUES)
        for begin in range(0, size // MESSAGE_BYTES, BATCH):
            opened.put_batch([message(seed + n) for n in range(begin, begin + BATCH)], begin // BATCH % QUEUES)


def message(number: int) -> Message:
    return Message(TOPIC, body(number) * BODY_PARTS, keys=(key(number),), tags=TAG)


def fill_many(store: Path, files: int) -> None:
    """A store with so many files in `@parquet`: a message each."""
    each = files // (PLANNED_TOPICS * QUEUES)
    with MessageStore.open(store, StoreConfig(sizes=TINY_LOG), create=True) as opened:
        for topic in range(PLANNED_TOPICS):
            opened.create_topic(f"topic-{topic}", QUEUES)
            for _ in range(each):
                for queue in range(QUEUES):
                    opened.put(Message(f"topic-{topic}", bytes(15_000)), queue)


@contextmanager
def place_of(room: Room, store: Path) -> Iterator[Place]:
    """A mount of a store, and a server of it."""
    folder = room.new_folder()
    with mounted(store, folder / "mnt") as root, served(root, folder) as server:
        yield Place(root, server, int(status(root)["pid"]))


# the queries


def aggregate(frame: DataFrame) -> None:
    """Few columns of all messages."""
    frame.groupBy("queue", "tags").agg(f.count("*"), f.min("store_time"), f.max("store_time")).collect()


def with_bodies(frame: DataFrame) -> None:
    """All bodies."""
    frame.groupBy("queue", "tags").agg(f.count("*"), f.sum(f.length("body")), f.max("store_time")).collect()


def files_of(place: Place) -> list[Path]:
    return sorted((place.root / "@parquet").glob("topic=*/queue=*/*.parquet"))


def urls_of(place: Place) -> list[tuple[str, int]]:
    """The same by URLs, with their lengths."""
    origin = f"{place.server.origin}/files"
    return [(f"{origin}/{path.relative_to(place.root)}", path.stat().st_size) for path in files_of(place)]


def needed_bytes(place: Place, *columns: str) -> int:
    """The lengths of all chunks of these columns."""
    total = 0
    for path in files_of(place):
        footer = pq.read_metadata(path)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            chunks = map(group.column, range(group.num_columns))
            total += sum(one.total_compressed_size for one in chunks if one.path_in_schema.split(".")[0] in columns)
    return total


TAGS, BODIES = ("tags", "store_time"), ("tags", "store_time", "body")


# rows


def rows(room: Room) -> Iterator[Row]:
    """The rows, each to be run before the next one is asked for: they share a session, mounts and servers."""
    size, few = room.scale.fleet_bytes, room.folder / "few-files"
    with ExitStack() as stack:
        bench = Bench(room, stack.enter_context(new_session(room.new_folder())))
        fill(few, size, BROKER_SIZES)
        with place_of(room, few) as place:
            yield from store_rows(bench, place, "40 MB", 0.7)
            yield Row("fleet text", "Spark: lines of a `.log`", "the mount", "MiB/s", 0.7, partial(text, bench, place))
            yield from request_rows(place)
            yield Row(
                "fleet sshfs", "Spark: bodies, by HTTP", "sshfs", "MiB/s", 1.0, partial(beside_sshfs, bench, place)
            )
        yield Row(
            "fleet daemon", "daemon: CPU of a cold MiB, by HTTP", "`cat` in the mount", "ms", 1.2,
            partial(daemon_ms, few), at_most=True,
        )  # fmt: skip
        fill(room.folder / "small-files", size, SMALL_LOG)
        with place_of(room, room.folder / "small-files") as place:
            yield from store_rows(bench, place, "4 MB", 0.6)
        fill_many(room.folder / "many-files", room.scale.fleet_files)
        with place_of(room, room.folder / "many-files") as place:
            for how, located, limit_s in (("with", True, 20.0), ("without", False, 3.0)):
                work = f"planning {room.scale.fleet_files:,} files, {how} their hosts"
                yield bound(f"fleet plan {how}", work, "s", partial(planning, bench, place, located, limit_s))
        work = f"Spark: one query over {room.scale.fleet_servers} servers"
        yield bound("fleet many", work, "s", partial(many, bench))


def bound(name: str, work: str, unit: str, run: Callable[[Room], Pairs]) -> Row:
    """A row of which the other side is a limit."""
    return Row(name, work, "a bound", unit, 1.0, run, at_most=True)


def store_rows(bench: Bench, place: Place, files: str, least: float) -> Iterator[Row]:
    """Rows of a store with files of that size."""
    frames = bench.through(place)
    for name, query, columns in (("tags", aggregate, TAGS), ("bodies", with_bodies, BODIES)):
        needed = needed_bytes(place, *columns)

        def turns(_room: Room, query: Query = query, needed: int = needed) -> Pairs:
            return bench.turns(lambda side: query(frames[side]), needed, place)

        def sent(_room: Room, query: Query = query, needed: int = needed) -> Pairs:
            before = place.sent_bytes()
            query(frames[0])
            return Pairs(((place.sent_bytes() - before) / 1e6,), (needed / 1e6,))

        yield Row(f"fleet {name} {files}", f"Spark: {name}, files of {files}", "the mount", "MiB/s", least, turns)
        work = f"bytes sent for {name}, files of {files}"
        yield Row(f"fleet sent {name} {files}", work, "their chunks", "MB", 1.5, sent, at_most=True)
    work = f"pyarrow by ranges of URLs: bytes sent for bodies, files of {files}"
    yield Row(f"fleet ranges {files}", work, "their chunks", "MB", 1.05, partial(ranges, place), at_most=True)


def text(bench: Bench, place: Place, _room: Room) -> Pairs:
    """A stream as text."""
    name, size = f"{TOPIC}.log", os.path.getsize(place.root / f"{TOPIC}.log")
    paths = f"webhdfs://127.0.0.1:{place.server.port}/{name}", str(place.root / name)
    return bench.turns(lambda side: bench.spark.read.text(paths[side]).count(), size, place)


def ranges(place: Place, _room: Room) -> Pairs:
    """Bytes that are sent to clients that ask for ranges."""
    files, needed = urls_of(place), needed_bytes(place, "body")
    sent = []
    for read in (by_pyarrow, by_polars):
        before = place.sent_bytes()
        read(files)
        sent.append((place.sent_bytes() - before) / 1e6)
    note = f"Polars asks for {sent[1] / (needed / 1e6):.2f} times as much, twice for each file's end"
    return Pairs((sent[0],), (needed / 1e6,), note=note)


def by_pyarrow(files: Sequence[tuple[str, int]]) -> None:
    for url, size in files:
        pq.ParquetFile(pa.PythonFile(Ranges(url, size))).read(["body"])


def by_polars(files: Sequence[tuple[str, int]]) -> None:
    scan = polars.scan_parquet([url for url, _ in files], hive_partitioning=False)
    scan.select(polars.col("body").bin.size().sum()).collect()


def request_rows(place: Place) -> Iterator[Row]:
    """The server's processor time for a request, on a connection that stays and on one of its own, as Hadoop's client
    makes; and for a MiB of a warm file."""
    kinds = ("a GETFILESTATUS", "GETFILESTATUS"), ("an OPEN of 4 KiB", "OPEN&direct=1&offset=8&length=4096")
    for name, asked in kinds:
        for suffix, how, stays in (("", "kept alive", True), (" alone", "on its own connection", False)):
            run = partial(request_us, place, asked, stays)
            yield bound(f"fleet {name.split()[1]}{suffix}", f"server: CPU of {name}, {how}", "µs", run)
    yield bound("fleet MiB", "server: CPU of a MiB of a warm file", "ms", partial(mib_ms, place))


def request_us(place: Place, asked: str, stays: bool, _room: Room) -> Pairs:
    """Processor time of a request on a connection that stays, or not."""
    url = f"/webhdfs/v1/{files_of(place)[0].relative_to(place.root)}?op={asked}"
    spent = []
    with closing(http.client.HTTPConnection("127.0.0.1", place.server.port)) as connection:
        for _ in range(ROUNDS):
            began = place.server_s
            for _ in range(REQUESTS):
                connection.request("GET", url)
                with connection.getresponse() as answer:
                    assert len(answer.read()) > 0
                    assert answer.status == 200
                if not stays:
                    connection.close()  # the next request makes another one
            spent.append(1e6 * (place.server_s - began) / REQUESTS)
    return Pairs(tuple(spent), (MOST_REQUEST_US,) * ROUNDS)


def mib_ms(place: Place, _room: Room) -> Pairs:
    """Processor time of a MiB."""
    files, spent = urls_of(place), []
    for _ in range(1 + ROUNDS):
        began = place.server_s
        for url, _ in files:
            take(url)
        spent.append(1e3 * (place.server_s - began) / (sum(size for _, size in files) / MIB))
    return Pairs(tuple(spent[1:]), (MOST_MIB_MS,) * ROUNDS)


def take(url: str) -> None:
    """All of a file, by a client that costs little."""
    subprocess.run(["curl", "--silent", "--fail", "--output", "/dev/null", url], check=True)


def planning(bench: Bench, place: Place, located: bool, limit_s: float, room: Room) -> Pairs:
    """Seconds until Spark knows all files. It names them to Java alone: to Python a call for each name would take
    them."""

    def plan() -> None:
        brokers = fleet(bench.spark, {"a": place.server.origin})
        assert len(brokers.messages(locations=located)._jdf.inputFiles()) == room.scale.fleet_files

    took = [seconds(plan) for _ in range(2)]
    limit_s *= room.scale.fleet_files / 20_000
    return Pairs((took[1],), (limit_s,), note=f"the first time {took[0]:.1f} s")


def daemon_ms(store: Path, room: Room) -> Pairs:
    """The daemon's processor time for all of `@parquet` in a new mount: through the server, and in the mount."""

    def spent(by_server: bool) -> float:
        with place_of(room, store) as place:
            files, began = urls_of(place), cpu_seconds(place.daemon)
            for (url, _), path in zip(files, files_of(place), strict=True):
                if by_server:
                    take(url)
                else:
                    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
            return 1e3 * (cpu_seconds(place.daemon) - began) / (sum(size for _, size in files) / MIB)

    return interleave(lambda: spent(True), lambda: spent(False), ROUNDS)


def beside_sshfs(bench: Bench, place: Place, room: Room) -> Pairs:
    """Bodies, as another host would have them: by HTTP, and by sshfs. LeftOutError."""
    with sshfs(room, place.root) as there:
        frames = bench.through(place)[0], messages(bench.spark, there, [TOPIC])
        return bench.turns(lambda side: with_bodies(frames[side]), needed_bytes(place, *BODIES), place)


@contextmanager
def sshfs(room: Room, root: Path) -> Iterator[Path]:
    """A mount of `root` by sshfs, over an sshd of our own. LeftOutError."""
    if shutil.which("sshfs") is None:
        raise LeftOutError("sshfs is not installed")
    folder = room.new_folder()
    net = network(folder / "net")
    (net.folder / "session").write_text(f"#!/bin/sh\nexec {SFTP_SERVER}\n")
    with (net.folder / "sshd_config").open("a") as config:
        config.write(f"\nSubsystem sftp {SFTP_SERVER}\n")
    (there := folder / "there").mkdir()
    command = ["sshfs", "-f", "-o", f"ssh_command={net.folder / 'bin/ssh'}", f"host:{root}", str(there)]
    with subprocess.Popen(command, env=net.environment, stdin=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: os.path.exists(there / "@parquet") or process.poll() is not None, "sshfs has mounted")
            if process.poll() is not None:
                raise LeftOutError(f"sshfs ends with {process.returncode}")
            yield there
        finally:
            unmount_lazily(there)
            process.wait(60)


def many(bench: Bench, room: Room) -> Pairs:
    """One query over many servers of ten mounts: each log is read once, the other servers stand in."""
    count = room.scale.fleet_servers
    with ExitStack() as stack:
        roots = []
        for number in range(MOUNTS):
            fill(room.folder / f"store-{number}", room.scale.fleet_bytes // 100, SMALL_LOG, seed=number)
            roots.append(stack.enter_context(mounted(room.folder / f"store-{number}", room.new_folder() / "mnt")))
        folders = [room.new_folder() for _ in range(count)]
        servers = [stack.enter_context(served(roots[n % MOUNTS], folder)) for n, folder in enumerate(folders)]
        places = {f"broker-{number}": server.origin for number, server in enumerate(servers)}
        truth = sum(messages(bench.spark, root, [TOPIC]).count() for root in roots)
        began = time.perf_counter()
        frame = fleet(bench.spark, places).messages([TOPIC])
        planned = time.perf_counter() - began
        assert frame.count() == truth
        took = time.perf_counter() - began
    note = f"{truth:,} messages of {MOUNTS} mounts, each once; {planned:.1f} s of it until Spark has planned"
    return Pairs((took,), (MOST_QUERY_S,), note=note)
