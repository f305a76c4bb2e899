"""How far Spark's running jobs are, for a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S = 0.5


@contextmanager
def watched(spark: SparkSession, tell: Callable[[float], None]) -> Iterator[None]:
    """While the block runs, `tell` hears which share of the active stages' tasks is done, from a thread of its own."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL_S):
            tell(_share_done(spark))

    watcher = threading.Thread(target=watch, name="watch-jobs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _share_done(spark: SparkSession) -> float:
    tracker = spark.sparkContext.statusTracker()
    stages = [info for info in map(tracker.getStageInfo, tracker.getActiveStageIds()) if info is not None]
    tasks = sum(stage.numTasks for stage in stages)
    return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else 0.0
