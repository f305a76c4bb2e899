"""A mount outlives its daemon: after kill -9 its users notice only a pause."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine import Message, MessageStore
from mountctl import control
from mountctl.places import mount_at
from tests.mount.harness import sh
from tests.mountctl.conftest import Site, eventually, is_mounted, mountctl, succeed


def keeper_of(site: Site) -> int:
    """Pid of the process that stays."""
    return int(json.loads((site.mountpoint / "@store/status.json").read_bytes())["keeper_pid"])


def server_of(keeper: int) -> int | None:
    """Pid of the server that it has now."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
            return int(pid)
    return None


def is_gone(keeper: int, server: int) -> bool:
    """Whether that server has ended."""
    return server_of(keeper) != server


def kill(site: Site) -> None:
    """kill -9; another server has taken over when this returns."""
    before = json.loads((site.mountpoint / "@store/status.json").read_bytes())
    os.kill(before["pid"], signal.SIGKILL)
    after = json.loads((site.mountpoint / "@store/status.json").read_bytes())
    assert (after["pid"] != before["pid"], after["restarts"]) == (True, before["restarts"] + 1)


def standby_of(keeper: int) -> int:
    """Pid of the next server, once it has loaded all that it needs."""

    def is_waiting() -> bool:
        pids = children.read_text().split()
        return len(pids) == 2 and Path(f"/proc/{pids[1]}/oom_score_adj").read_text() == "1000\n"

    children = Path(f"/proc/{keeper}/task/{keeper}/children")
    eventually(is_waiting, "another server waits")
    return int(children.read_text().split()[1])


def files_of(process: int) -> list[str]:
    """The targets of its descriptors."""
    found = []
    for one in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            found.append(os.readlink(one))
    return found


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


APPENDING = os.O_WRONLY | os.O_APPEND


def bodies(queue: Path) -> list[bytes]:
    """The messages of a queue."""
    return [path.read_bytes() for path in sorted(queue.iterdir()) if path.name != "append"]


def test_an_open_append_goes_on(mounted: Site, mounted_queue: Path) -> None:
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"one\n")
        kill(mounted)
        os.write(descriptor, b"two\n")
        kill(mounted)
        os.fsync(descriptor)
    assert bodies(mounted_queue) == [b"one", b"two"]


@pytest.mark.parametrize("flags", [os.O_WRONLY, APPENDING], ids=["from the beginning", "appending"])
def test_a_begun_line_is_kept(mounted: Site, mounted_queue: Path, flags: int) -> None:
    with opened(mounted_queue / "append", flags) as descriptor:
        os.write(descriptor, b"whole\nbeg")
        kill(mounted)
        os.write(descriptor, b"un\nlast")
        kill(mounted)
    assert bodies(mounted_queue) == [b"whole", b"begun", b"last"]


def test_a_begun_file_is_kept(mounted: Site, mounted_queue: Path) -> None:
    with opened(mounted_queue / "append@frame=file", os.O_RDWR) as descriptor:
        os.write(descriptor, b"one\ntwo\n")
        kill(mounted)
        assert os.pread(descriptor, 100, 0) == b"one\ntwo\n"
        os.pwrite(descriptor, b"four", 12)
        kill(mounted)
        assert bodies(mounted_queue) == []
    assert bodies(mounted_queue) == [b"one\ntwo\n\0\0\0\0four"]


@pytest.mark.parametrize("name", ["append", "append@frame=file"])
def test_more_than_64_KiB_that_were_begun_are_lost_and_said_to_be(
    mounted: Site, mounted_queue: Path, name: str
) -> None:
    descriptor = os.open(mounted_queue / name, APPENDING)
    os.write(descriptor, b"x" * 70_000)
    kill(mounted)
    for request in (lambda: os.write(descriptor, b"tail\n"), lambda: os.fsync(descriptor)):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            request()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.close(descriptor)
    assert bodies(mounted_queue) == []
    assert "70,000 bytes written to append of t/0 were not published when the daemon died" in mounted.log_text()
    (mounted_queue / name).write_bytes(b"next\n")
    assert len(bodies(mounted_queue)) == 1


