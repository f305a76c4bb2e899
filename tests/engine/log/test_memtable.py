"""The memtable of the index: keys are found while they wait in memory, and hashed as the files take them."""

from __future__ import annotations

from engine.log.index import KeyMemtable
from engine.record.hashes import index_hash

RECORDS = [("t", ["a", "b"], 100), ("u", ["a"], 200), ("t", ["b", "b"], 300), ("t", ["a"], 400)]


def memtable(records: list[tuple[str, list[str], int]]) -> KeyMemtable:
    keys = KeyMemtable()
    for topic, names, place in records:
        keys.add(topic, names, place, 10 * place)
    return keys


def test_adding_tells_how_many_keys_wait() -> None:
    keys = KeyMemtable()
    assert [keys.add("t", ["a"] * count, count, 0) for count in (2, 1, 3)] == [2, 3, 6]
    assert len(keys) == 6


def test_a_key_leads_to_the_records_of_its_topic_newest_first() -> None:
    keys = memtable(RECORDS)
    assert keys.physical_offsets("t", "a") == [400, 100]
    assert keys.physical_offsets("u", "a") == [200]
    assert keys.physical_offsets("t", "b") == [300, 300, 100]
    assert keys.physical_offsets("u", "b") == keys.physical_offsets("t", "c") == []


def test_keys_that_come_after_a_question_are_found_by_the_next() -> None:
    keys = memtable(RECORDS[:1])
    assert keys.physical_offsets("t", "a") == [100]
    keys.add("t", ["a"], 200, 0)
    assert keys.physical_offsets("t", "a") == [200, 100]


def test_hashes_places_and_times_come_in_the_order_of_the_log() -> None:
    hashes, places, times = memtable(RECORDS).hashed()
    wanted = [(topic, name, place) for topic, names, place in RECORDS for name in names]
    assert hashes.tolist() == [index_hash(topic, name) for topic, name, _ in wanted]
    assert places.tolist() == [place for _, _, place in wanted]
    assert times.tolist() == [10 * place for _, _, place in wanted]


def test_what_lies_before_an_end_is_kept_with_all_of_a_records_keys() -> None:
    kept = memtable(RECORDS).before(300)
    assert (len(kept), kept.last_physical_offset) == (3, 200)
    assert kept.physical_offsets("t", "b") == [100]
    empty = memtable(RECORDS).before(100)
    assert (len(empty), empty.last_physical_offset) == (0, -1)
    assert empty.physical_offsets("t", "a") == []
