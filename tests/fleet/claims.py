"""What is claimed of a fleet, one after the other: each has a sentence, and returns its figures or fails.

python -m tests.fleet.claims FOLDER    in namespaces of its own, as `tests.fleet` runs it, or with `--loopback`
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from fsstore.spark import BrokerError, FsstoreSource, fleet
from tests.fleet.brokers import MOUNTCTL, PORT, TOPICS, BrokerHost, Found, Queue, Sums, summed
from tests.fleet.hosts import Network, network
from tests.interop.toolchain import LINES
from tests.mountctl.test_serve_readers import Ranges
from tests.spark.cluster import QUICK_START, master_in, master_words, process, until

BROKERS = ("a", "b", "c")
COLUMNS = ["queue_offset", "body", "keys"]
LEAST_LOCAL, MOST_ON_WIRE = 0.95, 0.02
HEAVY = "sum(length(sha2(repeat(cast(body as string), 100), 512)))"
"""Some milliseconds of work for each message, so that a scan takes a while."""
GIVEN_UP_S = 240
STREAM_RATE, STREAM_SECONDS, STREAM_BATCH = 300, 15, 2_500


class LeftOutError(Exception):
    """A claim can't be looked at here; the message says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a claim went. `passed` None: it is left out; `said` are its figures, or what is wrong."""

    claim: str
    said: str
    passed: bool | None
    seconds: float


@dataclass(slots=True)
class Scan:
    """What was measured of one scan of everything: tasks that read, by locality, and bytes on the wires."""

    localities: Counter[str]
    wire_bytes: int | None
    read_bytes: int


@dataclass(slots=True)
class Proof:
    """The hosts, and a session of Spark on them."""

    network: Network
    spark: SparkSession
    master: str
    brokers: dict[str, BrokerHost]
    truth: Found
    scan: Scan | None = field(default=None, init=False)

    @property
    def urls(self) -> dict[str, str]:
        return {name: broker.url for name, broker in self.brokers.items()}

    def frame(self, *names: str) -> DataFrame:
        """All messages of some brokers, or of all."""
        return fleet(self.spark, {name: self.urls[name] for name in names or BROKERS}).messages(TOPICS)

    def truth_of(self, *names: str) -> Found:
        return {queue: sums for queue, sums in self.truth.items() if queue[0] in names}


def by_spark(frame: DataFrame) -> Found:
    """The sums of each queue, as Spark makes them."""
    summed = "length(body)", "crc32(body)", "crc32(array_join(keys, ' '))", "queue_offset"
    shown = "count(1)", *(f"sum({one})" for one in summed)
    frame.createOrReplaceTempView("fleet")
    query = f"select broker, topic, queue, {', '.join(shown)} from fleet group by all"
    return {(row[0], row[1], row[2]): Sums(*row[3:]) for row in frame.sparkSession.sql(query).collect()}


def different(found: Found, truth: Found) -> str:
    """The first queue of which other messages were found."""
    queues = sorted(found.keys() | truth.keys())
    return next(
        (f"{one}: {found.get(one)}, not {truth.get(one)}" for one in queues if found.get(one) != truth.get(one)), ""
    )


def require_equal(found: Found, truth: Found) -> str:
    """The number of messages. AssertionError: they are others."""
    assert not (wrong := different(found, truth)), wrong
    return f"{sum(sums.rows for sums in found.values()):,} messages, all equal"


# claims


def batch(proof: Proof) -> str:
    """One Spark job over three brokers' hosts: rows, bodies, keys and offsets are those of the stores"""
    context, wire = proof.spark.sparkContext, _wire_bytes(proof)
    context.setJobGroup("batch", "the whole fleet")
    frame = proof.frame()
    said = require_equal(by_spark(frame), proof.truth)
    spent = None if wire is None else (_wire_bytes(proof) or 0) - wire
    proof.scan = Scan(localities(proof.spark, "batch"), spent, sum(sums.bytes for sums in proof.truth.values()))
    return said


