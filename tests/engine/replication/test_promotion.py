"""The ends of a replica: promoted to a store to write, or begun again beside its old copy."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine import (
    Message,
    MessageStore,
    NotAReplicaError,
    StoreConfig,
    StoreLockedError,
    begin_again,
    check_store,
    promote,
    replicate,
)
from engine.files.layout import StoreLayout
from tests.engine.replication.masters import ScriptedMaster, eventually
from tests.engine.replication.test_replica import (
    COPY,
    MASTER,
    bring_up_to_date,
    bytes_below,
    caught_up,
    content,
    publish,
    replicating,
    require_equal,
)
from tests.engine.replication.test_replica import copy as copy
from tests.engine.replication.test_replica import master as master


def test_a_promoted_replica_takes_messages_and_has_its_masters(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    bring_up_to_date(master, copy)
    report = promote(copy, COPY)
    assert (report.cut_bytes, report.damaged) == (0, ())
    with MessageStore.open(copy, COPY) as store:
        assert content(store) == content(master.store)
        store.put(Message("topic-0", b"own"), 0)
        assert store.sizes == master.store.sizes
    assert list(check_store(copy)) == []


def test_a_promoted_replica_ends_with_its_last_whole_record(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    note = bring_up_to_date(master, copy)
    files = sorted((copy / "commitlog").iterdir())
    position = note.physical_end - int(files[-1].name)
    with files[-1].open("r+b") as file:
        file.seek(position)
        file.write(b"\0\0\0\0half a record")
    (copy / "abort").touch()
    (copy / "fsstore/clean.json").unlink()
    assert promote(copy, COPY).cut_bytes == 17
    require_equal(master, copy)


def test_promotion_is_refused_while_the_replication_runs(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 10)
    with replicating(copy, master.options):
        eventually(caught_up(master))
        with pytest.raises(StoreLockedError):
            promote(copy, COPY)
        with pytest.raises(StoreLockedError):
            list(begin_again(copy, COPY))
    assert StoreLayout(copy).replica_note.exists()


def test_what_is_no_replica_is_not_promoted_nor_begun_again(master: ScriptedMaster) -> None:
    for end in (promote, lambda *of: list(begin_again(*of))):
        with pytest.raises(NotAReplicaError, match=r"it has no fsstore/replica\.json"):
            end(master.folder, StoreConfig())


def test_begun_again_the_old_copy_is_set_aside_and_its_retention_stays(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 100)
    bring_up_to_date(master, copy)
    retention = copy / "config/retention.json"
    retention.write_text('{"maxBytes": 1000000000}')
    before = {Path(name).relative_to(copy): data for name, data in bytes_below(copy).items()}
    sentences = list(begin_again(copy, COPY))
    assert "moved commitlog to fsstore/damaged/commitlog" in sentences
    kept = copy / "fsstore/damaged"
    assert {Path(name).relative_to(kept): data for name, data in bytes_below(kept).items()} == before
    bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert retention.exists()


def test_a_promoted_replica_does_not_become_one_again(master: ScriptedMaster, copy: Path) -> None:
    publish(master.store, 10)
    bring_up_to_date(master, copy)
    promote(copy, MASTER)
    with pytest.raises(NotAReplicaError):
        replicate(copy, master.options, COPY, threading.Event())
