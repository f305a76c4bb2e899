"""Dispatch: one by one, in runs or from a scan, the same bytes come out, and they are RocketMQ's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.derived.consume_queues import ConsumeQueues
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.derived import Losses
from engine.derived.dispatch import PlacedRun
from engine.derived.index import Index
from engine.derived.index_from_log import IndexFromLog
from engine.derived.queues_from_log import QueuesFromLog
from engine.errors import StoreFullError
from engine.files.disk import Disk
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.log.commit_log import CommitLog
from engine.log.delay import SCHEDULE_TOPIC
from engine.log.sequence import queued_rows, secondary_slots_of
from engine.record.batch import shares_of
from engine.record.message import Message
from engine.record.multi_dispatch import LMQ_PREFIX
from engine.record.scan import ScannedRecords, scan_records
from engine.results import DamagedRange, DamageKind, PutResult
from engine.settings.delay_levels import DelayLevels
from tests.engine.disks import FullDisk
from tests.engine.logs import NOW_MS, SmallStore, write_dispatcher
from tests.engine.records import encoder, keyed
from tests.golden import NAMES, Golden, golden

Files = dict[str, bytes]


def files_below(directory: Path) -> Files:
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


class Derived:
    """Consume queues and index of some sizes, in a folder of their own."""

    def __init__(self, folder: Path, queue_bytes: int, slots: int, entries: int, disk: FullDisk | None = None) -> None:
        self.folder = folder
        self.queues = ConsumeQueues(folder / "consumequeue", queue_bytes, Access.WRITE, disk)
        self.index = Index(folder / "index", slots, entries, Access.WRITE, lambda: NOW_MS, disk)
        log = CommitLog(FileQueue(folder / "commitlog", 1 << 16, Access.READ), lambda: NOW_MS)
        deleted = DeletedTopics(folder / "deleted.json", Disk())
        queues = QueuesFromLog(log, self.queues, deleted, DelayLevels.parse())
        self.kinds = queues, IndexFromLog(log, self.index)

    def scan(self, log: FileQueue, chunk_bytes: int = 1 << 20) -> None:
        for file in log.files:
            pages = file.whole()
            for chunk in scan_records(pages, 0, file.start, len(pages), chunk_bytes=chunk_bytes):
                self.put(replace(chunk, slots=secondary_slots_of(chunk, queued_rows(chunk))))

    def put(self, found: ScannedRecords, *damaged: DamagedRange) -> None:
        for kind in self.kinds:
            kind.put_scanned(found, Losses(damaged))

    def files(self) -> tuple[Files, list[bytes]]:
        """Consume queue files by name, and index files in order (their names are times)."""
        self.index.flush()
        return files_below(self.folder / "consumequeue"), list(files_below(self.folder / "index").values())

    def close(self) -> None:
        self.index.close()
        self.queues.close()


def derived_like(store: Golden, folder: Path) -> Derived:
    sizes = store.sizes
    return Derived(folder, sizes.consume_queue_bytes, sizes.index_slots, sizes.index_entries)


# files that RocketMQ wrote


@pytest.mark.parametrize("name", [name for name in NAMES if name != "retention"])
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 9_000])
def test_every_byte_that_rocketmq_derived_comes_out_of_its_log(name: str, chunk_bytes: int, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    derived = derived_like(store, tmp_path / "derived")
    derived.scan(FileQueue(store.path / "commitlog", store.sizes.commit_log_bytes, Access.READ), chunk_bytes)
    queues, index = derived.files()
    assert queues == files_below(store.path / "consumequeue")
    assert index == list(files_below(store.path / "index").values())
    derived.scan(FileQueue(store.path / "commitlog", store.sizes.commit_log_bytes, Access.READ), 50)
    assert derived.files() == (queues, index)


def test_what_is_left_of_an_expired_log_gives_the_same_entries_from_there_on(tmp_path: Path) -> None:
    store = golden("retention", tmp_path)
    log = FileQueue(store.path / "commitlog", store.sizes.commit_log_bytes, Access.READ)
    derived = derived_like(store, tmp_path / "derived")
    derived.scan(log)
    theirs = ConsumeQueues(store.path / "consumequeue", store.sizes.consume_queue_bytes, Access.READ)
    theirs.load()
    theirs.expire(log.min_offset)
    assert theirs.topics() == derived.queues.topics()
    for queue in theirs:
        ours = derived.queues.get(queue.topic, queue.queue_id)
        assert ours is not None
        assert (ours.min_offset, ours.max_offset) == (queue.min_offset, queue.max_offset)
        assert ours.entries(ours.min_offset, 1000).tolist() == queue.entries(queue.min_offset, 1000).tolist()
    index = Index(store.path / "index", store.sizes.index_slots, store.sizes.index_entries, Access.READ, lambda: 0)
    index.load()
    derived.index.flush()
    assert keys_from(derived.index, log.min_offset) == keys_from(index, log.min_offset)


def keys_from(index: Index, min_physical_offset: int) -> list[tuple[int, int]]:
    records = np.concatenate([file.records() for file in index.files])
    kept = records[records["physical_offset"] >= min_physical_offset]
    return list(zip(kept["key_hash"].tolist(), kept["physical_offset"].tolist(), strict=True))


# one by one, in runs, scanned

messages = st.lists(
    st.tuples(
        st.builds(
            Message,
            st.sampled_from(["a", "b"]),
            st.binary(max_size=20),
            st.lists(st.sampled_from(["k", "key-2", "ключ"]), max_size=3),
            st.sampled_from(["", "TagA", "тег", "A||B"]),
            st.sampled_from([{}, {"UNIQ_KEY": "U1"}, {"DELAY": "3"}, {"DELAY": "99"}, {"DELAY": "x"}, {"p": "q"}]),
            sys_flag=st.sampled_from([0, 0, 0x8, 0x4, 0xC]),
        ),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(messages, st.sampled_from([1 << 20, 1, 1_000]))
def test_a_scan_derives_what_single_puts_derived(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[Message, int]], chunk_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("dispatch")
    store = SmallStore(folder / "store")
    for message, queue_id in wanted:
        store.put(message, queue_id)
    store.index.flush()
    derived = Derived(folder / "derived", 320, 7, 20)
    derived.scan(store.log_files, chunk_bytes)
    queues, index = derived.files()
    assert queues == files_below(folder / "store" / "consumequeue")
    assert index == list(files_below(folder / "store" / "index").values())
    derived.close()
    store.close()


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 2), min_size=1, unique=True),
    st.lists(st.lists(st.sampled_from("xyz"), max_size=2), min_size=1, max_size=40),
)
def test_a_run_derives_what_single_puts_derive(
    tmp_path_factory: pytest.TempPathFactory, queue_ids: list[int], wanted: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    single, run = Derived(folder / "single", 160, 7, 20), Derived(folder / "run", 160, 7, 20)
    writes = write_dispatcher(single.index)
    messages = [Message("t", b"", keys, f"tag {row}") for row, keys in enumerate(wanted)]
    place = 100
    for row, message in enumerate(messages):
        turn, offset = row % len(queue_ids), row // len(queue_ids)
        record = encoder.encode(message, 0, 0)
        stored = PutResult("t", queue_ids[turn], offset, place, record.size, NOW_MS, b"")
        writes.put(single.queues.get_or_create("t", queue_ids[turn]), stored, record)
        place += record.size
    shares = shares_of(queue_ids, [0] * len(queue_ids), 0, len(wanted))
    queues = {queue_id: run.queues.get_or_create("t", queue_id) for queue_id in queue_ids}
    writes = write_dispatcher(run.index)
    writes.put_run(PlacedRun("t", queues, shares, encoder.encode_batch(messages, 0), 100, NOW_MS))
    assert run.files() == single.files()
    run.close()
    single.close()


def test_a_delayed_message_is_due_after_its_level_whatever_its_tag(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    store.put(Message("orders", b"", ["k"], "TagA", {"DELAY": "3"}), 2)
    assert store.queue(SCHEDULE_TOPIC, 2).entry(0) == (0, store.queue(SCHEDULE_TOPIC, 2).physical_end, NOW_MS + 10_000)
    assert list(store.index.candidates(SCHEDULE_TOPIC, "k")) == [0]
    assert list(store.index.candidates("orders", "k")) == []


def test_a_multi_dispatched_message_stands_in_each_queue_it_names(tmp_path: Path) -> None:
    light = LMQ_PREFIX + "one"
    store = SmallStore(tmp_path / "store")
    for number in range(3):
        named = {"INNER_MULTI_DISPATCH": f"{light},shared", "INNER_MULTI_QUEUE_OFFSET": f"{number},{number}"}
        store.put(Message("t", b"x", (), "TagA", named), 1)
    unmatched = {"INNER_MULTI_DISPATCH": f"{light},shared", "INNER_MULTI_QUEUE_OFFSET": "3"}
    store.put(Message("t", b"x", (), "", unmatched), 1)
    derived = Derived(tmp_path / "derived", 320, 7, 20)
    derived.scan(store.log_files)
    assert files_below(tmp_path / "derived" / "consumequeue") == files_below(tmp_path / "store" / "consumequeue")
    for queues in (store.queues, derived.queues):
        own = queues.get("t", 1)
        assert own is not None
        assert own.max_offset == 4
        for queue in (queues.get(light, 0), queues.get("shared", 1)):
            assert queue is not None
            assert queue.entries(0, 9).tolist() == own.entries(0, 3).tolist()


def test_a_queue_that_is_a_plain_topic_too_keeps_the_order_of_the_log(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store")
    for number in range(6):
        if number % 3:
            store.put(Message("shared", b"own"), 1)
        else:
            named = {"INNER_MULTI_DISPATCH": "shared", "INNER_MULTI_QUEUE_OFFSET": str(number)}
            store.put(Message("t", b"further", (), "TagA", named), 1)
    derived = Derived(tmp_path / "derived", 320, 7, 20)
    derived.scan(store.log_files)
    assert files_below(tmp_path / "derived" / "consumequeue") == files_below(tmp_path / "store" / "consumequeue")


def test_a_queue_that_a_message_names_twice_leads_to_that_one_twice(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store")
    named = {"INNER_MULTI_DISPATCH": "shared,shared", "INNER_MULTI_QUEUE_OFFSET": "0,1"}
    store.put(Message("t", b"x", (), "TagA", named), 1)
    store.put(Message("t", b"longer"), 1)
    derived = Derived(tmp_path / "derived", 320, 7, 20)
    derived.scan(store.log_files)
    own, shared = derived.queues.get("t", 1), derived.queues.get("shared", 1)
    assert own is not None
    assert shared is not None
    assert shared.entries(0, 9).tolist() == own.entries(0, 1).tolist() * 2


def test_queue_offsets_of_lost_records_get_entries_that_lead_to_the_damage(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store", log_bytes=1 << 16)
    places = [store.put(Message("t", b"x", ["k"])) for _ in range(10)]
    derived = Derived(tmp_path / "derived", 320, 7, 20)
    (file,) = store.log_files.files
    parts = [next(scan_records(file.whole(), places[start], 0, places[end])) for start, end in ((0, 3), (5, 9))]
    derived.put(parts[0])
    derived.put(parts[1], DamagedRange(places[3], places[5], "zeros", DamageKind.UNREADABLE, 0))
    queue = derived.queues.get_or_create("t", 0)
    assert [entry[0] for entry in queue.entries(0, 20).tolist()] == [*places[:4], places[3], *places[5:9]]
    assert queue.entries(3, 2)["size"].tolist() == [places[5] - places[3]] * 2
    assert list(derived.index.candidates("t", "k")) == [*reversed(places[5:9]), *reversed(places[:3])]


def test_lost_records_without_damage_lead_to_the_record_before_them(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store", log_bytes=1 << 16)
    places = [store.put(Message("t", b"x")) for _ in range(10)]
    derived = Derived(tmp_path / "derived", 320, 7, 20)
    (file,) = store.log_files.files
    for start, end in ((0, 3), (5, 9)):
        derived.put(next(scan_records(file.whole(), places[start], 0, places[end])))
    queue = derived.queues.get_or_create("t", 0)
    assert [entry[0] for entry in queue.entries(0, 20).tolist()] == [*places[:3], *places[2:3] * 2, *places[5:9]]


def test_reserve_refuses_before_anything_is_stored(tmp_path: Path) -> None:
    disk = FullDisk(allocations=1)
    derived = Derived(tmp_path, 160, 7, 20, disk)
    queue = derived.queues.get_or_create("t", 0)
    dispatcher = write_dispatcher(derived.index)
    queue.reserve(8)
    for number in range(8):
        stored = PutResult("t", 0, number, 91 * number, 91, NOW_MS, b"")
        dispatcher.put(queue, stored, keyed("t", ["k"]))
    with pytest.raises(StoreFullError):
        queue.reserve(1)
    assert list(derived.index.candidates("t", "k")) == [91 * number for number in reversed(range(8))]
