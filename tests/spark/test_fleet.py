"""docs/fleet.md, 5: one Spark job over the stores of several brokers, two of them served, one mounted here."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from engine import Message, MessageStore, OpenMode, StoreConfig, back_up
from fsstore.fleet.datasets import DatasetFile
from fsstore.fleet.places import PlaceError
from fsstore.fleet.sources import ServedSource
from fsstore.jobs.mount import QueueRange
from fsstore.parquet.names import segment_name
from fsstore.spark import MESSAGE_SCHEMA, BrokerError, ExpiredFilesError, SameNameError, fleet, frame
from fsstore.tree.refusals import time_text
from tests.mountctl.conftest import Site, clear, eventually, site_in, succeed
from tests.mountctl.served import CERTIFICATES, FIRST_TOKEN, Server, served, tokens_in
from tests.spark.test_serve import take_tokens

MESSAGES = 900
NAMES = ("a", "b", "c")


class Hosts(NamedTuple):
    """Three stores: `a` and `b` are served, `b` with tokens, `c` is mounted here."""

    sites: dict[str, Site]
    servers: dict[str, Server]

    @property
    def places(self) -> dict[str, str]:
        return {"a": self.servers["a"].origin, "b": self.servers["b"].origin, "c": str(self.sites["c"].mountpoint)}

    def requests(self, broker: str, since: str) -> list[list[str]]:
        """The lines of a server's access log of requests since a time. That of an OPEN comes when its client has
        closed; that of the redirection before it is there already."""
        lines = self.servers[broker].access_log.read_text().splitlines()
        return [words for line in lines if (words := line.split(" "))[0] >= since]


@pytest.fixture(scope="module")
def hosts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ExitStack() as stack:
        sites = {broker: stack.enter_context(mounted(tmp_path_factory.mktemp(broker), broker)) for broker in NAMES}
        tokens = tokens_in(sites["b"].log.with_name("tokens"), spark=FIRST_TOKEN)
        options = "--tokens", tokens, "--host", "host-b"
        servers = {
            "a": stack.enter_context(served(sites["a"].mountpoint, sites["a"].log.parent, "--host", "host-a")),
            "b": stack.enter_context(served(sites["b"].mountpoint, sites["b"].log.parent, *options)),
        }
        listen, for_hadoop = f"127.0.0.1:{servers['b'].port}", tokens.with_name("hadoop")
        succeed("serve", sites["b"].mountpoint, "--listen", listen, "--tokens", tokens, "--token-file", for_hadoop)
        take_tokens(spark, for_hadoop)
        yield Hosts(sites, servers)


@contextmanager
def mounted(folder: Path, broker: str | None = None) -> Iterator[Site]:
    """A mount in a folder; of a store with messages of `broker`, or of what is there."""
    with contextmanager(site_in)(folder) as site:
        if broker is not None:
            with MessageStore.open(site.store, create=True) as store:
                for number in range(MESSAGES):
                    topic = "%RETRY%billing" if number % 3 == 0 else "orders"
                    body = f"{broker} {number}".encode()
                    store.put(Message(topic, body, keys=[f"{broker}-{number}"], tags="paid"), queue=number % 2)
        try:
            yield site.mounted()
        finally:
            clear([site.mountpoint])  # also where a test fails


Row = tuple[str, str, int, int, int, str]
"""Broker, topic, queue, queue offset, CRC of the body, keys."""


def stored(site: Site, broker: str) -> list[Row]:
    """All messages of a store, read by the engine."""
    with MessageStore.open(site.store, StoreConfig(mode=OpenMode.FOLLOW)) as store:
        return sorted(
            (broker, topic, queue, one.queue_offset, zlib.crc32(one.body), " ".join(one.keys))
            for topic, queues in store.queues_by_topic().items()
            for queue in queues
            for one in store.read(topic, queue, 0)
        )


def rows(frame: DataFrame) -> list[Row]:
    shown = ("broker", "topic", "queue", "queue_offset", "crc32(body) as crc", "array_join(keys, ' ') as keys")
    return sorted(tuple(row) for row in frame.selectExpr(*shown).collect())


def test_one_frame_over_all_brokers(
    spark: SparkSession, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.1 `fleet(spark, places).messages()` returns the messages of all places, each message once, with the broker's
    name in the column `broker`. A place is a server, a mount of this host, or a group of the fleet file that has
    only these. A place that does not answer, or that is reached by ssh, is an error that names it."""
    every = fleet(spark, hosts.places).messages()
    assert every.schema.names == [*MESSAGE_SCHEMA.names, "broker"]
    truth = [row for broker, site in hosts.sites.items() for row in stored(site, broker)]
    assert len(truth) == 3 * MESSAGES
    assert rows(every) == sorted(truth)
    billing = fleet(spark, hosts.places).messages(["%RETRY%billing"])
    assert rows(billing) == sorted(row for row in truth if row[1] == "%RETRY%billing")
    file = tmp_path / ".config/fsstore/fleet.toml"
    file.parent.mkdir(parents=True)
    lines = [f"{broker} = '{place}'" for broker, place in hosts.places.items()]
    file.write_text("\n".join(["[prod]", *lines]))
    monkeypatch.setenv("HOME", str(tmp_path))
    orders = fleet(spark, "@prod").messages(["orders"])
    assert rows(orders) == sorted(row for row in truth if row[1] == "orders")
    with pytest.raises(PlaceError, match="'d': Spark reads no place by ssh"):
        fleet(spark, {"d": "host-d:/mnt/mq"})
    with pytest.raises(BrokerError, match=r"broker d at http://127\.0\.0\.1:1: "):
        fleet(spark, {**hosts.places, "d": "http://127.0.0.1:1"}).messages()


