"""A real standalone cluster on the loopback: a master, two workers, and one of them killed halfway."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import duckdb
import pyspark

from engine import FileSizes, Message, MessageStore, StoreConfig
from tests.mount.harness import REPOSITORY, mounted

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"
SIZES = FileSizes(commit_log_bytes=1 << 18, consume_queue_entries=10_000, index_slots=5_000, index_entries=50_000)
ORDERS, PAYMENTS = 5_000, 2_000
PATIENCE_S = 300
"""Six Java machines start on whatever there is."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which ends with the block, and its children, too."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environment |= {"PYTHONPATH": str(REPOSITORY), "SPARK_DAEMON_JAVA_OPTS": QUICK_START}
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        kill(started)


def kill(started: subprocess.Popen[bytes]) -> None:
    """The process and its descendants: an executor is a child of its worker."""
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def until(what: str, true: Callable[[], object]) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.05)


def found_in(log: Path, pattern: str) -> str:
    """The text of a log, once it has any."""
    until(f"{log.name} says {pattern}", lambda: re.search(pattern, log.read_text()))
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found[1]


def fill(store: Path) -> None:
    with MessageStore.open(store, StoreConfig(sizes=SIZES), create=True) as opened:
        for topic, count in (("orders", ORDERS), ("payments", PAYMENTS)):
            opened.create_topic(topic, 2)
            for queue in range(2):
                numbers = range(queue, count, 2)
                opened.put_batch([Message(topic, b"%0150d" % n, keys=[f"O-{n}"]) for n in numbers], queue)


def test_a_worker_killed_halfway_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    folder, units = tmp_path / "archive", tmp_path / "archive/_fsstore"
    with mounted(tmp_path, store=tmp_path / "store") as mount, ExitStack() as stack:
        deploy, log = "org.apache.spark.deploy", tmp_path / "master.log"
        options = ("--host", "127.0.0.1", "--webui-port", "0")
        stack.enter_context(process(log, str(SPARK_CLASS), f"{deploy}.master.Master", *options, "--port", "0"))
        master = found_in(log, r"(spark://127\.0\.0\.1:\d+)")
        workers = []
        for number in range(2):
            log = tmp_path / f"worker-{number}.log"
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / f"work-{number}"))
            worker = (str(SPARK_CLASS), f"{deploy}.worker.Worker", *options, *size, master)
            workers.append(stack.enter_context(process(log, *worker)))
        for number in range(2):
            found_in(tmp_path / f"worker-{number}.log", r"(Successfully registered)")
        log = tmp_path / "driver.log"
        job = (sys.executable, "-m", "tests.spark.clusterjob", master, str(mount.root), str(folder))
        driver = stack.enter_context(process(log, *job))
        until("a unit is there", lambda: list(units.glob("unit-*.json")) or driver.poll() is not None)
        done = len(list(units.glob("unit-*.json")))
        kill(workers[1])
        assert list((tmp_path / "work-1").glob("app-*/*")), "it had no part in the job"
        driver.wait(PATIENCE_S)
        assert driver.returncode == 0, log.read_text()[-5_000:]
        result = json.loads(log.read_text().splitlines()[-1])
    assert done < result["units"]
    assert (result["messages"], result["count"], result["keys"]) == (ORDERS + PAYMENTS, PAYMENTS, PAYMENTS)
    query = (
        f"select topic, count(*), count(distinct (queue, queue_offset)) from '{folder}/topic=*/*/*.parquet' group by 1"
    )
    assert set(duckdb.sql(query).fetchall()) == {("orders", ORDERS, ORDERS), ("payments", PAYMENTS, PAYMENTS)}
