"""The workload of the mounted rows, in C, so that no interpreter is measured with the mount (peer/client.c)."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.bench.measure import Took


class Client:
    """Runs the compiled client, which times itself, and the processor time of process `server` beside it.
    CalledProcessError when the mount did not do what it should; the client said what on standard error."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def write(self, path: Path, line: bytes, count: int, writers: int = 1, *, server: int | None = None) -> Took:
        """write(2) `line` `count` times, by each of so many threads at once."""
        return self._run("write", path, count, writers, given=line, server=server)

    def sync(self, path: Path, line: bytes, count: int) -> Took:
        """pwrite + fdatasync `line` `count` times, from the file's beginning on."""
        return self._run("sync", path, count, given=line)

    def open(self, folder: Path, count: int, body_bytes: int, *, server: int | None = None) -> Took:
        """Open, read and close the first messages of a queue."""
        return self._run("open", folder, count, body_bytes, server=server)

    def reopen(self, folder: Path, count: int, body_bytes: int, *, server: int | None = None) -> Took:
        """As `open`, for the second time."""
        return self._run("reopen", folder, count, body_bytes, server=server)

    def readlink(self, folder: Path, ends: Iterable[tuple[str, str]], *, server: int | None = None) -> Took:
        """Read links of `folder`: pairs of a name and the end of its target."""
        given = "".join(f"{name} {end}\n" for name, end in ends).encode()
        return self._run("readlink", folder, given=given, server=server)

    def names(self, folder: Path, least: int, *, server: int | None = None) -> Took:
        """List a directory that has so many names or more."""
        return self._run("names", folder, least, server=server)

    def stream(self, path: Path, size: int, *, server: int | None = None) -> Took:
        """Read a file of `size` bytes, 1 MiB at a time."""
        return self._run("stream", path, size, server=server)

    @contextlib.contextmanager
    def busy_cores(self) -> Iterator[None]:
        """Every core has a process of other work."""
        with contextlib.ExitStack() as burning:
            for _ in os.sched_getaffinity(0):
                process = burning.enter_context(subprocess.Popen([self._binary, "burn"]))
                burning.callback(process.kill)
            yield

    def _run(self, *arguments: str | int | Path, given: bytes = b"", server: int | None = None) -> Took:
        options = ["--server", str(server)] if server is not None else []
        command = [str(self._binary), *options, *map(str, arguments)]
        output = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout
        return Took(*map(float, output.split()))
