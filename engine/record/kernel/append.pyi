from collections.abc import Callable
from typing import TypeVar

from engine.files.mapped_file import MappedFile
from engine.record.kernel.encode import EncodedBatch
from engine.record.kernel.keys import KeyMemtable

T = TypeVar("T")

def wall_clock_ms() -> int: ...

class FilePositions:
    start: int
    size: int
    wrote: int
    readable: int
    _buffer: memoryview | None
    _target: memoryview | None

class QueueEnd:
    topic: str
    queue_id: int
    is_stale: bool
    pending: int
    _max: int
    _newest: int
    _physical_end: int
    _appended_to: MappedFile | None
    def __init__(self, topic: str, queue_id: int) -> None: ...
    def add_entry(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool: ...

class LogEnd:
    last_store_time_ms: int
    _current: MappedFile | None
    _clock: Callable[[], int]
    placing: Callable[[int], None] | None
    def __init__(self, clock: Callable[[], int], current: MappedFile | None) -> None: ...

def append_one(
    log: LogEnd, record: EncodedBatch, queue: QueueEnd | None, keys: KeyMemtable, kind: type[T]
) -> T | None: ...
