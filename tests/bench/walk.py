"""`./run walk`: the functions that one request goes through, in order, and how many they are.

    append      one line, from the FUSE request to the reply, with what is dispatched after it
    lines       a write of 650 lines
    cold read   look-up, open and release of a small message that nobody has opened
    .log        1 MiB of a stream

A mount is served in a process of its own, which notes every Python function that its request loop's thread calls while
it takes a request. A step is done several times; the last one is shown. Functions are indented as they call one
another; what is made by C is not seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

from engine import Message, MessageStore
from fsstore import ServeOptions, serve_mount
from fsstore.fuse.session import RequestLoop
from tests.interop.toolchain import PROJECT

REQUEST = RequestLoop._take.__code__
LINES = 650
STREAM_BYTES = 1 << 20
TIMES = 5


class Recorder:
    """Notes the functions called during a request."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """As sys.setprofile has it."""
        if event == "call" and (self._depth or frame.f_code is REQUEST):
            self._depth += 1
            if shown := _name(frame.f_code):
                self.calls.append((self._depth, shown))
        elif event == "return" and self._depth:
            self._depth -= 1


def _name(code: CodeType) -> str:
    """Module and name of a function of ours, empty for another's."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PROJECT) or ".venv" in path.parts:
        return ""
    module = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    return f"{module}: {code.co_qualname}"


def record(store: str, mountpoint: str) -> None:
    """Serve a mount. Each line on standard input is answered by the functions called since the one before."""
    recorder = Recorder()

    def ready() -> None:
        sys.setprofile(recorder)
        print("ready", flush=True)

    def answer() -> None:
        for _ in sys.stdin:
            calls, recorder.calls = recorder.calls, []
            print(json.dumps(calls), flush=True)

    threading.Thread(target=answer, daemon=True).start()
    with MessageStore.open(store) as opened:
        serve_mount(opened, mountpoint, ServeOptions(), ready)


class Walk:
    """A mount that is recorded, and its steps."""

    def __init__(self, root: Path, recording: subprocess.Popen[str]) -> None:
        self._root = root
        self._recording = recording
        self._appended = os.open(root / "orders/0/append", os.O_WRONLY | os.O_APPEND)
        self._stream = os.open(root / "orders/0.log", os.O_RDONLY)

    def take(self) -> list[tuple[int, str]]:
        """The functions called since the last time."""
        assert self._recording.stdin is not None
        assert self._recording.stdout is not None
        self._recording.stdin.write("\n")
        self._recording.stdin.flush()
        return [(depth, name) for depth, name in json.loads(self._recording.stdout.readline())]

    def append(self, number: int) -> None:
        os.write(self._appended, b"paid %d\n" % number)

    def lines(self, number: int) -> None:
        os.write(self._appended, b"paid %d\n" % number * LINES)

    def cold_read(self, number: int) -> None:
        (self._root / "orders/1" / str(number)).read_bytes()

    def stream(self, number: int) -> None:
        os.pread(self._stream, STREAM_BYTES, number * STREAM_BYTES)

    def close(self) -> None:
        os.close(self._appended)
        os.close(self._stream)


@contextmanager
def recorded() -> Iterator[Walk]:
    """A mount of a store with two queues: long ones to stream, small ones to read."""
    with tempfile.TemporaryDirectory(prefix="fsstore-walk-") as folder:
        store, mountpoint = Path(folder) / "store", Path(folder) / "mount"
        mountpoint.mkdir()
        with MessageStore.open(store, create=True) as opened:
            opened.create_topic("orders", 2)
            for _ in range(2 * TIMES + 2):
                opened.put_lines("orders", (b"x" * 127 + b"\n") * (STREAM_BYTES >> 7), 0)
            for number in range(TIMES + 1):
                opened.put(Message("orders", b"small %d" % number), 1)
        command = [sys.executable, "-m", "tests.bench.walk", str(store), str(mountpoint)]
        with subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as recording:
            try:
                assert recording.stdout is not None
                assert recording.stdout.readline() == "ready\n"
                walk = Walk(mountpoint, recording)
                yield walk
                walk.close()
            finally:
                recording.terminate()


def main(arguments: list[str]) -> int:
    """Print each walk."""
    if arguments:
        record(*arguments)
        return 0
    with recorded() as walk:
        for title, step in [
            ("append of one line", walk.append),
            (f"append of {LINES} lines", walk.lines),
            ("cold read", walk.cold_read),
            ("1 MiB of .log", walk.stream),
        ]:
            for number in range(TIMES):
                walk.take()
                step(number)
            calls = walk.take()
            print(f"\n{title}: {len(calls)} functions of {len({name.partition(':')[0] for _, name in calls})} modules")
            for depth, name in calls:
                print(f"{'  ' * depth}{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
