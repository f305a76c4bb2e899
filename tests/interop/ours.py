"""We write, they read: stores of our engine, clean and killed, through the real RocketMQ, and on in turns."""

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import MessageStore
from tests.interop.compare import compare_dumps, compare_queries, our_dump, queries_for
from tests.interop.driver import Driver, LoadRefusedError
from tests.interop.messages import Put
from tests.interop.room import SMALL, Room, java_config, our_config, warning_kinds
from tests.interop.theirs import PUTS, QUERIES, compare_acknowledged, put_all, they_write_until_killed
from tests.interop.toolchain import PROJECT
from tests.interop.writer import Plan, put_one

TURNS = 3
PUTS_A_TURN = 80
WRITER_LIMIT_SECONDS = 300
OWN_STORES, OWN_TRIES = 2, 10


@dataclass(frozen=True, slots=True)
class Written:
    """A writer's puts, and their answers before its end."""

    puts: list[Put]
    acknowledged: list[dict[str, Any]]


def clean(room: Room) -> None:
    """A store that we closed, then three turns of appending: they, we, they, we, they, we."""
    plan = Plan(str(room.folder / "ours"), SMALL, room.seed, PUTS)
    written = write(plan)
    room.tally.expect("puts acknowledged", len(written.puts), len(written.acknowledged))
    they_read(room, plan, written, was_killed=False, turns=TURNS)


def killed(room: Room) -> None:
    """Our writer dies by SIGKILL in the middle of puts; then three turns."""
    plan = Plan(str(room.folder / "ours"), SMALL, room.seed, PUTS, delays=False)
    written = write(plan, kill_after=PUTS // 2 + room.seed % 50)
    they_read(room, plan, written, was_killed=True, turns=TURNS)


def killed_before_new_file(room: Room) -> None:
    """Our writer dies inside a file roll: the old file is full, the new one is not there yet."""
    killed_in_roll(room, die_before=True)


def killed_after_new_file(room: Room) -> None:
    """Our writer dies inside a file roll: the new file is there, and nothing is in it."""
    killed_in_roll(room, die_before=False)


def killed_in_roll(room: Room, *, die_before: bool) -> None:
    plan = Plan(str(room.folder / "ours"), SMALL, room.seed, PUTS, delays=False, die_at_file=3, die_before=die_before)
    written = write(plan)
    room.tally.expect("the writer died", True, len(written.acknowledged) < len(written.puts))
    they_read(room, plan, written, was_killed=True, turns=1)


def write(plan: Plan, *, kill_after: int | None = None) -> Written:
    """Run the plan in a process of its own, killed once so many puts are acknowledged."""
    puts = plan.puts()
    acknowledged = []
    command = [sys.executable, "-m", "tests.interop.writer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=PROJECT, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(plan.to_json())
        process.stdin.close()
        for line in process.stdout:
            if line.endswith("\n"):
                acknowledged.append(json.loads(line))
            if len(acknowledged) == kill_after:
                process.kill()
        process.wait(WRITER_LIMIT_SECONDS)
    return Written(puts, acknowledged)


def they_read(room: Room, plan: Plan, written: Written, *, was_killed: bool, turns: int) -> None:
    """RocketMQ opens our store: the same messages and queries, no warning that its own store would not cause."""
    path = Path(plan.path)
    queries = queries_for(written.puts, QUERIES)
    copy = room.copy(path, "copy")
    usual = own_warnings(room, was_killed=was_killed)
    with room.driver() as driver:
        with driver.store(path, java_config(SMALL)) as store:
            dump = store.dump()
            answers = store.query(queries)
        with MessageStore.open(copy, our_config(SMALL)) as ours:
            compare_dumps(room.tally, dump, our_dump(ours))
            compare_queries(room.tally, queries, answers, ours, ours_may_find_more=was_killed)
            compare_acknowledged(room.tally, written.puts, written.acknowledged, ours)
        left_by_us = dump
        for turn in range(1, turns + 1):
            left_by_us = append_in_turn(room, driver, path, turn, left_by_us)
        with driver.store(path, java_config(SMALL)) as store:
            compare_dumps(room.tally, store.dump(), left_by_us)
        room.tally.expect("unusual warnings", set(), warning_kinds(driver.take_warnings()) - usual)


def append_in_turn(room: Room, driver: Driver, path: Path, turn: int, left_by_us: dict[str, Any]) -> dict[str, Any]:
    """They open, find what we left, append and close; we open, find what they left, append and close. What we left."""
    with driver.store(path, java_config(SMALL)) as store:
        compare_dumps(room.tally, store.dump(), left_by_us)
        put_all(store, room.puts(PUTS_A_TURN, salt=2 * turn))
        left_by_them = store.dump()
    with MessageStore.open(path, our_config(SMALL)) as ours:
        compare_dumps(room.tally, left_by_them, our_dump(ours))
        for put in room.puts(PUTS_A_TURN, salt=2 * turn + 1):
            put_one(ours, put)
        return our_dump(ours)


def own_warnings(room: Room, *, was_killed: bool) -> set[str]:
    """What RocketMQ logs when it opens, reads, appends to and closes stores that it wrote itself.

    Stores differ in where they end, and killed ones in how far dispatch was; several of them show what is usual.
    What it logs about a store that was closed is usual for a killed one too, whose dispatch may have been complete.
    """
    if was_killed not in room.own_warnings:
        kinds = own_warnings(room, was_killed=False) if was_killed else set()
        visited = 0
        for seed in range(room.seed, room.seed + OWN_TRIES):
            with contextlib.suppress(LoadRefusedError):  # it may not start on its own killed store
                path = room.folder / f"own-{seed}-{was_killed}"
                kinds = kinds | visit_own(replace(room, seed=seed), path, was_killed=was_killed)
                visited += 1
            if visited == OWN_STORES:
                break
        room.own_warnings[was_killed] = kinds
    return room.own_warnings[was_killed]


def visit_own(room: Room, path: Path, *, was_killed: bool) -> set[str]:
    # a queue whose newest file is exactly full is a state of its own, that RocketMQ warns about when it closes
    puts = [*(Put("full", 0, b"x") for _ in range(SMALL.consume_queue_entries)), *room.puts(PUTS)]
    if was_killed:
        they_write_until_killed(room, path, puts)
    with room.driver() as driver:
        if not was_killed:
            with driver.store(path, java_config(SMALL)) as store:
                put_all(store, puts)
            driver.take_warnings()
        with driver.store(path, java_config(SMALL)) as store:
            store.dump()
            store.query(queries_for(puts, 10))
            put_all(store, room.puts(PUTS_A_TURN * 2, salt=1))
            store.dump()
        return warning_kinds(driver.take_warnings())
