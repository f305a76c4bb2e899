"""`mountctl restart`: another daemon takes over, and the mount's users see no error and lose nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engine import MessageStore
from fsstore.handover.layout import AGREED_BYTES, LARGEST_AGREED_BYTES, OTHER_VERSION
from mountctl import control, preflight
from mountctl.errors import CommandError
from mountctl.places import mount_at
from tests.mount.harness import REPOSITORY
from tests.mount.test_outlives import APPENDING, bodies, keeper_of, kill, opened, server_of, standby_of
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, eventually, mountctl, succeed


def status_of(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.mountpoint / "@store/status.json").read_bytes())
    return found


def restart(site: Site, *options: str) -> None:
    """Have another daemon go on; it opens a store that was closed."""
    before = status_of(site)
    said = succeed("restart", *options, site.mountpoint)
    after = status_of(site)
    assert after["pid"] != before["pid"]
    assert f"is served by process {after['pid']}" in said
    assert (after["restarts"], after["planned_restarts"]) == (before["restarts"], before["planned_restarts"] + 1)
    recovery = after["stats"]["recovery"]
    assert (recovery["clean"], recovery["scanned_bytes"]) == (True, 0)


@contextmanager
def at_work(work: Callable[[], object]) -> Iterator[None]:
    """Repeat `work` in a thread meanwhile; its exception is raised at the end."""
    over, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as failure:
            failures.append(failure)

    worker = threading.Thread(target=run)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
    assert not failures, failures


# things that go on


@pytest.mark.parametrize("name", ["append", "append@frame=file", "append@format=json"])
def test_writers_and_readers_notice_nothing(mounted: Site, mounted_queue: Path, name: str) -> None:
    count = 0

    def write() -> None:
        nonlocal count
        body = json.dumps({"body": str(count)}) if "json" in name else str(count)
        if "file" in name:
            (mounted_queue / name).write_text(body)
        else:
            os.write(descriptor, body.encode() + b"\n")
        count += 1

    stream = mounted_queue.with_name("0.log")
    seen = bytearray()

    def read() -> None:
        seen.extend(os.read(reading, 1 << 20))

    with opened(mounted_queue / name, APPENDING) as descriptor, opened(stream) as reading:
        with at_work(write), at_work(read):
            for _ in range(2):
                restart(mounted)
        read()
    assert count > 20
    assert stream.read_text().splitlines() == seen.decode().splitlines() == [str(number) for number in range(count)]


def test_what_was_begun_is_kept_however_long(mounted: Site) -> None:
    names = ["append", "append@frame=file", "append@format=json"]
    begun = []
    with ExitStack() as stack:
        for (queue, name), size in product(enumerate(names), [3, 70_000, 3_000_000]):
            text = os.urandom(size // 2).hex().encode()
            descriptor = stack.enter_context(opened(mounted.mountpoint / f"t/{queue}" / name, APPENDING))
            os.write(descriptor, b'{"body": "' + text if "json" in name else text)
            begun.append((queue, descriptor, text))
        restart(mounted)
        restart(mounted)
        for queue, descriptor, _ in begun:
            os.write(descriptor, b'-"}' if "json" in names[queue] else b"-")
    for queue, name in enumerate(names):
        found = bodies(mounted.mountpoint / f"t/{queue}")
        assert sorted(found) == sorted(text + b"-" for at, _, text in begun if at == queue), name


def test_long_bodies_give_their_shared_memory_back(mounted: Site, mounted_queue: Path) -> None:
    def shared_kb() -> int:
        text = Path(f"/proc/{status_of(mounted)['pid']}/status").read_text()
        return int(re.findall(r"RssShmem:\s+(\d+)", text)[0])

    with opened(mounted_queue / "append@frame=file", APPENDING) as descriptor:
        for _ in range(3):
            os.write(descriptor, bytes(1_000_000))
        restart(mounted)
        os.write(descriptor, b"-")
        assert shared_kb() < 2_000
    assert len(bodies(mounted_queue)[0]) == 3_000_001


def test_a_long_report_is_read_on(site: Site) -> None:
    with MessageStore.open(site.store, create=True) as store:
        for number in range(100):
            store.create_topic(f"topic-{number}", 256)
    site.mounted()
    with opened(site.mountpoint / "@store/status.json") as report:
        begun = os.read(report, 4_096)
        restart(site)
        while more := os.read(report, 1 << 20):
            begun += more
    assert len(begun) > 1 << 20
    assert json.loads(begun)["mode"] == "write"


def test_what_is_open_to_be_read_goes_on(mounted: Site, mounted_queue: Path) -> None:
    (mounted_queue / "append").write_bytes(b"one\n" * 1_000)
    stream = mounted_queue.with_name("0.log")
    with opened(mounted_queue / "7") as body, opened(stream) as text, os.scandir(mounted_queue) as names:
        numbers = [path.stat().st_ino for path in (mounted_queue, stream)]
        first = next(names).name
        assert os.read(text, 6) == b"one\non"
        restart(mounted)
        assert os.read(body, 10) == b"one"
        assert os.read(text, 10_000) == (b"one\n" * 1_000)[6:]
        assert len({first, *(entry.name for entry in names)}) == 1_001
        assert [path.stat().st_ino for path in (mounted_queue, stream)] == numbers


def test_tail_f_goes_on(mounted: Site, mounted_queue: Path, tmp_path: Path) -> None:
    (mounted_queue / "append").write_bytes(b"one\n")
    output = tmp_path / "tail"
    with open(output, "wb") as out:
        tail = subprocess.Popen(["tail", "-n", "+1", "-f", str(mounted_queue.with_name("0.log"))], stdout=out)
    try:
        eventually(lambda: output.read_bytes() == b"one\n", "it reads")
        restart(mounted)
        (mounted_queue / "append").write_bytes(b"two\n")
        eventually(lambda: output.read_bytes() == b"one\ntwo\n", "it reads on")
    finally:
        tail.terminate()
        tail.wait()


def test_who_reads_the_access_log_reads_on(mounted: Site) -> None:
    with opened(mounted.mountpoint / "@store/accesslog") as lines:
        restart(mounted)
        (mounted.mountpoint / "made").mkdir()
        found = b""
        while b" mkdir made " not in found:
            found += os.read(lines, 1 << 16)


@pytest.mark.parametrize("mode", ["--follow", "--read-only"])
def test_mounts_that_only_read_go_on(site: Site, mode: str) -> None:
    with MessageStore.open(site.store, create=True) as store:
        store.create_topic("t", 1)
    site.mounted(mode)
    with opened(site.mountpoint / "t/0.log") as text:
        before = status_of(site)["pid"]
        succeed("restart", site.mountpoint)
        assert status_of(site)["pid"] != before
        assert os.read(text, 100) == b""


def test_who_waits_for_the_disk_is_answered(mounted: Site, mounted_queue: Path) -> None:
    with (
        opened(mounted_queue / "append", APPENDING | os.O_DSYNC) as descriptor,
        at_work(lambda: os.write(descriptor, b"line\n")),
    ):
        restart(mounted)
        restart(mounted)


def test_options_may_change(mounted: Site, mounted_queue: Path) -> None:
    restart(mounted, "-o", "maxMessageSize=1K,append_mode=222")
    restart(mounted, "-o", "fileReservedTime=48")
    config = json.loads((mounted.mountpoint / "@store/config.json").read_bytes())
    assert config["store"]["max_message_bytes"] == 1024
    assert config["store"]["retention"]["max_age_hours"] == 48
    assert (mounted_queue / "append").stat().st_mode & 0o777 == 0o222
    os.kill(status_of(mounted)["pid"], signal.SIGKILL)
    config = json.loads((mounted.mountpoint / "@store/config.json").read_bytes())
    assert config["store"]["max_message_bytes"] == 1024


def test_a_daemon_that_is_killed_meanwhile_is_replaced(mounted: Site, mounted_queue: Path) -> None:
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"begun")
        running = threading.Thread(target=partial(succeed, "restart", mounted.mountpoint))
        running.start()
        os.kill(status_of(mounted)["pid"], signal.SIGKILL)
        running.join()
        os.write(descriptor, b" line\n")
    assert bodies(mounted_queue) == [b"begun line"]


# failures that leave the mount unchanged


def served_by(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `mountctl restart` start another program than ours, whose link to the keeper is `link`."""
    (folder / "mountctl").mkdir(parents=True)
    (folder / "mountctl/__init__.py").touch()
    head = "import os, socket, sys, time\nlink = socket.socket(fileno=int(sys.argv[2]))\n"
    (folder / "mountctl/successor.py").write_text(head + program)
    monkeypatch.setattr(control, "this_program", lambda options: control.Program(sys.executable, str(folder), options))


