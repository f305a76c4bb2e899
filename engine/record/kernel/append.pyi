from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from engine.files.file_queue import FileQueue
from engine.files.mapped_file import MappedFile
from engine.record.kernel.encode import EncodedBatch
from engine.record.kernel.keys import KeyMemtable
from engine.results import PutResult

T = TypeVar("T")

BLOCK_MESSAGES: int

def wall_clock_ms() -> int: ...

class QueueEnd:
    topic: str
    queue_id: int
    is_stale: bool
    pending: int
    _max: int
    _newest: int
    _physical_end: int
    _min_physical: int
    _min: tuple[int, int, int] | None
    _appended_to: MappedFile | None
    @property
    def files(self) -> FileQueue: ...
    @property
    def min_offset(self) -> int: ...
    def __init__(self, topic: str, queue_id: int, files: FileQueue) -> None: ...
    def entry(self, queue_offset: int) -> tuple[int, int, int] | None: ...
    def _raw(self, queue_offset: int) -> tuple[int, int, int]: ...
    def add_entry(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool: ...
    @property
    def text_blocks(self) -> dict[int, tuple[int, int, int]]: ...
    def note_batch(self, batch: EncodedBatch, rows: slice, queue_offset: int, physical_offset: int) -> None: ...
    def note_texts(
        self, queue_offset: int, physical_offsets: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]
    ) -> None: ...
    def forget_texts(self) -> None: ...

class LogEnd:
    last_store_time_ms: int
    _current: MappedFile | None
    _clock: Callable[[], int]
    placing: Callable[[int], None] | None
    def __init__(self, clock: Callable[[], int], current: MappedFile | None) -> None: ...

class DispatchEnd:
    at_once: bool
    _newest: Any
    _appended: Callable[[str, int], None]
    @property
    def touched(self) -> set[Any]: ...
    def __init__(self, index: object, appended: Callable[[str, int], None], newest: object, kind: type) -> None: ...

class PutEnd:
    messages: int
    bytes: int
    def __init__(
        self,
        encoder: object,
        log: LogEnd,
        lock: object,
        by_key: Mapping[tuple[str, int], QueueEnd],
        dispatcher: DispatchEnd,
        clock: Callable[[], int],
        refusal: object,
        special: tuple[str, ...],
        unwritable: set[str],
    ) -> None: ...
    def put(self, message: Any, queue_id: int | None, queue: QueueEnd | None = None) -> PutResult: ...
    def is_special(self, properties: Mapping[str, str]) -> bool: ...
    def put_record(self, message: Any, record: EncodedBatch, queue_id: int, queue: QueueEnd | None) -> PutResult: ...

def append_one(
    log: LogEnd, record: EncodedBatch, queue: QueueEnd | None, keys: KeyMemtable, kind: type[T]
) -> T | None: ...
