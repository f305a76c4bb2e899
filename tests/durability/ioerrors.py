"""A disk that fails: waiting writers get the error, no later message counts as durable, and no durable one is lost.

    python -m tests.durability.ioerrors [--calls 400]

Injected: a fixed load runs repeatedly, and each time another of its calls to the disk fails (syncs of every kind of
file, syncs of directories, allocations), once or from then on. Then the process continues, closes the store, and the
next one opens it, both unchanged and as a kernel would leave it that dropped the unwritten pages.

Real: the store is on an ext4 whose image outgrows the tmpfs under it, so that the kernel itself fails to write pages
back. This part needs root and loop devices; without them the output says that it was left out.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine import (
    FileSizes,
    FlushFailedError,
    FlushPolicy,
    Message,
    MessageStore,
    ReadOnlyStoreError,
    StoreConfig,
    StoreError,
    check_store,
)
from engine.files.disk import Disk
from tests.durability.bodies import body_of, identify
from tests.durability.figures import keep
from tests.durability.publishers import write_all
from tests.mount.harness import PATIENCE_S, mounted

SIZES = FileSizes(commit_log_bytes=16_384, consume_queue_entries=32, index_slots=17, index_entries=48)
QUIET = FlushPolicy(
    interval_ms=3_600_000,
    thorough_interval_ms=3_600_000,
    consume_queue_interval_ms=3_600_000,
    consume_queue_thorough_interval_ms=3_600_000,
)
STEPS = 24
QUEUES = 2
WAITERS = 3


class FailingDisk(Disk):
    """Call number `fail_at` fails with EIO; with `lasting`, all later ones too. Thread safety: any thread."""

    def __init__(self, fail_at: int, *, lasting: bool) -> None:
        self._fail_at = fail_at
        self._lasting = lasting
        self._lock = threading.Lock()
        self.calls = 0
        self.failed: list[str] = []
        self.log_failed = False

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        """As the real one, or EIO."""
        self._call("allocate", path)
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        """As the real one, or EIO."""
        self._call("sync", path)

    def sync_directory(self, path: Path) -> None:
        """As the real one, or EIO."""
        self._call("sync of directory", path)

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        """As the real one, or EIO."""
        self._call("sync of the filesystem", path)
        return True

    def _call(self, what: str, path: Path) -> None:
        with self._lock:
            self.calls += 1
            if self.calls != self._fail_at and not (self._lasting and self.calls > self._fail_at):
                return
            kind = next((part for part in ("commitlog", "consumequeue", "index") if part in path.parts), path.name)
            self.failed.append(f"{what}: {kind}")
            self.log_failed |= kind == "commitlog" and what == "sync"
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


@dataclass
class Case:
    """One failing call, and its findings."""

    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    durable: list[tuple[int, int]] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def expect(self, true: bool, text: str) -> None:
        """Note `text` when something is not as it should be."""
        if not true:
            self.wrong.append(text)


def config_with(disk: Disk) -> StoreConfig:
    """Flushes only when asked, so that every run makes the same calls."""
    return StoreConfig(sizes=SIZES, flush=QUIET, disk=disk, preallocate=False)


def run_case(folder: Path, disk: FailingDisk) -> Case:
    """Load a new store on `disk`, let it fail, and check the files that remain."""
    case = Case()
    store_path = folder / "store"
    durable_end = 0
    try:
        store = MessageStore.open(store_path, config_with(disk), create=True)
    except (StoreError, OSError) as error:
        case.errors[f"open: {type(error).__name__}"] += 1
    else:
        load(store, case)
        look_when_failed(store, disk, case)
        durable_end = store.durable_end
        try:
            store.close()
        except (StoreError, OSError) as error:
            case.errors[f"close: {type(error).__name__}"] += 1
    dropped = folder / "dropped"
    if store_path.exists():
        shutil.copytree(store_path, dropped)
        drop_pages(dropped, durable_end)
    look_again(store_path, case, expected=case.acknowledged, what="as it was left")
    if disk.log_failed:
        look_again(dropped, case, expected=case.durable, what="without the pages that were not written")
    return case


def load(store: MessageStore, case: Case) -> None:
    """Publish from several threads, and sometimes wait for the disk."""
    number = 0
    for step in range(STEPS):
        count = 1 + step % 3
        sent = [(0, number + i) for i in range(count)]
        messages = [Message("t", body_of(0, one, 200 + one * 37 % 900), keys=[f"K{one}"]) for _, one in sent]
        number += count
        try:
            end = store.put_batch(messages, step % QUEUES).physical_end
        except (StoreError, OSError) as error:
            case.errors[f"put: {type(error).__name__}"] += 1
            case.refused += sent
            continue
        case.acknowledged += sent
        if step % 4 == 3 and wait_together(store, end, case):
            case.durable = list(case.acknowledged)
        if step % 8 == 7:
            with suppress(FlushFailedError):
                store.flush()


def wait_together(store: MessageStore, end: int, case: Case) -> bool:
    """Several threads wait for the same bytes and get the same result; returns whether the bytes are durable."""
    heard: list[str] = []

    def wait() -> None:
        try:
            store.wait_durable(end)
            heard.append("durable")
        except FlushFailedError:
            heard.append("failed")

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(WAITERS)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    case.expect(len(heard) == WAITERS, "a waiter never heard anything")
    case.expect(len(set(heard)) <= 1, f"waiters heard different things: {heard}")
    return heard == ["durable"] * WAITERS


def look_when_failed(store: MessageStore, disk: FailingDisk, case: Case) -> None:
    """A failed sync of the log is final. After any failure acknowledged messages stay readable."""
    found = read_all(store)
    case.expect(sorted(found) == sorted(case.acknowledged), "what was acknowledged does not read so any more")
    if not disk.log_failed:
        return
    case.expect("failed" in (store.read_only_reason or ""), "no reason is given")
    case.expect(store.flush_failure is not None, "the failure is not remembered")
    try:
        store.put(Message("t", b"late"), 0)
        case.wrong.append("it still takes messages")
    except ReadOnlyStoreError:
        pass
    if store.durable_end < store.physical_end:
        try:
            store.wait_durable(store.physical_end)
            case.wrong.append("a later wait says durable")
        except FlushFailedError:
            pass


def read_all(store: MessageStore) -> list[tuple[int, int]]:
    """Every message of the load, checked."""
    if not store.has_queue("t", 0):
        return []
    return [identify(bytes(message.body)) for queue in store.queues("t") for message in store.read("t", queue, 0)]


def drop_pages(store: Path, durable_end: int) -> None:
    """Zeros instead of everything in the log that was not durable."""
    for path in (store / "commitlog").glob("*"):
        start = max(durable_end - int(path.name), 0)
        with path.open("r+b") as log:
            size = log.seek(0, os.SEEK_END)
            if start < size:
                log.seek(start)
                log.write(bytes(size - start))


def look_again(path: Path, case: Case, *, expected: list[tuple[int, int]], what: str) -> None:
    """Open with a disk that works: everything expected is there, nothing twice, nothing that was refused."""
    with MessageStore.open(path, config_with(Disk()), create=True) as store:
        found = read_all(store)
        case.expect(not set(expected) - set(found), f"{what}: lost {sorted(set(expected) - set(found))}")
        case.expect(len(set(found)) == len(found), f"{what}: messages are there twice")
        case.expect(set(found) <= set(case.acknowledged), f"{what}: refused messages are there")
        case.wrong += [f"{what}: {problem}" for problem in store.check()]
    case.wrong += [f"{what}, closed: {problem}" for problem in check_store(path)]


@dataclass
class Sweep:
    """Figures of all cases."""

    cases: int = 0
    failed_calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    durable: int = 0
    wrong: list[str] = field(default_factory=list)


def sweep(folder: Path, most: int, step: int = 1) -> Sweep:
    """Fail each call (each `step`-th) of the load, once and for good, up to call `most`."""
    found = Sweep()
    for lasting in (False, True):
        for fail_at in range(1, most + 1, step):
            disk = FailingDisk(fail_at, lasting=lasting)
            place = folder / "case"
            place.mkdir()
            case = run_case(place, disk)
            shutil.rmtree(place)
            if not disk.failed:
                break
            found.cases += 1
            found.failed_calls[disk.failed[0]] += 1
            found.errors += case.errors
            found.durable += len(case.durable)
            how = "from then on" if lasting else "once"
            found.wrong += [f"call {fail_at} ({disk.failed[0]}) failed {how}: {text}" for text in case.wrong]
    return found


# the kernel's own errors


@contextmanager
def failing_disk(folder: Path) -> Iterator[Path | None]:
    """An ext4 whose image can't grow as it wants; None where this machine has no loop devices for us."""
    small, mountpoint = folder / "small", folder / "disk"
    small.mkdir()
    mountpoint.mkdir()
    image = small / "image"
    commands = [
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(small)],
        ["truncate", "-s", "256m", str(image)],
        ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", str(image)],
        ["mount", "-o", "loop", str(image), str(mountpoint)],
    ]
    try:
        yield mountpoint if all(run(command) for command in commands) else None
    finally:
        for place in (mountpoint, small):
            if not run(["umount", str(place)]):
                run(["umount", "-l", str(place)])


