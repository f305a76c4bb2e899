"""docs/replication.md, 2: a live copy of a broker with a controller, at the command line; the broker is a script's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.replication.masters import ScriptedMaster
from tests.engine.replication.test_controller import elect, epochs_of
from tests.engine.replication.test_replica import bytes_below, log_of, publish, require_equal
from tests.engine.replication.test_replica import master as master
from tests.mountctl.conftest import Site, eventually, mountctl, succeed
from tests.mountctl.test_replication_promises_copy import make, replica, replica_of, wait_for_copy, words_of


@pytest.fixture(autouse=True)
def epochs(master: ScriptedMaster) -> None:
    """Two, with messages of each."""
    elect(master, 1)
    publish(master.store, 100)
    elect(master, 2)
    publish(master.store, 100)


def test_epochs(master: ScriptedMaster, site: Site) -> None:
    """2.1 The copy has the log of all epochs. It stores the epochs themselves in `epochFileCheckpoint`, as the
    broker does. Status, metrics and `mountctl top` show the epoch and the confirmed offset of the log."""
    with replica(master, site.store):
        site.mounted("--follow")
        eventually(lambda: replica_of(site.store)["state"] == "in sync", "a note")
        told = f"of {master.options.master}, in sync, epoch 2 confirmed up to {master.store.physical_end:,}, heard "
        assert told in succeed("status", site.mountpoint)
        assert told in succeed("top", site.mountpoint, "--count", "1", "--interval", "0.1")
        assert "fsstore_copy_epoch 2" in (site.mountpoint / "@store/metrics").read_text()
    require_equal(master, site.store)
    assert epochs_of(site.store) == master.epochs


def test_confirmed(master: ScriptedMaster, site: Site) -> None:
    """2.2 Only data that the master reports as confirmed is stored, acknowledged and shown. Up to 64 MiB of
    unconfirmed data are held in memory; if there is more, the connection begins anew."""
    confirmed = master.store.physical_end
    make(master, site.store)
    master.confirmed_end = confirmed
    publish(master.store, 50, "later")
    words = [sys.executable, "-m", "mountctl", *words_of(master, site.store)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        eventually(lambda: replica_of(site.store)["lag_bytes"] == master.store.physical_end - confirmed, "the lag")
        assert replica_of(site.store)["physical_end"] == max(master.reports) == confirmed
        master.confirmed_end = None
        wait_for_copy(master)
        process.terminate()
    require_equal(master, site.store)


def test_learner(master: ScriptedMaster, site: Site) -> None:
    """2.3 The copy is a learner (`asyncLearner`) without a broker id. The controller does not know it and never
    makes it the master. No write waits for it as for a member of the SyncStateSet."""
    make(master, site.store)
    assert master.handshakes == [bytes.fromhex("00000001 0000 0001 ffffffffffffffff")]


def test_diverged(master: ScriptedMaster, site: Site) -> None:
    """2.4 A master is refused by name if its epochs show that the copy has bytes that the master's log lacks.
    Nothing is cut: neither log nor epochs change."""
    make(master, site.store)
    before, epochs = bytes_below(site.store), (site.store / "epochFileCheckpoint").read_bytes()
    master.epochs[1:] = [(3, master.epochs[1][1] - 200)]
    publish(master.store, 50)
    done = mountctl(*words_of(master, site.store))
    assert (done.returncode, "epochs are the same up to" in done.stderr) == (65, True), done.stderr
    assert (bytes_below(site.store), (site.store / "epochFileCheckpoint").read_bytes()) == (before, epochs)


def test_tampered(master: ScriptedMaster, site: Site) -> None:
    """2.5 An invalid field in a handshake or a header, or an epoch that is not the handshake's, ends the connection.
    Nothing of it is stored, and the next connection starts afresh."""
    answers: list[bytes] = []
    frames: list[bytes] = []

    def handshake(answer: bytes) -> bytes:
        answers.append(answer)
        return answer if len(answers) > 1 else b"\0\0\0\7" + answer[4:]

    def header(_: int, frame: bytes) -> bytes:
        frames.append(frame)
        return frame if len(frames) > 1 else frame[:16] + b"\0\0\0\5" + frame[20:]

    master.tamper_handshake, master.tamper = handshake, header
    make(master, site.store)
    assert len(answers) == 3
    require_equal(master, site.store)
    assert epochs_of(site.store) == master.epochs


def test_promoted(master: ScriptedMaster, site: Site) -> None:
    """2.6 `mountctl promote` keeps the epochs of the log, for a broker with a controller."""
    make(master, site.store)
    elect(master, 9)
    make(master, site.store)
    assert epochs_of(site.store) == master.epochs
    succeed("promote", site.store)
    assert epochs_of(site.store) == master.epochs[:-1]


def test_bare(master: ScriptedMaster, site: Site) -> None:
    """2.7 With `--remoting none` and `-o enableControllerMode=true` a copy begins where the broker's log begins."""
    publish(master.store, 400)
    master.begin = 64 << 10
    options = ["-o", "mappedFileSizeCommitLog=64K,enableControllerMode=true", "--remoting", "none"]
    words = [sys.executable, "-m", "mountctl", "replicate", *options, str(master.options.master), str(site.store)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        wait_for_copy(master)
        process.terminate()
    end = master.store.physical_end
    assert log_of(site.store, end) == log_of(master.folder, end)[master.begin :]
    note = json.loads(Path(site.store / "fsstore/replica.json").read_text())
    assert (note["epoch"], note["confirmed_end"]) == (2, end)
