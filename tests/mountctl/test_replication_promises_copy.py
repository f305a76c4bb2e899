"""docs/replication.md, 1: a live copy of a broker, at the command line; the broker is a script's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from engine import Message, MessageStore, OpenMode, StoreConfig
from tests.engine.replication.masters import ScriptedMaster
from tests.engine.replication.replicas import free_port
from tests.engine.replication.test_replica import bytes_below, content, log_of, publish, require_equal
from tests.engine.replication.test_replica import master as master
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, eventually, mountctl, succeed


def words_of(master: ScriptedMaster, copy: Path, *more: str) -> list[str]:
    assert master.options.remoting is not None
    return ["replicate", str(master.options.master), "--remoting", str(master.options.remoting), *more, str(copy)]


@contextmanager
def replica(master: ScriptedMaster, copy: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A replica's process, which has the master's log at the beginning, and ends by SIGTERM."""
    words = [sys.executable, "-m", "mountctl", *words_of(master, copy, *more)]
    master.reports.clear()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for_copy(master)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_SECONDS)


@contextmanager
def at_neighbouring_ports(master: ScriptedMaster) -> Iterator[str]:
    """The address of another master of the same store, whose remoting is at the port below, as a broker's is."""
    for port in range(20_913, 30_000, 2):
        with suppress(OSError):
            other = ScriptedMaster(master.store, (port, port - 1))
            break
    try:
        yield f"127.0.0.1:{port}"
    finally:
        other.close()


def wait_for_copy(master: ScriptedMaster) -> None:
    eventually(lambda: master.store.physical_end in master.reports[-3:], "an acknowledgement of all of the log")


def make(master: ScriptedMaster, copy: Path) -> None:
    with replica(master, copy):
        pass