PREPARED = "link.send(b'prepared')\n"
GO = PREPARED + "assert link.recv(16) == b'go'\n"
BAD = {
    "it can't be loaded": "import nothing_of_that_name",
    "it dies while it waits": PREPARED,
    "it ends at once": GO,
    "it is killed at once": GO + "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("program", BAD.values(), ids=BAD)
def test_a_program_that_fails_leaves_the_mount_served(
    mounted: Site, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    with opened(queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"x" * 70_000)
        served_by(program, tmp_path / "other", monkeypatch)
        done = mountctl("restart", mounted.mountpoint)
        assert done.returncode != 0
        assert "the new daemon" in done.stderr
        assert "the mount is served as before" in done.stderr
        monkeypatch.undo()
        restart(mounted)
        os.write(descriptor, b"\n")
    assert bodies(queue) == [b"x" * 70_000]


def test_a_waiting_daemon_that_fails_when_it_is_needed_is_followed_by_a_new_one(
    mounted: Site, mounted_queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the program was replaced under it."""
    fails = tmp_path / "fails"
    fails.touch()
    program = f"""
if sys.argv[4] == "-1" and os.path.exists({str(fails)!r}):
    os.remove({str(fails)!r})
    link.send(b'prepared')
    assert link.recv(16) == b'go'
    os._exit(1)
os.environ["PYTHONPATH"] = {str(REPOSITORY)!r}
os.execv(sys.executable, [sys.executable, "-m", "mountctl.successor", *sys.argv[1:]])
"""
    served_by(program, tmp_path / "other", monkeypatch)
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"begun")
        succeed("restart", mounted.mountpoint)
        eventually(lambda: not fails.exists(), "one waits that will fail")
        kill(mounted)
        os.write(descriptor, b" line\n")
    assert re.search(r"WARNING the daemon \(process \d+\) ended with 1; the next one takes over", mounted.log_text())
    assert bodies(mounted_queue) == [b"begun line"]


def test_a_daemon_that_ends_by_an_error_of_its_own_is_followed_by_another(
    mounted: Site, mounted_queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = tmp_path / "fails"
    code = f"""
import os, trio
from pathlib import Path
from fsstore.fuse.mount import MountTasks
from mountctl import successor

async def fail(_: MountTasks) -> None:
    while not os.path.exists({str(fails)!r}):
        await trio.sleep(0.01)
    os.remove({str(fails)!r})
    raise ZeroDivisionError("a defect, for a test")

MountTasks._sum_streams = fail
os._exit(successor.main())
"""
    program = f"""
os.environ["PYTHONPATH"] = {str(REPOSITORY)!r}
os.execv(sys.executable, [sys.executable, "-c", {code!r}, *sys.argv[1:]])
"""
    served_by(program, tmp_path / "other", monkeypatch)
    with opened(mounted_queue / "append", APPENDING) as descriptor:
        os.write(descriptor, b"begun")
        succeed("restart", mounted.mountpoint)
        before = status_of(mounted)["pid"]
        fails.touch()
        eventually(lambda: "ended with 70; the next one takes over" in mounted.log_text(), "it has ended")
        os.write(descriptor, b" line\n")
    assert status_of(mounted)["pid"] != before
    assert bodies(mounted_queue) == [b"begun line"]
    assert "a defect, for a test" in mounted.log_text()


def test_a_restart_without_the_store_says_what_became_of_the_mount(mounted: Site) -> None:
    aside = mounted.store.with_name("aside")
    mounted.store.rename(aside)
    done = mountctl("restart", mounted.mountpoint)
    assert (done.returncode, "as before" in done.stderr) == (75, False)
    assert "is not the store that was there" in done.stderr
    assert "the mount waits for the next daemon" in done.stderr
    aside.rename(mounted.store)
    assert status_of(mounted)["restarts"] >= 1


def test_another_users_sockets_lead_nowhere(mounted: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = mount_at(mounted.mountpoint)
    assert mount is not None
    peer_of = control.peer_of

    def other_user(connected: socket.socket) -> tuple[int, int]:
        pid, user = peer_of(connected)
        return pid, 54321 if pid == os.getpid() else user

    monkeypatch.setattr(control, "peer_of", other_user)
    with ExitStack() as stack:
        for number in range(3):
            squatting = stack.enter_context(socket.socket(socket.AF_UNIX))
            squatting.bind(f"\0fsstore/{mount.device}/{number:032d}")
            squatting.listen()
        restart(mounted)


def test_a_program_that_agrees_with_the_kernel_on_something_else_is_refused(mounted: Site) -> None:
    before = status_of(mounted)["pid"]
    memory = next(one for one in Path(f"/proc/{before}/fd").iterdir() if "fsstore-handover" in os.readlink(one))
    with open(memory, "r+b") as shared:
        shared.seek(AGREED_BYTES + LARGEST_AGREED_BYTES + 40)
        shared.write(b"other")
    done = mountctl("restart", mounted.mountpoint)
    assert "and the kernel agree on other features" in done.stderr
    assert "the mount is served as before" in done.stderr
    assert status_of(mounted)["pid"] == before


def test_a_mount_of_another_version_is_served_as_before(mounted: Site) -> None:
    before = status_of(mounted)["pid"]
    memory = next(one for one in Path(f"/proc/{before}/fd").iterdir() if "fsstore-handover" in os.readlink(one))
    with open(memory, "r+b") as shared:
        shared.seek(8)
        shared.write(b"\1")
    done = mountctl("restart", mounted.mountpoint)
    assert OTHER_VERSION in done.stderr
    assert "the mount is served as before" in done.stderr
    assert status_of(mounted)["pid"] == before


def test_a_program_that_is_not_there_leaves_the_old_daemon(mounted: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = status_of(mounted)["pid"]
    monkeypatch.setattr(control, "this_program", lambda options: control.Program("/nowhere/python", "/", options))
    assert "the mount is served as before" in mountctl("restart", mounted.mountpoint).stderr
    assert status_of(mounted)["pid"] == before
    assert "/nowhere/python: No such file or directory" in mounted.log_text()


def test_an_option_that_is_none_leaves_the_old_daemon(mounted: Site) -> None:
    before = status_of(mounted)["pid"]
    done = mountctl("restart", "-o", "maxMessageSizes=1K", mounted.mountpoint)
    assert done.returncode == 64
    assert "option maxMessageSizes: there is no such option" in done.stderr
    assert "the mount is served as before" in done.stderr
    assert status_of(mounted)["pid"] == before


@pytest.mark.parametrize(
    "option", ["follow", "ro", "allow_other", "noatime", "cache=/tmp", "storePathCommitLog=/tmp/x"]
)
def test_an_option_that_makes_another_mount_is_refused(mounted: Site, option: str) -> None:
    done = mountctl("restart", "-o", option, mounted.mountpoint)
    assert done.returncode == 64
    assert f"-o {option.partition('=')[0]} can't change while it is mounted" in done.stderr


def test_a_program_that_takes_too_long_is_given_up(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSTORE_PREPARE_SECONDS", "3")
    site.mounted()
    served_by("time.sleep(600)", tmp_path / "other", monkeypatch)
    first = threading.Thread(target=partial(mountctl, "restart", site.mountpoint))
    first.start()
    keeper = keeper_of(site)
    children = Path(f"/proc/{keeper}/task/{keeper}/children")
    eventually(lambda: len(children.read_text().split()) == 2, "it is started")
    second = mountctl("restart", site.mountpoint)
    assert (second.returncode, "is being restarted already" in second.stderr) == (75, True)
    first.join()
    assert "takes too long to start: the old one goes on" in site.log_text()
    standby_of(keeper)
    monkeypatch.undo()
    restart(site)


def test_it_can_be_unmounted_meanwhile(mounted: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served_by("time.sleep(600)", tmp_path / "other", monkeypatch)
    keeper = keeper_of(mounted)
    running = threading.Thread(target=partial(mountctl, "restart", mounted.mountpoint))
    running.start()
    children = Path(f"/proc/{keeper}/task/{keeper}/children")
    eventually(lambda: len(children.read_text().split()) == 2, "it is started")
    succeed("umount", mounted.mountpoint)
    running.join()
    eventually(lambda: not children.exists(), "the keeper ends")


def test_without_resend_it_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSTORE_NO_RESEND", "1")
    site.mounted()
    before = status_of(site)["pid"]
    done = mountctl("restart", site.mountpoint)
    assert (done.returncode, "can't outlive its daemon: that takes Linux 6.9" in done.stderr) == (69, True)
    assert status_of(site)["pid"] == before


def test_what_is_no_mount_is_refused(site: Site) -> None:
    done = mountctl("restart", site.mountpoint)
    assert (done.returncode, "no store is mounted at" in done.stderr) == (66, True)


def test_a_mount_whose_keeper_is_gone_is_refused(mounted: Site) -> None:
    keeper = keeper_of(mounted)
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "it is gone")
    done = mountctl("restart", mounted.mountpoint)
    assert (done.returncode, "keeper" in done.stderr, "umount, then mount" in done.stderr) == (69, True, True)
    assert mounted.mountpoint.joinpath("t").is_dir()


def test_mounting_over_an_older_version_names_restart(mounted: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    running = status_of(mounted)["version"]
    monkeypatch.setattr(preflight, "version", lambda _: "99.1")
    with pytest.raises(CommandError) as refused:
        preflight.check_mountpoint(mounted.mountpoint)
    assert f"by version {running}, and this is 99.1: mountctl restart {mounted.mountpoint}" in str(refused.value)


# service managers


def test_a_signal_to_the_keeper_restarts_and_a_service_manager_is_told(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(address))
        listening.settimeout(DEADLINE_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        site.mounted()
        keeper = keeper_of(site)
        ready = b"MAINPID=%d\nREADY=1" % keeper
        assert listening.recv(100) == ready
        server = server_of(keeper)
        os.kill(keeper, signal.SIGUSR2)
        assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", listening.recv(100))
        assert listening.recv(100) == ready
        assert status_of(site)["pid"] != server
        served_by("import nothing_of_that_name", tmp_path / "other", monkeypatch)
        mountctl("restart", site.mountpoint)
        assert listening.recv(100).startswith(b"RELOADING=1\n")
        assert listening.recv(100) == b"READY=1"
