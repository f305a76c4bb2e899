"""Promises 3.*: names (docs/semantics.md)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from threading import Timer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine import MessageStore
from tests.mount.harness import Mounted, bodies, mounted, offset_names, publish, refused_with, until

COLLIDING_KEYS = ("Aa", "BB")
"""Two keys of one hash: Java's String.hashCode gives both 2112."""


def test_the_tree(mount: Mounted, topic: Path) -> None:
    """3.1 The root lists `@store`, every topic and its `.log`. A topic lists `append`, `drop`, its queues, their
    `.log` and `keys`."""
    listed = {entry.name: entry for entry in os.scandir(mount.root)}
    assert {"@store", topic.name, f"{topic.name}.log"} <= listed.keys()
    assert listed[topic.name].is_dir()
    assert listed[f"{topic.name}.log"].is_file()
    for name in (topic.name, f"{topic.name}.log"):
        assert listed[name].stat().st_ino == listed[name].inode()
    queues = {name for queue in range(4) for name in (f"{queue}", f"{queue}.log")}
    assert set(os.listdir(topic)) == {"append", "drop", "keys"} | queues


def test_a_queue_lists_its_messages_in_order(queue: Path) -> None:
    """3.2 A queue lists `append` and its messages in queue order, each named by 20 digits."""
    publish(queue / "append", b"x\n" * 3_000)
    assert os.listdir(queue) == ["append", *(f"{offset:020d}" for offset in range(3_000))]


def test_any_spelling_of_an_offset(queue: Path) -> None:
    """3.3 Any decimal spelling of an offset finds the message."""
    publish(queue / "append", b"zero\none\n")
    assert {(queue / name).read_bytes() for name in ("1", "01", f"{1:020d}", f"{1:040d}")} == {b"one"}


def test_first_and_last(queue: Path) -> None:
    """3.4 `@first` and `@last` are links to the oldest and the newest message of the queue. They are not listed."""
    assert refused_with((queue / "@first").read_bytes) == errno.ENOENT
    assert refused_with((queue / "@last").read_bytes) == errno.ENOENT
    publish(queue / "append", b"zero\none\ntwo\n")
    assert (queue / "@first").readlink() == Path(f"{0:020d}")
    assert (queue / "@last").readlink() == Path(f"{2:020d}")
    publish(queue / "append", b"three\n")
    assert (queue / "@last").read_bytes() == b"three"
    assert not [name for name in os.listdir(queue) if name.startswith("@")]


def test_a_time_is_a_link(queue: Path) -> None:
    """3.5 `@<time>` is a link to the first message stored at or after that time, given as epoch milliseconds or ISO
    8601."""
    times = []
    for line in (b"zero\n", b"one\n"):
        publish(queue / "append", line)
        times.append(int(os.getxattr(queue / "@last", "user.mq.store_time")))
        time.sleep(0.005)  # so that the second is stored in a later millisecond
    assert times[0] < times[1]
    assert (queue / f"@{times[0]}").readlink() == Path(f"{0:020d}")
    for when_ms in (times[0] + 1, times[1]):
        local = datetime.fromtimestamp(when_ms / 1000).isoformat(timespec="milliseconds")
        assert (queue / f"@{when_ms}").read_bytes() == (queue / f"@{local}").read_bytes() == b"one"
    assert refused_with((queue / f"@{times[1] + 1}").readlink) == errno.ENOENT
    assert refused_with((queue / "@yesterday").readlink) == errno.ENOENT


def test_a_key_is_a_link_to_its_newest_message(topic: Path) -> None:
    """3.6 `keys/<key>` is a link to the newest message with that key."""
    publish(topic / "0" / "append@keys=ORDER-17", b"old\n")
    publish(topic / "1" / "append@keys=other+ORDER-17", b"zero\nnew\n")
    assert (topic / "keys" / "ORDER-17").readlink() == Path(f"../1/{1:020d}")
    assert (topic / "keys" / "ORDER-17").read_bytes() == b"new"


