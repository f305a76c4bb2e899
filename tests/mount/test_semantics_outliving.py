"""docs/semantics.md, 9: the daemon's death."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fsstore.handover.handles import KEPT_BYTES
from tests.mount.test_outlives import APPENDING, bodies, keeper_of, kill, opened, server_of
from tests.mount.test_poisoned import SLOW_LINES, in_thread, kill_while_it_works
from tests.mountctl.conftest import Site, eventually, mountctl, succeed

OTHER_USER = 65_501


@pytest.fixture
def queue(site: Site) -> Path:
    """The queue of a store that was mounted by `mountctl mount`."""
    site.mounted()
    (site.mountpoint / "t").mkdir()
    return site.mountpoint / "t/0"


def test_what_is_open_goes_on(site: Site, queue: Path) -> None:
    """9.1 When the daemon is killed, another one takes over. Open files stay open, and requests wait for the new
    daemon instead of failing."""
    with (
        opened(queue / "append", APPENDING) as writing,
        opened(queue.with_name("0.log")) as reading,
        opened(site.mountpoint / "t.log") as merged,
    ):
        os.write(writing, b"one\n")
        kill(site)
        os.write(writing, b"two\n")
        assert os.read(reading, 100) == b"one\ntwo\n"
        assert os.read(merged, 100) == b"one\ntwo\n"


def test_a_write_in_flight_is_stored_once(site: Site, queue: Path) -> None:
    """9.2 A write that was interrupted by the kill is stored once. So are the messages of an interrupted close or
    fsync."""
    over, count = threading.Event(), 0

    def write() -> None:
        nonlocal count
        with opened(queue / "append", APPENDING) as descriptor:
            while not over.is_set():
                os.write(descriptor, b"%d" % count)
                os.fsync(descriptor)
                count += 1

    writer = threading.Thread(target=write)
    writer.start()
    kill(site)
    over.set()
    writer.join()
    assert bodies(queue) == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("name", ["append", "append@frame=file"])
def test_what_was_begun_is_kept(site: Site, queue: Path, name: str) -> None:
    """9.3 An unfinished line or `frame=file` message is kept up to 64 KiB. Nothing of a longer one is published:
    write, fsync and close answer EIO until the file is closed."""
    with opened(queue / name, APPENDING) as descriptor:
        os.write(descriptor, b"beg")
        long = os.open(queue / name, APPENDING)
        os.write(long, b"x" * 70_000)
        kill(site)
        os.write(descriptor, b"un")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.write(long, b"x")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.close(long)
    assert bodies(queue) == [b"begun"]


def test_readers_go_on_where_they_were(site: Site, queue: Path) -> None:
    """9.4 Reading of streams, messages, listings, reports and files of `@parquet` goes on from the same position,
    and stat shows the same inode numbers as before."""
    with opened(queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"".join(b"%d\n" % number for number in range(9_000)))
    with opened(queue.with_name("0.log")) as stream, opened(queue / "7") as message, os.scandir(queue) as listing:
        assert os.read(stream, 4) == b"0\n1\n"
        names, number = [next(listing).name], queue.stat().st_ino
        kill(site)
        assert os.read(stream, 4) == b"2\n3\n"
        assert os.read(message, 4) == b"7"
        assert [*names, *(entry.name for entry in listing)] == [
            "append",
            *(f"{offset:020d}" for offset in range(9_000)),
        ]
        assert queue.stat().st_ino == number


@pytest.mark.parametrize("have_answered", [True, False], ids=["they have answered", "they have not"])
def test_deaths_in_a_row(site: Site, queue: Path, have_answered: bool) -> None:
    """9.5 A daemon that has answered any request is always replaced; if daemons die in quick succession, after a
    pause of 30 s at most. When five in a row have died before answering, the mount ends: it answers ENOTCONN."""
    (queue / "append").write_bytes(b"one\n")
    if have_answered:
        for _ in range(5):
            kill(site)
            assert queue.with_name("0.log").read_bytes() == b"one\n"
        return
    keeper = keeper_of(site)
    process = Path(f"/proc/{keeper}")
    while process.exists():
        server = server_of(keeper)
        if server is not None:
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
        time.sleep(0.001)
    assert "the mount ends after 5 daemons in a row that died before their first answer" in site.log_text()
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        queue.with_name("0.log").read_bytes()
    assert "dead (mountctl umount" in succeed("status")


@pytest.mark.parametrize("option", ["maxMessageSize=1M", "no_such_option=1"])
def test_a_daemon_can_be_replaced(site: Site, queue: Path, option: str) -> None:
    """9.6 `mountctl restart` replaces the daemon in the same way, and keeps unfinished messages of any length. If
    the new daemon can't be started, the old one goes on."""
    keeper = keeper_of(site)
    before = server_of(keeper)
    with opened(queue / "append@frame=file", APPENDING) as writing, opened(queue.with_name("0.log")) as reading:
        os.write(writing, b"x" * 100_000)
        if "such" in option:
            assert mountctl("restart", "-o", option, site.mountpoint).returncode == 64
            assert server_of(keeper) == before
        else:
            succeed("restart", "-o", option, site.mountpoint)
            assert server_of(keeper) != before
        os.write(writing, b"y")
        os.fsync(writing)
        assert os.read(reading, 200_000) == b"x" * 100_000 + b"y\n"


