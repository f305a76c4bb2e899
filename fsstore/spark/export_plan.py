"""What an export is to bring and what it has brought, in files below the dataset, so that it can be resumed.

DIR/_fsstore/plan.json             the queues' ranges, decided at the first start
DIR/_fsstore/unit-00007.json       that unit is in the dataset: its ranges, counts, checksum and files
DIR/topic=…/date=…/unit-00007-…    its messages

Readers of datasets skip names that begin with an underscore.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fsstore.spark.mount import Bounds, Range


class ExportError(RuntimeError):
    """An export can't go on, or isn't what it should be; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to export: topics (None: all) and times, epoch milliseconds, [from_ms, until_ms)."""

    topics: tuple[str, ...] | None = None
    from_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """What one job brought. `crc_sum` is the sum of the bodies' CRC-32; `expired` messages went before their turn."""

    number: int
    ranges: tuple[Range, ...]
    messages: int
    left_out: int
    expired: int
    crc_sum: int
    files: tuple[str, ...]


class ExportFolder:
    """A dataset on disk with its plan and its finished units."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "_fsstore"
        self.staging = self._state / "staging"

    def plan(self, wanted: Wanted, found: list[Range]) -> list[Range]:
        """The ranges to bring: those of the first start where there was one, else `found`, which is remembered.

        ExportError when the folder holds an export of something else, or other files.
        """
        asked = json.loads(json.dumps(asdict(wanted)))
        file = self._state / "plan.json"
        if not file.exists():
            if self.path.exists() and any(self.path.iterdir()) and not self._state.exists():
                raise ExportError(f"{self.path} is not empty, and nothing that an export began: name another directory")
            self._state.mkdir(parents=True, exist_ok=True)
            write_durably(file, {"wanted": asked, "ranges": found})
        plan = json.loads(file.read_text())
        if plan["wanted"] != asked:
            raise ExportError(f"{self.path} was begun with other topics or times: name them, or another directory")
        return [Range(*part) for part in plan["ranges"]]

    def units(self) -> list[Unit]:
        """What is finished, oldest first."""
        return [_unit(json.loads(file.read_text())) for file in sorted(self._state.glob("unit-*.json"))]

    def finish(self, unit: Unit) -> None:
        """From now on `unit` is part of the dataset, whatever happens."""
        write_durably(self._state / f"unit-{unit.number:05}.json", asdict(unit))

    def clear(self, number: int) -> None:
        """Remove what an interrupted start left of a unit."""
        remove_tree(self.staging)
        for file in self.path.glob(f"topic=*/date=*/unit-{number:05}-*"):
            file.unlink()


def left_of(plan: list[Range], units: list[Unit]) -> list[Range]:
    """The plan without what is finished."""
    done = {(part.topic, part.queue): part.end for unit in units for part in unit.ranges}
    left = (part._replace(begin=max(part.begin, done.get((part.topic, part.queue), 0))) for part in plan)
    return [part for part in left if part.begin < part.end]


def without_expired(parts: list[Range], bounds: Bounds) -> Iterator[Range]:
    """What is still there of ranges."""
    for part in parts:
        oldest, end = bounds.get(part.topic, {}).get(part.queue, (part.end, part.end))
        there = part._replace(begin=max(part.begin, oldest), end=min(part.end, end))
        if there.begin < there.end:
            yield there


def messages_in(parts: Sequence[Range]) -> int:
    """How many queue offsets ranges have."""
    return sum(part.end - part.begin for part in parts)


def write_durably(file: Path, value: Any) -> None:
    """A JSON file that is there whole, and on disk, or as it was."""
    fresh = file.with_suffix(".new")
    with fresh.open("w") as output:
        json.dump(value, output)
        output.flush()
        os.fsync(output.fileno())
    fresh.rename(file)
    sync_path(file.parent)


def sync_path(path: Path) -> None:
    """A file or directory is on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it, where there is one."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if folder.exists():
        folder.rmdir()


def _unit(record: dict[str, Any]) -> Unit:
    ranges = tuple(Range(*part) for part in record.pop("ranges"))
    return Unit(ranges=ranges, files=tuple(record.pop("files")), **record)