def test_all_messages_of_a_key(topic: Path) -> None:
    """3.7 `keys/<key>@all` is a directory with a link `<queue>-<offset>` for each message with that key."""
    publish(topic / "0" / "append@keys=K", b"one\n")
    publish(topic / "1" / "append", b"not this\n")
    publish(topic / "1" / "append@keys=K", b"two\n")
    matches = topic / "keys" / "K@all"
    assert sorted(os.listdir(matches)) == [f"0-{0:020d}", f"1-{1:020d}"]
    assert {(matches / name).read_bytes() for name in os.listdir(matches)} == {b"one", b"two"}
    assert (matches / "1-1").read_bytes() == b"two"
    assert refused_with((matches / "1-0").read_bytes) == errno.ENOENT


def test_a_hash_is_no_key(topic: Path) -> None:
    """3.8 A key that no message carries does not exist, even if its hash is that of another key."""
    there, missing = COLLIDING_KEYS
    publish(topic / "0" / f"append@keys={there}", b"one\n")
    assert (topic / "keys" / there).read_bytes() == b"one"
    assert refused_with((topic / "keys" / missing).read_bytes) == errno.ENOENT
    assert refused_with(os.listdir, topic / "keys" / f"{missing}@all") == errno.ENOENT


def test_keys_are_listed(topic: Path) -> None:
    """3.9 `keys` lists the keys of the newest 10,000 messages. `/ % @ :` and control characters are percent-encoded."""
    keys = ["plain", "a/b", "50%", "a@b.com", "12:30", "tab\there", "größe", ".", ".."]
    record = json.dumps({"body": "x", "keys": keys[:-2]}) + "\n" + json.dumps({"body": "y", "keys": keys[-2:]}) + "\n"
    publish(topic / "append@format=json", record.encode())
    listed = {"plain", "a%2Fb", "50%25", "a%40b.com", "12%3A30", "tab%09here", "größe", "%2E", "%2E%2E"}
    assert set(os.listdir(topic / "keys")) >= listed
    assert {(topic / "keys" / name).read_bytes() for name in listed} == {b"x", b"y"}


def test_a_key_is_found_either_way(topic: Path) -> None:
    """3.10 A key is found by its percent-encoded name and by its plain name."""
    publish(topic / "append@keys=a%40b.com+12%3A30", b"one\n")
    assert {(topic / "keys" / name).read_bytes() for name in ("a@b.com", "a%40b.com", "12:30", "12%3a30")} == {b"one"}


def test_mkdir_makes_topics_and_queues(mount: Mounted) -> None:
    """3.11 `mkdir orders` makes a topic of 4 queues, `mkdir orders@queues=1` a topic of 1. `mkdir orders/7` extends
    it to 8."""
    orders = mount.root / "orders"
    orders.mkdir()
    assert {name for name in os.listdir(orders) if name.isdigit()} == set("0123")
    (orders / "7").mkdir()
    assert {name for name in os.listdir(orders) if name.isdigit()} == set("01234567")
    assert refused_with(orders.mkdir) == refused_with((orders / "3").mkdir) == errno.EEXIST
    publish(orders / "7" / "append", b"one\n")
    assert bodies(orders / "7") == [b"one"]
    narrow = mount.root / "narrow@queues=1"
    narrow.mkdir()
    assert refused_with(narrow.mkdir) == errno.EEXIST
    assert not narrow.exists()
    assert {name for name in os.listdir(mount.root / "narrow") if name.isdigit()} == {"0"}
    assert "narrow@queues=1" not in os.listdir(mount.root)


def test_what_is_not_there_yet_is_found_when_it_is(topic: Path) -> None:
    """3.12 An offset or a key that does not exist yet is found as soon as it exists."""
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            (topic / "0" / "0").stat()
        with pytest.raises(FileNotFoundError):
            (topic / "keys" / "K").stat()
    publish(topic / "0" / "append@keys=K", b"one\n")
    assert (topic / "0" / "0").read_bytes() == (topic / "keys" / "K").read_bytes() == b"one"


