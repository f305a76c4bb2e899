"""How a mount is to behave: plain records, which import nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DISTRIBUTION = "fsstore-mount"
"""The name by which these packages are installed, and their version is known."""


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Bounds what is kept of rendered columns; the least recently used go first, and are rendered again if needed."""

    memory_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the person who mounts may choose.

    `allow_other` lets other users in (the kernel checks the modes that we show them); `append_mode` is the permission
    bits of the `append` files, `directory_mode` those of topics and queues (who may `mkdir`). `mount_options` are
    further options of mount(8), as after `-o`. `read_ahead_kb` is how far the kernel reads ahead in a file.
    `follow_interval_ms` is how often a store that another process writes is looked at. `max_slow` bounds the requests
    that can be at slow work in a thread at once. `parquet` bounds what is kept of the rendered files of `@parquet`.
    """

    allow_other: bool = False
    append_mode: int = 0o644
    directory_mode: int = 0o755
    mount_options: tuple[str, ...] = ()
    read_ahead_kb: int = 1024
    follow_interval_ms: int = 100
    max_slow: int = 16
    parquet: ParquetOptions = field(default_factory=ParquetOptions)


@dataclass(eq=False)
class MountError(Exception):
    """The kernel or fusermount3 refused to mount at `mountpoint`."""

    mountpoint: Path
    reason: str

    def __str__(self) -> str:
        return f"cannot mount at {self.mountpoint}: {self.reason}"
