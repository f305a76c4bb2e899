"""The workload of the mounted rows, in C, so that no interpreter is measured with the mount (peer/client.c)."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path


class Client:
    """Runs the compiled client, which times itself: each method returns seconds. CalledProcessError when the mount did
    not do what it should; the client said what on standard error."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def write(self, path: Path, line: bytes, count: int, writers: int = 1) -> float:
        """write(2) `line` `count` times, by each of so many threads at once."""
        return self._run("write", path, count, writers, given=line)

    def sync(self, path: Path, line: bytes, count: int) -> float:
        """pwrite + fdatasync `line` `count` times, from the file's beginning on."""
        return self._run("sync", path, count, given=line)

    def open(self, folder: Path, count: int, body_bytes: int) -> float:
        """Open, read and close the first messages of a queue."""
        return self._run("open", folder, count, body_bytes)

    def reopen(self, folder: Path, count: int, body_bytes: int) -> float:
        """As `open`, for the second time."""
        return self._run("reopen", folder, count, body_bytes)

    def readlink(self, folder: Path, ends: Iterable[tuple[str, str]]) -> float:
        """Read links of `folder`: pairs of a name and the end of its target."""
        return self._run("readlink", folder, given="".join(f"{name} {end}\n" for name, end in ends).encode())

    def names(self, folder: Path, least: int) -> float:
        """List a directory that has so many names or more."""
        return self._run("names", folder, least)

    def stream(self, path: Path, size: int) -> float:
        """Read a file of `size` bytes, 1 MiB at a time."""
        return self._run("stream", path, size)

    @contextlib.contextmanager
    def busy_cores(self) -> Iterator[None]:
        """Every core has a process of other work."""
        with contextlib.ExitStack() as burning:
            for _ in os.sched_getaffinity(0):
                process = burning.enter_context(subprocess.Popen([self._binary, "burn"]))
                burning.callback(process.kill)
            yield

    def _run(self, *arguments: str | int | Path, given: bytes = b"") -> float:
        command = [str(self._binary), *map(str, arguments)]
        return float(subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout)
