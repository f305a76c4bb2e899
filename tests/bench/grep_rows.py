"""Searching bodies by `mountctl grep`, beside `rg` over the same bodies in one file (rows grep)."""

import resource
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from engine import MessageStore
from tests.bench.measure import LeftOutError, Pairs, interleave
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import LINES_A_PUT, TOPIC, body
from tests.interop.mounts import MOUNTCTL

RG = "rg, one file"
QUEUES = 4
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
    """Both find the same; what they print goes nowhere."""
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


def row(name: str, work: str, *words: str, mounted: bool = False) -> Row:
    return Row(f"grep {name}", work, RG, "s CPU", 2, partial(grep, words, mounted), at_most=True)


ROWS = (
    row("rare", "`mountctl grep` of a text in one message", '"id":123456,'),
    row("mounted", "the same, the store mounted", '"id":123456,', mounted=True),
    row("any case", "the same with `-i`", "-i", '"ID":123456,'),
    row("count", "`mountctl grep -c` of a text in a third of the messages", "-c", "Error"),
    row("print", "the same, printed", "Error"),
    row("regex", "`mountctl grep -c` of a regular expression", "-c", '"id":[0-9]*7,"level":"(WARN|Error)"'),
)
