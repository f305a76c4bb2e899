"""Notes: what is written is read; what is none of ours is no note."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.files.disk import Disk
from engine.results import MasterFigures, ReplicaFigures
from engine.settings.notes import ReplicaNote, ReplicaState, read_replica_note, write_replica_note

SERVED = ReplicaFigures(
    replica="127.0.0.1:4711",
    is_in_sync=True,
    is_in_oldest_file=False,
    acknowledged_end=100,
    lag_bytes=7,
    lag_ms=None,
    last_heard_seconds=0.25,
    sent_bytes=100,
)
SERVES = MasterFigures(
    role="ASYNC_MASTER",
    address="127.0.0.1:10912",
    remoting_address="127.0.0.1:10911",
    connected=1,
    in_sync=1,
    in_oldest_file=0,
    needed=0,
    confirmed_end=0,
    timeouts=0,
    refused=1,
    last_refusal="127.0.0.1: it was silent for 20 s",
    replicas=(SERVED,),
)
NOTE = ReplicaNote(master="broker-a:10912", state=ReplicaState.IN_SYNC, settings={"a": "1"}, serves=SERVES)


@pytest.mark.parametrize("note", [NOTE, replace(NOTE, serves=None), ReplicaNote()])
def test_a_replicas_note_is_read_as_it_was_written(tmp_path: Path, note: ReplicaNote) -> None:
    path = tmp_path / "replica.json"
    write_replica_note(path, note, Disk(), durably=True)
    assert read_replica_note(path) == note


@pytest.mark.parametrize(
    "broken",
    [
        {"serves": 1},
        {"serves": {"role": "ASYNC_MASTER"}},
        {"serves": {"replicas": [{}]}},
        {"serves": {"connected": -1}},
        {"serves": {"replicas": [{"last_heard_seconds": "soon"}]}},
        {"state": "asleep"},
        {"version": 2},
    ],
)
def test_a_replicas_note_with_a_field_that_can_not_be_is_none(tmp_path: Path, broken: dict[str, Any]) -> None:
    path = tmp_path / "replica.json"
    write_replica_note(path, NOTE, Disk(), durably=True)
    stored = json.loads(path.read_text())
    for name, value in broken.items():
        stored[name] = _merged(stored[name], value)
    path.write_text(json.dumps(stored))
    assert read_replica_note(path) is None


def _merged(stored: Any, value: Any) -> Any:
    """`stored` with the fields of `value`; a field `role` alone stands for all of them."""
    if not isinstance(value, dict) or "role" in value:
        return value
    return {**stored, **value}
