"""A broker's host: a real broker of RocketMQ, a mount that follows its store, the mount's server, a worker of Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec

from engine import FileSizes, MessageStore, OpenMode, StoreConfig
from fsstore.fleet.identity import Witness
from tests.fleet.hosts import Host
from tests.interop.brokers import Broker, start_broker
from tests.interop.driver import Driver
from tests.interop.live import TOPIC as MIXED
from tests.interop.live import random_messages
from tests.interop.room import java_config
from tests.interop.toolchain import Line
from tests.spark.cluster import found_in, registered_in, until, worker_words

PORT = 9870
LOAD, QUEUES, BODY_BYTES = "load", 4, 2_000
RATE, SECONDS = 6_000, 5
TOPICS = [LOAD, MIXED]
SIZES = FileSizes(commit_log_bytes=32 << 20, consume_queue_entries=50_000, index_slots=50_000, index_entries=200_000)
MOUNTCTL = (sys.executable, "-m", "mountctl")


class Sums(NamedTuple):
    """Of a queue's messages: their number, the bytes of their bodies, and sums of the checksums of bodies and of keys,
    and of queue offsets."""

    rows: int
    bytes: int
    bodies: int
    keys: int
    offsets: int


Queue = tuple[str, str, int]
"""Broker, topic, number."""
Found = dict[Queue, Sums]


def summed(rows: Iterable[tuple[int, bytes, Iterable[str]]]) -> Sums:
    """The sums of messages: queue offset, body, keys."""
    found = [
        (1, len(body), zlib.crc32(body), zlib.crc32(" ".join(keys).encode()), offset) for offset, body, keys in rows
    ]
    return Sums(*map(sum, zip(*found, strict=True)))


@dataclass(slots=True)
class BrokerHost:
    """A host with a broker. What runs on it ends with it."""

    host: Host
    line: Line
    restarts: Counter[str] = field(default_factory=Counter)
    driver: Driver | None = None
    broker: Broker | None = None
    mount: subprocess.Popen[bytes] | None = None
    server: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def store(self) -> Path:
        return self.host.folder / "store"

    @property
    def mountpoint(self) -> Path:
        return self.host.folder / "mnt"

    @property
    def url(self) -> str:
        return f"http://{self.host.domain}:{PORT}"

    @property
    def access_log(self) -> Path:
        return self.host.folder / "access.log"

    def start_broker(self) -> None:
        """A broker, with its name server and clients in one Java machine."""
        inside = self.host.words(only_network=True)
        driver = self.driver = Driver(self.line, self.host.folder / "java", threads=True, inside=inside)
        self.host.started.callback(driver.kill)
        # a producer that is kept waiting on a busy machine is no failure of the mount
        config = java_config(SIZES, brokerName=self.name, waitTimeMillsInSendQueue=60_000)
        self.broker = start_broker(driver, self.store, config)

    def fill(self, seed: int) -> None:
        """Have clients send a load of equal messages, and some of all kinds."""
        assert self.broker is not None
        self.broker.make_topic(MIXED, QUEUES)
        self.broker.send([message for _ in range(4) for message in random_messages(Random(seed), seed)])
        self.produce(RATE, SECONDS)
        self.produced()

    def produce(self, rate: int, seconds: int, topic: str = LOAD) -> None:
        """Have a client begin to send."""
        assert self.broker is not None
        self.broker.make_topic(topic, QUEUES)
        load = {"topic": topic, "queues": QUEUES, "body_bytes": BODY_BYTES, "rate": rate, "seconds": seconds}
        self.broker.driver.call("produce", names=self.broker.names, **load)

    def produced(self) -> None:
        """Wait until that client is done."""
        assert self.broker is not None
        load = self.broker.driver.call("produced")
        assert load["failures"] == 0, f"{load['failures']} sends failed"

    def start_mount(self) -> None:
        """The mount that follows the broker's store."""
        self.mountpoint.mkdir(exist_ok=True)
        self.mount = self._start("mount", "mount", "--foreground", "--follow", self.store, self.mountpoint)
        self.host.started.callback(self._clear)
        until(f"{self.name} has mounted", self._is_mounted)

    def _is_mounted(self) -> bool:
        assert self.mount is not None
        assert self.mount.poll() is None, self._log("mount").read_text()
        with suppress(RuntimeError):
            self.host.run("test", "-e", self.mountpoint / "@store/status.json")
            return True
        return False

    def _clear(self) -> None:
        """Where hosts share their mounts, a dead one would stay."""
        if self.host.init is None:
            subprocess.run(["umount", "--lazy", self.mountpoint], capture_output=True, check=False)

    def start_server(self) -> None:
        """The server of the mount."""
        listen = f"{self.host.address}:{PORT}"
        words = ("serve", self.mountpoint, "--listen", listen, "--host", self.host.domain, "--insecure")
        self.server = self._start("server", *words, "--access-log", self.access_log)
        found_in(self._log("server"), "(is served at)")

    def start_worker(self, master: str) -> None:
        """A worker of Spark that has the host's name."""
        log = self.host.folder / "worker.log"
        self.host.start(log, *worker_words(self.host.domain, self.host.folder / "work", master, memory="900m"))
        registered_in(log)

    def restart(self) -> None:
        """Start mount and server again, as for an upgrade."""
        for running in (self.server, self.mount):
            assert running is not None
            self.host.signal(running, signal.SIGTERM)
        self.start_mount()
        self.start_server()

    def _log(self, what: str) -> Path:
        return self.host.folder / f"{what}-{self.restarts[what]}.log"

    def _start(self, what: str, *words: str | Path) -> subprocess.Popen[bytes]:
        self.restarts[what] += 1
        return self.host.start(self._log(what), *MOUNTCTL, *words)

    def witness(self) -> Witness:
        """How many messages the server sees, and the newest."""
        with urlopen(f"{self.url}/witness", timeout=60) as answer:
            return msgspec.json.decode(answer.read(), type=Witness)

    def shows(self, topic: str) -> bool:
        """Whether the server has files of a topic."""
        with suppress(HTTPError), urlopen(f"{self.url}/datasets?topic={topic}", timeout=60) as answer:
            return bool(answer.read())
        return False

    def opens(self) -> int:
        """Requests for the content of files until now."""
        return self.access_log.read_text().count(" OPEN ") if self.access_log.exists() else 0

    def truth(self, *topics: str) -> Found:
        """The messages of topics in the store, read by the engine beside the broker."""
        with MessageStore.open(self.store, StoreConfig(mode=OpenMode.FOLLOW)) as store:
            return {
                (self.name, topic, queue): summed(_rows(store, topic, queue))
                for topic in topics
                for queue in range(QUEUES)
            }


def _rows(store: MessageStore, topic: str, queue: int) -> Iterator[tuple[int, bytes, Iterable[str]]]:
    for message in store.read(topic, queue, 0):
        yield message.queue_offset, bytes(message.body), message.keys
