"""They write, we read through a mount: message files, their times and attributes, keys, and the queue as one text."""

import os
from pathlib import Path
from typing import Any

from tests.interop.compare import digest, messages_of
from tests.interop.messages import Mix
from tests.interop.mounts import mounted
from tests.interop.room import SMALL, Room, java_config
from tests.interop.theirs import put_all

PUTS = 300
ATTRIBUTES = (
    "queue_offset",
    "physical_offset",
    "store_size",
    "sys_flag",
    "flag",
    "reconsume_times",
    "body_crc",
    "msg_id",
)


def mounted_read_only(room: Room) -> None:
    """Every message of a store that RocketMQ closed, as `cat`, `stat` and `getfattr` see it."""
    path = room.folder / "theirs"
    # a raw newline in a body is fine in a message file; the stream would show it as two lines, so it is compared whole
    puts = room.puts(PUTS, Mix(topics=("TopicTest", "%RETRY%group-1", "orders")))
    with room.driver() as driver, driver.store(path, java_config(SMALL)) as store:
        put_all(store, puts)
        dump = store.dump()
    with mounted(path, room.folder / "mount", "--read-only") as mount:
        for (topic, queue), messages in messages_of(dump).items():
            compare_queue(room, mount / topic, queue, messages)


def compare_queue(room: Room, topic: Path, queue: int, messages: list[dict[str, Any]]) -> None:
    """One queue: its listing, its files, and its stream."""
    folder = topic / str(queue)
    listed = sorted(name for name in os.listdir(folder) if name.isdigit())
    room.tally.expect(f"{folder} lists", [f"{index:020}" for index in range(len(messages))], listed)
    bodies = []
    for name, message in zip(listed, messages, strict=False):
        bodies.append(compare_file(room, topic, folder / name, message))
    room.tally.expect(
        f"{folder}.log",
        digest(b"".join(body + b"\n" for body in bodies)),
        digest(Path(f"{folder}.log").read_bytes()),
    )


def compare_file(room: Room, topic: Path, file: Path, message: dict[str, Any]) -> bytes:
    """A message file against RocketMQ's words for it; its body."""
    room.tally.messages += 1
    body = file.read_bytes()
    stat = file.stat()
    room.tally.expect(f"{file} body", message["body"], digest(body))
    room.tally.expect(
        f"{file} size and time", [len(body), message["store_time_ms"]], [stat.st_size, stat.st_mtime_ns // 1_000_000]
    )
    names = [*ATTRIBUTES, *(f"property.{name}" for name in message["properties"] if len(name) < 200)]
    theirs = [str(message[name]) for name in ATTRIBUTES] + [message["properties"][name[9:]] for name in names[8:]]
    ours = [os.getxattr(file, f"user.mq.{name}").decode() for name in names]
    room.tally.expect(f"{file} attributes", theirs, ours)
    compare_keys(room, topic, message)
    return body


def compare_keys(room: Room, topic: Path, message: dict[str, Any]) -> None:
    """A message is among those that its first key leads to."""
    keys = [key for key in message["properties"].get("KEYS", "").split(" ") if key and "/" not in key]
    if keys and message["topic"] == topic.name:
        room.tally.queries += 1
        encoded = keys[0].replace("%", "%25").replace("@", "%40")
        found = [
            os.readlink(topic / "keys" / f"{encoded}@all" / name)
            for name in os.listdir(topic / "keys" / f"{encoded}@all")
        ]
        wanted = f"{message['queue']}/{message['queue_offset']:020}"
        room.tally.expect(f"key {keys[0]} leads to {wanted}", True, any(link.endswith(wanted) for link in found))
