"""Geometry: a store's folders, topics and file sizes, found before it is opened (docs/format.md, 1).

No file states its size, so sizes follow from the lengths of files and the distances of their names. The length of an
index file fits many slot and entry counts, which need a proof. `config/sizes.json` has the sizes that fsstore used.

The proof (docs/format.md, 7): an index file's size gives one equation, 4*S + 20*N = size - 40. The file gives the other
one: entry 1 is at position 40 + 4*S + 20, the header has its physical offset, and the log has its hash. S is believed
only if it explains the chains: the same hashes, put one by one into S slots, give the same links and the same slots.
The log is compared, too, but an entry without a key in the log proves nothing: a later RocketMQ may index other words.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from engine.derived.index_file import HEADER, INDEX_ENTRY, SLOT, TAG_TYPE, index_file_bytes, link
from engine.errors import ConfigFileError, OptionError, ReadError
from engine.files.file_queue import FileQueue
from engine.files.file_scan import SAMPLED_QUEUES, numbered_files, queue_folders
from engine.files.layout import StoreLayout, log_files
from engine.files.mapped_file import PAGE_BYTES, Access, MappedFile
from engine.record.hashes import text_index_hash
from engine.record.header import MAX_OFFSET
from engine.record.record import decode_record
from engine.settings.config import BROKER_SIZES, CONSUME_QUEUE_ENTRY_BYTES, EMBEDDED_SIZES, FileSizes, StoreConfig
from engine.settings.shape_files import read_sizes
from engine.settings.topics_file import TopicTable

Array = np.ndarray[Any, Any]
KeysAt = Callable[[int], Sequence[str]]

LEAST_LOG_FILE_BYTES = 512
"""A shorter file is never a file of a log."""

CHECKED_ENTRIES = 1 << 20
"""Number of an index file's oldest entries through which chains are followed."""
_ASKED_ENTRIES = 32
"""Number of an index file's entries that are compared with the keys of their records in the log."""
_SEARCH_WORDS = 1 << 22


@dataclass(frozen=True, slots=True)
class FoundSizes:
    """File sizes of a store in bytes, by its files; None if no file shows one."""

    commit_log_bytes: int | None
    consume_queue_bytes: int | None
    index_file_bytes: int | None


@dataclass(frozen=True, slots=True)
class ChosenSizes:
    """Sizes to open a store with. `rebuild_index`: its index files have other sizes; `note` reports it."""

    sizes: FileSizes
    rebuild_index: bool = False
    note: str | None = None
    found: FoundSizes = FoundSizes(None, None, None)
    """The sizes found in the files."""


def layout_of(path: Path, config: StoreConfig) -> StoreLayout:
    """The layout of the store at `path` with the options of `config`. OptionError if its log has no folder."""
    default = StoreLayout(path).default_commit_log
    real = os.path.realpath(default)

    def spelled(folder: Path) -> Path:
        return default if os.path.realpath(folder) == real else folder.absolute()

    named = config.commit_log_paths and tuple(map(spelled, config.commit_log_paths))
    layout = StoreLayout(path, named or None, tuple(map(spelled, config.read_only_log_paths)))
    try:
        _ = layout.commit_log
    except ValueError as error:
        raise OptionError("readOnlyCommitLogStorePaths", str(error)) from error
    return layout


def find_sizes(layout: StoreLayout, remembered: FileSizes | None = None) -> FoundSizes:
    """The sizes that a store's files show. `remembered` sizes are preferred if the files fit them."""
    folders = (folder for folder in queue_folders(layout.consume_queues) if folder.name.isdecimal())
    queues = [file for folder in islice(folders, SAMPLED_QUEUES) for file in numbered_files(folder)]
    return FoundSizes(
        _numbered_size(log_files(layout.commit_log), remembered.commit_log_bytes if remembered else None),
        _queue_size(queues, remembered.consume_queue_bytes if remembered else None),
        _usual(file.stat().st_size for file in index_paths(layout.index)),
    )


def index_paths(directory: Path) -> list[Path]:
    """Index files, by name: 17 digits."""
    return numbered_files(directory, 17)


