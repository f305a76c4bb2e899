"""A store that another user may write: planted files lead no reader to another file, and make none hang."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, ObstructedError, OpenMode, StoreError, check_store, repair_store
from engine.files.disk import Disk, replace_file
from engine.files.paths import MOST_LINKS, create_file, make_folder, open_file, read_file, remove_tree, rename, unlink
from tests.engine.storetools import SMALL, bodies, contents, nothing_left_open, opened, require_clean

STRANGER = 65534
SECRET = b"the file of somebody else, which must stay as it is\n" * 200
PRIVILEGED = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to two users")

FOLDERS = ["commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index", "config", "fsstore"]
KEPT_FILES = [
    "abort",
    "checkpoint",
    "lock",
    "config/sizes.json",
    "config/topics.json",
    "config/topics.json.bak",
    "fsstore/clean.json",
    "fsstore/coverage.json",
    "fsstore/deleted.json",
]
SEGMENTS = ["commitlog/00000000000000000000", "consumequeue/T/0/00000000000000000000"]
PASSING = ["config/topics.json.tmp", "config/sizes.json.tmp", "fsstore/clean.json.tmp", "fsstore/coverage.json.tmp"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of one queue, closed."""
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"kept", ["key"]), 0)
    return tmp_path / "store"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The target of a link."""
    planted = tmp_path / "elsewhere"
    planted.write_bytes(SECRET)
    return planted


def plant_link(link: Path, target: Path, owner: int = STRANGER) -> Path:
    """A symbolic link of another user in place of the file."""
    if link.is_dir():
        shutil.rmtree(link)
    else:
        link.unlink(missing_ok=True)
    link.symlink_to(target)
    os.chown(link, owner, owner, follow_symlinks=False)
    return link


def everything_a_writer_does(path: Path) -> None:
    """Open for writing, publish, make and delete topics, mend, close."""
    list(repair_store(path))
    with MessageStore.open(path, SMALL) as store:
        store.create_topic("new", 2)
        for number in range(60):
            store.put(Message("new", b"x" * 200, [f"key-{number}"]), 0)
        store.flush()
        store.delete_topic("new")


def read_all(path: Path, mode: OpenMode) -> list[bytes]:
    """Open, and read the one queue."""
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        return bodies(store, "T", 0)


@PRIVILEGED
@pytest.mark.parametrize("name", [*KEPT_FILES, *SEGMENTS])
def test_a_strangers_link_in_place_of_a_file_is_refused_by_name(path: Path, target: Path, name: str) -> None:
    plant_link(path / name, target)
    with nothing_left_open(), pytest.raises(ObstructedError, match=f"a symbolic link of user {STRANGER}") as caught:
        everything_a_writer_does(path)
    assert caught.value.path == path / name
    assert target.read_bytes() == SECRET


@PRIVILEGED
@pytest.mark.parametrize("name", [*PASSING, "index/29991231235959999"])
def test_a_strangers_link_under_a_name_that_is_not_kept_is_not_followed(path: Path, target: Path, name: str) -> None:
    plant_link(path / name, target)
    everything_a_writer_does(path)
    assert target.read_bytes() == SECRET
    with opened(path) as store:
        assert bodies(store, "T", 0) == [b"kept"]


@PRIVILEGED
@pytest.mark.parametrize("name", [*KEPT_FILES, *PASSING, "commitlog/00000000000000008192", "config/retention.json"])
def test_a_strangers_link_that_leads_nowhere_makes_no_file_there(path: Path, tmp_path: Path, name: str) -> None:
    plant_link(path / name, tmp_path / "absent")
    with suppress(ObstructedError):
        everything_a_writer_does(path)
    assert not (tmp_path / "absent").exists()


@PRIVILEGED
@pytest.mark.parametrize("mode", list(OpenMode))
@pytest.mark.parametrize("name", FOLDERS)
def test_a_strangers_link_in_place_of_a_folder_is_refused_by_name(path: Path, name: str, mode: OpenMode) -> None:
    elsewhere = path.parent / "elsewhere"
    shutil.copytree(path / name, elsewhere)
    before = contents(elsewhere)
    plant_link(path / name, elsewhere)
    with nothing_left_open(), pytest.raises(ObstructedError) as caught:
        read_all(path, mode)
    assert caught.value.path == path / name
    with pytest.raises(ObstructedError):
        list(check_store(path))
    with pytest.raises(ObstructedError):
        everything_a_writer_does(path)
    assert contents(elsewhere) == before


@PRIVILEGED
def test_a_link_within_what_a_link_of_ours_leads_to_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "disk" / "theirs")
    plant_link(tmp_path / "disk" / "theirs", tmp_path)
    with pytest.raises(ObstructedError):
        create_file(tmp_path / "ours" / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "consumequeue/T/0", "index", "config", "fsstore"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_folder_on_another_disk_by_a_link_of_ours_is_used(path: Path, name: str, relative: bool) -> None:
    disk = path.parent / "disk2"
    shutil.move(path / name, disk)
    (path / name).symlink_to(os.path.relpath(disk, (path / name).parent) if relative else disk)
    require_clean(check_store(path))
    everything_a_writer_does(path)
    with opened(path) as store:
        assert bodies(store, "T", 0) == [b"kept"]
    assert (path / name).is_symlink()
    assert any(disk.iterdir())


@pytest.mark.parametrize("name", ["config/topics.json", "commitlog/00000000000000000000"])
def test_a_file_on_another_disk_by_a_link_of_ours_is_read(path: Path, name: str) -> None:
    shutil.move(path / name, path.parent / "moved")
    (path / name).symlink_to(path.parent / "moved")
    with opened(path) as store:
        assert bodies(store, "T", 0) == [b"kept"]
        assert store.topics() == ["T"]


@PRIVILEGED
def test_the_path_to_a_store_may_hold_anybodys_links(path: Path, tmp_path: Path) -> None:
    plant_link(tmp_path / "link", path)
    everything_a_writer_does(tmp_path / "link")
    with opened(tmp_path / "link") as store:
        assert bodies(store, "T", 0) == [b"kept"]
        assert store.path == tmp_path / "link"


@PRIVILEGED
@pytest.mark.parametrize("name", ["lock", "checkpoint", *SEGMENTS])
def test_a_hard_link_to_anothers_file_is_not_written(path: Path, target: Path, name: str) -> None:
    give_away(path)
    (path / name).unlink()
    os.link(target, path / name)
    with suppress(ObstructedError):  # or another, once repair has taken away a queue that no queue can be
        everything_a_writer_does(path)
    assert target.read_bytes() == SECRET
    (path / name).unlink()
    os.link(target, path / name)
    with pytest.raises(ObstructedError, match="hard link"):
        open_file(path / name, os.O_RDWR)


def test_a_backup_by_hard_links_of_the_same_owner_keeps_nobody_from_writing(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "backup", copy_function=os.link)
    with opened(path) as store:
        store.put(Message("T", b"more"), 0)
        assert bodies(store, "T", 0) == [b"kept", b"more"]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_what_is_no_file_is_refused_or_left_alone_at_once(
    path: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    names = [*KEPT_FILES, *SEGMENTS, "config/retention.json", "config/consumerOffset.json"]
    for number, name in enumerate(names):
        shutil.copytree(path, tmp_path / str(number))
        (tmp_path / str(number) / name).unlink(missing_ok=True)
        make(tmp_path / str(number) / name)
    # a reader of such a file waits for ever: a process of its own can be ended
    program = f"""
