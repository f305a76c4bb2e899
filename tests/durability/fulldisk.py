"""A disk that fills up repeatedly: a message is refused whole, and when there is space again all publishers go on.

    python -m tests.durability.fulldisk [--rounds 100]

The store is on a small filesystem of its own: ext4 in a file if this machine has loop devices, else a tmpfs; the output
names it. A round leaves about 2 MiB free, publishes in several ways until each was refused with ENOSPC, checks the
store, frees the disk, and sends the refused messages again through the same open files. Each acknowledged message has
to exist once, and no refused one may; no file of the store may be cut short. In some rounds the daemon is killed while
the disk is full, and mounts the store again before there is space.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engine import check_store
from tests.durability.bodies import body_of, identify
from tests.durability.figures import keep
from tests.durability.publishers import DAEMON_GONE, write_all, write_file
from tests.mount.harness import Mounted, mounted

DISK_BYTES = 1 << 30
"""Room for every round's messages; the image is sparse, and most of it ballast."""

FREE_BYTES = 2 << 20
SIZES = {"commit_log_bytes": 512 << 10, "consume_queue_entries": 256, "index_slots": 500, "index_entries": 2_000}
ROUNDS_A_KILL = 5


@dataclass
class SmallDisk:
    """A filesystem that `fill` leaves little of."""

    folder: Path
    kind: str

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """Leave FREE_BYTES."""
        disk = os.statvfs(self.folder)
        with self._ballast.open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, disk.f_bavail * disk.f_frsize - FREE_BYTES)

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """A filesystem at `folder`, unmounted at the end."""
    image, mountpoint = folder / "image", folder / "disk"
    mountpoint.mkdir()
    with image.open("wb") as made:
        made.truncate(DISK_BYTES)
    kind = "ext4 in a file"
    formatted = run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    if not (formatted and run("mount", "-o", "loop", str(image), str(mountpoint))):
        kind = "tmpfs (no loop device here)"
        assert run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES // 4}", "tmpfs", str(mountpoint)), "no disk to fill"
    try:
        yield SmallDisk(mountpoint, kind)
    finally:
        run("umount", str(mountpoint)) or run("umount", "-l", str(mountpoint))


