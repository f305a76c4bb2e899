"""A consumer group that goes on in turns: a client of a real broker, and a shell's `mountctl consume`."""

import subprocess
import sys
from pathlib import Path

from tests.interop.brokers import client_message, live_broker
from tests.interop.room import LARGE, Room, java_config

TOPIC, GROUP, QUEUES = "shared", "both", 4
NEVER = 1 << 30


def in_turns(room: Room) -> None:
    """Each goes on where the other ended: no message is missed, and none comes twice."""
    path, had, sent = room.folder / "theirs", list[bytes](), 0

    def bodies(count: int) -> list[bytes]:
        nonlocal sent
        sent += count
        return [b"message %d" % number for number in range(sent - count, sent)]

    for turn in range(2):
        with room.driver(threads=True) as driver, live_broker(driver, path, java_config(LARGE)) as broker:
            if turn == 0:
                broker.make_topic(TOPIC, QUEUES)
            broker.send([client_message(TOPIC, body) for body in bodies(30)])
            had += broker.consume(TOPIC, GROUP, sent, reject_every=NEVER)
            broker.await_offsets(TOPIC, GROUP, sent)
            broker.send([client_message(TOPIC, body) for body in bodies(10)])
        room.tally.expect(f"turn {turn}: what the client had", sent - 10, len(had))
        _type("put", path, TOPIC, *(body.decode() for body in bodies(10)))
        had += _type("consume", path, TOPIC, "-g", GROUP, "-n", "7").splitlines()
        had += _type("consume", path, TOPIC, "-g", GROUP, "--", "sh", "-c", "cat; echo").splitlines()
        room.tally.expect(f"turn {turn}: what both had", sent, len(had))
        _type("put", path, TOPIC, *(body.decode() for body in bodies(5)))
    room.tally.messages += len(had)
    room.tally.expect("each once", sorted(b"message %d" % number for number in range(sent - 5)), sorted(had))


def _type(verb: str, path: Path, *words: str) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "mountctl", verb, path, *words], capture_output=True, check=True
    ).stdout
