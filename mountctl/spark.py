"""Preconditions of verbs that move many messages: pyarrow, deltalake, and a Spark session."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mountctl.errors import CommandError
from mountctl.installation import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "2g"


def require_arrow() -> None:
    """CommandError: pyarrow is missing."""
    if find_spec("pyarrow") is None:
        raise missing("pyarrow", "arrow")


def require_delta() -> None:
    """CommandError: deltalake is missing."""
    if find_spec("deltalake") is None:
        raise missing("deltalake", "delta")


@contextmanager
def spark_session(master: str | None) -> Iterator[SparkSession]:
    """A quiet Spark session at `master`, or on this machine; an existing session is reused. CommandError: pyspark or
    Java is missing."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise missing("PySpark", "spark") from None
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    java = Path(os.environ["JAVA_HOME"], "bin/java") if "JAVA_HOME" in os.environ else shutil.which("java")
    if java is None or not Path(java).exists():
        raise CommandError("Spark needs Java", "install it (apt install default-jre-headless), or leave --spark out")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    url = master or "local[*]"
    if url.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(url).appName("mountctl").config("spark.driver.memory", DRIVER_MEMORY)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    with _silent():
        session = builder.config("spark.log.level", "ERROR").getOrCreate()
    logging.disable()  # py4j logs tracebacks at an interrupt
    try:
        yield session
    finally:
        session.stop()
        logging.disable(logging.NOTSET)


@contextmanager
def _silent() -> Iterator[None]:
    """Discard standard error of processes started in the block: Java prints seven lines of notices. Errors arrive as
    exceptions."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
