"""MountClient: requests to the daemon that serves a store, by files below the mount point."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from msgspec.structs import replace

from engine import (
    SCHEDULE_TOPIC,
    UNIQUE_KEY,
    ConsumerOffsetError,
    DelayLevels,
    Message,
    ReadOnlyStoreError,
    StoreConfig,
    StoreIdentity,
    TopicExistsError,
    TopicNotFoundError,
    check_message,
    group_problem,
    illegal_topic,
    refuse_topics,
)
from fsstore.interface import WHOLE_WRITE_BYTES
from fsstore.tree.names import MATCHES_SUFFIX, NAME_MAX_BYTES, encode_key, parse_match
from mountctl.client import Labels, Placed, Queue, Topic, batches, whole_lines
from mountctl.errors import CommandError
from mountctl.places import Mount

_NEWLINE = 10
_COMMAND_BYTES, _ENTRY_BYTES = 32, 16
"""Most bytes of a command besides its topics, and of a topic besides its name."""


_STOPPED = frozenset((errno.EIO, errno.ENOENT, errno.EROFS))
"""Errors with which a mount refuses a command when the store is read-only; its status says why."""


class MountClient:
    """The client of the store mounted at `mount`. Errors: OSError, with the path that failed; CommandError."""

    def __init__(self, mount: Mount) -> None:
        self.store = mount.store
        """The mount point."""
        self.published = 0
        self._root = mount.mountpoint

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self._root / "@store/status.json").read_bytes())
        return status

    def topics(self) -> list[Topic]:
        status = self.status()
        for sentence in status.get("refused_queues", ()):
            raise CommandError(sentence, "mountctl check tells more", os.EX_IOERR)
        return [Topic(name, _queues(topic["queues"])) for name, topic in sorted(status["topics"].items())]

    def has_topic(self, topic: str) -> bool:
        return (self._root / topic / "append").exists()

    def with_key(self, topic: str, key: str) -> Iterator[tuple[int, int]]:
        """Queue and queue offset of each message that carries `key`."""
        name = encode_key(key)
        if name is None or len(name) + len(MATCHES_SUFFIX) > NAME_MAX_BYTES:
            raise CommandError(f"the key {key[:40]!r}... is longer than a name", "unmount the store", os.EX_USAGE)
        try:
            matches = os.listdir(self._root / topic / "keys" / os.fsdecode(name + MATCHES_SUFFIX))
        except FileNotFoundError:
            return
        yield from filter(None, (parse_match(os.fsencode(match)) for match in matches))

    def claim(self, group: str, topic: str, queue: int) -> MountClaim | None:
        if problem := group_problem(group):
            raise ConsumerOffsetError(group, problem)
        folder = self._root / "@store/groups" / group / topic
        try:
            for made in (folder.parent, folder):
                with suppress(FileExistsError):
                    made.mkdir()
            descriptor = os.open(folder / str(queue), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unread_offsets(error) or self._refusal(topic, queue, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return MountClaim(descriptor, self._unread_offsets)

    def _unread_offsets(self, error: OSError) -> CommandError | None:
        """The error for a file of offsets that can't be read; None: `error` has another cause."""
        problems = self.status()["settings_problems"] if error.errno == errno.EIO else []
        named = [problem for problem in problems if "onsumerOffset.json" in problem]
        return CommandError(named[0], exit_code=os.EX_IOERR) if named else None

    def body_limit_bytes(self) -> int:
        return int(self._config["max_message_bytes"])

    @cached_property
    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self._root / "@store/config.json").read_bytes())["store"]
        return config

    def publish(
        self, queue: int | None, messages: Iterable[Message], stored: Callable[[Placed], None] | None = None
    ) -> None:
        checked = self._checked(messages, named=stored is not None)
        for batch in batches((message, _record(message)) for message in checked):
            lines = b"".join(line for _, line in batch)
            frame = "line" if len(lines) <= WHOLE_WRITE_BYTES else "file"
            self._write(batch[0][0].topic, queue, [lines], f"append@format=json,frame={frame}")
            self.published += len(batch)
            if stored:
                for message, _ in batch:
                    stored(self._place(message))

    def _checked(self, messages: Iterable[Message], named: bool) -> Iterator[Message]:
        """The same messages, checked first, since a mount can only report an errno. `named` adds a unique key to each.
        Errors as `MessageStore.put` raises them."""
        for message in messages:
            if named and UNIQUE_KEY.decode() not in message.properties:
                own = {**message.properties, UNIQUE_KEY.decode(): uuid.uuid4().hex.upper()}
                message = replace(message, properties=own)
            check_message(message, self.body_limit_bytes())
            yield message

    def _place(self, message: Message) -> Placed:
        """The slot of a published message, found by its unique key."""
        name = message.properties[UNIQUE_KEY.decode()]
        for topic in (message.topic, SCHEDULE_TOPIC):
            with suppress(FileNotFoundError):
                link = Path(os.readlink(self._root / topic / "keys" / name))
                return Placed(topic, int(link.parent.name), int(link.name))
        raise CommandError(f"{message.topic}: a message that was published is not found", "see mountctl status")

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        check_message(Message(topic, b"", labels.keys, labels.tags, labels.properties), self.body_limit_bytes())
        if labels.properties:
            for lines in whole_lines(chunks):
                bodies = filter(None, lines.split(b"\n"))
                self.publish(
                    queue, (Message(topic, body, labels.keys, labels.tags, labels.properties) for body in bodies)
                )
            return
        options = ",".join(_options(labels))
        name = f"append@{options}" if options else "append"
        if len(name) > NAME_MAX_BYTES:
            raise CommandError("keys and tags are too long to be given to a mounted store", "publish fewer or shorter")
        self._write(topic, queue, self._counted(chunks), name)

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same chunks; each chunk's lines are counted in `published` after it was written."""
        last = _NEWLINE
        for chunk in chunks:
            yield chunk
            ends = np.frombuffer(b"%c%b" % (last, chunk), np.uint8) == _NEWLINE
            self.published += int(np.count_nonzero(ends[1:] & ~ends[:-1]))
            last = chunk[-1]

    def _write(self, topic: str, queue: int | None, chunks: Iterable[bytes], name: str) -> None:
        folder = self._root / topic
        try:
            if not folder.is_dir():
                if queue is not None and queue >= self._config["default_queues"]:
                    raise TopicNotFoundError(topic)
                folder.mkdir()
            with open(folder / (name if queue is None else f"{queue}/{name}"), "wb", buffering=0) as append:
                for chunk in chunks:
                    _write_all(append.fileno(), chunk)
        except OSError as error:
            raise self._refusal(topic, queue, error) from error

    def _refusal(self, topic: str, queue: int | None, error: OSError) -> Exception:
        """The error that an unmounted store would raise for a refused message."""
        if error.errno == errno.EROFS:
            return ReadOnlyStoreError(self.status()["read_only_reason"] or "it is mounted read-only")
        if error.errno == errno.EFBIG:
            limit = self.body_limit_bytes()
            return CommandError(f"a line is over the limit of {limit:,} bytes", "publish it shorter", os.EX_DATAERR)
        if error.errno == errno.ENOENT and queue is not None and not (self._root / topic / str(queue)).is_dir():
            return TopicNotFoundError(topic, queue)
        if error.errno == errno.EINVAL:
            from fsstore.jobs.publishing import why_refused

            if reason := why_refused(str(self._root)):
                return CommandError(reason, exit_code=os.EX_DATAERR)
        return error

    def create_topics(self, topics: Mapping[str, int]) -> None:
        if any(illegal_topic(topic, queues) for topic, queues in topics.items()):
            self._refuse_topics(topics)
        for some in _as_commands(topics):
            try:
                self._command({"create_topics": some})
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.EINVAL):
                    self._refuse_topics(some)
                raise

    def _refuse_topics(self, topics: Mapping[str, int]) -> None:
        """Raise the errors of those topics that can't be created: a mount can only report an errno."""
        refuse_topics(
            illegal_topic(topic, queues) or (TopicExistsError(topic) if self.has_topic(topic) else None)
            for topic, queues in topics.items()
        )

    def delete_topic(self, topic: str) -> None:
        self._command({"delete_topic": topic})

    def flush(self) -> None:
        """Have the daemon flush the log and the derived data to disk."""
        self._command({"flush": True})

    def store_config(self) -> StoreConfig:
        """The configuration with which another process finds the store's files."""
        config, identity = self._config, self._config.get("identity")
        paths = config["commit_log_paths"]
        return StoreConfig(
            identity=StoreIdentity(**identity) if isinstance(identity, dict) else None,
            max_message_bytes=config["max_message_bytes"],
            commit_log_paths=None if paths is None else tuple(map(Path, paths)),
            read_only_log_paths=tuple(map(Path, config["read_only_log_paths"])),
            multi_dispatch=config["multi_dispatch"],
            delay_levels=DelayLevels.parse(config["delay_levels"]) if "delay_levels" in config else DelayLevels.parse(),
        )

    def _command(self, command: dict[str, object]) -> None:
        """Write one command. It is opened without O_CREAT: a read-only mount has no such file."""
        try:
            descriptor = os.open(self._root / "@store/control", os.O_WRONLY)
            with open(descriptor, "wb", buffering=0) as control:
                control.write(json.dumps(command).encode() + b"\n")
        except OSError as error:
            status = self.status() if error.errno in _STOPPED else {"mode": ""}
            if status["mode"] == "write" and (why := status["read_only_reason"]):
                raise ReadOnlyStoreError(why) from error
            if error.errno != errno.ENOENT:
                raise
            reason = f"{self._root} is read-only"
            raise CommandError(reason, "name a mount that can be written", os.EX_NOPERM) from None


