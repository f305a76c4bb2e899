"""The offline check: of a closed store, which is only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from engine.derived.store_files import StoreFiles
from engine.errors import NotAStoreError
from engine.files.layout import StoreLayout
from engine.files.lock import StoreLock
from engine.files.mapped_file import Access
from engine.files.paths import store_root
from engine.log.evidence import Evidence
from engine.open.check import Check, Progress, settings_problems
from engine.open.features import features_of
from engine.open.geometry import choose_at, layout_of, read_topics
from engine.open.open import open_store_files
from engine.open.preflight import is_new, refuse_features, refuse_unreadable
from engine.open.recover import evidence_at_rest, leave_out_deleted, read_last_shutdown, valid_recovery_point
from engine.results import Problem, ProblemKind
from engine.settings.config import FileSizes, StoreConfig
from engine.settings.topics_file import TopicTable


def check_store(
    path: Path | str, progress: Progress | None = None, config: StoreConfig | None = None
) -> Iterator[Problem]:
    """Check an unmounted store without writing a byte; yield each finding. OpenError if it is unreadable.

    `config` is used as for an opening, but its mode is ignored. A live writer is the only finding (LIVE_WRITER),
    because its files would change during the check.
    """
    config = config or StoreConfig()
    layout = layout_of(store_root(path), config)
    if is_new(layout):
        raise NotAStoreError(layout.root, "nothing is there")
    refuse_unreadable(layout)
    refuse_features(layout, features_of(layout, read_topics(layout, config)))
    holder = StoreLock.holder(layout.lock)
    if holder is not None:
        text = f"process {holder} writes this store: check it through its mount, or stop that process first"
        yield Problem(ProblemKind.LIVE_WRITER, "lock", -1, text)
        return
    yield from check_at_rest(layout, config, progress)


def check_at_rest(layout: StoreLayout, config: StoreConfig, progress: Progress | None = None) -> Iterator[Problem]:
    """Check a store that no other process writes."""
    topics, choice = read_topics(layout, config), choose_at(layout, config)
    yield from settings_problems(layout, topics, choice)
    with opened_at_rest(layout, config, topics, choice.sizes) as (parts, evidence):
        yield from Check(parts, None, progress, evidence).problems()


@contextmanager
def opened_at_rest(
    layout: StoreLayout, config: StoreConfig, topics: TopicTable, sizes: FileSizes
) -> Iterator[tuple[StoreFiles, Evidence]]:
    """The files of a store that no process writes, opened for reading with the ends of the queues found, and the
    evidence about its log."""
    with closing(open_store_files(layout, config, sizes, Access.READ)) as parts:
        parts.queues.unread = {}
        parts.queues.recover(scan=True)
        parts.queues.expire(parts.log.min_offset)
        last_shutdown, names = read_last_shutdown(layout), frozenset(topics.names() if topics.problem is None else ())
        point = valid_recovery_point(layout, parts.log, last_shutdown)
        if point is None:
            leave_out_deleted(parts.queues, parts.deleted, last_shutdown, names)
        yield parts, evidence_at_rest(parts.log, parts.queues, parts.deleted, point, clean=last_shutdown.clean)
