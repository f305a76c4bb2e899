"""Setting aside: what lies between a store's files and is none of them, moved out of the way by repair.

Nothing is deleted: files and folders go to STORE/fsstore/damaged, under their paths; so does what a log file has more
than its size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from engine.damagemark import keep_bytes
from engine.durable import Disk, make_directory
from engine.filequeue import FileQueue
from engine.layout import StoreLayout
from engine.mappedfile import Access, MappedFile
from engine.problem import Problem, ProblemKind

DAMAGED = "damaged"
"""Folder below `StoreLayout.own`."""


def move_strangers(layout: StoreLayout, problems: Sequence[Problem], disk: Disk) -> Iterator[str]:
    """Move what `problems` call foreign; a sentence for each. OSError.

    Files of a queue or the index that are too long are among them: the next opening makes them again.
    """
    for problem in problems:
        source = layout.root / problem.path
        if problem.kind is ProblemKind.FOREIGN_FILE and os.path.lexists(source):
            target = _free_name(layout.own / DAMAGED / problem.path)
            for changed in make_directory(target.parent):
                disk.sync_directory(changed)
            source.replace(target)
            disk.sync_directory(target.parent)
            disk.sync_directory(source.parent)
            yield f"moved {problem.path}, which is no file of this store, to {target.relative_to(layout.root)}"


def _free_name(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in chain([path], numbered) if not os.path.lexists(name))


def cut_long_files(layout: StoreLayout, file_bytes: int, disk: Disk) -> Iterator[str]:
    """Cut log files to `file_bytes`; a sentence for each. Nothing leads to what is behind. OSError."""
    files = FileQueue.open(layout.commit_log, file_bytes, Access.READ, disk=disk)
    files.close()
    for problem in files.problems:
        if problem.kind == "long":
            size = problem.found_bytes
            start = int(problem.path.name)
            file = MappedFile(problem.path, size, Access.WRITE, start=start, disk=disk)
            kept = keep_bytes(layout.own / DAMAGED, file, file_bytes, size, disk)
            file.close()
            os.truncate(problem.path, file_bytes)
            yield f"cut {problem.path.name} to its size; what it had more is in {kept.relative_to(layout.root)}"
