"""What is known of ranges of queues: of which files it is kept, how long it is believed, what a torn file is worth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import KnownRange, MessageStore, OpenMode, Retention, StoreConfig, check_store, repair_store
from engine.derived import known_ranges as ranges
from tests.engine.storetools import contents, killed, require_clean
from tests.fsstore.parquetfiles import small_files

TOPIC = "orders"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store whose log has two full files and a third one."""
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic(TOPIC, 1)
        store.put_lines(TOPIC, b"%0100d\n" % 7 * 12_000, 0)
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(path) as opened:
        yield opened


def known_of(store: MessageStore, begin: int, end: int) -> KnownRange:
    first, last = (store.get(TOPIC, 0, number).physical_offset for number in (begin, end - 1))
    return KnownRange(TOPIC, 0, begin, end, first, last)


def keep(store: MessageStore, begin: int, end: int, content: bytes = b"told") -> KnownRange:
    known = known_of(store, begin, end)
    assert store.known_ranges.content(known) is None
    store.known_ranges.keep(known, content)
    return known


def content_of(path: Path, known: KnownRange, mode: OpenMode = OpenMode.WRITE) -> bytes | None:
    with MessageStore.open(path, StoreConfig(mode=mode)) as store:
        return store.known_ranges.content(known)


def rows_file(path: Path) -> Path:
    [found] = (path / "fsstore" / "ranges").iterdir()
    return found


def test_what_is_kept_is_known_to_this_opening_and_to_later_ones(path: Path) -> None:
    with MessageStore.open(path) as store:
        known = keep(store, 0, 1000)
        other = keep(store, 1000, 2000, b"of others")
        found = store.known_ranges.find(TOPIC, 0, 0, known.first_physical)
        assert (found, store.known_ranges.content(known)) == (known, b"told")
    assert [content_of(path, known, mode) for mode in OpenMode] == [b"told"] * len(OpenMode)
    assert content_of(path, other) == b"of others"


def test_it_survives_a_killed_process(path: Path, tmp_path: Path) -> None:
    with killed(path, tmp_path / "killed", small_files()) as store:
        store.flush()
        known = keep(store, 0, 1000)
    assert content_of(tmp_path / "killed", known) == b"told"


@pytest.mark.parametrize(("begin", "end"), [(0, 9000), (11_000, 11_500)], ids=["of two files", "of the newest file"])
def test_a_range_outside_of_one_full_file_is_not_kept(store: MessageStore, begin: int, end: int) -> None:
    assert store.known_ranges.content(keep(store, begin, end)) is None
    assert not (store.path / "fsstore" / "ranges").exists()


def test_a_range_that_is_not_on_disk_is_not_kept(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._log.files, "_flushed_offset", 100)
    assert store.known_ranges.content(keep(store, 0, 1000)) is None


@pytest.mark.parametrize("change", ["time", "size"])
def test_nothing_is_known_of_a_file_that_has_changed(path: Path, change: str) -> None:
    with MessageStore.open(path) as store:
        known = keep(store, 0, 1000)
    log = min((path / "commitlog").iterdir())
    if change == "time":
        os.utime(log, ns=(0, log.stat().st_mtime_ns + 1))
    else:
        before = log.stat()
        with log.open("ab") as file:
            file.write(b"x")
        os.utime(log, ns=(0, before.st_mtime_ns))
    assert content_of(path, known) is None


def test_what_was_read_while_the_file_changed_is_not_kept(path: Path) -> None:
    with MessageStore.open(path) as store:
        known = known_of(store, 0, 1000)
        assert store.known_ranges.content(known) is None
        os.utime(min((path / "commitlog").iterdir()), ns=(0, 0))
        store.known_ranges.keep(known, b"told")
        assert store.known_ranges.content(known) is None
    assert not (path / "fsstore" / "ranges").exists()


def test_what_is_forgotten_is_not_known_to_a_later_opening(path: Path) -> None:
    with MessageStore.open(path) as store:
        before, known = keep(store, 0, 1000), keep(store, 1000, 2000)
    with MessageStore.open(path) as store:
        store.known_ranges.forget(known)
        assert store.known_ranges.content(known) is None
        assert store.known_ranges.find(TOPIC, 0, known.begin, known.first_physical) is None
    assert (content_of(path, before), content_of(path, known)) == (b"told", None)
    with MessageStore.open(path) as store:
        store.known_ranges.keep(known, b"mended")
    assert (content_of(path, before), content_of(path, known)) == (b"told", b"mended")


def test_content_that_was_of_no_use_is_replaced(path: Path) -> None:
    with MessageStore.open(path) as store:
        known, other = keep(store, 0, 1000), keep(store, 1000, 2000)
        store.known_ranges.keep(known, b"of a newer program")
        assert store.known_ranges.content(known) == b"of a newer program"
        store.known_ranges.keep(known._replace(end=900, last_physical=900), b"shorter")
        store.known_ranges.keep(other, b"told again")
    assert content_of(path, known) is None
    assert content_of(path, other) == b"told again"


