"""Searching bodies by `mountctl grep`, beside `rg` over the same bodies in one file (rows grep)."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from engine import MessageStore
from engine.files.mapped_file import next_data
from tests.bench.measure import LeftOutError, Pairs, interleave, seconds
from tests.bench.room import POLL_SECONDS, Room
from tests.bench.rows import Row
from tests.bench.workload import LINES_A_PUT, TOPIC, body
from tests.interop.mounts import MOUNTCTL

RG = "rg, one file"
QUEUES = 4
FORGET_LIMIT_SECONDS = 30
LEVELS = (b"INFO", b"WARN", b"Error")


def searched(number: int) -> bytes:
    """A body of about 250 bytes: a line of JSON."""
    return b'{"id":%d,"level":"%s","text":"%s"}' % (number, LEVELS[number % 3], body(number)[:210])


def make_both(count: int, path: Path) -> None:
    """A store of so many messages in several queues, and their bodies as lines of `bodies` in it."""
    with MessageStore.open(path, create=True) as store, (path / "bodies").open("wb") as bodies:
        store.create_topic(TOPIC, QUEUES)
        for begin in range(0, count, LINES_A_PUT):
            lines = b"".join(searched(number) + b"\n" for number in range(begin, min(begin + LINES_A_PUT, count)))
            bodies.write(lines)
            store.put_lines(TOPIC, lines, begin // LINES_A_PUT % QUEUES)


def cpu_of(command: Sequence[str | Path]) -> float:
    """Processor time of a search, which must find something."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def grep(words: Sequence[str], mounted: bool, room: Room) -> Pairs:
    """Both find the same; their output is discarded."""
    rg = shutil.which("rg")
    if rg is None:
        raise LeftOutError("no rg here (apt install ripgrep)")
    store = room.store("searched", partial(make_both, room.scale.streamed))

    def sides(place: Path) -> Pairs:
        ours = partial(cpu_of, [MOUNTCTL, "grep", place, *words, TOPIC])
        return interleave(ours, partial(cpu_of, [rg, *words, store / "bodies"]), room.scale.rounds)

    if not mounted:
        return sides(store)
    with room.mounted(store) as queue:
        return sides(queue.parents[1])


def forget(path: Path) -> None:
    """Have the page cache forget a file, or all that is below a folder. LeftOutError: it does not."""
    for file in filter(Path.is_file, path.rglob("*") if path.is_dir() else [path]):
        limit = time.monotonic() + FORGET_LIMIT_SECONDS  # somebody may have it mapped who is about to end
        while not is_forgotten(file):
            if time.monotonic() > limit:
                raise LeftOutError(f"{file.name} stays in the page cache")
            time.sleep(POLL_SECONDS)


def is_forgotten(file: Path) -> bool:
    """Ask the page cache to forget a file; whether it did."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what is not on disk is not forgotten
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        written = next_data(descriptor, 0, file.stat().st_size)  # zeros are made without the disk
        return not os.preadv(descriptor, [bytearray(1)], written, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def cold(words: Sequence[str], room: Room) -> Pairs:
    """Both find the same in files that are on disk alone: how long it takes."""
    rg = shutil.which("rg")
    if rg is None:
        raise LeftOutError("no rg here (apt install ripgrep)")
    store = room.store("searched", partial(make_both, room.scale.streamed))

    def side(forgotten: Path, *command: str | Path) -> float:
        forget(forgotten)
        return seconds(partial(cpu_of, command))

    ours = partial(side, store, MOUNTCTL, "grep", store, *words, TOPIC)
    return interleave(ours, partial(side, store / "bodies", rg, *words, store / "bodies"), room.scale.rounds)


def row(name: str, work: str, *words: str, mounted: bool = False) -> Row:
    return Row(f"grep {name}", work, RG, "s CPU", 2, partial(grep, words, mounted), at_most=True)


ROWS = (
    row("rare", "`mountctl grep` of a text in one message", '"id":123456,'),
    row("mounted", "the same, the store mounted", '"id":123456,', mounted=True),
    Row("grep cold", "the same, not in the page cache", RG, "s", 2, partial(cold, ['"id":123456,']), at_most=True),
    row("any case", "`mountctl grep -i` of a text in one message", "-i", '"ID":123456,'),
    row("count", "`mountctl grep -c` of a text in a third of the messages", "-c", "Error"),
    row("print", "the same, printed", "Error"),
    row("regex", "`mountctl grep -c` of a regular expression", "-c", '"id":[0-9]*7,"level":"(WARN|Error)"'),
)
