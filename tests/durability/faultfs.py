"""A disk that fails by rule, below a store: `with faulty_disk(folder, at) as disk`, then `disk.inject(Rule(...))`.

faultfs.c serves it, by libfuse, and documents the rules. A page that `read` refuses is SIGBUS for a process that has
mapped it. A page whose `write` was refused stays in the page cache as clean, as on a local disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.durability.figures import KEPT
from tests.mount.harness import PATIENCE_S, unmount_lazily

SOURCE = Path(__file__).with_name("faultfs.c")
CHANGES = ("write", "fsync", "open_write", "create", "rename", "unlink", "mkdir", "truncate", "fallocate")
"""Calls that a disk refuses when it has turned read-only. `create` makes a file or a link."""

CALLS = ("read", "open", "opendir", *CHANGES)
"""Calls that a rule may be about; `open` is that of a reader."""


@dataclass(frozen=True)
class Rule:
    """Which calls fail, and how.

    `call` is one of CALLS, `pattern` a shell pattern for the path below the folder, which begins with a slash (`*`
    crosses folders). Reads and writes are meant that touch a byte of [`first`, `end`). `error` is the errno; with 0 the
    call is done, a read or write for at most `length` bytes. It comes after `delay_s`. The first `after` calls are
    spared, then `times` are struck (None: all).
    """

    call: str
    pattern: str
    error: int = errno.EIO
    first: int = 0
    end: int = 1 << 62
    after: int = 0
    times: int | None = None
    delay_s: float = 0.0
    length: int | None = None

    def command(self) -> str:
        """The line that faultfs reads."""
        times = -1 if self.times is None else self.times
        length = -1 if self.length is None else self.length
        numbers = (self.error, self.first, self.end, self.after, times, round(self.delay_s * 1e6), length)
        return " ".join(("rule", self.call, *map(str, numbers), self.pattern))


class FaultyDisk:
    """A running faultfs. Thread safety: none."""

    def __init__(self, backing: Path, root: Path, process: subprocess.Popen[str]) -> None:
        self.backing = backing
        """The bytes that are on disk."""
        self.root = root
        """The same through faultfs."""
        self._process = process

    def inject(self, *rules: Rule) -> None:
        """Add rules, and evict the pages that they refuse to read from the page cache."""
        for rule in rules:
            assert rule.call in CALLS, rule
            self._ask(rule.command())
        for pattern in {rule.pattern for rule in rules if rule.call == "read"}:
            self.drop(pattern)

    def heal(self) -> None:
        """Have no rule in force."""
        self._ask("clear")

    def drop(self, pattern: str = "*") -> None:
        """Have the pages of these files read again, mapped or not; dirty ones are written first."""
        self._ask(f"drop {pattern}")

    @property
    def struck(self) -> int:
        """How many calls rules have struck."""
        return int(self._ask("count"))

    def _ask(self, command: str) -> str:
        to, back = pipes(self._process)
        to.write(command + "\n")
        to.flush()
        said, _, rest = back.readline().strip().partition(" ")
        assert said == "ok", f"faultfs answers {said!r} to {command!r}"
        return rest


@contextmanager
def faulty_disk(backing: Path, root: Path) -> Iterator[FaultyDisk]:
    """Show the folder `backing` at `root`; at the end the mount goes, even below processes that use it."""
    root.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [str(program()), str(backing), str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    to, back = pipes(process)
    try:
        assert back.readline() == "ready\n", "faultfs does not start"
        yield FaultyDisk(backing, root, process)
    finally:
        unmount_lazily(root)
        to.close()
        back.close()
        process.wait(PATIENCE_S)


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Its standard input and output."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def program() -> Path:
    """faultfs, compiled from its source as it is now."""
    built = KEPT / f"faultfs-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    if not built.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        new = built.with_suffix(f".{os.getpid()}")
        said = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True)
        warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
        flags = [*warnings, "-O2", "-pthread", *shlex.split(said.stdout)]
        subprocess.run(["cc", "-o", str(new), str(SOURCE), *flags], check=True)
        new.rename(built)
    return built
