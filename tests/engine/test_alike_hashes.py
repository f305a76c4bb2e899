"""Different keys with equal hashes: a publisher can make thousands of them, and a look-up must not pay for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, Retention, StoreConfig
from engine.derived.index import Index
from engine.read import reader
from engine.read.reader import Reader
from engine.record.kernel.decode import SINGLE_CANDIDATES
from tests.engine.storetools import SMALL_SIZES, opened

SAME_HASH = ["".join(parts) for parts in itertools.product(["Aa", "BB"], repeat=4)]
"""Different keys, which Java hashes alike."""


@pytest.mark.parametrize("unique", [False, True], ids=["KEYS", "UNIQ_KEY"])
def test_records_whose_keys_only_hash_alike_are_not_decoded_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool
) -> None:
    sizes = replace(SMALL_SIZES, commit_log_bytes=256 << 10, index_slots=17, index_entries=4096)
    absent, rare, *others = SAME_HASH

    def carrying(keys: list[str]) -> Message:
        return Message("T", b"x", properties={"UNIQ_KEY": keys[0]}) if unique else Message("T", b"x", ["more", *keys])

    with opened(tmp_path / "store", sizes=sizes) as store:
        store.put_batch([carrying([rare]) for _ in range(3)], 0)
        for turn in range(5):
            store.put_batch([carrying([key] * (turn + 1)) for key in others * 70], 0)
        decoded: list[int] = []

        class Counted:
            """Counts what is taken of `places`."""

            def __init__(self, slots: Iterator[int]) -> None:
                self.slots = slots

            def __iter__(self) -> Iterator[int]:
                return self

            def __next__(self) -> int:
                decoded.append(next(self.slots))
                return decoded[-1]

        find, likely = Index.candidates, Reader._likely
        monkeypatch.setattr(Index, "candidates", lambda *question: Counted(find(*question)))
        monkeypatch.setattr(Reader, "_likely", lambda self, rest, key: Counted(likely(self, rest.slots, key)))
        assert store.query("T", absent, 100) == []
        assert len(decoded) == SINGLE_CANDIDATES
        assert [message.queue_offset for message in store.query("T", rare, 100)] == [2, 1, 0]
        assert [message.queue_offset for message in store.query("T", rare, 2)] == [2, 1]
        assert len(decoded) == 3 * SINGLE_CANDIDATES + 3 + 2
        assert len(store.query("T", others[0], 1_000)) == 5 * 70


@pytest.mark.parametrize("unique", [False, True], ids=["KEYS", "UNIQ_KEY"])
def test_a_chain_is_walked_once_for_all_names_and_then_its_new_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool
) -> None:
    absent, rare, *others = SAME_HASH
    walked: list[int] = []
    walk = Reader._words

    def counted(self: Reader, topic: str, slots: list[int]) -> Iterator[tuple[int, str]]:
        walked.extend(slots)
        yield from walk(self, topic, slots)

    def put(keys: list[str]) -> int:
        message = Message("T", b"x", properties={"UNIQ_KEY": keys[0]}) if unique else Message("T", b"x", ["z", *keys])
        return store.put(message, 0).queue_offset

    def newest(key: str) -> int | None:
        found = store.newest_with_key("T", key)
        return None if found is None else found.queue_offset

    monkeypatch.setattr(Reader, "_words", counted)
    with opened(tmp_path / "store") as store:
        rare_offset = put([rare])
        for _ in range(20):
            last = {key: put([key]) for key in others}
        count = 1 + 20 * len(others)
        assert newest(absent) is None
        assert len(walked) == count
        assert newest(rare) == rare_offset
        for key in others:
            assert newest(key) == last[key]
        assert len(walked) == count
        store.put(Message("T", b"y"), 0)  # the log has grown: what is known of keys alone is void
        assert (newest(absent), newest(rare)) == (None, rare_offset)
        rare_offset = put([rare])
        assert (newest(absent), newest(rare)) == (None, rare_offset)
        assert len(walked) == count
        new = [put([others[0]]) for _ in range(SINGLE_CANDIDATES + 1)]
        assert (newest(absent), newest(rare), newest(others[0])) == (None, rare_offset, new[-1])
        assert len(walked) == count + 1 + len(new)
        store.delete_topic("T")
        store.create_topic("T", 1)
        assert (newest(absent), newest(rare)) == (None, None)


def test_what_is_known_of_a_chain_goes_with_its_records(tmp_path: Path) -> None:
    sizes = replace(SMALL_SIZES, commit_log_bytes=1 << 14)
    retention = Retention(max_bytes=1 << 14, clean_interval_ms=3_600_000, delete_pause_ms=0)
    absent, rare, *others = SAME_HASH
    config = StoreConfig(sizes=sizes, retention=retention)
    with MessageStore.open(tmp_path / "store", config, create=True) as store:
        store.put(Message("T", b"x", [rare]), 0)
        for _ in range(20):
            for key in others:
                store.put(Message("T", b"x", [key]), 0)
        assert store.newest_with_key("T", absent) is None
        assert store.newest_with_key("T", rare) is not None
        assert store.clean() > 0
        assert store.newest_with_key("T", rare) is None
        assert store.newest_with_key("T", others[0]) is not None


def test_of_many_colliding_keys_not_all_are_remembered_and_all_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent, *others = SAME_HASH
    monkeypatch.setattr(reader, "REMEMBERED_COLLISIONS", len(SAME_HASH))
    with opened(tmp_path / "store") as store:
        for topic in ("T", "U"):
            for _ in range(10):
                last = {key: store.put(Message(topic, b"x", [key]), 0).queue_offset for key in others}
        for number, topic in enumerate(["T", "U", "T", "U"]):
            store.put(Message("other", b"%d" % number), 0)
            assert store.newest_with_key(topic, absent) is None
            assert len(store._reader._chains) == 1
            found = {key: store.newest_with_key(topic, key) for key in others}
            assert {key: message.queue_offset for key, message in found.items() if message is not None} == last


def test_a_record_that_names_a_key_elsewhere_and_has_one_of_its_hash_does_not_carry_it(tmp_path: Path) -> None:
    asked, alike, *_ = SAME_HASH
    with opened(tmp_path / "store", sizes=SMALL_SIZES) as store:
        store.put(Message("T", b"x", [alike], properties={"other": asked}), 0)
        store.put(Message("T", b"x", [alike, f"{asked}-17"]), 0)
        carrying = store.put(Message("T", b"x", [asked]), 0)
        slots = [row for rows in store.key_slots("T", asked) for row in rows.tolist()]
        assert slots == [[carrying.queue, carrying.queue_offset]]
        assert [message.queue_offset for message in store.query("T", asked)] == [carrying.queue_offset]


def test_a_query_reads_each_record_once_in_a_store_that_was_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as store:
        store.put_batch([Message("T", b"body-%d" % number, ["K"]) for number in range(5)], 0)

    def read_again(reader: Reader, physical_offset: int, in_queue: bool = True) -> None:
        raise AssertionError("a record was read a second time")

    monkeypatch.setattr(Reader, "_shown", read_again)
    with opened(tmp_path / "store") as store:
        assert [bytes(message.body) for message in store.query("T", "K")] == [b"body-%d" % n for n in (4, 3, 2, 1, 0)]
