"""Figures of a mount. Those of its store are `engine.StoreStats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine import counter, gauge
from fsstore.accounts import ResourceFigures
from fsstore.handover.layout import MEMORY_BYTES
from fsstore.handover.memory import Handover
from fsstore.handover.records import NODE
from fsstore.tree.limited_log import RateLimitedLog
from fsstore.tree.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True)
class ComplaintFigures:
    made: int = counter("Requests that failed through no fault of the client", metric="complaints")
    left_out_of_log: int = 0


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    budget_bytes: int = gauge("Memory that clients may make the daemon hold")
    bytes: Mapping[str, int] = gauge("Memory that clients make the daemon hold", label="purpose")
    refused: int = counter("Requests that were answered ENOBUFS")


@dataclass(frozen=True, slots=True)
class HandoverFigures:
    """The memory that outlives the daemon."""

    bytes: int = gauge("Memory that the next daemon would take over")
    limit_bytes: int = gauge("Largest size of this memory")
    live_bytes: int = gauge("Bytes of live records in it")
    names: int = gauge("Inode numbers that the kernel knows, and the next daemon will know")
    handles: int = gauge("Open files and directories")
    handles_lost: int = gauge("Open files that would answer EIO if this daemon were killed")
    """Their unpublished bytes are too long, or found no room."""
    requests: int = gauge("Unanswered requests that publish or change something")


@dataclass(frozen=True, slots=True)
class RestartFigures:
    restarts: int = counter("Killed daemons that were replaced", default=0)
    planned_restarts: int = counter("Daemons that mountctl restart replaced", default=0)


@dataclass(frozen=True, slots=True)
class MountFigures:
    """Objects of `@store/status.json`. `handover` is None for a mount that ends with its daemon."""

    complaints: ComplaintFigures
    memory: MemoryFigures
    handover: HandoverFigures | None
    accounts: dict[str, ResourceFigures]


def mount_figures(log: RateLimitedLog, budget: MemoryBudget, handover: Handover | None) -> MountFigures:
    return MountFigures(
        ComplaintFigures(log.made, log.left_out),
        MemoryFigures(budget.limit_bytes, budget.used, budget.refused),
        None if handover is None else handover_figures(handover),
        {kind.value: row for kind, row in budget.accounts.figures().items()},
    )


def handover_figures(memory: Handover) -> HandoverFigures:
    handles = memory.handles
    counts = len(memory.records.of[NODE]), len(handles), len(handles.lost), len(memory.requests.slots)
    return HandoverFigures(memory.used_bytes, MEMORY_BYTES, memory.live_bytes, *counts)
