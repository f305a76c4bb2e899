"""Key rows: what the index holds of many records, as arrays (docs/format.md, 7)."""

from typing import Any

import numpy as np

from engine.record.hashes import hash_slices, index_hash, topic_hashes, topic_key_hashes
from engine.record.inner_batch import wrapped_keys
from engine.record.scan import ScannedRecords
from engine.record.slices import pack_slices

Array = np.ndarray[Any, Any]


def index_key_rows(scanned: ScannedRecords) -> tuple[Array, Array]:
    """What the index holds of these records: (rows, hashes), rows ascending, the unique key of a row first; int64 and
    int32 (k,). Of a batch kept as one record, its messages' keys, too."""
    log, unique = scanned.records.log, scanned.properties.unique_key
    unique_rows = np.flatnonzero(unique[1])
    word_rows, word_starts, word_sizes = _words(log, *scanned.properties.keys)
    rows = np.concatenate([unique_rows, word_rows])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    starts = np.concatenate([unique[0][unique_rows], word_starts])[order]
    sizes = np.concatenate([unique[1][unique_rows], word_sizes])[order]
    hashes, units = hash_slices(log, starts, sizes)
    key_hashes = topic_key_hashes(topic_hashes(scanned.topics)[scanned.topic_rows[rows]], hashes, units)
    records = scanned.records
    wrapped = wrapped_keys(log, records.positions, records.headers["physical_offset"], records.headers["sys_flag"])
    if not wrapped:
        return rows, key_hashes
    rows = np.concatenate([rows, np.array([row for row, _ in wrapped], np.int64)])
    inner = [index_hash(scanned.topics[int(scanned.topic_rows[row])], key) for row, key in wrapped]
    order = np.argsort(rows, kind="stable")
    return rows[order], np.concatenate([key_hashes, np.array(inner, key_hashes.dtype)])[order]


def _words(log: Array, starts: Array, sizes: Array) -> tuple[Array, Array, Array]:
    """The words, parted by spaces, of texts in `log`: (row of the text, start, size), in order."""
    _, texts = pack_slices(log, starts, sizes)
    if not (texts == ord(" ")).any():  # as it mostly is: each is one word, or empty
        rows = np.flatnonzero(sizes)
        return rows, starts[rows], sizes[rows]
    offsets, packed = pack_slices(log, starts, sizes, lead=ord(" "))
    spaces = np.append(np.flatnonzero(packed == ord(" ")), len(packed))
    word_sizes = np.diff(spaces) - 1
    word_starts = spaces[:-1][word_sizes > 0] + 1
    rows = np.searchsorted(offsets, word_starts, side="right") - 1
    return rows, word_starts + (starts - offsets[:-1] - 1)[rows], word_sizes[word_sizes > 0]
