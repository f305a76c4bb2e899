"""A JVM with a real RocketMQ in it, asked through a pipe: one JSON object a line each way (driver/…/Driver.java)."""

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interop.toolchain import Line

ANSWER_LIMIT_SECONDS = 300
END_LIMIT_SECONDS = 60

# 4.9 unmaps its files through fields that a modern JDK keeps closed.
OPENED_PACKAGES = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref", "java.base/java.lang")


class DriverError(Exception):
    """RocketMQ threw something, died or did not answer."""


class LoadRefusedError(DriverError):
    """RocketMQ does not start on that store: its load() said no, as when a kill left a file of the wrong length."""


class Driver:
    """One JVM. A context manager: leaving it ends the process, and the servers in it.

    `warnings` gathers what RocketMQ logged at WARN or ERROR, until somebody empties it.
    Thread safety: one thread at a time.
    """

    def __init__(
        self, line: Line, home: Path, *, heap_mib: int = 768, threads: bool = False, grpc: bool = False,
        inside: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`home`: for whatever RocketMQ writes outside the store; `threads`: a load is coming, so compile well; `grpc`:
        this one is for clients that speak gRPC; `inside`: a command that runs another one in its place, elsewhere."""
        self.line = line
        self.warnings: list[str] = []
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / f"driver-{line.name}.log").open("ab")
        self._process = subprocess.Popen(
            [*inside, *command(line, home, heap_mib, threads=threads, grpc=grpc)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,
            env={**os.environ, "LC_ALL": "C.UTF-8", "ROCKETMQ_HOME": str(home)},
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()
        self.call("hello")

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for answer in self._process.stdout:
            self._answers.put(answer)
        self._answers.put(b"")

    def ask(self, verb: str, **fields: Any) -> None:
        """Send a request without waiting for its answer; `answer` waits for it."""
        assert self._process.stdin is not None
        request = json.dumps({"verb": verb, **fields}, default=str)
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DriverError(f"the JVM is gone before {verb}; see {self._errors.name!r}") from None

    def answer(self, limit_seconds: float = ANSWER_LIMIT_SECONDS) -> dict[str, Any]:
        """The answer to the oldest unanswered request. DriverError when RocketMQ threw, died or stayed silent."""
        try:
            text = self._answers.get(timeout=limit_seconds)
        except queue.Empty:
            raise DriverError(f"no answer within {limit_seconds} s") from None
        if not text:
            raise DriverError(f"the JVM ended; see {self._errors.name!r}")
        answer: dict[str, Any] = json.loads(text)
        self.warnings += answer.pop("log")
        if "load() returned false" in answer.get("error", ""):
            raise LoadRefusedError(answer["error"])
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer

    def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        self.ask(verb, **fields)
        return self.answer()

    @contextlib.contextmanager
    def store(self, path: Path, config: dict[str, Any]) -> Iterator["RealStore"]:
        """The store at `path`, opened by RocketMQ and closed cleanly at the end."""
        self.call("open", store=str(path), path=str(path), config=config)
        public = public_listeners(self.pid)
        if public:
            raise DriverError(f"RocketMQ listens beyond loopback: {public}")
        yield RealStore(self, str(path))
        self.call("close", store=str(path))

    def take_warnings(self) -> list[str]:
        """The log's lines since the last call."""
        taken, self.warnings = self.warnings, []
        return taken

    def kill(self) -> None:
        """End the JVM as a crash would: SIGKILL."""
        self._process.kill()
        self._process.wait(END_LIMIT_SECONDS)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_LIMIT_SECONDS if error is None else 1)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(END_LIMIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class RealStore:
    """A store that a Driver has open."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def put(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Put messages and batches in order; one result each, every one PUT_OK (else DriverError)."""
        results: list[dict[str, Any]] = self._driver.call("put", store=self._name, messages=messages)["results"]
        refused = [result["status"] for result in results if result["status"] != "PUT_OK"]
        if refused:
            raise DriverError(f"RocketMQ refused {len(refused)} puts: {sorted(set(refused))}")
        return results

    def settle(self) -> None:
        """Wait until everything is dispatched."""
        self._driver.call("settle", store=self._name)

    def dump(self) -> dict[str, Any]:
        """Everything its getMessage delivers."""
        return self._driver.call("dump", store=self._name)

    def query(self, queries: list[dict[str, Any]]) -> list[list[int]]:
        """Physical offsets that queryMessage finds, one list a query."""
        results: list[list[int]] = self._driver.call("query", store=self._name, queries=queries)["results"]
        return results

    def offset_at(self, topic: str, queue_id: int, times: list[int]) -> list[int]:
        """Queue offsets that getOffsetInQueueByTime answers."""
        results: list[int] = self._driver.call("offset_at", store=self._name, topic=topic, queue=queue_id, times=times)[
            "results"
        ]
        return results


def command(line: Line, home: Path, heap_mib: int, *, threads: bool, grpc: bool = False) -> list[str]:
    """The JVM's command line: small, quick to start, everything it writes below `home`."""
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    exported = ["--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"]
    return [
        "java",
        f"-Xmx{heap_mib}m",
        "-XX:+UseParallelGC" if threads else "-XX:+UseSerialGC",
        *([] if threads else ["-XX:TieredStopAtLevel=1"]),
        "-Xshare:auto",
        "-Dfile.encoding=UTF-8",
        "-Djava.net.preferIPv4Stack=false",
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        f"-Drocketmq.home.dir={home}",
        "-Drocketmq.client.logUseSlf4j=true",
        "-Dtls.server.mode=disabled",  # else each server makes a certificate for itself, for seconds
        *opened,
        *exported,
        "-cp",
        line.grpc_class_path if grpc else line.class_path,
        "fsstore.interop.Driver",
    ]


def public_listeners(pid: int) -> list[str]:
    """TCP addresses on which that process listens and that other machines could reach, as /proc writes them."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor))
    found = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            listening = fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets
            if listening and not is_loopback(fields[1].split(":")[0]):
                found.append(fields[1])
    return found


def is_loopback(address: str) -> bool:
    """Whether an address of /proc/net/tcp or tcp6 (hex, 32-bit words of this machine's byte order) is loopback."""
    if len(address) == 8:
        return address.endswith("7F")
    return address == "00000000000000000000000001000000" or (
        address.startswith("0000000000000000FFFF0000") and address.endswith("7F")
    )