def test_another_range_with_that_begin_is_not_taken_for_it(path: Path) -> None:
    with MessageStore.open(path) as store:
        known = keep(store, 0, 1000)
    for other in (known._replace(end=999), known._replace(last_physical=1), known._replace(topic="others")):
        assert content_of(path, other) is None
    with MessageStore.open(path) as store:
        assert store.known_ranges.find(TOPIC, 0, 0, known.first_physical + 1) is None


def test_every_whole_row_of_a_torn_file_counts_and_nothing_else(path: Path) -> None:
    with MessageStore.open(path) as store:
        rows = {keep(store, begin, begin + 100, b"%d" % begin): b"%d" % begin for begin in range(0, 300, 100)}
        file = rows_file(path)
        whole, log = file.read_bytes(), store._log.files
        for size in range(len(whole)):
            file.write_bytes(whole[:size])
            found = [known for _, known in ranges.known_ranges(file.parent, log)]
            assert found == list(rows)[: len(found)]
            assert len(found) == sum(whole.index(content, 24) + len(content) <= size for content in rows.values())


@pytest.mark.parametrize("position", [3, 10, 20, 30, 60, 75], ids=str)
def test_a_row_that_is_not_as_it_was_written_counts_for_nothing(path: Path, position: int) -> None:
    with MessageStore.open(path) as store:
        known = keep(store, 0, 1000)
    file = rows_file(path)
    raw = bytearray(file.read_bytes())
    raw[position] ^= 0x40
    file.write_bytes(raw)
    assert content_of(path, known) is None


def test_memory_for_it_is_bounded(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "KEPT_BYTES", 0)
    rest = known_of(store, 6000, 7000)  # in the second file of the log
    known = keep(store, 0, 1000)
    assert store.known_ranges.content(rest) is None
    assert list(store.known_ranges._files) == [store._log.files.file_bytes]
    assert store.known_ranges.content(known) == b"told"


def test_a_store_that_is_only_read_believes_and_writes_nothing(path: Path) -> None:
    with MessageStore.open(path) as store:
        known = keep(store, 0, 1000)
    before = contents(path)
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        assert store.known_ranges.content(known) == b"told"
        keep(store, 1000, 2000)
        store.known_ranges.forget(known)
        assert store.known_ranges.content(known) is None
    assert contents(path) == before
    assert content_of(path, known) == b"told"


def test_it_goes_with_its_messages(path: Path) -> None:
    config = small_files(retention=Retention(max_bytes=1, clean_interval_ms=3_600_000))
    with MessageStore.open(path, config) as store:
        known = keep(store, 0, 1000)
        assert rows_file(path).name == "0" * 20
        assert store.clean() == 2
        assert store.known_ranges.content(known) is None
        assert list((path / "fsstore" / "ranges").iterdir()) == []


def test_a_full_disk_costs_only_that_it_is_found_out_again(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> int:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(ranges, "open_or_create", full)
        known = keep(store, 0, 1000)
        assert store.known_ranges.content(known) is None
    assert "found again" in (store.stats().last_ignored_error or "")
    store.known_ranges.keep(known, b"told")
    assert store.known_ranges.content(known) == b"told"


def test_a_file_is_bounded(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MOST_BYTES", 200)
    first, second = keep(store, 0, 1000), keep(store, 1000, 2000, bytes(100))
    assert (store.known_ranges.content(first), store.known_ranges.content(second)) == (b"told", None)


def spoil(path: Path, number: int) -> None:
    """Damage a body, and leave the time of its file as it was."""
    with MessageStore.open(path) as store:
        physical_offset = store.get(TOPIC, 0, number).physical_offset
    log = min((path / "commitlog").iterdir())
    before = log.stat()
    with log.open("r+b") as file:
        file.seek(physical_offset + 90)
        file.write(b"X")
    os.utime(log, ns=(0, before.st_mtime_ns))


def test_a_check_names_what_is_believed_of_damaged_messages_and_a_repair_removes_it(path: Path) -> None:
    with MessageStore.open(path) as store:
        keep(store, 0, 1000)
        keep(store, 1000, 2000)
    spoil(path, 1500)
    found = [problem for problem in check_store(path) if problem.path.startswith("fsstore/ranges")]
    assert [problem.text for problem in found] == ["messages 1000 to 1999 of orders/0 are not all good any more"]
    assert any("removed fsstore/ranges/" in line for line in repair_store(path))
    assert list((path / "fsstore" / "ranges").iterdir()) == []
    require_clean(check_store(path))
