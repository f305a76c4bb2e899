"""Bodies with whole records, and zeros in texts: a publisher's choice of bytes decides nothing about its neighbours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from engine import DamagedRecordError, Message, MessageStore, check_store
from engine.record.record import RecordEncoder
from engine.repair import repair_store
from tests.durability.cases import deadline
from tests.engine.pairs import pairs
from tests.engine.records import encoder
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, killed, letting_forgeries_in

BIG = replace(SMALL, sizes=replace(SMALL_SIZES, commit_log_bytes=1 << 20))
FAR_FUTURE_MS = 1 << 42


def planted(place: int, topic: str, queue_offset: int, store_time_ms: int, body: bytes = b"FORGED") -> bytes:
    """A whole record for just that place of the log."""
    record = encoder.encode(Message(topic, body, ["forged"]), 0, store_time_ms)
    record.place(queue_offset, place, store_time_ms)
    return bytes(record.buffer)


def publish_planted(store: MessageStore, time_ms: int, records: int = 3) -> tuple[int, int]:
    """A message that a broker lets in: its body holds `records` records, one behind the other, of its own queue and of
    others; its place and size."""
    body = bytearray(b"text")
    start = store.physical_end + 88
    for number in range(records):
        topic = ("victim", "new", "attacker")[number % 3]
        body += planted(start + len(body), topic, 4 + number // 3, time_ms + number)
    body += b"more text"
    with letting_forgeries_in():
        result = store.put(Message("attacker", bytes(body)), 0)
    return result.physical_offset, result.store_size


def flip(store: Path, physical_offset: int, mask: int = 0x40) -> None:
    """Damage a byte of the log."""
    number, position = divmod(physical_offset, BIG.sizes.commit_log_bytes if BIG.sizes else 1)
    with (store / "commitlog" / f"{number * (1 << 20):020d}").open("r+b") as log:
        log.seek(position)
        byte = log.read(1)[0]
        log.seek(position)
        log.write(bytes([byte ^ mask]))


def wipe(store: Path, physical_offset: int, size: int) -> None:
    with (store / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(physical_offset)
        log.write(bytes(size))


FIRST, LAST = [b"v%d" % number for number in range(4)], [b"w%d" % number for number in range(50)]


TIMES = {"long ago": 0, "past": 1_700_000_000_000, "future": FAR_FUTURE_MS}


@pytest.fixture
def left(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, int, int]:
    """The store of a killed process: honest messages around one with planted records; its physical offset and size."""
    seconds = count(1_700_000_100)
    with killed(tmp_path / "store", tmp_path / "left", replace(BIG, clock=lambda: next(seconds) * 1000)) as store:
        for body in FIRST:
            store.put(Message("victim", body), 0)
        store.flush()
        start, size = publish_planted(store, TIMES[request.param])
        for body in LAST:
            store.put(Message("victim", body), 0)
    return tmp_path / "left", start, size


def flip_size(bit: int) -> Callable[[Path, int, int], None]:
    return lambda left, start, size: flip(left, start + 3 - bit // 8, 1 << bit % 8)


HITS: dict[str, Callable[[Path, int, int], None]] = {
    **{f"size, bit {bit}": flip_size(bit) for bit in range(12)},
    "magic": lambda left, start, size: flip(left, start + 4),
    "body CRC": lambda left, start, size: flip(left, start + 9),
    "physical offset": lambda left, start, size: flip(left, start + 35),
    "body size": lambda left, start, size: flip(left, start + 87),
    "body": lambda left, start, size: flip(left, start + 90),
    "a planted head": lambda left, start, size: flip(left, start + 93),
    "topic size": lambda left, start, size: flip(left, start + size - 11, 4),
    "properties size": lambda left, start, size: flip(left, start + size - 1, 4),
    "head": lambda left, start, size: wipe(left, start, 8),
    "header": lambda left, start, size: wipe(left, start, 88),
    "header and more": lambda left, start, size: wipe(left, start, 120),
}


@pytest.mark.parametrize(
    ("left", "hit", "way", "marks"),
    pairs(list(TIMES), list(HITS), ["open", "repair"], ["with marks", "without marks"]),
    indirect=["left"],
)
def test_a_damaged_message_costs_itself_alone_whatever_its_body_holds(
    left: tuple[Path, int, int], hit: str, way: str, marks: str
) -> None:
    path, start, size = left
    HITS[hit](path, start, size)
    if marks == "without marks":
        shutil.rmtree(path / "fsstore")
    if way == "repair":
        list(repair_store(path))
    with MessageStore.open(path, BIG) as store:
        assert bodies(store, "victim", 0) == FIRST + LAST
        assert not store.has_queue("new", 0)
        assert list(store.query("victim", "forged")) == []
        assert store.bounds("attacker", 0).max_offset == 1
        with pytest.raises(DamagedRecordError):
            store.get("attacker", 0, 0)
        assert store.put(Message("attacker", b"next"), 0).queue_offset == 1


@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("hit", ["head", "header", "size, bit 5", "magic", "body"])
def test_nothing_planted_is_found_in_a_message_that_was_never_published(tmp_path: Path, hit: str, marks: str) -> None:
    left = tmp_path / "left"
    with MessageStore.open(tmp_path / "store", BIG, create=True) as store:
        for body in FIRST:
            store.put(Message("victim", body), 0)
        shutil.copytree(store.path, left)  # no queue leads to what follows
        start, size = publish_planted(store, FAR_FUTURE_MS, 6)
        shutil.copytree(store.path / "commitlog", left / "commitlog", dirs_exist_ok=True)
    HITS[hit](left, start, size)
    if marks == "without marks":
        shutil.rmtree(left / "fsstore")
    with MessageStore.open(left, BIG) as store:
        assert bodies(store, "victim", 0) == FIRST
        assert store.topics() == ["victim"]
        assert store.physical_end == start
    assert [one.name for one in (left / "fsstore" / "damaged").iterdir()], "what was cut held whole records"


@pytest.mark.parametrize("left", TIMES, indirect=True)
@pytest.mark.parametrize("hit", ["size, bit 5", "magic", "head", "body size", "body"])
def test_nothing_planted_is_found_where_no_queue_is_left(left: tuple[Path, int, int], hit: str) -> None:
    path, start, size = left
    HITS[hit](path, start, size)
    for name in ("fsstore", "consumequeue", "index"):
        shutil.rmtree(path / name)
    with MessageStore.open(path, BIG) as store:
        found = bodies(store, "victim", 0)
        assert found == FIRST + LAST
        assert not store.has_queue("new", 0)


# zeros


@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("zeros", [1, 8, 32, 600, 1_200])
def test_zeros_in_the_texts_of_others_harm_nobody(
    tmp_path: Path, zeros: int, marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep any bytes of their clients; we refuse to write these."""
    encode = RecordEncoder.encode

    def encode_zeros(self: RecordEncoder, message: Message, queue_id: int, now_ms: int) -> object:
        record = encode(self, message, queue_id, now_ms)
        place = bytes(record.buffer).rindex(b"p\x01" + b"~" * zeros) + 2
        record.buffer[place : place + zeros] = bytes(zeros)
        return record

    monkeypatch.setattr(RecordEncoder, "encode", encode_zeros)
    sent = [b"%03d" % number for number in range(200)]
    with killed(tmp_path / "store", tmp_path / "left", BIG) as store:
        for body in sent:
            store.put(Message("T", body, properties={"p": "~" * zeros}), 0)
        store.flush()
        assert bodies(store, "T", 0) == sent
        assert all(bytes(store.get("T", 0, number).body) == body for number, body in enumerate(sent))
    if marks == "without marks":
        shutil.rmtree(tmp_path / "left" / "fsstore")
    assert list(check_store(tmp_path / "left")) == []
    with MessageStore.open(tmp_path / "left", BIG) as store:
        assert bodies(store, "T", 0) == sent
        assert store.recovery.damaged == ()
        assert list(store.check()) == []


