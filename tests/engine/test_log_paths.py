"""A commit log that is elsewhere than in STORE/commitlog, or over several paths: read, followed and written right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    DiskSpace,
    DuplicateLogFileError,
    Message,
    MessageStore,
    MissingLogError,
    ObstructedError,
    OpenMode,
    OptionError,
    ReadError,
    Retention,
    StoreConfig,
    StoreFullError,
    check_store,
    repair_store,
    with_options,
)
from engine.files.layout import LogPaths
from tests.engine.storetools import SMALL, HastyDisk, bodies, contents, killed, nothing_left_open, require_clean
from tests.golden55 import Golden55, golden55, require_same, traces

FILE_BYTES = SMALL.sizes.commit_log_bytes if SMALL.sizes else 0


def two(tmp_path: Path, config: StoreConfig = SMALL) -> StoreConfig:
    """Settings of a store whose log is over two paths."""
    return replace(config, commit_log_paths=(tmp_path / "a" / "log", tmp_path / "b" / "log"))


def fill(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(Message("T", b"body-%d" % number, [f"key-{number}"]), number % 3)


def require_filled(store: MessageStore, count: int) -> None:
    for number in range(count):
        assert bytes(store.get("T", number % 3, number // 3).body) == b"body-%d" % number
        assert [one.queue_offset for one in store.query("T", f"key-{number}", 2)] == [number // 3]


def placed(tmp_path: Path) -> dict[str, list[int]]:
    """Numbers of the log's files with data, by the folder that they are in."""
    found = {}
    for folder in ("a", "b", "c"):
        files = sorted((tmp_path / folder / "log").glob("0*"))
        found[folder] = [int(file.name) // FILE_BYTES for file in files if any(file.read_bytes()[:8])]
    return found


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Where three disks would be."""
    for name in "abc":
        (tmp_path / name).mkdir()
    return tmp_path


# a broker's store


@pytest.fixture
def multi(tmp_path: Path) -> Golden55:
    return golden55("multi", tmp_path)


def paths_of(given: Golden55, config: StoreConfig | None = None) -> StoreConfig:
    """The paths of the broker's broker.conf, absolute."""
    paths = f"{given.folder}/multi/commitlog,{given.folder}/multi2/commitlog"
    return with_options(config or StoreConfig(), {"storePathCommitLog": paths})


@pytest.mark.parametrize("mode", list(OpenMode), ids=lambda mode: mode.value)
def test_a_brokers_log_over_two_paths_is_read_whole(multi: Golden55, mode: OpenMode) -> None:
    before = traces(multi.folder)
    with MessageStore.open(multi.path, paths_of(multi, StoreConfig(mode=mode))) as store:
        require_same(store, multi)
        assert store.index_state.state == "in use"
        require_clean(store.check())
    if mode is OpenMode.WRITE:
        require_clean(check_store(multi.path, None, paths_of(multi)))
    else:
        assert traces(multi.folder) == before


def test_a_folder_with_old_files_is_read_and_not_written(multi: Golden55) -> None:
    old = multi.folder / "multi2" / "commitlog"
    given = {"storePathCommitLog": f"{multi.path}/commitlog", "readOnlyCommitLogStorePaths": str(old)}
    config = with_options(SMALL, given)
    before = contents(old)
    with MessageStore.open(multi.path, replace(config, sizes=None)) as store:
        require_same(store, multi)
        store.put_lines("va-multi", b"line\n" * 3000, 0)
        assert store.stats().commit_log_files > 8
    assert contents(old) == before
    assert list(repair_store(multi.path, None, config)) == []
    with MessageStore.open(multi.path, replace(config, sizes=None, mode=OpenMode.READ_ONLY)) as store:
        assert sum(body == b"line" for body in bodies(store, "va-multi", 0)) == 3000
    assert contents(old) == before


@pytest.mark.parametrize("kept", ["both", "no second", "only the first file"])
def test_a_brokers_store_of_which_a_path_is_not_named_is_refused_and_left_alone(multi: Golden55, kept: str) -> None:
    (multi.folder / "multi2").rename(multi.folder / "elsewhere")
    if kept != "both":
        for file in sorted((multi.path / "commitlog").iterdir())[1 if kept == "only the first file" else 2 :]:
            file.unlink()
    require_refused(multi.path, StoreConfig(), "storePathCommitLog=PATH")


def require_refused(path: Path, config: StoreConfig, words: str) -> None:
    """Every way to open the store says so, and changes nothing."""
    before = traces(path.parent)
    for way in ways(path, config).values():
        with nothing_left_open(), pytest.raises(MissingLogError) as refusal:
            way()
        assert words in str(refusal.value)
        assert traces(path.parent) == before


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_a_power_cut_may_take_the_first_file_of_a_log(tmp_path: Path, mode: OpenMode) -> None:
    left = tmp_path / "left"
    with killed(tmp_path / "store", left) as store:
        store.create_topic("T", 2)
        store.put(Message("T", b"never on disk", ["K"]), 0)
    for file in (left / "commitlog").iterdir():
        file.unlink()
    with MessageStore.open(left, replace(SMALL, mode=mode)) as opened:
        assert opened.queues_by_topic() == {"T": [0, 1]}
        assert bodies(opened, "T", 0) == []
        if mode is not OpenMode.FOLLOW:  # which recovers nothing
            assert "queues lose 1 entries that led there" in " ".join(opened.recovery.notes)
        if mode is OpenMode.WRITE:
            assert opened.put(Message("T", b"first"), 0).queue_offset == 0
            require_clean(opened.check())
    if mode is OpenMode.WRITE:
        require_clean(check_store(left))


@pytest.mark.parametrize("what", ["it was on disk", "another writer came"])
def test_a_log_that_was_there_is_missed(tmp_path: Path, what: str) -> None:
    left = tmp_path / "left"
    with killed(tmp_path / "store", left) as store:
        store.put(Message("T", b"body"), 0)
        if what == "it was on disk":
            store.flush()
    if what == "another writer came":
        (left / "lock").write_bytes(b"lock")
    for file in (left / "commitlog").iterdir():
        file.unlink()
    require_refused(left, SMALL, "speaks of one")


def ways(path: Path, config: StoreConfig) -> dict[str, Callable[[], object]]:
    """Each way to look at or change the store at `path`."""
    modes: dict[str, Callable[[], object]] = {
        mode.value: lambda mode=mode: MessageStore.open(path, replace(config, mode=mode)).close()  # type: ignore[misc]
        for mode in OpenMode
    }
    checks = {
        "check": lambda: list(check_store(path, None, config)),
        "repair": lambda: list(repair_store(path, None, config)),
    }
    return modes | checks


@pytest.mark.parametrize("left", ["30,000 bytes", "all but a page", "whole records", "a filler's head"])
def test_a_brokers_only_file_that_was_cut_is_read_as_far_as_it_goes(multi: Golden55, left: str) -> None:
    shutil.rmtree(multi.folder / "multi2")
    first, *later = sorted((multi.path / "commitlog").iterdir())
    for file in later:
        file.unlink()
    ends = [line["po"] + line["size"] for line in multi.messages]
    lengths = {"30,000 bytes": 30_000, "whole records": max(end for end in ends if end < 30_000)}
    length = lengths.get(left, 65_536 - 4096)
    if left == "a filler's head":
        length = max(end for end in ends if end < 65_536) + 8
    os.truncate(first, length)
    whole = [line for line in multi.messages if line["po"] + line["size"] <= length]
    with MessageStore.open(multi.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        for line in whole:
            assert store.get(line["qt"], line["q"], line["qo"]).physical_offset == line["po"]


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_a_brokers_only_file_that_holds_other_bytes_is_damaged_and_no_half_of_a_log(
    multi: Golden55, byte: bytes
) -> None:
    shutil.rmtree(multi.folder / "multi2")
    first, *later = sorted((multi.path / "commitlog").iterdir())
    for file in later:
        file.unlink()
    first.write_bytes(byte * 30_000)
    line = min(multi.messages, key=lambda line: line["po"])
    with MessageStore.open(multi.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store, pytest.raises(ReadError):
        store.get(line["qt"], line["q"], line["qo"])


def test_a_broker_that_goes_on_over_two_paths_is_followed(multi: Golden55) -> None:
    """The store grows file by file, as it would while a broker writes it."""
    files = [*(multi.path / "commitlog").iterdir(), *(multi.folder / "multi2" / "commitlog").iterdir()]
    later = sorted(files, key=lambda file: file.name)[1:]
    contents_of = {file: file.read_bytes() for file in later}
    queues = {file: file.read_bytes() for file in (multi.path / "consumequeue").rglob("0*") if file.is_file()}
    for file in later:
        file.unlink()
    for file in queues:
        file.write_bytes(bytes(len(queues[file])))
    with MessageStore.open(multi.path, paths_of(multi, StoreConfig(mode=OpenMode.FOLLOW))) as store:
        assert store.stats().physical_end <= 65536
        for file in later:
            file.write_bytes(contents_of[file])
            store.refresh()
        for file, content in queues.items():
            file.write_bytes(content)
        while store.refresh():
            continue
        require_same(store, multi)


# writing


def test_files_go_to_the_paths_in_turn(folders: Path) -> None:
    config = two(folders)
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 400)
        require_filled(store, 400)
        require_clean(store.check())
        count = store.stats().commit_log_files
    assert count >= 6
    assert placed(folders) == {"a": list(range(0, count, 2)), "b": list(range(1, count, 2)), "c": []}
    assert not any((folders / "store" / "commitlog").glob("*"))
    require_clean(check_store(folders / "store", None, config))
    for mode in OpenMode:
        with MessageStore.open(folders / "store", replace(config, mode=mode)) as store:
            require_filled(store, 400)
            assert store.recovery.clean


def test_the_log_may_be_in_one_other_folder(folders: Path) -> None:
    config = replace(SMALL, commit_log_paths=(folders / "a" / "log",))
    for first in (0, 100):
        with MessageStore.open(folders / "store", config, create=True) as store:
            fill(store, first, 100)
    with MessageStore.open(folders / "store", replace(config, mode=OpenMode.READ_ONLY)) as store:
        require_filled(store, 200)
    require_refused(folders / "store", SMALL, f"-o storePathCommitLog={folders}/a/log")


def test_a_store_that_was_written_over_two_paths_is_refused_without_them(folders: Path) -> None:
    config = replace(SMALL, commit_log_paths=(folders / "store" / "commitlog", folders / "b" / "log"))
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 5)
    words = f"-o storePathCommitLog={folders}/store/commitlog,{folders}/b/log"
    require_refused(folders / "store", SMALL, words)
    with MessageStore.open(folders / "store", config) as store:
        fill(store, 5, 200)
    require_refused(folders / "store", SMALL, words)
    partly = replace(SMALL, commit_log_paths=(folders / "store" / "commitlog",))
    require_refused(folders / "store", partly, f"{folders}/b/log")
    for file in (folders / "b" / "log").iterdir():
        file.rename(folders / "store" / "commitlog" / file.name)
    with MessageStore.open(folders / "store", partly) as store:  # all of it is there again, and forgotten
        require_filled(store, 205)
    with MessageStore.open(folders / "store", SMALL) as store:
        require_filled(store, 205)


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_path_whose_disk_is_not_there_is_refused_by_name(folders: Path, what: str) -> None:
    config = two(folders)
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 200)
    (folders / "b" / "log").rename(folders / "b" / "kept")
    if what == "empty":
        (folders / "b" / "log").mkdir()
    require_refused(folders / "store", config, f"{folders}/b/log")
    if what == "empty" and config.sizes is not None:
        words = f"no file holds physical offset {config.sizes.commit_log_bytes} of the log"
        require_refused(folders / "store", config, words)
    shutil.rmtree(folders / "b" / "log", ignore_errors=True)
    (folders / "b" / "kept").rename(folders / "b" / "log")
    with MessageStore.open(folders / "store", config) as store:
        require_filled(store, 200)


