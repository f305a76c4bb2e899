"""Damage, thousands of cases: no hang, no crash, no wrong body, and all that is undamaged still readable.

    python -m tests.durability.damage [--cases 10000] [--seed 1]

A case takes one of several stores (closed by us, killed, attacked, written by RocketMQ), damages one to three files in
any part of it (flipped bits, zeroed or overwritten pages, cut, extended, missing, empty, foreign, swapped files,
folders and strange names in the way), and then looks at it with `check`, and with one of: an opening that reads only,
one that writes, and `repair`. The permitted cost of a case is computed from the differing bytes alone, not from the
kind of damage.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine import (
    MessageStore,
    MissingLogError,
    ObstructedError,
    OpenMode,
    ReadError,
    StoreConfig,
    check_store,
    repair_store,
)
from tests.durability.cases import CaseTally, HangError, Tell, main, no_progress, run_cases
from tests.durability.targets import Base, Place, bases, read_files, write_files

MODES = ("read", "write", "repair")
WEIGHTS = (3, 3, 3, 1, 2, 2)
"""How often each of the stores is taken: the largest least."""

Files = dict[str, bytes]
Hurt = Callable[[Path, random.Random], None]


# kinds of damage


def flip_bits(path: Path, chance: random.Random) -> None:
    """One to eight bits, somewhere the file has data."""
    content = bytearray(path.read_bytes())
    end = len(content.rstrip(b"\0")) if chance.random() < 0.8 else len(content)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        if end:
            content[chance.randrange(end)] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def overwrite(path: Path, chance: random.Random) -> None:
    """A run of bytes, or whole sectors, with zeros, ones, noise, or the file's own bytes from elsewhere."""
    content = bytearray(path.read_bytes())
    if not content:
        return
    unit = chance.choice((1, 512, 4096))
    start = chance.randrange(len(content)) // unit * unit
    end = min(start + chance.choice((unit, unit, 4 * unit, chance.randrange(1, 2_000))), len(content))
    other = chance.randrange(max(len(content) - (end - start), 0) + 1)
    noise = chance.randbytes(end - start)
    content[start:end] = chance.choice(
        (bytes(end - start), b"\xff" * (end - start), noise, content[other : other + end - start])
    )
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    """Shorter than it was."""
    os.truncate(path, chance.randrange(max(path.stat().st_size, 1)))


def extend(path: Path, chance: random.Random) -> None:
    """Longer than it was."""
    with path.open("ab") as file:
        file.write(chance.choice((bytes(100), chance.randbytes(100), b"\0" * 4096)))


def remove(path: Path, chance: random.Random) -> None:
    """Gone."""
    path.unlink()


def empty(path: Path, chance: random.Random) -> None:
    """Without a byte."""
    path.write_bytes(b"")


def make_foreign(path: Path, chance: random.Random) -> None:
    """Something else entirely, of the same length or not."""
    size = path.stat().st_size
    path.write_bytes(chance.choice((chance.randbytes(size), b"#!/bin/sh\necho no\n" * 9, bytes(size), b"\xff" * size)))


def swap(path: Path, chance: random.Random) -> None:
    """Two files of one folder, or of the folders beside it, each under the other's name."""
    others = [other for other in path.parent.parent.rglob("*") if other.is_file() and other.name != "lock"]
    other = chance.choice(others)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def put_in_the_way(path: Path, chance: random.Random) -> None:
    """A strange file beside it."""
    name = chance.choice(("00000000000000000007", "core", "x.tmp", "9" * 20, "9" * 17, "-1", ".nfs0001", "é"))
    (path.parent / name).write_bytes(chance.choice((b"", b"what is this", chance.randbytes(path.stat().st_size))))


def make_folder(path: Path, chance: random.Random) -> None:
    """A folder where the file was."""
    path.unlink()
    path.mkdir()


KINDS: tuple[Hurt, ...] = (
    flip_bits,
    flip_bits,
    flip_bits,
    overwrite,
    overwrite,
    cut,
    extend,
    remove,
    empty,
    make_foreign,
    swap,
    put_in_the_way,
    make_folder,
)
PARTS = ("commitlog", "commitlog", "commitlog", "consumequeue", "consumequeue", "index", "config", "fsstore", "")