def run(command: list[str]) -> bool:
    """Whether a command could be run and succeeded."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def real_failure(folder: Path) -> dict[str, object]:
    """Write through a mount until the kernel can't write back; check the results of the writers and the store."""
    with failing_disk(folder) as disk:
        if disk is None:
            return {"real": "not possible here: it needs root and loop devices"}
        sizes = {"commit_log_bytes": 1 << 20, "consume_queue_entries": 256, "index_slots": 500, "index_entries": 2_000}
        with mounted(folder, store=disk / "store", config={"sizes": sizes}) as mount:
            topic = mount.topic("orders")
            fd = os.open(topic / "0" / "append", os.O_WRONLY | os.O_APPEND)
            durable, number, said = 0, 0, 0
            while not said and number < 5_000:
                number += 1
                try:
                    write_all(fd, body_of(0, number, 60_000) + b"\n")
                    os.fsync(fd)
                    durable = number
                except OSError as error:
                    said = error.errno or -1
            late = failure_of(lambda: write_all(fd, b"late\n"))
            at_close = failure_of(lambda: os.close(fd))
            readable = len((topic / "0.log").read_bytes().splitlines())
            reason = mount.status()["read_only_reason"]
            mount.kill()
    return {
        "real": "ext4 whose image could not grow",
        "durable_before": durable,
        "fsync_said": errno.errorcode.get(said, said),
        "later_write_said": errno.errorcode.get(late, late),
        "close_said": errno.errorcode.get(at_close, at_close),
        "readable_after": readable,
        "status_reason": reason,
    }


def failure_of(call: Callable[[], object]) -> int:
    """The errno of a call, 0 when it succeeds."""
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400, help="calls of the load that fail in turn, at most")
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ioerrors-") as folder:
        found = sweep(Path(folder), chosen.calls)
        real = real_failure(Path(folder))
    figures = {
        "cases": found.cases,
        "first_failed_calls": dict(found.failed_calls),
        "errors_raised": dict(found.errors),
        "durable_messages_checked": found.durable,
        "findings": found.wrong,
        **real,
        "seconds": round(time.monotonic() - began),
    }
    keep("ioerrors", figures)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
