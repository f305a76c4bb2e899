"""The real RocketMQ's store in a JVM of its own, driven through a pipe (peer/Bench.java)."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from engine import FileSizes
from tests.bench.measure import LeftOutError, Took, cpu_seconds
from tests.bench.workload import SIZES, TOPIC
from tests.interop.driver import command
from tests.interop.room import java_config
from tests.interop.toolchain import LINES, BuildError, NotAvailableError, build_drivers

SOURCE = Path(__file__).parent / "peer" / "Bench.java"
HEAP_MIB = 2_048
END_LIMIT_SECONDS = 60


class RocketMQError(Exception):
    """RocketMQ's answer to a call that failed: a stack trace."""


class RocketMQ:
    """A JVM with RocketMQ 4.9. A context manager. Thread safety: one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets the compiled classes and whatever RocketMQ writes beside stores. LeftOutError."""
        line = LINES[0]
        try:
            build_drivers((line,))
        except NotAvailableError as error:
            raise LeftOutError(str(error)) from error
        except BuildError as error:
            raise LeftOutError("RocketMQ's driver does not build: see ./run interop") from error
        classes = folder / "classes"
        subprocess.run(["javac", "-d", classes, "-cp", line.class_path, SOURCE], check=True)
        *options, _, class_path, _ = command(line, folder, HEAP_MIB, threads=True)
        self._errors = (folder / "rocketmq.log").open("ab")
        self._process = subprocess.Popen(
            [*options, "-cp", f"{classes}:{class_path}", "fsstore.interop.Bench"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
        )

    def _call(self, verb: str, store: Path, **fields: Any) -> Took:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"verb": verb, "path": str(store), "topic": TOPIC, **fields}
        began = cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the JVM ended"}')
        if "error" in answer:
            raise RocketMQError(f"RocketMQ, {verb}: {answer['error']}")
        return Took(float(answer["seconds"]), cpu_seconds(self._process.pid) - began)

    def open(self, store: Path, sizes: FileSizes = SIZES) -> float:
        """Open a store; the seconds that its load(), which recovers, took. RocketMQError: it does not."""
        config = {name: str(value) for name, value in java_config(sizes).items()}
        return self._call("open", store, config=config).seconds

    def put(
        self, store: Path, first: int, count: int, *, keys: bool = True, topic: str = TOPIC, queues: int = 1
    ) -> Took:
        """Put messages one after the other, into so many queues in turn; how long until all were dispatched."""
        return self._call("put", store, first=first, count=count, keys=keys, topic=topic, queues=queues)

    def query(self, store: Path, numbers: list[int]) -> Took:
        """Query the keys of those messages."""
        return self._call("query", store, numbers=numbers)

    def read(self, store: Path, count: int) -> Took:
        """Read and decode the first `count` messages."""
        return self._call("read", store, count=count)

    def close(self, store: Path) -> float:
        """Close a store cleanly; the seconds that took."""
        return self._call("close", store).seconds

    def __enter__(self) -> "RocketMQ":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
