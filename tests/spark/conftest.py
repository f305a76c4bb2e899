"""One Spark session for the room: starting one takes longer than most tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.mountctl.conftest import quick_starts as quick_starts
from tests.mountctl.served import CERTIFICATES

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Jobs of a second are over before the better compiler would pay."""


SSL_CLIENT = """<configuration>
  <property><name>ssl.client.truststore.location</name><value>{store}</value></property>
  <property><name>ssl.client.truststore.type</name><value>pkcs12</value></property>
  <property><name>ssl.client.truststore.password</name><value>changeit</value></property>
  <property><name>ssl.client.keystore.location</name><value>{own}</value></property>
  <property><name>ssl.client.keystore.type</name><value>pkcs12</value></property>
  <property><name>ssl.client.keystore.password</name><value>changeit</value></property>
</configuration>
"""
"""As docs/fleet.md has it. The key store is read with hadoop.ssl.require.client.cert alone."""


def trusting(folder: Path) -> Path:
    """A folder for the class path, by which Hadoop's client trusts the CA of the tests and has a certificate, as
    docs/fleet.md says."""
    folder.mkdir()
    store, own = folder / "ca.p12", folder / "client.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "fleet", "-file", str(CERTIFICATES / "ca.pem")]
    subprocess.run(
        [*command, "-keystore", str(store), "-storetype", "pkcs12", "-storepass", "changeit"],
        check=True, capture_output=True,
    )  # fmt: skip
    command = ["openssl", "pkcs12", "-export", "-in", str(CERTIFICATES / "client.pem"), "-out", str(own)]
    subprocess.run([*command, "-passout", "pass:changeit"], check=True, capture_output=True)
    (folder / "ssl-client.xml").write_text(SSL_CLIENT.format(store=store, own=own))
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two threads, on the loopback alone."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # its workers import this project
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("fsstore tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.extraClassPath", str(trusting(folder / "trust")))
        .config("spark.python.authenticate.socketTimeout", "120s")  # workers start slowly on a busy machine
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