def test_a_refusal_outlasts_the_daemon(mounted: Site, mounted_queue: Path) -> None:
    with opened(mounted_queue / "append", os.O_WRONLY) as descriptor:
        os.write(descriptor, b"one\n")
        with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
            os.pwrite(descriptor, b"gap\n", 100)
        kill(mounted)
        with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
            os.write(descriptor, b"two\n")
        with suppress(OSError):
            os.fsync(descriptor)
            pytest.fail("fsync of a handle that makes no sense")
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def test_what_is_open_to_be_read_goes_on(mounted: Site, mounted_queue: Path) -> None:
    large = b"y" * 300_000
    for line in (b"small\n", large + b"\n"):
        with opened(mounted_queue / "append@keys=K", APPENDING) as descriptor:
            os.write(descriptor, line)
    stream, keyed = mounted_queue.with_name("0.log"), mounted_queue.parent / "keys/K"
    report = mounted.mountpoint / "@store/config.json"
    with (
        opened(mounted_queue / "0") as small,
        opened(mounted_queue / "1") as body, opened(keyed) as link, opened(stream) as text,
        opened(report) as config,
    ):  # fmt: skip
        assert os.read(text, 4) == b"smal"
        numbers = [
            path.stat().st_ino
            for path in (mounted_queue.parent, mounted_queue, mounted_queue / "append", stream, keyed)
        ]
        kill(mounted)
        assert os.read(text, 400_000) == b"l\n" + large + b"\n"
        assert os.read(small, 100) == b"small"
        assert os.pread(body, 400_000, 0) == os.pread(link, 400_000, 0) == large
        assert os.fstat(body).st_size == len(large)
        assert json.loads(os.read(config, 1 << 16))["mount"]["append_mode"] == "0644"
        assert [
            path.stat().st_ino
            for path in (mounted_queue.parent, mounted_queue, mounted_queue / "append", stream, keyed)
        ] == numbers


def test_a_walk_meets_the_times_that_it_met_before(mounted: Site) -> None:
    names = ". t t/0 t/append t/keys t/drop @store @store/groups @store/control @parquet"
    before = sh(f"stat --cached=never -c '%n %.9Y %.9Z' {names}", mounted.mountpoint)
    kill(mounted)
    assert sh(f"stat --cached=never -c '%n %.9Y %.9Z' {names}", mounted.mountpoint) == before
    sh(f"tar -cf {mounted.log.with_suffix('.tar')} .", mounted.mountpoint)  # ends with 1 where something changed


def test_a_listing_in_progress_goes_on(mounted: Site, mounted_queue: Path) -> None:
    count = 30_000
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"".join(b"%d\n" % number for number in range(count)))
    for number in range(300):
        (mounted.mountpoint / f"topic-{number:03d}").mkdir()
    with os.scandir(mounted_queue) as names, os.scandir(mounted.mountpoint) as topics:
        found, seen = [next(names).name], [next(topics).name]
        kill(mounted)
        found += [entry.name for entry in names]
        seen += [entry.name for entry in topics]
    assert found == ["append", *(f"{number:020d}" for number in range(count))]
    topics_made = ["t", *(f"topic-{number:03d}" for number in range(300))]
    assert sorted(seen) == sorted(["@parquet", "@store", *topics_made, *(f"{topic}.log" for topic in topics_made)])


def test_tail_f_goes_on(mounted: Site, mounted_queue: Path, tmp_path: Path) -> None:
    (mounted_queue / "append").write_bytes(b"one\n")
    programs = [["tail", "-n", "+1", "-f", str(mounted_queue.with_name("0.log"))]]
    programs.append([sys.executable, "-m", "mountctl", "tail", "-f", str(mounted.mountpoint), "t/0"])
    outputs = [tmp_path / "tail", tmp_path / "mountctl"]
    with open(outputs[0], "wb") as first, open(outputs[1], "wb") as second:
        running = [
            subprocess.Popen(program, stdout=out) for program, out in zip(programs, (first, second), strict=True)
        ]
        try:
            eventually(lambda: all(b"one" in output.read_bytes() for output in outputs), "both read")
            kill(mounted)
            (mounted_queue / "append").write_bytes(b"two\n")
            eventually(lambda: {output.read_bytes() for output in outputs} == {b"one\ntwo\n"}, "both read on")
        finally:
            for program in running:
                program.terminate()
                program.wait()


def test_an_idle_stream_that_is_open_goes_on(site: Site) -> None:
    with MessageStore.open(site.store, create=True) as store:
        store.put(Message("t", b"old"), 0)
    site.mounted("--read-only")
    with opened(site.mountpoint / "t/0.log") as text:
        assert os.fstat(text).st_size == 4
        kill(site)
        assert os.fstat(text).st_size == 4
        assert os.read(text, 100) == b"old\n"


