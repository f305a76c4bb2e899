"""A fleet without Spark: which files are missing from a plan, and which places have the same log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsstore.fleet.datasets import DatasetFile, ExpiredFilesError, file_at, lost
from fsstore.fleet.identity import Facts, Record, SameNameError, Witness, roles
from fsstore.fleet.sources import MountedSource
from fsstore.jobs.mount import QueueRange

NAME = "00000000000000000000-00000000000000000007.parquet"


def test_a_file_is_known_by_a_path_and_by_the_uri_that_spark_shows() -> None:
    path = f"topic=%25RETRY%25b/queue=3/{NAME}"
    known = DatasetFile(path, QueueRange("%RETRY%b", 3, 0, 7))
    assert file_at(f"/mnt/a:b/@parquet/{path}") == known
    assert file_at(f"webhdfs://host:9870/@parquet/topic=%2525RETRY%2525b/queue=3/{NAME}") == known
    assert file_at(f"file:///mnt/mq/@parquet/topic=orders/queue=0/{NAME}") == DatasetFile(
        f"topic=orders/queue=0/{NAME}", QueueRange("orders", 0, 0, 7)
    )
    for other in ("", "x.parquet", f"queue=0/{NAME}", f"topic=a/queue=x/{NAME}", "/topic=a/queue=0/part-0.parquet"):
        assert file_at(other) is None


@pytest.mark.parametrize(
    ("asked", "planned", "left_out"),
    [
        ([(0, 5)], [(0, 5)], []),
        ([(0, 5)], [(0, 9)], []),  # a tail that grew
        ([(0, 5), (5, 9)], [(0, 9)], []),
        ([(0, 9)], [(0, 5), (5, 9)], []),  # a tail that became segments
        ([(5, 9)], [(0, 5), (5, 9), (9, 12)], []),
        ([(0, 5), (5, 9)], [(5, 9)], [(0, 5)]),
        ([(0, 5), (5, 9)], [(0, 5)], [(5, 9)]),
        ([(0, 9)], [(0, 5), (6, 9)], [(5, 9)]),
        ([(0, 9), (20, 30)], [(3, 25)], [(0, 9), (25, 30)]),
        ([(0, 5)], [], [(0, 5)]),
        ([], [(0, 5)], []),
    ],
)
def test_what_was_asked_for_and_is_not_planned_is_found(
    asked: list[tuple[int, int]], planned: list[tuple[int, int]], left_out: list[tuple[int, int]]
) -> None:
    def of(queue: int, ranges: list[tuple[int, int]]) -> list[QueueRange]:
        return [QueueRange("orders", queue, *one) for one in ranges]

    whole = [QueueRange("orders", 1, 0, 100)]
    assert lost(of(0, asked) + whole, whole + of(0, planned)[::-1]) == of(0, left_out)


def test_a_file_that_expires_while_it_is_listed_hides_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "@parquet/topic=orders"
    for queue in ("queue=0", "queue=1"):
        (folder / queue).mkdir(parents=True)
        (folder / queue / NAME).touch()
    gone = NAME.replace("0000-", "0001-")
    (folder / "queue=0" / gone).symlink_to("nowhere")
    (folder / "queue=2").symlink_to("nowhere")
    there = [QueueRange("orders", queue, 0, 7) for queue in (0, 1)]
    assert [file.part for file in MountedSource("a", str(tmp_path)).files(["orders"], None, None)] == there


def test_an_error_names_the_broker_and_some_files() -> None:
    error = ExpiredFilesError("a", [QueueRange("orders", number, 0, 7) for number in range(5)])
    shown = "orders/0 [0, 7), orders/1 [0, 7), orders/2 [0, 7) and 2 more"
    assert str(error) == f"a: queue offsets {shown} expired while the job was planned"


@dataclass(eq=False)
class Log:
    """A place with a log: its records by queue offset, the newest last."""

    broker: str
    records: Mapping[int, str]
    place: str = "here"

    def witness(self) -> Witness:
        if not self.records:
            return Witness(0, None)
        newest = max(self.records)
        return Witness(len(self.records), Record("orders", 0, newest, self.of(newest)))

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        return self.of(queue_offset) if queue_offset in self.records else None

    def of(self, number: int) -> Facts:
        return {"physical_offset": str(number * 100), "store_time": self.records[number]}


MASTER = {0: "t0", 1: "t1", 2: "t2", 3: "t3"}


def read_and_spare(*logs: Log) -> tuple[list[str], list[tuple[str, str]]]:
    found = roles([(log, log.witness()) for log in logs])
    return [one.broker for one in found.read], [(spare.broker, read.broker) for spare, read in found.spare]


def test_of_equal_logs_the_fullest_is_read() -> None:
    slave = Log("slave", {number: MASTER[number] for number in (0, 1, 2)})
    other = Log("other", {0: "u0", 1: "u1"})
    assert read_and_spare(slave, other, Log("a", MASTER)) == (["other", "a"], [("slave", "a")])
    younger = Log("younger", {number: MASTER[number] for number in (2, 3)})
    assert read_and_spare(younger, slave) == (["slave"], [("younger", "slave")])
    assert read_and_spare(Log("a", MASTER), Log("b", MASTER)) == (["a"], [("b", "a")])


def test_logs_that_differ_since_a_copy_was_made_are_two() -> None:
    copy = Log("copy", {0: "t0", 1: "t1", 2: "elsewhere"})
    assert read_and_spare(Log("a", MASTER), copy) == (["a", "copy"], [])
    assert read_and_spare(Log("a", MASTER), Log("old", {0: "t0"})) == (["a"], [("old", "a")])


def test_logs_without_a_common_record_are_two() -> None:
    assert read_and_spare(Log("a", {0: "t0"}), Log("b", {5: "t5"})) == (["a", "b"], [])
    assert read_and_spare(Log("a", {}), Log("b", {}), Log("c", MASTER)) == (["a", "b", "c"], [])


def test_a_name_of_two_logs_is_refused() -> None:
    with pytest.raises(SameNameError, match="x and y are both called a, and have different logs"):
        read_and_spare(Log("a", MASTER, "x"), Log("a", {0: "u0"}, "y"))
    assert read_and_spare(Log("a", MASTER), Log("a", MASTER)) == (["a"], [("a", "a")])