def _numbered_size(files: Sequence[Path], remembered: int | None) -> int | None:
    """The size that fits most of the files: their names are multiples of it, and they are not longer."""
    sizes = {int(file.name): file.stat().st_size for file in files if int(file.name) <= MAX_OFFSET}
    if remembered and _can_be_of(list(sizes.items()), remembered):
        return remembered
    if len(sizes) == 1 and all(size % PAGE_BYTES for size in sizes.values()):
        return None  # no writer makes files of parts of a page: it was cut
    candidates = {*sizes.values(), math.gcd(*sizes), remembered if sizes and remembered else 0} - {0}
    return max(candidates, key=lambda size: _fit(sizes, size, size == remembered), default=None)


def _fit(sizes: Mapping[int, int], size: int, is_remembered: bool) -> tuple[int, int, int, int]:
    """Rank of `size` for files (start -> length), higher is better. Longer files lower it unless it is remembered."""
    multiples = [start for start in sizes if start % size == 0]
    too_long = 0 if is_remembered else sum(length > size for length in sizes.values())
    return len(multiples) - too_long, sum(sizes[start] == size for start in multiples), len(multiples), size


def _queue_size(files: Sequence[Path], remembered: int | None) -> int | None:
    """The remembered size of queue files if they fit it, else their usual length."""
    sizes = [(int(file.name), file.stat().st_size) for file in files]
    if remembered and _can_be_of(sizes, remembered):
        return remembered
    return _usual(length for _, length in sizes)


