"""Group commit, the flush intervals, failures that stay, derived data and its checkpoint."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.derived.checkpoint import CheckpointFile, read_checkpoint
from engine.derived.marks import RecoveryPoint
from engine.errors import FlushFailedError, NoDescriptorError, StoreClosedError, StoreError
from engine.files.disk import Disk
from engine.files.file_queue import BufferPool, FileQueue, FileSource
from engine.files.mapped_file import Access
from engine.log.commit_log import CommitLog
from engine.settings.config import FlushPolicy
from engine.write.flush import Committer, DerivedFlusher, LogFlusher

SIZE = 64 << 10
RARELY = FlushPolicy(interval_ms=600_000, thorough_interval_ms=600_000)


class Record:
    records = 1
    names_magic = False

    def __init__(self, size: int = 100) -> None:
        self.buffer = bytearray(size)

    def place(self, queue_offset: int, physical_offset: int, store_time_ms: int, /) -> None:
        pass


class GatedDisk(Disk):
    """Syncs of files wait at a gate, are counted, and fail when told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Semaphore(0)
        self.syncs = 0
        self.error: OSError | None = None

    def sync(self, descriptor: int, path: Path) -> None:
        self.syncs += 1
        self.reached.release()
        assert self.gate.wait(60)
        if self.error:
            raise self.error


