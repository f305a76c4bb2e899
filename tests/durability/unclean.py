"""How long an unclean start takes: a store with so much log, whose process died, opened again.

    python -m tests.durability.unclean [--mib 1024]

Three starts of the same store: with our coverage mark (read from there on), by RocketMQ's rule (no mark: from the file
that the checkpoint names on), and from nothing (no checkpoint either: the whole log).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from engine import MessageStore, RecoveryProgress, StoreConfig
from tests.durability.figures import keep

LINE = b"a line of an ordinary log, as long as most of them are, with a number at its end 0123456789\n"
BATCH = LINE * 5_000


def make(path: Path, mib: int, left: Path) -> None:
    """A store with `mib` MiB of log; flushed but for its newest 16 MiB. What a dead process leaves of it at `left`."""
    with MessageStore.open(path) as store:
        store.create_topic("lines", 4)
        flushed = False
        while store.physical_end < mib << 20:
            if not flushed and store.physical_end > (mib - 16) << 20:
                store.flush()
                flushed = True
            store.put_lines("lines", BATCH)
        shutil.copytree(path, left)


def start(path: Path) -> dict[str, object]:
    """Open it; what that took."""
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


def measure(folder: Path, mib: int) -> dict[str, object]:
    """The three starts."""
    found: dict[str, object] = {}
    make(folder / "store", mib, folder / "left")
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
    with tempfile.TemporaryDirectory(prefix="unclean-") as folder:
        keep("unclean", {"log_mib": chosen.mib, **measure(Path(folder), chosen.mib)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
