"""Spark as the runner of an export's tasks, and the progress of its jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fsstore.jobs.export import Task, TaskResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S = 0.5


class SparkTasks:
    """Runs tasks on a cluster. The export's directory and the mount must exist on all of its hosts."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def run(
        self, work: Callable[[Task], TaskResult], tasks: Sequence[Task], report: Callable[[float], None]
    ) -> list[TaskResult]:
        job = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(work)
        with watched(self._spark, report):
            return list(job.collect())


@contextmanager
def watched(spark: SparkSession, report: Callable[[float], None]) -> Iterator[None]:
    """While the block runs, a thread calls `report` with the share of the active stages' tasks that is done."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL_S):
            report(_share_done(spark))

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
