"""A broker that nobody configured: 1 GiB log files, a sparse index that holds tags too, topics that come and
go; followed from before its first message, checked, written by us and given back."""

import os
import time
from pathlib import Path
from typing import Any

from engine import Message, MessageStore, OpenMode, StoreConfig
from tests.interop.brokers import LIMIT_SECONDS, POLL_SECONDS, Broker, client_message, live_broker
from tests.interop.compare import ALL_TIMES_MS, QUERY_LIMIT, compare_dump
from tests.interop.driver import Driver
from tests.interop.mounts import MountError, mountctl, mounted, status
from tests.interop.room import Room

TOPIC, DELETED = "orders", "withdrawn"
QUEUES = 4
TAGS = ("paid", "open", "sent")
SENDS, ROUNDS = 60, 3
OUR_PUTS = 40
FOUND_WITHIN_SECONDS = 1.0
DEFAULTS = {"diskMaxUsedSpaceRatio": 95}
"""Nothing else is set: a broker refuses to write when the disk of this machine is full by other people's files."""


def default_broker(room: Room) -> None:
    """Followed from before its first message; a topic deleted; checked; written by us; the broker's again."""
    path = room.folder / "theirs"
    with room.driver(threads=True) as driver:
        keys = follow_from_the_first_message(room, driver, path)
        require_sound(room, path)
        compare_deleted_topic(room, driver, path)
        refused_without_its_log(room, path)
        keys += write_between(room, path)
        find_all_again(room, driver, path, keys)
        with driver.store(path, DEFAULTS) as store:
            dump = store.dump()
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as ours:
        compare_dump(room.tally, dump, ours)


def follow_from_the_first_message(room: Room, driver: Driver, path: Path) -> list[str]:
    """The broker's first life, with a mount beside it from its beginning on; the keys of what was sent."""
    keys: list[str] = []
    with live_broker(driver, path, DEFAULTS) as broker, mounted(path, room.folder / "mount", "--follow") as mount:
        broker.make_topic(TOPIC, QUEUES)
        broker.make_topic(DELETED, 1)
        for number in range(ROUNDS):
            sent = [tagged_message(index) for index in range(number * SENDS, (number + 1) * SENDS)]
            results = broker.send(sent)
            deadline = time.monotonic() + FOUND_WITHIN_SECONDS * crowding()
            new = [f"key-{index}" for index in range(number * SENDS, (number + 1) * SENDS)]
            found_in_time(room, mount, [*new, *(result["unique_key"] for result in results)], deadline)
            keys += new
        room.tally.expect("index of the followed store", "in use", status(mount)["stats"]["index"])
        delete_topic(room, broker, mount)
    return keys