def replica_of(place: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(succeed("status", place, "--json"))["replica"]
    return found


def replication_of(place: Path) -> dict[str, Any]:
    """The replicas that a store serves; empty: none."""
    found: dict[str, Any] | None = json.loads(succeed("status", place, "--json"))["replication"]
    return found or {}


def test_equal(master: ScriptedMaster, site: Site) -> None:
    """1.1 A copy has the master's log byte for byte, and every message and key in it. A mount that follows the copy
    shows messages as they come."""
    publish(master.store, 300)
    with replica(master, site.store):
        site.mounted("--follow")
        publish(master.store, 50, "later")
        newest = sum(1 for one in content(master.store) if one[0] == "topic-1")
        shown = site.mountpoint / "topic-1"
        eventually(lambda: sum(len(list(one.glob("[0-9]*"))) for one in shown.glob("[0-9]")) == newest, "messages")
    require_equal(master, site.store)


def test_acknowledged(master: ScriptedMaster, site: Site) -> None:
    """1.2 The copy acknowledges only whole messages that are on its disk and have correct body checksums."""
    publish(master.store, 100)
    with replica(master, site.store) as process:
        process.kill()
    end = max(master.reports)
    assert log_of(site.store, end) == log_of(master.folder, end)
    with MessageStore.open(site.store, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        assert content(store) == [one for one in content(master.store) if one[-1] < end]
    make(master, site.store)


def test_begin(master: ScriptedMaster, site: Site) -> None:
    """1.3 A new copy begins with the oldest file of the master's log. Each later connection begins 64 KiB before the
    copy's end, and compares the incoming bytes with its own."""
    publish(master.store, 600)
    master.begin = 64 << 10
    make(master, site.store)
    end = master.store.physical_end
    make(master, site.store)
    assert master.requests == [master.begin, end - (64 << 10)]


def test_settings(master: ScriptedMaster, site: Site, tmp_path: Path) -> None:
    """1.4 `config/` has topics, group offsets, subscription groups and delay offsets as the master has them; the
    copy asks for them every 5 s. With `--remoting none` it does not ask. Status then says so, and the file size
    comes from `-o mappedFileSizeCommitLog`."""
    publish(master.store, 20)
    master.store.commit_offset("group", "topic-0", 0, 2)
    (master.folder / "config/subscriptionGroup.json").write_text('{"subscriptionGroupTable":{}}')
    (master.folder / "config/delayOffset.json").write_text('{"offsetTable":{3:7}}')
    with replica(master, site.store):
        master.store.create_topic("later", 2)
        later = site.store / "config/topics.json"
        eventually(lambda: "later" in later.read_text(), "a new topic")
    for name in ("topics", "consumerOffset", "subscriptionGroup", "delayOffset"):
        text = (site.store / f"config/{name}.json").read_bytes()
        assert text == (master.folder / f"config/{name}.json").read_bytes()
    bare = tmp_path / "bare"
    words = [sys.executable, "-m", "mountctl", "replicate", str(master.options.master), "--remoting", "none", str(bare)]
    master.reports.clear()
    with subprocess.Popen([*words, "-o", "mappedFileSizeCommitLog=64K"], stdout=subprocess.PIPE) as process:
        wait_for_copy(master)
        process.terminate()
    assert "topics and groups" in str(replica_of(bare)["lacks"])
    assert log_of(bare, master.store.physical_end) == log_of(master.folder, master.store.physical_end)


def test_refused(master: ScriptedMaster, site: Site) -> None:
    """1.5 The copy refuses a master whose log does not continue its own, names the reason, and exits with 65.
    Reasons are a log that diverged, is shorter, begins after the copy's end, or has files of another size, and
    another broker. The copy stays as it was."""
    publish(master.store, 50)
    make(master, site.store)
    before, true_bytes, settings = bytes_below(site.store), master.log_bytes, dict(master.settings)

    def is_refused(what: str) -> None:
        done = mountctl(*words_of(master, site.store))
        assert (done.returncode, what in done.stderr) == (65, True), done.stderr
        assert bytes_below(site.store) == before
        master.settings, master.told_end, master.begin = dict(settings), None, 0

    master.told_end = 100
    is_refused("it was cut, or made anew")
    for name, value in {"mappedFileSizeCommitLog": "131072", "brokerName": "broker-b"}.items():
        master.settings[name] = value
        is_refused(value.replace("131072", "131,072"))
    publish(master.store, 400)
    master.begin = 64 << 10
    is_refused("a gap")
    master.log_bytes = lambda start, most: bytes(len(true_bytes(start, most)))  # type: ignore[method-assign]
    is_refused("they diverged")


def test_broken(master: ScriptedMaster, site: Site) -> None:
    """1.6 Bytes that are not a frame, or not a whole record with a correct body, end the connection. None of them
    reaches the copy, and the next connection starts afresh."""
    publish(master.store, 50)
    changed: list[int] = []

    def tamper(physical_offset: int, frame: bytes) -> bytes:
        if len(changed) == 4 or physical_offset > 1:
            return frame
        spot = (3, 8, 12 + 88, 12 + 4)[len(changed)]  # its offset, its size, a record's body, a record's magic
        changed.append(spot)
        return frame[:spot] + bytes([frame[spot] ^ 0x40]) + frame[spot + 1 :]

    master.tamper = tamper
    make(master, site.store)
    assert len(master.requests) == 5
    require_equal(master, site.store)


def test_killed(master: ScriptedMaster, site: Site) -> None:
    """1.7 A replica that was killed goes on, with no message lost or mixed. After a power cut, damage after the last
    flush is cut off, kept in `fsstore/damaged`, and fetched again."""
    publish(master.store, 40)
    for turn in range(3):
        with replica(master, site.store) as process:
            publish(master.store, 40, f"turn{turn}")
            process.kill()
    newest = max(one[-1] for one in content(master.store))
    with replica(master, site.store) as process:
        publish(master.store, 40, "last")
        wait_for_copy(master)
        process.kill()
    torn = min(one[-1] for one in content(master.store) if one[-1] > newest + 3_000)
    file = max(one for one in (site.store / "commitlog").iterdir() if int(one.name) <= torn)
    with file.open("r+b") as stream:
        stream.seek((torn - int(file.name) + 600) // 512 * 512)
        stream.write(bytes(512))
    make(master, site.store)
    require_equal(master, site.store)
    assert any((site.store / "fsstore/damaged").rglob("*"))


def test_full(master: ScriptedMaster, site: Site, tmp_path: Path) -> None:
    """1.8 A full disk stops the copy. It goes on when there is space again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        copy, ballast = disk / "copy", disk / "ballast"
        publish(master.store, 100)
        make(master, copy)
        subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], check=False, capture_output=True)
        words = [sys.executable, "-m", "mountctl", *words_of(master, copy)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            publish(master.store, 600, "later")
            while "no space" not in (line := process.stderr.readline()):
                assert line
            ballast.unlink()
            wait_for_copy(master)
            process.terminate()
            process.communicate(timeout=DEADLINE_SECONDS)
        require_equal(master, copy)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_written_by_its_replication(master: ScriptedMaster, site: Site) -> None:
    """1.9 Only its replication writes to a replica. Any other writer is refused until `mountctl promote`, which is
    refused while the replication runs."""
    publish(master.store, 20)
    with replica(master, site.store):
        done = mountctl("promote", site.store)
        assert (done.returncode, "is open in process" in done.stderr) == (75, True)
    for done in (mountctl("put", site.store, "topic-0", "x"), site.mount()):
        assert (done.returncode, "mountctl promote" in done.stderr) == (77, True), done.stderr
    succeed("promote", site.store)
    succeed("put", site.store, "topic-0", "x")


def test_promoted(master: ScriptedMaster, site: Site) -> None:
    """1.10 A promoted replica is a writable store with its master's file sizes, for a mount, or for a broker with
    the master's `broker.conf`."""
    publish(master.store, 60)
    make(master, site.store)
    succeed("promote", site.store)
    with MessageStore.open(site.store) as store:
        assert content(store) == content(master.store)
        assert store.sizes == master.store.sizes
    site.mounted()
    (site.mountpoint / "topic-0/0/append").write_bytes(b"own\n")
    assert (site.mountpoint / "topic-0/0.log").read_bytes().endswith(b"own\n")


def test_begun_again(master: ScriptedMaster, site: Site) -> None:
    """1.11 `mountctl replicate --begin-again` moves the old copy to `fsstore/damaged`, and makes a new one. Nothing
    is deleted."""
    publish(master.store, 30)
    make(master, site.store)
    before = {Path(name).relative_to(site.store): data for name, data in bytes_below(site.store).items()}
    master.settings["brokerName"] = "broker-b"
    master.reports.clear()
    with replica(master, site.store, "--begin-again"):
        pass
    require_equal(master, site.store)
    kept = site.store / "fsstore/damaged"
    assert {Path(name).relative_to(kept): data for name, data in bytes_below(kept).items()} == before


def test_told(master: ScriptedMaster, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.12 `mountctl status STORE`, and `@store/status.json`, the metrics and `mountctl top` of a following mount
    show master, state, reason, lag and when the master was last heard. The replication notes these each second; 10 s
    after the last note the state is "not running"."""
    publish(master.store, 30)
    with replica(master, site.store) as process:
        site.mounted("--follow")
        eventually(lambda: replica_of(site.store)["state"] == "in sync", "a note")
        assert f"copy       of {master.options.master}, in sync" in succeed("status", site.mountpoint)
        assert json.loads((site.mountpoint / "@store/status.json").read_bytes())["replica"]["lag_bytes"] == 0
        assert f"copy    of {master.options.master}, in sync, heard " in succeed("top", site.mountpoint, "--count", "1")
        assert "fsstore_copy_lag_bytes 0" in (site.mountpoint / "@store/metrics").read_text()
        process.kill()
    note = site.store / "fsstore/replica.json"
    assert replica_of(site.store)["is_running"]
    note.write_text(note.read_text().replace('"noted_ms":1', '"noted_ms":'))
    assert "not running since" in succeed("status", site.store)
    master.told_end = 100
    assert mountctl(*words_of(master, site.store)).returncode == 65
    assert "not running since" in (said := succeed("status", site.store))
    assert "(refused: the master's log ends at 100" in said


def test_woken(master: ScriptedMaster, site: Site) -> None:
    """1.13 The replica wakes a mount on its host that follows it, so messages show without the wait for
    `follow_interval_ms`."""
    publish(master.store, 10)
    with replica(master, site.store):
        site.mounted("--follow", "-o", "follow_interval_ms=600000")
        stream = site.mountpoint / "topic-1/1.log"
        for turn in range(3):
            before = stream.stat().st_size
            master.store.put(Message("topic-1", f"turn {turn}".encode()), 1)
            began = time.monotonic()
            eventually(lambda before=before: stream.stat().st_size > before, "the message")  # type: ignore[misc]
            assert time.monotonic() - began < 10


def test_both(master: ScriptedMaster, site: Site) -> None:
    """1.14 `mountctl mount --replicate HOST STORE MOUNTPOINT` starts both the copy and a mount that follows it. When
    the mount is gone, the copy's process ends. Its `-o` takes the options of both."""
    publish(master.store, 20)
    served = f"brokerRole=ASYNC_MASTER,haListenPort={free_port()},haSendHeartbeatInterval=200,fileReservedTime=72"
    with at_neighbouring_ports(master) as address:
        site.mounted("--replicate", address, "-o", f"{served},enableControllerMode=false,follow_interval_ms=1000")
        eventually(lambda: replication_of(site.mountpoint).get("role") == "ASYNC_MASTER", "the copy's role")
        shown = site.mountpoint / "topic-1"
        eventually(lambda: len(list(shown.glob("[0-9]/[0-9]*"))) == 10, "messages")
        assert replica_of(site.mountpoint)["is_running"]
        succeed("umount", site.mountpoint)
        eventually(lambda: replica_of(site.store)["state"] == "stopped", "the end of the copy's process")
    new = site.store.with_name("new")
    done = mountctl("mount", "--log-file", site.log, "--replicate", address, new, site.mountpoint)
    assert (done.returncode, "did not start: see" in done.stderr) == (75, True), done.stderr


def test_served_on(master: ScriptedMaster, site: Site, tmp_path: Path) -> None:
    """1.15 `mountctl replicate -o brokerRole=ASYNC_MASTER,haListenPort=PORT` serves the copy to other replicas, as a
    mount serves its store (5.1 to 5.4, 5.9)."""
    port, last = free_port(), tmp_path / "last"
    publish(master.store, 200)
    make(master, site.store)
    with replica(master, site.store, "-o", f"brokerRole=ASYNC_MASTER,haListenPort={port}"):
        words = [sys.executable, "-m", "mountctl", "replicate", f"127.0.0.1:{port}", str(last)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            publish(master.store, 50, "later")
            end = master.store.physical_end
            note = last / "fsstore/replica.json"
            eventually(lambda: note.exists() and replica_of(last)["physical_end"] == end, "the last copy's end")
            process.terminate()
    require_equal(master, last)
    done = mountctl(*words_of(master, site.store, "-o", f"brokerRole=SYNC_MASTER,haListenPort={port}"))
    assert (done.returncode, "nothing waits for its replicas" in done.stderr) == (64, True), done.stderr


def test_served_on_and_told(master: ScriptedMaster, site: Site, tmp_path: Path) -> None:
    """1.16 While a copy serves replicas, `mountctl status STORE`, and `@store/status.json`, the metrics and `mountctl
    top` of a mount that follows it, list them as they list those of a mount (5.10)."""
    port, last = free_port(), tmp_path / "last"
    publish(master.store, 20)
    with replica(master, site.store, "-o", f"brokerRole=ASYNC_MASTER,haListenPort={port}"):
        words = [sys.executable, "-m", "mountctl", "replicate", f"127.0.0.1:{port}", str(last)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            site.mounted("--follow")
            eventually(lambda: replication_of(site.store).get("in_sync") == 1, "a replica of the copy")
            (known,) = replication_of(site.store)["replicas"]
            eventually(lambda: f"replica    {known['replica']} has all of it" in succeed("status", site.store), "it")
            shown = json.loads((site.mountpoint / "@store/status.json").read_bytes())
            assert shown["replication"]["replicas"][0]["replica"] == known["replica"]
            assert "serves" not in shown["replica"]
            metrics = (site.mountpoint / "@store/metrics").read_text()
            assert 'fsstore_replicas_connected{role="ASYNC_MASTER"} 1' in metrics
            assert f'fsstore_replica_in_sync{{replica="{known["replica"]}"}} 1' in metrics
            assert "replicas 1, 1 in sync" in succeed("top", site.mountpoint, "--count", "1")
            process.terminate()
    assert replication_of(site.store) == {}
