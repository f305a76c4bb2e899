"""The stores that damage is done to: closed by us, killed, attacked by a hostile publisher, and written by RocketMQ.
Each is known to the last message."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from engine import (
    FileSizes,
    FlushPolicy,
    Message,
    MessageStore,
    OpenMode,
    StoreConfig,
    StoredMessage,
    WriteError,
    check_store,
)
from engine.files.disk import Disk
from tests.durability.attacks import Attacker, Queue, Sight
from tests.durability.bodies import body_of
from tests.engine.storetools import QUIET, HastyDisk, letting_forgeries_in
from tests.golden import golden

SIZES = FileSizes(commit_log_bytes=16_384, consume_queue_entries=32, index_slots=17, index_entries=96)
ENTRY_BYTES = 20
HEADER_BYTES = 88
"""Of a record whose hosts are IPv4, up to its body."""

PROTECTED_HEADER = ((0, 8), (9, 12), (20, 36))
"""Size, magic, CRC (less the byte with the bit that nobody keeps), queue offset, physical offset."""

Place = tuple[str, int, int]
"""Topic, queue, queue offset."""


@dataclass(frozen=True, slots=True)
class Known:
    """A message of an undamaged store: its record is [start, end) of a file of the log, its entry at a byte of a file
    of its queue. `protected` are the ranges of the record whose damage always shows."""

    body: bytes
    path: str
    start: int
    end: int
    protected: tuple[tuple[int, int], ...]
    entry_path: str
    entry: int


@dataclass(frozen=True)
class Base:
    """An undamaged store in memory: its files with their times, its messages by place."""

    name: str
    sizes: FileSizes
    files: dict[str, bytes]
    times_ns: dict[str, int]
    folders: tuple[str, ...]
    messages: dict[Place, Known]
    flush: FlushPolicy = QUIET
    disk: Disk = HastyDisk()  # noqa: RUF009 - it has no state

    @cached_property
    def sizes_unknown(self) -> frozenset[str]:
        """Kinds of files of which there is but one, in a store that does not remember how long they were made."""
        if "config/sizes.json" in self.files:
            return frozenset()
        counts = Counter(name.split("/")[0] for name in self.files)
        return frozenset(part for part, count in counts.items() if count == 1)

    @cached_property
    def bodies(self) -> frozenset[bytes]:
        """Every body of the store."""
        return frozenset(known.body for known in self.messages.values())

    def bodies_in(self, text: bytes) -> Iterator[bytes]:
        """Bytes of a stream that are in no body of this store. Bodies may contain newlines, so they are searched
        for."""
        while text:
            body = self._leading(text)
            if body is None:
                yield text
                return
            text = text[len(body) + 1 :]

    def _leading(self, text: bytes) -> bytes | None:
        first, newline, _ = text.partition(b"\n")
        if newline and first in self.bodies:
            return first
        return next((body for body in self.bodies if text.startswith(body + b"\n")), None)

    def another_message(self) -> Message:
        """One that is not in it."""
        return Message("another", b"put after the damage", ["another"])


def bases(folder: Path) -> list[Base]:
    """Build them below `folder`; each that was closed checks clean."""
    folder.mkdir(parents=True)
    config = StoreConfig(sizes=SIZES, flush=QUIET, preallocate=False, disk=HastyDisk())
    with MessageStore.open(folder / "closed", config, create=True) as store:
        _fill(store)
        shutil.copytree(folder / "closed", folder / "killed")
        _fill(store, first=1_000)
    with MessageStore.open(folder / "attacked", replace(config, multi_dispatch=False), create=True) as store:
        _fill(store)
        _attack(store)
        _fill(store, first=1_000)
    found = [_base(name, folder / name, SIZES) for name in ("closed", "killed", "attacked")]
    for name in ("rolled", "delay", "txn"):
        store_by_rocketmq = golden(name, folder)
        found.append(_base(name, store_by_rocketmq.path, store_by_rocketmq.sizes))
    return found


def _fill(store: MessageStore, first: int = 0) -> None:
    for number in range(first, first + 60):
        topic, queue = ("orders", "events")[number % 2], number // 2 % 2
        size = (40, 200, 700)[number % 3]
        store.put(Message(topic, body_of(0, number, size), [f"K{number}", "all"], tags=f"T{number % 3}"), queue)
        if number % 25 == 24:
            store.put_lines(topic, b"".join(body_of(1, number + row, 60) + b"\n" for row in range(20)), 0, keys=["L"])
        if number % 40 == 39:
            store.flush()


def _attack(store: MessageStore) -> None:
    """Messages that a hostile publisher sends and a broker accepts, each followed by an ordinary one."""
    queues = [Queue("orders", 0), Queue("events", 0)]
    attacker = Attacker(random.Random(1), "hostile", queues)
    for number in range(100, 140):
        sight = Sight.of(store, queues, int(time.time() * 1_000))
        with suppress(WriteError), letting_forgeries_in():
            store.put_batch(attacker.attack(sight).messages, 0)
        store.put(Message("orders", body_of(0, number, 90), [f"K{number}"]), 0)


def _base(name: str, path: Path, sizes: FileSizes) -> Base:
    assert (path / "abort").exists() or list(check_store(path)) == [], path
    files = read_files(path)
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY, sizes=sizes)) as store:
        assert store.sizes == sizes
        messages = dict(_messages(store, sizes))
    times_ns = {file: (path / file).stat().st_mtime_ns for file in files}
    folders = tuple(sorted(str(member.relative_to(path)) for member in path.rglob("*") if member.is_dir()))
    return Base(name, sizes, files, times_ns, folders, messages)


def _messages(store: MessageStore, sizes: FileSizes) -> Iterator[tuple[Place, Known]]:
    for topic in store.topics():
        for queue in store.queues(topic):
            bounds = store.bounds(topic, queue)
            for queue_offset in range(bounds.min_offset, bounds.max_offset):
                message = store.get(topic, queue, queue_offset)
                position = queue_offset * ENTRY_BYTES
                start = position - position % sizes.consume_queue_bytes
                entry_path = f"consumequeue/{topic}/{queue}/{start:020d}"
                yield (topic, queue, queue_offset), _known(message, sizes, entry_path, position - start)


def _known(message: StoredMessage, sizes: FileSizes, entry_path: str, entry: int) -> Known:
    start = message.physical_offset % sizes.commit_log_bytes
    path = f"commitlog/{message.physical_offset - start:020d}"
    body_end = start + HEADER_BYTES + len(message.stored_body)
    protected = [(start + first, start + last) for first, last in PROTECTED_HEADER]
    protected += [(start + HEADER_BYTES - 4, body_end), (body_end, body_end + 1 + len(message.topic.encode()))]
    end = start + message.store_size
    return Known(bytes(message.body), path, start, end, tuple(protected), entry_path, entry)


def read_files(path: Path) -> dict[str, bytes]:
    """Every file below `path`."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def write_files(base: Base, path: Path) -> None:
    """The undamaged store, at `path`; its files have their old times."""
    path.mkdir()
    for folder in base.folders:
        (path / folder).mkdir()
    for name, content in base.files.items():
        (path / name).write_bytes(content)
        os.utime(path / name, ns=(base.times_ns[name], base.times_ns[name]))