from dataclasses import replace
from pathlib import Path
from engine import MessageStore, OpenMode, StoreError, check_store, repair_store
from tests.engine.storetools import SMALL
def look(path, mode):
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        store.topics(), store.consumer_offsets(), store.refresh()
ways = [lambda path, mode=mode: look(path, mode) for mode in OpenMode]
for number in range({len(names)}):
    path = Path({str(tmp_path)!r}, str(number))
    print(path, flush=True)
    for do in (*ways, lambda path: list(check_store(path)), lambda path: list(repair_store(path))):
        try:
            do(path)
        except StoreError as error:
            assert str(path) in str(error), error
            print(error, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for number, name in enumerate(names):
        if name in KEPT_FILES and not name.endswith((".bak",)):
            assert str(tmp_path / str(number) / name) in done.stdout


def test_a_link_to_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(ObstructedError, match="device"):
        read_file(tmp_path / "endless", 1000)


def test_a_file_longer_than_asked_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"12345")
    assert read_file(tmp_path / "long", 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_file(tmp_path / "long", 4)
    with pytest.raises(ValueError, match="more than 0 bytes"):
        read_file(Path("/proc/self/maps"), 0)  # it says that it has no byte


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        open_file(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links"):
        open_file(tmp_path / "a" / "file")
    for number in range(MOST_LINKS + 1):
        (tmp_path / f"link-{number}").symlink_to(f"link-{number + 1}")
    (tmp_path / f"link-{MOST_LINKS + 1}").write_bytes(b"far")
    assert read_file(tmp_path / "link-2", 10) == b"far"
    with pytest.raises(OSError, match="symbolic links"):
        open_file(tmp_path / "link-0")


def test_where_proc_does_not_tell_the_way_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.readlink

    def no_proc(path: str, *, dir_fd: int | None = None) -> str:
        if path.startswith("/proc"):
            raise FileNotFoundError(path)
        return real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", no_proc)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("./disk/../disk")
    with nothing_left_open():
        make_folder(tmp_path / "link" / "folder")
        os.close(create_file(tmp_path / "link" / "folder" / "a"))
        rename(tmp_path / "link" / "folder" / "a", tmp_path / "b")
        unlink(tmp_path / "b")
        unlink(tmp_path / "link" / "missing")
        remove_tree(tmp_path / "link" / "folder")
        remove_tree(tmp_path / "link" / "folder")
    assert sorted(os.listdir(tmp_path)) == ["disk", "link"]
    assert os.listdir(tmp_path / "disk") == []


def test_what_somebody_puts_under_the_passing_name_of_a_replacement_is_not_written(tmp_path: Path) -> None:
    class Planting(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            assert os.fstat(descriptor).st_nlink == 1
            assert other.read_bytes() == SECRET

    other = tmp_path / "other"
    other.write_bytes(SECRET)
    os.link(other, tmp_path / "a.json.tmp")
    replace_file(tmp_path / "a.json", b"new", Planting())
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert other.read_bytes() == SECRET


# owners


def give_away(path: Path, owner: int = STRANGER) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, owner, owner, follow_symlinks=False)


def owners(path: Path) -> dict[str, tuple[int, int]]:
    """Whom each thing below a store belongs to, if not to the stranger."""
    found = {str(one.relative_to(path)): one.lstat() for one in (path, *path.rglob("*"))}
    belongs = {name: (one.st_uid, one.st_gid) for name, one in found.items()}
    return {name: owner for name, owner in belongs.items() if owner != (STRANGER, STRANGER)}


@PRIVILEGED
@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("unnamed", [False, True])
def test_what_root_makes_in_a_store_belongs_to_its_owner_who_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, preallocate: bool, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.setattr("engine.files.disk.create_unnamed", lambda *_: (_ for _ in ()).throw(OSError(95, "none")))
    give_away(path)
    with MessageStore.open(path, replace(SMALL, preallocate=preallocate)) as store:
        store.create_topic("new", 2)
        for number in range(200):
            store.put(Message("new", b"x" * 200, [f"key-{number}"]), 0)
        store.put_lines("T", b"line\n" * 3000, 0)
        store.stream("T", 0)
        assert owners(path) == {}
        store.delete_topic("new")
    assert owners(path) == {}
    damage(path / "commitlog" / "00000000000000000000")
    (path / "consumequeue" / "T" / "0" / "00000000000000000000").unlink()
    assert list(repair_store(path))
    assert owners(path) == {}


@PRIVILEGED
def test_the_owner_opens_a_store_for_writing_after_root_did() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        MessageStore.open(path, SMALL, create=True).close()
        os.chmod(folder, 0o711)
        give_away(path)
        everything_a_writer_does(path)
        shutil.rmtree(path / "index")
        everything_a_writer_does(path)
        program = f"""
import os
from engine import Message, MessageStore
from tests.engine.storetools import SMALL
os.setgroups([])
os.setresgid({STRANGER}, {STRANGER}, {STRANGER})
os.setresuid({STRANGER}, {STRANGER}, {STRANGER})
with MessageStore.open({str(path)!r}, SMALL) as store:
    store.create_topic("theirs")
    store.put(Message("theirs", b"their own", ["key"]), 0)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        with opened(path) as store:
            assert bodies(store, "theirs", 0) == [b"their own"]


@PRIVILEGED
def test_a_store_that_root_makes_is_roots_whoever_owns_the_folder_around_it(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    MessageStore.open(tmp_path / "store", SMALL, create=True).close()
    assert {one.lstat().st_uid for one in (tmp_path / "store", *(tmp_path / "store").rglob("*"))} == {0}


def damage(file: Path) -> None:
    with file.open("r+b") as log:
        log.seek(100)
        log.write(b"damage")


def test_errors_of_planted_files_are_errors_of_the_store() -> None:
    error = ObstructedError(Path("/store/lock"), "file", "a FIFO")
    assert isinstance(error, StoreError)
    assert str(error) == "/store/lock is a FIFO: the store needs a file of that name, so move away what is there"