class MountClaim:
    """A lock on the file of a consumer group's offset."""

    def __init__(self, descriptor: int, unread: Callable[[OSError], CommandError | None]) -> None:
        """`unread` makes the error for a file of offsets that can't be read, if that is the cause."""
        self._descriptor = descriptor
        self._unread = unread

    def offset(self) -> int | None:
        with self._saying_why():
            text = os.pread(self._descriptor, 32, 0).strip()
        return int(text) if text else None

    def commit(self, offset: int) -> None:
        with self._saying_why():
            os.pwrite(self._descriptor, b"%d\n" % offset, 0)

    @contextmanager
    def _saying_why(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unread(error) or error from None

    def release(self) -> None:
        os.close(self._descriptor)


def _queues(bounds: Mapping[str, Mapping[str, int]]) -> tuple[Queue, ...]:
    numbers = sorted(bounds, key=int)
    return tuple(Queue(int(one), bounds[one]["min_offset"], bounds[one]["max_offset"]) for one in numbers)


def _as_commands(topics: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Divide topics into groups whose commands fit into one write each: most often one group."""
    some: dict[str, int] = {}
    size = _COMMAND_BYTES
    for topic, queues in topics.items():
        if size + len(topic) + _ENTRY_BYTES > WHOLE_WRITE_BYTES:
            yield some
            some, size = {}, _COMMAND_BYTES
        some[topic] = queues
        size += len(topic) + _ENTRY_BYTES
    yield some


def _record(message: Message) -> bytes:
    """A message as a line of JSON."""
    record = {
        "body_base64": base64.b64encode(message.body).decode(),
        "keys": list(message.keys),
        "tags": message.tags,
        "properties": dict(message.properties),
    }
    return json.dumps(record).encode() + b"\n"


def _options(labels: Labels) -> tuple[str, ...]:
    """Labels as options in the name of an append file."""
    keys = "+".join(quote(key, safe="") for key in labels.keys)
    tags = quote(labels.tags, safe="")
    return tuple(option for option, given in ((f"keys={keys}", keys), (f"tags={tags}", tags)) if given)


def _write_all(descriptor: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
