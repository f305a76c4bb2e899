"""Promises 7.*: many at once (docs/semantics.md)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig
from fsstore.accounts import BOUNDS, SHARES, Resource
from fsstore.fuse.session import CROWD_REQUESTS
from tests.mount.harness import PATIENCE_S, SMALL_SIZES, as_user, bodies, mounted, publish, until

WRITERS = 16
LINES_EACH = 400

WRITER = """
import os, sys
append, writer, lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(append, os.O_WRONLY | os.O_APPEND)
text = b"".join(b"%d %d %s\\n" % (writer, line, bytes([65 + writer]) * (line * 7 % 900)) for line in range(lines))
while text:
    size = 1 + len(text) % 3001  # cuts through lines, everywhere
    assert os.write(fd, text[:size]) == len(text[:size])
    text = text[size:]
os.close(fd)
"""

READER = """
import os, sys
for _ in range(int(sys.argv[2])):
    fd = os.open(sys.argv[1], os.O_RDONLY)
    assert os.read(fd, 1 << 20) == b"shared by all"
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
"""


def run_all(*commands: list[str]) -> None:
    """Run programs at once; all have to succeed."""
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
    try:
        for process in running:
            _, errors = process.communicate(timeout=2 * PATIENCE_S)
            assert process.returncode == 0, errors.decode()
    finally:
        for process in running:
            process.kill()  # no wait: one that hangs in the kernel ends with its mount


def test_concurrent_writers(queue: Path) -> None:
    """7.1 When 16 writers write lines to one `append` at once, no line is lost, cut or mixed."""
    append = str(queue / "append")
    run_all(*([sys.executable, "-c", WRITER, append, str(one), str(LINES_EACH)] for one in range(WRITERS)))
    lines = (queue.parent / "0.log").read_bytes().splitlines()
    assert len(lines) == WRITERS * LINES_EACH
    for writer in range(WRITERS):
        letter = bytes([65 + writer])
        mine = [line for line in lines if line.startswith(b"%d " % writer)]
        assert mine == [b"%d %d %s" % (writer, line, letter * (line * 7 % 900)) for line in range(LINES_EACH)]


@contextmanager
def meanwhile(*slow: threading.Thread, gate: Path) -> Iterator[None]:
    """While `slow` is held up at the gate; afterwards it ends."""
    for thread in slow:
        thread.start()
    try:
        yield
        assert all(thread.is_alive() for thread in slow)
    finally:
        gate.touch()
        for thread in slow:
            thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in slow)


def test_requests_go_on_while_writers_wait(tmp_path: Path) -> None:
    """7.2 While writers wait for the disk, other requests are answered."""
    gate = tmp_path / "gate"
    gate.touch()
    with mounted(tmp_path, gate=gate) as mount:
        queue = mount.topic("orders") / "0"
        publish(queue / "append", b"zero\n")
        fds = [os.open(queue / "append", os.O_WRONLY | os.O_DSYNC) for _ in range(64)]
        gate.unlink()
        writers = [threading.Thread(target=os.write, args=(fd, b"line\n"), daemon=True) for fd in fds]
        with meanwhile(*writers, gate=gate):
            until("all have written", lambda: mount.status()["stats"]["put_messages"] >= 65)
            for offset in range(65):
                assert (queue / str(offset)).read_bytes() == (b"line" if offset else b"zero")
            publish(queue.parent / "1" / "append", b"one more\n")
        for fd in fds:
            os.close(fd)
        assert len(bodies(queue)) == 65


def test_requests_go_on_while_a_stream_is_summed(tmp_path: Path) -> None:
    """7.3 While a long stream is summed for the first time, other requests are answered."""
    store_path, gate = tmp_path / "store", tmp_path / "gate"
    with MessageStore.open(store_path, StoreConfig(sizes=FileSizes(**SMALL_SIZES)), create=True) as store:
        store.create_topic("orders", 1)
        line = Message("orders", zlib.compress(b"a line"), sys_flag=1)  # its size is unknown before a read
        for _ in range(3):
            store.put_batch([line] * 10_000, 0)
    gate.touch()
    with mounted(tmp_path, gate=gate) as mount:
        sizes: list[int] = []
        log = mount.root / "orders" / "0.log"
        publish(mount.root / "orders" / "0" / "append", b"the first write syncs by itself\n")
        gate.unlink()
        summing = threading.Thread(target=lambda: sizes.append(log.stat().st_size), daemon=True)
        with meanwhile(summing, gate=gate):
            assert (mount.root / "orders" / "0" / "29999").read_bytes() == b"a line"
            publish(mount.root / "orders" / "0" / "append", b"another\n")
            publish(mount.root / "orders" / "append", b"beside\n")  # in the directory of the stream itself
            assert sizes == []
        assert sizes == [30_000 * 7 + 32 + 8 + 7]


def test_each_look_up_of_append_is_a_file_of_its_own(tmp_path: Path) -> None:
    """7.4 Writers of one `append` never wait for each other in the kernel, and stat shows one inode number for the
    name."""
    gate = tmp_path / "gate"
    gate.touch()
    with mounted(tmp_path, gate=gate) as mount:
        append = mount.topic("orders") / "0" / "append"
        publish(append, b"zero\n")
        waiting, free = os.open(append, os.O_WRONLY | os.O_DSYNC), os.open(append, os.O_WRONLY)
        assert len({os.fstat(waiting).st_ino, os.fstat(free).st_ino, append.stat().st_ino, append.stat().st_ino}) == 1
        gate.unlink()
        with meanwhile(threading.Thread(target=os.write, args=(waiting, b"one\n"), daemon=True), gate=gate):
            until("the first writer waits", lambda: mount.status()["stats"]["put_messages"] == 2)
            os.write(free, b"two\n")
            assert bodies(append.parent) == [b"zero", b"one", b"two"]
        for fd in (waiting, free):
            os.close(fd)


def test_readers_who_drop_their_cache(queue: Path) -> None:
    """7.5 Readers that repeatedly drop the cache of one file never hang."""
    publish(queue / "append", b"shared by all\n")
    run_all(*([sys.executable, "-c", READER, str(queue / "0"), "2000"] for _ in range(4)))


def test_decompressing_holds_nobody_up(tmp_path: Path) -> None:
    """7.6 While bodies are decompressed for a listing, a stat or a stream, other requests are answered."""
    stored = zlib.compress(bytes(48 << 20))
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.create_topic("orders", 2)
        for _ in range(8):
            store.put(Message("orders", stored, sys_flag=1), 0)
        store.put(Message("orders", b"small"), 1)
    with mounted(tmp_path, store=tmp_path / "store", config={}) as mount, ThreadPoolExecutor(3) as threads:
        topic = mount.root / "orders"
        slow = [
            threads.submit(
                lambda: [entry.stat().st_size for entry in os.scandir(topic / "0") if entry.name != "append"]
            ),
            threads.submit(lambda: [(topic / "0.log").stat().st_size]),
            threads.submit(lambda: [len((topic / "0" / "7").read_bytes())]),
        ]
        answered = 0
        while not all(one.done() for one in slow):
            assert (topic / "1" / "@last").read_bytes() == b"small"  # never cached
            answered += 1
        assert [one.result() for one in slow] == [[48 << 20] * 8, [8 * ((48 << 20) + 1)], [48 << 20]]
        assert answered > 20, "each of those took as long as a body"


ALICE, BOB = 64_111, 64_112
TWO_USERS = {"allow_other": True, "append_mode": 0o666}
takes_users = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")

AT_ONCE = """
import os, sys, threading
count, path = int(sys.argv[1]), sys.argv[2]
print("waits", flush=True)
sys.stdin.readline()
begun, lock = 0, threading.Lock()