def test_a_path_that_can_have_been_meant_for_another_is_not_made(folders: Path) -> None:
    config = replace(SMALL, commit_log_paths=(folders / "a" / "log", folders / "typo" / "log"))
    with pytest.raises(OptionError, match="typo does not exist"):
        MessageStore.open(folders / "store", config, create=True)
    assert not (folders / "typo").exists()
    assert not (folders / "store").exists()


def test_another_path_can_be_added(folders: Path) -> None:
    with MessageStore.open(folders / "store", SMALL, create=True) as store:
        fill(store, 0, 100)
    (folders / "b" / "log").mkdir()
    config = replace(SMALL, commit_log_paths=(folders / "store" / "commitlog", folders / "b" / "log"))
    with MessageStore.open(folders / "store", config) as store:
        fill(store, 100, 200)
        require_filled(store, 300)
    assert placed(folders)["b"]
    with MessageStore.open(folders / "store", replace(config, mode=OpenMode.READ_ONLY)) as store:
        require_filled(store, 300)


def test_the_queues_are_made_again_from_a_log_over_two_paths(folders: Path) -> None:
    config = two(folders)
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 200)
    shutil.rmtree(folders / "store")
    for mode in (OpenMode.WRITE, OpenMode.READ_ONLY):
        with MessageStore.open(folders / "store", replace(config, mode=mode)) as store:
            require_filled(store, 200)