def test_a_condition_on_the_broker_asks_no_other(spark: SparkSession, hosts: Hosts) -> None:
    """5.2 A condition on `broker`, `topic` or `queue` opens only matching files, and asks only the servers of
    matching brokers."""
    wanted = fleet(spark, hosts.places).messages().where("broker = 'b' and topic = 'orders' and queue = 1")
    asked_since = time_text(time.time_ns())
    assert rows(wanted) == [row for row in stored(hosts.sites["b"], "b") if row[1:3] == ("orders", 1)]
    asked = hosts.requests("b", asked_since)
    assert {words[3] for words in asked} == {"GETFILESTATUS", "OPEN"}
    assert {tuple(words[4].split("/")[-3:-1]) for words in asked} == {("topic=orders", "queue=1")}
    assert hosts.requests("a", asked_since) == []


def test_files_that_expire_meanwhile_are_never_missing_in_silence(
    spark: SparkSession, hosts: Hosts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.3 If messages expire, or are deleted with their topic, between the call and Spark's listing, an
    ExpiredFilesError names broker, queue and offsets. With `onExpired="skip"` they are left out, and a warning names
    them. Files that disappear later fail the job, or are left out in the same way. No option of the session changes
    that."""
    part = QueueRange("orders", 0, 100_000, 100_007)
    expired = DatasetFile(f"topic=orders/queue=0/{segment_name(part.begin, part.end).decode()}", part)
    listed, there = ServedSource.files, Counter[str]()

    def files(source: ServedSource, *asked: Any) -> list[DatasetFile]:
        """One that is there in the first listing."""
        there[source.broker] += 1
        return [*listed(source, *asked), *([expired] if there[source.broker] == 1 else [])]

    monkeypatch.setattr(ServedSource, "files", files)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        for since in (None, datetime(2001, 1, 1, tzinfo=UTC)):
            there.clear()
            with pytest.raises(ExpiredFilesError, match=r"a: queue offsets orders/0 \[100000, 100007\) expired"):
                fleet(spark, hosts.places).messages(["orders"], since=since)
            there.clear()
            left = fleet(spark, hosts.places).messages(["orders"], onExpired="skip", since=since)
            assert left.groupBy("broker").count().count() == 3
        assert caplog.text.count("are left out") == 4, "of two servers each"
        for broker in ("a", "c"):
            succeed("topics", "create", hosts.sites[broker].mountpoint, "short")
            put(hosts.sites[broker], "short", "short")
        frames = [fleet(spark, hosts.places).messages(["short"], onExpired=one) for one in ("error", "skip")]
        succeed("topics", "delete", "--yes", hosts.sites["a"].mountpoint, "short")
        eventually(lambda: not (hosts.sites["a"].mountpoint / "@parquet/topic=short").exists(), "the topic is gone")
        gone = rf"webhdfs://127\.0\.0\.1:{hosts.servers['a'].port}/@parquet/topic=short"
        with pytest.raises(Py4JJavaError, match=gone):
            frames[0].collect()
        assert [row.broker for row in frames[1].collect()] == ["c"]
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    with pytest.raises(ValueError, match="onExpired is 'error' or 'skip'"):
        fleet(spark, hosts.places).messages(onExpired="ignore")


def test_places_with_one_log_are_read_once(
    spark: SparkSession, hosts: Hosts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """5.4 Two places are one broker if their logs are the same. To compare logs, the newest message that both places
    have must have the same record, including its place in the log, its store host and its time. The fullest place is
    read, under its own name, and the log names the other places. A copy that was written to since then is another
    broker. Two brokers with one name are refused."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "apart").mkdir()
    for folder in ("copy", "apart"):
        back_up(hosts.sites["a"].store, tmp_path / folder / "store")
    with MessageStore.open(tmp_path / "apart/store") as store:
        store.put(Message("orders", b"apart", keys=["apart"]), queue=0)
    truth = stored(hosts.sites["a"], "a")
    with ExitStack() as stack:
        copy, apart = (stack.enter_context(mounted(tmp_path / folder)) for folder in ("copy", "apart"))
        there, place = stack.enter_context(served(copy.mountpoint, tmp_path)).origin, hosts.places["a"]
        both = {"copy": there, "local": str(copy.mountpoint), "a": place}
        assert rows(fleet(spark, both).messages()) == [("copy", *row[1:]) for row in truth]
        assert f"broker a at {place} has the log of broker copy at {there}, which is read" in caplog.text
        put(hosts.sites["a"], "more")
        assert rows(fleet(spark, both).messages()) == stored(hosts.sites["a"], "a"), "the fullest"
        put(apart, "apart")
        parted = {"a": place, "apart": str(apart.mountpoint)}
        found = rows(fleet(spark, parted).messages())
        assert found == sorted(stored(hosts.sites["a"], "a") + stored(apart, "apart"))
        with pytest.raises(SameNameError, match="are both called a, and have different logs"):
            fleet(spark, {"a": place}, {"a": str(apart.mountpoint)}).messages()


def put(site: Site, body: str, topic: str = "orders") -> None:
    (site.mountpoint / topic / "0/append").write_text(f"{body}\n")


def test_each_broker_is_read_as_of_its_own_moment(spark: SparkSession, hosts: Hosts) -> None:
    """5.5 A frame has the messages that each broker had when `messages` listed its files, no matter how often the
    frame is read. Messages published later are in the next frame. Brokers are not read as of one common moment."""
    before = fleet(spark, hosts.places).messages(["orders"])
    truth = rows(before)
    for broker in ("a", "c"):
        put(hosts.sites[broker], "later")
    assert rows(before) == truth
    more = set(rows(fleet(spark, hosts.places).messages(["orders"]))) - set(truth)
    assert {(row[0], row[4]) for row in more} == {("a", zlib.crc32(b"later")), ("c", zlib.crc32(b"later"))}


def test_each_task_reads_one_broker_and_prefers_its_host(
    spark: SparkSession, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.6 Each task reads one broker, and prefers the host that the broker's server names (`--host`). If a broker
    has more than 4,000 files, or `locations` is False, Spark gets no hosts."""
    every, nowhere = (fleet(spark, hosts.places).messages(locations=asked) for asked in (None, False))
    assert preferred(every) == {("a", "host-a"), ("b", "host-b"), ("c", "")}
    assert preferred(nowhere) == {("a", ""), ("b", ""), ("c", "")}
    monkeypatch.setattr(frame, "MOST_LOCATED", 3)
    assert preferred(fleet(spark, hosts.places).messages()) == {("a", ""), ("b", ""), ("c", "")}
    assert preferred(fleet(spark, hosts.places).messages(locations=True)) == preferred(every)
    assert spark.conf.get("spark.sql.sources.ignoreDataLocality") == "false"


def preferred(read: DataFrame) -> set[tuple[str, str]]:
    """Broker and preferred hosts of each task, the scans in the order of the places."""
    plan: Any = read._jdf.queryExecution().executedPlan()
    leaves, found = plan.collectLeaves(), set()
    for number, leaf in enumerate(map(leaves.apply, range(leaves.size()))):
        tasks = leaf.inputRDD()
        found |= {(NAMES[number], tasks.preferredLocations(task).mkString(" ")) for task in tasks.partitions()}
    return found


def test_a_ca_of_the_users_own(
    spark: SparkSession, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.11 If a CA of the user's own signed a server's certificate, `SSL_CERT_FILE` names this CA for the driver's
    requests. Hadoop's client takes it from a trust store, named by an `ssl-client.xml` on the class path."""
    site = hosts.sites["c"]
    with served(site.mountpoint, tmp_path, "--certificate", CERTIFICATES / "server.pem") as server:
        with pytest.raises(BrokerError, match="CERTIFICATE_VERIFY_FAILED"):
            fleet(spark, {"c": server.origin}).messages()
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
        for since in (None, datetime(2001, 1, 1, tzinfo=UTC)):
            assert rows(fleet(spark, {"c": server.origin}).messages(since=since)) == stored(site, "c")


def test_a_certificate_of_hadoops_client(
    spark: SparkSession, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.13 With `hadoop.ssl.require.client.cert`, Hadoop's client shows such a server the certificate in the key
    store of its `ssl-client.xml`."""
    site = hosts.sites["c"]
    options = "--certificate", CERTIFICATES / "server.pem", "--client-ca", CERTIFICATES / "ca.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
    monkeypatch.setenv("FSSTORE_CLIENT_CERTIFICATE", str(CERTIFICATES / "client.pem"))
    spark.conf.set("hadoop.ssl.require.client.cert", "true")
    try:
        with served(site.mountpoint, tmp_path, *options) as server:
            assert rows(fleet(spark, {"c": server.origin}).messages()) == stored(site, "c")
            assert {line[1] for line in server.logged(" OPEN ")} == {"certificate:spark-job"}
    finally:
        spark.conf.unset("hadoop.ssl.require.client.cert")
