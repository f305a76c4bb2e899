from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

class Texts:
    def __init__(self, texts: Sequence[bytes], any_case: bool, sample: Array) -> None: ...

def find_texts(texts: Texts, data: Array, starts: Array, sizes: Array) -> Array: ...
def find_bodies(
    texts: Texts,
    log: Array,
    base: int,
    entries: Array,
    topic: bytes,
    queue_id: int,
    first: int,
    is_ledger: bool,
    most_bytes: int,
) -> tuple[int, Array]: ...
