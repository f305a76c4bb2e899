"""Log scan: the queue offsets that are believed, and the dispatched messages of a log with wrong ones."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from engine.derived.consume_queues import ConsumeQueues
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.derived import Losses
from engine.derived.queues_from_log import QueuesFromLog
from engine.files.disk import Disk
from engine.files.mapped_file import Access
from engine.log.scan import Known, LogScan
from engine.record.message import Message
from engine.record.scan import CHUNK_BYTES
from engine.results import DamageKind
from engine.settings.delay_levels import DelayLevels
from tests.engine.logs import SmallStore


def renumber(store: SmallStore, places: list[int], offsets: list[int]) -> None:
    """Give the records at `places` these queue offsets, which no checksum covers."""
    (file,) = store.log_files.files
    for place, offset in zip(places, offsets, strict=False):
        struct.pack_into(">q", file.writable(), place + 20, offset)


def log_scan(store: SmallStore) -> LogScan:
    return LogScan(store.log_files, 0, Known(lambda topic, queue_id: 0))


def dispatched(store: SmallStore, folder: Path) -> ConsumeQueues:
    """The queues that a scan of the log fills."""
    queues = ConsumeQueues(folder / "consumequeue", 320, Access.WRITE)
    scan = log_scan(store)
    derived = QueuesFromLog(store.log, queues, DeletedTopics(folder / "deleted.json", Disk()), DelayLevels.parse())
    for found in scan:
        derived.put_scanned(found, Losses(scan.damaged))
    return queues


def test_numbering_that_a_broker_began_again_is_followed_but_one_stray_number_is_not(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store", log_bytes=1 << 16)
    places = [store.put(Message("t", b"x")) for _ in range(12)]
    renumber(store, places[8:], [0, 1, 2, 3])
    queue = dispatched(store, tmp_path / "restarted").get_or_create("t", 0)
    assert [entry[0] for entry in queue.entries(0, 20).tolist()] == places[8:]
    renumber(store, places, [0, 1, 2, 3 + (1 << 40), 4, 5, 6, 7, 8, 9, 10, 11])
    queue = dispatched(store, tmp_path / "stray").get_or_create("t", 0)
    assert [entry[0] for entry in queue.entries(0, 20).tolist()] == places


@pytest.mark.parametrize(
    ("offsets", "believed"),
    [
        ([5, 6, 7], [5, 6, 7]),
        ([5, 7, 8], [5, 7, 8]),
        ([5, 99, 7], [5, 7]),
        ([5, 2, 7], [5, 7]),
        ([5, 6, 2], [5, 6]),
        ([5, 6, 0], [5, 6]),
        ([5, 6, 0, 1], [5, 6, 0, 1]),
        ([5, 6, 8], [5, 6, 8]),
        ([5, 6, 9], [5, 6]),
        ([40], []),
    ],
)
def test_a_queue_offset_is_believed_that_fits_its_neighbours(
    tmp_path: Path, offsets: list[int], believed: list[int]
) -> None:
    store = SmallStore(tmp_path / "store", log_bytes=1 << 16)
    places = [store.put(Message("t", bytes(100))) for _ in range(5 + len(offsets))]
    renumber(store, places[5:], offsets)
    scan = log_scan(store)
    found = [offset for run in scan for offset in run.records.headers["queue_offset"].tolist()]
    assert found == [0, 1, 2, 3, 4, *believed]
    damaged = [one for one in scan.damaged if one.kind is DamageKind.MISNUMBERED]
    assert len(damaged) == len(offsets) - len(believed)


def test_damage_in_a_long_file_costs_what_it_hit_while_the_next_chunk_is_read_ahead(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store", log_bytes=3 * CHUNK_BYTES, queue_entries=4096)
    places = [store.put(Message("t", bytes(60_000))) for _ in range(180)]
    hit = [0, 60, 90, 91, 140, 179]  # in each of three chunks, at the beginning and at the end
    for row in hit:
        store.damage(places[row], 30_000)
    scan, threads = log_scan(store), threading.active_count()
    found = [place for run in scan for place in run.records.headers["physical_offset"].tolist()]
    assert found == [place for row, place in enumerate(places) if row not in hit]
    assert [one.start for one in scan.damaged] == [places[row] for row in (0, 60, 90, 140)]
    assert threading.active_count() <= threads
