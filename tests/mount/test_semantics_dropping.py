"""Promises 10.*: dropped files (docs/semantics.md)."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.mount.harness import PATIENCE_S, Mounted, bodies, publish, refused_with, sh, until
from tests.mount.test_outlives import keeper_of, kill, opened, server_of
from tests.mountctl.conftest import Site, succeed

LIMIT_BYTES = 4 << 20
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


@pytest.fixture
def drop(queue: Path) -> Path:
    """The box of a new queue."""
    return queue / "drop"


def dropped(queue: Path) -> Counter[tuple[str, bytes]]:
    """Names and bodies of messages published from files."""
    paths = (queue / name for name in os.listdir(queue) if name.isdigit())
    return Counter((os.getxattr(path, "user.mq.property.FILE_NAME").decode(), path.read_bytes()) for path in paths)


def test_a_file_is_a_message_when_it_is_closed(topic: Path) -> None:
    """10.1 A file made in `orders/drop/` or `orders/0/drop/` becomes one whole message when its last writer closes
    it. The property `FILE_NAME` holds its name."""
    with opened(topic / "0/drop/two.txt", NEW) as first, opened(topic / "0/drop/two.txt", os.O_WRONLY) as second:
        os.write(first, b"begin ")
        os.close(os.dup(first))
        os.pwrite(second, b"end", 6)
        assert bodies(topic / "0") == []
    assert dropped(topic / "0") == {("two.txt", b"begin end"): 1}
    for number in range(4):
        (topic / f"drop/{number}").write_bytes(b"%d" % number)
    everywhere = sum((dropped(topic / queue) for queue in "0123"), Counter())
    assert everywhere == {("two.txt", b"begin end"): 1} | {(str(one), b"%d" % one): 1 for one in range(4)}
    assert [len(bodies(topic / queue)) for queue in "123"] == [1, 1, 1]


TOOLS = {
    "cp": "cp ~/file.txt drop/",
    "cp -p": "cp -p ~/file.txt drop/ && test ! drop/file.txt -nt ~/file.txt && cmp drop/file.txt ~/file.txt",
    "mv from another disk": "cp ~/file.txt ~/gone && mv ~/gone drop/file.txt && test ! -e ~/gone",
    "mv of what waits": "cp ~/file.txt drop/.waiting && mv drop/.waiting drop/file.txt",
    "mv -n": "cp ~/file.txt drop/file.part && mv -n drop/file.part drop/file.txt",
    "install": "install -p -m 600 ~/file.txt drop/ && test $(stat -c %a drop/file.txt) = 600",
    "rsync": 'rsync -a ~/file.txt drop/ && test -z "$(rsync -ai ~/file.txt drop/)"',
    "rsync --inplace": "rsync -a --inplace ~/file.txt drop/",
    "curl": "curl -s -o drop/file.txt file://$HOME/file.txt",
    "vim": "vim -N -u NONE -i NONE -n -es ~/file.txt -c 'saveas drop/file.txt' -c 'qa!'",
    "tee": "tee drop/file.txt < ~/file.txt > /dev/null",
    "dd": "dd if=$HOME/file.txt of=drop/file.txt bs=7 status=none",
    "two commands": "(head -n 1 ~/file.txt; tail -n +2 ~/file.txt) > drop/file.txt",
    "tar": "tar c -C ~ file.txt | tar x -C drop",
    "tar of a folder": "mkdir -p ~/folder && cp -p ~/file.txt ~/folder && tar c -C ~/folder . | tar x -C drop",
    "rsync of a folder": "rsync -a ~/folder/ drop",
    "cp of a folder": "cp -a ~/folder/. drop",
    "python": f"""{sys.executable} -c '
import os, shutil, tempfile
with tempfile.NamedTemporaryFile(dir="drop", delete=False) as file:
    shutil.copyfileobj(open(os.path.expanduser("~/file.txt"), "rb"), file)
    os.fsync(file)
os.replace(file.name, "drop/file.txt")'""",
    "shutil.move": f"""cp ~/file.txt ~/gone && {sys.executable} -c '
import os, shutil; shutil.move(os.path.expanduser("~/gone"), "drop/file.txt")'""",
    "maildir": "cp ~/file.txt drop/.17.tmp && sync drop/.17.tmp && mv drop/.17.tmp drop/file.txt",
}


