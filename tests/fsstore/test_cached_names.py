"""Names in the kernel's cache: never older than the open that shows them, never of two moments, and used again."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Set

import pytest

from fsstore.interface import Attributes, FilesystemError
from fsstore.parquet.cached_names import CachedNames
from fsstore.tree.memory_budget import MemoryBudget
from tests.fsstore.kernelcache import KernelCache, Reader


class SomeDirectory:
    """A directory whose names come and go, whose files the kernel may forget, and some of which fail for a moment."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.inodes: dict[bytes, int] = {}
        self.now: tuple[bytes, ...] = ()
        self.gone: set[bytes] = set()

    def names(self) -> tuple[bytes, ...]:
        return self.now

    def describe(self, name: bytes) -> Attributes:
        if name in self.gone:
            raise FilesystemError(errno.EIO)
        inode = self.inodes.setdefault(name, next(self._numbers))
        return Attributes(inode, 0, 0, 0, 0, 0, 0, 0, 0)

    describe_name = describe

    def are_valid(self, inodes: Set[int]) -> bool:
        return inodes <= set(self.inodes.values())


class Witness:
    """One who lists a directory, and what may be shown by right since the open."""

    def __init__(self, reader: Reader, names: tuple[bytes, ...], gone: set[bytes]) -> None:
        self.reader = reader
        self.may_show = [names]
        self.may_lack = set(gone)
        self.forgotten: set[int] = set()
        self._shown: list[bytes] = []

    def read(self, count: int, inodes: dict[bytes, int]) -> bool:
        """One system call; False at the end, which must be that of all names of one moment, and then begin anew."""
        self.reader.arrive()
        found = self.reader.getdents(count)
        assert all(inode in {inodes.get(name), *self.forgotten} for name, inode in found)
        self._shown += [name for name, _ in found]
        if not found:
            assert any(self._is_all_of(names) for names in self.may_show), f"{self._shown} is none of {self.may_show}"
            self.reader.rewind()
            self._shown.clear()
        return bool(found)

    def _is_all_of(self, names: tuple[bytes, ...]) -> bool:
        shown = set(self._shown)
        return self._shown == [name for name in names if name in shown] and set(names) - shown <= self.may_lack


class Walk:
    """Witnesses, one kernel's cache, and a directory that changes between any two of their steps."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = SomeDirectory()
        self.cached = CachedNames(self.directory, MemoryBudget(), self.directory.are_valid)
        self.kernel = KernelCache()
        self.told: set[int] = set()
        self.witnesses: list[Witness] = []
        self.made = itertools.count()

    def publish(self) -> None:
        """The tail gets another name, and others come behind it."""
        self._change((*self.directory.now[:-1], *(b"%d" % next(self.made) for _ in range(self.chance.randint(1, 4)))))

    def expire(self) -> None:
        count = self.chance.choice((1, 1, 2, 100))
        self._lose(set(self.directory.now[:count]))
        self._change(self.directory.now[count:])

    def fail(self) -> None:
        self._lose(set(self.chance.sample(self.directory.now, min(2, len(self.directory.now)))))

    def recover(self) -> None:
        self.directory.gone.difference_update(self.directory.now)

    def forget(self) -> None:
        """The kernel lets a file go; when it is listed again it has another number."""
        known = [name for name, inode in self.directory.inodes.items() if inode in self.told]
        if known:
            inode = self.directory.inodes.pop(self.chance.choice(known))
            for witness in self.witnesses:
                witness.forgotten.add(inode)

    def lack_memory(self) -> None:
        self.kernel.pages.pop(self.chance.randint(0, 3), None)

    def see_another_time(self) -> None:
        """What the kernel does when the directory's time is another as a reader begins."""
        if self.kernel.is_complete:
            self.kernel.reset()

    def open(self) -> None:
        now, gone = self.directory.now, self.directory.gone
        listing, opened = self.cached.open(now, self.directory.names)
        self.witnesses.append(Witness(Reader(self.kernel, listing, opened, self.told.add), now, gone))

    def read(self) -> None:
        if self.witnesses:
            self.chance.choice(self.witnesses).read(self.chance.randint(1, 6), self.directory.inodes)

    def read_all(self) -> None:
        """What most people do; others come in between only if they hurry."""
        if self.witnesses:
            witness = self.chance.choice(self.witnesses)
            while witness.read(4, self.directory.inodes):
                pass

    def close(self) -> None:
        if self.witnesses:
            reader = self.witnesses.pop(self.chance.randrange(len(self.witnesses))).reader
            reader.arrive()
            reader.listing.release()

    def _change(self, names: tuple[bytes, ...]) -> None:
        self.directory.now = names
        for witness in self.witnesses:
            witness.may_show.append(names)

    def _lose(self, names: set[bytes]) -> None:
        self.directory.gone |= names
        for witness in self.witnesses:
            witness.may_lack |= names

    def go(self, steps: int) -> None:
        rare = [
            self.publish,
            self.expire,
            self.fail,
            self.recover,
            self.forget,
            self.lack_memory,
            self.see_another_time,
        ]
        often = [self.open, self.close, self.read, self.read_all]
        for step in self.chance.choices([*rare, *often], [1] * len(rare) + [4] * len(often), k=steps):
            step()


@pytest.mark.parametrize("seed", range(8))
def test_a_listing_is_all_of_one_moment_since_its_open(seed: int) -> None:
    for number in range(200):
        Walk(1_000 * seed + number).go(200)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_complete_listing_is_read_again_without_the_daemon(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(0)
    walk.directory.now = tuple(b"%d" % number for number in range(count))
    walk.open()
    walk.read_all()
    walk.close()
    monkeypatch.setattr(SomeDirectory, "describe", None)  # nobody asks
    walk.open()
    walk.open()
    for witness in walk.witnesses:
        assert witness.read(100, walk.directory.inodes)
        assert not witness.read(100, walk.directory.inodes)
