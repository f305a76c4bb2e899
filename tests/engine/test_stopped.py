"""A disk that refuses to be written stops no reader: the store opens, and says why it takes nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    FlushFailedError,
    Message,
    MessageStore,
    NotAStoreError,
    ReadOnlyStoreError,
    StoreError,
    StoreLockedError,
    check_store,
)
from engine.files.disk import Disk
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, contents, killed, require_clean


class RefusingDisk(Disk):
    """Refuses the calls named in `calls` with this errno, once it is switched on."""

    def __init__(self, number: int, *calls: str) -> None:
        self.number = number
        self.calls = calls
        self.refuses = True

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        self._answer("allocate", path)
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        self._answer("sync", path)

    def sync_directory(self, path: Path) -> None:
        self._answer("sync_directory", path)

    def write_again(self, descriptor: int, path: Path, position: int, size: int) -> None:
        self._answer("write_again", path)
        super().write_again(descriptor, path, position, size)

    def _answer(self, call: str, path: Path) -> None:
        if self.refuses and call in self.calls:
            raise OSError(self.number, "refused", str(path))


REFUSALS: dict[str, Callable[[], RefusingDisk]] = {
    "syncs fail": lambda: RefusingDisk(errno.EIO, "sync"),
    "syncs find no space": lambda: RefusingDisk(errno.ENOSPC, "sync"),
    "over quota": lambda: RefusingDisk(errno.EDQUOT, "sync", "allocate", "write_again"),
    "read-only": lambda: RefusingDisk(errno.EROFS, "sync", "sync_directory", "allocate", "write_again"),
    "writing again fails": lambda: RefusingDisk(errno.ENOSPC, "write_again"),
}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The store of a process that died: 150 messages, the first 100 of them flushed."""
    with killed(tmp_path / "store", tmp_path / "left") as store:
        for number in range(150):
            store.put(Message("orders", b"body-%d" % number * 20, [f"K{number}"]), number % 2)
            if number == 99:
                store.flush()
    return tmp_path / "left"


def require_readable(store: MessageStore) -> None:
    found = [*bodies(store, "orders", 0), *bodies(store, "orders", 1)]
    assert sorted(found) == sorted(b"body-%d" % number * 20 for number in range(150))
    assert [bytes(one.body) for one in store.query("orders", "K149")] == [b"body-149" * 20]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_who_serves_readers_opens_it_all_the_same(left: Path, refusal: str) -> None:
    disk = REFUSALS[refusal]()
    config = replace(SMALL, disk=disk, serves_readers=True)
    with MessageStore.open(left, config) as store:
        require_readable(store)
        assert store.mode is config.mode
        reason = store.read_only_reason or ""
        assert reason.startswith("the disk refuses to be written")
        assert str(left) in reason
        with pytest.raises(ReadOnlyStoreError, match="the disk refuses"):
            store.put(Message("orders", b"refused"), 0)
        with pytest.raises(ReadOnlyStoreError):
            store.create_topic("made", 1)
        with pytest.raises(StoreLockedError):
            MessageStore.open(left, SMALL)
        assert store.stats().read_only_reason == reason
    disk.refuses = False
    with MessageStore.open(left, config) as store:
        require_readable(store)
        assert store.read_only_reason is None
        store.put(Message("orders", b"taken"), 0)
    require_clean(check_store(left))


@pytest.mark.parametrize("refusal", REFUSALS)
def test_who_does_not_is_told_what_the_disk_refused(left: Path, refusal: str) -> None:
    with pytest.raises((OSError, FlushFailedError), match="refused") as caught:
        MessageStore.open(left, replace(SMALL, disk=REFUSALS[refusal]()))
    assert str(left) in str(caught.value)


def test_a_new_store_on_a_disk_that_refuses_is_an_error(tmp_path: Path) -> None:
    config = replace(SMALL, disk=RefusingDisk(errno.ENOSPC, "sync"), serves_readers=True)
    with pytest.raises(OSError, match="refused"):
        MessageStore.open(tmp_path / "new", config, create=True)
    with pytest.raises(NotAStoreError):
        MessageStore.open(tmp_path / "none", config)


def test_other_errors_are_raised(left: Path) -> None:
    with MessageStore.open(left, SMALL), pytest.raises(StoreLockedError):
        MessageStore.open(left, replace(SMALL, serves_readers=True))


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_that_was_stopped_is_read_and_nothing_of_it_is_changed(left: Path, *, clean: bool) -> None:
    if clean:
        MessageStore.open(left, SMALL).close()
    before = contents(left)
    with MessageStore.open(left, replace(SMALL, stopped="a flush failed")) as store:
        require_readable(store)
        assert store.read_only_reason == "a flush failed"
        assert store.durable_end == (store.physical_end if clean else store.durable_end)
    assert contents(left) == before


def test_what_was_not_on_disk_when_a_store_was_stopped_is_never_said_to_be(left: Path) -> None:
    with MessageStore.open(left, replace(SMALL, stopped="a flush failed")) as store:
        durable, end = store.durable_end, store.physical_end
        assert 0 < durable < end
        answers: list[StoreError | None] = []
        store.request_durable(durable, answers.append)
        store.request_durable(end, answers.append)
        store.wait_durable(durable)
        assert answers[0] is None
        assert isinstance(answers[1], FlushFailedError)
        with pytest.raises(FlushFailedError, match="a flush failed"):
            store.wait_durable(end)
        with pytest.raises(FlushFailedError, match="a flush failed"):
            store.flush()
        assert store.flush_failure is not None


def test_a_failed_flush_is_told_once_to_whoever_wants_to_remember_it(tmp_path: Path) -> None:
    disk = RefusingDisk(errno.EIO, "sync")
    disk.refuses = False
    heard: list[FlushFailedError] = []
    store = MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True)
    store.when_flush_fails(heard.append)
    store.put(Message("orders", b"lost"), 0)
    disk.refuses = True
    for _ in range(2):
        with pytest.raises(FlushFailedError):
            store.flush()
    assert len(heard) == 1
    late: list[FlushFailedError] = []
    store.when_flush_fails(late.append)
    assert late == heard
    with pytest.raises(FlushFailedError):
        store.close()


def test_it_is_known_whether_another_try_is_worth_it(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RefusingDisk(errno.ENOSPC, "sync", "write_again")
    with MessageStore.open(left, replace(SMALL, disk=disk, serves_readers=True)) as store:
        assert not store.disk_takes_writes()
        disk.refuses = False
        assert store.disk_takes_writes()
        monkeypatch.setattr("engine.store.disk_space", lambda path: (SMALL_SIZES.commit_log_bytes, 1 << 40))
        assert not store.disk_takes_writes(), "there is no room for a file of the log"
    assert not (left / "fsstore" / "probe").exists()
