"""A consumer group that goes on in turns: a client of a real broker, and a shell's `mountctl consume`."""

import json
import subprocess
import sys
from pathlib import Path

from tests.interop.brokers import client_message, live_broker
from tests.interop.mounts import mounted
from tests.interop.room import LARGE, Room, java_config

TOPIC, QUEUES = "shared", 4
GROUPS = CLIENT_FIRST, SHELL_FIRST = ("client-first", "shell-first")
NEVER = 1 << 30


def in_turns(room: Room) -> None:
    """Each goes on where the other ended: no message is missed, and none comes twice. One group begins with the client,
    the other in the shell, on a mount, with part of the queues."""
    path, sent = room.folder / "theirs", 0
    had: dict[str, list[bytes]] = {group: [] for group in GROUPS}

    def bodies(count: int) -> list[bytes]:
        nonlocal sent
        sent += count
        return [b"message %d" % number for number in range(sent - count, sent)]

    for turn in range(2):
        with room.driver(threads=True) as driver, live_broker(driver, path, java_config(LARGE)) as broker:
            if turn == 0:
                broker.make_topic(TOPIC, QUEUES)
            broker.send([client_message(TOPIC, body) for body in bodies(30)])
            for group in GROUPS[: turn + 1]:
                had[group] += broker.consume(TOPIC, group, sent, reject_every=NEVER)
                broker.await_offsets(TOPIC, group, sent)
                room.tally.expect(f"turn {turn}: what {group} had of the client", sent, len(had[group]))
            broker.send([client_message(TOPIC, body) for body in bodies(10)])
        with mounted(path, room.folder / f"mount{turn}") as place:
            _type("put", place, TOPIC, *(body.decode() for body in bodies(10)))
            had[SHELL_FIRST] += _type("consume", place, f"{TOPIC}/1", "-g", SHELL_FIRST, "-n", "7").splitlines()
        had[CLIENT_FIRST] += _type("consume", path, TOPIC, "-g", CLIENT_FIRST, "-n", "7").splitlines()
        had[CLIENT_FIRST] += _type(
            "consume", path, TOPIC, "-g", CLIENT_FIRST, "--", "sh", "-c", "cat; echo"
        ).splitlines()
        room.tally.expect(f"turn {turn}: what {CLIENT_FIRST} had", sent, len(had[CLIENT_FIRST]))
        _kept(room, path, had)
        _type("put", path, TOPIC, *(body.decode() for body in bodies(5)))
    had[SHELL_FIRST] += _type("consume", path, TOPIC, "-g", SHELL_FIRST).splitlines()
    had[CLIENT_FIRST] += _type("consume", path, TOPIC, "-g", CLIENT_FIRST).splitlines()
    for group in GROUPS:
        room.tally.messages += len(had[group])
        expected = sorted(b"message %d" % number for number in range(sent))
        room.tally.expect(f"each once in {group}", expected, sorted(had[group]))


def _kept(room: Room, path: Path, had: dict[str, list[bytes]]) -> None:
    """The broker's own file of offsets has those of both."""
    offsets = json.loads((path / "config/consumerOffset.json").read_bytes())["offsetTable"]
    for group in GROUPS:
        room.tally.expect(f"offsets of {group}", len(had[group]), sum(offsets[f"{TOPIC}@{group}"].values()))


def _type(verb: str, path: Path, *words: str) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "mountctl", verb, path, *words], capture_output=True, check=True
    ).stdout