def hurt(path: Path, chance: random.Random) -> list[str]:
    """Damage the store at `path` one to three times; returns descriptions."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        part = chance.choice(PARTS)
        found = path.iterdir() if part == "" else (path / part).rglob("*")
        files = sorted(file for file in found if file.is_file())
        if files:
            file = chance.choice(files)
            kind = chance.choice(KINDS)
            if kind is make_folder and part in ("", "config", "fsstore"):
                continue  # no process can lock or mark such a store, so an opening rightly refuses it
            kind(file, chance)
            done.append(f"{kind.__name__} {file.relative_to(path)}")
    return done


# cost of a case


@dataclass(frozen=True, slots=True)
class Loss:
    """The bytes that differ from the undamaged store."""

    touched: frozenset[Place]
    unreachable: frozenset[Place]
    must_show: str | None


def loss_of(base: Base, files: Files) -> Loss:
    """`touched`: messages with a byte of their record changed or gone. `unreachable`: only the consume-queue entry is,
    in a file that looks right from outside. `must_show` is the damage that `check` has to report, if there is any."""
    touched, unreachable, shown = set(), set(), None
    gone = _gone_as_if_expired(base, files)
    for place, known in base.messages.items():
        before, after = base.files[known.path], files.get(known.path, b"")
        if before[known.start : known.end] != after[known.start : known.end]:
            touched.add(place)
            if known.path in gone:
                continue
            if any(before[at:end] != after[at:end] for at, end in known.protected):
                shown = shown or f"a protected byte of {place}"
        entry = slice(known.entry, known.entry + 20)
        before, after = base.files[known.entry_path], files.get(known.entry_path, b"")
        if before[entry] != after[entry]:
            shown = shown or f"the consume-queue entry of {place}"
            if len(before) == len(after):
                unreachable.add(place)
    return Loss(frozenset(touched), frozenset(unreachable), shown or _odd_file(base, files, gone))


def _gone_as_if_expired(base: Base, files: Files) -> set[str]:
    """Files of the log before the oldest that is left: retention takes them so, and nothing shows the difference."""
    oldest = min((name for name in files if name.startswith("commitlog/") and files[name]), default="")
    return {name for name in base.files if name.startswith("commitlog/") and name not in files and name < oldest}


def _odd_file(base: Base, files: Files, gone: set[str]) -> str | None:
    """A file of the log, a queue or the index that is not as long as it was."""
    for name, content in base.files.items():
        part = name.split("/")[0]
        if part not in ("commitlog", "consumequeue", "index") or name in gone:
            continue
        if name in files and part in base.sizes_unknown:
            continue  # the only file of its kind is as long as such files are
        if len(files.get(name, b"")) != len(content):
            return f"the size of {name}"
    return None


@dataclass
class Tally(CaseTally):
    """Counts of cases, and the findings."""

    damages: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    undamaged_messages_read: int = 0
    damaged_messages_refused: int = 0
    damaged_messages_right_all_the_same: int = 0
    unreachable_until_repaired: int = 0
    damage_that_must_show: int = 0
    shown_by_check: int = 0
    nothing_to_show: int = 0
    wrong_bodies: int = 0


class Case:
    """One damaged store."""

    def __init__(self, base: Base, path: Path, chance: random.Random, tally: Tally) -> None:
        self._base = base
        self._path = path
        self._random = chance
        self._tally = tally
        self._config = StoreConfig(sizes=base.sizes, preallocate=False, flush=base.flush, disk=base.disk)
        self._wrong: list[str] = []
        self._loss = Loss(frozenset(), frozenset(), None)
        self.done: list[str] = []

    def run(self) -> list[str]:
        """Damage the store, use it, and return the broken promises."""
        write_files(self._base, self._path)
        hurts = hurt(self._path, self._random)
        self.done = [self._base.name, *hurts]
        mode = self._random.choice(MODES)
        self._tally.damages.update(text.split()[0] for text in hurts)
        self._tally.looked_at[mode] += 1
        files = read_files(self._path)
        self._loss = loss_of(self._base, files)
        try:
            with self._allowed_to_refuse(files):
                self._check(files)
                getattr(self, f"_{mode}")(files)
        except HangError:
            self._wrong.append(f"{mode}: it hangs")
        except Exception as error:  # any error is a finding, and the next case is to be tried
            self._wrong.append(f"{mode}: {type(error).__name__}: {error}")
        return self._wrong

    def _check(self, files: Files) -> None:
        found = [str(problem) for problem in check_store(self._path)]
        self._tally.shown_by_check += bool(found)
        self._tally.damage_that_must_show += self._loss.must_show is not None
        self._tally.nothing_to_show += not found
        if self._loss.must_show and not found:
            self._wrong.append(f"check does not show {self._loss.must_show}")
        if read_files(self._path) != files:
            self._wrong.append("check changed the store")

    def _read(self, files: Files) -> None:
        with MessageStore.open(self._path, replace(self._config, mode=OpenMode.READ_ONLY)) as store:
            self._look(store)
        if read_files(self._path) != files:
            self._wrong.append("reading changed the store")

    def _write(self, files: Files) -> None:
        with self._allowed_to_fail(), MessageStore.open(self._path, self._config) as store:
            self._look(store)
            self._put(store)

    @contextmanager
    def _allowed_to_refuse(self, files: Files) -> Iterator[None]:
        """Where nothing but zeros is left of the log, the store is refused, and nothing that was derived is touched."""
        try:
            yield
        except MissingLogError:
            if any(re.fullmatch(r"commitlog/\d{20}", path) and any(content) for path, content in files.items()):
                raise
            if read_files(self._path) != files:
                self._wrong.append("a store without its log was changed")

    @contextmanager
    def _allowed_to_fail(self) -> Iterator[None]:
        """Where a folder is in the way of a file that has to be made, writing says so."""
        try:
            yield
        except ObstructedError:
            if not any(text.startswith(make_folder.__name__) for text in self.done):
                raise

    def _repair(self, files: Files) -> None:
        done = list(repair_store(self._path))
        if found := [str(problem) for problem in check_store(self._path)]:
            self._wrong.append(f"repair ({'; '.join(done)}) left {found[:3]}")
        if again := list(repair_store(self._path)):
            self._wrong.append(f"repairing again did {again[:3]}")
        self._loss = replace(self._loss, unreachable=frozenset())
        with MessageStore.open(self._path, self._config) as store:
            self._look(store)
            self._put(store)

    def _look(self, store: MessageStore) -> None:
        right = set(self._readable(store))
        missing = self._base.messages.keys() - self._loss.touched - right
        unreachable = missing & self._loss.unreachable
        lost = missing - unreachable
        self._tally.undamaged_messages_read += len(right - self._loss.touched)
        self._tally.damaged_messages_refused += len(self._loss.touched - right)
        self._tally.damaged_messages_right_all_the_same += len(self._loss.touched & right)
        self._tally.unreachable_until_repaired += len(unreachable)
        if lost:
            self._tally.lost += len(lost)
            self._wrong.append(f"{len(lost)} undamaged messages are not readable, the first at {min(lost)}")
        self._look_at_streams(store)

    def _readable(self, store: MessageStore) -> Iterator[Place]:
        """Slots that read correctly; a body that no publisher sent is a finding."""
        for topic in store.topics():
            for queue in store.queues(topic):
                bounds = store.bounds(topic, queue)
                for queue_offset in range(bounds.min_offset, min(bounds.max_offset, bounds.min_offset + 5_000)):
                    try:
                        body = bytes(store.get(topic, queue, queue_offset).body)
                    except ReadError:
                        continue
                    known = self._base.messages.get((topic, queue, queue_offset))
                    if known is not None and known.body == body:
                        yield topic, queue, queue_offset
                    elif known is not None or body not in self._base.bodies:
                        self._tally.wrong_bodies += 1
                        self._wrong.append(f"a wrong body at {topic}/{queue}/{queue_offset}: {body[:60]!r}")

    def _look_at_streams(self, store: MessageStore) -> None:
        """A stream shows whole bodies of its store, and no other bytes."""
        topic = self._random.choice(store.topics() or [""])
        for queue in store.queues(topic)[:1] if topic else ():
            stream = store.stream(topic, queue)
            text = bytes(stream.read(0, stream.size))
            for body in self._base.bodies_in(text):
                self._wrong.append(f"{topic}/{queue}.log shows bytes that are no body: {body[:60]!r}")

    def _put(self, store: MessageStore) -> None:
        """The store goes on."""
        result = store.put(self._base.another_message())
        if store.get(result.topic, result.queue, result.queue_offset).body != self._base.another_message().body:
            self._wrong.append("what was put reads otherwise")


def damage(
    folder: Path,
    cases: int,
    seed: int,
    *,
    first: int = 0,
    most_findings: int = 1,
    tell: Tell[Tally] = no_progress,
) -> Tally:
    """Cases `first` to `first` + `cases` of `seed`, below `folder`; stops when that many have found something."""
    known, tally = bases(folder / "bases"), Tally()

    def make(store: Path, chance: random.Random) -> Case:
        return Case(chance.choices(known, WEIGHTS)[0], store, chance, tally)

    return run_cases(make, folder, tally, range(first, first + cases), seed, most_findings, tell)


if __name__ == "__main__":
    well = "nothing undamaged was lost, and no wrong body shown"
    sys.exit(main("damage", __doc__, damage, {"lost": "messages lost", "wrong_bodies": "wrong bodies"}, well))
