"""A message of which one word is damaged that its queue's entry says as well is shown by the entry, in every way of
reading; nothing is shown where the entry may be the one that is wrong."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import DamagedRecordError, Message, MessageStore, OpenMode, ReadError, check_store
from engine.log.entries import ENTRY
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
"""Position and what it is changed by."""


def body_of(number: int) -> bytes:
    return b"body-%03d" % number


def fill(path: Path) -> list[int]:
    """Messages dealt over two topics of three queues; where they are."""
    with MessageStore.open(path, SMALL, create=True) as store:
        return [
            store.put(Message(topic, body_of(number), [f"K{number}"], "tag"), number % QUEUES).physical_offset
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


def require_all(store: MessageStore) -> None:
    """Each message is there, and the same however it is read."""
    for topic in TOPICS:
        for queue in range(QUEUES):
            numbers = range(queue, COUNT, QUEUES)
            wanted = [body_of(number) for number in numbers]
            assert [bytes(store.get(topic, queue, at).body) for at in range(len(wanted))] == wanted
            assert bodies(store, topic, queue) == wanted
            columns = store.columns(topic, queue, 0, COUNT)
            assert [bytes(columns.bodies[row]) for row in range(len(columns))] == wanted
            assert columns.headers["ok"].all()
            headers = store.headers(topic, queue, 0, COUNT)[: len(wanted)]
            assert headers["ok"].all()
            assert (
                headers["physical_offset"].tolist() == store.entries(topic, queue, 0, COUNT)["physical_offset"].tolist()
            )
            shown = [
                bytes(store.bodies(block.bodies)[row])
                for block in store.blocks(topic, queue, 0, COUNT)
                for row in range(len(block))
            ]
            assert shown == wanted
            assert bytes(store.stream(topic, queue).read(0, 1 << 20)) == b"".join(body + b"\n" for body in wanted)
            sizes = store.record_sizes(topic, queue, 0, COUNT)
            assert sizes[1].tolist() == [len(body) for body in wanted]
            for at, number in enumerate(numbers):
                message = store.newest_with_key(topic, f"K{number}")
                assert message is not None
                assert (message.topic, message.queue_id, message.queue_offset) == (topic, queue, at)
                again = store.at(message.physical_offset)
                assert (again.queue_id, again.queue_offset, bytes(again.body)) == (queue, at, body_of(number))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("word", WORDS)
def test_a_message_is_read_by_its_entry_where_one_word_of_its_own_is_damaged(
    tmp_path: Path, word: str, mode: OpenMode
) -> None:
    places = fill(tmp_path)
    change(tmp_path, places[2 * HIT], *WORDS[word])
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        if mode is OpenMode.FOLLOW:
            refreshed(store)
        require_all(store)
        stats = store.stats()
        assert (stats.mended, stats.damaged_places) == (1, 0)
    before = contents(tmp_path)
    assert any("it is read by the entry of va/0/19" in problem.text for problem in check_store(tmp_path))
    assert contents(tmp_path) == before
    assert any("right, as the entry of va/0/19 says" in line for line in repair_store(tmp_path))
    assert list(check_store(tmp_path)) == []
    with MessageStore.open(tmp_path, SMALL) as store:
        require_all(store)
        assert store.stats().mended == 0


@pytest.mark.parametrize(
    "more", [{"body": (90, b"\1")}, {"another word": (27, b"\1")}], ids=lambda more: next(iter(more))
)
@pytest.mark.parametrize("word", WORDS)
def test_a_message_of_which_more_is_damaged_is_an_error_and_counted(
    tmp_path: Path, word: str, more: dict[str, tuple[int, bytes]]
) -> None:
    if word.startswith("queue offset") and "another word" in more:
        more = {"another word": (34, b"\4")}
    places = fill(tmp_path)
    for position, mask in (WORDS[word], *more.values()):
        change(tmp_path, places[2 * HIT], position, mask)
    with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        with pytest.raises(DamagedRecordError) as damage:
            store.get("va", 0, HIT // QUEUES)
        assert damage.value.reason
        assert len(bodies(store, "va", 0)) == COUNT // QUEUES - 1
        assert sum(block.damaged for block in store.blocks("va", 0, 0, COUNT)) == 1
        assert (store.stats().mended, store.stats().damaged_places) == (0, 1)


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
        assert store.stats().mended == 0


def test_a_lost_number_whose_entry_leads_to_a_mendable_record_shows_nobody_elses_message(tmp_path: Path) -> None:
    """Two queues lack a number; both may be given entries that lead to the one damaged place."""
    places = fill(tmp_path)
    for number in (HIT, HIT + 1):
        change(tmp_path, places[2 * number], *WORDS["queue id, of a queue that is not there"])
    shutil.rmtree(tmp_path / "consumequeue")
    with MessageStore.open(tmp_path, SMALL) as store:
        for number in (HIT, HIT + 1):
            try:
                message = store.get("va", number % QUEUES, number // QUEUES)
            except ReadError:
                continue
            assert bytes(message.body) == body_of(number)


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
