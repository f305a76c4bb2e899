from typing import NamedTuple

class Look(NamedTuple):
    files: int
    min_offset: int
    max_offset: int
    newest: bytes

def look(folder: int, topic: bytes, queue: bytes, file_bytes: int, log_begin: int, most: int) -> Look | None: ...
