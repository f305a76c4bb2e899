"""Options of a mount, as plain records. The module imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DISTRIBUTION = "fsstore-mount"
"""The name of the installed distribution, which has the version."""


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Limits the memory for rendered columns; the least recently used are evicted, and rendered again if needed."""

    memory_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Choices of the user who mounts.

    `allow_other` lets other users in (the kernel checks the modes that we show). `append_mode` is the permission bits
    of `append` files; `directory_mode` those of topics and queues (write permission allows `mkdir`). `mount_options`
    are further options of mount(8), as after `-o`. `read_ahead_kb` is the kernel's read-ahead per file.
    `follow_interval_ms` is the time between two looks at a store that another process writes. `max_slow` is the largest
    number of requests in slow work at once. `parquet` limits the memory for rendered files of `@parquet`."""

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
