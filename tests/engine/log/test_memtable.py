"""The memtable of the index: keys are found while they wait in memory, and move on in the order of the log."""

from __future__ import annotations

import threading

import pytest

from engine.record.hashes import index_hash
from engine.record.kernel.keys import MOST_CHAINED, KeyMemtable
from tests.engine.records import keyed

RECORDS = [("t", ["a", "b"], 100), ("u", ["a"], 200), ("t", ["b", "b"], 300), ("t", ["a"], 400)]


def memtable(records: list[tuple[str, list[str], int]]) -> KeyMemtable:
    table = KeyMemtable()
    for topic, names, place in records:
        table.add(keyed(topic, names), place, 10 * place)
    return table


def places(table: KeyMemtable, topic: str, key: str) -> list[int]:
    return table.find(index_hash(topic, key))


def test_a_key_leads_to_the_records_of_its_topic_newest_first() -> None:
    table = memtable(RECORDS)
    assert len(table) == 6
    assert places(table, "t", "a") == [400, 100]
    assert places(table, "u", "a") == [200]
    assert places(table, "t", "b") == [300, 300, 100]
    assert places(table, "u", "b") == places(table, "t", "c") == []
    assert table.bounds(6) == (100, 1_000, 400, 4_000)


def test_a_record_that_is_there_is_not_added_again_and_one_without_keys_is_noted() -> None:
    table = memtable([*RECORDS, *RECORDS[1:]])
    assert (len(table), table.last, table.needs_room) == (6, 400, False)
    table.add(keyed("t", []), 500, 0)
    assert (len(table), table.last, table.needs_room) == (6, 400, True)


def test_what_lies_before_an_end_is_kept_with_all_of_a_records_keys() -> None:
    table = memtable(RECORDS)
    table.truncate(300, 50)
    assert (len(table), table.last) == (3, 200)
    assert places(table, "t", "b") == [100]
    table.truncate(100, 50)
    assert (len(table), table.last) == (0, 50)


def test_what_a_file_has_is_dropped_and_the_rest_stays() -> None:
    table = memtable(RECORDS)
    table.drop(4)
    assert (len(table), table.last) == (2, 400)
    assert places(table, "t", "b") == [300]
    for count in (-1, 0, 5):
        table.drop(count)
    assert len(table) == 0


@pytest.mark.parametrize("count", [-1, 0, 7, MOST_CHAINED + 1])
def test_no_more_keys_are_chained_than_there_are(count: int) -> None:
    table = memtable(RECORDS)
    with pytest.raises(IndexError):
        table.chained(count, bytes(100), 5, 1, 0)
    with pytest.raises(IndexError):
        table.bounds(count)


def test_slots_lie_within_the_file() -> None:
    table = memtable(RECORDS)
    with pytest.raises(IndexError):
        table.chained(6, bytes(40 + 4 * 5 - 1), 5, 1, 0)
    with pytest.raises(IndexError):
        table.lead(6, bytearray(40 + 4 * 5 - 1), 5, 1)
    with pytest.raises(BufferError):
        table.lead(6, bytes(100), 5, 1)


def test_columns_of_keys_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="as many"):
        KeyMemtable().extend(bytes(8), bytes(16), bytes(8))


def test_keys_that_come_while_others_move_on_are_lost_nowhere() -> None:
    table, record, stop = KeyMemtable(), keyed("t", ["a"]), threading.Event()

    def add() -> None:
        for place in range(50_000):
            table.add(record, place, 0)
        stop.set()

    thread = threading.Thread(target=add)
    thread.start()
    moved = 0
    while not stop.is_set() or len(table):
        count = min(len(table), 100)
        if count:
            assert table.bounds(count) == (moved, 0, moved + count - 1, 0)
        table.drop(count)
        moved += count
    thread.join()
    assert moved == 50_000
