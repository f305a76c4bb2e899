"""Nobody waits while a body is decompressed: it happens in threads, a piece at a time, for all who read the message."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from engine import Message, MessageStore, WouldBlock, nonblocking
from engine.read import offset_index, stream_rows
from engine.read.offset_index import BLOCK_MESSAGES
from engine.record import compression as engine_compression
from fsstore.interface import Attributes, MessageColumns, SlowWork, WorkKind
from fsstore.tree import listing, streams
from fsstore.tree.memory_budget import Purpose
from fsstore.tree.messages import CompressedBody
from tests.fsstore.conftest import Mount, patiently

T = TypeVar("T")

COMPRESSED = 1
BODIES = [b"%d " % number + bytes(200_000) for number in range(5)]


@pytest.fixture
def mount(store: MessageStore) -> Mount:
    """A queue of compressed messages, and one of a small plain message."""
    store.create_topic("orders", 2)
    store.put_batch([Message("orders", zlib.compress(body), sys_flag=COMPRESSED) for body in BODIES], 0)
    store.put(Message("orders", b"small"), 1)
    return Mount(store)


class Watch:
    """Says which threads decompressed, and how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        undo = engine_compression.decompress

        def watched(stored: bytes | memoryview, sys_flag: int, limit_bytes: int) -> memoryview:
            body = undo(stored, sys_flag, limit_bytes)
            self.threads.append(threading.get_ident())
            return body

        monkeypatch.setattr(engine_compression, "decompress", watched)

    def take(self) -> int:
        """How often since the last call; never on this thread."""
        assert threading.get_ident() not in self.threads, "somebody waited for a body"
        count = len(self.threads)
        self.threads.clear()
        return count


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_threads(request: Callable[..., T], *arguments: object) -> T:
    """The core's answer; its slow work is done on other threads, as a mount has it."""
    return patiently(request, *arguments, do=in_a_thread)


def look_up(mount: Mount, path: str) -> Attributes:
    attributes = mount.fs.getattr(1)
    for name in path.encode().split(b"/"):
        attributes = in_threads(mount.fs.lookup, attributes.inode, name)
    return attributes


def cat(mount: Mount, path: str, piece: int = 1 << 17) -> bytes:
    handle = in_threads(mount.fs.open, look_up(mount, path).inode, 0).handle
    text = b""
    while some := bytes(in_threads(mount.fs.read, handle, len(text), piece)):
        text += some
    mount.fs.handles.release(handle)
    return text


def test_stat_cat_listing_and_stream_decompress_in_threads_alone(mount: Mount, watch: Watch) -> None:
    assert look_up(mount, "orders/0/2").size == len(BODIES[2])
    assert watch.take() == 1
    assert cat(mount, "orders/0/3") == BODIES[3]
    assert watch.take() == 1
    handle = mount.fs.opendir(look_up(mount, "orders/0").inode).handle
    mount.fs.readdir(handle, 0, 1)
    position, sizes = 1, []
    while batch := in_threads(mount.fs.readdir, handle, position, 100):
        assert isinstance(batch, MessageColumns)
        sizes += batch.sizes.tolist()
        position = int(batch.next_positions[-1])
    assert sizes == [len(body) for body in BODIES]
    text = b"".join(body + b"\n" for body in BODIES)
    assert look_up(mount, "orders/0.log").size == len(text)
    assert cat(mount, "orders/0.log") == text
    assert watch.take() >= len(BODIES)


def test_a_reader_of_a_plain_message_never_needs_a_thread(mount: Mount) -> None:
    queue = mount.fs.lookup(mount.fs.lookup(1, b"orders").inode, b"1").inode
    assert mount.fs.open(mount.fs.lookup(queue, b"0").inode, 0).body == b"small"
    assert mount.fs.lookup(mount.stat("orders").inode, b"1.log").size == len(b"small\n")


def test_all_handles_share_one_copy(mount: Mount, watch: Watch) -> None:
    inode = look_up(mount, "orders/0/2").inode
    handles = [in_threads(mount.fs.open, inode, 0).handle for _ in range(20)]
    for handle in handles:
        assert bytes(in_threads(mount.fs.read, handle, 100_000, 50)) == BODIES[2][100_000:100_050]
    assert watch.take() == 1
    assert mount.fs.memory.used[Purpose.BODIES] == len(BODIES[2])


