"""A live copy of a real broker: replica and broker are killed, and every byte, message and key is compared.

`python -m tests.interop.copying --seconds 60 --rate 3000` is the long form: it also measures how long after its sending
a message can be read through a mount of the copy, with a mount of the broker's own store beside it, and how fast a new
copy catches up.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engine import FileSizes, MessageStore, OpenMode, StoreConfig
from engine.replication.address import Address
from engine.replication.remoting import RemotingClient
from tests.interop.brokers import LIMIT_SECONDS, POLL_SECONDS, Broker, free_ports, start_broker
from tests.interop.compare import compare_dump, compare_queries, queries_for
from tests.interop.driver import Driver, DriverError
from tests.interop.follow import BODY_BYTES, TOPIC, await_path
from tests.interop.live import random_messages
from tests.interop.messages import Put
from tests.interop.mounts import MOUNTCTL, mountctl, mounted
from tests.interop.room import Room, java_config
from tests.interop.tailing import TopicReader
from tests.interop.toolchain import BUILD, LINES, Line, NotAvailableError, build_drivers

QUEUES = 4
RATE, SECONDS = 1_000, 6
SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=1_000, index_slots=5_000, index_entries=20_000)
READ_ONLY = StoreConfig(mode=OpenMode.READ_ONLY)


class Copy:
    """A replica's process, of one broker after another at the same ports."""

    def __init__(self, store: Path, broker_port: int) -> None:
        self.store = store
        self._master = f"127.0.0.1:{broker_port + 1}"
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        words = [str(MOUNTCTL), "replicate", self._master, str(self.store)]
        with self.store.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_SECONDS)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_SECONDS)

    @property
    def note(self) -> dict[str, Any]:
        """The state that it notes each second."""
        found: dict[str, Any] = json.loads((self.store / "fsstore/replica.json").read_text())
        return found

    @property
    def processor_seconds(self) -> float:
        """Processor time of its process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def await_end(self, end: int) -> None:
        """Return once the copy reaches that physical offset."""
        await_until((self.store / "fsstore/replica.json").exists, "the copy is made")
        await_until(lambda: self.note["physical_end"] >= end, f"the copy reaches {end}")


def await_until(is_so: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        if time.monotonic() > limit:
            raise DriverError(f"waited {LIMIT_SECONDS} s until {what}")
        time.sleep(POLL_SECONDS)


def port_of(broker: Broker) -> int:
    return int(broker.address.rpartition(":")[2])


def end_of(broker: Broker) -> int:
    end: int = broker.figures()["max_physical_offset"]
    return end


def produce(broker: Broker, rate: int, seconds: int, topic: str = TOPIC, body_bytes: int = BODY_BYTES) -> None:
    """Begin a load."""
    broker.driver.call(
        "produce",
        names=broker.names,
        topic=topic,
        queues=QUEUES,
        body_bytes=body_bytes,
        rate=rate,
        seconds=seconds,
    )


def copied_broker(room: Room) -> None:
    """A load, and messages of each kind; the replica is killed beside them, then the broker, both at their work."""
    path, copy_path = room.folder / "theirs", room.folder / "ours"
    config = java_config(SIZES, brokerRole="SYNC_MASTER", haSendHeartbeatInterval=1_000)
    with room.driver(threads=True) as driver:
        broker = start_broker(driver, path, config)
        port = port_of(broker)
        copy = Copy(copy_path, port)
        try:
            publish(broker, 0, room.seed)
            produce(broker, RATE, SECONDS)
            for _ in range(3):
                time.sleep(SECONDS / 4)
                copy.kill()
                copy.start()
            broker.driver.call("produced")
            copy.await_end(end_of(broker))
            produce(broker, RATE, SECONDS)
            time.sleep(SECONDS / 2)
            driver.kill()
            end = rest(room, copy, path, config, port)
        finally:
            copy.stop()
    compare(room, path, copy_path, end)


def copied_pair(room: Room) -> None:
    """Two brokers with a controller; the replica is killed beside the first one's load, then the first one in its load.
    The copy goes on from the second one, which is the master then."""
    paths, copy_path = [room.folder / name for name in ("first", "second")], room.folder / "ours"
    controller_port, names = free_ports(2)
    config = java_config(
        SIZES,
        brokerId=-1,
        enableControllerMode="true",
        allAckInSyncStateSet="true",
        controllerAddr=f"127.0.0.1:{controller_port}",
        haSendHeartbeatInterval=500,
    )
    with room.driver() as controller, room.driver(threads=True) as driver, room.driver(threads=True) as other:
        store = str(room.folder / "controller")
        controller.call("controller_start", port=controller_port, names_port=names, path=store)
        first = start_broker(driver, paths[0], config, names=names)
        second = start_broker(other, paths[1], config, names=names)
        copy = Copy(copy_path, port_of(first))
        try:
            publish(first, 0, room.seed)
            produce(first, RATE, SECONDS)
            for _ in range(3):
                time.sleep(SECONDS / 4)
                copy.kill()
                copy.start()
            first.driver.call("produced")
            copy.await_end(end_of(first))
            produce(first, RATE, SECONDS)
            time.sleep(SECONDS / 2)
            driver.kill()
            copy.stop()
            await_until(lambda: role_of(second) == "SYNC_MASTER", "the second broker is the master")
            copy = Copy(copy_path, port_of(second))
            publish(second, 1, room.seed)
            end = end_of(second)
            copy.await_end(end)
            room.tally.expect("epoch of the copy", 2, copy.note["epoch"])
            other.call("broker_stop")
        finally:
            copy.stop()
    epochs = [(path / "epochFileCheckpoint").read_text() for path in (paths[1], copy_path)]
    room.tally.expect("the epochs", *epochs)
    compare(room, paths[1], copy_path, end)


def role_of(broker: Broker) -> str:
    with RemotingClient(Address("127.0.0.1", port_of(broker))) as client:
        return client.facts().role


def rest(room: Room, copy: Copy, path: Path, config: dict[str, Any], port: int) -> int:
    """The same broker after its kill: the copy goes on by itself. Returns the log's end."""
    with room.driver(threads=True) as driver:
        broker = start_broker(driver, path, config, port=port)
        publish(broker, 1, room.seed)
        end = end_of(broker)
        copy.await_end(end)
        room.tally.expect("topics of the copy", True, TOPIC in (copy.store / "config/topics.json").read_text())
        driver.call("broker_stop")
    return end


