"""The allocator of a daemon: one memory for all its threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALLOCATE = """
import ctypes, sys, threading
from mountctl.allocator import share_one_arena
if sys.argv[2] == "shared":
    share_one_arena()
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


def test_threads_share_one_arena(tmp_path: Path) -> None:
    assert arenas(tmp_path, "shared") == 1 < arenas(tmp_path, "apart")