def local_tasks(proof: Proof) -> str:
    """Spark runs 95 % of the tasks on the host that has the messages"""
    assert proof.scan is not None
    tasks = proof.scan.localities
    share = tasks["NODE_LOCAL"] / tasks.total()
    assert share >= LEAST_LOCAL, f"{tasks}"
    return f"{tasks['NODE_LOCAL']} of {tasks.total()} tasks"


def wire_bytes(proof: Proof) -> str:
    """Of the bytes that are read, 2 % cross the network between the hosts at most"""
    assert proof.scan is not None
    if proof.scan.wire_bytes is None:
        raise LeftOutError("hosts on the loopback have no wires")
    said = f"{proof.scan.wire_bytes / 1e6:.2f} MB of {proof.scan.read_bytes / 1e6:.0f} MB"
    assert proof.scan.wire_bytes <= MOST_ON_WIRE * proof.scan.read_bytes, said
    return said


def by_polars(proof: Proof) -> str:
    """Polars reads the same by URLs"""

    def read(urls: Sequence[tuple[str, int]]) -> Sums:
        frame = polars.scan_parquet([url for url, _ in urls]).select(COLUMNS).collect()
        return summed((offset, body, keys or ()) for offset, body, keys in frame.iter_rows())

    return require_equal(by_urls(proof, read), proof.truth)


def by_pandas(proof: Proof) -> str:
    """pandas reads the same by URLs"""

    def read(urls: Sequence[tuple[str, int]]) -> Sums:
        frames = [pandas.read_parquet(url, columns=COLUMNS) for url, _ in urls]
        rows = (row for frame in frames for row in frame.itertuples(index=False))
        return summed((offset, body, () if keys is None else keys) for offset, body, keys in rows)

    return require_equal(by_urls(proof, read), proof.truth)


def by_duckdb(proof: Proof) -> str:
    """DuckDB reads the same by URLs"""
    with duckdb.connect() as session:
        try:
            session.execute("load httpfs")
            way = ""
        except duckdb.Error:
            way = "; through pyarrow, for its extension httpfs can't be had here"

        def read(urls: Sequence[tuple[str, int]]) -> Sums:
            if way:
                opened = [pq.ParquetFile(pa.PythonFile(Ranges(url, size))) for url, size in urls]
                session.register("queue", pa.concat_tables(file.read(COLUMNS) for file in opened))
                rows = session.execute("select queue_offset, body, keys from queue").fetchall()
            else:
                named = [url for url, _ in urls]
                rows = session.execute("select queue_offset, body, keys from read_parquet(?)", [named]).fetchall()
            return summed((offset, body, keys or ()) for offset, body, keys in rows)

        return require_equal(by_urls(proof, read), proof.truth) + way


def replica(proof: Proof) -> str:
    """A store and its backup, served on another host, are one broker: each message is read once"""
    first, second = proof.brokers["a"], proof.brokers["b"]
    folder = second.host.folder / "replica"
    copy, mountpoint = folder / "store", folder / "mnt"
    mountpoint.mkdir(parents=True)
    second.host.run(*MOUNTCTL, "backup", first.store, copy)
    listen, host = f"{second.host.address}:{PORT + 1}", second.host.domain
    second.host.run(*MOUNTCTL, "mount", "--read-only", copy, mountpoint)
    words = ("serve", mountpoint, "--listen", listen, "--host", host, "--insecure")
    server = second.host.start(folder / "server.log", *MOUNTCTL, *words)
    until("the backup is served", lambda: "is served at" in (folder / "server.log").read_text())
    frame = fleet(proof.spark, {"copy": f"http://{host}:{PORT + 1}", **proof.urls}).messages(TOPICS)
    found = by_spark(frame)
    named = {
        ("a" if broker == "copy" else broker, topic, queue): sums for (broker, topic, queue), sums in found.items()
    }
    assert len(named) == len(found), found.keys()
    said = require_equal(named, proof.truth)
    second.host.signal(server, 15)
    second.host.run(*MOUNTCTL, "umount", mountpoint)
    return said