def test_bodies_give_way_to_others_and_are_read_all_the_same(mount: Mount) -> None:
    mount.fs.memory.limit_bytes = 2 * len(BODIES[0]) + 100
    assert [cat(mount, f"orders/0/{number}", 50_000) for number in range(5)] == BODIES
    assert mount.fs.memory.used[Purpose.BODIES] <= mount.fs.memory.limit_bytes
    mount.fs.memory.limit_bytes = 1
    assert [cat(mount, f"orders/0/{number}", 50_000) for number in range(5)] == BODIES
    assert mount.fs.memory.used[Purpose.BODIES] <= len(BODIES[0])


def test_an_open_message_that_expired_is_read_on(mount: Mount) -> None:
    handle = in_threads(mount.fs.open, look_up(mount, "orders/0/2").inode, 0).handle
    mount.fs.queue_gone("orders", 1)  # lets go of what is remembered
    assert bytes(in_threads(mount.fs.read, handle, 0, 10)) == BODIES[2][:10]
    assert isinstance(mount.fs._files[handle], CompressedBody)


class Hours:
    """A clock on which everything takes an hour."""

    def __init__(self) -> None:
        self._now_s = time.monotonic()

    def monotonic(self) -> float:
        self._now_s += 3600
        return self._now_s


def test_one_step_of_a_listing_decompresses_no_longer_than_a_slice(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "time", Hours())
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    mount.fs.readdir(handle, 0, 1)
    for position in range(1, 6):
        with pytest.raises(SlowWork) as slow:
            mount.fs.readdir(handle, position, 100)
        slow.value.work()
        batch = mount.fs.readdir(handle, position, 100)
        assert isinstance(batch, MessageColumns)
        assert batch.sizes.tolist() == [len(BODIES[position - 1])], "the first alone, and the rest in further steps"
    assert mount.fs.readdir(handle, 6, 100) == []


def test_one_step_of_a_sum_decompresses_no_longer_than_a_slice(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_rows, offset_index):
        monkeypatch.setattr(module, "time", Hours())
    topic, steps, kinds = mount.stat("orders").inode, 0, set()
    while True:
        try:
            size = mount.fs.lookup(topic, b"0.log").size
            break
        except SlowWork as slow:
            kinds.add(slow.kind)
            slow.work()
            steps += 1
    assert kinds == {WorkKind.DECOMPRESSING}, "one at a time"
    assert size == sum(map(len, BODIES)) + len(BODIES)
    assert steps >= len(BODIES)


def test_a_nonblocking_thread_waits_for_no_other_that_sums(mount: Mount) -> None:
    stream = mount.fs._store.stream("orders", 1)
    lock = stream._index._lock
    with lock, pytest.raises(WouldBlock), nonblocking():
        _ = stream.size
    assert stream.size == len(b"small\n")


def test_a_body_that_cannot_be_decompressed_is_refused_by_name(mount: Mount, store: MessageStore) -> None:
    store.put(Message("other", b"no stream of zlib's", sys_flag=COMPRESSED), 0)
    store.put(Message("other", b"good"), 0)
    assert mount.entries("other/0")[b"%020d" % 1][1] == len(b"good")
    assert mount.cat("other/0.log") == b"good\n"
    with pytest.raises(Exception, match="cannot be decompressed"):
        patiently(mount.fs.lookup, mount.stat("other/0").inode, b"0")


def test_a_block_of_large_messages_is_measured_in_slices_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    body = b"x" * 99_999
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.put_batch([Message("orders", zlib.compress(body), sys_flag=COMPRESSED)] * BLOCK_MESSAGES, 0)
        assert store.stream("orders", 0).size == BLOCK_MESSAGES * 100_000
    monkeypatch.setattr(streams, "SLICE_S", 0.002)
    with MessageStore.open(tmp_path / "store") as store:
        mount = Mount(store)
        handle = in_threads(mount.fs.open, look_up(mount, "orders/0.log").inode, 0).handle
        watch.threads.clear()
        most = 0
        while True:
            try:
                assert bytes(mount.fs.read(handle, 5_000_000 - 3, 5)) == b"xx\nxx"
                break
            except SlowWork as slow:
                in_a_thread(slow.work)
                most = max(most, watch.take())
        assert 0 < most < BLOCK_MESSAGES // 4, "some messages, then a window of text: never the block"
