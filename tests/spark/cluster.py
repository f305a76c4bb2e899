"""A real standalone cluster of Spark, of processes that end with the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from tests.mount.harness import REPOSITORY

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"
PATIENCE_S = 300
"""Six Java machines start on whatever there is."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def process(log: Path, *command: str, address: str = "127.0.0.1") -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which ends with the block, and its children, too."""
    environment = {**os.environ, "SPARK_LOCAL_IP": address, "SPARK_DAEMON_MEMORY": "256m"}
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


def master_words(address: str) -> tuple[str, ...]:
    """The command line of a master; its log says where it is, see `master_in`."""
    return (str(SPARK_CLASS), f"{_DEPLOY}.master.Master", "--host", address, "--webui-port", "0", "--port", "0")


def master_in(log: Path) -> str:
    """The URL of the master that has this log."""
    return found_in(log, r"(spark://[\d.]+:\d+)")


def worker_words(address: str, work: Path, master: str, memory: str = "600m") -> tuple[str, ...]:
    """The command line of a worker with one core; see `registered_in`."""
    size = ("--cores", "1", "--memory", memory, "--work-dir", str(work))
    return (str(SPARK_CLASS), f"{_DEPLOY}.worker.Worker", "--host", address, "--webui-port", "0", *size, master)


def registered_in(log: Path) -> None:
    """Wait until the worker that has this log belongs to the cluster."""
    found_in(log, r"(Successfully registered)")


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
