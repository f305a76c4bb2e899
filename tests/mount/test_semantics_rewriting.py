"""Promises 8.5 and 8.6: a log that another process cuts, empties or replaces below its follower (docs/semantics.md)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig
from tests.mount.harness import SMALL_SIZES, Mounted, bodies, mounted, until

LARGE_BYTES = 100_000
MESSAGES = 4


def make_store(path: Path, letter: str) -> Path:
    """A store whose messages have the same physical offsets and sizes for each `letter` in their bodies."""
    with MessageStore.open(path, StoreConfig(sizes=FileSizes(**SMALL_SIZES)), create=True) as store:
        for number in range(MESSAGES):
            body = (letter * (LARGE_BYTES if number == 1 else 4)).encode()
            store.put(Message("orders", body, ["K"]), 0)
    return path


def written_in_place(store: Path, other: Path) -> None:
    """The files stay, with other bytes: a log that was cut and written on."""
    for path in sorted(other.rglob("*")):
        target = store / path.relative_to(other)
        if path.is_file() and target.is_file():
            with target.open("r+b") as file:
                file.write(path.read_bytes())


def cut_and_copied(store: Path, other: Path) -> None:
    """The files stay, but they are empty for a moment: `cp -r` of a backup."""
    shutil.copytree(other, store, dirs_exist_ok=True)


def replaced(store: Path, other: Path) -> None:
    """Other files come under the names: `rsync` of a backup."""
    for path in sorted(other.rglob("*")):
        if path.is_file():
            target = store / path.relative_to(other)
            copy = target.with_name(".copy")
            shutil.copy2(path, copy)
            copy.rename(target)


def wiped_and_moved(store: Path, other: Path) -> None:
    """All goes, and another store comes whole."""
    for member in store.iterdir():
        shutil.rmtree(member) if member.is_dir() else member.unlink()
    for member in other.iterdir():
        member.rename(store / member.name)


def wiped_and_made_anew(store: Path, other: Path) -> None:
    """All goes, and a writer makes the store anew."""
    for member in store.iterdir():
        shutil.rmtree(member) if member.is_dir() else member.unlink()
    make_store(store, "b")


REWRITES = [written_in_place, cut_and_copied, replaced, wiped_and_moved, wiped_and_made_anew]


def shown(mount: Mounted) -> list[bytes]:
    """The bodies of the queue by every way that leads to them."""
    topic = mount.root / "orders"
    found = [(topic / "0" / f"{number}").read_bytes() for number in range(MESSAGES)]
    found += bodies(topic / "0")
    found += [(topic / "0" / "@first").read_bytes(), (topic / "keys" / "K").read_bytes()]
    found += (topic / "0.log").read_bytes().splitlines()
    for file in sorted((mount.root / "@parquet" / "topic=orders" / "queue=0").iterdir()):
        found += [bytes(body) for body in pq.read_table(file).column("body").to_pylist()]
    return found


def letters(mount: Mounted) -> set[int] | None:
    """The letter of the bodies; None while a file is missing."""
    try:
        return set(b"".join(shown(mount)))
    except OSError:
        return None


@pytest.mark.parametrize("rewrite", REWRITES)
def test_no_old_body_is_shown_after_the_log_was_rewritten(
    tmp_path: Path, rewrite: Callable[[Path, Path], None]
) -> None:
    """8.5 If the followed log is truncated, replaced or made anew, the follower soon shows the new one. From then on
    no name leads to a body of the old log: not from the kernel's cache, not in a stream or a file of `@parquet`. No
    inode number of a message comes to mean another message."""
    store, other = make_store(tmp_path / "store", "a"), make_store(tmp_path / "other", "b")
    with mounted(tmp_path, store=store, config={"mode": "FOLLOW"}, idle_at_once=True) as mount:
        queue = mount.root / "orders" / "0"
        before = shown(mount)
        assert (len(before), set(b"".join(before))) == (4 * MESSAGES + 2, {ord("a")})
        inodes = {path.name: path.stat().st_ino for path in queue.iterdir() if path.name != "append"}
        small, large = (os.open(queue / name, os.O_RDONLY) for name in "01")
        rewrite(store, other)
        until("the other log is shown", lambda: letters(mount) == {ord("b")})
        after = shown(mount)
        assert (len(after), set(b"".join(after))) == (len(before), {ord("b")})
        assert {path.name: path.stat().st_size for path in queue.iterdir()}["00000000000000000001"] == LARGE_BYTES
        now = {path.name: path.stat().st_ino for path in queue.iterdir() if path.name != "append"}
        assert now.keys() == inodes.keys()
        assert not set(now.values()) & set(inodes.values()), "a number came to mean another message"
        for fd in (small, large):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            with suppress(OSError):  # it is gone
                assert set(os.pread(fd, LARGE_BYTES, 0)) == {ord("a")}
            os.close(fd)


def test_a_log_that_is_emptied_shows_nothing_and_what_comes_then(tmp_path: Path) -> None:
    """8.6 A follower of a store that was emptied shows nothing, and then each new message."""
    store = make_store(tmp_path / "store", "a")
    with mounted(tmp_path, store=store, config={"mode": "FOLLOW"}) as mount:
        assert set(b"".join(shown(mount))) == {ord("a")}
        for member in store.iterdir():
            shutil.rmtree(member) if member.is_dir() else member.unlink()
        until("the topic is gone", lambda: not (mount.root / "orders").exists())
        make_store(store, "b")
        until("the new one is there", lambda: letters(mount) == {ord("b")})
        assert "rewritten" in mount.log.read_text()
