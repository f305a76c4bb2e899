"""One user attacks a mount; how long does another user wait for a `cat`, for a line, over a planned restart?

    python -m tests.durability.neighbours [--minutes 5]

ATTACKER and VICTIM are user ids with only the rights that the modes give: both may read all and publish. The victim
alternately reads a small message and writes a line, each beside the same call on an ordinary file, first alone and then
beside each of ATTACKS. The limit for the slowest hundredth of these calls is the largest of LEAST_MS, MOST_TIMES_QUIET
times the time alone, and MOST_TIMES_OUTSIDE times that of the same call on the ordinary file beside the same load.

Then comes a planned restart of the attacked mount. The victim's longest wait is at most RESTART_MS, or
MOST_TIMES_OUTSIDE times the wait over a restart of another mount without attackers, beside the same load.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.durability.figures import keep
from tests.mount.harness import REPOSITORY, unmount_lazily

ATTACKER, VICTIM = 60_001, 60_002

LEAST_MS = 2.0
MOST_TIMES_QUIET = 10
MOST_TIMES_OUTSIDE = 3
RESTART_MS = 300.0

PAUSE_S = 0.003
"""Between two rounds of the victim's calls."""

CALLS = ("cat", "write")


class Times(NamedTuple):
    """Of one kind of call, in milliseconds."""

    median: float
    p99: float
    slowest: float
    calls: int

    @classmethod
    def of(cls, took_ms: Sequence[float]) -> Times:
        """Those of calls that took so long."""
        ordered = sorted(took_ms)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1], len(ordered))

    def __str__(self) -> str:
        return f"median {self.median:7.2f}  p99 {self.p99:7.2f}  slowest {self.slowest:7.2f} ms of {self.calls:5,}"


@dataclass(frozen=True)
class Seen:
    """A victim's measurements: each of CALLS, through the mount and on an ordinary file."""

    inside: dict[str, Times]
    outside: dict[str, Times]

    def allowed_ms(self, call: str, quiet: Seen) -> float:
        """Limit for the slowest hundredth of a call."""
        return max(LEAST_MS, MOST_TIMES_QUIET * quiet.inside[call].p99, MOST_TIMES_OUTSIDE * self.outside[call].p99)

    def findings(self, attack: str, quiet: Seen) -> list[str]:
        """Broken promises."""
        return [
            f"beside {attack}, p99 of {call} was {self.inside[call].p99:.1f} ms, not {allowed:.1f} ms"
            for call in CALLS
            if self.inside[call].p99 > (allowed := self.allowed_ms(call, quiet))
        ]


# attacks


