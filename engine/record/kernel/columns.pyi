from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NO_LEAD: int
SIZED: int

def gather(
    data: Array, starts: Array, sizes: Array, lead: int = ..., target: Array | None = None
) -> tuple[Array, Array]: ...
def find_values(data: Array, starts: Array, sizes: Array, names: Sequence[bytes]) -> Array: ...
def split_items(data: Array, starts: Array, sizes: Array) -> tuple[Array, Array, Array, tuple[Array, Array]]: ...
def last_of_equals(row_starts: Array, codes: Array, different: int) -> Array: ...
def words(data: Array, starts: Array, sizes: Array, whole_starts: Array, whole_sizes: Array) -> Array: ...
def java_hashes(data: Array, starts: Array, sizes: Array, seeds: Array | None) -> tuple[Array, Array]: ...
def number(data: Array, starts: Array, sizes: Array, most: int) -> tuple[Array, Array] | None: ...
def outline(
    log: Array,
    base: int,
    physical_offsets: Array,
    topic: bytes,
    queue_id: int,
    first: int,
    is_ledger: bool,
    names: Sequence[bytes],
    most_tags: int,
) -> tuple[Any, ...] | None: ...
