"""A replica: equal to its master's log byte for byte, or refused by name and left as it was."""

from __future__ import annotations

import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    FileSizes,
    MasterConfig,
    MasterRefusedError,
    Message,
    MessageStore,
    NotAReplicaError,
    OpenMode,
    OptionError,
    ReplicaStoreError,
    StoreConfig,
    StoreLockedError,
    check_store,
)
from engine.files.layout import StoreLayout
from engine.replication.address import Address
from engine.replication.replica import ReplicaOptions, replicate
from engine.settings.notes import ReplicaNote, ReplicaState, read_replica_note
from engine.write.receiver import Receiver
from tests.engine.replication.masters import ScriptedMaster, eventually, serving
from tests.engine.replication.replicas import free_port
from tests.engine.storetools import QUIET, HastyDisk

SIZES = FileSizes(commit_log_bytes=64 << 10, consume_queue_entries=64, index_slots=50, index_entries=200)
MASTER = StoreConfig(sizes=SIZES, flush=QUIET, disk=HastyDisk())
COPY = StoreConfig(disk=HastyDisk())
FOLLOW = StoreConfig(mode=OpenMode.FOLLOW)


def publish(store: MessageStore, count: int, name: str = "m", size: int = 1_500) -> None:
    """Messages with keys, tags and bodies of different sizes, in two topics."""
    for number in range(count):
        body = f"{name}-{number}-".encode() * (1 + number % (size // 10))
        store.put(Message(f"topic-{number % 2}", body, keys=[f"{name}{number}"], tags=f"t{number % 3}"), number % 4)


def content(store: MessageStore) -> list[tuple[str, int, int, bytes, tuple[str, ...], int]]:
    """Every message: slot, body, keys, physical offset."""
    return [
        (topic, queue, one.queue_offset, bytes(one.body), tuple(one.keys), one.physical_offset)
        for topic in store.topics()
        for queue in store.queues(topic)
        for one in store.read(topic, queue, store.bounds(topic, queue).min_offset)
    ]


def log_of(path: Path, end: int) -> bytes:
    files = sorted((path / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[: end - int(files[0].name)]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ScriptedMaster]:
    with MessageStore.open(tmp_path / "master", MASTER, create=True) as store, serving(store) as served:
        yield served


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


class Running:
    """A replica on a thread of its own."""

    def __init__(self, copy: Path, options: ReplicaOptions, config: StoreConfig) -> None:
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._note = StoreLayout(copy).replica_note
        self._thread = threading.Thread(target=self._run, args=(copy, options, config))
        self._thread.start()

    def _run(self, copy: Path, options: ReplicaOptions, config: StoreConfig) -> None:
        try:
            replicate(copy, options, config, self._stopping)
        except BaseException as error:
            self.errors.append(error)

    @property
    def note(self) -> ReplicaNote:
        eventually(self._note.exists)
        found = read_replica_note(self._note)
        assert found is not None
        return found

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def replicating(copy: Path, options: ReplicaOptions, config: StoreConfig = COPY) -> Iterator[Running]:
    running = Running(copy, options, config)
    try:
        yield running
    finally:
        running.stop()
    if running.errors:
        raise running.errors[0]


def caught_up(master: ScriptedMaster) -> Callable[[], bool]:
    """Whether the replica has acknowledged all of the master's log."""
    return lambda: master.store.physical_end in master.reports[-3:]


def bring_up_to_date(master: ScriptedMaster, copy: Path) -> ReplicaNote:
    master.reports.clear()
    with replicating(copy, master.options) as running:
        eventually(lambda: bool(running.errors) or caught_up(master)())
    return running.note


def require_equal(master: ScriptedMaster, copy: Path) -> None:
    """The copy has the master's log, messages and keys, and a check finds nothing."""
    end = master.store.physical_end
    assert log_of(copy, end) == log_of(master.folder, end)
    with MessageStore.open(copy, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        assert content(store) == content(master.store)
        for topic, _, _, _, keys, physical_offset in content(master.store):
            assert physical_offset in [one.physical_offset for one in store.query(topic, keys[0])]
    assert list(check_store(copy)) == []


def test_a_copy_has_the_masters_log_messages_keys_and_settings(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 500)
    master.store.commit_offset("group", "topic-0", 0, 7)
    bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert len(list((copy / "commitlog").iterdir())) > 3
    for name in ("topics.json", "consumerOffset.json"):
        assert (copy / "config" / name).read_bytes() == (master.folder / "config" / name).read_bytes()


def test_messages_come_while_they_are_published(master: ScriptedMaster, copy: Path) -> None:
    with replicating(copy, master.options):
        for turn in range(5):
            publish(master.store, 40, f"turn{turn}")
            eventually(caught_up(master))
            with MessageStore.open(copy, StoreConfig(mode=OpenMode.FOLLOW)) as store:
                assert len(content(store)) == 40 * (turn + 1)
    require_equal(master, copy)


def test_nothing_is_acknowledged_before_it_is_on_disk(
    master: ScriptedMaster, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    asked = threading.Event()

    class SlowDisk(HastyDisk):
        def sync(self, descriptor: int, path: Path) -> None:
            if path.parent.name == "commitlog" and path.name.isdecimal():
                asked.set()
                may_sync.wait(30)

    publish(master.store, 50)
    with replicating(copy, master.options, replace(COPY, disk=SlowDisk())):
        assert asked.wait(30)
        assert set(master.reports) <= {1}
        may_sync.set()
        eventually(caught_up(master))


def test_a_mark_covers_no_record_that_is_not_dispatched(master: ScriptedMaster, copy: Path) -> None:
    """A process that is killed right after the mark leaves a store in which every message is found."""
    publish(master.store, 10)
    first = log_of(master.folder, master.store.physical_end)
    publish(master.store, 10, "later")
    later = log_of(master.folder, master.store.physical_end)[len(first) :]
    with MessageStore.open(copy, replace(MASTER, is_replica=True), create=True) as store:
        receiver = store.receiver()
        receiver.append(first, 0, 1)
        receiver.dispatch()
        receiver.append(later, len(first), 2)
        store.flush()
        shutil.copytree(copy, copy.with_name("killed"))
    for one, was_closed in ((copy.with_name("killed"), False), (copy, True)):
        with MessageStore.open(one) as store:
            assert content(store) == content(master.store)
            assert store.recovery.clean is was_closed


def test_what_came_is_dispatched_though_nothing_follows(
    master: ScriptedMaster, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are dispatched together with what comes soon, and not later than that."""
    monkeypatch.setattr("engine.replication.replica.DISPATCH_SECONDS", 0.3)
    dispatched: list[float] = []
    dispatch = Receiver.dispatch

    def noted(receiver: Receiver) -> None:
        dispatched.append(time.monotonic())
        dispatch(receiver)

    monkeypatch.setattr(Receiver, "dispatch", noted)
    publish(master.store, 4)
    with replicating(copy, master.options):
        eventually(caught_up(master))
        with MessageStore.open(copy, FOLLOW) as store:
            for turn in range(10):
                publish(master.store, 1, f"turn{turn}")
                eventually(caught_up(master))
            assert len(dispatched) < 8
            eventually(lambda: (store.refresh(), content(store))[1] == content(master.store))


def test_a_copy_has_no_write_buffer(master: ScriptedMaster, copy: Path) -> None:
    """With the master's broker.conf it does without a transient pool: what is in one is on no disk."""
    publish(master.store, 20)
    with replicating(copy, master.options, replace(COPY, transient_pool_buffers=2)):
        eventually(caught_up(master))
    require_equal(master, copy)


def test_a_restarted_replica_begins_before_its_end_and_goes_on(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 700)
    first = bring_up_to_date(master, copy)
    publish(master.store, 300, "later")
    note = bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert master.requests == [1, first.physical_end - (64 << 10)]
    assert note.received_bytes == master.store.physical_end - master.requests[1]


def test_an_ended_connection_is_made_again(master: ScriptedMaster, copy: Path) -> None:
    with replicating(copy, master.options) as running:
        for turn in range(3):
            publish(master.store, 30, f"turn{turn}")
            eventually(caught_up(master))
            master.hang_up()
        eventually(lambda: len(master.requests) == 4)
        eventually(lambda: running.note.connections == 4)
    require_equal(master, copy)


def test_a_copy_begins_where_the_masters_log_begins(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 500)
    master.begin = 2 * SIZES.commit_log_bytes
    bring_up_to_date(master, copy)
    assert min(file.name for file in (copy / "commitlog").iterdir()) == f"{master.begin:020d}"
    end = master.store.physical_end
    assert log_of(copy, end) == log_of(master.folder, end)[master.begin :]
    assert list(check_store(copy)) == []


def test_without_remoting_the_log_comes_and_the_note_says_what_is_lacking(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 200)
    master.options = replace(master.options, remoting=None)
    with replicating(copy, master.options, replace(COPY, sizes=SIZES)) as running:
        eventually(caught_up(master))
    require_equal(master, copy)
    assert "topics and groups" in running.note.lacks
    assert not (copy / "config/topics.json").exists()


@pytest.mark.parametrize("begin", [0, 1, 2, 5])
def test_without_remoting_a_copy_begins_where_the_log_does(master: ScriptedMaster, copy: Path, begin: int) -> None:
    publish(master.store, 800)
    master.begin = begin * SIZES.commit_log_bytes
    assert master.store.physical_end // SIZES.commit_log_bytes >= 5
    master.options = replace(master.options, remoting=None)
    with replicating(copy, master.options, replace(COPY, sizes=SIZES)):
        eventually(caught_up(master))
    end = master.store.physical_end
    assert log_of(copy, end) == log_of(master.folder, end)[master.begin :]
    assert list(check_store(copy)) == []


def test_settings_are_fetched_again(master: ScriptedMaster, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.replication.replica.SETTINGS_MS", 20)
    publish(master.store, 10)
    with replicating(copy, master.options):
        eventually(caught_up(master))
        master.store.create_topic("later", 3)
        eventually(lambda: "later" in (copy / "config/topics.json").read_text())


def test_settings_that_a_master_refuses_are_named_and_its_log_comes(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 30)
    master.refuses = {45}
    note = bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert "delayOffset.json" in note.lacks
    assert (copy / "config/topics.json").exists()


def test_the_note_has_the_state(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    with replicating(copy, master.options) as running:
        eventually(lambda: running.note.state is ReplicaState.IN_SYNC and running.note.lag_bytes == 0)
        note = running.note
        assert (note.cluster, note.broker, note.physical_end) == ("cluster", "broker-a", master.store.physical_end)
        assert note.is_running(note.noted_ms + 1_000)
        assert not note.is_running(note.noted_ms + 60_000)
    assert running.note.state is ReplicaState.STOPPED


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_copy_of_a_copy_is_equal_over_ends_of_both(master: ScriptedMaster, copy: Path) -> None:
    port, last = free_port(), copy.with_name("last")
    served = replace(COPY, master=MasterConfig(ha_port=port, remoting_port=port - 1))
    options = replace(master.options, master=Address("127.0.0.1", port), remoting=Address("127.0.0.1", port - 1))
    publish(master.store, 300)
    bring_up_to_date(master, copy)
    for turn in range(3):
        with replicating(copy, master.options, served):
            publish(master.store, 100, f"turn{turn}")
            eventually(lambda: listens(port))
            with replicating(last, options) as running:
                eventually(lambda: running.note.physical_end == master.store.physical_end)
                publish(master.store, 100, f"later{turn}")
                eventually(lambda: running.note.physical_end == master.store.physical_end)
    require_equal(master, copy)
    require_equal(master, last)
    assert (last / "config/topics.json").read_bytes() == (master.folder / "config/topics.json").read_bytes()


# refused by name, and left as it was


def bytes_below(path: Path) -> dict[str, bytes]:
    """Files of log, queues and index."""
    folders = ("commitlog", "consumequeue", "index")
    return {str(one): one.read_bytes() for name in folders for one in sorted((path / name).rglob("*")) if one.is_file()}


@contextmanager
def refused(master: ScriptedMaster, copy: Path, what: str) -> Iterator[None]:
    """The change in the block makes the master one that is refused; the copy does not change."""
    bring_up_to_date(master, copy)
    before = bytes_below(copy)
    yield
    with pytest.raises(MasterRefusedError, match=what), replicating(copy, master.options) as running:
        eventually(lambda: bool(running.errors))
    assert bytes_below(copy) == before
    note = read_replica_note(StoreLayout(copy).replica_note)
    assert note is not None
    assert note.state is ReplicaState.REFUSED
    assert what.partition(" .")[0] in note.reason


def test_a_log_that_has_diverged_is_refused(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    with refused(master, copy, "they diverged"):
        publish(master.store, 100, "later")
        original = master.log_bytes

        def other_bytes(start: int, most: int) -> bytes:
            data = bytearray(original(start, most))
            if start <= 5_000 < start + len(data):
                data[5_000 - start] ^= 1
            return bytes(data)

        master.log_bytes = other_bytes  # type: ignore[method-assign]


def test_a_master_whose_log_is_shorter_is_refused(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    with refused(master, copy, "it was cut, or made anew"):
        master.told_end = 5_000


def test_a_master_that_has_deleted_what_follows_is_refused(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    with refused(master, copy, "a gap"):
        publish(master.store, 600, "later")
        master.begin = 4 * SIZES.commit_log_bytes


def test_a_master_with_other_sizes_is_refused(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    with refused(master, copy, "files of 65,536 bytes, the master's 131,072"):
        master.settings["mappedFileSizeCommitLog"] = "131072"


def test_another_broker_is_refused(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    with refused(master, copy, "copy of broker cluster/broker-a, and cluster/broker-b answers"):
        master.settings["brokerName"] = "broker-b"


def test_a_size_that_is_not_the_masters_is_refused_before_anything_is_made(master: ScriptedMaster, copy: Path) -> None:
    with pytest.raises(OptionError, match="mappedFileSizeCommitLog"):
        replicate(copy, master.options, replace(COPY, sizes=replace(SIZES, commit_log_bytes=4_096)), threading.Event())
    assert not copy.exists()


def test_a_copy_waits_for_no_replica_of_its_own(master: ScriptedMaster, copy: Path) -> None:
    with pytest.raises(OptionError, match="ASYNC_MASTER"):
        replicate(copy, master.options, replace(COPY, master=MasterConfig(sync=True)), threading.Event())
    assert not copy.exists()


def test_a_store_with_messages_of_its_own_does_not_become_a_replica(master: ScriptedMaster, copy: Path) -> None:
    with MessageStore.open(copy, MASTER, create=True) as store:
        publish(store, 3)
    with pytest.raises(NotAReplicaError, match="messages of its own"):
        replicate(copy, master.options, COPY, threading.Event())


def test_only_its_replication_writes_a_replica(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 10)
    with replicating(copy, master.options):
        eventually(caught_up(master))
        with pytest.raises(StoreLockedError):
            MessageStore.open(copy, MASTER)
    with pytest.raises(ReplicaStoreError, match=r"127\.0\.0\.1.*promote"):
        MessageStore.open(copy, MASTER)


# tampered bytes


@pytest.mark.parametrize("seed", range(8))
def test_a_tampered_frame_never_reaches_the_copy(master: ScriptedMaster, copy: Path, seed: int) -> None:
    """A changed header, or a changed body, ends the connection; the next one brings the true bytes."""
    chance, changed, newest = random.Random(seed), list[int](), [0]
    publish(master.store, 100)
    bodies = [(one[-1] + 88, one[-1] + 88 + len(one[3])) for one in content(master.store)]

    def tamper(physical_offset: int, frame: bytes) -> bytes:
        spots = list(range(12)) if seed % 2 else []
        inside = [position - physical_offset + 12 for first, after in bodies for position in range(first, after)]
        spots += [one for one in inside if 12 <= one < len(frame)] if not spots else []
        is_new = physical_offset > max(newest)  # what is compared differs twice only where logs have diverged
        newest.append(physical_offset)
        if is_new and len(changed) < 3 and spots and chance.random() < 0.3:
            spot = chance.choice(spots)
            changed.append(spot)
            return frame[:spot] + bytes([frame[spot] ^ 1 << chance.randrange(8)]) + frame[spot + 1 :]
        return frame

    master.tamper = tamper
    bring_up_to_date(master, copy)
    assert changed
    require_equal(master, copy)


def test_a_damaged_record_of_the_master_is_never_acknowledged(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 20)
    *_, last = content(master.store)
    spot = last[-1] + 90

    def tamper(physical_offset: int, frame: bytes) -> bytes:
        position = spot - physical_offset + 12
        if 12 <= position < len(frame):
            return frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]
        return frame

    master.tamper = tamper
    with replicating(copy, master.options) as running:
        eventually(lambda: running.note.refused_frames > 1)
        assert "damaged" in running.note.reason
        assert max(master.reports) <= last[-1]
        master.tamper = lambda physical_offset, frame: frame
        eventually(caught_up(master))
    require_equal(master, copy)
