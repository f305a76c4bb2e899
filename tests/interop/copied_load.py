"""A live copy of a real broker under load: replica and master are killed in turn, and all of it is compared.

    each life of the master    a load, in which the replica is killed -9 and started again
                               a load, in which it is killed again, and then the master with its clients
    in the end                 the master is started once more, the copy catches up, both stop

`python -m tests.interop.copied_load` is the long form: 60 s at 3,000 messages a second. The copy's log is compared with
the master's byte for byte, then what our engine reads in both stores: of the master's with the queues and the index
that RocketMQ has written.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from engine import MessageStore, OpenMode, StoreConfig
from tests.interop.brokers import LIMIT_SECONDS, Broker, free_ports, start_broker
from tests.interop.compare import QUERY_LIMIT, message_fields
from tests.interop.copying import LOAD_SIZES, QUEUES, Copy, end_of, produce
from tests.interop.driver import DriverError
from tests.interop.mounts import mountctl
from tests.interop.room import Room, java_config
from tests.interop.toolchain import BUILD, LINES, NotAvailableError, build_drivers

RATE, SECONDS, LIVES = 3_000, 4, 1
LONG_SECONDS, LONG_LIVES = 60, 3
PIECE_BYTES = 8 << 20
CONFIG = java_config(
    LOAD_SIZES, brokerRole="ASYNC_MASTER", haSendHeartbeatInterval=1_000, waitTimeMillsInSendQueue=LIMIT_SECONDS * 1_000
)
"""A machine that has other work makes a broker slow; it refuses no message for that."""

READ_ONLY = StoreConfig(mode=OpenMode.READ_ONLY)


def copied_load(room: Room, rate: int = RATE, seconds: int = SECONDS, lives: int = LIVES) -> None:
    """Messages at `rate` for about `seconds`, over `lives` of the master."""
    path, (port,) = room.folder / "theirs", free_ports(1)
    sent: dict[str, int] = {}
    with ExitStack() as stack:
        copy: Copy | None = None
        for life in range(lives):
            with room.driver(threads=True) as driver:
                broker = start_broker(driver, path, CONFIG, port=port)
                if copy is None:
                    copy = Copy(room.folder / "ours", port)
                    stack.callback(copy.stop)
                sent |= load_twice(broker, copy, life, rate, seconds // lives // 2)
                driver.kill()
        assert copy is not None
        with room.driver(threads=True) as driver:
            broker = start_broker(driver, path, CONFIG, port=port)
            end = end_of(broker)
            copy.await_end(end)
            driver.call("broker_stop")
    compare_logs(room, path, copy.store, end)
    compare_stores(room, path, copy.store, sent)
    room.tally.expect("findings of a check", "no findings" in mountctl("check", copy.store), True)


def load_twice(broker: Broker, copy: Copy, life: int, rate: int, seconds: int) -> dict[str, int]:
    """Two loads of `seconds`, with a kill of the replica in each; the second one goes on when this returns. The number
    of messages that the first one's clients have sent, by topic."""
    whole, cut = f"whole-{life}", f"cut-{life}"
    for topic in (whole, cut):
        broker.make_topic(topic, QUEUES)
    produce(broker, rate, seconds, whole)
    kill_in(copy, seconds / 2)
    load = broker.driver.call("produced")
    if load["failures"]:
        raise DriverError(f"{load['failures']} of {rate * seconds} messages could not be sent")
    sent = {whole: sum(load["by_queue"])}
    produce(broker, rate, seconds, cut)
    kill_in(copy, seconds / 2)
    time.sleep(seconds / 4)
    return sent


def kill_in(copy: Copy, seconds: float) -> None:
    """Kill the replica after `seconds`, and start it again."""
    time.sleep(seconds)
    copy.kill()
    copy.start()


def compare_logs(room: Room, path: Path, copy: Path, end: int) -> None:
    """Both logs up to the physical offset `end`, byte for byte."""
    for theirs in sorted((path / "commitlog").iterdir()):
        left = min(theirs.stat().st_size, end - int(theirs.name))
        with theirs.open("rb") as their_file, (copy / "commitlog" / theirs.name).open("rb") as our_file:
            while left > 0:
                size = min(left, PIECE_BYTES)
                where, left = f"the log's bytes at {end - left} of {theirs.name}", left - size
                room.tally.expect(where, True, their_file.read(size) == our_file.read(size))


def compare_stores(room: Room, path: Path, copy: Path, sent: dict[str, int]) -> None:
    """Every message and each of its keys in both stores; `sent` says how many messages topics have at least."""
    tally = room.tally
    with MessageStore.open(path, READ_ONLY) as theirs, MessageStore.open(copy, READ_ONLY) as ours:
        queues = [(topic, queue) for topic in theirs.topics() for queue in theirs.queues(topic)]
        for topic, queue in queues:
            bounds = theirs.bounds(topic, queue)
            if not bounds.count:
                continue
            tally.expect(f"bounds of {topic}/{queue}", bounds, ours.bounds(topic, queue))
            pairs = zip(theirs.read(topic, queue, 0), ours.read(topic, queue, 0), strict=False)
            for number, (their, our) in enumerate(pairs):
                tally.messages += 1
                if (expected := message_fields(their)) != message_fields(our):
                    tally.expect(f"{topic}/{queue}/{number}", expected, message_fields(our))
                for key in {*their.keys, their.unique_key} - {""}:
                    tally.queries += 1
                    found = [
                        [one.physical_offset for one in store.query(topic, key, QUERY_LIMIT)]
                        for store in (theirs, ours)
                    ]
                    tally.expect(f"query {topic}#{key}", *found)
                    tally.expect(f"query {topic}#{key} has its message", True, their.physical_offset in found[1])
        for topic, count in sent.items():
            found_count = sum(ours.bounds(topic, queue).count for queue in ours.queues(topic))
            tally.expect(f"messages of {topic}", count, found_count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=LONG_SECONDS)
    parser.add_argument("--lives", type=int, default=LONG_LIVES, help="of the master")
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second")
    parser.add_argument("--line", choices=[line.name for line in LINES])
    options = parser.parse_args()
    try:
        build_drivers()
    except NotAvailableError as error:
        print(error)
        return 75
    differences = 0
    for line in LINES:
        if options.line in (None, line.name):
            folder = Path(tempfile.mkdtemp(prefix="copied-load-", dir=BUILD))
            room, began = Room(line, folder, seed=0), time.monotonic()
            copied_load(room, options.rate, options.seconds, options.lives)
            tally = room.tally
            differences += len(tally.differences)
            log_bytes = sum(file.stat().st_size for file in (folder / "ours/commitlog").iterdir())
            figures = {
                "version": line.version,
                "messages": tally.messages,
                "queries": tally.queries,
                "log_bytes": log_bytes,
                "kills": {"replica": 2 * options.lives, "master": options.lives},
                "different": tally.differences[:5],
                "seconds": round(time.monotonic() - began),
            }
            print(json.dumps(figures), flush=True)
            if not tally.differences:
                shutil.rmtree(folder)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