def test_the_store_about_itself(mount: Mounted, topic: Path) -> None:
    """3.13 `@store/status.json`, `config.json` and `metrics` describe the store at the moment they are opened. An
    open report keeps its size, time and text."""
    before = mount.status()
    assert before["pid"] == mount.daemon.pid
    assert before["mode"] == "write"
    publish(topic / "2" / "append", b"one\ntwo\n")
    now = mount.status()
    assert now["stats"]["messages"] == before["stats"]["messages"] + 2
    assert now["topics"][topic.name]["queues"]["2"] == {"min_offset": 0, "max_offset": 2}
    assert json.loads((mount.root / "@store" / "config.json").read_text())["store"]["sizes"]
    assert f'topic="{topic.name}"' in (mount.root / "@store" / "metrics").read_text()
    assert len(offset_names(topic / "2")) == 2
    for name in ("status.json", "metrics"):
        with (mount.root / "@store" / name).open("rb") as report:
            opened = os.fstat(report.fileno())
            publish(topic / "2" / "append", b"three\n" * 1000)
            newer, older = (mount.root / "@store" / name).read_bytes(), report.read()
            assert newer != older
            assert len(older) == opened.st_size
            assert os.fstat(report.fileno()) == opened


def test_a_queue_as_parquet_files(mount: Mounted, topic: Path) -> None:
    """3.14 `@parquet/topic=orders/queue=0/` shows the queue as Parquet files. Their names are their queue offsets
    [begin, end)."""
    publish(topic / "0" / "append", b"zero\none\n")
    folder = mount.root / "@parquet" / f"topic={topic.name}" / "queue=0"
    (name,) = os.listdir(folder)
    assert name == f"{0:020d}-{2:020d}.tail.parquet"
    raw = (folder / name).read_bytes()
    assert len(raw) == (folder / name).stat().st_size
    assert pq.read_table(pa.BufferReader(raw)).column("body").to_pylist() == [b"zero", b"one"]


def test_topics_are_made_and_deleted_by_commands(mount: Mounted) -> None:
    """3.15 `@store/control` makes and deletes topics, and flushes everything to disk. A write is one command, a JSON
    object; anything else is EINVAL. `{"create_topics": {"orders": 4, "bills": 8}}` makes topics with these numbers
    of queues, either all of them or none. A topic that exists is EEXIST, a topic that can't be made is EINVAL, and
    so is a command with several such topics. `@store/refusals` has the reason for each."""
    control, made = mount.root / "@store" / "control", mount.root / "made"
    publish(control, b'{"create_topics": {"made": 2, "many": 8}}\n')
    assert {name for name in os.listdir(made) if name.isdigit()} == set("01")
    assert {name for name in os.listdir(mount.root / "many") if name.isdigit()} == set("01234567")
    for command, number, reason in (
        (b'{"create_topics": {"new": 1, "made": 1}}\n', errno.EEXIST, "topic 'made' exists"),
        (b'{"create_topics": {"new": 1, "no topic": 1}}\n', errno.EINVAL, "illegal topic 'no topic': has other"),
        (b'{"create_topics": {"new": 1, "made": 1, "": 1}}\n', errno.EINVAL, "topic 'made' exists; illegal topic '':"),
        (b'{"create_topic": "new", "queues": 1}\n', errno.EINVAL, 'use {"create_topics": {NAME: QUEUES, ...}}'),
    ):
        assert refused_with(publish, control, command) == number
        assert reason in (mount.root / "@store/refusals").read_text().splitlines()[-1]
        assert "new" not in os.listdir(mount.root)
    publish(made / "append", b"message\n")
    publish(control, b'{"flush": true}\n')
    stats = mount.status()["stats"]
    assert stats["durable_end"] == stats["physical_end"]
    for garbage in (
        b"delete made\n",
        b'{"flush": 1}\n',
        b'{"delete_topic": 7}\n',
        b'{"delete_topic": "made", "really": true}\n',
    ):
        assert refused_with(publish, control, garbage) == errno.EINVAL
    assert made.is_dir()
    publish(control, b'{"delete_topic": "made"}\n')
    assert "made" not in os.listdir(mount.root)
    until("the kernel has forgotten the deleted topic", lambda: not made.exists())


def test_the_access_log(mount: Mounted, topic: Path) -> None:
    """3.16 While it is read, `@store/accesslog` has a line for each request. Only its owner may read it. A reader at
    the end waits for the next line. The file is not listed."""
    path = mount.root / "@store" / "accesslog"
    assert path.stat().st_mode & 0o777 == 0o400
    assert path.name not in os.listdir(path.parent)
    with path.open("rb", buffering=0) as log:
        for name in ("first", "second"):
            asker = Timer(0.3, (topic / name).exists)
            asker.start()
            text = b""
            while f" lookup {topic.name}/{name} - - ENOENT ".encode() not in text:
                text = log.read(1 << 17)
                assert text
            asker.join()


