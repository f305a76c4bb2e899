"""Mounting and unmounting: the mount table, refusals, and remains."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine import MessageStore
from fsstore import MountError, ServeOptions, serve_mount
from fsstore.fuse.mount import device_of
from mountctl.main import cli
from tests.mount.harness import PATIENCE_S, bodies, mounted, publish, refused_with, unmount_lazily, until


def mount_line(root: Path) -> list[str]:
    """The fields of a mount in the table of mounts."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return next(fields for fields in lines if fields[4].replace("\\040", " ") == str(root))


def test_the_table_of_mounts_names_the_store(tmp_path: Path) -> None:
    store = tmp_path / "größe, with a comma and \\ a backslash"
    with mounted(tmp_path, store=store) as mount:
        fields = mount_line(mount.root)
        kind, source = fields[fields.index("-") + 1 : fields.index("-") + 3]
        assert kind == "fuse.fsstore"
        assert source.encode().decode("unicode_escape").encode("latin-1").decode() == str(store)


def test_a_read_only_store_is_mounted_read_only(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        assert mount_line(mount.root)[5].split(",")[0] == "rw"
    with mounted(tmp_path, config={"mode": "READ_ONLY"}) as mount:
        assert mount_line(mount.root)[5].split(",")[0] == "ro"


def test_options_of_the_mount_are_passed_on(tmp_path: Path) -> None:
    options = {"allow_other": True, "append_mode": 0o666, "directory_mode": 0o750, "mount_options": ["noexec"]}
    with mounted(tmp_path, options=options) as mount:
        fields = mount_line(mount.root)
        assert "noexec" in fields[5].split(",")
        assert "allow_other" in fields[-1].split(",")
        topic = mount.topic("orders")
        assert (topic / "append").stat().st_mode & 0o777 == 0o666
        assert topic.stat().st_mode & 0o777 == 0o750


def test_the_kernel_reads_far_ahead(tmp_path: Path) -> None:
    with mounted(tmp_path, options={"read_ahead_kb": 512}) as mount:
        device = device_of(mount.root)
        assert Path(f"/sys/class/bdi/{device}/read_ahead_kb").read_text().strip() == "512"


def test_a_mount_point_that_is_missing_is_refused_with_its_reason(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store, pytest.raises(MountError) as raised:
        serve_mount(store, tmp_path / "missing", ServeOptions())
    assert raised.value.mountpoint == tmp_path / "missing"
    assert "missing" in str(raised.value)


def test_a_mount_option_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    with MessageStore.open(tmp_path / "store", create=True) as store, pytest.raises(MountError):
        serve_mount(store, tmp_path / "mount", ServeOptions(mount_options=("colour=red",)))
    assert device_of(tmp_path / "mount") is None


def test_the_end_waits_for_no_open_file(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        topic = mount.topic("orders")
        publish(topic / "append", b"one\n")
        held = [os.open(topic / name, flags) for name, flags in (("append", os.O_WRONLY), ("0.log", os.O_RDONLY))]
        assert mount.stop() == 0
        for fd in held:
            refused = 0
            try:
                os.close(fd)
            except OSError as error:
                refused = error.errno or 0
            assert refused in (0, 103, 107)


def test_a_writer_at_the_end_is_told_or_its_message_is_there(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    with mounted(tmp_path) as mount:
        topic = mount.topic("orders")

        def write() -> None:
            fd = os.open(topic / "0" / "append", os.O_WRONLY)
            for number in range(1_000_000):
                try:
                    os.write(fd, b"%d\n" % number)
                except OSError:
                    return
                acknowledged.append(number)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        until("the writer writes", lambda: len(acknowledged) > 1_000)
        assert mount.stop() == 0
        writer.join(PATIENCE_S)
        assert not writer.is_alive()
    with mounted(tmp_path) as mount:
        text = (mount.root / "orders" / "0.log").read_bytes()
        assert text.startswith(b"".join(b"%d\n" % number for number in acknowledged))


def test_a_lazy_unmount_ends_the_daemon_when_the_last_file_is_closed(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        topic = mount.topic("orders")
        fd = os.open(topic / "0" / "append", os.O_WRONLY)
        unmount_lazily(mount.root)
        assert os.write(fd, b"still here\n") == 11
        assert mount.daemon.poll() is None
        os.close(fd)
        assert mount.daemon.wait(PATIENCE_S) == 0
    with mounted(tmp_path) as mount:
        assert bodies(mount.root / "orders" / "0") == [b"still here"]


def test_signals_while_it_is_busy_end_it_once(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        topic = mount.topic("orders")
        publish(topic / "append", b"x\n" * 5_000)
        lister = subprocess.Popen(["ls", "-lR", str(mount.root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            mount.daemon.send_signal(number)
        assert mount.daemon.wait(PATIENCE_S) == 0
        lister.wait(PATIENCE_S)


def test_a_store_that_is_mounted_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with (
        mounted(tmp_path) as mount,
        pytest.raises(AssertionError, match="StoreLockedError"),
        mounted(tmp_path / "second", store=mount.store),
    ):
        pass


def test_a_deleted_topic_is_gone_from_the_mount(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        topic = mount.topic("orders")
        publish(topic / "0" / "append@keys=K", b"one\n")
        assert (topic / "0" / "0").read_bytes() == b"one"
        publish(mount.root / "@store" / "control", b'{"delete_topic": "orders"}\n')
        until("the kernel has forgotten the topic", lambda: not topic.exists())
        assert refused_with((topic / "0" / "0").read_bytes) == 2
        mount.topic("orders")
        until("it is a new topic", topic.exists)
        assert bodies(topic / "0") == []


def test_the_kernels_descriptor_does_not_block(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        process = Path(f"/proc/{mount.daemon.pid}")
        (descriptor,) = (link.name for link in (process / "fd").iterdir() if os.readlink(link) == "/dev/fuse")
        described = dict(line.split() for line in (process / "fdinfo" / descriptor).read_text().splitlines())
        assert int(described["flags:"], 8) & os.O_NONBLOCK


def test_a_follower_without_an_index_says_so_everywhere(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        publish(mount.topic("orders") / "0" / "append@keys=K", b"one\n")
    shutil.rmtree(tmp_path / "store" / "index")
    with mounted(tmp_path, config={"mode": "FOLLOW"}) as mount:
        assert mount.status()["stats"]["index"] == "none"
        assert "fsstore_index_in_use 0" in (mount.root / "@store" / "metrics").read_text()
        until("the log says so", lambda: "keys may not be found" in mount.log.read_text())
        shown = CliRunner().invoke(cli, ["status", str(mount.root)])
        assert "index      none: " in shown.output
