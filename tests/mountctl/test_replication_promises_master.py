"""docs/replication.md, 5: a mount that serves replicas, played by a script."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from engine import RemotingError
from engine.replication.address import Address
from engine.replication.remoting import RemotingClient, Request
from tests.durability.powerpair import cut_power
from tests.engine.replication.replicas import ScriptedReplica, free_port, log_of
from tests.mount.test_outlives import APPENDING, kill, opened
from tests.mountctl.conftest import Site, eventually, succeed

SOON_S = 1.0


class Served:
    """A mount that serves replicas, and its port."""

    def __init__(self, site: Site, port: int) -> None:
        self.site = site
        self.address = Address("127.0.0.1", port)

    @property
    def append(self) -> Path:
        return self.site.mountpoint / "orders/0/append"

    def publish(self, count: int = 1, body: bytes = b"x" * 300) -> int:
        """Publish messages; the log's end then."""
        with opened(self.append, APPENDING) as descriptor:
            for number in range(count):
                os.write(descriptor, b"%d " % number + body + b"\n")
        return int(self.status()["stats"]["physical_end"])

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.site.mountpoint / "@store/status.json").read_bytes())
        return found

    def replication(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["replication"]
        return found

    @contextmanager
    def replica(self, asks: int) -> Iterator[ScriptedReplica]:
        with ScriptedReplica(self.address) as replica:
            replica.report(asks)
            yield replica


class PullRequest(IntEnum):
    """A request of consumers."""

    PULL_MESSAGE = 11


def served(site: Site, role: str = "ASYNC_MASTER", more: str = "") -> Served:
    """A mount with a topic that serves replicas."""
    port = free_port()
    options = f"brokerRole={role},haListenPort={port},mappedFileSizeCommitLog=64K{more}"
    site.mounted("-o", options)
    (site.mountpoint / "orders").mkdir()
    return Served(site, port)


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[list[BaseException | None]]:
    """Run `work` in a thread; the list gets its error, or None, at its end."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield ended
    thread.join(60)
    assert ended


def synced(master: Served, text: bytes, flags: int = APPENDING) -> None:
    """Publish and fsync, or publish with O_SYNC."""
    with opened(master.append, flags) as descriptor:
        os.write(descriptor, text)
        if not flags & os.O_SYNC:
            os.fsync(descriptor)


@pytest.mark.parametrize("asks", [0, 1])
def test_it_sends_the_whole_log(site: Site, asks: int) -> None:
    """5.1 A mount with `brokerRole=ASYNC_MASTER` sends its log, byte for byte, to each replica that connects to
    `haListenPort`. A new replica, which reports 0 or 1, gets the whole log; one with a log gets what follows its
    end."""
    master = served(site)
    end = master.publish(400)
    with master.replica(asks) as replica:
        replica.receive(end)
        with master.replica(end - 1000) as other:
            end = master.publish(400)
            assert replica.receive(end) == log_of(site.store)[asks:end]
            assert other.receive(end) == log_of(site.store)[other.begin : end]


def test_it_waits_for_no_asynchronous_replica(site: Site) -> None:
    """5.2 The mount sends whole records, as soon as its own readers see them. It waits for no replica: one that
    stops reading delays neither writers nor other replicas."""
    master = served(site)
    with ScriptedReplica(master.address, receive_buffer=4096) as stuck, master.replica(0) as replica:
        stuck.report(0)
        end = master.publish(100, b"x" * 50_000)
        replica.receive(end)
        replica.report(end)
        eventually(lambda: 0 in [one["lag_bytes"] for one in master.replication()["replicas"]], "it has all")
        assert max(one["lag_bytes"] for one in master.replication()["replicas"]) > 1 << 20


def test_it_listens_on_the_loopback_alone(site: Site) -> None:
    """5.3 The mount listens only on the loopback. There its own user and root may connect; the kernel says which
    user owns a socket. `haListenAddress` with another address needs `haAllow`, and only those networks may connect."""
    done = site.mount("-o", "brokerRole=ASYNC_MASTER,haListenAddress=0.0.0.0")
    assert done.returncode == os.EX_USAGE
    assert "haAllow" in done.stderr
    master = served(site, more=",haListenAddress=0.0.0.0,haAllow=10.99.0.0/16,192.0.2.0/24")
    end = master.publish()
    with master.replica(0) as replica:
        replica.receive(end)
    if os.geteuid() == 0:
        asking = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1))"
        for port in (master.address.port, master.address.port - 1):
            words = ["/usr/bin/python3", "-c", asking, "127.0.0.1", str(port)]
            assert subprocess.check_output(words, user=65534, timeout=20) == b"b''\n"
        assert "it belongs to user 65534" in master.replication()["last_refusal"]
        assert "it belongs to user 65534" in site.log_text()


def test_it_refuses_by_name(site: Site) -> None:
    """5.4 When the mount closes a connection, its log and its status show the reason: the replica's log ends after
    this one's, it acknowledged bytes that it was not sent, retention has passed it, or it was silent for
    `haHousekeepingInterval`."""
    master = served(
        site, more=",haHousekeepingInterval=2000,haSendHeartbeatInterval=100,maxBytes=128K,cleanResourceInterval=200"
    )
    master.publish(1000)
    eventually(lambda: master.status()["stats"]["min_physical_offset"] > 0, "retention deletes")
    end, begin = (master.status()["stats"][name] for name in ("physical_end", "min_physical_offset"))
    reasons = {
        (end + 1,): f"it has a log up to {end + 1}, and this one ends at {end}",
        (begin - 1,): "retention passed it",
        (end, end + 1): f"it acknowledged the log up to {end + 1}, and was sent it up to {end}",
        (end,): "it was silent for 2 s",
    }
    for reports, reason in reasons.items():
        with ScriptedReplica(master.address) as replica:
            for report in reports:
                replica.report(report)
            replica.await_close()
        assert reason in str(master.replication()["last_refusal"])
        assert reason in site.log_text()
    assert master.replication()["refused"] == len(reasons)
    assert "refused    4 connections of a replica, last: 127.0.0.1: it was silent" in succeed("status", site.mountpoint)


@pytest.mark.parametrize("how", ["fsync", "O_SYNC", "sync_flush"])
def test_a_sync_waits_for_replicas(site: Site, how: str) -> None:
    """5.5 With `brokerRole=SYNC_MASTER` an fsync, a write with O_SYNC and, with `--sync-flush`, each write return
    when their messages are on disk and `inSyncReplicas` replicas have acknowledged them. Only replicas within
    `haMaxGapNotInSync` count."""
    master = served(site, "SYNC_MASTER", ",inSyncReplicas=2,slaveTimeout=30000" + ",sync_flush" * (how == "sync_flush"))
    flags = APPENDING | (os.O_SYNC if how == "O_SYNC" else 0)
    with master.replica(0) as first, master.replica(0) as second:

        def publish() -> None:
            with opened(master.append, flags) as descriptor:
                os.write(descriptor, b"paid\n")
                if how == "fsync":
                    os.fsync(descriptor)

        with in_background(publish) as ended:
            while not first.log:
                first.receive_some()
            first.report(first.end)
            eventually(lambda: first.end in acknowledged(master), "the first acknowledgement")
            assert not ended
            second.receive(first.end)
            second.report(second.end)
        assert ended == [None]
        assert master.replication()["confirmed_end"] == first.end


def acknowledged(master: Served) -> list[int]:
    return [one["acknowledged_end"] for one in master.replication()["replicas"]]


def test_a_sync_fails_after_its_time(site: Site) -> None:
    """5.6 If the replicas do not acknowledge within `slaveTimeout`, that call alone fails with ETIMEDOUT. The
    messages stay, other writers go on, and the next fsync waits for them again."""
    master = served(site, "SYNC_MASTER", ",slaveTimeout=300")
    with opened(master.append, APPENDING) as descriptor:
        os.write(descriptor, b"paid\n")
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(OSError, match=os.strerror(errno.ETIMEDOUT)):
                os.fsync(descriptor)
            assert time.monotonic() - began >= 0.3
        assert (site.mountpoint / "orders/0/0").read_bytes() == b"paid"
        end = master.publish()
        with master.replica(0) as replica:
            replica.receive(end)
            replica.report(end)
            os.fsync(descriptor)
    assert "failed     2 syncs that timed out" in succeed("status", site.mountpoint)


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_another_daemon_goes_on_serving(site: Site, how: str) -> None:
    """5.7 After a kill of its daemon and after `mountctl restart` the mount serves the same ports again within a
    second. Replicas reconnect and go on, and an fsync that waits for them goes on waiting."""
    master = served(site, "SYNC_MASTER", ",slaveTimeout=30000")
    with master.replica(0) as before, in_background(lambda: synced(master, b"paid\n")) as ended:
        while not before.log:
            before.receive_some()
        if how == "kill":
            kill(site)
        else:
            succeed("restart", site.mountpoint)
        served_again = time.monotonic()
        before.await_close()
        after = ScriptedReplica(master.address)
        assert time.monotonic() - served_again < SOON_S
        assert not ended
        after.report(before.end)
    with after:
        assert ended == [None]
    assert (site.mountpoint / "orders/0/0").read_bytes() == b"paid"
    assert not (site.mountpoint / "orders/0/1").exists()


def test_retention_waits_for_no_replica(site: Site) -> None:
    """5.8 Retention waits for no replica. If a replica's next byte is in the oldest file of the log, the mount's
    log, status and metrics name it."""
    master = served(site)
    master.publish(600)
    with master.replica(0):
        eventually(lambda: master.replication()["in_oldest_file"] == 1, "it is in the oldest file")
        assert "behind     1 replica that needs the oldest file of the log" in succeed("status", site.mountpoint)
        assert 'fsstore_replicas_in_oldest_file{role="ASYNC_MASTER"} 1' in metrics(master)
        eventually(lambda: "which is in its oldest file" in site.log_text(), "it is in the mount's log")


def metrics(master: Served) -> str:
    return (master.site.mountpoint / "@store/metrics").read_text()


def test_it_answers_six_requests(site: Site) -> None:
    """5.9 `listenPort` answers six read-only requests: 26, 28, 21, 43, 45 and 201. They return the store's settings,
    the log's bounds, topics, group offsets, delay offsets and subscription groups. Any other request is answered
    REQUEST_CODE_NOT_SUPPORTED."""
    master = served(site)
    end = master.publish()
    with RemotingClient(Address("127.0.0.1", master.address.port - 1)) as client:
        facts = client.facts()
        assert (facts.role, facts.log_begin, facts.log_end, facts.file_bytes) == ("ASYNC_MASTER", 0, end, 64 << 10)
        for request in Request:
            assert client.call(request)
        assert b'"orders"' in client.call(Request.GET_ALL_TOPIC_CONFIG)
        with pytest.raises(RemotingError, match="code 3: request type 11 not supported"):
            client.call(PullRequest.PULL_MESSAGE)  # type: ignore[arg-type]


def test_it_says_how_its_replicas_are(site: Site) -> None:
    """5.10 `mountctl status`, `status.json`, the metrics and `mountctl top` show the role, the number of replicas,
    and how many are in sync. For each replica they show how far it is behind, in bytes and milliseconds, and when it
    was last heard."""
    master = served(site)
    end = master.publish(10)
    with master.replica(0) as replica:
        replica.receive(end)
        one = master.replication()["replicas"][0]
        assert (one["lag_bytes"], one["is_in_sync"]) == (end, True)
        assert 0 <= one["lag_ms"] < 60_000
        replica.report(end)
        eventually(lambda: acknowledged(master) == [end], "it has all")
        said = succeed("status", site.mountpoint)
        assert f"replicas   1 at {master.address} (ASYNC_MASTER)" in said
        assert re.search(r"replica    127\.0\.0\.1:\d+ has all of it, heard [\d.]+ s ago", said)
        assert re.search(r'fsstore_replica_lag_bytes\{replica="127.0.0.1:\d+"\} 0', metrics(master))
        assert "replicas 1, 1 in sync, 0 B behind" in succeed("top", site.mountpoint, "-n", "1", "--interval", "0.1")
    eventually(lambda: master.replication()["connected"] == 0, "it is gone")


def test_a_power_cut_of_either_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """5.11 After a power cut of a SYNC_MASTER, the messages that an fsync acknowledged are on its disk. They are
    also on the disk of a replica made by `mountctl replicate`, and that replica can be promoted."""
    tally = cut_power(tmp_path, images=10, seed=9)
    assert (tally.findings, tally.images_of_the_master, tally.images_of_the_replica) == ([], 5, 5)


def taken(master: Served) -> socket.socket:
    """The mount's port, as another process has it that was faster than the next server."""
    for _ in range(10):
        os.kill(master.status()["pid"], signal.SIGKILL)
        limit = time.monotonic() + SOON_S
        while time.monotonic() < limit:
            with suppress(OSError):
                return socket.create_server(master.address)
    raise AssertionError("the next server was faster each time")


def test_a_port_that_another_process_took_meanwhile_is_waited_for(site: Site) -> None:
    """5.12 If another process takes a port while one server of a mount replaces another, requests wait until the
    port is free, and the mount's log says so."""
    master = served(site)
    master.publish()
    with taken(master) as other, in_background(lambda: synced(master, b"paid\n")) as ended:
        eventually(lambda: "Address already in use" in site.log.read_text(), "a line in the log")
        assert not ended
        other.close()
    assert ended == [None]
    with master.replica(0) as replica:
        replica.receive(int(master.status()["stats"]["physical_end"]))