def killed(proof: Proof) -> str:
    """A host that dies while a job reads it: the job fails, and its error names the host"""
    victim = proof.brokers["c"]
    frame, asked = proof.frame(), victim.opens()
    with ThreadPoolExecutor(1) as thread:
        scan = thread.submit(frame.selectExpr(HEAVY).collect)
        until("the scan reads that host", lambda: scan.done() or victim.opens() > asked + 4)
        assert not scan.done(), "it is over already"
        victim.host.kill()
        began = time.monotonic()
        error = scan.exception(GIVEN_UP_S)
    assert error is not None, "the job went through"
    said = str(error)
    assert f"{victim.host.domain}:{PORT}" in said, said[:2_000]
    return f"failed {time.monotonic() - began:.0f} s after the host"


def the_rest(proof: Proof) -> str:
    """While a host is away, a job that asks for it fails and names it; the rest is right when it is asked for"""
    with pytest.raises(BrokerError, match=f"broker c at {proof.urls['c']}: "):
        proof.frame()
    return require_equal(by_spark(proof.frame("a", "b")), proof.truth_of("a", "b"))


def back(proof: Proof) -> str:
    """The host is started again, its broker on the store that the kill left: all is there again"""
    again = proof.brokers["c"] = BrokerHost(proof.network.host("c"), proof.brokers["c"].line)
    again.start_broker()
    again.start_mount()
    again.start_server()
    again.start_worker(proof.master)
    return require_equal(by_spark(proof.frame()), proof.truth)


def stream(proof: Proof) -> str:
    """A stream over brokers that publish, while mount and server of one host start again: each message comes once"""
    spark, topic, found = proof.spark, "later", Counter[tuple[Queue, str]]()
    spark.dataSource.register(FsstoreSource)
    for broker in proof.brokers.values():
        broker.produce(STREAM_RATE, STREAM_SECONDS, topic)
    for broker in proof.brokers.values():
        until(f"{broker.name} shows the topic", partial(broker.shows, topic))

    def keep(batch: DataFrame, _number: int) -> None:
        for queue, sums in by_spark(batch).items():
            for name, number in sums._asdict().items():
                found[queue, name] += number

    def rows() -> int:
        return sum(number for (_, name), number in found.items() if name == "rows")

    source = spark.readStream.format("fsstore").option("places", json.dumps(proof.urls)).option("subscribe", topic)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", STREAM_BATCH)
    writer = source.load().writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(proof.network.folder / "checkpoint")).start()
    try:
        until("the first batch", lambda: rows() or not query.isActive)
        before = rows()
        proof.brokers["b"].restart()
        for broker in proof.brokers.values():
            broker.produced()
        truth = {queue: sums for broker in proof.brokers.values() for queue, sums in broker.truth(topic).items()}
        total = sum(sums.rows for sums in truth.values())
        assert before < total, "all had come before the restart"
        until("all messages have come", lambda: rows() >= total or not query.isActive)
        assert query.isActive, query.exception()
    finally:
        query.stop()
    came = {queue: Sums(*(found[queue, name] for name in Sums._fields)) for queue, _ in found}
    return f"{require_equal(came, truth)}; {before:,} of them before the restart"


CLAIMS: tuple[Callable[[Proof], str], ...] = (
    batch,
    local_tasks,
    wire_bytes,
    by_polars,
    by_pandas,
    by_duckdb,
    replica,
    killed,
    the_rest,
    back,
    stream,
)


def _wire_bytes(proof: Proof) -> int | None:
    return proof.network.wire_bytes() if proof.network.isolated else None


def localities(spark: SparkSession, group: str) -> Counter[str]:
    """The tasks of a group of jobs that read files, by their locality."""
    tracker, java = spark.sparkContext.statusTracker(), spark._jsc
    assert java is not None
    store, found = java.sc().statusStore(), Counter[str]()
    jobs = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job)) is not None]
    for stage in sorted({stage for job in jobs for stage in job.stageIds}):
        tasks = store.taskList(stage, 0, 100_000)
        for task in map(tasks.apply, range(tasks.size())):
            if task.taskMetrics().isDefined() and task.taskMetrics().get().inputMetrics().recordsRead():
                found[task.taskLocality()] += 1
    return found


