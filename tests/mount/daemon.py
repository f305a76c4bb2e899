"""A mounted store in a process of its own, as mountctl would run it: `python -m tests.mount.daemon '{"store": …}'`.

Says `ready` on its standard output when the mount is there; its log goes to standard error. With a `gate` it has faults
built in: a bug, slow work that lasts until the gate's file is there, and a disk that syncs no sooner; and requests that
are answered only when the file `answered` is beside the gate.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine import FileSizes, FlushPolicy, MessageStore, OpenMode, Retention, StoreConfig
from engine.files.disk import Disk
from fsstore import ServeOptions
from fsstore.core import Filesystem
from fsstore.fuse.mount import run_mount
from fsstore.interface import Attributes, Data, FilesystemOptions, SlowWork
from fsstore.options import ParquetOptions
from fsstore.parquet.nodes import OpenRange
from fsstore.tree.listing import Batch
from fsstore.tree.nodes import OpenFile
from fsstore.tree.streams import OpenStream
from mountctl.process import set_up_allocator, start_trimming

DEFECT = b"a-defect-of-ours"
"""Looking up this name fails as a bug would."""

HELD_NAME = b"held-up"
"""Looking up this name is one of the requests that are not answered; `held` beside the gate says that one came."""

HELD_LISTINGS = "hold-listings"
"""While this file is beside the gate, so is listing a directory."""

HELD_RANGES = "hold-ranges"
"""And while this one is, reading a file of `@parquet`."""

HELD_STREAMS = "hold-streams"
"""And while this one is, reading a stream."""

HELD_FILES: tuple[tuple[type[OpenFile], str], ...] = ((OpenRange, HELD_RANGES), (OpenStream, HELD_STREAMS))


class Gate:
    """Blocks callers until its file exists."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wait(self) -> None:
        """Return when the gate is open; a test that forgets to open it gets a failure, not a hang."""
        for _ in range(6_000):
            if self.path.exists():
                return
            time.sleep(0.01)


class LaterFilesystem(Filesystem):
    """The core with a clock that is ahead."""

    ahead_ns = 0

    def __init__(
        self,
        store: MessageStore,
        options: FilesystemOptions,
        *,
        status: Callable[[], Mapping[str, object]] | None = None,
    ) -> None:
        super().__init__(store, options, status=status, clock_ns=lambda: time.time_ns() + self.ahead_ns)


class FaultyFilesystem(LaterFilesystem):
    """The core with a bug in it, and with streams that are summed as slowly as the test wants."""

    gate: Gate

    def lookup(self, parent_inode: int, name: bytes) -> Attributes:
        """As the real one, but for one name, and for a stream that takes a thread."""
        if name == DEFECT:
            raise ZeroDivisionError("a defect, for a test")
        if name == HELD_NAME:
            raise SlowWork(self._hold)
        try:
            return super().lookup(parent_inode, name)
        except SlowWork as slow:
            if not name.endswith(b".log"):
                raise
            raise SlowWork(self._held_up(slow.work)) from None

    def readdir(self, handle: int, position: int, limit: int, *, with_attributes: bool = True) -> Batch:
        """As the real one, unless listings are held."""
        if self.gate.path.with_name(HELD_LISTINGS).exists():
            raise SlowWork(self._hold)
        return super().readdir(handle, position, limit, with_attributes=with_attributes)

    def read(self, handle: int, position: int, size: int) -> Data:
        """As the real one, unless such files are held."""
        for kind, held in HELD_FILES:
            if isinstance(self._files[handle], kind) and self.gate.path.with_name(held).exists():
                raise SlowWork(self._hold)
        return super().read(handle, position, size)

    def _hold(self) -> None:
        self.gate.path.with_name("held").touch()
        Gate(self.gate.path.with_name("answered")).wait()

    def _held_up(self, work: Callable[[], object]) -> Callable[[], None]:
        def held_up() -> None:
            self.gate.wait()
            work()

        return held_up


class SlowDisk(Disk):
    """A disk whose syncs of the commit log wait for the gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def sync(self, descriptor: int, path: Path) -> None:
        """As the real one, once the gate is open."""
        if path.parent.name == "commitlog":
            self._gate.wait()
        super().sync(descriptor, path)


def config_of(asked: dict[str, Any]) -> StoreConfig:
    """StoreConfig from JSON: its own field names, and records as objects."""
    made = dict(asked)
    if "mode" in made:
        made["mode"] = OpenMode[made["mode"]]
    for name, record in (("sizes", FileSizes), ("flush", FlushPolicy), ("retention", Retention)):
        if name in made:
            made[name] = record(**made[name])
    return StoreConfig(**made)


def options_of(asked: dict[str, Any]) -> ServeOptions:
    """ServeOptions from JSON, as `config_of`."""
    made = dict(asked)
    if "parquet" in made:
        made["parquet"] = ParquetOptions(**made["parquet"])
    return dataclasses.replace(ServeOptions(), **made)


def main() -> None:
    """Serve one mount as the JSON argument says."""
    set_up_allocator()
    start_trimming()
    asked = json.loads(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    config = config_of(asked["config"])
    core: type[Filesystem] = LaterFilesystem
    if asked["idle_at_once"]:
        LaterFilesystem.ahead_ns = 3_600_000_000_000
    if asked["gate"]:
        core, FaultyFilesystem.gate = FaultyFilesystem, Gate(Path(asked["gate"]))
        config = dataclasses.replace(config, disk=SlowDisk(FaultyFilesystem.gate))
    options = options_of(asked["options"])
    with MessageStore.open(asked["store"], config, create=config.mode is OpenMode.WRITE) as store:
        run_mount(store, Path(asked["mountpoint"]), options, lambda: print("ready", flush=True), core)


if __name__ == "__main__":
    main()
