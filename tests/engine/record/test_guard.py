"""A page of a mapped file that can't be read is zeros, noted, whichever library touches it; other signals go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import numpy as np
import pytest

from engine import TruncatedFileError
from engine.files.mapped_file import Access, MappedFile
from engine.record.kernel.files import FileMap, read_through, require_read
from engine.record.kernel.guard import reads_refused

PAGE = 4096
CONTENT = b"".join(bytes([65 + page]) * PAGE for page in range(8))


def mapped(path: Path, kept: int, *, writable: bool = False) -> memoryview:
    """A map of CONTENT, of whose pages the file has only the first `kept` now."""
    path.write_bytes(CONTENT)
    with path.open("r+b") as file:
        view = memoryview(FileMap(file.fileno(), len(CONTENT), writable=writable, private=False, path=path))
        file.truncate(kept * PAGE)
    return view


def test_a_page_that_is_lost_is_zeros_and_noted(tmp_path: Path) -> None:
    view, before = mapped(tmp_path / "file", 3), reads_refused()
    require_read(view)  # nobody has looked yet
    assert bytes(view) == CONTENT[: 3 * PAGE] + bytes(5 * PAGE)
    assert reads_refused() == before + 5
    assert bytes(view[3 * PAGE :]) == bytes(5 * PAGE)  # not met again
    assert reads_refused() == before + 5
    require_read(view, 0, 3 * PAGE)
    for position, length in ((0, 3 * PAGE + 1), (4 * PAGE, 1), (8 * PAGE - 1, 1)):
        with pytest.raises(TruncatedFileError) as error:
            require_read(view, position, length)
        assert (error.value.path, error.value.found_bytes) == (tmp_path / "file", 3 * PAGE)


def test_numpy_and_lz4_live_on(tmp_path: Path) -> None:
    view = mapped(tmp_path / "file", 1)
    assert int(np.frombuffer(view, np.uint8).sum()) == 65 * PAGE
    packed = lz4.frame.compress(mapped(tmp_path / "other", 1))
    assert lz4.frame.decompress(packed) == CONTENT[:PAGE] + bytes(7 * PAGE)


def test_who_reads_through_is_told(tmp_path: Path) -> None:
    view = mapped(tmp_path / "file", 7)
    read_through(view[: 7 * PAGE])
    with pytest.raises(TruncatedFileError):
        read_through(view)


def test_a_store_to_a_lost_page_is_noted(tmp_path: Path) -> None:
    view = mapped(tmp_path / "file", 1, writable=True)
    view[PAGE + 1 : PAGE + 3] = b"no"
    with pytest.raises(TruncatedFileError):
        require_read(view, PAGE + 1, 2)
    view[0:2] = b"ok"
    require_read(view, 0, 2)
    assert (tmp_path / "file").read_bytes() == b"ok" + CONTENT[2:PAGE]


def test_threads_meet_one_page(tmp_path: Path) -> None:
    for _ in range(20):
        view = mapped(tmp_path / "file", 0)
        together = threading.Barrier(4)
        found: list[int] = []

        def look(view: memoryview = view, together: threading.Barrier = together, found: list[int] = found) -> None:
            data = np.frombuffer(view, np.uint8)
            together.wait()
            found.append(int(data.sum()))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [0] * 4
        with pytest.raises(TruncatedFileError):
            require_read(view, 7 * PAGE, PAGE)


def test_a_map_that_goes_takes_its_notes_with_it(tmp_path: Path) -> None:
    for number in range(100):
        view = mapped(tmp_path / str(number), 0)
        with pytest.raises(TruncatedFileError):
            read_through(view)
        del view
    path = tmp_path / "whole"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        kept = [memoryview(FileMap(file.fileno(), len(CONTENT), writable=False, private=False)) for _ in range(100)]
    for one in kept:
        read_through(one)


def test_a_file_is_mapped_anew_before_its_next_use(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    file = MappedFile(path, len(CONTENT), Access.WRITE)
    file.set_end(6 * PAGE)
    old = file.writable()
    os.truncate(path, 4 * PAGE)
    with pytest.raises(TruncatedFileError):
        read_through(old)
    path.write_bytes(CONTENT)  # as a disk that reads again
    assert bytes(file.view(5 * PAGE, PAGE)) == CONTENT[5 * PAGE : 6 * PAGE]
    assert file.append(b"new") == 6 * PAGE
    assert path.read_bytes()[6 * PAGE : 6 * PAGE + 4] == b"newG"
    assert bytes(old[5 * PAGE : 5 * PAGE + 1]) == b"\0"  # who holds the old one is not fooled: it is noted
    file.close()


@pytest.mark.parametrize("write", [MappedFile.append, MappedFile.append_head_last])
def test_nothing_counts_as_written_to_a_page_that_is_refused(
    tmp_path: Path, write: Callable[[MappedFile, bytes], int]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    file = MappedFile(path, len(CONTENT), Access.WRITE)
    file.set_end(2 * PAGE - 100)
    file.writable()
    os.truncate(path, 2 * PAGE)
    with pytest.raises(TruncatedFileError):
        write(file, b"x" * 300)
    assert (file.wrote, file.readable) == (2 * PAGE - 100,) * 2
    assert write(file, b"x" * 300) == 2 * PAGE - 100  # the file has got its space back
    assert path.read_bytes()[2 * PAGE - 100 :].rstrip(b"\0") == b"x" * 300
    file.close()


@pytest.mark.parametrize("enabled", ["before", "after", "never"])
def test_a_signal_that_is_not_ours_kills_with_a_word(tmp_path: Path, enabled: str) -> None:
    program = f"""
import faulthandler, mmap, os, sys
from tests.engine.record.test_guard import mapped
from pathlib import Path
path = Path({str(tmp_path)!r})
{"faulthandler.enable()" if enabled == "before" else ""}
assert bytes(mapped(path / "ours", 0)) == bytes(8 * 4096)
{"faulthandler.enable()" if enabled == "after" else ""}
assert bytes(mapped(path / "again", 0)) == bytes(8 * 4096)
(path / "theirs").write_bytes(b"x" * 4096)
with open(path / "theirs", "r+b") as file:
    foreign = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
print("before", flush=True)
foreign[0]
print("never")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("before\n", -signal.SIGBUS), done.stderr
    assert ("Fatal Python error: Bus error" in done.stderr) == (enabled != "never")


def test_a_signal_that_somebody_sends_ends_the_process(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tests.engine.record.test_guard import mapped
mapped(Path({str(tmp_path)!r}) / "file", 8)
os.kill(os.getpid(), signal.SIGBUS)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == -signal.SIGBUS