def publish(broker: Broker, turn: int, seed: int) -> None:
    broker.make_topic(TOPIC, QUEUES)
    broker.make_topic("live", QUEUES)
    broker.send(random_messages(random.Random(f"{seed}-{turn}"), 30 * turn))


def compare(room: Room, path: Path, copy: Path, end: int) -> None:
    """The logs byte for byte; all that RocketMQ hands out of its store, and finds by key, against the copy."""
    tally = room.tally
    their_log, our_log = (log_of(one)[:end] for one in (path, copy))
    tally.expect("the log's bytes", True, their_log == our_log)
    queries = queries_for([Put("live", 0, properties=(("KEYS", f"key-{number}"),)) for number in range(60)], 60)
    with room.driver() as driver, driver.store(path, java_config(SIZES)) as store:
        dump, answers = store.dump(), store.query(queries)
    mountctl("promote", copy)
    with MessageStore.open(copy, READ_ONLY) as ours:
        compare_dump(tally, dump, ours)
        compare_queries(tally, queries, answers, ours, ours_may_find_more=True)
    tally.expect("findings of a check", "no findings" in mountctl("check", copy), True)
    with room.driver() as driver, driver.store(copy, java_config(SIZES)) as store:
        tally.expect("RocketMQ on the promoted copy", len(dump["messages"]), len(store.dump()["messages"]))


def log_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))


# the long form


def reader_of(mountpoint: Path) -> TopicReader:
    """Reads the load's messages from now on."""
    await_path(mountpoint / TOPIC, *(f"{queue}.log" for queue in range(QUEUES)))
    reader = TopicReader(mountpoint, TOPIC, QUEUES)
    reader.start()
    return reader


LOAD_SIZES = FileSizes(64 << 20, 300_000, 500_000, 2_000_000)


