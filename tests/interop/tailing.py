"""Reads a growing topic through a mount as fast as it grows, and checks every message: whole, in order, how soon.

The messages are those of Load.java: `<queue> <sequence> <sent, epoch ms> <padding>`, one sequence a queue.
"""

import contextlib
import os
import subprocess
import threading
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path

READ_BYTES = 1 << 16  # the kernel makes all pages of a buffer ready before it asks
IDLE_SECONDS = 0.004
SUSPECT_MS = (
    1_000  # from here on the store's own timestamp is asked for: some of it may have been the way to the broker
)
SUSPECTS_A_READ = 5  # but not for every message: whoever is late must not be made later
LOOK_SECONDS = 0.05
LIMIT_SECONDS = 120


@dataclass(slots=True)
class Delays:
    """Milliseconds from storing (or a little before, from sending) to reading, one a message."""

    values: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, value_ms: int) -> None:
        self.values.append(value_ms)

    def figures(self) -> dict[str, float]:
        """Count, p50, p99 and maximum."""
        ordered = sorted(self.values)
        if not ordered:
            return {"count": 0}
        return {
            "count": len(ordered),
            "p50_ms": ordered[len(ordered) // 2],
            "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            "max_ms": ordered[-1],
        }


class QueueLog:
    """One open `<queue>.log`, read to its end again and again."""

    def __init__(self, mountpoint: Path, topic: str, queue: int) -> None:
        self._queue = queue
        self._messages_folder = mountpoint / topic / str(queue)
        self._descriptor = os.open(mountpoint / topic / f"{queue}.log", os.O_RDONLY)
        self._rest = b""
        self._suspects = 0
        self.messages = 0
        self.bytes_read = 0
        self.problems: list[str] = []

    def read_new(self, delays: Delays) -> bool:
        """Read new messages, and check them; returns whether there were any."""
        data = os.read(self._descriptor, READ_BYTES)
        if not data:
            return False
        now_ms = time.time_ns() // 1_000_000
        self.bytes_read += len(data)
        if len(data) < READ_BYTES and not data.endswith(b"\n"):
            self.problems.append(f"queue {self._queue} ends inside a message: {data[-80:]!r}")
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        self._suspects = SUSPECTS_A_READ
        for line in lines:
            self._check(line, now_ms, delays)
        return True

    def _check(self, line: bytes, now_ms: int, delays: Delays) -> None:
        words = line.split(b" ", 3)
        if len(words) != 4 or words[:2] != [b"%d" % self._queue, b"%d" % self.messages] or words[3].strip(b"x"):
            self.problems.append(f"queue {self._queue}: message {self.messages} reads {line[:120]!r}")
            return
        delay_ms = now_ms - int(words[2])
        if delay_ms > SUSPECT_MS and self._suspects:
            self._suspects -= 1
            with contextlib.suppress(OSError):  # expired meanwhile: the longer delay stands
                delay_ms = now_ms - (self._messages_folder / f"{self.messages:020}").stat().st_mtime_ns // 1_000_000
        self.messages += 1
        delays.add(delay_ms)

    def close(self) -> None:
        os.close(self._descriptor)


class TopicReader:
    """Follows every queue of a topic on a thread: the logs whole, and now and then the newest message as a file."""

    def __init__(self, mountpoint: Path, topic: str, queues: int) -> None:
        self._folder = mountpoint / topic
        self._logs = [QueueLog(mountpoint, topic, queue) for queue in range(queues)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-reader")
        self.log_delays = Delays()
        self.file_delays = Delays()
        self.problems: list[str] = []
        self._newest: dict[int, bytes] = {}

    def start(self) -> None:
        self._thread.start()

    @property
    def counts(self) -> list[int]:
        """Messages read so far, by queue."""
        return [log.messages for log in self._logs]

    def bytes_read(self, queue: int) -> int:
        """Bytes of that queue's log that were read."""
        return self._logs[queue].bytes_read

    def _run(self) -> None:
        try:
            next_look = 0.0
            while not self._stopping.is_set():
                progress = [log.read_new(self.log_delays) for log in self._logs]
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_SECONDS
                    self._look_at_newest(int(next_look * 1_000) % len(self._logs))
                if not any(progress):
                    self._stopping.wait(IDLE_SECONDS)
        except OSError as error:
            self.problems.append(f"reading failed: {error}")

    def _look_at_newest(self, queue: int) -> None:
        """`cat` of the newest message: its body is its place, its time is the store's."""
        newest = self._folder / str(queue) / "@last"
        with contextlib.suppress(FileNotFoundError), newest.open("rb") as file:  # an empty queue
            body = file.read()
            now_ms = time.time_ns() // 1_000_000
            words = body.split(b" ", 3)
            if len(words) != 4 or words[0] != b"%d" % queue or words[3].strip(b"x"):
                self.problems.append(f"queue {queue}: the newest message reads {body[:120]!r}")
                return
            if self._newest.get(queue) == words[1]:
                return  # nobody wrote since the last look: its age says nothing
            self._newest[queue] = words[1]
            self.file_delays.add(now_ms - os.fstat(file.fileno()).st_mtime_ns // 1_000_000)

    def finish(self, expected: list[int]) -> list[str]:
        """Wait until that many messages of each queue were read; everything that was wrong."""
        limit = time.monotonic() + LIMIT_SECONDS
        while self.counts != expected and self._thread.is_alive() and time.monotonic() < limit and not self._failed():
            time.sleep(IDLE_SECONDS)
        self._stopping.set()
        self._thread.join()
        problems = [*self.problems, *(problem for log in self._logs for problem in log.problems)]
        if self.counts != expected:
            problems.append(f"read {self.counts} messages of {expected}")
        for log in self._logs:
            log.close()
        return problems

    def _failed(self) -> bool:
        return bool(self.problems) or any(log.problems for log in self._logs)


class Tail:
    """A real `tail -f` of a log; its output goes to a file."""

    def __init__(self, log: Path, output: Path) -> None:
        self._output = output
        self._log = log
        with output.open("wb") as target:
            self._process = subprocess.Popen(
                ["tail", "-c", "+1", "-s", "0.2", "-f", str(log)], stdin=subprocess.DEVNULL, stdout=target
            )

    def finish(self, size_bytes: int) -> str | None:
        """Wait until it printed that many bytes, end it; a sentence when it did not."""
        limit = time.monotonic() + LIMIT_SECONDS
        while self._output.stat().st_size < size_bytes and time.monotonic() < limit:
            time.sleep(LOOK_SECONDS)
        self._process.terminate()
        self._process.wait(LIMIT_SECONDS)
        printed = self._output.stat().st_size
        return None if printed == size_bytes else f"tail -f of {self._log} printed {printed} bytes of {size_bytes}"