def at_once(threads: int, work: Callable[[int], object]) -> None:
    """Run `work(number)` repeatedly in `threads` threads; a refused call is tried again."""

    def go_on(number: int) -> None:
        while True:
            try:
                work(number)
            except OSError as error:
                if error.errno in (errno.ENOTCONN, errno.ENODEV):
                    return
                time.sleep(0.01)

    threading.stack_size(256 << 10)
    workers = [threading.Thread(target=go_on, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def stat_names(root: Path, scale: float) -> None:
    """A name whose attributes are never cached, by a thousand threads."""
    at_once(int(1000 * scale), lambda _: os.stat(root / "bad" / "append"))


def write_json(root: Path, scale: float) -> None:
    """Writes that take a thread each, by a thousand threads."""
    lines = b'{"body":""}\n' * 257
    path = root / "bad" / "append@format=json"
    fds = [os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(int(1000 * scale))]
    at_once(len(fds), lambda number: os.write(fds[number], lines))


def look_up_keys(root: Path, scale: float) -> None:
    """Keys that no message has, and whose hash many have; meanwhile the log grows."""
    names = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=6)][1:]
    growing = os.open(root / "bad" / "append", os.O_WRONLY | os.O_APPEND)

    def look_up(number: int) -> None:
        if number == 0:
            os.write(growing, b"x\n")
            time.sleep(0.02)
        else:
            name = names[(time.monotonic_ns() // 1000 + number) % len(names)]
            with suppress(FileNotFoundError):
                os.lstat(root / "bad" / "keys" / name)

    at_once(13, look_up)


def name_files(root: Path, scale: float) -> None:
    """Names with options, each another one."""
    count = itertools.count()
    padding = "p" * 200
    at_once(4, lambda _: os.stat(root / "bad" / f"append@keys={os.getpid()}-{next(count)}{padding}"))


def begin_lines(root: Path, scale: float) -> None:
    """Lines that have no end yet, growing in many open files."""
    path = root / "bad" / "append"
    fds = [os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(int(400 * scale) + 1)]
    at_once(4, lambda number: [os.write(fd, b"x" * 4096) for fd in fds[number::4]])


def drop_files(root: Path, scale: float) -> None:
    """Files of a drop box, each kept open until another descriptor is refused. Every second one becomes a message when
    it is closed; the others wait, until more are refused."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    box, count, many = root / "bad" / "drop", itertools.count(), int(16_000 * scale)
    opened: deque[int] = deque()
    waiting: deque[Path] = deque()

    def drop() -> None:
        number = next(count)
        path = box / f"{'.' if number % 2 else ''}{os.getpid()}-{number}"
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, b"x" * 100)
        opened.append(fd)
        if number % 2:
            waiting.append(path)

    def drop_or_make_room(_: int) -> None:
        try:
            drop()
        except OSError as error:
            if error.errno == errno.EDQUOT:
                waiting.popleft().unlink()
            elif error.errno != errno.EMFILE:
                raise
            os.close(opened.popleft())
        if len(opened) > many:
            os.close(opened.popleft())

    at_once(4, drop_or_make_room)


ATTACKS: dict[str, Callable[[Path, float], None]] = {
    "stats": stat_names,
    "json": write_json,
    "keys": look_up_keys,
    "names": name_files,
    "lines": begin_lines,
    "drops": drop_files,
}

COLLIDING = 300_000
"""Messages with a key of the one hash that `look_up_keys` asks for."""


# the victim


def measure(root: Path, outside: Path, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, those of ordinary files by `outside-` and their names."""
    lines = os.open(root / "good" / "0" / "append", os.O_WRONLY | os.O_APPEND)
    plain = os.open(outside / "lines", os.O_WRONLY | os.O_APPEND)
    calls: dict[str, Callable[[], object]] = {
        "cat": (root / "good" / "0" / "@first").read_bytes,
        "outside-cat": (outside / "small").read_bytes,
        "write": lambda: os.write(lines, b"hello\n"),
        "outside-write": lambda: os.write(plain, b"hello\n"),
    }
    took: dict[str, list[float]] = {name: [] for name in calls}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took[name].append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    return took


# the proof


@contextmanager
def served(folder: Path) -> Iterator[Path]:
    """A mount of a new store below a folder, which others may use, and which can be restarted."""
    root = folder / "mount"
    root.mkdir(parents=True)
    command("mount", "--allow-other", "--append-mode", "666", "--log-file", folder / "log", folder / "store", root)
    try:
        for topic in ("good", "bad"):
            (root / f"{topic}@queues=1").mkdir()
        (root / "good" / "append").write_bytes(b"small\n")
        yield root
        command("umount", root)
    finally:
        unmount_lazily(root)


def command(*words: str | Path) -> None:
    """`mountctl`, which has to succeed."""
    subprocess.run([sys.executable, "-m", "mountctl", *words], cwd=REPOSITORY, check=True, capture_output=True)


def prepare(root: Path, outside: Path, scale: float) -> None:
    """Preparations for attacks and victim."""
    lines = b"".join(b'{"keys":["AaAaAaAaAaAa"],"body":"%d"}\n' % number for number in range(int(COLLIDING * scale)))
    with (root / "bad" / "append@format=json").open("wb") as file:
        file.write(lines)
    outside.mkdir()
    (outside / "small").write_bytes(b"small")
    (outside / "lines").touch()
    (outside / "lines").chmod(0o666)


def started(user: int, role: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A role in a process of its own, of that user."""
    words = [sys.executable, "-m", "tests.durability.neighbours", "--role", str(user), role, *map(str, arguments)]
    return subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE)


@contextmanager
def attacked(root: Path, attack: str | None, scale: float) -> Iterator[None]:
    """Meanwhile a mount is attacked; not where `attack` is None."""
    if attack is None:
        yield
        return
    attacker = started(ATTACKER, attack, root, scale)
    try:
        time.sleep(1.5)
        assert attacker.poll() is None, f"the attack {attack} ended"
        yield
        assert attacker.poll() is None, f"the attack {attack} ended"
    finally:
        attacker.kill()
        attacker.communicate()


def took_by_victim(root: Path, outside: Path, seconds: float, meanwhile: Callable[[], None]) -> dict[str, list[float]]:
    """A victim's measurements; `meanwhile` is called after their start."""
    victim = started(VICTIM, "victim", root, outside, seconds)
    time.sleep(0.5)
    meanwhile()
    output, _ = victim.communicate()
    assert victim.returncode == 0, "the victim met an error"
    took: dict[str, list[float]] = json.loads(output)
    return took


def seen_by_victim(root: Path, outside: Path, seconds: float) -> Seen:
    """A victim's measurements."""
    took = took_by_victim(root, outside, seconds, lambda: None)
    inside = {call: Times.of(took[call]) for call in CALLS}
    return Seen(inside, {call: Times.of(took[f"outside-{call}"]) for call in CALLS})


def longest_over_restart(root: Path, outside: Path) -> float:
    """The victim's longest wait in milliseconds while the daemon of a mount is replaced."""
    took = took_by_victim(root, outside, 4, lambda: command("restart", root))
    return max(max(took[call]) for call in CALLS)


def accounts_of(root: Path) -> dict[str, dict[str, Any]]:
    """The accounts of users in the mount's status."""
    found: dict[str, dict[str, Any]] = json.loads((root / "@store" / "status.json").read_bytes())["accounts"]
    return found


def used_beside(folder: Path, attacks: Sequence[str], seconds: float, scale: float) -> dict[str, dict[str, Any]]:
    """The accounts in the mount's status after each attack, during which a victim met no error."""
    folder.chmod(0o755)
    found = {}
    with served(folder / "attacked") as root:
        prepare(root, folder / "outside", scale)
        for attack in attacks:
            with attacked(root, attack, scale):
                seen_by_victim(root, folder / "outside", seconds)
                found[attack] = accounts_of(root)
    return found


def run(
    folder: Path, attacks: Sequence[str], seconds: float, scale: float, tell: Callable[[str], None]
) -> dict[str, object]:
    """Each of the attacks, its victim for that long each time; figures and findings."""
    folder.chmod(0o755)
    outside = folder / "outside"
    findings: list[str] = []
    figures: dict[str, object] = {}
    with ExitStack() as stack:
        root, other = (stack.enter_context(served(folder / name)) for name in ("attacked", "other"))
        prepare(root, outside, scale)
        quiet = seen_by_victim(root, outside, seconds)
        for attack in (None, *attacks):
            with attacked(root, attack, scale):
                seen = seen_by_victim(root, outside, seconds)
                over = {which: longest_over_restart(at, outside) for which, at in (("it", root), ("other", other))}
            name = attack or "quiet"
            for call in CALLS:
                allowed, outside_it = seen.allowed_ms(call, quiet), seen.outside[call]
                tell(f"{name:8} {call:6} {seen.inside[call]}, allowed {allowed:6.2f}, outside {outside_it}")
            tell(f"{name:8} restart {over['it']:7.1f} ms, of the other {over['other']:7.1f} ms")
            findings += seen.findings(name, quiet)
            if over["it"] > max(RESTART_MS, MOST_TIMES_OUTSIDE * over["other"]):
                findings.append(f"beside {name}, a restart kept somebody waiting {over['it']:.0f} ms")
            figures[name] = {
                "mount_ms": {call: [round(one, 2) for one in seen.inside[call]] for call in CALLS},
                "ordinary_file_ms": {call: [round(one, 2) for one in seen.outside[call]] for call in CALLS},
                "allowed_p99_ms": {call: round(seen.allowed_ms(call, quiet), 2) for call in CALLS},
                "longest_over_restart_ms": {which: round(one, 1) for which, one in over.items()},
            }
        figures["accounts"] = accounts_of(root)
    return {"neighbours": figures, "findings": findings}


def play(user: int, role: str, arguments: Sequence[str]) -> None:
    """The work of a process of `started`."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    if role == "victim":
        root, outside, seconds = arguments
        print(json.dumps(measure(Path(root), Path(outside), float(seconds))))
    else:
        ATTACKS[role](Path(arguments[0]), float(arguments[1]))


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of threads, handles and messages")
    parser.add_argument("--attack", choices=ATTACKS, action="append", help="this one alone; again for more")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        user, role, *arguments = chosen.role
        play(int(user), role, arguments)
        return 0
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        attacks = chosen.attack or list(ATTACKS)
        each_s = chosen.minutes * 60 / (len(attacks) + 2) - 10
        found = run(Path(folder), attacks, max(each_s, 4), chosen.scale, partial(print, flush=True))
    keep("neighbours", found)
    return 1 if found["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
