"""The allocator of a daemon: one memory for all its threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALLOCATE = """
import ctypes, sys, threading
from mountctl.process import set_up_allocator
if sys.argv[2] == "shared":
    set_up_allocator()
everybody, kept = threading.Barrier(5), []
def allocate():
    kept.append(bytes(50_000))
    everybody.wait()
threads = [threading.Thread(target=allocate) for _ in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
report = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, report)
libc.fclose(report)
"""


def arenas(folder: Path, how: str) -> int:
    report = folder / how
    subprocess.run([sys.executable, "-c", ALLOCATE, str(report), how], check=True, timeout=60)
    return report.read_text().count("<heap nr=")


def test_threads_set_up_allocator(tmp_path: Path) -> None:
    assert arenas(tmp_path, "shared") == 1 < arenas(tmp_path, "apart")


HOLES = """
import sys
from pathlib import Path
from mountctl.process import set_up_allocator
if sys.argv[1] == "given back":
    set_up_allocator()
del_me = bytearray(30 << 20)
del del_me  # from now on glibc would take as much from the heap
large, kept = [], []
for _ in range(20):
    large.append(bytearray(b"x") * (8 << 20))
    kept.append(bytearray(b"x") * 100_000)
del large
print(int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) >> 10)
"""


def test_what_was_large_leaves_no_holes() -> None:
    def private_mib(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", HOLES, how], check=True, timeout=60, capture_output=True)
        return int(done.stdout)

    assert private_mib("given back") < 40 < private_mib("kept in the heap")


PIECES = """
import sys, time
from pathlib import Path
from mountctl.process import set_up_allocator, start_trimming
def private_mib():
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) >> 10
set_up_allocator()
if sys.argv[1] == "given back":
    start_trimming()
for turn in range(2):
    pieces = [bytearray(b"x") * 65_536 for _ in range(4096)]
    last = pieces[::64]
    del pieces
    until = time.monotonic() + (30 if sys.argv[1] == "given back" else 3)
    while private_mib() > 100 and time.monotonic() < until:
        time.sleep(0.1)
    print(private_mib())
"""


def test_pieces_that_are_freed_leave_no_holes() -> None:
    started = {
        how: subprocess.Popen([sys.executable, "-c", PIECES, how], stdout=subprocess.PIPE)
        for how in ("given back", "kept in the heap")
    }
    private_mib = {}
    for how, process in started.items():
        said, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        private_mib[how] = [int(line) for line in said.split()]
    assert max(private_mib["given back"]) <= 100 < min(private_mib["kept in the heap"])


TRIMS = """
import os, resource, threading, time
from mountctl import process
process._TRIM_INTERVAL_SECONDS = 0.01
process.start_trimming()
(trimming,) = (thread for thread in threading.enumerate() if thread.name == "allocator-trim")
asked, measure = threading.Semaphore(0), process._unused_bytes
process._unused_bytes = lambda *arguments: (asked.release(), measure(*arguments))[1]
asked.acquire()
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
for _ in range(5):
    asked.acquire()
print(trimming.is_alive(), flush=True)
os._exit(0)
"""


def test_memory_is_trimmed_also_without_a_descriptor_left() -> None:
    done = subprocess.run([sys.executable, "-c", TRIMS], check=True, timeout=60, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