def look(number):
    global begun
    with lock:
        begun += 1
        if begun == count:
            print("begun", flush=True)
    os.stat(f"{path}{number}")

threads = [threading.Thread(target=look, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def python_of(user: int, program: str, *arguments: str) -> list[str]:
    """The command that has that user run a program."""
    who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*who, sys.executable, "-I", "-c", program, *arguments]


def waiting_for_fuse(pid: int) -> int:
    """How many threads of a process wait in another system call than its main thread, which waits for them: for an
    answer to a request, and not for the interpreter."""
    calls = {int(task.name): (task / "syscall").read_text().split()[0] for task in Path(f"/proc/{pid}/task").iterdir()}
    joining = calls.pop(pid)
    return 0 if joining == "running" else sum(call not in (joining, "running") for call in calls.values())


@contextmanager
def user_at_once(user: int, count: int, path: str, folder: Path) -> Iterator[Callable[[], None]]:
    """A process of that user. When what is yielded is called, it looks so many paths below `folder` up at once, `path`
    and a number each; that returns when they wait for the mount. At the end they have succeeded."""
    program = python_of(user, AT_ONCE, str(count), path)
    with subprocess.Popen(program, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"

        def begin() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"begun\n"
            until("all of them wait for the mount", lambda: waiting_for_fuse(process.pid) == count)

        try:
            yield begin
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@takes_users
def test_requests_of_many_users_take_turns(tmp_path: Path) -> None:
    """7.7 Waiting requests are served user by user, one request at a time. However many requests one user has,
    another user's request waits for four of them at first, and then for one out of each 256 that came before it."""
    threads = 40
    with mounted(tmp_path, options=TWO_USERS) as mount:
        mount.topic("orders")
        served: list[int] = []
        with (
            (mount.root / "@store" / "accesslog").open("rb", buffering=0) as log,
            user_at_once(ALICE, threads, "orders/append@keys=a", mount.root) as alice,
            user_at_once(BOB, 1, "orders/append@keys=b", mount.root) as bob,
        ):
            mount.daemon.send_signal(signal.SIGSTOP)
            try:
                alice()
                bob()
            finally:
                mount.daemon.send_signal(signal.SIGCONT)
            while len(served) < threads + 1:
                lines = [line.split() for line in log.read(1 << 16).splitlines()]
                served += [int(user) for _, user, _, _, _, path, *_ in lines if b"append@" in path]
        assert BOB in served[: CROWD_REQUESTS + 2]


@takes_users
def test_names_that_a_user_makes_up_are_bounded(tmp_path: Path) -> None:
    """7.8 If a user looks up an endless series of new names, the daemon remembers only a share of them, and each
    name still works."""
    share = BOUNDS[Resource.NAMES].limit // SHARES
    look = f"import os; [os.stat(f'orders/append@keys={{name}}') for name in range({share + 500})]"
    with mounted(tmp_path, options=TWO_USERS) as mount:
        mount.topic("orders")
        subprocess.run(python_of(ALICE, look), cwd=mount.root, check=True)
        assert as_user(ALICE, "echo kept >> orders/0/append@keys=0", mount.root).returncode == 0
        names = mount.status()["accounts"]["names"]
        assert (names["largest_user"], names["refused"]) == (ALICE, 0)
        assert share - 500 <= names["largest"] <= share
        assert (mount.root / "orders" / "keys" / "0").read_bytes() == b"kept"
