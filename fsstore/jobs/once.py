"""Exactly once: finds the messages of a batch that a topic has already.

Each write of a batch is published as a whole or not at all, and its first message marks it, in the same record:

    UNIQ_KEY      spark.<application>.<batch>          the key: `keys/<key>@all` lists all writes of a batch
    SPARK_WRITE   <task>/<messages>/<write>/<proof>    the number of consecutive messages, and the write's name

Any publisher may store such a message. The proof is a keyed hash of the other fields, with a token that only the job
knows, so no other publisher can make it. A copied mark has the same name; the first one in the log is valid.

So the store alone tells which messages are published, whichever process died. A repeated task, or one that runs twice
at the same time, leaves out the messages in the writes of that task, and waits until no other try of it publishes. A
batch that is repeated after a restart is one task that leaves out the messages in all writes, since its rows may be
distributed to tasks differently. Rows are compared by content, so their order does not matter.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Any, NamedTuple

from fsstore.interface import WHOLE_WRITE_BYTES
from fsstore.jobs.mount import QueueRange, bounds, cut, if_there, range_path, within

_WRITE = "SPARK_WRITE"
_WRITTEN = re.compile(r"([0-9]{1,9})/([0-9]{1,6})/([0-9a-f]+)/([0-9a-f]{32})")
_APPLICATION = re.compile(r"[\w.-]{1,100}", re.ASCII)

MOST_MESSAGES = WHOLE_WRITE_BYTES // len(b'{"body":""}\n')
"""Messages of one write at most."""
MARK_BYTES = 340
"""Bytes of the mark of a write."""


class Write(NamedTuple):
    """Messages that a task published in one write."""

    part: QueueRange
    task: int
    name: str


class Batch(NamedTuple):
    """A batch that a topic of the store mounted at `root` is to get once."""

    root: str
    topic: str
    application: str
    number: int
    token: str

    @classmethod
    def of(cls, root: str, topic: str, application: str, number: int, token: str) -> Batch:
        """`token` is a secret of the job, the same each time. ValueError: an invalid application name, or no token."""
        if not _APPLICATION.fullmatch(application):
            raise ValueError(f"app_id must be up to 100 letters, digits, dots, dashes and underscores: {application!r}")
        if not token:
            raise ValueError("app_id needs a token, or other publishers could claim that rows of a batch are published")
        return cls(root, topic, application, int(number), token)

    @property
    def _key(self) -> str:
        return f"spark.{self.application}.{self.number}"

    def marked(self, lines: list[bytes], task: int, name: str) -> list[bytes]:
        """Lines of JSON for one write, with the mark in the first one: up to MARK_BYTES more."""
        write = f"{task}/{len(lines)}/{name}"
        properties = json.dumps({"UNIQ_KEY": self._key, _WRITE: f"{write}/{self._proof(write)}"}).encode()
        return [lines[0][:-1] + b', "properties": ' + properties + b"}", *lines[1:]]

    def _proof(self, write: str) -> str:
        key = blake2b(self.token.encode()).digest()
        return blake2b(f"{self.topic}/{self._key}/{write}".encode(), key=key, digest_size=16).hexdigest()

    def writes(self) -> list[Write]:
        """The published writes of the batch. Waits for the mount while its daemon is down."""
        folder = Path(self.root, self.topic, "keys", f"{self._key}@all")
        found: dict[str, tuple[int, Write]] = {}
        for name in if_there(self.root, lambda: os.listdir(folder)) or ():
            write = self._write_at(folder / name)
            at = if_there(self.root, lambda: os.getxattr(folder / name, "user.mq.physical_offset"))  # noqa: B023
            if write is not None and at is not None:
                copy = int(at), write
                found[write.name] = min(copy, found.get(write.name, copy))
        return [write for _, write in found.values()]

    def _write_at(self, message: Path) -> Write | None:
        """The write that begins with a message; None: it is the first of none of this job's writes."""
        written = if_there(self.root, lambda: os.getxattr(message, f"user.mq.property.{_WRITE}"))
        match = _WRITTEN.fullmatch((written or b"").decode("utf-8", "replace"))
        if match is None or int(match[2]) > MOST_MESSAGES:
            return None
        said, _, proof = match[0].rpartition("/")
        if not compare_digest(proof, self._proof(said)):
            return None
        queue, begin = map(int, message.name.split("-"))
        return Write(QueueRange(self.topic, queue, begin, begin + int(match[2])), int(match[1]), match[3])

    @contextmanager
    def only_try(self, task: int) -> Iterator[None]:
        """While the block runs, no other try of that task runs on this host. It locks a file that a writable mount has,
        with a lock of the kernel, which ends with its process. OSError EROFS."""
        digest = blake2b(f"{self.topic}/{self._key}/{task}".encode(), digest_size=7).digest()
        control = os.path.join(self.root, "@store/control")
        descriptor = if_there(self.root, lambda: os.open(control, os.O_WRONLY))
        if descriptor is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.root)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, int.from_bytes(digest))
            yield
        finally:
            os.close(descriptor)


def left_out(root: str, writes: list[Write]) -> Callable[[bytes], bool]:
    """A function that takes lines of JSON one after the other: whether these writes have the message."""
    now = bounds(root) if writes else {}
    there = Counter(row for write in writes for row in _rows(root, within(now, write.part)))

    def is_there(line: bytes) -> bool:
        row = _row_of(line) if there else b""
        if not there[row]:
            return False
        there[row] -= 1
        return True

    return is_there


def _rows(root: str, whole: QueueRange) -> Iterator[bytes]:
    import pyarrow.parquet as pq  # here, because only repeated tasks need it

    for part in cut(whole):
        for message in pq.read_table(range_path(root, part), columns=["body", "keys", "tags"]).to_pylist():
            yield _row(message["body"], message["keys"], message["tags"])


def _row_of(line: bytes) -> bytes:
    message: dict[str, Any] = json.loads(line)
    body = message["body"].encode() if "body" in message else base64.b64decode(message["body_base64"])
    keys = message.get("keys", [])
    return _row(body, [keys] if isinstance(keys, str) else keys, message.get("tags", ""))


def _row(body: bytes, keys: list[str], tags: str) -> bytes:
    """The hash by which messages are compared."""
    text = json.dumps([keys, tags]).encode()
    return blake2b(text + b"\n" + body, digest_size=16).digest()
