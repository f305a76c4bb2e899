"""Whole records from a log that frames cut anywhere; nothing else comes out."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import FileSizes, Message, MessageStore, ProtocolError, StoreConfig
from engine.record.header import BLANK_MAGIC, MESSAGE_MAGIC
from engine.replication.assembly import MAX_RECORD_BYTES, RecordAssembly
from tests.engine.storetools import QUIET, HastyDisk

FILE_BYTES = 4_096


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A log of several files, each with a blank."""
    path = tmp_path_factory.mktemp("log") / "store"
    sizes = FileSizes(FILE_BYTES, 64, 50, 200)
    with MessageStore.open(path, StoreConfig(sizes=sizes, flush=QUIET, disk=HastyDisk()), create=True) as store:
        for number in range(60):
            store.put(Message("topic", bytes([number]) * (number * 7 % 500 + 1), keys=[f"k{number}"]), 0)
        end = store.physical_end
    files = sorted((path / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=30))
def test_pieces_are_whole_records_of_one_file_and_together_the_log(log: bytes, sizes: list[int]) -> None:
    assembly, position, out, records = RecordAssembly("master", 0, FILE_BYTES), 0, b"", 0
    turn = 0
    while position < len(log):
        data = log[position : position + sizes[turn % len(sizes)]]
        assembly.add(position, data)
        position, turn = position + len(data), turn + 1
        for piece in assembly.take():
            assert piece.physical_offset == len(out)
            assert piece.physical_offset // FILE_BYTES == (piece.physical_offset + len(piece.data) - 1) // FILE_BYTES
            out, records = out + piece.data, records + piece.records
    assert (out, records) == (log, 60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(spot=st.integers(0), bit=st.integers(0, 7), size=st.integers(1, 5_000))
def test_a_changed_byte_ends_it_or_is_in_what_no_checksum_covers(log: bytes, spot: int, bit: int, size: int) -> None:
    """Whatever comes out is a log of whole records at their places, up to the damage."""
    spot %= len(log)
    changed = log[:spot] + bytes([log[spot] ^ 1 << bit]) + log[spot + 1 :]
    assembly, out = RecordAssembly("master", 0, FILE_BYTES), b""
    with suppress(ProtocolError):
        for position in range(0, len(changed), size):
            assembly.add(position, changed[position : position + size])
            out += b"".join(piece.data for piece in assembly.take())
        assert out in (log[: len(out)], changed[: len(out)])
        return
    assert out == log[: len(out)]


def test_bytes_that_do_not_go_on_are_refused() -> None:
    assembly = RecordAssembly("master", 100, FILE_BYTES)
    with pytest.raises(ProtocolError, match="from 99 on after those up to 100"):
        assembly.add(99, b"x")


@pytest.mark.parametrize(
    "head",
    [
        pack(">ii", 0, 0),
        pack(">ii", 200, 7),
        pack(">ii", 10, MESSAGE_MAGIC),
        pack(">ii", FILE_BYTES, MESSAGE_MAGIC),
        pack(">ii", FILE_BYTES - 1, BLANK_MAGIC),
        pack(">ii", -1, MESSAGE_MAGIC),
    ],
)
def test_a_head_that_begins_no_record_is_refused_before_more_comes(head: bytes) -> None:
    assembly = RecordAssembly("master", 0, FILE_BYTES)
    assembly.add(0, head)
    with pytest.raises(ProtocolError, match="damaged at physical offset 0"):
        assembly.take()


@pytest.mark.parametrize("magic", [MESSAGE_MAGIC, BLANK_MAGIC])
def test_what_is_held_in_memory_is_limited(magic: int) -> None:
    file_bytes = 2 * MAX_RECORD_BYTES
    assembly = RecordAssembly("master", 0, file_bytes)
    assembly.add(0, pack(">ii", MAX_RECORD_BYTES + 1 if magic == MESSAGE_MAGIC else file_bytes, magic))
    with pytest.raises(ProtocolError):
        assembly.take()
