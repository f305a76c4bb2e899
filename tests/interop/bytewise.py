"""Byte for byte: the same puts through both engines, at the same times, leave the same files."""

from pathlib import Path
from typing import Any

from engine import MessageStore
from tests.interop.compare import Tally
from tests.interop.messages import Put
from tests.interop.room import SMALL, Room, java_config, our_config
from tests.interop.theirs import PUTS, put_all
from tests.interop.writer import put_one


class SetClock:
    """A clock that stands where somebody put it."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def equal_files(room: Room) -> None:
    """RocketMQ puts first; then we put the same, with our clock at the times that it stamped."""
    puts = room.puts(PUTS)
    theirs, ours = room.folder / "theirs", room.folder / "ours"
    with room.driver() as driver, driver.store(theirs, java_config(SMALL)) as store:
        results = put_all(store, puts)
        store.settle()
    write_at_their_times(ours, puts, results)
    room.tally.messages += sum(len(put.messages) for put in puts)
    compare_folders(room.tally, theirs, ours, "commitlog")
    compare_folders(room.tally, theirs, ours, "consumequeue")
    compare_indexes(room.tally, theirs / "index", ours / "index")


def write_at_their_times(path: Path, puts: list[Put], results: list[dict[str, Any]]) -> None:
    clock = SetClock()
    with MessageStore.open(path, our_config(SMALL, clock=clock)) as store:
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
