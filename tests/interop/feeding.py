"""A mount that serves replicas: real slaves get its log, and real consumers read from them what a shell published."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine import MessageStore, OpenMode, StoreConfig
from tests.engine.replication.replicas import free_port
from tests.interop.brokers import LIMIT_SECONDS, POLL_SECONDS, Broker, start_broker
from tests.interop.driver import Driver
from tests.interop.mounts import mounted, status
from tests.interop.room import Room
from tests.interop.toolchain import PROJECT

TOPIC, GROUP, QUEUES = "published", "readers", 4
ROUND = 400
SETTINGS = {
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 60 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
"""Small files, so that log and queues roll while they are replicated."""
SLAVE = {
    **SETTINGS,
    "brokerRole": "SLAVE",
    "brokerId": 1,
    "slaveReadEnable": "true",
    "diskMaxUsedSpaceRatio": 95,
    "haHousekeepingInterval": 5_000,
    "haSendHeartbeatInterval": 1_000,
}
NEVER = 1 << 30


class Feeding:
    """One run: a mount that publishes, and a slave of it."""

    def __init__(self, room: Room, mount: Path, ha_port: int) -> None:
        self._room = room
        self._mount = mount
        self._ha_port = ha_port
        self._slave_store = room.folder / "theirs"
        self._published: list[bytes] = []

    @property
    def _master(self) -> str:
        return f"127.0.0.1:{self._ha_port - 1}"

    def publish(self, rounds: int = 1) -> None:
        """As a shell does, to each queue in turn."""
        for _ in range(rounds):
            begin = len(self._published)
            bodies = [b"message %d " % number * 8 for number in range(begin, begin + ROUND)]
            for queue in range(QUEUES):
                with open(self._mount / TOPIC / str(queue) / f"append@keys=round-{begin}", "ab") as append:
                    append.writelines(body + b"\n" for body in bodies[queue::QUEUES])
            self._published += bodies

    @contextmanager
    def slave(self, driver: Driver) -> Iterator[Broker]:
        """A slave over its store, with the steps that it needs. It runs until its driver ends."""
        self.step("topics", self._master, str(self._slave_store))
        master_ha = f"127.0.0.1:{self._ha_port}"
        broker = start_broker(driver, self._slave_store, {**SLAVE, "haMasterAddress": master_ha})
        if self._room.line.name == "v5":
            self.step("connect", broker.address, master_ha)
        self.step("route", self._master, broker.address, broker.names)
        yield broker

    def step(self, *words: str) -> None:
        """One of the steps of the example."""
        subprocess.run(
            [sys.executable, PROJECT / "examples/feed_consumers.py", *words], check=True, stdout=subprocess.DEVNULL
        )

    def kill_mount(self) -> None:
        """Kill its daemon; the next one goes on."""
        os.kill(status(self._mount)["pid"], signal.SIGKILL)
        self._room.tally.expect("restarts of the mount", True, status(self._mount)["restarts"] > 0)

    def await_copy(self, broker: Broker) -> int:
        """Return once the slave has the whole log; the log's end."""
        end: int = status(self._mount)["stats"]["physical_end"]
        await_until(lambda: broker.figures()["max_physical_offset"] == end, "the slave has the whole log")
        await_until(self._is_acknowledged, "the slave acknowledged the whole log")
        return end

    def _is_acknowledged(self) -> bool:
        return 0 in [replica["lag_bytes"] for replica in status(self._mount)["replication"]["replicas"]]

    def consume(self, broker: Broker) -> None:
        """Compare what a group of real consumers gets from the slave with what was published."""
        found = broker.consume(TOPIC, GROUP, len(self._published), reject_every=NEVER)
        self._room.tally.messages += len(found)
        self._room.tally.expect("bodies that a consumer got", sorted(self._published), sorted(found))
        stands = broker.await_offsets(TOPIC, GROUP, len(self._published))[f"{TOPIC}@{GROUP}"]
        self._room.tally.expect("offsets of the group", len(self._published), sum(stands.values()))

    def compare(self, ours: Path, end: int) -> None:
        """Compare the logs byte for byte, and what both stores find."""
        tally = self._room.tally
        our_log, their_log = (content_of(path / "commitlog")[:end] for path in (ours, self._slave_store))
        tally.expect("the log's bytes", True, our_log == their_log)
        used = len(self._published) // QUEUES * 20
        for queue in range(QUEUES):
            folders = (path / "consumequeue" / TOPIC / str(queue) for path in (ours, self._slave_store))
            our_queue, their_queue = (content_of(folder)[:used] for folder in folders)
            tally.expect(f"bytes of consume queue {queue}", True, our_queue == their_queue)
        with (
            MessageStore.open(ours, StoreConfig(mode=OpenMode.READ_ONLY)) as our_store,
            MessageStore.open(self._slave_store, StoreConfig(mode=OpenMode.READ_ONLY)) as their_store,
        ):
            for begin in range(0, len(self._published), ROUND):
                tally.queries += 1
                found = [
                    sorted(one.physical_offset for one in store.query(TOPIC, f"round-{begin}", 2 * ROUND))
                    for store in (our_store, their_store)
                ]
                tally.expect(f"messages of round-{begin}", (ROUND, found[0]), (len(found[1]), found[1]))


def slave_and_consumers(room: Room) -> None:
    """A slave begins with the whole log of some files, goes on over kills of itself and of the mount's daemon, and
    feeds a group of consumers; at the end both logs are equal in each byte."""
    ours, ha_port = room.folder / "ours", free_port()
    settings = {**SETTINGS, "brokerRole": "ASYNC_MASTER", "haListenPort": ha_port}
    options = ",".join(f"{name}={value}" for name, value in settings.items())
    with mounted(ours, room.folder / "mount", "-o", options) as mount:
        (mount / TOPIC).mkdir()
        feeding = Feeding(room, mount, ha_port)
        feeding.publish(3)
        with room.driver() as driver, feeding.slave(driver) as slave:
            feeding.await_copy(slave)
            feeding.publish()
            feeding.kill_mount()
            feeding.publish()
            feeding.await_copy(slave)
            driver.kill()
        feeding.publish()
        with room.driver() as driver, feeding.slave(driver) as slave:
            feeding.publish()
            end = feeding.await_copy(slave)
            feeding.consume(slave)
            driver.call("broker_stop")
    feeding.compare(ours, end)


def content_of(folder: Path) -> bytes:
    """The bytes of its files, in order."""
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def await_until(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() > limit:
            raise TimeoutError(f"never: {what}")
        time.sleep(POLL_SECONDS)
