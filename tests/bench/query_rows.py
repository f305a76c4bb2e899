"""Questions about bodies by `mountctl`, beside jq, DuckDB and rg over the same bodies in one file (rows query); with
`--huge` beside the same questions to a store with a tenth of the messages."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from engine import MessageStore, StoreConfig
from tests.bench.grep_rows import QUEUES, cpu_of, make_both, searched
from tests.bench.growth import HUGE, STORE_BYTES_A_MESSAGE
from tests.bench.measure import LeftOutError, Pairs, interleave, seconds
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import LINES_A_PUT, TOPIC
from tests.interop.mounts import MOUNTCTL

Peer = Callable[[Path], list[str | Path]]
"""The peer's command for a file of bodies."""

JQ, DUCKDB, RG = "jq, one file", "DuckDB, one thread", "rg, one file"
_DUCKDB = """
import duckdb, sys
connection = duckdb.connect()
connection.execute("set threads = 1; set enable_progress_bar = false")
table = f"read_ndjson_objects('{sys.argv[1]}')"
for row in connection.execute(sys.argv[2].replace("bodies", table)).fetchall():
    print(*row)
"""


def program(name: str, package: str, *words: str) -> Peer:
    """A program of Debian's, with the file behind its words. LeftOutError: it is not here."""

    def command(bodies: Path) -> list[str | Path]:
        found = shutil.which(name)
        if found is None:
            raise LeftOutError(f"no {name} here (apt install {package})")
        return [found, *words, bodies]

    return command


def duckdb(query: str) -> Peer:
    """A query of DuckDB's for `bodies`, a table whose column is `json`."""
    return lambda bodies: [sys.executable, "-c", _DUCKDB, bodies, query]


def answers(command: Sequence[str | Path]) -> int:
    """How many lines a command prints."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return len(re.findall(b"\n", done.stdout))


def beside(words: Sequence[str], peer: Peer, room: Room) -> Pairs:
    """Both print as many lines; then their processor times."""
    store = room.store("searched", partial(make_both, room.scale.streamed))
    verb, *options = words
    ours: list[str | Path] = [MOUNTCTL, verb, store, TOPIC, *options]
    theirs = peer(store / "bodies")
    assert answers(ours) == answers(theirs), (ours, theirs)
    return interleave(partial(cpu_of, ours), partial(cpu_of, theirs), room.scale.rounds)


def row(name: str, work: str, target: float, peer_name: str, peer: Peer, *words: str) -> Row:
    return Row(f"query {name}", work, peer_name, "s CPU", target, partial(beside, words, peer), at_most=True)


_BOTH = "--where", 'level = "Error" and id > 300000'
_SQL = "select json from bodies where json->>'$.level' = 'Error' and (json->>'$.id')::bigint > 300000"
_RARE = "--where", "id >= 123456 and id < 123460"

ROWS = (
    row(
        *("where", "`mountctl cat --where` of two fields, a part of the messages", 1 / 3, JQ),
        program("jq", "jq", "-c", 'select(.level == "Error" and .id > 300000)'),
        *("cat", *_BOTH),
    ),
    row("where sql", "the same", 2, DUCKDB, duckdb(_SQL), "cat", *_BOTH),
    row(
        *("where rare", "`mountctl cat --where` of a number in four messages: each body is decoded", 1 / 3, JQ),
        program("jq", "jq", "-c", "select(.id >= 123456 and .id < 123460)"),
        *("cat", *_RARE),
    ),
    row(
        *("where text", "`mountctl cat --where` of a text in a third of the messages", 10, RG),
        program("rg", "ripgrep", '"level":"Error"'),
        *("cat", "--where", 'level = "Error"'),
    ),
    row(
        *("hist", "`mountctl hist --field`: how often each value of a field comes", 2, DUCKDB),
        duckdb("select json->>'$.level' as level, count(*) from bodies group by level union all select 'title', 0"),
        *("hist", "--field", "level"),
    ),
)

FIRST_MS = 1_769_842_800_000
"""Store time of the first messages of a timed store, in which messages come one a millisecond on average."""
WINDOW = 48_000
"""Messages in the time that is asked for, in the middle of each store."""


def make_timed(count: int, path: Path) -> None:
    """A store of so many messages in several queues, over so many milliseconds. LeftOutError: the disk is full."""
    needed, free = STORE_BYTES_A_MESSAGE * count, shutil.disk_usage(path.parent).free
    if needed > free:
        raise LeftOutError(f"the store takes {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
    now_ms = FIRST_MS
    with MessageStore.open(path, StoreConfig(clock=lambda: now_ms), create=True) as store:
        store.create_topic(TOPIC, QUEUES)
        for begin in range(0, count, LINES_A_PUT):
            now_ms = FIRST_MS + begin
            lines = b"".join(searched(number) + b"\n" for number in range(begin, min(begin + LINES_A_PUT, count)))
            store.put_lines(TOPIC, lines, begin // LINES_A_PUT % QUEUES)


def in_the_middle(count: int) -> list[str]:
    """Options for WINDOW messages of a timed store."""
    begin_ms = FIRST_MS + count // 2 // LINES_A_PUT * LINES_A_PUT
    return ["--from", f"@{begin_ms}", "--until", f"@{begin_ms + WINDOW}"]


def beside_a_small_one(words: Sequence[str], is_timed: bool, room: Room) -> Pairs:
    """How long it takes in a huge store, and in one with a tenth of the messages. LeftOutError: the disk is full."""
    commands: list[list[str | Path]] = []
    for count in (room.scale.growth_huge, room.scale.growth_huge // 10):
        store = room.store(f"timed-{count}", partial(make_timed, count))
        commands.append([MOUNTCTL, words[0], store, TOPIC, *words[1:], *(in_the_middle(count) if is_timed else [])])
    huge, small = commands
    if is_timed:
        assert answers(huge) == answers(small) > 1, commands
    ours, theirs = (partial(seconds, partial(cpu_of, command)) for command in (huge, small))
    return interleave(ours, theirs, room.scale.rounds)


def huge_row(name: str, work: str, *words: str, is_timed: bool = True) -> Row:
    run = partial(beside_a_small_one, words, is_timed)
    return Row(f"query {name} {HUGE}", work, "a tenth of the messages", "s", 2, run, at_most=True)


HUGE_ROWS = (
    huge_row("hist", "`mountctl hist --by 1s` of 48 s, in the middle of 100 million messages", "hist", "--by", "1s"),
    huge_row(
        "where",
        "`mountctl cat --where` of two fields, of the same time",
        "cat",
        *_BOTH[:1],
        'level = "Error" and id > 0',
    ),
    huge_row("fields", "`mountctl fields`: a sample of 10,000 of all", "fields", is_timed=False),
)
"""They need 50 GB of disk, so they run when they are asked for."""
