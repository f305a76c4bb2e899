"""The two ends of a replica: promoted, it is a store like any other; begun again, its old copy is set aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.errors import NotAReplicaError
from engine.files.disk import remove_file
from engine.files.layout import StoreLayout
from engine.files.lock import StoreLock
from engine.files.paths import store_root
from engine.open.geometry import layout_of
from engine.open.quarantine import quarantine
from engine.replication.epochs import read_epochs, write_epochs
from engine.results import RecoveryReport
from engine.settings.broker_options import with_options
from engine.settings.config import OpenMode, StoreConfig
from engine.settings.notes import ReplicaNote, read_replica_note
from engine.store import MessageStore


def promote(path: Path | str, config: StoreConfig) -> RecoveryReport:
    """Make a replica a store to write, of this program or of a broker with its master's settings. It ends with its last
    whole record; what an interrupted group left behind that is cut, after a copy to fsstore/damaged.

    NotAReplicaError; StoreLockedError: its replication runs; OpenError, OSError.
    """
    layout, note = _replica_at(path, config)
    epochs = read_epochs(layout.epochs)
    with StoreLock(layout.lock):
        remove_file(layout.replica_note, config.disk)
    config = replace(with_options(config, note.settings), mode=OpenMode.WRITE)
    with MessageStore.open(path, config) as store:
        if epochs:  # also those that came before their bytes
            write_epochs(layout.epochs, [one for one in epochs if one.begin < store.physical_end], config.disk)
        return store.recovery


def begin_again(path: Path | str, config: StoreConfig) -> Iterator[str]:
    """Set the copy of a replica aside, so that it can be made anew; yield a sentence for each thing that was moved. Its
    retention stays. Nothing is deleted. NotAReplicaError; StoreLockedError: its replication runs; OSError."""
    layout, _ = _replica_at(path, config)
    if layout.names_log_paths:
        raise NotAReplicaError(layout.root, "its log is elsewhere, by storePathCommitLog", "move it away yourself")
    kept = {layout.lock, layout.config, layout.own, layout.retention, layout.quarantine, layout.identity}
    with StoreLock(layout.lock):
        parts = [*_members(layout.root), *_members(layout.config), *_members(layout.own)]
        moved = [one for one in parts if one not in kept and one != layout.replica_note]
        for part in [*moved, layout.replica_note]:  # its mark last
            yield f"moved {layout.shown(part)} to {quarantine(layout, layout.shown(part), config.disk)}"


def _replica_at(path: Path | str, config: StoreConfig) -> tuple[StoreLayout, ReplicaNote]:
    layout = layout_of(store_root(path), config)
    if not os.path.lexists(layout.replica_note):
        raise NotAReplicaError(layout.root, f"it has no {layout.shown(layout.replica_note)}", "nothing has to be done")
    return layout, read_replica_note(layout.replica_note) or ReplicaNote()


def _members(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
