"""Byte for byte: the same puts through both engines, at the same times, leave the same files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine import MessageStore
from tests.interop.compare import Tally
from tests.interop.messages import Mix, Put
from tests.interop.room import SMALL, Room, java_config, our_config
from tests.interop.theirs import PUTS, put_all
from tests.interop.writer import put_one

FOLDERS = frozenset({"commitlog", "consumequeue", "index"})


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def equal_files(room: Room) -> None:
    """Every file equal. RocketMQ 5 also indexes tags, as 4.9 does not: there the index is compared without tags."""
    if room.line.name == "v4":
        put_in_both(room, same_bytes(room.puts(PUTS)), "all", FOLDERS)
        return
    # the store of 4.9 rewrites delayed messages, as ours does; in 5.x that is the broker's part
    puts = same_bytes(room.puts(PUTS, Mix(delays=0)))
    put_in_both(room, puts, "all", FOLDERS - {"index"})
    put_in_both(room, [without_tags(put) for put in puts], "untagged", FOLDERS)


def put_in_both(room: Room, puts: list[Put], name: str, folders: frozenset[str]) -> None:
    """RocketMQ puts first; then we put the same, with our clock at the times that it stamped."""
    theirs, ours = room.folder / f"theirs-{name}", room.folder / f"ours-{name}"
    with room.driver() as driver, driver.store(theirs, java_config(SMALL)) as store:
        results = put_all(store, puts, plain_items=True)
        store.settle()
    write_at_their_times(ours, puts, results)
    room.tally.messages += sum(len(put.messages) for put in puts)
    for folder in sorted(folders - {"index"}):
        compare_folders(room.tally, theirs, ours, folder)
    if "index" in folders:
        compare_indexes(room.tally, theirs / "index", ours / "index")


def same_bytes(puts: list[Put]) -> list[Put]:
    """The same messages, bodies as they are stored: two libraries need not compress alike."""
    return [compressed_before(put) for put in puts]


def without_tags(put: Put) -> Put:
    """The same without its tags, and so for its items."""
    kept = tuple(pair for pair in put.properties if pair[0] != "TAGS")
    return replace(put, properties=kept, items=tuple(without_tags(item) for item in put.items))


def compressed_before(put: Put) -> Put:
    """The same message, its body as it is stored."""
    if not put.compress:
        return put
    message = put.to_message()
    return replace(put, body=bytes(message.body), sys_flag=message.sys_flag, compress=None)


def write_at_their_times(path: Path, puts: list[Put], results: list[dict[str, Any]]) -> None:
    clock = SetClock()
    with MessageStore.open(path, our_config(SMALL, clock=clock), create=True) as store:
        for put, result in zip(puts, results, strict=True):
            clock.now_ms = result["store_time_ms"]
            put_one(store, put)


def compare_folders(tally: Tally, theirs: Path, ours: Path, name: str) -> None:
    """The same files with the same bytes below `name`."""
    their_files, our_files = files_below(theirs / name), files_below(ours / name)
    tally.expect(f"files in {name}", sorted(their_files), sorted(our_files))
    for file in sorted(their_files.keys() & our_files.keys()):
        compare_bytes(tally, f"{name}/{file}", their_files[file], our_files[file])


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compare_indexes(tally: Tally, theirs: Path, ours: Path) -> None:
    """Index files by their order: their names say when they were made, and that is not the same moment."""
    their_files = [path.read_bytes() for path in sorted(theirs.iterdir())]
    our_files = [path.read_bytes() for path in sorted(ours.iterdir())]
    tally.expect("number of index files", len(their_files), len(our_files))
    for number, (their, our) in enumerate(zip(their_files, our_files, strict=False)):
        compare_bytes(tally, f"index file {number}", their, our)


def compare_bytes(tally: Tally, what: str, theirs: bytes, ours: bytes) -> None:
    """Equal, or a sentence about where they part."""
    if theirs == ours:
        return
    shared = min(len(theirs), len(ours))
    at = next((position for position in range(shared) if theirs[position] != ours[position]), shared)
    tally.expect(
        f"{what} ({len(theirs)} and {len(ours)} bytes) at byte {at}",
        theirs[max(0, at - 16) : at + 48].hex(" ", 4),
        ours[max(0, at - 16) : at + 48].hex(" ", 4),
    )