class Rig:
    """A commit log with a flusher."""

    def __init__(self, directory: Path, policy: FlushPolicy = RARELY, buffers: int = 0) -> None:
        self.disk = GatedDisk()
        self.failures: list[FlushFailedError] = []
        pool = BufferPool(buffers, SIZE) if buffers else None
        folder = directory / "commitlog"
        source = FileSource(folder, SIZE, Access.WRITE, self.disk, in_steps=True, pool=pool)
        files = FileQueue(folder, SIZE, Access.WRITE, disk=self.disk, source=source)
        self.now_ms = 1_000
        self.log = CommitLog(files, lambda: self.now_ms)
        committer = Committer(self.log, policy, committed=lambda: None, failed=self.failures.append)
        self.flusher = LogFlusher(self.log, policy, failed=self.failures.append, commit=committer.commit)

    def append(self, size: int = 100) -> int:
        return self.log.append(Record(size), 0)[0] + size

    def __enter__(self) -> "Rig":
        self.flusher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.disk.gate.set()
        self.flusher.close()
        self.log.files.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def test_wait_durable_returns_when_the_bytes_were_synced(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        end = rig.append()
        assert rig.flusher.durable_end == 0
        rig.flusher.wait_durable(end)
        assert (rig.flusher.durable_end, rig.disk.syncs) == (end, 1)
        rig.flusher.wait_durable(end)
        assert rig.disk.syncs == 1, "what is on disk needs no sync"


def test_all_who_wait_while_a_sync_runs_share_the_next_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.disk.gate.clear()
        first = threading.Thread(target=rig.flusher.wait_durable, args=(rig.append(),))
        first.start()
        assert rig.disk.reached.acquire(timeout=60)
        waiters = [threading.Thread(target=rig.flusher.wait_durable, args=(rig.append(),)) for _ in range(16)]
        for waiter in waiters:
            waiter.start()
        eventually(lambda: len(rig.flusher._waiting) == 17)
        rig.disk.gate.set()
        for waiter in (first, *waiters):
            waiter.join(60)
        assert rig.disk.syncs == 2


def test_a_caller_that_syncs_waits_for_no_other_thread_and_answers_those_who_wait(tmp_path: Path) -> None:
    rig = Rig(tmp_path)  # its thread never starts
    answers: list[object] = []
    end = rig.append()
    rig.flusher.request_durable(end, answers.append)
    rig.flusher.sync()
    assert (rig.flusher.durable_end, rig.disk.syncs, answers) == (end, 1, [None])
    rig.flusher.sync()
    assert rig.disk.syncs == 1, "what is on disk needs no sync"
    rig.disk.error = OSError(errno.EIO, "Input/output error")
    rig.flusher.request_durable(rig.append(), answers.append)
    with pytest.raises(FlushFailedError):
        rig.flusher.sync()
    assert answers[1:] == rig.failures
    with pytest.raises(FlushFailedError):
        rig.flusher.sync()
    assert rig.disk.syncs == 2, "the disk is not asked again"


def test_a_callback_is_called_at_once_when_nothing_is_left_to_do(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        end = rig.append()
        rig.flusher.flush()
        answers: list[StoreError | None] = []
        rig.flusher.request_durable(end, answers.append)
        assert answers == [None]


def test_appends_and_reads_go_on_while_a_sync_runs(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.disk.gate.clear()
        rig.flusher.request_durable(rig.append(), lambda _: None)
        assert rig.disk.reached.acquire(timeout=60)
        end = rig.append()
        assert len(rig.log.view(0, end)) == end
        for _ in range(3):
            rig.append(SIZE // 2)
        assert len(rig.log.files.files) > 1


def test_bytes_written_while_a_sync_runs_are_not_called_durable_by_it(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.disk.gate.clear()
        end = rig.append()
        rig.flusher.request_durable(end, lambda _: None)
        assert rig.disk.reached.acquire(timeout=60)
        rig.append()
        rig.disk.gate.set()
        eventually(lambda: rig.flusher.durable_end > 0)
        assert rig.flusher.durable_end == end


def test_a_failed_sync_is_told_to_every_waiter_and_everyone_later(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        safe = rig.append()
        rig.flusher.flush()
        rig.disk.gate.clear()
        answers: list[StoreError | None] = []
        rig.flusher.request_durable(rig.append(), answers.append)
        for _ in range(2):
            assert rig.disk.reached.acquire(timeout=60)
        for _ in range(5):
            rig.flusher.request_durable(rig.append(), answers.append)
        rig.disk.error = OSError(errno.EIO, "Input/output error")
        rig.disk.gate.set()
        eventually(lambda: len(answers) == 6)
        assert len({id(answer) for answer in answers}) == 1
        assert answers == rig.failures * 6
        assert rig.failures[0].reason == "Input/output error"
        rig.disk.error = None
        with pytest.raises(FlushFailedError):
            rig.flusher.flush()
        assert rig.flusher.durable_end == safe
        rig.flusher.wait_durable(safe)
        assert rig.disk.syncs == 2, "the disk is not asked again"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_flush_thread_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(tmp_path) as rig:
        monkeypatch.setattr(rig.disk, "sync", lambda *_: 1 // 0)
        with pytest.raises(FlushFailedError):
            rig.flusher.wait_durable(rig.append())
        assert len(rig.failures) == 1


def test_the_store_hears_of_a_failure_before_those_who_wait(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    told: list[bool] = []
    rig.disk.error = OSError(errno.EIO, "Input/output error")
    with rig:
        rig.flusher.request_durable(rig.append(), lambda _: told.append(bool(rig.failures)))
        eventually(lambda: told == [True])


def test_without_anybody_waiting_enough_pages_are_flushed_at_the_interval(tmp_path: Path) -> None:
    policy = FlushPolicy(interval_ms=1, least_pages=4, thorough_interval_ms=600_000)
    with Rig(tmp_path, policy) as rig:
        eventually(lambda: rig.flusher._next_thorough > 0)  # the first round is a thorough one
        end = rig.append(4 * 4096)
        eventually(lambda: rig.flusher.durable_end == end)


def test_fewer_pages_wait_for_the_thorough_interval(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlushPolicy(interval_ms=1, least_pages=4, thorough_interval_ms=600_000))
    rig.flusher._round()  # the first one is thorough
    rig.append(4096)
    rig.flusher._round()
    assert rig.flusher.durable_end == 0
    end = rig.append(4 * 4096)
    rig.flusher._round()
    assert rig.flusher.durable_end == end
    rig.log.files.close()


def test_a_missing_descriptor_is_waited_for_but_not_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finds_none(files: FileQueue, *_: object) -> int:
        raise NoDescriptorError(files.directory)

    rig = Rig(tmp_path)
    end = rig.append()
    with monkeypatch.context() as patch:
        patch.setattr(FileQueue, "flush", finds_none)
        rig.flusher._flush_once(thorough=True, closing=False)
        assert (rig.flusher.failure, rig.flusher.durable_end) == (None, 0)
        rig.flusher._flush_once(thorough=True, closing=True)
        assert rig.failures == [rig.flusher.failure]
    rig.flusher._flush_once(thorough=True, closing=False)
    assert rig.flusher.durable_end == end
    rig.log.files.close()


def test_the_thorough_interval_brings_every_byte_to_disk(tmp_path: Path) -> None:
    with Rig(tmp_path, FlushPolicy(interval_ms=1, least_pages=4, thorough_interval_ms=5)) as rig:
        end = rig.append(10)
        eventually(lambda: rig.flusher.durable_end == end)
        eventually(lambda: rig.flusher.flushed_time_ms == 1_000)


def test_close_flushes_what_is_left_and_answers_everyone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with rig:
        end = rig.append()
        answers: list[StoreError | None] = []
        rig.flusher.request_durable(end + 10, answers.append)
    assert rig.flusher.durable_end == end
    assert isinstance(answers[0], StoreClosedError)
    with pytest.raises(StoreClosedError):
        rig.flusher.wait_durable(end + 10)
    rig.flusher.wait_durable(end)


def test_flushing_commits_the_write_buffer_first(tmp_path: Path) -> None:
    with Rig(tmp_path, buffers=1) as rig:
        end = rig.append()
        assert rig.log.readable_end == 0
        rig.flusher.wait_durable(end)
        assert (rig.log.readable_end, rig.flusher.durable_end) == (end, end)


def dispatched(physical_end: int, store_time_ms: int) -> RecoveryPoint:
    return RecoveryPoint(physical_end, newest=(0, physical_end, store_time_ms, 0))


class DerivedRig:
    """Derived data whose flushes are written down in one journal."""

    def __init__(self, log: Rig, path: Path, policy: FlushPolicy = RARELY) -> None:
        self.journal: list[str] = []
        self.covered: list[RecoveryPoint] = []
        self.failures: list[FlushFailedError] = []
        self.error: FlushFailedError | None = None
        self.path = path
        self._log = log
        self.flusher = DerivedFlusher(
            log.flusher,
            policy,
            CheckpointFile(path, Disk()),
            snapshot=self._snapshot,
            flush_queues=self._flush_queues,
            flush_index=lambda: self.journal.append("index"),
            covered=self._note_covered,
            failed=self.failures.append,
        )

    def _snapshot(self) -> RecoveryPoint:
        self.journal.append("snapshot")
        return dispatched(self._log.log.wrote_end, self._log.log.last_store_time_ms)

    def _flush_queues(self, least_pages: int) -> None:
        self.journal.append(f"queues {least_pages}, log to {self._log.flusher.durable_end}")
        if self.error:
            raise self.error

    def _note_covered(self, covered: RecoveryPoint) -> None:
        self.journal.append(f"covered, checkpoint {read_checkpoint(self.path).logics_ms}")
        self.covered.append(covered)


def test_derived_data_is_covered_when_log_queues_index_and_checkpoint_are_on_disk(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        derived = DerivedRig(rig, tmp_path / "checkpoint")
        end = rig.append()
        derived.flusher.flush()
        assert derived.journal == ["snapshot", f"queues 0, log to {end}", "index", "covered, checkpoint 1000"]
        assert derived.covered == [dispatched(end, 1_000)]
        checkpoint = read_checkpoint(tmp_path / "checkpoint")
        assert (checkpoint.physic_ms, checkpoint.logics_ms) == (1_000, 1_000)


def test_a_failed_flush_of_derived_data_is_final_and_covers_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        derived = DerivedRig(rig, tmp_path / "checkpoint")
        derived.error = FlushFailedError(tmp_path, "no")
        rig.append()
        for _ in range(2):
            with pytest.raises(FlushFailedError):
                derived.flusher.flush()
        assert derived.failures == [derived.error]
        assert derived.covered == []
        assert not (tmp_path / "checkpoint").exists()


def test_a_failed_log_flush_covers_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        derived = DerivedRig(rig, tmp_path / "checkpoint")
        rig.disk.error = OSError(errno.EIO, "Input/output error")
        rig.append()
        with pytest.raises(FlushFailedError):
            derived.flusher.flush()
        assert derived.journal == ["snapshot"]


def test_derived_data_is_flushed_at_its_intervals(tmp_path: Path) -> None:
    policy = FlushPolicy(consume_queue_interval_ms=1, consume_queue_thorough_interval_ms=20)
    with Rig(tmp_path) as rig:
        derived = DerivedRig(rig, tmp_path / "checkpoint", policy)
        end = rig.append()
        derived.flusher.start()
        eventually(lambda: dispatched(end, 1_000) in derived.covered)
        eventually(lambda: any(line.startswith("queues 2,") for line in derived.journal))
        derived.flusher.close()