def test_tools_publish_a_file_once(new_topic: object, topic: Path, tmp_path: Path) -> None:
    """10.2 `cp`, `cp -p`, `mv` from another disk, `install`, `rsync -a`, `curl -o`, `vim`'s `:w`, `tee` and `tar x`
    publish each file once and report success, also for a folder of files."""
    text = b"".join(b"line %d\n" % number for number in range(500))
    (tmp_path / "file.txt").write_bytes(text)
    os.utime(tmp_path / "file.txt", (1_000_000_000, 1_000_000_000))
    for number, (tool, command) in enumerate(TOOLS.items(), 8):
        assert shutil.which(command.split()[0].strip("(")), f"{tool} is not installed: ./run setup"
        (topic / str(number)).mkdir()
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=topic / str(number),
            env=os.environ | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (tool, done.returncode, done.stderr) == (tool, 0, "")
        assert (tool, dropped(topic / str(number))) == (tool, {("file.txt", text): 1})


@pytest.mark.parametrize("name", [".hidden", "#auto#", "backup~", "x.tmp", "x.part", "x.swp", "tmp_0a9zzzz"])
def test_temporary_names_wait(queue: Path, drop: Path, name: str) -> None:
    """10.3 A file with a temporary name waits: a name that begins with `.` or `#`, ends with `~`, `.tmp`, `.part` or
    `.swp`, or comes from Python's `tempfile` (`tmp` and eight of `a-z0-9_`). The file becomes a message when it is
    renamed to any other name, or, if it is still being written then, when it is closed."""
    (drop / name).write_bytes(b"one")
    assert (bodies(queue), os.listdir(drop)) == ([], [name])
    (drop / name).rename(drop / f"{name}2~")
    assert bodies(queue) == []
    (drop / f"{name}2~").rename(drop / "final")
    assert dropped(queue) == {("final", b"one"): 1}
    with opened(drop / name, NEW) as writing:
        os.write(writing, b"tw")
        (drop / name).rename(drop / "other")
        assert len(bodies(queue)) == 1
        os.write(writing, b"o")
    assert dropped(queue) == {("final", b"one"): 1, ("other", b"two"): 1}


def test_an_empty_file_waits(queue: Path, drop: Path) -> None:
    """10.4 An empty file is not a message: it waits for data."""
    made = subprocess.run(["mktemp", drop / "XXXXXX"], capture_output=True, text=True, check=True).stdout.strip()
    (drop / "flag").touch()
    (drop / "flag").rename(drop / "renamed")
    assert bodies(queue) == []
    Path(made).write_bytes(b"one")
    assert dropped(queue) == {(Path(made).name, b"one"): 1}


def test_a_published_file_stays_for_its_tool(queue: Path, drop: Path) -> None:
    """10.5 A file that became a message stays visible for a minute, and as long as it is open; a mount keeps the
    newest thousand. It can be read, renamed and removed, and its times and mode can be set; the message does not
    change. Written again, the file becomes another message."""
    file = drop / "file"
    file.write_bytes(b"one")
    os.utime(file, ns=(5_000_000_000, 6_000_000_007))
    file.chmod(0o640)
    found = file.stat()
    assert (found.st_mtime_ns, found.st_mode & 0o777, found.st_size) == (6_000_000_007, 0o640, 3)
    file.rename(drop / "renamed")
    (drop / "renamed").rename(file)
    assert file.read_bytes() == b"one"
    os.close(os.open(file, os.O_WRONLY))
    assert dropped(queue) == {("file", b"one"): 1}
    with file.open("ab") as again:
        again.write(b" and two")
    assert dropped(queue) == {("file", b"one"): 1, ("file", b"one and two"): 1}
    with file.open("rb") as reading:
        file.unlink()
        assert not file.exists()
        assert reading.read() == b"one and two"
    assert len(bodies(queue)) == 2


