"""Searching messages: `MessageStore.holding` finds the same messages as reading, and no others."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine import Message, MessageStore, OpenMode
from engine.files.mapped_file import MappedFile
from tests.engine.storetools import SMALL, opened

LIMITS = {"usual": {}, "small": {"HELD_ROWS": 7, "HELD_BYTES": 600, "APART_ROWS": 3}}


@pytest.fixture(params=LIMITS)
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many messages are searched together."""
    for name, value in LIMITS[request.param].items():
        monkeypatch.setattr(f"engine.queue.{name}", value)


def held(
    store: MessageStore, topic: str, *texts: bytes, queue: int = 0, any_case: bool = False
) -> list[tuple[int, int, bytes]]:
    """Queue offset, number of the text, and body of all that is found in a queue."""
    found = []
    for one in store.holding(topic, queue, 0, 1 << 40, texts, any_case):
        rows = zip(one.offsets.tolist(), one.numbers.tolist(), range(len(one.bodies)), strict=True)
        found += [(offset, number, one.bodies[row]) for offset, number, row in rows]
    return found


def read(
    store: MessageStore, topic: str, *texts: bytes, queue: int = 0, any_case: bool = False
) -> list[tuple[int, int, bytes]]:
    """The same by reading each message."""

    def number_in(body: bytes) -> int | None:
        searched = body.lower() if any_case else body
        return next((number for number, text in enumerate(texts) if text in searched), None if texts else 0)

    all_numbers = (
        (one.queue_offset, number_in(bytes(one.body)), bytes(one.body)) for one in store.read(topic, queue, 0)
    )
    return [(offset, number, body) for offset, number, body in all_numbers if number is not None]


