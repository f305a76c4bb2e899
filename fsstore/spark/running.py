"""Spark as what runs an export's tasks, and how far its jobs are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fsstore.jobs.export import Part, Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S = 0.5


class SparkTasks:
    """Runs tasks on a cluster; DIR and the mount have to be there on all of its hosts."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def run(self, work: Callable[[Task], Part], tasks: Sequence[Task], tell: Callable[[float], None]) -> list[Part]:
        job = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(work)
        with watched(self._spark, tell):
            return list(job.collect())


@contextmanager
def watched(spark: SparkSession, tell: Callable[[float], None]) -> Iterator[None]:
    """While the block runs, call `tell` with the share of the active stages' tasks that is done, from a thread."""
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
