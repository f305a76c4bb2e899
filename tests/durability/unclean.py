"""How long an unclean start takes: a store with so much log, whose process died, opened again.

    python -m tests.durability.unclean [--mib 1024]

Three starts of the same store: with our coverage mark (read from there on), by RocketMQ's rule (no mark: from the file
that the checkpoint names on), and from nothing (no checkpoint either: the whole log). Of two stores: one whose messages
have a key each, one without keys.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from engine import Message, MessageStore, RecoveryProgress, StoreConfig
from tests.durability.figures import keep

LINE = b"a line of an ordinary log, as long as most of them are, with a number at its end 0123456789"
LINES = (LINE + b"\n") * 5_000
FILLED_SECONDS = 3_600
"""So long ago the store's first message was put, by its clock."""

Put = Callable[[MessageStore, int], object]


def put_keyed(store: MessageStore, number: int) -> object:
    """1,000 messages with a key each."""
    first = number * 1_000
    return store.put_batch([Message("lines", LINE, [f"K{first + one:09d}"]) for one in range(1_000)])


def put_lines(store: MessageStore, number: int) -> object:
    """5,000 messages without keys."""
    return store.put_lines("lines", LINES)


def make(path: Path, mib: int, left: Path, put: Put) -> None:
    """A store with `mib` MiB of log, evenly filled; flushed but for its newest 16 MiB. What a dead process leaves of it
    at `left`."""
    end_bytes, began_ms, written_bytes = mib << 20, int(time.time() - FILLED_SECONDS) * 1_000, 0

    def clock() -> int:
        return began_ms + written_bytes * FILLED_SECONDS * 1_000 // end_bytes

    with MessageStore.open(path, StoreConfig(clock=clock), create=True) as store:
        store.create_topic("lines", 4)
        flushed, number = False, 0
        while written_bytes < end_bytes:
            if not flushed and written_bytes > end_bytes - (16 << 20):
                store.flush()
                flushed = True
            put(store, number)
            written_bytes, number = store.physical_end, number + 1
        shutil.copytree(path, left)


def start(path: Path) -> dict[str, object]:
    """Open it; returns the resources that this took."""
    heard: list[RecoveryProgress] = []
    began = time.monotonic()
    with MessageStore.open(path, StoreConfig(progress=heard.append)) as store:
        seconds = time.monotonic() - began
        report = store.recovery
    return {
        "seconds": round(seconds, 2),
        "read_mib": report.scanned_bytes >> 20,
        "messages": report.scanned_messages,
        "rebuilt": list(report.rebuilt),
        "progress_told": len(heard),
    }


def measure(folder: Path, mib: int, put: Put) -> dict[str, object]:
    """The three starts."""
    found: dict[str, object] = {}
    make(folder / "store", mib, folder / "left", put)
    for name, lost in (
        ("with_our_mark", ()),
        ("rocketmq_rule", ("fsstore",)),
        ("whole_log", ("fsstore", "checkpoint")),
    ):
        shutil.rmtree(folder / "store", ignore_errors=True)
        shutil.copytree(folder / "left", folder / "store")
        for member in lost:
            gone = folder / "store" / member
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        found[name] = start(folder / "store")
    return found


def main() -> int:
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1_024)
    chosen = parser.parse_args()
    found: dict[str, object] = {"log_mib": chosen.mib}
    for name, put in (("a_key_each", put_keyed), ("no_keys", put_lines)):
        with tempfile.TemporaryDirectory(prefix="unclean-") as folder:
            found[name] = measure(Path(folder), chosen.mib, put)
    keep("unclean", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