class FullPath(HastyDisk):
    """The disk under one folder is full."""

    def __init__(self) -> None:
        self.full: Path | None = None

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.full is not None and path.is_relative_to(self.full):
            raise OSError(28, "No space left on device", str(path))
        super().allocate(descriptor, path, start, size_bytes)


@pytest.mark.parametrize("preallocate", [True, False])
def test_a_file_goes_to_the_next_path_when_one_is_full(folders: Path, preallocate: bool) -> None:
    disk = FullPath()
    config = two(folders, replace(SMALL, disk=disk, preallocate=preallocate))
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 100)
        disk.full = folders / "b"
        fill(store, 100, 300)
        count = store.stats().commit_log_files
        disk.full = folders
        with pytest.raises(StoreFullError):
            fill(store, 400, 1000)
    found = placed(folders)
    assert found["a"][-3:] == [found["a"][-3], found["a"][-3] + 1, found["a"][-3] + 2]
    assert sorted(found["a"] + found["b"])[:count] == list(range(count))
    with MessageStore.open(folders / "store", replace(config, mode=OpenMode.READ_ONLY)) as store:
        require_filled(store, 400)
        require_clean(store.check())


def test_retention_keeps_new_files_off_a_path_that_fills_up(folders: Path) -> None:
    use = {folders / "a": 0.2, folders / "b": 0.2, folders / "store": 0.1}

    def disk_use(path: Path) -> DiskSpace:
        number, used = next(
            (number, used) for number, (folder, used) in enumerate(use.items()) if path.is_relative_to(folder)
        )
        return DiskSpace(number, round(used * 1e9), 1_000_000_000)

    calm = Retention(clean_interval_ms=3_600_000, delete_pause_ms=0, delete_when_hours=(), disk_clean_ratio=0.85)
    config = two(folders, replace(SMALL, retention=calm, preallocate=False))
    with MessageStore.open(folders / "store", config, disk_use=disk_use, create=True) as store:
        fill(store, 0, 100)
        use[folders / "a"] = 0.99  # over every ratio: one path with space is enough to go on
        assert store.clean() == 0
        before = placed(folders)["a"]
        fill(store, 100, 200)
        assert placed(folders)["a"] == before
        use[folders / "b"] = 0.99
        assert store.clean() > 0
        assert store.read_only_reason is not None


