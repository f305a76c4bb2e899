"""A message of which a word about itself is damaged is an error in every way of reading, and a finding; it costs no
other message. Where an entry is wrong instead, no other queue's message is shown, and a repair keeps the record."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import DamagedRecordError, Message, MessageStore, OpenMode, ProblemKind, ReadError, check_store
from engine.log.entries import ENTRY
from engine.read import reader
from engine.record.header import HEADERS
from engine.repair import repair_store
from tests.engine.storetools import SMALL, bodies, contents, letting_forgeries_in
from tests.engine.test_planted import planted
from tests.engine.test_store_follow import refreshed

COUNT, QUEUES, HIT = 120, 3, 57
TOPICS = ("va", "vb")
"""They differ in one byte."""
MODES = [OpenMode.READ_ONLY, OpenMode.FOLLOW]
TOPIC_POSITION = HEADERS[0].size + len(b"body-000") + 1

WORDS: dict[str, tuple[int, bytes]] = {
    "size": (1, b"\1"),
    "physical offset": (34, b"\4"),
    "queue id": (15, b"\1"),
    "queue id, of a queue that is not there": (14, b"\2"),
    "queue offset": (27, b"\4"),
    "queue offset, far off": (22, b"\2"),
    "topic, another one": (TOPIC_POSITION + 1, b"\3"),
    "topic, none": (TOPIC_POSITION, b"\1"),
}
"""Position of a field, and the value to change it by."""


def body_of(number: int) -> bytes:
    return b"body-%03d" % number


def fill(path: Path) -> list[int]:
    """Messages dealt over two topics of three queues; where they are."""
    with MessageStore.open(path, SMALL, create=True) as store:
        return [
            store.put(Message(topic, body_of(number), [f"K{number}", "ALL"], "tag"), number % QUEUES).physical_offset
            for number in range(COUNT)
            for topic in TOPICS
        ]


def change(path: Path, physical_offset: int, position: int, mask: bytes) -> None:
    """Change bytes of a record, and not the file's times."""
    file_bytes = SMALL.sizes.commit_log_bytes if SMALL.sizes else 0
    start = physical_offset - physical_offset % file_bytes
    file = path / "commitlog" / f"{start:020d}"
    status = file.stat()
    content = bytearray(file.read_bytes())
    for index, bits in enumerate(mask, physical_offset - start + position):
        content[index] ^= bits
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def require_all_but(store: MessageStore, lost_topic: str, lost: int) -> None:
    """Each message but one is there, the same however it is read, and that one is nowhere."""
    for topic in TOPICS:
        for queue in range(QUEUES):
            numbers = range(queue, COUNT, QUEUES)
            left = [number for number in numbers if (topic, number) != (lost_topic, lost)]
            wanted = [body_of(number) for number in left]
            assert bodies(store, topic, queue) == wanted
            columns = store.columns(topic, queue, 0, COUNT)
            assert [bytes(columns.bodies[row]) for row in np.flatnonzero(columns.headers["ok"]).tolist()] == wanted
            is_whole = store.headers(topic, queue, 0, COUNT)["ok"][: len(numbers)]
            assert [number for number, ok in zip(numbers, is_whole, strict=True) if ok or number == lost] in (
                left,
                list(numbers),
            )
            blocks = store.blocks(topic, queue, 0, COUNT)
            assert [bytes(store.bodies(block.bodies)[row]) for block in blocks for row in range(len(block))] == wanted
            assert bytes(store.stream(topic, queue).read(0, 1 << 20)) == b"".join(body + b"\n" for body in wanted)
            for at, number in enumerate(numbers):
                if number in left:
                    assert bytes(store.get(topic, queue, at).body) == body_of(number)
                    message = store.newest_with_key(topic, f"K{number}")
                    assert message is not None
                    assert (message.queue, message.queue_offset, bytes(message.body)) == (queue, at, body_of(number))
    with pytest.raises(DamagedRecordError):
        store.get(lost_topic, lost % QUEUES, lost // QUEUES)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("number", [0, HIT, COUNT - 1])
@pytest.mark.parametrize("word", WORDS)
def test_a_message_of_which_a_word_is_damaged_is_an_error_and_a_finding_and_framed_by_a_repair(
    tmp_path: Path, word: str, number: int, mode: OpenMode
) -> None:
    places = fill(tmp_path)
    change(tmp_path, places[2 * number], *WORDS[word])
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        if mode is OpenMode.FOLLOW:
            refreshed(store)
        require_all_but(store, "va", number)
        assert store.stats().damaged_places == 1
    before = contents(tmp_path)
    assert any(problem.kind is ProblemKind.BAD_RECORD for problem in check_store(tmp_path))
    assert contents(tmp_path) == before
    done = list(repair_store(tmp_path))
    assert any(line.startswith("framed ") for line in done)
    assert list(check_store(tmp_path)) == []
    assert list(repair_store(tmp_path)) == []
    (kept,) = (tmp_path / "fsstore" / "damaged").iterdir()
    assert kept.name.startswith(f"{places[2 * number]:020d}-")
    with MessageStore.open(tmp_path, SMALL) as store:
        require_all_but(store, "va", number)
        assert store.newest_with_key("va", f"K{number}") is None


@pytest.mark.parametrize("word", ["queue id", "queue offset"])
def test_a_key_leads_to_no_other_message_where_a_number_is_damaged(tmp_path: Path, word: str) -> None:
    places = fill(tmp_path)
    change(tmp_path, places[2 * HIT], *WORDS[word])
    with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert store.newest_with_key("va", f"K{HIT}") is None
        assert np.concatenate(list(store.key_slots("va", f"K{HIT}"))).tolist() == []


@pytest.mark.parametrize("number", [0, HIT, COUNT - 1])
@pytest.mark.parametrize("word", WORDS)
def test_a_key_of_many_leads_to_each_but_the_message_of_which_a_word_is_damaged(
    tmp_path: Path, word: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "VIEWED_ROWS", 2)  # the files of the log are small
    places = fill(tmp_path)
    change(tmp_path, places[2 * number], *WORDS[word])
    numbers = {(number % QUEUES, number // QUEUES): number for number in range(COUNT)}
    with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        found = [tuple(place) for some in store.key_slots("va", "ALL") for place in some.tolist()]
    assert sorted(numbers[place] for place in found if place in numbers) == [*range(number), *range(number + 1, COUNT)]


# entries that are wrong


def queue_file(path: Path, topic: str, queue: int, first: int = 0) -> Path:
    return path / "consumequeue" / topic / str(queue) / f"{first:020d}"


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def lead(path: Path, queue: int, number: int, entry: bytes) -> None:
    """Have another entry stand there."""
    entries = SMALL.sizes.consume_queue_entries if SMALL.sizes else 0
    first = number - number % entries
    file = queue_file(path, "va", queue, first * ENTRY.itemsize)
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[(number - first) * ENTRY.itemsize : (number - first + 1) * ENTRY.itemsize] = entry
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def entry_of(path: Path, number: int) -> bytes:
    """The entry of a message of "va"."""
    with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        return store.entries("va", number % QUEUES, number // QUEUES, 1).tobytes()


WRONG: dict[str, Callable[[Path], object]] = {
    "queues' files, swapped": lambda path: swap(queue_file(path, "va", 0), queue_file(path, "va", 1)),
    "topics' files, swapped": lambda path: swap(queue_file(path, "va", 0), queue_file(path, "vb", 0)),
    "an entry of the number before": lambda path: lead(path, 0, 19, entry_of(path, 54)),
    "an entry of another queue": lambda path: lead(path, 0, 19, entry_of(path, 58)),
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_entry_shows_nobody_elses_message(tmp_path: Path, wrong: str, mode: OpenMode) -> None:
    fill(tmp_path)
    WRONG[wrong](tmp_path)
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        shown = 0
        for topic in TOPICS:
            for number in range(COUNT):
                try:
                    message = store.get(topic, number % QUEUES, number // QUEUES)
                except ReadError:
                    continue
                assert bytes(message.body) == body_of(number)
                shown += 1
        assert shown >= COUNT


@pytest.mark.parametrize("wrong", WRONG)
def test_a_repair_keeps_a_record_to_which_a_wrong_entry_leads(tmp_path: Path, wrong: str) -> None:
    """Though another record is lost, which leaves its queue a number for which there is none."""
    places = fill(tmp_path)
    WRONG[wrong](tmp_path)
    change(tmp_path, places[2 * HIT], 90, b"\1")
    list(repair_store(tmp_path))
    assert list(check_store(tmp_path)) == []
    with MessageStore.open(tmp_path, SMALL) as store:
        require_all_but(store, "va", HIT)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_repair_keeps_the_newest_records_where_queues_of_different_length_were_swapped(
    tmp_path: Path, topic: str
) -> None:
    fill(tmp_path)
    with MessageStore.open(tmp_path, SMALL) as store:
        store.put(Message(topic, b"body-120", ["K120"], "tag"), 0)
    last = SMALL.sizes.consume_queue_bytes * 3 if SMALL.sizes else 0
    for first in range(0, last, SMALL.sizes.consume_queue_bytes if SMALL.sizes else 1):
        if queue_file(tmp_path, topic, 1, first).exists():
            swap(queue_file(tmp_path, topic, 0, first), queue_file(tmp_path, topic, 1, first))
    list(repair_store(tmp_path))
    assert list(check_store(tmp_path)) == []
    with MessageStore.open(tmp_path, SMALL) as store:
        wanted = [body_of(number) for number in range(0, COUNT + 1, QUEUES)]
        assert bodies(store, topic, 0) == wanted
        assert bodies(store, topic, 1) == [body_of(number) for number in range(1, COUNT, QUEUES)]


@pytest.mark.parametrize("newest", [HIT, 400])
def test_a_lost_number_is_not_given_the_newest_message_of_a_queue_that_ended_with_it(
    tmp_path: Path, newest: int
) -> None:
    """Nothing shows that the one queue lacks it, so the entry of the other one leads to the first damaged place."""
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        places = {
            (queue, number): store.put(Message("va", b"%d of %d" % (number, queue), tags="tag"), queue).physical_offset
            for number in range(newest + 9)
            for queue in ((1, 0) if number <= newest else (0,))
        }
    for queue in (0, 1):
        change(tmp_path, places[queue, newest], *WORDS["queue id, of a queue that is not there"])
    for derived in ("consumequeue", "fsstore"):
        shutil.rmtree(tmp_path / derived)
    with MessageStore.open(tmp_path, SMALL) as store:
        for number in range(newest + 9):
            try:
                assert bytes(store.get("va", 0, number).body) == b"%d of 0" % number
            except ReadError:
                assert number == newest


@pytest.mark.parametrize("position", [35, 27], ids=["place", "number"])
def test_a_record_in_a_body_is_not_shown_by_an_entry_whose_place_was_hit(tmp_path: Path, position: int) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        for number in range(6):
            store.put(Message("va", body_of(number)), 0)
        start = store.physical_end + HEADERS[0].size
        forged = bytearray(planted(start, "va", 3, 0, b"FORGED!!"))
        forged[position] ^= 1
        with letting_forgeries_in():
            store.put(Message("attacker", bytes(forged)), 0)
    lead(tmp_path, 0, 3, struct.pack(">qiq", start, len(forged), 0))
    with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert store.entries("va", 0, 3, 1)["physical_offset"].tolist() == [start]
        with pytest.raises(DamagedRecordError):
            store.get("va", 0, 3)