def test_a_group_goes_on_where_somebody_wrote(mount: Mounted, topic: Path, tmp_path: Path) -> None:
    """3.17 `@store/groups/<group>/<topic>/<queue>` holds the queue offset at which a consumer group continues.
    Writing an offset, `@first`, `@last` (only messages from now on) or `@<time>` sets it. When the write returns, it
    is on disk in the broker's own `consumerOffset.json`. Anything else is EINVAL (`@store/refusals` says why). On a
    mount that follows or is read-only, a write is EROFS."""
    publish(topic / "0" / "append", b"zero\none\n")
    time.sleep(0.01)
    between = time.time_ns() // 1_000_000
    publish(topic / "0" / "append", b"two\nthree\n")
    group = mount.root / "@store/groups/readers-17"
    (group / topic.name).mkdir(parents=True)
    offset = group / topic.name / "0"
    for written, shown in (("3", 3), ("@first\n", 0), ("@last", 4), (f"@{between}", 2), ("1\n", 1)):
        offset.write_text(written)
        assert offset.read_text() == f"{shown}\n"
        config = json.loads((mount.store / "config/consumerOffset.json").read_text())
        assert config["offsetTable"][f"{topic.name}@readers-17"] == {"0": shown}
    for wrong, reason in (
        ("5", "it ends at 4"),
        ("first", "'first' is no offset"),
        ("@never", "'@never' is no offset"),
    ):
        with offset.open("wb", buffering=0) as file:
            assert refused_with(file.write, wrong.encode()) == errno.EINVAL
        assert reason in (mount.root / "@store/refusals").read_text().splitlines()[-1]
    assert offset.read_text() == "1\n"
    assert mount.status()["groups"]["readers-17"][topic.name]["0"] == {"offset": 1, "lag": 3, "expired": 0}
    with mounted(tmp_path, store=mount.store, config={"mode": "FOLLOW"}) as follower:
        followed = follower.root / "@store/groups/readers-17" / topic.name / "0"
        assert followed.read_text() == "1\n"
        assert refused_with(followed.open, "r+") in (errno.EROFS, errno.EACCES)
        assert refused_with((follower.root / "@store/groups/new").mkdir) == errno.EROFS


def test_consumers_of_a_group_share_its_queues(mount: Mounted, topic: Path) -> None:
    """3.18 `mkdir` makes a group, or a topic in a group. A file made there is the offset of a queue. `flock` of that
    file marks a process as the consumer of that queue; the lock is free when the process is gone. On a writable
    mount the file is private to its owner (0600): a user without write permission can't open it, and so can't lock
    it."""
    groups = mount.root / "@store/groups"
    group = groups / f"sharing-{topic.name}"
    group.mkdir()
    assert refused_with((groups / "no good").mkdir) == errno.EINVAL
    assert refused_with((group / "no-such-topic").mkdir) == errno.ENOENT
    (group / topic.name).mkdir()
    assert refused_with((group / topic.name / "9").touch) == errno.ENOENT
    offset = group / topic.name / "0"
    offset.touch()
    assert (offset.stat().st_mode & 0o777, offset.stat().st_uid) == (0o600, os.getuid())
    program = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print('held', flush=True); "
    program += "time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", program, offset], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert offset.read_text() == ""
    assert subprocess.run(["flock", "-n", offset, "true"], check=False).returncode == 1
    offset.write_text("@last")
    holder.kill()
    holder.wait()
    assert subprocess.run(["flock", "-w", "5", offset, "true"], check=False).returncode == 0
    assert os.listdir(group / topic.name) == ["0"]


def test_what_does_not_change_keeps_its_time(mount: Mounted, topic: Path) -> None:
    """3.19 Reports and offset files carry the time of their last change, as far as a request has noticed it."""
    (mount.root / "@store/groups/timely" / topic.name).mkdir(parents=True)
    offset = mount.root / "@store/groups/timely" / topic.name / "0"
    offset.write_text("@first")
    files = (mount.root / "@store/config.json", offset)
    before = [file.stat().st_mtime_ns for file in files]
    time.sleep(0.02)
    assert [file.stat().st_mtime_ns for file in files] == before
    offset.write_text("@first")
    assert files[0].stat().st_mtime_ns == before[0]
    assert offset.stat().st_mtime_ns > before[1]


