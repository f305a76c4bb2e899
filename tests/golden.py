"""Stores that Apache RocketMQ wrote, unpacked for a test, with RocketMQ's own answers about them."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.settings.config import FileSizes

ARCHIVES = Path(__file__).parent / "data" / "golden"
NAMES = ("basic", "rolled", "crash", "txn", "retention", "ipv6", "batch", "delay")


@dataclass(frozen=True)
class Golden:
    """One unpacked archive: `path` is the store (a copy to change), the rest is RocketMQ's data about it."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """The store directory."""
        return self.folder / "store"

    @property
    def recovered(self) -> Path:
        """`crash` only: the store after RocketMQ opened it once and closed it cleanly."""
        return self.folder / "recovered"

    @cached_property
    def config(self) -> dict[str, Any]:
        """RocketMQ's settings that differ from its defaults."""
        found: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return found

    @property
    def sizes(self) -> FileSizes:
        """The file sizes the store was made with."""
        return FileSizes(
            commit_log_bytes=self.config["mappedFileSizeCommitLog"],
            consume_queue_entries=self.config["mappedFileSizeConsumeQueue"] // 20,
            index_slots=self.config["maxHashSlotNum"],
            index_entries=self.config["maxIndexNum"],
        )

    @cached_property
    def dump(self) -> list[dict[str, Any]]:
        """Every line of dump.jsonl."""
        return self._lines("dump.jsonl")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that a queue leads to, with all fields."""
        return [line for line in self.dump if line["type"] == "msg"]

    @property
    def queues(self) -> list[dict[str, Any]]:
        """Minimum and maximum offset of every queue."""
        return [line for line in self.dump if line["type"] == "queue"]

    @cached_property
    def queries(self) -> list[dict[str, Any]]:
        """Key queries and the physical offsets RocketMQ found by hash alone."""
        found: list[dict[str, Any]] = json.loads((self.folder / "queries.json").read_text())
        return found

    @cached_property
    def ops(self) -> list[dict[str, Any]]:
        """The puts that made the store, in order, with their results."""
        return self._lines("ops.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return json_lines(self.folder / name)


def golden(name: str, folder: Path) -> Golden:
    """Unpack the archive `name` into a fresh folder below `folder`."""
    return Golden(name, unpacked(ARCHIVES / f"{name}.tar.xz", folder / f"golden-{name}"))


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def unpacked(path: Path, target: Path) -> Path:
    """Unpack an archive into the new folder `target`; that folder."""
    target.mkdir(parents=True)
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:  # Debian 12's Python has no filters yet; the archives are our own
            archive.extractall(target)
    return target
