"""A daemon's cost of a Parquet file of its mount (row parquet)."""

import os
import subprocess
from pathlib import Path

from tests.bench.measure import Pairs, cpu_seconds
from tests.bench.read_rows import listed_store
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import TOPIC
from tests.interop.mounts import status

UNIT_US = 1.0
"""The other side of the row, which has none: its ratio is its microseconds."""


def rendering(room: Room) -> Pairs:
    """The daemon's processor time, from a new mount on: a listing of `@parquet` and `cat` of all its files."""
    store, spent = listed_store(room), []
    for _ in range(room.scale.rounds):
        with room.mounted(store) as queue:
            root = queue.parents[1]
            pid = int(status(root)["pid"])
            began = cpu_seconds(pid)
            cat_all(root / "@parquet" / f"topic={TOPIC}" / "queue=0")
            spent.append(1e6 * (cpu_seconds(pid) - began) / room.scale.listed)
    return Pairs(tuple(spent), (UNIT_US,) * len(spent))


def cat_all(folder: Path) -> None:
    """`cat FOLDER/*`."""
    subprocess.run(["cat", *sorted(os.scandir(folder), key=os.fspath)], stdout=subprocess.DEVNULL, check=True)


ROWS = (Row("parquet", "mount: `cat` of `@parquet`, CPU a message", "1 µs", "µs", 0.4, rendering, at_most=True),)
