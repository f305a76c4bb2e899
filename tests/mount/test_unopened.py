"""A read-only mount, where the kernel opens files without asking."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig
from fsstore.core import MOST_UNOPENED
from fsstore.interface import SMALL_BODY_BYTES
from tests.mount.harness import PATIENCE_S, SMALL_SIZES, Mounted, mounted

LARGE = [b"%d " % number * SMALL_BODY_BYTES for number in range(MOST_UNOPENED + 20)]
SMALL = [b"small %d" % number for number in range(50)]


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """`t/0` has small messages, `t/1` large ones, more than stay open."""
    folder = tmp_path_factory.mktemp("unopened")
    with MessageStore.open(folder / "store", StoreConfig(sizes=FileSizes(**SMALL_SIZES)), create=True) as store:
        store.create_topic("t", 2)
        for queue, bodies in enumerate((SMALL, LARGE)):
            for number, body in enumerate(bodies):
                store.put(Message("t", body, [f"key-{queue}-{number}"]), queue)
    with mounted(folder, store=folder / "store", config={"mode": "READ_ONLY"}) as made:
        yield made


@contextmanager
def stopped(mount: Mounted) -> Iterator[None]:
    """Meanwhile the daemon answers nothing, for a minute at most."""
    awake = threading.Timer(PATIENCE_S, os.kill, (mount.daemon.pid, signal.SIGCONT))
    os.kill(mount.daemon.pid, signal.SIGSTOP)
    awake.start()
    try:
        yield
    finally:
        awake.cancel()
        os.kill(mount.daemon.pid, signal.SIGCONT)


def test_what_was_read_is_opened_and_read_again_without_the_daemon(mount: Mounted) -> None:
    path = mount.root / "t/0" / f"{7:020d}"

    def read() -> bytes:
        descriptor = os.open(path, os.O_RDONLY)  # Python's own open asks whether it is a terminal
        try:
            return os.read(descriptor, 100)
        finally:
            os.close(descriptor)

    for _ in range(2):  # the first time the kernel learns which requests there are
        assert read() == SMALL[7]
    with stopped(mount), ThreadPoolExecutor(1) as thread:
        assert thread.submit(read).result(PATIENCE_S / 2) == SMALL[7]


def test_every_file_reads_as_it_is(mount: Mounted) -> None:
    queues = [mount.root / "t" / str(queue) for queue in range(2)]
    for _ in range(2):
        for queue, bodies in zip(queues, (SMALL, LARGE), strict=True):
            for number, body in enumerate(bodies):
                path = queue / f"{number:020d}"
                os.posix_fadvise(descriptor := os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
                try:
                    assert os.read(descriptor, len(body) + 1) == body
                finally:
                    os.close(descriptor)
    assert (mount.root / "t/0.log").read_bytes() == b"".join(body + b"\n" for body in SMALL)
    assert (mount.root / "t/keys/key-1-3").read_bytes() == LARGE[3]
    (ranged,) = (mount.root / "@parquet/topic=t/queue=0").glob("*.parquet")
    assert ranged.read_bytes()[:4] == ranged.read_bytes()[-4:] == b"PAR1"


def test_no_file_is_shown_that_grows(mount: Mounted) -> None:
    assert "accesslog" not in os.listdir(mount.root / "@store")


def test_large_messages_read_by_many_at_once_are_whole(mount: Mounted) -> None:
    def read(number: int) -> bool:
        path = mount.root / "t/1" / f"{number:020d}"
        return path.read_bytes() == LARGE[number]

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(read, list(range(len(LARGE))) * 3))


def test_a_report_is_of_the_moment_when_it_is_opened(mount: Mounted) -> None:
    report = mount.root / "@store/status.json"
    with report.open("rb") as held:
        before = held.read(20)
        first = json.loads(report.read_bytes())["stats"]["read_bytes"]
        (mount.root / "t/1" / f"{5:020d}").read_bytes()
        list((mount.root / "t/0").iterdir())
        _ = (mount.root / "t/0" / f"{3:020d}").stat()
        with (mount.root / "t/1.log").open("rb") as log:
            log.read(100_000)
        second = json.loads(report.read_bytes())["stats"]["read_bytes"]
        assert second > first
        whole = before + held.read()
        assert json.loads(whole)["stats"]["read_bytes"] <= first
        assert len(whole) == os.fstat(held.fileno()).st_size


def test_consumer_offsets_are_those_of_the_moment(mount: Mounted) -> None:
    offset = mount.root / "@store/groups/billing/t/0"
    config = mount.store / "config/consumerOffset.json"
    for number in (3, 14, 5):
        config.write_text(json.dumps({"offsetTable": {"t@billing": {"0": number}}}))
        assert offset.read_bytes() == b"%d\n" % number
        assert offset.stat().st_size == len(b"%d\n" % number)


@pytest.mark.parametrize("path", ["t/0/append", "t/append", f"t/0/{7:020d}", "@store/status.json", "t/0.log"])
def test_nothing_can_be_written(mount: Mounted, path: str) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        os.open(mount.root / path, os.O_WRONLY)
