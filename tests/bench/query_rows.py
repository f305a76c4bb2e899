"""Questions about bodies by `mountctl`, beside jq, DuckDB and rg over the same bodies in one file (rows query)."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.bench.grep_rows import cpu_of, make_both
from tests.bench.measure import LeftOutError, Pairs, interleave
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import TOPIC
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
