"""How much of the dataset's rendered bytes is kept, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Bounds of the cache of rendered columns; the least recently used go first, and are rendered again if needed.

    `memory_bytes` bounds what is kept in memory, `disk_bytes` what is kept in `directory`, which takes what memory has
    no room for. `directory` None: `STORE/fsstore/parquet` for a store that this process writes, else none.
    """

    memory_bytes: int = 256 << 20
    disk_bytes: int = 2 << 30
    directory: Path | None = None