def test_retention_takes_the_oldest_file_wherever_it_is(folders: Path) -> None:
    keep = Retention(max_bytes=2 * FILE_BYTES, clean_interval_ms=3_600_000, delete_pause_ms=0, delete_batch_files=1)
    config = two(folders, replace(SMALL, retention=keep))
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 400)
        gone = 0
        while store.clean():
            gone += 1
            present = sorted(number for found in placed(folders).values() for number in found)
            assert present[0] == gone
        assert gone >= 3
        require_clean(store.check())
        begin = store.bounds("T", 0).min_offset
    require_clean(check_store(folders / "store", None, config))
    with MessageStore.open(folders / "store", replace(config, mode=OpenMode.FOLLOW)) as store:
        assert store.bounds("T", 0).min_offset == begin


@pytest.mark.parametrize("preallocate", [True, False])
def test_what_a_killed_writer_put_over_two_paths_is_there_again(folders: Path, preallocate: bool) -> None:
    config = two(folders, replace(SMALL, preallocate=preallocate))
    crashed = folders / "crashed"
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 150)
        store.flush()
        fill(store, 150, 150)
        shutil.copytree(folders, crashed, ignore=shutil.ignore_patterns("crashed"))
    with MessageStore.open(crashed / "store", replace(two(crashed), mode=OpenMode.READ_ONLY)) as store:
        require_filled(store, 300)
    with MessageStore.open(crashed / "store", two(crashed)) as store:
        assert not store.recovery.clean
        require_filled(store, 300)
        fill(store, 300, 100)
        require_filled(store, 400)
        require_clean(store.check())
    require_clean(check_store(crashed / "store", None, two(crashed)))