TEXTS: Sequence[Sequence[bytes]] = ([b"needle"], [b"apple", b"needle"], [b"e"], [b"ne\nedle"], [])


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_found_is_what_reading_finds(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with opened(tmp_path / "store") as store:
        for topic in ("needle", "orders"):
            store.create_topic(topic, 2)
        for number in range(600):
            words = [chance.choice([b"", b"needle", b"Needle", b"apple", b"nee", b"dle", b"\n"]) for _ in range(3)]
            body = (b"." * chance.choice([0, 0, 1, 17, 63, 64, 65, 200])).join(words)
            message = Message(
                chance.choice(["needle", "orders"]), body, [f"needle-{number}"], "needle", {"a": "needle"}
            )
            if chance.random() < 0.02:
                message = msgspec.structs.replace(message, body=zlib.compress(body), sys_flag=0x1 | 0x300)
            store.put(message, chance.randrange(2))
        assert store.stats().commit_log_files > 5
        for topic in ("needle", "orders"):
            for queue in range(2):
                for texts in TEXTS:
                    for any_case in (False, True):
                        expected = read(store, topic, *texts, queue=queue, any_case=any_case)
                        assert held(store, topic, *texts, queue=queue, any_case=any_case) == expected


def test_only_bodies_are_searched(tmp_path: Path) -> None:
    after_body = "e" * ord("l")  # its size stands between body and topic
    with opened(tmp_path / "store") as store:
        store.put(Message(after_body, b"need", ["needle"], "needle", {"needle": "needle"}), 0)
        store.put(Message(after_body, b"lead", ["needle"]), 0)
        assert b"needle" in b"".join(file.read_bytes() for file in (tmp_path / "store" / "commitlog").iterdir())
        assert held(store, after_body, b"needle") == []
        assert held(store, after_body, b"\x04lead") == []  # its size stands before it
        assert held(store, after_body, b"need", b"lead") == [(0, 0, b"need"), (1, 1, b"lead")]


def test_a_body_is_found_as_a_whole_and_at_both_of_its_ends(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(100):  # some are the last of their file
            store.put(Message("T", b"first%s last" % (b"." * number)), 0)
        assert store.stats().commit_log_files > 1
        for text in (b"first", b" last"):
            assert [offset for offset, *_ in held(store, "T", text)] == list(range(100))
        assert held(store, "T", b"first%s last" % (b"." * 60)) == [(60, 0, b"first%s last" % (b"." * 60))]


@pytest.mark.usefixtures("limits")
def test_compressed_bodies_are_searched_as_they_are_read(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(60):
            body = b"number %d of many, many, many" % number
            packed = number in (0, 20, 21, 59)
            message = Message("T", zlib.compress(body) if packed else body, sys_flag=0x301 if packed else 0)
            store.put(message, 0)
        assert [offset for offset, *_ in held(store, "T", b" of many, many")] == list(range(60))
        assert held(store, "T", b"number 21 ") == [(21, 0, b"number 21 of many, many, many")]
        assert [offset for offset, *_ in held(store, "T", b"number 5", b"r 2")] == [
            2,
            5,
            *range(20, 30),
            *range(50, 60),
        ]


@pytest.mark.usefixtures("limits")
def test_damage_costs_the_message_that_it_hit(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        places = [store.put(Message("T", b"needle %02d" % number), 0).physical_offset for number in range(40)]
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    for number, text in ((5, b"needle 05"), (20, b"needle 20")):
        at = raw.index(text)
        raw[at + 8] ^= 1  # the body's last byte
        assert places[number] < at
    raw[places[30] + 4] ^= 1  # its magic
    log.write_bytes(raw)
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=OpenMode.FOLLOW)) as store:
        found = [offset for offset, *_ in held(store, "T", b"needle")]
        assert found == [number for number in range(40) if number not in (5, 20, 30)]
        assert found == [message.queue_offset for message in store.read("T", 0, 0)]
        assert store.stats().damaged_places == 3


def test_nothing_is_found_of_a_topic_that_was_deleted(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"an old needle"), 0)
        store.delete_topic("T")
        store.put(Message("T", b"a new needle"), 0)
        assert held(store, "T", b"needle") == read(store, "T", b"needle") == [(0, 0, b"a new needle")]


def test_the_disk_reads_the_next_records_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.queue.HELD_ROWS", 16)
    monkeypatch.setattr("engine.files.file_queue.TAIL_BYTES", 1000)
    asked: list[tuple[int, int]] = []

    def read_large(self: MappedFile, position: int, length: int) -> None:
        asked.append((self.start + position, self.start + position + length))

    monkeypatch.setattr(MappedFile, "read_large", read_large)
    with opened(tmp_path / "store") as store:
        places = [store.put(Message("T", b"needle %d" % number), 0).physical_offset for number in range(200)]
        finding = store.holding("T", 0, 0, 1 << 40, [b"needle"])
        next(finding)
        assert asked[0][0] == places[0]
        assert places[31] < asked[-1][1] <= places[32]
        list(finding)
        written = store.physical_end - 1000  # what comes then is not put into large pages
        assert max(until for _, until in asked) == written
        assert all(any(begin <= at < until for begin, until in asked) for at in places if at < written)


def test_an_entry_that_leads_to_another_message_shows_what_reading_shows(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        for number in range(20):
            store.put(Message("T", b"needle %02d" % number), 0)
            store.put(Message("U", b"needle of U"), 0)
    queue = tmp_path / "store" / "consumequeue" / "T" / "0" / f"{0:020d}"
    raw = bytearray(queue.read_bytes())
    raw[5 * 20 : 6 * 20] = raw[6 * 20 : 7 * 20]
    other = (tmp_path / "store" / "consumequeue" / "U" / "0" / f"{0:020d}").read_bytes()
    raw[9 * 20 : 10 * 20] = other[9 * 20 : 10 * 20]
    queue.write_bytes(raw)
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=OpenMode.FOLLOW)) as store:
        assert held(store, "T", b"needle") == read(store, "T", b"needle")
        assert held(store, "T", b"of U") == []
