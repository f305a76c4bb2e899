from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

def follow_chain(
    log: Array, start: int, stop: int, end: int, base: int, is_ledger: bool = False
) -> tuple[Array, int, bool]: ...
def parse_headers(
    log: Array,
    positions: Array,
    physical_offsets: Array | None,
    is_ledger: bool,
    whole: bool,
    headers: Array,
    places: Array,
) -> None: ...
def read_sizes(log: Array, positions: Array) -> tuple[Array, Array]: ...
def fixed_fields(log: Array, positions: Array, headers: Array, places: Array) -> tuple[Array, Array]: ...
def whole_bodies(log: Array, starts: Array, sizes: Array, crcs: Array) -> Array: ...
def misplaced(log: Array, headers: Array, places: Array, topic: bytes, queue_id: int, first: int) -> Array: ...
def text_sizes(
    log: Array,
    base: int,
    physical_offsets: Array,
    topic: bytes,
    queue_ids: Array,
    queue_offsets: Array,
    is_ledger: bool,
    unknown: int,
) -> Array | None: ...
def rows_text(
    log: Array | memoryview,
    base: int,
    file_bytes: int,
    rows: bytes,
    first: int,
    topic: bytes,
    is_ledger: bool,
    checked_before: int,
) -> tuple[int, int, int] | None: ...
def copy_texts(log: Array, base: int, physical_offsets: Array, is_ledger: bool, target: Array) -> int: ...
def placed_headers(log: Array, start: int, end: int, base: int, found: Array) -> tuple[int, int]: ...