def test_a_file_is_written_in_any_way(queue: Path, drop: Path) -> None:
    """10.6 A file can be written at any position, truncated, extended, and mapped. Gaps are zeros."""
    with opened(drop / "sparse", NEW) as file:
        os.pwrite(file, b"end", 9_997)
        os.ftruncate(file, 20_000)
        os.pwrite(file, b"begin", 0)
        os.ftruncate(file, 10_000)
        assert os.fstat(file).st_size == os.lseek(file, 0, os.SEEK_END) == 10_000
    with opened(drop / "mapped", NEW) as file:
        os.ftruncate(file, 5_000)
        mapped = mmap.mmap(file, 5_000)
    mapped[4_990:] = b"after all!"
    assert len(bodies(queue)) == 1
    mapped.close()
    until("the mapped file is published", lambda: len(bodies(queue)) == 2)
    sparse = b"begin".ljust(9_997, b"\0") + b"end"
    assert dropped(queue) == {("sparse", sparse): 1, ("mapped", bytes(4_990) + b"after all!"): 1}


def test_a_file_that_is_not_whole_is_not_published(mount: Mounted, queue: Path, drop: Path, tmp_path: Path) -> None:
    """10.7 Writing a file beyond the message limit is EFBIG (`@store/refusals` says why). After a failed write the
    file is truncated to nothing, and no part of it is published."""
    (tmp_path / "large").write_bytes(bytes(LIMIT_BYTES + 1))
    done = subprocess.run(["cp", tmp_path / "large", drop], capture_output=True, text=True, check=False)
    assert (done.returncode, "File too large" in done.stderr) == (1, True)
    assert "4,194,304 bytes (maxMessageSize)" in (mount.root / "@store/refusals").read_text().splitlines()[-1]
    assert ((drop / "large").stat().st_size, bodies(queue)) == (0, [])
    with opened(drop / "longer", NEW) as file:
        os.write(file, b"begin")
        assert refused_with(os.ftruncate, file, LIMIT_BYTES + 1) == errno.EFBIG
        assert refused_with(os.write, file, b"more") == errno.EFBIG
    assert bodies(queue) == []
    os.truncate(tmp_path / "large", 1_000_000)
    sh(f"cp {tmp_path}/large {drop}", queue)
    assert refused_with(os.truncate, drop / "large", LIMIT_BYTES + 1) == errno.EFBIG
    until("a whole one is published", lambda: dropped(queue) == {("large", bytes(1_000_000)): 1})


def test_a_kill_doubles_and_loses_no_file(site: Site) -> None:
    """10.8 When the daemon is killed, open files go on, and each file becomes a message once."""
    site.mounted()
    queue = site.mountpoint / "t@queues=1"
    queue.mkdir()
    queue = site.mountpoint / "t/0"
    over, expected = threading.Event(), Counter[tuple[str, bytes]]()

    def write() -> None:
        for number in range(100_000):
            if over.is_set():
                return
            name, text = f"file-{number}", b"%d " % number * (number % 7_000 + 1)
            if number % 3:
                (queue / "drop" / name).write_bytes(text)
            else:
                (queue / "drop" / f".{name}").write_bytes(text)
                (queue / "drop" / f".{name}").rename(queue / "drop" / name)
            expected[name, text] += 1

    with opened(queue / "drop/open", NEW) as before, opened(queue / "drop/.wait", NEW) as waiting:
        os.write(before, b"before ")
        os.write(waiting, b"it waits")
        writer = threading.Thread(target=write)
        writer.start()
        for count in (1, 2):
            until("files are published", lambda most: len(expected) > most, 50 * count)
            kill(site)
        over.set()
        writer.join()
        (queue / "drop/.wait").rename(queue / "drop/waited")
        os.write(before, b"after")
    expected[("open", b"before after")] = expected[("waited", b"it waits")] = 1
    assert dropped(queue) == expected
    sh("cat drop/waited drop/open", queue)


def is_dead(mountpoint: Path) -> bool:
    try:
        (mountpoint / "@store/config.json").read_bytes()
    except OSError:
        return True
    return False


