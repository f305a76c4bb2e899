from collections.abc import Iterator

from engine.derived.index_file import IndexFile
from engine.files.mapped_file import MappedFile
from engine.record.kernel.keys import KeyMemtable
from engine.record.kernel.pages import Pages

NEWEST: int
GIVEN_AT_ONCE: int

def walk_chain(
    pages: Pages, slots: int, entries: int, key_hash: int, number: int, most: int
) -> tuple[list[int], int]: ...

class HashTable:
    @property
    def file(self) -> MappedFile: ...
    @property
    def slots(self) -> int: ...
    @property
    def entries(self) -> int: ...
    def __init__(self, file: MappedFile, slots: int, entries: int) -> None: ...

class Candidates(Iterator[int]):
    def __init__(
        self, found: list[int], tables: tuple[HashTable, ...], key_hash: int, least: int, distinct: bool
    ) -> None: ...
    def __next__(self) -> int: ...

class KeyIndex:
    memtable: KeyMemtable
    _files: tuple[IndexFile, ...]
    def candidates(
        self, topic: str, key: str, min_physical_offset: int = 0, *, distinct: bool = True
    ) -> Iterator[int]: ...