def test_a_sector_that_a_power_cut_took_from_properties_is_damage(tmp_path: Path) -> None:
    """Beyond the mark of our own writer, before a record that reached the disk; and at the log's end it is torn."""
    with killed(tmp_path / "store", tmp_path / "left", BIG) as store:
        store.put(Message("T", b"first"), 0)
        places = [store.put(Message("T", b"%d" % number, properties={"p": "v" * 1_500}), 0) for number in range(3)]
    for put in (places[0], places[2]):
        sector = (put.physical_offset + 700) // 512 * 512
        wipe(tmp_path / "left", sector, 512)
    for _ in range(2):
        with MessageStore.open(tmp_path / "left", BIG) as store:
            assert bodies(store, "T", 0) == [b"first", b"1"]
            with pytest.raises(DamagedRecordError):
                store.get("T", 0, 1)
            assert store.bounds("T", 0).max_offset == 3
            assert list(store.check()) == []


def test_the_first_of_two_torn_records_is_damage_whichever_of_its_sectors_is_lost(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "left", BIG) as store:
        store.put(Message("T", b"first"), 0)
        places = [store.put(Message("T", b"%d" % number, properties={"p": "v" * 1_500}), 0) for number in range(3)]
    for put, sector in ((places[0], 2), (places[1], 1)):
        wipe(tmp_path / "left", (put.physical_offset // 512 + sector) * 512, 512)
    with MessageStore.open(tmp_path / "left", BIG) as store:
        assert bodies(store, "T", 0) == [b"first", b"2"]
        assert store.bounds("T", 0).max_offset == 4


def test_two_torn_records_in_a_row_end_no_walk(tmp_path: Path) -> None:
    """The search behind the second begins behind it: from the first on it would find the second for ever."""
    with killed(tmp_path / "store", tmp_path / "left", BIG) as store:
        store.put(Message("T", b"first"), 0)
        places = [store.put(Message("T", b"%d" % number, properties={"p": "v" * 1_500}), 0) for number in range(3)]
    for put in places[:2]:
        wipe(tmp_path / "left", (put.physical_offset + 700) // 512 * 512, 512)
    with deadline(30), MessageStore.open(tmp_path / "left", BIG) as store:
        assert bodies(store, "T", 0) == [b"first", b"2"]
        assert store.bounds("T", 0).max_offset == 4
        assert list(store.check()) == []


def test_what_no_good_record_follows_takes_no_numbers(tmp_path: Path) -> None:
    """Two records that never reached the disk, and a torn one, behind the mark: all three are the log's tail."""
    with killed(tmp_path / "store", tmp_path / "left", BIG) as store:
        store.put(Message("T", b"first"), 0)
        store.flush()
        places = [store.put(Message("T", b"%d" % number, properties={"p": "v" * 1_500}), number) for number in range(3)]
    for put in places[:2]:
        wipe(tmp_path / "left", put.physical_offset, 8)
    wipe(tmp_path / "left", (places[2].physical_offset + 700) // 512 * 512, 512)
    with MessageStore.open(tmp_path / "left", BIG) as store:
        assert store.recovery.damaged == ()
        assert store.put(Message("T", b"next"), 1).queue_offset == 0
        assert bodies(store, "T", 1) == [b"next"]
        assert list(store.check()) == []


# store times


@pytest.mark.parametrize("later", [1, 5])
@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("number", [7, 20, 39])
def test_a_clock_that_was_ahead_makes_nothing_behind_it_stale(
    tmp_path: Path, later: int, marks: str, number: int
) -> None:
    """Even when a record behind it has a damaged queue offset."""
    now = [1_700_000_000_000]
    with killed(tmp_path / "store", tmp_path / "left", replace(BIG, clock=lambda: now[0])) as store:
        store.put(Message("T", b"before"), 0)
        now[0] = FAR_FUTURE_MS
        for _ in range(later):
            store.put(Message("T", b"later"), 0)
    shutil.rmtree(tmp_path / "left" / "fsstore" / "coverage.json", ignore_errors=True)
    now[0] = 1_700_000_000_500
    path = tmp_path / "left"
    with MessageStore.open(path, replace(BIG, clock=lambda: now[0])) as store:
        store._log.last_store_time_ms = 0  # a broker's does run backwards
        shutil.copytree(path, tmp_path / "again", ignore=shutil.ignore_patterns("lock"))
        places = [store.put(Message("T", b"%d" % one), one % 2).physical_offset for one in range(40)]
        shutil.copytree(path / "commitlog", tmp_path / "again" / "commitlog", dirs_exist_ok=True)
        shutil.copytree(path / "consumequeue", tmp_path / "again" / "consumequeue", dirs_exist_ok=True)
    again = tmp_path / "again"
    flip(again, places[number] + 27)
    if marks == "without marks":
        shutil.rmtree(again / "fsstore")
        shutil.rmtree(again / "consumequeue")
    with MessageStore.open(again, BIG) as store:
        found = bodies(store, "T", 0) + bodies(store, "T", 1)
        expected = [b"before", *[b"later"] * later, *(b"%d" % one for one in range(40) if one != number)]
        assert sorted(body for body in found if body != b"%d" % number) == sorted(expected)


# what queues show of records that are not whole


@pytest.mark.parametrize("way", ["open", "repair"])
@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_nothing_inside_of_a_record_that_an_entry_leads_to_is_one(
    tmp_path: Path, first: int, marks: str, way: str
) -> None:
    """The newest message is torn: a sector of it, and all behind, did not reach the disk; its entry did."""
    with killed(tmp_path / "store", tmp_path / "left", BIG) as store:
        for body in FIRST:
            store.put(Message("victim", body), 0)
        store.flush()
        torn = store.put(Message("attacker", b"-" * 2_000), 0)
        with letting_forgeries_in():
            sector = (torn.physical_offset // 512 + 1 + first) * 512
            body = b"x" * 1_000
            start = store.physical_end + 88 + len(body)
            body += planted(start, "victim", len(FIRST), FAR_FUTURE_MS)
            last = store.put(Message("attacker", body + b"more"), 0)
    left = tmp_path / "left"
    wipe(left, sector, 512)
    wipe(left, last.physical_offset // 512 * 512, 512)
    if marks == "without marks":
        shutil.rmtree(left / "fsstore")
    if way == "repair":
        list(repair_store(left))
        assert list(check_store(left)) == []
    with MessageStore.open(left, BIG) as store:
        assert bodies(store, "victim", 0) == FIRST
        assert list(store.query("victim", "forged")) == []
        assert store.put(Message("victim", b"next"), 0).queue_offset == len(FIRST)


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_message_of_the_topic_of_frames_is_not_shown_when_it_is_framed(tmp_path: Path, number: int) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, BIG, create=True) as store:
        puts = [store.put(Message("DAMAGED-BYTES", b"body%d" % one), 0) for one in range(2)]
    flip(path, puts[number].physical_offset + 90)
    assert list(repair_store(path))
    with MessageStore.open(path, BIG) as store:
        assert bodies(store, "DAMAGED-BYTES", 0) == [b"body%d" % (1 - number)]
        with pytest.raises(DamagedRecordError):
            store.get("DAMAGED-BYTES", 0, number)
    assert list(check_store(path)) == []


@pytest.mark.parametrize("messages", [1, 3])
@pytest.mark.parametrize("what", ["topic", "queue id"])
def test_a_repair_gives_no_number_again_whose_message_seems_to_be_elsewhere(
    tmp_path: Path, messages: int, what: str
) -> None:
    """No checksum covers a record's topic and queue id; the queue's entry tells all the same that the number is
    taken."""
    path = tmp_path / "store"
    with MessageStore.open(path, BIG, create=True) as store:
        store.create_topic("T", 2)
        puts = [store.put(Message("T", b"%d" % number), 0) for number in range(messages)]
        store.put(Message("other", b"more"), 0)
    flip(path, puts[-1].physical_offset + (15 if what == "queue id" else 90), 1)
    assert list(repair_store(path))
    assert list(check_store(path)) == []
    assert list(repair_store(path)) == []
    with MessageStore.open(path, BIG) as store:
        assert bodies(store, "T", 0)[: messages - 1] == [b"%d" % number for number in range(messages - 1)]
        assert bodies(store, "other", 0) == [b"more"]
        assert store.put(Message("T", b"next"), 0).queue_offset == messages
        assert list(store.check()) == []
    assert list(check_store(path)) == []
