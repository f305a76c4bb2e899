"""Where a scenario works: a folder of its own, a RocketMQ of one line, and how their words for sizes are ours."""

import hashlib
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import FileSizes, StoreConfig
from tests.interop.compare import Tally
from tests.interop.driver import Driver
from tests.interop.messages import Mix, Put, random_puts
from tests.interop.toolchain import Line

SMALL = FileSizes(commit_log_bytes=128 << 10, consume_queue_entries=60, index_slots=50, index_entries=400)
"""Every kind of file rolls within a few hundred messages."""

LARGE = FileSizes(commit_log_bytes=16 << 20, consume_queue_entries=1_000, index_slots=100, index_entries=1_000)
"""A message of 4 MiB fits."""

# Lines about how long something took, about a thread that was woken to end, or about a timer that wanted its next turn
# while the store closed (4.9 asks whether it is open, and only then schedules): they come and go with the machine.
TIMING_WARNINGS = (
    "spent time",
    "cost time",
    "took",
    "interrupted",
    "page cache",
    "lock wait",
    "slow",
    "java.util.concurrent.RejectedExecutionException",
)


def java_config(sizes: FileSizes, **more: Any) -> dict[str, Any]:
    """MessageStoreConfig for those sizes. Nothing expires, at any use of the disk."""
    return {
        "mappedFileSizeCommitLog": sizes.commit_log_bytes,
        "mappedFileSizeConsumeQueue": sizes.consume_queue_bytes,
        "maxHashSlotNum": sizes.index_slots,
        "maxIndexNum": sizes.index_entries,
        "diskMaxUsedSpaceRatio": 95,
        "cleanFileForciblyEnable": "false",
        "osPageCacheBusyTimeOutMills": 60_000,
        **more,
    }


def our_config(sizes: FileSizes, **more: Any) -> StoreConfig:
    """Our words for the same; a store of theirs needs none of it to be read."""
    return StoreConfig(sizes=sizes, **more)


@dataclass(slots=True)
class Room:
    """`folder` is empty at first and removed by the caller; `tally` counts the scenario's comparisons."""

    line: Line
    folder: Path
    seed: int
    tally: Tally = field(default_factory=Tally)
    own_warnings: dict[bool, set[str]] = field(default_factory=dict)

    def driver(self, **options: Any) -> Driver:
        """A fresh JVM with this line's RocketMQ."""
        return Driver(self.line, self.folder / "home", **options)

    def puts(self, count: int, mix: Mix | None = None, *, salt: int = 0) -> list[Put]:
        """This scenario's random messages; another `salt`, others."""
        return list(random_puts(self.seed * 1_000 + salt, count, mix or Mix()))

    def copy(self, store: Path, name: str) -> Path:
        """A copy of a store, since an opening changes it."""
        target = self.folder / name
        shutil.copytree(store, target, copy_function=copy_sparse)
        return target


def copy_sparse(source: str, target: str) -> None:
    """Copy a file with its times; long runs of zeros become holes, as RocketMQ made them."""
    piece = 1 << 20
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while chunk := reader.read(piece):
            if chunk.strip(b"\0"):
                writer.write(chunk)
            else:
                writer.seek(len(chunk), 1)
        writer.truncate(Path(source).stat().st_size)
    shutil.copystat(source, target)


def snapshot(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Size, modification time and SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def warning_kinds(lines: list[str]) -> set[str]:
    """The kinds of those lines: the texts without numbers and paths, and without lines about timing."""
    kinds = set()
    for line in lines:
        if not any(word in line for word in TIMING_WARNINGS):
            kinds.add(re.sub(r"\s+", " ", re.sub(r"/\S+|-?\b\d+\b|0x[0-9a-f]+", "#", line))[:200])
    return kinds
