"""Reads that the disk refuses: each kind of file of a store, in each way of using it.

    python -m tests.durability.readerrors [--first 0] [--cases N] [--only TEXT]

Each case puts the file system of faultfs.c below a store that is known to the byte, has it refuse, cut or delay reads
of one page or file, and uses the store: by one verb without a mount, or by the files and verbs of a mount of one of the
three kinds, with the fault from the beginning or later. No process may die by a signal, hang or print a traceback. No
server of a mount may be replaced. Exactly the messages with a byte in the page are refused. `check` names the file;
repair and backup come to their end. Then the disk is well again, and every acknowledged message has to be there.
"""

from __future__ import annotations

import argparse
import csv
import errno
import fnmatch
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from engine import MessageStore, ReadError, StoreConfig, check_store, repair_store
from tests.durability.bodies import body_of, identify
from tests.durability.children import PATIENCE_S, Ended, in_child, type_in_child
from tests.durability.faultfs import FaultyDisk, Rule, faulty_disk
from tests.durability.figures import keep
from tests.durability.liveness import ALIVE, Level, level_of, not_alive
from tests.durability.reached import Reached
from tests.durability.samples import (
    DELETED,
    DELETED_BODY,
    ENTRY_BYTES,
    GROUPS,
    INDEX_HEADER_BYTES,
    PAGE,
    QUEUES,
    SIZES,
    SLOT_BYTES,
    WRITER,
    Sample,
    body,
    key_of,
    queue_of,
    sample,
)
from tests.mount.harness import REPOSITORY, unmount_lazily

MET_BY_RECOVERY = "a page that can't be read, met by recovery"
PUT_BESIDE = "a message put beside a fault"
NOT_PUT = "a put that a fault had refused"
STATES = (MET_BY_RECOVERY, PUT_BESIDE, NOT_PUT)
"""States that must have occurred, beside each refused range that must have been read."""

MODES = ("write", "read-only", "follow")
SOURCES = ("closed", "killed")
PUTTER = 2
"""The writer of messages that are put beside a fault."""

# faults


@dataclass(frozen=True)
class Place:
    """Bytes of one kind of file: `file` is a pattern for paths below the store. `part` is the folder, or "" of a file
    that is no data of messages."""

    name: str
    file: str
    first: int = 0
    end: int = 1 << 62
    part: str = ""
    holds_data: bool = True
    """Whether a byte of a message, an entry or a setting is in it, so that `check` has to name it."""


