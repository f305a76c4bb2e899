"""A server of a mount, read by Spark with Hadoop's own client."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engine import Message, MessageStore
from tests.mountctl.conftest import Site, site_in, succeed
from tests.mountctl.served import FIRST_TOKEN, served, tokens_in


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A place to mount."""
    yield from site_in(tmp_path)


def take_tokens(spark: SparkSession, path: Path) -> None:
    """As HADOOP_TOKEN_FILE_LOCATION does when the JVM starts."""
    jvm = spark._jvm
    assert jvm is not None
    hadoop = jvm.org.apache.hadoop
    found = hadoop.security.Credentials.readTokenStorageFile(jvm.java.io.File(str(path)), hadoop.conf.Configuration())
    hadoop.security.UserGroupInformation.getCurrentUser().addCredentials(found)


def test_spark_reads_messages_and_texts(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    sums = {}
    with MessageStore.open(site.store, create=True) as store:
        for number in range(3_000):
            body = b"message %d" % number
            store.put(Message("%RETRY%billing" if number % 3 else "orders", body, tags="paid"), queue=number % 2)
            sums[number] = zlib.crc32(body)
    site.mounted()
    with served(site.mountpoint, tmp_path) as server:
        root = f"webhdfs://127.0.0.1:{server.port}"
        reader = spark.read.option("parquet.hadoop.vectored.io.enabled", "false")
        messages = reader.parquet(f"{root}/@parquet/")
        assert messages.selectExpr("sum(crc32(body))").first()[0] == sum(sums.values())
        counts = messages.groupBy("topic", "queue", "tags").count().collect()
        assert sorted(map(tuple, counts)) == [
            ("%RETRY%billing", 0, "paid", 1_000),
            ("%RETRY%billing", 1, "paid", 1_000),
            ("orders", 0, "paid", 500),
            ("orders", 1, "paid", 500),
        ]
        assert spark.read.text(f"{root}/orders.log").count() == 1_000
        calls = {line[3] for line in server.logged("/webhdfs/v1/")}
        assert {"GETFILESTATUS", "LISTSTATUS", "OPEN"} <= calls
    tokens, for_hadoop = tokens_in(tmp_path / "tokens", spark=FIRST_TOKEN), tmp_path / "hadoop"
    (tmp_path / "second").mkdir()
    with served(site.mountpoint, tmp_path / "second", "--tokens", tokens) as server:
        listen = f"127.0.0.1:{server.port}"
        succeed("serve", site.mountpoint, "--listen", listen, "--tokens", tokens, "--token-file", for_hadoop)
        take_tokens(spark, for_hadoop)
        assert spark.read.text(f"webhdfs://{listen}/orders.log").count() == 1_000
        assert {line[1] for line in server.logged(" OPEN ")} == {"token:spark"}
