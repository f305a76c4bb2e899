"""Kinds of brokers' stores (docs/rocketmq.md): one shape of scenario over a table of them, a real broker for each.

A follower is there before the first message. What the broker's client pulls, the follower must show, and a visit to
the closed store. Where writing is allowed we add messages, and the broker has all of them; elsewhere it is refused.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import Message, MessageStore, OpenMode, StoreConfig, UnsupportedStoreError, with_broker_conf
from engine.open.follower import INDEX_SECONDS
from mountctl.options import parse_properties
from tests.golden55 import expected, seen
from tests.interop.brokers import (
    LIMIT_SECONDS,
    POLL_SECONDS,
    Broker,
    client_batch,
    client_message,
    free_ports,
    live_broker,
)
from tests.interop.compare import QUERY_LIMIT
from tests.interop.defaults import by_key, crowding
from tests.interop.driver import Driver
from tests.interop.mounts import MountError, mountctl
from tests.interop.room import Room
from tests.interop.toolchain import LINES

PLAIN, SPECIAL = "plain", "special"
QUEUES = 3
SENDS, ROUNDS = 60, 3
BATCH = 5
OUR_PUTS = 30
SHOWN_WITHIN_SECONDS = 1.0
COMPRESSION_BITS = 0x701
"""A client takes them out when it decompresses a body."""

SETTINGS = {
    "diskMaxUsedSpaceRatio": 95,
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 60 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
"""Small files, so that each kind rolls."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row: what is special about the broker, and what that means for us.

    options      of its broker.conf; {folder} is the scenario's folder, {port} a free port
    attributes   of the topic SPECIAL, which is made only with some; the topic PLAIN always is
    batches      whether some messages are sent as a client's batch
    moved        whether the client is handed copies of SPECIAL's messages, from beside the log
    upgraded     whether a 4.9 broker wrote the store first
    replica      whether the store is that of a second broker, which replicates the first
    refused_as   words of the refusal to write; None: we write
    derived      words of `queues_derived`; None: the broker's queues are read
    indexed      whether the broker has index files; else a follower makes an index once it has missed them for a while,
                 and what we write there is in no index of the broker's
    """

    title: str
    options: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    batches: bool = True
    moved: bool = False
    upgraded: bool = False
    replica: bool = False
    refused_as: str | None = None
    derived: str | None = None
    indexed: bool = True

    @property
    def topics(self) -> dict[str, int]:
        """A topic to publish to: its name and number of queues."""
        return {PLAIN: QUEUES, **({SPECIAL: QUEUES} if self.attributes else {})}

    def run(self, room: Room) -> None:
        """The scenario."""
        Visit(self, room).run()


ROCKSDB = "a RocksDB consume queue"
KINDS = (
    Kind("commit log over two paths elsewhere", {"storePathCommitLog": "{folder}/disk1,{folder}/disk2"}),
    Kind(
        "a DLedger commit log",
        {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "interop",
            "dLegerSelfId": "n0",
            "dLegerPeers": "n0-127.0.0.1:{port}",
        },
        refused_as="a DLedger commit log",
    ),
    Kind("consume queues in RocksDB", {"storeType": "defaultRocksDB"}, refused_as=ROCKSDB, derived=ROCKSDB),
    Kind(
        "consume queues in RocksDB, in a path of their own",
        {"storeType": "defaultRocksDB", "useSeparateStorePathForRocksdbCQ": "true"},
        refused_as=ROCKSDB,
        derived=ROCKSDB,
    ),
    Kind(
        "consume queues in RocksDB and in files (double write)",
        {
            "rocksdbCQDoubleWriteEnable": "true",
            "useSeparateStorePathForRocksdbCQ": "true",
            "combineCQUseRocksdbForLmq": "true",  # 5.5.1 does not start without
        },
        refused_as=ROCKSDB,
    ),
    Kind(
        "a BATCH topic",
        attributes={"queue.type": "BatchCQ"},
        refused_as="a batch consume queue",
        derived="a batch consume queue",
    ),
    Kind(
        "a compaction topic",
        attributes={"cleanup.policy": "COMPACTION"},
        batches=False,
        moved=True,
        refused_as="a compaction topic",
    ),
    Kind(
        "consume queues with extension files",
        {"enableConsumeQueueExt": "true"},
        refused_as="a consume queue with extension files",
    ),
    Kind("topics, groups and offsets in RocksDB", {"configManagerVersion": "v2"}),
    Kind("index in RocksDB only", {"indexRocksDBEnable": "true", "indexFileWriteEnable": "false"}, indexed=False),
    Kind("a replica's store", replica=True),
    Kind("a store of 4.9, upgraded", upgraded=True),
)


class Visit:
    """One run of one kind; `path` is the store that is looked at."""

    def __init__(self, kind: Kind, room: Room) -> None:
        self._kind = kind
        self._room = room
        self._tally = room.tally
        names = {"folder": room.folder, "port": free_ports(1)[0]}
        options = {
            name: value.format(**names) if isinstance(value, str) else value for name, value in kind.options.items()
        }
        self._options = {**SETTINGS, **options}
        self._path = room.folder / "theirs"
        self._sent = 0
        self._conf = room.folder / "broker.conf"
        self._elsewhere = "storePathCommitLog" in options
        text = "".join(f"{name}={value}\n" for name, value in self._options.items())
        self._conf.write_text(f"{text}storePathRootDir={self._path}\n")

    def run(self) -> None:
        if self._kind.upgraded:
            self._written_by_4_9()
        with self._room.driver() as driver:
            if self._kind.replica:
                pulled = self._replicated(driver)
            else:
                with self._broker(driver) as broker:
                    pulled = self._followed(broker)
            self._compare("closed", pulled)
            if self._kind.refused_as is not None:
                self._refused(self._kind.refused_as)
            elif not self._kind.replica:
                self._written(driver, pulled)

    # the broker

    def _broker(self, driver: Driver) -> AbstractContextManager[Broker]:
        return live_broker(driver, self._path, self._options)

    def _written_by_4_9(self) -> None:
        """The store's first life."""
        with Driver(LINES[0], self._room.folder / "home") as driver, self._broker(driver) as broker:
            self._make_topics(broker)
            self._publish(broker)

    def _make_topics(self, broker: Broker) -> None:
        for topic, queues in self._kind.topics.items():
            broker.make_topic(topic, queues, self._kind.attributes if topic == SPECIAL else None)

    def _publish(self, broker: Broker) -> None:
        """A round of messages with keys and tags, some compressed, some in a batch."""
        for topic in self._kind.topics:
            messages = [message(topic, index) for index in range(self._sent, self._sent + SENDS)]
            if self._kind.batches:
                messages[-BATCH:] = [client_batch(topic, messages[-BATCH:])]
            broker.send(messages)
        self._sent += SENDS

    def _followed(self, broker: Broker) -> list[dict[str, Any]]:
        """The broker's life with a follower beside it, from before its first message; the messages that a client pulled
        then."""
        with self._open(OpenMode.FOLLOW) as follower:
            if not self._kind.upgraded:
                self._make_topics(broker)
            for _ in range(ROUNDS):
                self._publish(broker)
                self._await_keys(follower)
            pulled = broker.pull(self._kind.topics)
            self._compare_store("followed", follower, pulled)
        return pulled

    def _replicated(self, driver: Driver) -> list[dict[str, Any]]:
        """The same of the store of a broker that replicates another one; the client pulls from that other one."""
        with (
            self._room.driver() as other,
            live_broker(other, self._room.folder / "master", self._options) as master,
            live_broker(driver, self._path, self._options, master=master) as replica,
            self._open(OpenMode.FOLLOW) as follower,
        ):
            self._make_topics(master)
            for _ in range(ROUNDS):
                self._publish(master)
                await_copy(master, replica)
                self._await_keys(follower)
            pulled = master.pull(self._kind.topics)
            self._compare_store("followed", follower, pulled)
        return pulled

    # we

    def _open(self, mode: OpenMode) -> MessageStore:
        """The store, with the broker's own broker.conf where it says where the log is."""
        config = StoreConfig(mode=mode)
        if self._elsewhere:
            config = with_broker_conf(config, parse_properties(self._conf.read_text()))
        return MessageStore.open(self._path, config)

    def _await_keys(self, follower: MessageStore) -> None:
        """All that was sent is found by its key, in time."""
        seconds = SHOWN_WITHIN_SECONDS + (0 if self._kind.indexed else INDEX_SECONDS)
        deadline = time.monotonic() + seconds * crowding()
        missing = {(topic, f"key-{index}") for topic in self._kind.topics for index in range(self._sent)}
        while missing:
            late = time.monotonic() > deadline
            follower.refresh()
            missing = {(topic, key) for topic, key in missing if follower.newest_with_key(topic, key) is None}
            if late:
                break
            time.sleep(POLL_SECONDS)
        self._tally.expect("keys that the follower doesn't find in time", set(), missing)

    def _compare(self, when: str, pulled: list[dict[str, Any]]) -> None:
        with self._open(OpenMode.READ_ONLY) as store:
            self._compare_store(when, store, pulled)

    def _compare_store(self, when: str, store: MessageStore, pulled: list[dict[str, Any]]) -> None:
        """Bounds, each message in all that the client said, and every key of it."""
        for line in pulled:
            if "queue" in line:
                bounds = store.bounds(line["queue"], line["q"])
                where = f"{when} bounds of {line['queue']}/{line['q']}"
                self._tally.expect(where, (line["min"], line["max"]), (bounds.min_offset, bounds.max_offset))
            else:
                self._compare_message(when, store, line)
        derived = store.stats().queues_derived
        if self._kind.derived is None:
            self._tally.expect(f"{when} queues derived", None, derived)
        else:
            self._tally.expect(f"{when} queues derived", True, self._kind.derived in str(derived))

    def _compare_message(self, when: str, store: MessageStore, line: dict[str, Any]) -> None:
        self._tally.messages += 1
        where = f"{when} {line['qt']}/{line['q']}/{line['qo']}"
        try:
            found = store.get(line["qt"], line["q"], line["qo"])
        except Exception as error:
            self._tally.differences.append(f"{where}: {error}")
            return
        theirs, ours = expected(line), seen(found)
        ours["sf"] &= ~COMPRESSION_BITS
        theirs["sf"] &= ~COMPRESSION_BITS
        if not theirs["size"]:  # of a batch that it took apart, a client says neither
            ours |= {"size": 0, "crc": 0}
        if self._kind.moved and line["qt"] == SPECIAL:
            ours |= {name: theirs[name] for name in ("po", "id")}
        names = [name for name in theirs if theirs[name] != ours[name]]
        self._tally.expect(where, {name: theirs[name] for name in names}, {name: ours[name] for name in names})
        for key in {*found.keys, found.unique_key} - {""}:
            self._tally.queries += 1
            offsets = [one.physical_offset for one in store.query(line["qt"], key, QUERY_LIMIT)]
            self._tally.expect(f"{where} by {key}", True, found.physical_offset in offsets)

    def _refused(self, words: str) -> None:
        """A writer is refused with a reason, and the store does not change."""
        before = traces(self._room.folder, self._path)
        try:
            with self._open(OpenMode.WRITE):
                self._tally.differences.append("opened to write")
        except UnsupportedStoreError as error:
            self._tally.expect("the refusal names the kind", True, words in str(error))
        self._tally.expect("files after the refusal", before, traces(self._room.folder, self._path))

    def _written(self, driver: Driver, pulled: list[dict[str, Any]]) -> None:
        """We add messages; the broker has them and all of its own, adds some, and a check finds nothing to say."""
        with self._open(OpenMode.WRITE) as store:
            self._compare_store("to write", store, pulled)
            for index in range(OUR_PUTS):
                store.put(Message(PLAIN, b"ours %d" % index * 200, [f"our-{index}"], "ours"), queue=index % QUEUES)
        with self._broker(driver) as broker:
            self._publish(broker)
            again = broker.pull(self._kind.topics)
            keys = [f"our-{index}" for index in range(OUR_PUTS)] + [f"key-{index}" for index in range(self._sent)]
            found = broker.query([{**by_key(key), "topic": PLAIN} for key in keys]) if self._kind.indexed else []
        self._tally.queries += len(found)
        lost = [key for key, offsets in zip(keys, found, strict=False) if len(offsets) != 1]
        self._tally.expect("keys that the broker does not find once", [], lost)
        counts = [sum("qo" in line for line in lines) for lines in (pulled, again)]
        self._tally.expect("messages that the broker has", counts[0] + OUR_PUTS + SENDS, counts[1])
        self._compare("given back", again)
        if not self._kind.indexed:
            return  # the broker's new messages are in RocksDB alone: a check finds them missing in our index files
        conf: list[str | Path] = ["--broker-conf", self._conf] if self._elsewhere else []
        try:
            mountctl("check", *conf, self._path)
        except MountError as error:
            self._tally.differences.append(f"a check of the broker's store: {error}")


def await_copy(master: Broker, replica: Broker) -> None:
    """Return once the replica has the whole log of its master; at first it waits some seconds before it asks."""
    limit = time.monotonic() + LIMIT_SECONDS
    while replica.figures()["max_physical_offset"] != master.figures()["max_physical_offset"]:
        if time.monotonic() > limit:
            raise TimeoutError("the replica never got its master's log")
        time.sleep(POLL_SECONDS)


def message(topic: str, index: int) -> dict[str, Any]:
    """Every fifth is large enough for a client to compress it."""
    body = b"%s %d " % (topic.encode(), index) * (2000 if index % 5 == 0 else 30)
    return client_message(topic, body, KEYS=f"key-{index}", TAGS=f"tag-{index % 3}", number=str(index))


def traces(*folders: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of the store and its log paths."""
    facts = {str(file): file.stat() for folder in folders for file in folder.rglob("*") if file.is_file()}
    return {name: (fact.st_size, fact.st_mtime_ns) for name, fact in facts.items() if "/home/" not in name}