def places(store: Sample) -> list[Place]:
    """One of each kind."""
    log, index = store.files("commitlog"), store.files("index")[0]
    queue = "consumequeue/orders/0/" + "0" * 20
    newest = (store.log_end - 1) % SIZES.commit_log_bytes // PAGE * PAGE
    entries = sum(known.topic == "orders" and known.queue == 0 for known in store.messages.values())
    tail = (entries * ENTRY_BYTES - 1) // PAGE * PAGE
    slots_end = INDEX_HEADER_BYTES + SIZES.index_slots * SLOT_BYTES

    def page(name: str, file: str, first: int, *, holds_data: bool = True) -> Place:
        return Place(name, file, first, first + PAGE, file.split("/")[0], holds_data)

    return [
        page("first page of the log", log[0], 0),
        page("middle page of the log", log[1], 15 * PAGE),
        page("first page of a later log file", log[2], 0),
        page("newest page of the log", log[-1], newest),
        page("page after the log's end", log[-1], newest + PAGE, holds_data=False),
        page("first page of a queue", queue, 0),
        page("middle page of a queue", queue, tail // 2 // PAGE * PAGE),
        page("newest page of a queue", queue, tail),
        page("header of the index", index, 0),
        page("slots of the index", index, 2 * PAGE),
        page("entries of the index", index, slots_end // PAGE * PAGE + 2 * PAGE),
        Place("checkpoint", "checkpoint"),
        Place("topics.json", "config/topics.json"),
        Place("topics.json and its .bak", "config/topics.json*"),
        Place("consumerOffset.json", "config/consumerOffset.json"),
        Place("sizes.json", "config/sizes.json"),
        Place("clean.json", "fsstore/clean.json"),
        Place("coverage.json", "fsstore/coverage.json"),
        Place("deleted.json", "fsstore/deleted.json"),
        Place("all of fsstore/", "fsstore/*"),
        Place("lock", "lock", holds_data=False),
    ]


KINDS: dict[str, Callable[[Place, str], list[Rule]]] = {
    "refused": lambda place, file: [Rule("read", file, first=place.first, end=place.end)],
    "refused once": lambda place, file: [Rule("read", file, first=place.first, end=place.end, times=1)],
    "not opened": lambda place, file: [Rule("open", file), Rule("open_write", file)],
    "cut": lambda place, file: [Rule("read", file, 0, first=place.first, end=place.end, length=0)],
    "slow": lambda place, file: [Rule("read", file, 0, first=place.first, end=place.end, times=3, delay_s=0.5)],
}


@dataclass(frozen=True)
class Fault:
    """What the disk does, and what that may cost: `must` and `may` are numbers of messages that can't, or may not, be
    read; `keys` whether look-ups by key may fail; `may_refuse` whether a store need not be opened at all."""

    place: Place
    kind: str
    must: frozenset[int]
    may: frozenset[int]
    keys: bool
    may_refuse: bool

    def rules(self, store: str) -> list[Rule]:
        """The rules for the file system below a store of that name."""
        return KINDS[self.kind](self.place, f"/{store}/{self.place.file}")

    def is_named(self, text: str) -> bool:
        """Whether a text says where the fault is."""
        parts = self.place.file.rstrip("*").rsplit("/", 2)
        return any(word in text for word in ("/".join(parts[-2:]), parts[-1]) if word)

    def __str__(self) -> str:
        return f"{self.place.name} {self.kind}"


def fault(store: Sample, place: Place, kind: str) -> Fault:
    """Determine the cost of the fault."""
    end = place.end if kind.startswith("refused") else 1 << 62
    first = 0 if kind == "not opened" else place.first
    may: frozenset[int] = frozenset()
    if kind != "slow" and place.part == "commitlog":
        may = store.in_log(place.file, first, min(end, SIZES.commit_log_bytes))
    elif kind not in ("slow", "refused", "refused once") and place.part == "consumequeue":  # the log has these
        may = store.in_queue(place.file, first, end)
    must = may if place.part == "commitlog" and kind == "refused" else frozenset()
    keys = kind != "slow" and place.part == "index"
    return Fault(place, kind, must, may, keys, kind in ("not opened", "cut"))


# findings


@dataclass
class Finding:
    """Findings from one use of a store."""

    wrong: list[str] = field(default_factory=list)
    put: set[int] = field(default_factory=set)
    """Numbers of PUTTER's messages that were acknowledged."""
    refused_puts: int = 0
    may_be_back: bool = False
    """Whether a deleted topic may be there again, with its message: what says that it is gone can't be read."""

    def expect(self, is_true: bool, what: str) -> None:
        """Note a finding."""
        if not is_true:
            self.wrong.append(what)


def numbers_in(lines: Iterable[bytes], found: Finding, what: str) -> set[int]:
    """The sample's messages among lines that are bodies; whatever else there is is wrong."""
    there: list[int] = []
    strange: list[bytes] = []
    for line in lines:
        try:
            writer, number = identify(line)
        except AssertionError:
            if not (found.may_be_back and line == DELETED_BODY):
                strange.append(line)
            continue
        if writer == WRITER:
            there.append(number)
    found.expect(not strange, f"{what} shows {len(strange)} bodies that are not as they were put: {strange[:1]}"[:200])
    found.expect(len(set(there)) == len(there), f"{what} shows messages twice")
    return set(there)


def compare(there: set[int], wanted: Iterable[int], fault: Fault, found: Finding, what: str) -> None:
    """`there` are those of `wanted` that could be read: all but those that the fault may cost."""
    missing = set(wanted) - there - fault.may
    found.expect(not missing, f"{what} leaves out {len(missing)} messages that are not in the page")
    shown = there & fault.must
    found.expect(not shown, f"{what} shows {len(shown)} messages of a page that can't be read")


# verbs


@dataclass(frozen=True)
class Use:
    """Where a verb is used: the store or its mount; `folder` is for what it makes."""

    target: Path
    folder: Path


Verb = Callable[[Sample, Fault, Use, Finding], Ended]


def read_by(*words: str, topics: tuple[str, ...] = ("orders", "events")) -> Verb:
    """A verb that prints bodies."""

    def use(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
        ended = type_in_child([word.format(target=where.target) for word in words])
        there = numbers_in((line.encode() for line in ended.out.splitlines()), found, words[0])
        wanted = {number for number, known in store.messages.items() if known.topic in topics}
        if not is_refusal(ended, fault):
            compare(there, wanted, fault, found, words[0])
            require_words(ended, fault.must & wanted, wanted - there, found, words[0])
        return ended

    return use


def is_refusal(ended: Ended, fault: Fault) -> bool:
    """Whether a verb said that it can't do its work, where that is all right, and why."""
    return fault.may_refuse and ended.code > 0 and fault.is_named(ended.err)


def use_consume(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    """A group's offset is only in its file: without that no message is consumed."""
    needs = "consumerOffset" in fault.place.file and fault.kind != "slow"
    return CONSUME(store, replace(fault, may_refuse=fault.may_refuse or needs), where, found)


def require_words(ended: Ended, must: Iterable[int], missing: set[int], found: Finding, what: str) -> None:
    """A client that did not get all messages must get an exit code and a message about it."""
    if any(True for _ in must) or missing:
        found.expect(ended.code != 0, f"{what} ends with 0 though {len(missing)} messages are missing")
        found.expect(bool(ended.err.strip()), f"{what} does not say that {len(missing)} messages are missing")
    elif ended.code > 0:
        found.wrong.append(f"{what} gives all and ends with {ended.code}: {ended.last_words}")


def use_topics(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    ended = type_in_child(["topics", str(where.target)])
    if not is_refusal(ended, fault):
        found.expect(ended.code == 0, f"topics ends with {ended.code}: {ended.last_words}")
        found.expect("orders" in ended.out and "events" in ended.out, "topics leaves topics out")
    return ended


def use_status(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    ended = type_in_child(["status", str(where.target), "--json"])
    if not is_refusal(ended, fault):
        found.expect(ended.code == 0, f"status ends with {ended.code}: {ended.last_words}")
    return ended


def use_put(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    bodies = {number: body_of(PUTTER, number, 120).decode() for number in range(10, 13)}
    ended = type_in_child(["put", str(where.target), "orders", *bodies.values()])
    if ended.code == 0:
        found.put |= set(bodies)
    else:
        found.refused_puts += 1
        found.expect(bool(ended.err.strip()), "put fails without a word")
        may_fail = fault.place.part in ("commitlog", "consumequeue") or fault.may_refuse or fault.kind == "refused once"
        is_read_only = "read" in ended.err
        found.expect(may_fail or is_read_only, f"put ends with {ended.code}: {ended.last_words}")
    return ended


def use_check(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    ended = type_in_child(["check", str(where.target), "--json"])
    if is_refusal(ended, fault):
        return ended
    if fault.kind == "slow":
        found.expect(ended.code == 0, f"check ends with {ended.code}: {ended.out[:200]}{ended.last_words}")
    elif fault.kind in ("refused", "not opened") and fault.place.holds_data:
        found.expect(ended.code != 0, "check finds nothing")
        found.expect(fault.is_named(ended.out + ended.err), f"check does not name the file: {ended.last_words}")
    found.expect(ended.code == 0 or bool(ended.out.strip()), f"check finds nothing, and ends: {ended.last_words}")
    return ended


def use_repair(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    ended = type_in_child(["check", "--repair", str(where.target)])
    if not is_refusal(ended, fault):
        found.expect(ended.code in (0, 1), f"repair ends with {ended.code}: {ended.last_words}")
    return ended


def use_backup(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    copy = where.folder / "backup"
    ended = type_in_child(["backup", str(where.target), str(copy)])
    if not is_refusal(ended, fault):
        found.expect(ended.code in (0, 1), f"backup ends with {ended.code}: {ended.last_words}")
        if ended.code in (0, 1):
            there = read_store(copy)
            missing = set(store.messages) - there
            compare(there, store.messages, fault, found, "the backup")
            if missing or not (ended.code and fault.is_named(ended.err)):  # a setting that it could not copy
                require_words(ended, fault.must, missing, found, "backup")
    shutil.rmtree(copy, ignore_errors=True)
    return ended


def use_copy(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    other = where.folder / "other"
    MessageStore.open(other, StoreConfig(sizes=SIZES, preallocate=False), create=True).close()
    ended = type_in_child(["copy", "--quiet", str(where.target), "orders", str(other), "orders"])
    if not is_refusal(ended, fault):
        wanted = {number for number, known in store.messages.items() if known.topic == "orders"}
        there = read_store(other)
        compare(there, wanted, fault, found, "the copy")
        require_words(ended, fault.must & wanted, wanted - there, found, "copy")
    shutil.rmtree(other)
    return ended


def use_export(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    dataset = where.folder / "dataset"
    ended = type_in_child(["export", "--quiet", str(where.target), str(dataset)])
    if not is_refusal(ended, fault):
        query = f"select body from read_parquet('{dataset}/**/*.parquet')"
        there = numbers_in(parquet_bodies(query), found, "export") if any(dataset.rglob("*.parquet")) else set()
        compare(there, store.messages, fault, found, "the export")
        require_words(ended, fault.must, set(store.messages) - there, found, "export")
    shutil.rmtree(dataset, ignore_errors=True)
    return ended


def parquet_bodies(query: str) -> list[bytes]:
    """Bodies of a dataset."""
    import duckdb

    return [bytes(row[0]) for row in duckdb.sql(query).fetchall()]


def use_sql(store: Sample, fault: Fault, where: Use, found: Finding) -> Ended:
    ended = type_in_child(["sql", str(where.target), "select body from messages", "--csv"])
    if not is_refusal(ended, fault):
        rows = [row[0].encode() for row in csv.reader(io.StringIO(ended.out)) if row][1:]
        there = numbers_in(rows, found, "sql")
        compare(there, store.messages, fault, found, "sql")
        require_words(ended, fault.must, set(store.messages) - there, found, "sql")
    return ended


CONSUME = read_by("consume", "{target}", "orders", "-g", "readers", topics=("orders",))
VERBS: dict[str, Verb] = {
    "cat": read_by("cat", "{target}", "*"),
    "tail": read_by("tail", "-n", "100000", "{target}", "*"),
    "grep": read_by("grep", "--format", "%b", "{target}", "."),
    "consume": use_consume,
    "topics": use_topics,
    "status": use_status,
    "put": use_put,
    "check": use_check,
    "repair": use_repair,
    "backup": use_backup,
    "copy": use_copy,
    "export": use_export,
    "sql": use_sql,
}
ON_MOUNT = ("cat", "tail", "grep", "topics", "status", "check", "backup", "copy", "export", "sql", "consume", "put")


# mounts


@dataclass(frozen=True)
class Mount:
    """A mount of the program that people use, which outlives its servers."""

    root: Path
    log: Path
    said: Ended

    @property
    def is_there(self) -> bool:
        """Whether mounting worked."""
        return self.said.code == 0


def typed(*words: str | Path, patience_s: float = PATIENCE_S) -> Ended:
    """A command line of mountctl in a process of its own, which may fork."""
    command = [sys.executable, "-m", "mountctl", *map(str, words)]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        return Ended(-9, "", "")
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


@contextmanager
def mounted(store: Path, folder: Path, mode: str) -> Iterator[Mount]:
    """Mount, if that works, and unmount at the end in any case."""
    root, log = folder / "mount", folder / "mount.log"
    root.mkdir(exist_ok=True)
    options = [] if mode == "write" else [f"--{mode}"]
    mount = Mount(root, log, typed("mount", "--log-file", log, *options, store, root))
    try:
        yield mount
    finally:
        unmount_lazily(root)


def use_files(store: Sample, mode: str, root: Path) -> int:
    """In a child: read and write all files of the mount; print the results as JSON."""
    errors: dict[int, str] = {}
    wrong: list[str] = []
    for number, known in store.messages.items():
        path = root / known.topic / str(known.queue) / f"{known.offset:020d}"
        errors[number] = outcome(partial(path.read_bytes), wrong, number)
    keys = {number: outcome(partial(read_key, root, number), wrong, number) for number in range(0, len(errors), 7)}
    streams = {}
    for topic in ("orders", "events"):
        text: list[bytes] = []
        said = failure(lambda topic=topic, text=text: text.append((root / f"{topic}.log").read_bytes()))  # type: ignore[misc]
        streams[topic] = [said, *(line.decode(errors="replace") for line in b"".join(text).splitlines())]
    listed = {f"{topic}/{queue}": count_in(root / topic / str(queue)) for topic, queue in QUEUES}
    put, refused = put_lines(root) if mode == "write" else ([], [])
    groups = {group: said_of(root / "@store/groups" / group / "orders/0") for group in GROUPS}
    moved = failure(lambda: (root / "@store/groups/billing/orders/1").write_bytes(b"3\n")) if mode == "write" else ""
    status = json.loads((root / "@store/status.json").read_bytes())
    found = {
        "errors": errors, "keys": keys, "streams": streams, "listed": listed, "put": put, "refused": refused,
        "groups": groups, "moved": moved, "wrong": wrong, "restarts": status.get("restarts", 0),
        "deleted": DELETED in os.listdir(root), "read_only_reason": status["read_only_reason"] or "",
    }  # fmt: skip
    print(json.dumps(found))
    return 0


def failure(call: Callable[[], object]) -> str:
    """The errno's name of a call that fails; empty: it works."""
    try:
        call()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return ""


def outcome(read: Callable[[], bytes], wrong: list[str], number: int) -> str:
    """As `failure`, of reading that message."""
    read_now: list[bytes] = []
    said = failure(lambda: read_now.append(read()))
    if read_now and read_now[0] != body(number):
        wrong.append(f"message {number} reads {read_now[0][:60]!r}")
    return said


def read_key(root: Path, number: int) -> bytes:
    """The message of a key."""
    return (root / queue_of(number)[0] / "keys" / key_of(number)).read_bytes()


def said_of(path: Path) -> str:
    """The content of a small file, or the errno's name."""
    text: list[str] = []
    return failure(lambda: text.append(path.read_text().strip())) or text[0]


def count_in(queue: Path) -> int:
    """How many messages a listing shows; -1 where it fails."""
    with suppress(OSError):
        return sum(name.isdigit() for name in os.listdir(queue))
    return -1


def put_lines(root: Path) -> tuple[list[int], list[str]]:
    """Publish to each queue; numbers of messages that were acknowledged, and errors."""
    put, refused = [], []
    for number, (topic, queue) in enumerate(QUEUES * 2, 100):
        line = body_of(PUTTER, number, 120) + b"\n"
        said = failure(partial((root / topic / str(queue) / "append").write_bytes, line))
        if said:
            refused.append(f"{topic}/{queue}: {said}")
        else:
            put.append(number)
    return put, refused


def judge_files(store: Sample, case: Case, ended: Ended, found: Finding) -> None:
    """Compare a child's findings in a mount with the fault's cost."""
    fault = case.fault
    if ended.death or ended.code:
        found.wrong.append(f"the user of the files {ended.death or ended.last_words}")
        return
    said: dict[str, Any] = json.loads(ended.out)
    found.wrong += said["wrong"]
    errors = {int(number): name for number, name in said["errors"].items()}
    compare({number for number, name in errors.items() if not name}, store.messages, fault, found, "the mount")
    names = Counter(name for name in errors.values() if name)
    found.expect(names.keys() <= {"EIO"} or fault.may_refuse, f"messages are answered {dict(names)}")
    keys = {int(number): name for number, name in said["keys"].items() if int(number) not in fault.may}
    names = Counter(name for name in keys.values() if name)
    if case.way.mode == "follow" and case.source == "killed":
        del names["ENOENT"]  # the writer died before it indexed them; a follower waits for it a while
    found.expect(not names or (fault.keys and names.keys() <= {"EIO"}), f"keys are answered {dict(names)}")
    for topic, (failed, *lines) in said["streams"].items():
        there = numbers_in((line.encode() for line in lines), found, f"{topic}.log")
        wanted = {number for number, known in store.messages.items() if known.topic == topic}
        found.expect(not failed or bool(fault.may), f"{topic}.log is answered {failed}")
        compare(there, wanted, fault, found, f"{topic}.log")
    for queue, count in said["listed"].items():
        if count < 0:
            found.expect(fault.place.part == "consumequeue", f"{queue} can't be listed")
            continue
        least = sum(f"{known.topic}/{known.queue}" == queue for known in store.messages.values())
        found.expect(count >= least or fault.may_refuse, f"{queue} lists {count} of {least} messages")
    found.put |= set(said["put"])
    found.refused_puts += len(said["refused"])
    may_not_put = fault.place.part in ("commitlog", "consumequeue") or fault.may_refuse or fault.kind == "refused once"
    found.expect(may_not_put or not said["refused"], f"publishing is answered {said['refused']}")
    offsets_may_fail = "consumerOffset" in fault.place.file and fault.kind != "slow"
    right = {group: str(offset) for group, offset in GROUPS.items()}
    found.expect(said["groups"] == right or offsets_may_fail, f"groups are {said['groups']}")
    is_only_read = fault.may_refuse and fault.is_named(said["read_only_reason"])
    found.expect(not said["moved"] or offsets_may_fail or is_only_read, f"moving a group is answered {said['moved']}")
    found.expect(said["restarts"] == 0, f"{said['restarts']} servers of the mount died")
    may_be_back = any(name in fault.place.file for name in ("fsstore", "topics.json"))  # without a message
    found.expect(not said["deleted"] or may_be_back, "a deleted topic is there")


# cases


@dataclass(frozen=True)
class Way:
    """How a store is used: by a `verb` while it is not mounted, or through a mount of that `mode`, with its files or
    its verbs; `late`: the fault comes once it serves."""

    verb: str = ""
    mode: str = ""
    late: bool = False
    by_verbs: bool = False

    def __str__(self) -> str:
        if self.verb:
            return self.verb
        return f"{self.mode} mount, fault {'later' if self.late else 'first'}, {'verbs' if self.by_verbs else 'files'}"


WAYS = (
    *(Way(verb=verb) for verb in VERBS),
    *(Way("", mode, late, by_verbs) for mode in MODES for late in (False, True) for by_verbs in (False, True)),
)


@dataclass(frozen=True)
class Case:
    """One fault, one way, one store."""

    fault: Fault
    way: Way
    source: str

    def __str__(self) -> str:
        return f"{self.fault}, {self.source} store, {self.way}"


def matrix(store: Sample) -> list[Case]:
    """Every case, those first that matter most."""
    combinations = itertools.product(KINDS, SOURCES, places(store), WAYS)
    return [
        Case(fault(store, place, kind), way, source)
        for kind, source, place, way in combinations
        if not (source == "killed" and place.file == "fsstore/clean.json")
    ]


@dataclass
class Tally:
    """Counts of cases, and the findings."""

    cases: int = 0
    reached: Reached = field(default_factory=lambda: Reached(*STATES))
    messages_required: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Cases that went wrong, by way."""
    findings: list[str] = field(default_factory=list)


def run_case(store: Sample, case: Case, folder: Path, tally: Tally) -> list[str]:
    """Run the case below `folder`, which is left empty; returns the broken promises."""
    backing = folder / "backing"
    backing.mkdir()
    shutil.copytree(store.folder / case.source, backing / "store")
    found = Finding(may_be_back=is_memory_of_deletions(case.fault))
    with faulty_disk(backing, folder / "disk") as disk:
        try:
            if case.way.verb:
                disk.inject(*case.fault.rules("store"))
                use_verb(store, case, disk.root / "store", folder, found)
            else:
                use_mount(store, case, disk, folder, found)
        except OSError as error:
            found.wrong.append(f"what need not fail is answered {error}")
        tally.reached.note(met(case.fault.place), disk.struck > 0)
        recovers = case.source == "killed" and case.way.mode == "write" and not case.way.late
        tally.reached.note(MET_BY_RECOVERY, recovers and disk.struck > 0 and case.fault.place.part == "commitlog")
    look_again(store, case, backing / "store", found)
    tally.cases += 1
    tally.messages_required += len(store.messages) - len(case.fault.must)
    tally.reached.note(PUT_BESIDE, len(found.put))
    tally.reached.note(NOT_PUT, found.refused_puts)
    tally.failed[str(case.way)] += bool(found.wrong)
    for path in list(folder.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [f"{case}: {text}" for text in found.wrong]


def use_verb(store: Sample, case: Case, target: Path, folder: Path, found: Finding, verb: str = "") -> None:
    """One verb."""
    verb = verb or case.way.verb
    ended = VERBS[verb](store, case.fault, Use(target, folder), found)
    if ended.death:
        found.wrong.append(f"{verb} {ended.death} {ended.last_words}")


def use_mount(store: Sample, case: Case, disk: FaultyDisk, folder: Path, found: Finding) -> None:
    """A mount, and its content."""
    way = case.way
    if not way.late:
        disk.inject(*case.fault.rules("store"))
    with mounted(disk.root / "store", folder, way.mode) as mount:
        if not mount.is_there:
            if not is_refusal(mount.said, case.fault):
                found.wrong.append(f"it is not mounted: {mount.said.last_words}")
            return
        before = level_of(mount.root) if way.mode == "write" else Level(0, 0)
        if way.late:
            warm_up(store, mount.root, case.fault, way.mode, found)
            disk.inject(*case.fault.rules("store"))
        if way.by_verbs:
            if (
                way.mode == "write"
                and case.fault.kind in ("refused", "not opened")
                and not is_there(case.fault.place, disk.root / "store")
            ):
                named = way.late or case.fault.is_named(mount.log.read_text(errors="replace"))
                found.expect(named, f"the log does not say that {case.fault.place.file} was made anew")
                case = replace(case, fault=replace(case.fault, place=replace(case.fault.place, holds_data=False)))
            for verb in ON_MOUNT:
                if verb not in ("put", "consume") or way.mode == "write":
                    use_verb(store, case, mount.root, folder, found, verb)
        else:
            ended = in_child(lambda: use_files(store, way.mode, mount.root))
            judge_files(store, case, ended, found)
            disk.heal()
            if way.mode == "write":
                found.wrong += not_alive(mount.root, before)
        ended = typed("umount", mount.root)
        found.expect(ended.code == 0, f"umount ends with {ended.code}: {ended.last_words}")
        log = mount.log.read_text(errors="replace")
        if found.may_be_back and case.fault.kind == "refused" and not way.late:
            found.expect("fsstore/deleted.json can't be read" in log, "the log does not say what brings topics back")
        for sign in ("Traceback", "Fatal Python error", "was killed by"):
            lines = [line for line in log.splitlines() if sign in line]
            found.expect(not lines, f"the log of the mount has {lines[:1]}")


def is_memory_of_deletions(fault: Fault) -> bool:
    """Whether it may keep the store from knowing which topics are deleted."""
    return fault.kind != "slow" and fnmatch.fnmatch("fsstore/deleted.json", fault.place.file)


def is_there(place: Place, store: Path) -> bool:
    """Whether the disk refuses it for good: a writer makes some files anew, and the recovery point each second."""
    if place.file == "fsstore/coverage.json":
        return False
    return any(failure(partial(read_some, path, place)) for path in store.glob(place.file))


def read_some(path: Path, place: Place) -> bytes:
    """The place's first bytes in a file. OSError."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), min(place.end - place.first, 1 << 20), place.first)


def warm_up(store: Sample, root: Path, fault: Fault, mode: str, found: Finding) -> None:
    """Use a mount before the disk fails: files of the store are open and mapped."""
    some = [number for number in range(0, len(store.messages), 150) if number not in fault.may]
    for number in some:
        known = store.messages[number]
        identify((root / known.topic / str(known.queue) / f"{known.offset:020d}").read_bytes())
        failure(partial(read_key, root, number))
    if mode == "write":
        (root / "events/0/append").write_bytes(body_of(PUTTER, 1, 120) + b"\n")
        found.put.add(1)


def look_again(store: Sample, case: Case, path: Path, found: Finding) -> None:
    """The disk is well: all has to be there that was acknowledged."""
    lost_by_repair = case.fault.may if case.way.verb == "repair" else frozenset()
    ended = in_child(lambda: look(path, repaired=case.way.verb == "repair"))
    if ended.death or ended.code:
        found.wrong.append(f"the store can't be opened when the disk is well: {ended.death or ended.last_words}")
        return
    said = json.loads(ended.out)
    late = set(store.messages) - set(said["sample"]) - lost_by_repair
    if late:
        again = in_child(lambda: look(path, repaired=True))
        lost = late - set(json.loads(again.out)["sample"]) if again.code == 0 else late
        found.expect(not lost, f"LOST: {len(lost)} messages of the sample")
        found.expect(bool(lost), f"{len(late)} messages of the sample are not there until a repair")
    lost = found.put - set(said["put"])
    found.expect(not lost, f"LOST: {len(lost)} of {len(found.put)} messages put beside the fault")
    framed = case.fault.place.file if lost_by_repair else ""  # pages that a repair could not read stay damaged
    rest = [problem for problem in said["problems"] if not (framed and problem.startswith(f"bad record: {framed}"))]
    found.wrong += [f"when the disk is well: {problem}" for problem in rest]
    offsets = {group: said["groups"].get(group) for group in GROUPS}
    is_set_aside = case.way.verb == "repair" and "consumerOffset" in case.fault.place.file
    found.expect(offsets == GROUPS or is_set_aside, f"LOST: offsets of groups are {offsets}")


def look(path: Path, *, repaired: bool) -> int:
    """In a child: open a store to write, and print what is in it. A `repaired` one is repaired again: what could not be
    read then was made for lost."""
    if repaired:
        list(repair_store(path))
    with MessageStore.open(path, StoreConfig(sizes=SIZES, preallocate=False)) as store:
        bodies = [body for topic, queue in QUEUES for body in readable(store, topic, queue)]
        there = [identify(one) for one in bodies if not one.startswith(ALIVE)]
        offsets = store.consumer_offsets()
    problems = [str(problem) for problem in check_store(path)]
    found = {
        "sample": [number for writer, number in there if writer == WRITER],
        "put": [number for writer, number in there if writer == PUTTER],
        "groups": {group: topics.get("orders", {}).get(0) for group, topics in offsets.items()},
        "problems": problems[:5],
    }
    print(json.dumps(found))
    return 0


def readable(store: MessageStore, topic: str, queue: int) -> Iterator[bytes]:
    """Bodies of a queue, without those that are damaged."""
    bounds = store.bounds(topic, queue)
    for offset in range(bounds.min_offset, bounds.max_offset):
        with suppress(ReadError):
            yield bytes(store.get(topic, queue, offset).body)


def read_store(path: Path) -> set[int]:
    """Numbers of the sample's messages in another store."""
    with MessageStore.open(path, StoreConfig(sizes=SIZES, preallocate=False)) as store:
        there = [
            identify(body)
            for topic, queue in QUEUES
            if store.has_queue(topic, queue)
            for body in readable(store, topic, queue)
        ]
    return {number for writer, number in there if writer == WRITER}


def met(place: Place) -> str:
    """The state that a fault there was met."""
    return f"met: {place.name}"


def sweep(folder: Path, choose: Callable[[list[Case]], list[Case]], tell: Callable[[Tally, list[str]], None]) -> Tally:
    """Run the cases that `choose` takes of the matrix."""
    store = sample(folder / "sample")
    tally = Tally(reached=Reached(*STATES, *map(met, places(store))))
    work = folder / "case"
    work.mkdir()
    for case in choose(matrix(store)):
        wrong = run_case(store, case, work, tally)
        tally.findings += wrong
        tell(tally, wrong)
    return tally


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=1 << 30, help="so many at most")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose description matches")
    parser.add_argument("--sample", type=float, default=1.0, help="that share of them, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance, began = random.Random(chosen.seed), time.monotonic()

    def choose(cases: list[Case]) -> list[Case]:
        wanted = [case for case in cases if fnmatch.fnmatch(str(case), chosen.only)]
        wanted = [case for case in wanted if chance.random() < chosen.sample]
        return wanted[chosen.first : chosen.first + chosen.cases]

    def tell(tally: Tally, wrong: list[str]) -> None:
        for text in wrong:
            print(text, flush=True)
        if tally.cases % 50 == 0:
            print(f"{time.monotonic() - began:6.0f} s  {tally.cases} cases  {len(tally.findings)} findings", flush=True)

    with tempfile.TemporaryDirectory(prefix="readerrors-") as made:
        tally = sweep(Path(made), choose, tell)
    if chosen == parser.parse_args([]):  # all of it
        tally.findings += tally.reached.missed()
    keep("readerrors", {**tally.__dict__, "reached": tally.reached.times, "seconds": round(time.monotonic() - began)})
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