PUBLISHED = 12_000
"""Messages of 100 bytes: more than two files of the log."""


def counted(mount: Mounted) -> int:
    """As count(*) over the Parquet files of queue 0."""
    return sum(pq.ParquetFile(path).metadata.num_rows for path in parquet_files(mount))


def parquet_files(mount: Mounted) -> list[Path]:
    return sorted((mount.root / "@parquet" / "topic=orders" / "queue=0").iterdir())


def counted_once(folder: Path) -> Path:
    """A store that a mount has counted."""
    with mounted(folder) as mount:
        publish(mount.topic("orders") / "0" / "append", b"".join(b"%0100d\n" % number for number in range(PUBLISHED)))
        (mount.root / "@store" / "control").write_text('{"flush": true}')
        assert counted(mount) == PUBLISHED
    return mount.store


def test_what_was_found_good_is_counted_without_reading_it(tmp_path: Path) -> None:
    """3.20 fsstore keeps, inside the store, what the footer of a Parquet file says about messages that were read and
    found intact. A later mount counts them without reading them if their log file has the same size and time. A
    read-only mount keeps nothing."""
    store = counted_once(tmp_path)
    ranges = store / "fsstore" / "ranges"
    for mode in ("WRITE", "READ_ONLY"):
        with mounted(tmp_path, store=store, config={"mode": mode}) as mount:
            assert counted(mount) == PUBLISHED
            assert (len(parquet_files(mount)), mount.status()["parquet"]["rendered_files"]) == (3, 1)
    for log in (store / "commitlog").iterdir():
        os.utime(log)
    before = {path: path.read_bytes() for path in ranges.iterdir()}
    with mounted(tmp_path, store=store, config={"mode": "READ_ONLY"}) as mount:
        assert counted(mount) == PUBLISHED
        assert mount.status()["parquet"]["rendered_files"] == 3
    assert {path: path.read_bytes() for path in ranges.iterdir()} == before


def test_later_damage_is_counted_until_it_is_read(tmp_path: Path) -> None:
    """3.21 Damage that comes later and changes neither size nor time makes that count too large until the message is
    read in a Parquet file. That read is EIO, and the daemon's log names its physical offset; it never returns a
    wrong row. The next listing counts right."""
    store = counted_once(tmp_path)
    with MessageStore.open(store) as opened:
        physical_offset = opened.get("orders", 0, 7).physical_offset
    log = min((store / "commitlog").iterdir())
    before = log.stat()
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b"%0100d" % 7))
        file.write(b"X")
    os.utime(log, ns=(0, before.st_mtime_ns))
    with mounted(tmp_path, store=store) as mount:
        assert counted(mount) == PUBLISHED
        first = parquet_files(mount)[0]
        with first.open("rb") as opened_before:
            assert refused_with(lambda: pq.read_table(first)) == errno.EIO
            assert f"physical offset {physical_offset}: message 7 of orders/0" in mount.log.read_text()
            assert counted(mount) == PUBLISHED - 1
            assert pq.read_table(first).column("queue_offset").to_pylist()[:8] == [0, 1, 2, 3, 4, 5, 6, 8]
            assert refused_with(lambda: pq.read_table(pa.PythonFile(opened_before))) == errno.EIO
    with mounted(tmp_path, store=store) as mount:
        assert counted(mount) == PUBLISHED - 1


def test_what_a_mount_has_written_is_ready_to_be_counted(tmp_path: Path) -> None:
    """3.22 For log files that a mount has filled itself, it collects these counts in advance, so the first count
    need not read them."""
    with mounted(tmp_path) as mount:
        publish(mount.topic("orders") / "0" / "append", b"".join(b"%0100d\n" % number for number in range(PUBLISHED)))
        (mount.root / "@store" / "control").write_text('{"flush": true}')
        ranges = mount.store / "fsstore" / "ranges"
        until("two files are kept", lambda: ranges.exists() and len(list(ranges.iterdir())) == 2)
        rendered = mount.status()["parquet"]["rendered_files"]
        assert counted(mount) == PUBLISHED
        assert mount.status()["parquet"]["rendered_files"] == rendered + 1