def by_urls(proof: Proof, read: Callable[[Sequence[tuple[str, int]]], Sums]) -> Found:
    """The sums of each queue, by a program that is given its files: URLs and lengths."""
    found: Found = {}
    for name, broker in proof.brokers.items():
        queues: defaultdict[Queue, list[tuple[str, int]]] = defaultdict(list)
        for topic in TOPICS:
            with urlopen(f"{broker.url}/datasets?topic={topic}", timeout=60) as answer:
                for line in map(json.loads, answer):
                    queues[name, topic, line["queue"]].append((line["url"], line["bytes"]))
        found.update((queue, read(urls)) for queue, urls in queues.items())
    return found


# setting up


@contextmanager
def session(network: Network, folder: Path, master: str) -> Iterator[SparkSession]:
    """A session of Spark on the cluster, with nothing set for this project."""
    builder = SparkSession.builder.master(master).appName("fleet").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.host": network.address,
        "spark.driver.bindAddress": network.address,
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.executor.memory": "600m",
        "spark.locality.wait": "20s",  # three hosts share this machine's processors: one may be busy for Spark's 3 s
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    try:
        yield made
    finally:
        made.stop()


def start(broker: BrokerHost, seed: int) -> None:
    """All that is on a host but its worker, with messages."""
    broker.start_broker()
    broker.fill(seed)
    broker.start_mount()
    broker.start_server()


@contextmanager
def prepared(folder: Path, isolated: bool) -> Iterator[Proof]:
    """Hosts with all that runs on them."""
    with ExitStack() as stack:
        net = stack.enter_context(network(folder, isolated))
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": net.address}
        brokers = {name: BrokerHost(net.host(name), LINES[-1]) for name in BROKERS}
        log = folder / "master.log"
        stack.enter_context(process(log, *master_words(net.address), address=net.address))
        for number, broker in enumerate(brokers.values()):
            start(broker, number)
        master = master_in(log)
        with ThreadPoolExecutor(len(brokers)) as threads:
            list(threads.map(lambda broker: broker.start_worker(master), brokers.values()))
        truth = {queue: sums for broker in brokers.values() for queue, sums in broker.truth(*TOPICS).items()}
        for name, broker in brokers.items():
            stored = sum(sums.rows for queue, sums in truth.items() if queue[0] == name)
            until(f"the mount of {name} shows all", lambda: broker.witness().messages >= stored)  # noqa: B023
        spark = stack.enter_context(session(net, folder, master))
        yield Proof(net, spark, master, brokers, truth)


def looked_at(proof: Proof, claim: Callable[[Proof], str]) -> Result:
    """Look at a claim. An error of any kind is a result, and the other claims are looked at all the same."""
    began, sentence = time.monotonic(), str(claim.__doc__)
    passed: bool | None = True
    try:
        said = claim(proof)
    except LeftOutError as error:
        said, passed = str(error), None
    except Exception:
        said, passed = traceback.format_exc(limit=4), False
    return Result(sentence, said, passed, time.monotonic() - began)


def line(result: Result) -> str:
    verdict = {True: "ok      ", False: "FAILED  ", None: "left out"}[result.passed]
    return f"{verdict} {result.claim}: {result.said} ({result.seconds:.1f} s)"


def main(arguments: Sequence[str]) -> int:
    """Look at all claims; results go to results.json in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loopback", action="store_true")
    asked = parser.parse_args(arguments)
    results = []
    with prepared(asked.folder, isolated=not asked.loopback) as proof:
        for claim in CLAIMS:
            results.append(looked_at(proof, claim))
            print(line(results[-1]), flush=True)
    (asked.folder / "results.json").write_text(json.dumps([asdict(result) for result in results]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