def test_parquet_files_that_are_open_go_on(mounted: Site, mounted_queue: Path) -> None:
    (mounted_queue / "append").write_bytes(b"one\n")
    [file] = (mounted.mountpoint / "@parquet/topic=t/queue=0").iterdir()
    with opened(file) as descriptor:
        kill(mounted)
        assert os.pread(descriptor, 4, 0) == b"PAR1"
        assert file.stat().st_size == os.fstat(descriptor).st_size


def test_a_follower_goes_on(mounted: Site, mounted_queue: Path, tmp_path: Path) -> None:
    (mounted_queue / "append").write_bytes(b"one\n")
    beside = Site(mounted.store, tmp_path / "beside", tmp_path / "beside.log")
    beside.mountpoint.mkdir()
    beside.mounted("--follow")
    try:
        with opened(beside.mountpoint / "t/0.log") as text:
            assert os.read(text, 100) == b"one\n"
            kill(beside)
            kill(mounted)
            (mounted_queue / "append").write_bytes(b"two\n")
            eventually(lambda: os.pread(text, 100, 0) == b"one\ntwo\n", "the follower shows it")
    finally:
        succeed("umount", beside.mountpoint)


def test_writers_in_flight_are_stored_once(mounted: Site, mounted_queue: Path) -> None:
    counts = dict.fromkeys(range(4), 0)
    over = threading.Event()

    def write(number: int) -> None:
        with opened(mounted_queue / "append", APPENDING | (os.O_DSYNC if number % 2 else 0)) as descriptor:
            while not over.is_set():
                os.write(descriptor, b"%d %d\n" % (number, counts[number]))
                counts[number] += 1

    writers = [threading.Thread(target=write, args=(number,)) for number in counts]
    for writer in writers:
        writer.start()
    kill(mounted)
    kill(mounted)
    over.set()
    for writer in writers:
        writer.join()
    found = [tuple(map(int, line.split())) for line in mounted_queue.with_name("0.log").read_text().splitlines()]
    for number, count in counts.items():
        assert [sequence for writer, sequence in found if writer == number] == list(range(count))


def test_restarts_are_shown(mounted: Site) -> None:
    kill(mounted)
    status = json.loads((mounted.mountpoint / "@store/status.json").read_bytes())
    assert (status["outlives_daemon"], status["restarts"]) == (True, 1)
    assert b"\nfsstore_restarts_total 1\n" in (mounted.mountpoint / "@store/metrics").read_bytes()
    assert "restarted  1 time, after the daemon was killed" in succeed("status", mounted.mountpoint)
    assert "was killed by SIGKILL; the next one takes over" in mounted.log_text()


