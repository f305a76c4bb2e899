"""A follower where its broker's files say less than the log does, or change without a write: a kill that took index
files, a topic deleted on an idle broker, a log that was copied alone."""

import shutil
import struct
import time
from pathlib import Path
from typing import Any

from engine import MessageStore, OpenMode, StoreConfig
from tests.interop.brokers import LIMIT_SECONDS, POLL_SECONDS, Broker, client_message, live_broker, start_broker
from tests.interop.compare import compare_dump
from tests.interop.defaults import await_presence, by_key
from tests.interop.driver import DriverError
from tests.interop.kinds import SETTINGS
from tests.interop.mounts import mounted, status
from tests.interop.room import Room

KEPT, DELETED = "kept", "withdrawn"
QUEUES = 2
SENDS, LATER_SENDS = 300, 20
FOLLOW = StoreConfig(mode=OpenMode.FOLLOW)
FLUSHED = {
    **SETTINGS,
    "mappedFileSizeCommitLog": 16 << 10,
    "maxMessageSize": 8 << 10,
    "maxIndexNum": 20_000,
    "flushIntervalConsumeQueue": 100,
    "flushConsumeQueueThoroughInterval": 100,
}
"""All keys are in one index file, and the checkpoint is never far behind: a start after a kill reads the log's end."""
REREAD_MS = 3_000
"""So much of the log before its checkpoint a broker reads again after a kill."""


def killed_broker(room: Room) -> None:
    """A kill takes the newest index file, of which only the end is made anew: a follower from before the kill, and a
    new one, find every key."""
    path = room.folder / "theirs"
    with room.driver() as driver:
        sent = publish_until_flushed(start_broker(driver, path, FLUSHED), path)
        follower = MessageStore.open(path, FOLLOW)
        driver.kill()
    with follower, room.driver() as driver, live_broker(driver, path, FLUSHED) as broker:
        publish(broker, KEPT, range(sent, sent + LATER_SENDS))
        numbers = range(sent + LATER_SENDS)
        found = broker.query([{**by_key(f"key-{number}"), "topic": KEPT} for number in numbers])
        room.tally.expect("whether the broker lost keys", True, [] in found)
        with MessageStore.open(path, FOLLOW) as later:
            find_all(room, {"a follower over the kill": follower, "a new follower": later}, numbers)


def publish_until_flushed(broker: Broker, path: Path) -> int:
    """Messages, and more of them until the broker's checkpoint says that it won't read the first ones again after a
    kill; how many."""
    publish(broker, KEPT, range(SENDS))
    sent, wanted_ms = SENDS, time.time_ns() // 1_000_000 + REREAD_MS
    limit = time.monotonic() + LIMIT_SECONDS
    while checkpoint_ms(path) <= wanted_ms:
        if time.monotonic() > limit:
            raise DriverError("the broker never wrote its checkpoint")
        broker.send([keyed(KEPT, sent)])
        sent += 1
        time.sleep(POLL_SECONDS)
    return sent


def checkpoint_ms(path: Path) -> int:
    """Store time (epoch milliseconds) up to which log and consume queues are on the disk, as the broker keeps it."""
    log_ms, queues_ms = struct.unpack_from(">qq", (path / "checkpoint").read_bytes())
    return int(min(log_ms, queues_ms))


def deleted_topic(room: Room) -> None:
    """A topic is deleted and nothing is written after it: it goes from a mount, and the other topic stays whole."""
    path = room.folder / "theirs"
    with (
        room.driver() as driver,
        live_broker(driver, path, SETTINGS) as broker,
        mounted(path, room.folder / "mount", "--follow") as mount,
    ):
        for topic in (KEPT, DELETED):
            publish(broker, topic, range(SENDS))
            await_count(mount / topic, SENDS)
        end = broker.figures()["max_physical_offset"]
        broker.delete_topic(DELETED)
        await_presence(mount / DELETED, wanted=False)
        room.tally.expect("the log's end, as nothing was written", end, broker.figures()["max_physical_offset"])
        with MessageStore.open(path, FOLLOW) as later:
            room.tally.expect("topics of a new follower", False, DELETED in later.topics())
        compare_bodies(room, mount / KEPT, SENDS)


def copied_log(room: Room) -> None:
    """The log and the settings of a broker, copied without queues and index: a mount shows every message and key."""
    path, bare = room.folder / "theirs", room.folder / "bare"
    with room.driver() as driver:
        with live_broker(driver, path, SETTINGS) as broker:
            publish(broker, KEPT, range(SENDS))
        for folder in ("commitlog", "config"):
            shutil.copytree(path / folder, bare / folder)
        with mounted(bare, room.folder / "mount", "--follow") as mount:
            await_count(mount / KEPT, SENDS)
            compare_bodies(room, mount / KEPT, SENDS)
            said = status(mount)["stats"]
            room.tally.expect("why queues are derived", True, "no consume queue" in str(said["queues_derived"]))
            room.tally.expect("the index", "derived", said["index"])
        with driver.store(path, SETTINGS) as store:
            dump = store.dump()
    with MessageStore.open(bare, FOLLOW) as ours:
        find_all(room, {"a follower": ours}, range(SENDS))
        compare_dump(room.tally, dump, ours)


def publish(broker: Broker, topic: str, numbers: range) -> None:
    """One message for each number, its key with it."""
    broker.make_topic(topic, QUEUES)
    broker.send([keyed(topic, number) for number in numbers])


def keyed(topic: str, number: int) -> dict[str, Any]:
    return client_message(topic, body(number), KEYS=f"key-{number}")


def body(number: int) -> bytes:
    return b"message %d " % number * 10


def find_all(room: Room, followers: dict[str, MessageStore], numbers: range) -> None:
    """Every key leads each of the followers to its message, in time."""
    limit = time.monotonic() + LIMIT_SECONDS
    missing = {who: set(numbers) for who in followers}
    while any(missing.values()) and time.monotonic() < limit:
        for who, store in followers.items():
            store.refresh()
            missing[who] = {number for number in missing[who] if not leads_to_body(store, number)}
        time.sleep(POLL_SECONDS)
    for who, lost in missing.items():
        room.tally.messages += len(numbers)
        room.tally.queries += len(numbers)
        room.tally.expect(f"keys by which {who} doesn't find the message", set(), lost)


def leads_to_body(store: MessageStore, number: int) -> bool:
    found = store.newest_with_key(KEPT, f"key-{number}")
    return found is not None and bytes(found.body) == body(number)


def await_count(topic: Path, count: int) -> None:
    """Return once a mounted topic shows so many messages."""
    limit = time.monotonic() + LIMIT_SECONDS
    while (shown := sum(1 for _ in messages(topic))) != count:
        if time.monotonic() > limit:
            raise TimeoutError(f"{topic} shows {shown} messages and not {count}")
        time.sleep(POLL_SECONDS)


def messages(topic: Path) -> list[Path]:
    """Files of a mounted topic's messages; none while it is not there."""
    return [file for queue in range(QUEUES) for file in topic.glob(f"{queue}/*") if file.name.isdigit()]


def compare_bodies(room: Room, topic: Path, count: int) -> None:
    """Every message is there once and whole, and found by its key."""
    room.tally.messages += count
    found = sorted(file.read_bytes() for file in messages(topic))
    room.tally.expect(f"bodies in {topic.name}", sorted(body(number) for number in range(count)), found)
    room.tally.queries += count
    lost = [number for number in range(count) if not (topic / "keys" / f"key-{number}").exists()]
    room.tally.expect(f"keys not found in {topic.name}", [], lost)
