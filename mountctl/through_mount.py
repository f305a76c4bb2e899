"""A mounted store, reached as anybody reaches it: by the files below its mount point."""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engine import (
    IllegalTopicError,
    Message,
    ReadOnlyStoreError,
    TopicNotFoundError,
    check_message,
    topic_problem,
)
from fsstore.tree.names import NAME_MAX_BYTES, encode_key, offset_name
from fsstore.tree.xattrs import PREFIX
from mountctl.access import Labels, Queue, Shown, Topic
from mountctl.errors import CommandError
from mountctl.places import Mount

_LEFT_OUT = frozenset((errno.EIO, errno.ENOENT, errno.ESTALE))
"""What reading one message may answer; everything else, a daemon that is gone above all, is about them all."""


class MountedStore:
    """Access to the store mounted at `mount`. Errors are the mount's own: OSError, with the path it met."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._root = mount.mountpoint
        self._body_limit_bytes: int | None = None

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self._root / "@store/status.json").read_bytes())
        return status

    def topics(self) -> list[Topic]:
        topics = self.status()["topics"]
        return [Topic(name, _queues(topics[name])) for name in sorted(topics)]

    def bounds(self, topic: str, queue: int) -> Queue:
        folder = self._root / topic / str(queue)
        try:
            first, last = os.readlink(folder / "@first"), os.readlink(folder / "@last")
        except FileNotFoundError:  # an empty queue has neither, and its status says where it stands
            return _queue(queue, self.status()["topics"][topic]["queues"][str(queue)])
        return Queue(queue, int(os.path.basename(first)), int(os.path.basename(last)) + 1)

    def messages(self, topic: str, queue: int, start: int, count: int | None, attributes: bool) -> Iterator[Shown]:
        bounds = self.bounds(topic, queue)
        end = bounds.max_offset if count is None else min(start + count, bounds.max_offset)
        for offset in range(max(start, bounds.min_offset), end):
            try:
                yield self._message(topic, queue, offset, attributes)
            except OSError as error:  # damaged, or expired since: left out, and the offsets show it
                if error.errno not in _LEFT_OUT:
                    raise

    def _message(self, topic: str, queue: int, offset: int, attributes: bool) -> Shown:
        path = self._root / topic / str(queue) / offset_name(offset).decode()
        return Shown(topic, queue, offset, path.read_bytes(), _attributes(path) if attributes else {})

    def with_key(self, topic: str, key: str) -> Shown | None:
        name = encode_key(key)
        if name is None:
            return None
        try:
            target = Path(os.readlink(self._root / topic / "keys" / os.fsdecode(name)))
        except FileNotFoundError:
            return None
        return self._message(topic, int(target.parent.name), int(target.name), True)

    def offset_at(self, topic: str, queue: int, when: str) -> int:
        link = self._root / topic / str(queue) / f"@{when.removeprefix('@')}"
        try:
            return int(os.path.basename(os.readlink(link)))
        except FileNotFoundError:
            return self.bounds(topic, queue).max_offset

    def body_limit_bytes(self) -> int:
        if self._body_limit_bytes is None:
            config = json.loads((self._root / "@store/config.json").read_bytes())
            self._body_limit_bytes = int(config["store"]["max_message_bytes"])
        return self._body_limit_bytes

    def publish(self, topic: str, queue: int | None, body: bytes, labels: Labels) -> None:
        self._check(topic, body, labels)
        record = {"body_base64": base64.b64encode(body).decode(), "keys": list(labels.keys), "tags": labels.tags}
        self._write(topic, queue, [json.dumps(record).encode()], "append@format=json,frame=file")

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        self._check(topic, b"", labels)
        options = ",".join(_options(labels))
        name = f"append@{options}" if options else "append"
        if len(name) > NAME_MAX_BYTES:
            raise CommandError("keys and tags are too long to be given to a mounted store", "publish fewer or shorter")
        self._write(topic, queue, chunks, name)

    def _check(self, topic: str, body: bytes, labels: Labels) -> None:
        """What is wrong with a message has the engine's words: a mount has only an errno for it."""
        check_message(Message(topic, body, keys=labels.keys, tags=labels.tags), self.body_limit_bytes())

    def _write(self, topic: str, queue: int | None, chunks: Iterable[bytes], name: str) -> None:
        folder = self._root / topic
        try:
            if not folder.is_dir():
                folder.mkdir()
            with open(folder / (name if queue is None else f"{queue}/{name}"), "wb", buffering=0) as append:
                for chunk in chunks:
                    _write_all(append.fileno(), chunk)
        except OSError as error:
            raise self._refusal(topic, queue, error) from error

    def _refusal(self, topic: str, queue: int | None, error: OSError) -> Exception:
        """Why a message was refused, as an unmounted store says it."""
        if error.errno == errno.EROFS:
            return ReadOnlyStoreError(self.status()["read_only_reason"] or "it is mounted read-only")
        if error.errno == errno.EFBIG:
            limit = self.body_limit_bytes()
            return CommandError(f"a line is over the limit of {limit:,} bytes", "publish it shorter", os.EX_DATAERR)
        if error.errno == errno.ENOENT and queue is not None and not (self._root / topic / str(queue)).is_dir():
            return TopicNotFoundError(topic, queue)
        return error

    def create_topic(self, topic: str, queues: int) -> None:
        if problem := topic_problem(topic):
            raise IllegalTopicError(topic, problem)
        try:
            self._command({"create_topic": topic, "queues": queues})
        except FileExistsError:
            raise CommandError(f"topic {topic!r} exists", exit_code=os.EX_USAGE) from None

    def delete_topic(self, topic: str) -> None:
        self._command({"delete_topic": topic})

    def _command(self, command: dict[str, object]) -> None:
        """One write, one command. Opened without O_CREAT: a read-only mount has no such file."""
        try:
            descriptor = os.open(self._root / "@store/control", os.O_WRONLY)
        except FileNotFoundError:
            reason = f"{self._root} is read-only"
            raise CommandError(reason, "name a mount that can be written", os.EX_NOPERM) from None
        with open(descriptor, "wb", buffering=0) as control:
            control.write(json.dumps(command).encode() + b"\n")


def _queues(topic: dict[str, Any]) -> tuple[Queue, ...]:
    return tuple(_queue(int(number), topic["queues"][number]) for number in sorted(topic["queues"], key=int))


def _queue(number: int, bounds: dict[str, int]) -> Queue:
    return Queue(number, bounds["min_offset"], bounds["max_offset"])


def _attributes(path: Path) -> dict[str, str]:
    names = (name for name in os.listxattr(path) if name.startswith(PREFIX))
    return {name.removeprefix(PREFIX): os.getxattr(path, name).decode("utf-8", "replace") for name in names}


def _options(labels: Labels) -> tuple[str, ...]:
    """Labels as an append name carries them."""
    keys = "+".join(quote(key, safe="") for key in labels.keys)
    tags = quote(labels.tags, safe="")
    return tuple(option for option, given in ((f"keys={keys}", keys), (f"tags={tags}", tags)) if given)


def _write_all(descriptor: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