def test_a_torn_end_is_cut_in_whichever_path_it_is(folders: Path) -> None:
    config = two(folders)
    crashed = folders / "crashed"
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 150)
        end = store.physical_end
        store.put(Message("T", b"torn", []), 0)
        shutil.copytree(folders, crashed, ignore=shutil.ignore_patterns("crashed"))
    number = end // FILE_BYTES
    newest = crashed / "ab"[number % 2] / "log" / f"{number * FILE_BYTES:020d}"
    with newest.open("r+b") as file:
        file.seek(end % FILE_BYTES + 90)
        file.write(bytes(30))
    with MessageStore.open(crashed / "store", two(crashed)) as store:
        require_filled(store, 150)
        assert store.physical_end == end
    assert not any(newest.read_bytes()[end % FILE_BYTES :])


def test_a_follower_of_a_writer_over_two_paths_sees_all_and_what_goes(folders: Path) -> None:
    keep = Retention(max_bytes=3 * FILE_BYTES, clean_interval_ms=3_600_000, delete_pause_ms=0)
    config = two(folders, replace(SMALL, retention=keep))
    follow = replace(config, mode=OpenMode.FOLLOW, retention=None)
    with (
        MessageStore.open(folders / "store", config, create=True) as writer,
        MessageStore.open(folders / "store", follow) as follower,
    ):
        for first in range(0, 400, 40):
            fill(writer, first, 40)
            writer.flush()
            while follower.refresh():
                continue
            require_filled(follower, first + 40)
        assert writer.clean() > 0
        while follower.refresh():
            continue
        assert [follower.bounds("T", queue) for queue in range(3)] == [writer.bounds("T", queue) for queue in range(3)]
        assert follower.stats().min_physical_offset == writer.stats().min_physical_offset > 0


# files that are there twice, or strange


@contextmanager
def with_spare(folders: Path, content: bytes | None) -> Iterator[Path]:
    """A store over two paths, one of whose files is in the other path, too; None: the same bytes."""
    with MessageStore.open(folders / "store", two(folders), create=True) as store:
        fill(store, 0, 100)
    original = next((folders / "a" / "log").iterdir())
    spare = folders / "b" / "log" / original.name
    spare.write_bytes(original.read_bytes() if content is None else content)
    yield spare


def test_a_file_that_is_there_twice_is_refused_by_name(folders: Path) -> None:
    with with_spare(folders, None) as spare:
        before = contents(folders)
        for way in ways(folders / "store", two(folders)).values():
            with nothing_left_open(), pytest.raises(DuplicateLogFileError) as refusal:
                way()
            assert {refusal.value.first, refusal.value.second} == {spare, folders / "a" / "log" / spare.name}
        assert contents(folders) == before


def test_a_file_that_was_made_ahead_on_another_path_and_never_used_does_not_count(folders: Path) -> None:
    """A broker leaves one where a path was full when the file's turn came."""
    with with_spare(folders, bytes(FILE_BYTES)) as spare:
        for mode in OpenMode:
            with MessageStore.open(folders / "store", replace(two(folders), mode=mode)) as store:
                require_filled(store, 100)
        (found,) = check_store(folders / "store", None, two(folders))
        assert str(spare) in str(found)
        said = list(repair_store(folders / "store", None, two(folders)))
        assert any(str(spare) in done for done in said)
        require_clean(check_store(folders / "store", None, two(folders)))