def test_a_request_that_daemons_die_of_is_refused(site: Site, queue: Path) -> None:
    """9.7 If two daemons in a row crashed at a request, or three in a row were killed at it within a second of their
    first answer, the next daemon answers it EIO, unless its data is already in the log. The daemon's log names the
    request."""
    keeper = keeper_of(site)
    with opened(queue / "append@format=json", APPENDING) as descriptor:
        writer, outcome = in_thread(lambda: os.write(descriptor, SLOW_LINES))
        for _ in range(2):
            assert kill_while_it_works(keeper, signal.SIGSEGV, writer)
        writer.join(30)
        assert outcome == [errno.EIO]
        os.write(descriptor, b'{"body":"next"}\n')
    assert bodies(queue) == [b"next"]
    assert "write of t/0/append@format=json by user" in site.log_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
@pytest.mark.parametrize("is_planned", [False, True], ids=["killed", "restarted"])
def test_a_user_gets_a_share_of_the_memory(site: Site, is_planned: bool) -> None:
    """9.8 Each user gets a share of the memory that outlives the daemon. Beyond that share opens are ENOBUFS.
    Unfinished messages beyond it are lost with a killed daemon, as in 9.3, but kept by `mountctl restart`. Other
    users lose nothing."""
    site.mounted("--allow-other", "--append-mode", "222")
    (site.mountpoint / "t@queues=1").mkdir()
    queue = site.mountpoint / "t/0"
    begun = begin_as(OTHER_USER, queue, 300, KEPT_BYTES)
    with opened(queue / "append", APPENDING) as line, opened(queue / "append@frame=file", APPENDING) as file:
        for handle in (line, file):
            os.write(handle, b"first half, ")
        lost = handover_of(site)["handles_lost"]
        assert 0 < lost < 100
        if is_planned:
            succeed("restart", site.mountpoint)
        else:
            kill(site)
        os.write(line, b"second half\n")
        os.write(file, b"second half")
    outcomes = [end_of(handle) for handle in begun]
    assert outcomes.count(errno.EIO) == (0 if is_planned else lost)
    found = bodies(queue)
    assert found.count(b"first half, second half") == 2
    assert found.count(b"y" * KEPT_BYTES + b"end") == len(found) - 2 == outcomes.count(0)


def begin_as(user: int, folder: Path, count: int, size: int) -> list[int]:
    """Begin so many lines of that many bytes, as a user; stay root afterwards."""
    with opened(folder, os.O_PATH) as below:  # only some users may enter the folders above it
        os.seteuid(user)
        try:
            handles = [os.open("append", APPENDING, dir_fd=below) for _ in range(count)]
            for handle in handles:
                os.write(handle, b"y" * size)
        finally:
            os.seteuid(0)
    return handles


def end_of(handle: int) -> int:
    """End a line; 0, or the errno."""
    try:
        os.write(handle, b"end\n")
    except OSError as error:
        return error.errno or 0
    finally:
        with suppress(OSError):
            os.close(handle)
    return 0


def handover_of(site: Site) -> dict[str, int]:
    """Figures of the memory that outlives the daemon."""
    figures: dict[str, int] = json.loads((site.mountpoint / "@store/status.json").read_bytes())["handover"]
    return figures


def log_problem_of(site: Site) -> str | None:
    found: str | None = json.loads((site.mountpoint / "@store/status.json").read_bytes())["log_problem"]
    return found


def test_a_log_that_cannot_be_opened(site: Site, tmp_path: Path) -> None:
    """9.11 A log file that can't be opened does not stop the next daemon; status says why it can't be opened."""
    folder = tmp_path / "logs"
    elsewhere = Site(site.store, site.mountpoint, folder / "mount.log")
    elsewhere.mounted()
    folder.rename(tmp_path / "gone")
    folder.touch()
    os.kill(keeper_of(elsewhere), signal.SIGHUP)
    eventually(lambda: log_problem_of(elsewhere) is not None, "the server has tried")
    for _ in range(2):
        kill(elsewhere)
        assert log_problem_of(elsewhere) == f"{elsewhere.log} can't be written: {folder}: File exists"
    assert f"log file   {elsewhere.log} can't be written" in succeed("status", elsewhere.mountpoint)
    folder.unlink()
    os.kill(keeper_of(elsewhere), signal.SIGHUP)
    eventually(lambda: "SIGHUP: the log goes on in" in elsewhere.log_text(), "it is written again")
    assert log_problem_of(elsewhere) is None