def _can_be_of(sizes: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether files (start, length) can have been made with `size` bytes each: most fit it by name and length, and no
    other length is more frequent. The length of a single file proves nothing: it may be cut."""
    if size > BROKER_SIZES.commit_log_bytes:
        return False  # the remembered size may be damaged, and a file of that size would be made
    counts = Counter(length for _, length in sizes if length)
    fitting = sum(start % size == 0 and length <= size for start, length in sizes)
    return 2 * fitting > len(sizes) and max(counts.values(), default=0) <= max(counts[size], 1)


def _usual(lengths: Iterable[int]) -> int | None:
    """The most frequent length but 0, the largest of equally frequent ones; None without any."""
    counts = Counter(length for length in lengths if length)
    return max(counts, key=lambda length: (counts[length], length)) if counts else None


def remembered_sizes(layout: StoreLayout) -> FileSizes | None:
    """The sizes in config/sizes.json; None if it is missing or unreadable."""
    try:
        return read_sizes(layout.sizes)
    except ConfigFileError:
        return None  # the files show the sizes, too


def choose_sizes(
    layout: StoreLayout, wanted: FileSizes | None, keys_at: Callable[[FileSizes, int], Sequence[str]]
) -> ChosenSizes:
    """Sizes of a store: those its files show, else the remembered, the `wanted`, or the likeliest ones.

    `keys_at(sizes, physical_offset)` returns the index keys of a record, for the proof.
    """
    remembered = remembered_sizes(layout)
    found = find_sizes(layout, remembered)
    fallback = remembered or wanted or _likely(found)
    sizes = fallback
    if found.commit_log_bytes and found.commit_log_bytes >= LEAST_LOG_FILE_BYTES:
        sizes = replace(sizes, commit_log_bytes=found.commit_log_bytes)
    if found.consume_queue_bytes and found.consume_queue_bytes >= CONSUME_QUEUE_ENTRY_BYTES:
        sizes = replace(sizes, consume_queue_entries=found.consume_queue_bytes // CONSUME_QUEUE_ENTRY_BYTES)
    if found.index_file_bytes is None:
        return ChosenSizes(sizes, found=found)
    if remembered is not None and remembered.index_bytes == found.index_file_bytes:
        return ChosenSizes(sizes, found=found)
    usual = (remembered or wanted or EMBEDDED_SIZES, BROKER_SIZES, EMBEDDED_SIZES)
    candidates = [(one.index_slots, one.index_entries) for one in usual]
    proved = prove_index_sizes(index_paths(layout.index), candidates, lambda offset: keys_at(sizes, offset))
    if proved is not None:
        return ChosenSizes(replace(sizes, index_slots=proved[0], index_entries=proved[1]), found=found)
    as_long = [pair for pair in candidates if index_file_bytes(*pair) == found.index_file_bytes]
    slots, entries = (as_long or candidates)[0]
    note = (
        f"the slots and entries of {layout.index} can't be proved from its files: the index is rebuilt with"
        f" {slots:,} slots and {entries:,} entries; to keep a broker's, open the store with"
        " maxHashSlotNum and maxIndexNum as in its broker.conf"
    )
    sizes = replace(sizes, index_slots=slots, index_entries=entries)
    return ChosenSizes(sizes, rebuild_index=True, note=note, found=found)


def _likely(found: FoundSizes) -> FileSizes:
    """A broker's sizes for log files of a broker's size, so that the broker can continue the store."""
    return BROKER_SIZES if found.commit_log_bytes == BROKER_SIZES.commit_log_bytes else EMBEDDED_SIZES


def prove_index_sizes(
    paths: Sequence[Path], candidates: Iterable[tuple[int, int]], keys_at: KeysAt
) -> tuple[int, int] | None:
    """(slots, entries) of these index files, or None without a proof.

    `candidates`, remembered or usual sizes, are tried first. For files without entries, one that fits their length is
    believed. `keys_at` returns the index keys (topic#key) of the record at a physical offset, none if it is unreadable.
    A writer may be using the files.
    """
    usual = list(candidates)
    fallback = None
    for path in paths:
        file = _opened(path)
        if file is None:
            continue
        try:
            raw = np.frombuffer(file.whole(), np.uint8)
            ranges = list(file.data_ranges(HEADER.itemsize))
        except (OSError, ReadError):
            continue
        fitting = [sizes for sizes in usual if index_file_bytes(*sizes) == len(raw)]
        if _next_entry(raw) <= 1:
            fallback = fallback or next(iter(fitting), None)
            continue
        for sizes in (*fitting, *_found_sizes(raw, ranges, keys_at)):
            if explains(raw, *sizes, keys_at):
                return sizes
    return fallback


def _opened(path: Path) -> MappedFile | None:
    """An index file, if it can be one by its size."""
    try:
        size = path.stat().st_size
    except OSError:
        return None
    fits = size > HEADER.itemsize and size % SLOT.itemsize == 0
    return MappedFile(path, size, Access.READ) if fits else None


def _header(raw: Array) -> Any:
    return raw[: HEADER.itemsize].view(HEADER)[0]


def _next_entry(raw: Array) -> int:
    return int(_header(raw)["next_entry"])


def _found_sizes(raw: Array, ranges: Sequence[tuple[int, int]], keys_at: KeysAt) -> Iterator[tuple[int, int]]:
    """(slots, entries) by bytes that look like entry 1: it has the header's first physical offset and no previous one.
    `ranges`, positions [start, end), are the written parts of the file."""
    begin = int(_header(raw)["begin_physical_offset"])
    hashes = [*map(text_index_hash, keys_at(begin))]
    words = raw[HEADER.itemsize :].view(SLOT)
    high, low = np.array([begin], ">i8").view(SLOT).tolist()
    for start, end in _pieces(ranges, len(words) - 4):
        part = words[start : end + 4]
        hits = np.flatnonzero(part[:-4] != 0)  # entry 1 begins with a hash; most words are zeros
        hits = hits[(part[hits + 2] == low) & (part[hits + 1] == high) & (part[hits + 4] == 0) & (part[hits] > 0)]
        hits = hits[np.isin(part[hits], hashes)] if hashes else hits
        for word in (start + hits).tolist():
            slots = word - INDEX_ENTRY.itemsize // SLOT.itemsize
            entries, rest = divmod(len(words) - slots, INDEX_ENTRY.itemsize // SLOT.itemsize)
            if slots > 0 and rest == 0 and entries > 1:
                yield slots, entries


def _pieces(ranges: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Ranges of words, of the first `count` after the header, that lie in `ranges`, positions in the file."""
    for first, last in ranges:
        word, end = (first - HEADER.itemsize) // SLOT.itemsize, min((last - HEADER.itemsize) // SLOT.itemsize, count)
        while word < end:
            yield word, min(word + _SEARCH_WORDS, end)
            word += _SEARCH_WORDS


def explains(raw: Array, slots: int, entries: int, keys_at: KeysAt) -> bool:
    """Whether a file (uint8, with one entry at least) can have these numbers of slots and entries."""
    next_entry = _next_entry(raw)
    if not 1 < next_entry <= entries:
        return False
    entries_position = HEADER.itemsize + SLOT.itemsize * slots
    table = raw[entries_position:].view(INDEX_ENTRY)
    heads = raw[HEADER.itemsize : entries_position].view(SLOT)
    records = table[1 : min(next_entry, CHECKED_ENTRIES + 1)]
    if (records["key_hash"] < 0).any() or table[:1].tobytes() != bytes(INDEX_ENTRY.itemsize):
        return False
    buckets = records["key_hash"].astype(np.int64) % slots
    numbers = np.arange(1, len(records) + 1, dtype=np.int64)
    previous, used, newest = link(buckets, numbers, np.zeros(slots, SLOT))
    if not (records["previous"] == previous).all():
        return False
    if len(records) == next_entry - 1 and not _leads_to(heads, table, used, newest):
        return False
    return not _denied(records, keys_at)


def _leads_to(heads: Array, table: Array, used: Array, newest: Array) -> bool:
    """Whether the slots lead to `newest`, apart from entries that a writer added meanwhile."""
    filled = np.flatnonzero(heads != 0)  # a copy: numpy rejects memory that changes meanwhile
    found = heads[filled].astype(np.int64)
    limit = int(newest.max())
    while (late := (found > limit) & (found < len(table))).any():
        older = table["previous"][found[late]]
        found[late] = np.where(older < found[late], older, -1)
    rows = np.searchsorted(filled, used)
    if (rows == len(filled)).any() or (filled[rows] != used).any():
        return False
    expected = np.zeros(len(filled), np.int64)
    expected[rows] = newest
    return bool((found == expected).all())


def _denied(records: Array, keys_at: KeysAt) -> bool:
    """Whether the log has none of the hashes: then the file is of another log. One entry alone proves nothing."""
    rows = np.unique(np.linspace(0, len(records) - 1, _ASKED_ENTRIES).astype(np.int64))
    asked = ((int(record["key_hash"]), keys_at(int(record["physical_offset"]))) for record in records[rows])
    found = [key_hash in map(text_index_hash, keys) for key_hash, keys in asked if keys]
    return len(found) > 1 and not any(found)


def read_topics(layout: StoreLayout, config: StoreConfig) -> TopicTable:
    """The table of topics."""
    return TopicTable(layout.topics, config.disk, config.clock)


def choose_at(layout: StoreLayout, config: StoreConfig) -> ChosenSizes:
    """The sizes to open the store at `layout` with."""
    with closing(_RecordKeys(layout)) as record_keys:
        return choose_sizes(layout, config.sizes, record_keys.at)


class _RecordKeys:
    """Reads the index keys of records before the store is open, to prove an index file's sizes."""

    def __init__(self, layout: StoreLayout) -> None:
        self._paths = layout.commit_log
        self._files: dict[int, FileQueue] = {}

    def at(self, sizes: FileSizes, physical_offset: int) -> Sequence[str]:
        """Index keys of the record at `physical_offset` (topic#key, topic#T#tag); none if it is unreadable."""
        file_bytes = sizes.commit_log_bytes
        if file_bytes not in self._files:
            self._files[file_bytes] = FileQueue(self._paths, file_bytes, Access.READ)
        file = self._files[file_bytes].find(physical_offset)
        try:
            if file is None:
                return ()
            message = decode_record(file.whole()[physical_offset - file.start :], physical_offset)
        except ReadError:
            return ()
        unique = [message.unique_key] if message.unique_key else []
        tags = [f"{TAG_TYPE}#{message.tags}"] if message.tags else []
        return [f"{message.topic}#{key}" for key in (*unique, *message.keys, *tags)]

    def close(self) -> None:
        """Close the log's files."""
        for files in self._files.values():
            files.close()