def test_what_was_not_closed_stays(site: Site) -> None:
    """10.9 A file that was not closed when the mount ended, or could not be published, stays, and is there at the
    next mount. It becomes a message when its times are set (`touch`), when it is renamed, or when it is written and
    closed."""
    site.mounted()
    (site.mountpoint / "t").mkdir()
    queue = site.mountpoint / "t/0"
    (queue / "drop/published").write_bytes(b"published")
    (queue / "drop/.hidden").write_bytes(b"hidden")
    keeper = keeper_of(site)
    server = server_of(keeper)
    assert server is not None
    with suppress(OSError), opened(queue / "drop/open", NEW) as writing:
        os.write(writing, b"half")
        os.kill(keeper, signal.SIGKILL)
        os.kill(server, signal.SIGKILL)
        until("the mount is dead", is_dead, site.mountpoint)
    succeed("umount", site.mountpoint)
    site.mounted()
    assert {"open", ".hidden"} <= set(os.listdir(queue / "drop"))
    assert dropped(queue) == {("published", b"published"): 1}
    assert (queue / "drop/open").read_bytes() == b"half"
    (queue / "drop/open").touch()
    (queue / "drop/.hidden").rename(queue / "drop/shown")
    assert dropped(queue) == {("published", b"published"): 1, ("open", b"half"): 1, ("shown", b"hidden"): 1}
    succeed("umount", site.mountpoint)
    site.mounted()
    assert (os.listdir(queue / "drop"), len(bodies(queue))) == ([], 3)


def test_a_file_leaves_its_box_as_a_message(new_topic: object, topic: Path, drop: Path, tmp_path: Path) -> None:
    """10.10 A file can't leave its box (a `drop` directory): a rename to another box is EXDEV, so that `mv` copies.
    Folders and links in a box are EPERM."""
    (topic / "1/drop/.one").write_bytes(b"one")
    assert refused_with((topic / "1/drop/.one").rename, drop / "one") == errno.EXDEV
    sh("mv 1/drop/.one 0/drop/one", topic)
    assert (os.listdir(topic / "1/drop"), dropped(topic / "0")) == ([], {("one", b"one"): 1})
    for refused in (
        (drop / "folder").mkdir,
        lambda: (drop / "link").symlink_to("one"),
        lambda: os.link(drop / "one", drop / "two"),
        lambda: (drop / "one").rename(topic / "one"),
    ):
        assert refused_with(refused) == errno.EPERM


def test_who_archives_a_topic_finds_its_box_as_it_was(topic: Path) -> None:
    """10.11 A box has no time of its own until a file is dropped there, even when it is listed."""
    before = (topic / "drop").stat()
    done = subprocess.run(
        ["tar", "cf", "/dev/null", topic.name], cwd=topic.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (topic / "drop").stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_that_waits_keeps_owner_and_mode(site: Site) -> None:
    """10.12 A waiting file belongs to the user that dropped it, with the mode that this user set, even after a
    restart, a kill and in the next mount. If the owner is unknown, the file belongs to the mounting user with mode
    0600."""
    site.mounted()
    (site.mountpoint / "t").mkdir()
    waiting = site.mountpoint / "t/drop/.waits"
    waiting.touch(0o600)
    waiting.chmod(0o4640)
    for go_on in ("at once", "restart", "kill", "mount again"):
        if go_on == "restart":
            succeed("restart", site.mountpoint)
        elif go_on == "kill":
            kill(site)
        elif go_on == "mount again":
            succeed("umount", site.mountpoint)
            site.mounted()
        found = waiting.stat()
        assert (go_on, found.st_uid, found.st_gid, found.st_mode & 0o7777) == (go_on, os.getuid(), os.getgid(), 0o640)


def test_who_has_too_many_files_open_is_refused(site: Site) -> None:
    """10.13 A user with too many open files in boxes gets EMFILE for the next one. Files already open can still be
    read and written, lines are published, and messages are read as usual."""
    mounts = ["prlimit", "--nofile=512", sys.executable, "-m", "mountctl", "mount", "--log-file", str(site.log)]
    subprocess.run([*mounts, site.store, site.mountpoint], check=True, timeout=PATIENCE_S)
    (site.mountpoint / "t@queues=1").mkdir()
    topic = site.mountpoint / "t"
    with ExitStack() as held:
        files: list[int] = []

        def open_more() -> None:
            for _ in range(512):
                files.append(held.enter_context(opened(topic / f"drop/.{len(files)}", NEW)))

        assert refused_with(open_more) == errno.EMFILE
        assert refused_with(os.open, topic / "drop/.0", os.O_RDONLY) == errno.EMFILE
        os.write(files[-1], b"written on")
        publish(topic / "0/append", b"one\n")
        assert bodies(topic / "0") == [b"one"]
        assert os.pread(files[-1], 100, 0) == b"written on"
    (topic / "drop/.0").write_bytes(b"again")
    (topic / f"drop/.{len(files) - 1}").rename(topic / "drop/final")
    assert bodies(topic / "0") == [b"one", b"written on"]