def test_the_next_server_waits_and_holds_nothing_that_counts(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    for _ in range(2):
        waiting = standby_of(keeper)
        assert not {"/dev/fuse", str(mounted.log)} & set(files_of(waiting))
        mounted.log.rename(mounted.log.with_suffix(".1"))
        kill(mounted)
        assert server_of(keeper) == waiting
        assert Path(f"/proc/{waiting}/oom_score_adj").read_text() == "0\n"
        assert "took over from a killed daemon" in mounted.log_text()
        assert "/dev/fuse" in files_of(waiting)


def test_a_waiting_server_that_is_killed_is_none_to_go_on_with(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    waiting, server = standby_of(keeper), server_of(keeper)
    os.kill(waiting, signal.SIGKILL)
    eventually(lambda: "no daemon waits to replace this one" in mounted.log_text(), "the keeper says so")
    assert server_of(keeper) == server
    kill(mounted)
    assert server_of(keeper) not in (server, waiting)
    assert standby_of(keeper) != waiting


def test_a_keeper_that_can_start_none_goes_on(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    os.kill(standby_of(keeper), signal.SIGKILL)
    eventually(lambda: "no daemon waits to replace this one" in mounted.log_text(), "the keeper says so")
    eventually(lambda: str(mounted.log) not in files_of(keeper), "it has closed the log")
    used = {int(one.name) for one in Path(f"/proc/{keeper}/fd").iterdir()}
    _, second = [number for number in range(1024) if number not in used][:2]
    limit = resource.prlimit(keeper, resource.RLIMIT_NOFILE)
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (second, limit[1]))  # enough for a line in the log
    os.kill(keeper, signal.SIGUSR2)
    said = "the next daemon could not be started: Too many open files"
    eventually(lambda: mounted.log_text().count(said) == 2, "it tries, for a restart and to have one wait")
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, limit)
    kill(mounted)


def test_the_waiting_server_ends_with_the_mount(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    waiting = standby_of(keeper)
    succeed("umount", mounted.mountpoint)
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper ends")
    assert not Path(f"/proc/{waiting}").exists()


def test_the_waiting_server_ends_with_its_keeper(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    waiting = standby_of(keeper)
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{waiting}").exists(), "it ends")


def test_a_waiting_server_that_hangs_is_none_to_go_on_with(mounted: Site, mounted_queue: Path) -> None:
    waiting = standby_of(keeper_of(mounted))
    os.kill(waiting, signal.SIGSTOP)
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"begun")
        kill(mounted)
        os.write(descriptor, b" line\n")
    assert bodies(mounted_queue) == [b"begun line"]
    assert f"(process {waiting}) does not take over: it is killed" in mounted.log_text()
    assert not Path(f"/proc/{waiting}").exists()


def test_a_mount_waits_for_a_store_that_is_gone_and_goes_on_when_it_is_back(mounted: Site, mounted_queue: Path) -> None:
    aside = mounted.store.with_name("aside")
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"begun")
        mounted.store.rename(aside)
        server = server_of(keeper_of(mounted))
        assert server is not None
        os.kill(server, signal.SIGKILL)
        why = f"can't take over: {mounted.store} is not the store that was there: nothing is there now"
        eventually(lambda: mounted.log_text().count(why) > 2, "one after the other tries")
        said = mountctl("status", mounted.mountpoint)
        assert (said.returncode, "is not the store that was there" in said.stderr) == (75, True)
        assert not mounted.store.exists()
        aside.rename(mounted.store)
        os.write(descriptor, b" line\n")
    assert bodies(mounted_queue) == [b"begun line"]


def test_a_mount_that_waits_for_its_store_can_be_unmounted(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    server, aside = server_of(keeper), mounted.store.with_name("aside")
    assert server is not None
    mounted.store.rename(aside)
    os.kill(server, signal.SIGKILL)
    eventually(lambda: "the next one takes over in" in mounted.log_text(), "the keeper pauses")
    done = mountctl("umount", mounted.mountpoint)
    assert (done.returncode, done.stderr.startswith("mountctl: the store was not closed: ")) == (0, True)
    assert not is_mounted(mounted.mountpoint)
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper has ended")
    assert not mounted.store.exists()
    aside.rename(mounted.store)


def test_a_daemon_whose_keeper_is_gone_says_so(mounted: Site) -> None:
    os.kill(keeper_of(mounted), signal.SIGKILL)

    def says_so() -> bool:
        status = json.loads((mounted.mountpoint / "@store/status.json").read_bytes())
        return (status["outlives_daemon"], status["keeper_pid"]) == (False, None)

    eventually(says_so, "status.json says so")
    assert "has ended: the mount ends with this daemon" in mounted.log_text()


def test_a_mount_whose_keeper_is_stopped_is_closed_all_the_same(
    mounted: Site, mounted_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mounted_queue / "append").write_bytes(b"one\n")
    keeper = keeper_of(mounted)
    os.kill(keeper, signal.SIGSTOP)
    try:
        monkeypatch.setattr(control, "ANSWER_SECONDS", 0.5)
        for verb in ("restart", "umount"):
            done = mountctl(verb, mounted.mountpoint)
            assert (done.returncode, f"kill -CONT {keeper}" in done.stderr) == (75, True), done.stderr
        with MessageStore.open(mounted.store) as store:
            assert bytes(store.get("t", 0, 0).body) == b"one"
    finally:
        os.kill(keeper, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper ends")


def test_a_requester_that_says_nothing_keeps_nobody_waiting(mounted: Site) -> None:
    mount = mount_at(mounted.mountpoint)
    assert mount is not None
    keeper = keeper_of(mounted)
    asked = [control._connected(name, os.geteuid()) for name in control._names(mount.device)]
    with next(one for one in asked if one is not None and control.peer_of(one)[0] == keeper) as slow:
        over = threading.Event()

        def dribble() -> None:
            while not over.wait(0.1):
                with suppress(OSError):
                    slow.send(b"[", socket.MSG_NOSIGNAL)

        dribbling = threading.Thread(target=dribble)
        dribbling.start()
        try:
            kill(mounted)
            succeed("restart", mounted.mountpoint)
        finally:
            over.set()
            dribbling.join()


def test_the_keeper_of_a_mount_that_has_ended_answers_for_no_other_one(mounted: Site) -> None:
    """The kernel gives the device number of a mount that has ended to the next one; its server may close long after."""
    mount = mount_at(mounted.mountpoint)
    assert mount is not None
    keeper = keeper_of(mounted)
    server = server_of(keeper)
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    try:
        assert ctypes.CDLL(None).umount2(os.fsencode(mounted.mountpoint), 0) == 0
        state = control.state_of(mount.device, os.geteuid())
        assert state is None or state.keeper != keeper
    finally:
        os.kill(server, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper has ended")


@pytest.mark.parametrize("end", ["umount", "SIGTERM"])
def test_it_can_be_ended_while_it_is_restarted(mounted: Site, mounted_queue: Path, end: str) -> None:
    (mounted_queue / "append").write_bytes(b"one\n")
    keeper = keeper_of(mounted)
    server = server_of(keeper)
    assert server is not None
    os.kill(server, signal.SIGKILL)
    if end == "umount":
        succeed("umount", mounted.mountpoint)
    else:
        eventually(lambda: server_of(keeper) not in (None, server), "another one is started")
        following = server_of(keeper)
        assert following is not None
        os.kill(following, signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper ends")
    assert not is_mounted(mounted.mountpoint)
    with MessageStore.open(mounted.store) as store:
        assert bytes(store.get("t", 0, 0).body) == b"one"


def test_what_hangs_up_the_log_reaches_the_next_server(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    kill(mounted)
    mounted.log.rename(mounted.log.with_suffix(".1"))
    os.kill(keeper, signal.SIGHUP)
    eventually(lambda: "SIGHUP: the log goes on in" in mounted.log_text(), "the log is opened again")


def test_without_resend_the_mount_ends_with_its_daemon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSTORE_NO_RESEND", "1")
    site.mounted()
    status = json.loads((site.mountpoint / "@store/status.json").read_bytes())
    assert (status["outlives_daemon"], status["keeper_pid"]) == (False, None)
    os.kill(status["pid"], signal.SIGKILL)
    eventually(lambda: "the store was not closed" in site.log_text(), "the keeper says so")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        list(site.mountpoint.iterdir())
    assert mountctl("umount", site.mountpoint).returncode == 0


def test_a_mount_in_the_foreground_has_no_keeper(site: Site) -> None:
    paths = map(str, (site.log, site.store, site.mountpoint))
    command = [sys.executable, "-m", "mountctl", "mount", "-f", "--log-file", *paths]
    with subprocess.Popen(command) as serving:
        path = site.mountpoint / "@store/status.json"
        eventually(path.exists, "it is mounted")
        assert json.loads(path.read_bytes())["outlives_daemon"] is False
        serving.terminate()


@pytest.mark.parametrize("is_planned", [False, True], ids=["killed", "restarted"])
def test_who_reads_the_access_log_goes_on(mounted: Site, mounted_queue: Path, is_planned: bool) -> None:
    log = open(mounted.mountpoint / "@store/accesslog", "rb", buffering=0)  # noqa: SIM115
    with log:
        lines: list[bytes] = []

        def read() -> None:
            while text := log.read(1 << 17):
                lines.append(text)
                if b" 4321 " in text:
                    return

        reader = threading.Thread(target=read)
        reader.start()
        if is_planned:
            done = mountctl("restart", mounted.mountpoint)
            assert done.returncode == 0, done.stderr + mounted.log_text()
        else:
            kill(mounted)
        lines.clear()
        descriptor = os.open(mounted_queue / "append", os.O_WRONLY)
        os.write(descriptor, b"x" * 4320 + b"\n")
        os.close(descriptor)
        reader.join(30)
        assert not reader.is_alive()
        assert any(b" write t/0/append 0 4321 OK " in text for text in lines)


def test_a_read_only_mount_goes_on(site: Site) -> None:
    bodies = [b"%d " % number * 20_000 for number in range(3)]
    with MessageStore.open(site.store, create=True) as store:
        store.create_topic("t", 1)
        for body in bodies:
            store.put(Message("t", body), 0)
    site.mounted("--read-only")
    queue = site.mountpoint / "t/0"
    with opened(queue / f"{0:020d}") as held, opened(queue.with_name("0.log")) as stream:
        assert os.read(held, 100) == bodies[0][:100]
        kill(site)
        os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(held, 1 << 20, 0) == bodies[0]
        assert os.pread(stream, 1 << 20, 0) == b"".join(body + b"\n" for body in bodies)
    assert [path.read_bytes() for path in sorted(queue.glob("0*"))] == bodies
    kill(site)
    assert [path.read_bytes() for path in sorted(queue.glob("0*"))] == bodies