def run(*command: str) -> bool:
    """Whether a command could be run and succeeded."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@dataclass
class Tally:
    """Figures over all rounds."""

    rounds: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    sent_again: int = 0
    kills_when_full: int = 0
    lost: int = 0
    refused_but_there: int = 0
    other_errors: Counter[str] = field(default_factory=Counter)


class Round:
    """One filling of the disk, into a topic of its own."""

    def __init__(self, mount: Mounted, tally: Tally) -> None:
        tally.rounds += 1
        self._number = tally.rounds
        self._tally = tally
        self._random = random.Random(self._number)
        self._count = 0
        self._topic = mount.topic(f"round-{self._number}")
        self._acknowledged: set[tuple[int, int]] = set()
        self._refused: dict[str, bytes] = {}
        self._lines = self._open()

    def _open(self) -> int:
        return os.open(self._topic / "append", os.O_WRONLY | os.O_APPEND)

    def attach(self, mount: Mounted) -> None:
        """Go on at the mount of another daemon."""
        self._topic = mount.root / self._topic.name
        self._lines = self._open()

    def close(self) -> None:
        """Close all open files. A killed daemon answers no call."""
        try:
            os.close(self._lines)
        except OSError as error:
            if error.errno not in DAEMON_GONE:
                raise

    def publish_until_refused(self) -> None:
        """Publish in every way until each was refused."""
        while len(self._refused) < len(self._ways):
            for way in self._ways:
                self._send(way, self._text(way))

    def send_again(self) -> None:
        """Send the refused messages again through the same files: each has to be accepted."""
        for way, text in list(self._refused.items()):
            del self._refused[way]
            self._send(way, text)
            self._tally.sent_again += 1
        assert not self._refused, f"still refused: {list(self._refused)}"

    _ways = ("lines", "synced", "file")

    def _text(self, way: str) -> bytes:
        count, largest = (self._random.randrange(1, 60), 3_000) if way == "lines" else (1, 60_000)
        bodies = []
        for _ in range(count):
            self._count += 1
            bodies.append(body_of(self._number, self._count, self._random.randrange(20, largest)))
        return b"".join(body + b"\n" for body in bodies) if way == "lines" else bodies[0]

    def _send(self, way: str, text: bytes) -> None:
        try:
            if way == "lines":
                write_all(self._lines, text)
                os.fsync(self._lines)
            elif way == "synced":
                self._send_synced(text)
            else:
                write_file(self._topic / f"append@frame=file,keys=K{self._count}", text)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                self._tally.other_errors[f"{way}: {error}"] += 1
            self._refused[way] = text
            self._tally.refused[way] += 1
        else:
            sent = identities(text.splitlines())
            self._acknowledged |= sent
            self._tally.acknowledged += len(sent)

    def _send_synced(self, text: bytes) -> None:
        fd = os.open(self._topic / "1" / "append@frame=write", os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
        try:
            write_all(fd, text)
        finally:
            os.close(fd)

    def look(self) -> None:
        """Each acknowledged message exists once, and there are no others."""
        found = [body for queue in range(4) for body in (self._topic / f"{queue}.log").read_bytes().splitlines()]
        there = identities(found)
        assert len(there) == len(found), "a message is there twice"
        self._tally.lost += len(self._acknowledged - there)
        self._tally.refused_but_there += len(there - self._acknowledged)


def identities(bodies: list[bytes]) -> set[tuple[int, int]]:
    """Which messages these are."""
    return {identify(body) for body in bodies}


def half_files(store: Path) -> list[str]:
    """Files of the store that are shorter than they should be, or have no disk space for what is in them."""
    expected = {
        "commitlog": SIZES["commit_log_bytes"],
        "consumequeue": SIZES["consume_queue_entries"] * 20,
        "index": 40 + SIZES["index_slots"] * 4 + SIZES["index_entries"] * 20,
    }
    wrong = []
    for kind, size in expected.items():
        for path in (store / kind).rglob("*"):
            found = path.stat()
            needed = len(path.read_bytes().rstrip(b"\0")) if kind == "consumequeue" and path.is_file() else size
            if path.is_file() and (found.st_size != size or found.st_blocks * 512 < needed):
                wrong.append(f"{path.relative_to(store)}: {found.st_size} bytes, {found.st_blocks * 512} of them real")
    return wrong


def fill_and_go_on(folder: Path, rounds: int) -> tuple[Tally, list[str], str]:
    """Run `rounds` rounds; returns their figures, the findings, and the kind of disk."""
    tally, wrong = Tally(), []
    with small_disk(folder) as disk:
        store = disk.folder / "store"
        while tally.rounds < rounds:
            with mounted(folder, store=store, config={"sizes": SIZES}) as mount:
                for _ in range(min(ROUNDS_A_KILL - 1, rounds - tally.rounds - 1)):
                    round_ = Round(mount, tally)
                    disk.fill()
                    round_.publish_until_refused()
                    go_on(round_, disk)
                    wrong += half_files(store)
                killed = Round(mount, tally)
                disk.fill()
                killed.publish_until_refused()
                mount.kill()
                killed.close()
            tally.kills_when_full += 1
            with mounted(folder, store=store, config={"sizes": SIZES}) as mount:
                killed.attach(mount)
                go_on(killed, disk)
                wrong += half_files(store)
        wrong += [str(problem) for problem in check_store(store)]
        return tally, wrong, disk.kind


def go_on(round_: Round, disk: SmallDisk) -> None:
    """The disk is full: check the store, make room, send the refused messages again, check again."""
    round_.look()
    disk.free()
    round_.send_again()
    round_.look()
    round_.close()


def figures_of(tally: Tally, wrong: list[str], kind: str, seconds: float) -> dict[str, object]:
    """The figures to keep."""
    return {
        "disk": kind,
        "rounds": tally.rounds,
        "acknowledged": tally.acknowledged,
        "refused_with_enospc": dict(tally.refused),
        "other_errors": dict(tally.other_errors),
        "sent_again_and_taken": tally.sent_again,
        "kills_when_full": tally.kills_when_full,
        "lost": tally.lost,
        "refused_but_there": tally.refused_but_there,
        "findings": wrong,
        "seconds": round(seconds),
    }


def is_well(tally: Tally, wrong: list[str]) -> bool:
    """Whether nothing was lost, nothing came back, and every refusal was ENOSPC."""
    return not (wrong or tally.lost or tally.refused_but_there or tally.other_errors)


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only-print", action="store_true", help="keep no figures")
    chosen = parser.parse_args()
    if os.geteuid() != 0:  # mounting wants a user namespace; FUSE follows into it
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", "tests.durability.fulldisk", *sys.argv[1:]])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fulldisk-") as folder:
        tally, wrong, kind = fill_and_go_on(Path(folder), chosen.rounds)
    figures = figures_of(tally, wrong, kind, time.monotonic() - began)
    if chosen.only_print:
        print(json.dumps(figures))
    else:
        keep("fulldisk", figures)
    return 0 if is_well(tally, wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
