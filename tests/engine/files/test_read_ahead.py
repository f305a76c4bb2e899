"""Reading ahead: one thread for any requests, and no harm without data."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.files import read_ahead
from engine.files.mapped_file import Access, MappedFile
from engine.files.read_ahead import MOST_WAITING, ReadAhead


def test_all_is_done_by_one_thread_and_what_is_too_much_is_dropped() -> None:
    ahead, gate, done, began = ReadAhead(), threading.Event(), threading.Semaphore(0), threading.Event()
    by: list[int] = []

    def work() -> None:
        began.set()
        assert gate.wait(60)
        by.append(threading.get_ident())
        done.release()

    ahead.ask(work)
    assert began.wait(60)
    threads = threading.active_count()
    for _ in range(10 * MOST_WAITING):
        ahead.ask(work)
    assert threading.active_count() <= threads
    gate.set()
    for _ in range(1 + MOST_WAITING):
        assert done.acquire(timeout=60)
    assert len(by) == 1 + MOST_WAITING
    assert len(set(by)) == 1


def test_what_fails_harms_nobody() -> None:
    ahead, done = ReadAhead(), threading.Event()

    def fail() -> None:
        raise ValueError("a bug")

    ahead.ask(fail)
    ahead.ask(done.set)
    assert done.wait(60)


def test_an_idle_thread_ends_and_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "IDLE_SECONDS", 0.01)
    ahead, threads = ReadAhead(), []
    for _ in range(2):
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            threads.append(threading.current_thread())
            done.set()

        ahead.ask(work)
        assert done.wait(60)
        threads[-1].join(60)
        assert not threads[-1].is_alive()


def test_a_process_that_may_start_no_thread_reads_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ahead, done = ReadAhead(), threading.Event()
    monkeypatch.setattr("engine.files.mapped_file.READ_AHEAD", ahead)
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    file = MappedFile(path, 1 << 20, Access.READ)
    monkeypatch.setattr(MappedFile, "_unread", lambda file, position, length: [(file._map().map, position, length)])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2 * MOST_WAITING):
            file.read_large(0, 1 << 20)
        assert bytes(file.view(0, 4)) == b"xxxx"
    ahead.ask(done.set)
    assert done.wait(60), "what could not be done does not fill the queue"
    file.close()
