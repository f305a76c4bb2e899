"""A Spark session for the verbs that move many messages at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mountctl.errors import CommandError
from mountctl.places import find, require_answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "2g"


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """A quiet session at `master`; where this process has one already, that one. CommandError without pyspark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise CommandError("PySpark is not installed", "pip install 'fsstore[spark]'") from None
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("mountctl").config("spark.driver.memory", DRIVER_MEMORY)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def mountpoint_of(text: str) -> Path:
    """The mount that a person means: Spark reads through it, on every host that works for the job."""
    place = find(text)
    if place.mount is None:
        raise CommandError(f"{text} is not mounted", f"mount it first: mountctl mount {text} MOUNTPOINT")
    require_answer(place.mount)
    return place.mount.mountpoint
