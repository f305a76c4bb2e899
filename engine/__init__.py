"""The storage engine: Apache RocketMQ's message store, in files, mmap and numpy.

This page is the public API; nothing outside the engine reaches past it.
"""

from engine.check import check_store
from engine.listeners import StoreListener
from engine.problem import CheckProgress, Problem, ProblemKind
from engine.repair import repair_store
from engine.results import PutRange, PutResult, QueueBounds, RecoveryReport, StoreStats
from engine.store import Hold, MessageStore

__all__ = [
    "CheckProgress",
    "Hold",
    "MessageStore",
    "Problem",
    "ProblemKind",
    "PutRange",
    "PutResult",
    "QueueBounds",
    "RecoveryReport",
    "StoreListener",
    "StoreStats",
    "check_store",
    "repair_store",
]