@contextmanager
def load_room(line_name: str) -> Iterator[tuple[Path, Driver, Line]]:
    """A folder that is removed in the end, and the driver of that line of RocketMQ."""
    line = next(line for line in LINES if line.name == line_name)
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="copying-", dir=BUILD))
    try:
        with Driver(line, folder / "home", threads=True) as driver:
            yield folder, driver, line
    finally:
        shutil.rmtree(folder, ignore_errors=True)


ROLES = ("ASYNC_MASTER", "SYNC_MASTER")
WARM_UP_SECONDS = 20
"""Until the Java machine has compiled what it runs often, which takes a processor."""


def measure(line_name: str, role: str, rate: int, seconds: int, body_bytes: int = BODY_BYTES) -> dict[str, Any]:
    """One run with figures."""
    with ExitStack() as stack:
        folder, driver, line = stack.enter_context(load_room(line_name))
        path = folder / "theirs"
        broker = start_broker(driver, path, java_config(LOAD_SIZES, brokerRole=role))
        for topic in ("warm-up", TOPIC):
            broker.make_topic(topic, QUEUES)
        copy = Copy(folder / "ours", port_of(broker))
        stack.callback(copy.stop)
        produce(broker, rate, WARM_UP_SECONDS, "warm-up", body_bytes)
        driver.call("produced")
        copy.await_end(end_of(broker))
        stores = {one: folder / f"mount-{one.name}" for one in (copy.store, path)}
        mounts = [stack.enter_context(mounted(one, where, "--follow")) for one, where in stores.items()]
        before, began, first = copy.processor_seconds, time.monotonic(), end_of(broker)
        produce(broker, rate, seconds, body_bytes=body_bytes)
        readers = [reader_of(one) for one in mounts]
        load = driver.call("produced")
        took = time.monotonic() - began
        copied = end_of(broker) - first
        share = (copy.processor_seconds - before) / took
        copy.await_end(first + copied)
        problems = [one for reader in readers for one in reader.finish(load["by_queue"])]
        delays = [reader.log_delays.figures() for reader in readers]
    return {
        "version": line.version,
        "role": role,
        "messages": sum(load["by_queue"]),
        "bytes_per_second": copied / took,
        "processor_share": share,
        "copy": delays[0],
        "own_store": delays[1],
        "sends": load["sends"],
        "problems": problems,
    }


CATCHING_UP_BYTES, LARGE_BODY_BYTES = 512 << 20, 4_000  # from 4 KiB on, a client compresses


def measure_catching_up(line_name: str) -> dict[str, Any]:
    """How fast a new copy takes a log of about CATCHING_UP_BYTES."""
    with load_room(line_name) as (folder, driver, line):
        broker = start_broker(driver, folder / "theirs", java_config(LOAD_SIZES))
        broker.make_topic(TOPIC, QUEUES)
        seconds = 15
        produce(broker, CATCHING_UP_BYTES // LARGE_BODY_BYTES // seconds, seconds, body_bytes=LARGE_BODY_BYTES)
        driver.call("produced")
        end, began = end_of(broker), time.monotonic()
        copy = Copy(folder / "ours", port_of(broker))
        try:
            copy.await_end(end)
            took, processor_seconds = time.monotonic() - began, copy.processor_seconds
        finally:
            copy.stop()
        return {
            "version": line.version,
            "bytes": end,
            "seconds": took,
            "bytes_per_second": end / took,
            "processor_seconds": processor_seconds,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES)
    parser.add_argument("--line", choices=[line.name for line in LINES])
    parser.add_argument("--role", choices=ROLES, help="only this one, and no catching up")
    options = parser.parse_args()
    try:
        build_drivers()
    except NotAvailableError as error:
        print(error)
        return 75
    for line in LINES:
        if options.line in (None, line.name):
            for role in ROLES if options.role is None else (options.role,):
                figures = measure(line.name, role, options.rate, options.seconds, options.body_bytes)
                print(json.dumps(figures), flush=True)
            if options.role is None:
                print(json.dumps(measure_catching_up(line.name)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
