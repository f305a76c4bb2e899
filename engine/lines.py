"""Batches of records: lines of text or messages, encoded into one buffer before the append lock is taken (docs/format.md, 2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.message import Message
from engine.record import RecordEncoder

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records of one topic and queue to be appended together: complete but for what only the append lock can say.

    `buffer` holds all records, the i-th at starts[i] (int64) with sizes[i] bytes (int64); `tags_codes` (int64, or one number for all)
    and keys (`key_rows` ascending, `key_hashes` of topic#key, int64 and int32 (k,), a row's unique key first) are what dispatch wants.
    """

    buffer: bytearray | memoryview
    starts: Array
    sizes: Array
    store_time_positions: Array
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, first_queue_offset: int, physical_offset: int, store_time_ms: int) -> None:
        """Fill in where and when: consecutive queue offsets, records one behind the other from `physical_offset` on."""
        raise NotImplementedError

    def cut(self, limit_bytes: int) -> Iterator["EncodedBatch"]:
        """The batch in parts of at most `limit_bytes` each, at record borders; MessageTooLargeError when a record is larger."""
        raise NotImplementedError


def encode_batch(encoder: RecordEncoder, messages: Sequence[Message], queue_id: int, now_ms: int) -> EncodedBatch:
    """The records of `messages`, all of one topic. IllegalMessageError, MessageTooLargeError."""
    raise NotImplementedError


def encode_lines(
    encoder: RecordEncoder,
    topic: str,
    lines: bytes | bytearray | memoryview,
    queue_id: int,
    now_ms: int,
    *,
    keys: Sequence[str] = (),
    tags: str = "",
    properties: Mapping[str, str] | None = None,
) -> EncodedBatch:
    """A record for each line of `lines` (each ends in a newline, which is dropped; empty ones are skipped), with the same properties.

    IllegalMessageError (also when the last line has no newline), MessageTooLargeError.
    """
    raise NotImplementedError