def test_damage_is_told_by_the_path_it_is_in_and_repaired_there(folders: Path) -> None:
    config = two(folders)
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 200)
    (folders / "a" / "log" / "notes.txt").write_bytes(b"x")
    damaged = min((folders / "b" / "log").iterdir())
    with damaged.open("r+b") as file:
        file.seek(500)
        file.write(b"\xff" * 200)
    found = [str(problem) for problem in check_store(folders / "store", None, config)]
    assert any(str(damaged) in text for text in found)
    assert any("notes.txt" in text for text in found)
    list(repair_store(folders / "store", None, config))
    require_clean(check_store(folders / "store", None, config))
    assert not (folders / "a" / "log" / "notes.txt").exists()


def test_a_log_that_would_be_written_on_in_a_folder_that_is_only_read_is_refused(folders: Path) -> None:
    config = two(folders)
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 200)
        last = store.stats().commit_log_files - 1
    newest, other = (folders / name / "log" for name in ("ab" if last % 2 == 0 else "ba"))
    only_read = replace(config, commit_log_paths=(other,), read_only_log_paths=(newest,))
    before = contents(folders)
    with pytest.raises(OptionError, match=str(newest)):
        MessageStore.open(folders / "store", only_read)
    assert contents(folders) == before
    with MessageStore.open(folders / "store", replace(only_read, mode=OpenMode.READ_ONLY)) as store:
        require_filled(store, 200)


def test_retention_takes_files_of_a_folder_that_is_only_read(folders: Path) -> None:
    config = two(folders)
    with MessageStore.open(folders / "store", config, create=True) as store:
        fill(store, 0, 400)
        last = store.stats().commit_log_files - 1
    old, current = (folders / name / "log" for name in ("ab" if last % 2 else "ba"))
    keep = Retention(max_bytes=2 * FILE_BYTES, clean_interval_ms=3_600_000, delete_pause_ms=0)
    config = replace(config, commit_log_paths=(current,), read_only_log_paths=(old,), retention=keep)
    with MessageStore.open(folders / "store", config) as store:
        assert store.clean() >= last - 3
        require_clean(store.check())
    assert len(list(old.iterdir())) <= 2


def test_a_link_that_another_user_planted_as_a_path_is_refused(folders: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes links of other users")
    (folders / "aim").mkdir()
    (folders / "b" / "log").symlink_to(folders / "aim")
    os.chown(folders / "b" / "log", 65534, 65534, follow_symlinks=False)
    with pytest.raises(ObstructedError):
        MessageStore.open(folders / "store", two(folders), create=True)
    assert not list((folders / "aim").iterdir())


def test_a_link_of_ours_leads_to_a_path(folders: Path) -> None:
    (folders / "aim").mkdir()
    (folders / "b" / "log").symlink_to(folders / "aim")
    with MessageStore.open(folders / "store", two(folders), create=True) as store:
        fill(store, 0, 100)
    assert list((folders / "aim").iterdir())


# whose turn it is


def test_turns_are_those_of_a_broker() -> None:
    paths = LogPaths((Path("/b"), Path("/a-b"), Path("/a")), (Path("/old"),))
    assert [str(paths.in_turn(number)[0]) for number in range(4)] == ["/a", "/a-b", "/b", "/a"]
    full = frozenset({Path("/a")})
    assert [str(paths.in_turn(number, full)[0]) for number in range(3)] == ["/a-b", "/b", "/a-b"]
    everywhere = frozenset(paths.writable)
    assert [str(paths.in_turn(number, everywhere)[0]) for number in range(3)] == ["/a", "/a-b", "/b"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"storePathCommitLog": ","}, "names no path"),
        ({"storePathCommitLog": "/a", "readOnlyCommitLogStorePaths": "/a"}, "no folder is left"),
    ],
)
def test_paths_that_leave_no_place_for_a_file_are_refused(tmp_path: Path, given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        MessageStore.open(tmp_path / "store", with_options(SMALL, given))