def crowding() -> float:
    """How many want each processor of this machine: a second of ours is as many of the clock's; 1 when it is quiet."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def tagged_message(index: int) -> dict[str, Any]:
    return client_message(TOPIC, b"message %d" % index, KEYS=f"key-{index}", TAGS=TAGS[index % len(TAGS)])


def found_in_time(room: Room, mount: Path, keys: list[str], deadline: float) -> None:
    """Every key leads to a message that can be read, before the deadline."""
    missing = set(keys)
    while True:
        late = time.monotonic() > deadline
        missing = {key for key in missing if not (mount / TOPIC / "keys" / key).exists()}
        if late or not missing:
            break
        time.sleep(POLL_SECONDS)
    room.tally.expect("keys not found within a second", set(), missing)
    for key in set(keys) - missing:
        room.tally.messages += 1
        room.tally.queries += 1
        room.tally.expect(f"body behind {key}", b"message ", (mount / TOPIC / "keys" / key).read_bytes()[:8])


def delete_topic(room: Room, broker: Broker, mount: Path) -> None:
    """The topic that holds the newest records of the log goes, and goes from the mount."""
    broker.send([client_message(DELETED, b"forget me", KEYS="secret", TAGS="paid") for _ in range(5)])
    await_presence(mount / DELETED / "0" / "4", wanted=True)
    broker.delete_topic(DELETED)
    await_presence(mount / DELETED, wanted=False)
    room.tally.expect("topics after one was deleted", False, DELETED in {member.name for member in mount.iterdir()})


def await_presence(path: Path, *, wanted: bool) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while path.exists() is not wanted:
        if time.monotonic() > limit:
            raise TimeoutError(f"{path} never {'came' if wanted else 'went'}")
        time.sleep(POLL_SECONDS)


def require_sound(room: Room, path: Path) -> None:
    """Nobody has anything to say about the store that the broker closed, and the deleted topic stays away."""
    try:
        mountctl("check", path)
    except MountError as error:
        room.tally.differences.append(f"a check of the broker's store: {error}")
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as ours:
        room.tally.expect("the deleted topic after a clean stop", False, DELETED in ours.topics())


def compare_deleted_topic(room: Room, driver: Driver, path: Path) -> None:
    """RocketMQ dispatches what lies behind its newest consume queue entry: of a deleted topic that has the log's newest
    records, these are back."""
    copy = room.copy(path, "copy")
    with driver.store(copy, DEFAULTS) as store:
        back = sum(message["queue_topic"] == DELETED for message in store.dump()["messages"])
    room.tally.expect("whether RocketMQ brings messages of the deleted topic back", True, back > 0)


def refused_without_its_log(room: Room, path: Path) -> None:
    """As with storePathCommitLog elsewhere: refused by name, whoever asks, and nothing is emptied."""
    log, elsewhere = path / "commitlog", room.folder / "elsewhere"
    log.rename(elsewhere)
    before = index_files(path)
    try:
        for mode in OpenMode:
            try:
                MessageStore.open(path, StoreConfig(mode=mode)).close()
                room.tally.differences.append(f"opened for {mode.name} without its log")
            except Exception as error:
                room.tally.expect(f"{mode.name} without its log", True, "storePathCommitLog" in str(error))
        room.tally.expect("index files of a store without its log", before, index_files(path))
    finally:
        if log.is_dir():
            log.rmdir()
        elsewhere.rename(log)


def index_files(path: Path) -> list[tuple[str, int]]:
    """Names and sizes."""
    return sorted((file.name, file.stat().st_size) for file in (path / "index").iterdir())


def write_between(room: Room, path: Path) -> list[str]:
    """We open the broker's store to write, and add tagged messages with keys; the keys."""
    before = index_files(path)
    with MessageStore.open(path) as ours:
        for index in range(OUR_PUTS):
            message = Message(TOPIC, b"message of ours %d" % index, keys=[f"our-{index}"], tags=TAGS[index % len(TAGS)])
            ours.put(message, queue=index % QUEUES)
    room.tally.expect("index files after our visit", before, index_files(path))
    return [f"our-{index}" for index in range(OUR_PUTS)]


def find_all_again(room: Room, driver: Driver, path: Path, keys: list[str]) -> None:
    """The broker starts on it again: it has every message, finds every key, and what it sent itself by tag."""
    with live_broker(driver, path, DEFAULTS) as broker:
        broker.send([tagged_message(ROUNDS * SENDS)])
        found = broker.query([by_key(key) for key in [*keys, f"key-{ROUNDS * SENDS}"]])
        room.tally.queries += len(found)
        lost = [key for key, offsets in zip(keys, found, strict=False) if len(offsets) != 1]
        room.tally.expect("keys that the broker does not find once", [], lost)
        room.tally.expect("the key of its new message", 1, len(found[-1]))
        by_tag = broker.query([{**by_key(""), "tags": tag} for tag in TAGS])
        sent = ROUNDS * SENDS + 1
        wanted = [min(len(range(first, sent, len(TAGS))), QUERY_LIMIT) for first in range(len(TAGS))]
        room.tally.expect("messages by tag", wanted, [len(offsets) for offsets in by_tag])
        bounds = broker.bounds(TOPIC, QUEUES)
        room.tally.expect("messages of the broker", sent + OUR_PUTS, sum(end - first for first, end in bounds))


def by_key(key: str) -> dict[str, Any]:
    return {"topic": TOPIC, "key": key, "limit": QUERY_LIMIT, "begin_ms": 0, "end_ms": ALL_TIMES_MS}
