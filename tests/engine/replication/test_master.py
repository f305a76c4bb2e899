"""A store that serves replicas, against replicas that a script plays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from struct import pack

import pytest

from engine import (
    FlushPolicy,
    ListenError,
    MasterConfig,
    Message,
    MessageStore,
    NotReplicatedError,
    OpenMode,
    OptionError,
    RemotingError,
    Retention,
    StoreClosedError,
    StoreConfig,
    StoreError,
    with_broker_conf,
    with_options,
)
from engine.replication import master as master_module
from engine.replication.answers import Answers
from engine.replication.remoting import Command, CommandDecoder, RemotingClient, Request
from tests.engine.replication.replicas import (
    LIMIT_SECONDS,
    MASTER,
    figures,
    log_of,
    ports,
    replica_of,
    serving,
    until,
)
from tests.engine.storetools import SMALL, SMALL_SIZES, nothing_left_open

SYNC = replace(MASTER, sync=True, timeout_ms=20_000)
HASTY_SYNC = replace(SYNC, timeout_ms=100)


def fill(store: MessageStore, messages: int = 40, topic: str = "T") -> int:
    """Put messages; the log's end then. 40 of them are in three files."""
    for number in range(messages):
        store.put(Message(topic, b"%d" % number * 200, keys=[f"K{number}"]), queue=number % 2)
    return store.physical_end


# the log


@pytest.mark.parametrize(("asks", "begin"), [(0, 0), (1, 1)])
def test_a_new_replica_gets_the_whole_log_and_then_what_is_published(tmp_path: Path, asks: int, begin: int) -> None:
    with serving(tmp_path / "store") as store:
        end = fill(store)
        with replica_of(store, asks) as replica:
            replica.receive(end)
            end = fill(store)
            found = replica.receive(end)
            assert replica.begin == begin
            assert found == log_of(tmp_path / "store")[begin:end]
            assert store.stats().commit_log_files > 3


def test_a_replica_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store:
        end = fill(store)
        for asks in (end - 100, end, 8192, 8191):
            with replica_of(store, asks) as replica:
                later = fill(store, 3)
                assert replica.receive(later) == log_of(tmp_path / "store")[asks:later]


def test_frames_end_with_their_file_and_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "store", replace(MASTER, batch_bytes=1000)) as store:
        end = fill(store)
        with replica_of(store, 0) as replica:
            frames: list[tuple[int, int]] = []
            decoded = replica._decoder.feed
            replica._decoder.feed = lambda data: [  # type: ignore[method-assign]
                frames.append((one.physical_offset, one.end)) or one  # type: ignore[func-returns-value]
                for one in decoded(data)
            ]
            replica.receive(end)
    assert max(stop - start for start, stop in frames) == 1000
    assert all(start // 8192 == (stop - 1) // 8192 for start, stop in frames)


def test_an_empty_log_is_served_from_its_first_message_on(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store, replica_of(store, 0) as replica:
        end = fill(store, 5)
        assert replica.receive(end) == log_of(tmp_path / "store")[:end]


@pytest.mark.parametrize("asks", [0, 1])
def test_of_a_log_whose_begin_expired_a_new_replica_gets_all_that_is_there(tmp_path: Path, asks: int) -> None:
    with serving(tmp_path / "store", retention=Retention(max_bytes=3 * 8192, clean_interval_ms=3_600_000)) as store:
        end = fill(store, 100)
        while store.clean():
            pass
        begin = store.log_begin
        assert begin > 0
        with replica_of(store, asks) as replica:
            found = replica.receive(end)
            assert replica.begin == begin
            assert found == log_of(tmp_path / "store")[: end - begin]


def test_with_a_write_buffer_a_replica_gets_what_readers_see(tmp_path: Path) -> None:
    slow = FlushPolicy(commit_interval_ms=3_600_000, commit_thorough_interval_ms=3_600_000)
    with serving(tmp_path / "store", flush=slow, transient_pool_buffers=2) as store, replica_of(store, 0) as replica:
        end = fill(store, 3)
        assert figures(store).replicas == () or figures(store).replicas[0].sent_bytes == 0
        store.flush()
        assert replica.receive(end) == log_of(tmp_path / "store")[:end]


def test_messages_in_no_queue_are_sent_too(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store, replica_of(store, 0) as replica:
        store.put(Message("T", b"prepared", properties={"TRAN_MSG": "true"}, sys_flag=4))
        assert replica.receive(store.physical_end) == log_of(tmp_path / "store")[: store.physical_end]


# refusals


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        (lambda end: [end + 1], "and this one ends at"),
        (lambda end: [1 << 62], "and this one ends at"),
        (lambda end: [-1], "reported the physical offset -1"),
        (lambda end: [0, end + 1], "it acknowledged the log up to"),
        (lambda end: [0, 1 << 62], "it acknowledged the log up to"),
        (lambda end: [end, -7], "reported the physical offset -7"),
    ],
)
def test_a_report_that_cannot_be_true_closes_the_connection_by_name(
    tmp_path: Path, reports: Callable[[int], list[int]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "store", SYNC) as store:
        end = fill(store)
        with replica_of(store) as replica:
            first, *later = reports(end)
            replica.report(first)
            for one in later:
                if first == 0:
                    replica.receive(end)
                replica.report(one)
            replica.await_close()
        until(lambda: figures(store).refused == 1, "it was never counted")
        assert words in str(figures(store).last_refusal)
        assert words in caplog.text
        assert figures(store).confirmed_end <= end
        with replica_of(store, 0) as replica:  # others are served
            replica.receive(end)


def test_a_replica_that_retention_has_passed_is_refused_by_name(tmp_path: Path) -> None:
    with serving(tmp_path / "store", retention=Retention(max_bytes=3 * 8192, clean_interval_ms=3_600_000)) as store:
        fill(store, 100)
        while store.clean():
            pass
        with replica_of(store, store.log_begin - 1) as replica:
            replica.await_close()
        until(lambda: "retention passed it" in str(figures(store).last_refusal), "it was never refused")


def test_retention_waits_for_no_replica_and_says_which_one_is_in_the_oldest_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = replace(MASTER, heartbeat_interval_ms=20)
    retention = Retention(max_bytes=3 * 8192, clean_interval_ms=3_600_000)
    with serving(tmp_path / "store", master, retention=retention) as store:
        end = fill(store, 100)
        with replica_of(store, 0) as replica:
            replica.receive(end)
            until(lambda: figures(store).in_oldest_file == 1, "it was never said")
            until(lambda: "retention waits for no replica" in caplog.text, "it was never logged")
            while store.clean():
                pass
            assert store.log_begin > 0
            replica.report(end)
            until(lambda: figures(store).in_oldest_file == 0, "it is still said")


def test_a_silent_replica_is_closed_by_name_and_heartbeats_come_before(tmp_path: Path) -> None:
    master = replace(MASTER, heartbeat_interval_ms=20, housekeeping_interval_ms=300)
    with serving(tmp_path / "store", master) as store:
        end = fill(store, 3)
        with replica_of(store, 0) as replica, replica_of(store) as mute:
            replica.await_close()
            assert len(replica.heartbeats) >= 2
            assert {one.physical_offset for one in replica.heartbeats} == {end}
            mute.await_close()
            assert not mute.log
        until(lambda: figures(store).refused == 2, "they were never counted")
        assert "silent" in str(figures(store).last_refusal)


def test_more_connections_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "MOST_CONNECTIONS", 2)
    with serving(tmp_path / "store") as store:
        end = fill(store, 3)
        with replica_of(store, 0) as first, replica_of(store, 0) as second:
            first.receive(end)
            second.receive(end)
            with replica_of(store) as third:
                third.await_close()
            assert "2 connections" in str(figures(store).last_refusal)
        until(lambda: figures(store).connected == 0, "they are still counted")
        with replica_of(store, 0) as fourth:
            fourth.receive(end)


def test_a_replica_that_reads_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    sizes = replace(SMALL_SIZES, commit_log_bytes=8 << 20)
    with (
        serving(tmp_path / "store", sizes=sizes) as store,
        replica_of(store, 0, receive_buffer=4096),
        replica_of(store, 0) as reader,
    ):
        for number in range(200):
            store.put(Message("T", b"%d" % number * 20_000), queue=0)
        end = store.physical_end
        reader.receive(end)
        reader.report(end)
        until(lambda: sum(one.lag_bytes == 0 for one in figures(store).replicas) == 1, "no acknowledgement")
        assert max(one.lag_bytes for one in figures(store).replicas) > 1 << 20


def test_a_replica_far_behind_goes_on_after_its_turn_without_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "TURN_BYTES", 500)
    with serving(tmp_path / "store") as store:
        end = fill(store, 100)
        with replica_of(store, 0) as replica:
            began = time.monotonic()
            replica.receive(end)
            assert time.monotonic() - began < end / 500 * master_module.TICK_SECONDS / 4


CLIENT = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print(s.recv(1))"


@pytest.mark.skipif(os.geteuid() != 0, reason="root may be another user")
@pytest.mark.parametrize("port", [0, 1])
def test_on_the_loopback_another_user_is_refused(tmp_path: Path, port: int) -> None:
    with serving(tmp_path / "store") as store:
        fill(store, 3)
        host, number = ports(store)[port]
        words = ["/usr/bin/python3", "-c", CLIENT, host, str(number)]
        done = subprocess.run(words, user=65534, capture_output=True, text=True, check=True, timeout=20)
        assert done.stdout == "b''\n"
        assert "it belongs to user 65534" in str(figures(store).last_refusal)


def test_a_port_that_is_taken_is_an_error_by_name_and_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, nothing_left_open():
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"127.0.0.1:{port}: Address already in use"):
            MessageStore.open(tmp_path / "store", replace(SMALL, master=replace(MASTER, ha_port=port)), create=True)


def test_the_port_is_free_again_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store:
        address = ports(store)[0]
        end = fill(store, 3)
        replica = replica_of(store, 0)
        replica.receive(end)
    with replica, serving(tmp_path / "store", replace(MASTER, ha_port=address.port)) as store:
        assert ports(store)[0] == address
        replica.await_close()


def test_nothing_is_left_open(tmp_path: Path) -> None:
    with nothing_left_open(), serving(tmp_path / "store", SYNC) as store:
        end = fill(store, 3)
        with replica_of(store, 0) as replica, RemotingClient(ports(store)[1]) as client:
            replica.receive(end)
            client.call(Request.GET_BROKER_CONFIG)


# writers that wait for replicas


def test_a_sync_waits_for_the_acknowledgement_of_its_messages(tmp_path: Path) -> None:
    with serving(tmp_path / "store", SYNC) as store, replica_of(store, 0) as replica:
        end = fill(store)
        answers: list[StoreError | None] = []
        store.request_durable(end, answers.append)
        replica.receive(end)
        replica.report(end - 1)
        until(lambda: figures(store).confirmed_end == end - 1, "the acknowledgement never came")
        assert answers == []
        replica.report(end)
        until(lambda: answers == [None], "the writer was never answered")
        store.wait_durable(end)
        assert store.durable_end >= end


def acknowledged(store: MessageStore) -> list[int]:
    return [replica.acknowledged_end for replica in figures(store).replicas]


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_it_waits_for_as_many_replicas_as_were_asked_for(tmp_path: Path, needed: int) -> None:
    with (
        serving(tmp_path / "store", replace(SYNC, in_sync_replicas=needed)) as store,
        replica_of(store, 0) as one,
        replica_of(store, 0) as two,
    ):
        end = fill(store)
        answers: list[StoreError | None] = []
        store.request_durable(end, answers.append)
        for number, replica in enumerate((one, two), 1):
            replica.receive(end)
            replica.report(end)
            until(lambda: acknowledged(store).count(end) >= number, "no report")  # noqa: B023
            if number >= needed:
                until(lambda: answers == [None], "the writer was never answered")
            else:
                assert answers == []
        if needed == 3:
            with pytest.raises(NotReplicatedError) as caught:
                hasty_wait(store, end)
            assert (caught.value.acknowledged, caught.value.needed) == (2, 3)


def hasty_wait(store: MessageStore, end: int) -> None:
    """As `wait_durable`, with little patience."""
    assert store._master is not None
    assert store._master.acks is not None
    store._master.acks._timeout_seconds = 0.05
    store.wait_durable(end)


def test_without_an_acknowledgement_in_time_it_fails_and_the_next_one_waits_again(tmp_path: Path) -> None:
    with serving(tmp_path / "store", HASTY_SYNC) as store:
        end = fill(store)
        began = time.monotonic()
        with pytest.raises(NotReplicatedError, match=f"0 of 1 replicas acknowledged the log up to {end} in 0.1 s"):
            store.wait_durable(end)
        assert 0.1 <= time.monotonic() - began < 5
        with pytest.raises(NotReplicatedError):
            store.wait_durable(end)
        assert figures(store).timeouts == 2
        assert store.bounds("T", 0).max_offset == 20, "the messages stay"
        store.flush()  # on the disk it is
        assert store.durable_end >= end
        with replica_of(store, 0) as replica:
            replica.receive(end)
            replica.report(end)
            until(lambda: figures(store).confirmed_end == end, "the acknowledgement never came")
            store.wait_durable(end)


def test_a_replica_that_is_too_far_behind_does_not_count(tmp_path: Path) -> None:
    with serving(tmp_path / "store", replace(SYNC, max_gap_bytes=1000)) as store, replica_of(store, 0) as replica:
        end = fill(store)
        replica.receive(end)
        replica.report(end - 1001)
        until(lambda: figures(store).replicas[0].acknowledged_end == end - 1001, "the acknowledgement never came")
        assert (figures(store).in_sync, figures(store).confirmed_end) == (0, 0)
        replica.report(end - 1000)
        until(lambda: figures(store).confirmed_end == end - 1000, "it never counted")
        assert figures(store).in_sync == 1


def test_a_replica_that_comes_back_with_all_of_it_counts_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "store", SYNC) as store:
        end = fill(store)
        with replica_of(store, end):
            store.wait_durable(end)


def test_what_was_acknowledged_stays_so_when_the_replica_goes(tmp_path: Path) -> None:
    with serving(tmp_path / "store", SYNC) as store:
        end = fill(store)
        with replica_of(store, 0) as replica:
            replica.receive(end)
            replica.report(end)
            store.wait_durable(end)
        until(lambda: figures(store).connected == 0, "it is still there")
        store.wait_durable(end)
        assert figures(store).confirmed_end == end


def test_a_writer_that_waits_when_the_store_closes_is_answered(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            store.wait_durable(end)
        except StoreError as error:
            errors.append(error)

    with serving(tmp_path / "store", SYNC) as store:
        end = fill(store)
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert store._master is not None
        acks = store._master.acks
        assert acks is not None
        until(lambda: bool(acks._waiting), "it never waited")
    waiter.join(20)
    assert [type(error) for error in errors] == [StoreClosedError]


def test_an_asynchronous_master_waits_for_no_replica(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store:
        store.wait_durable(fill(store, 3))


# what a replica asks beside the log


def test_it_answers_the_six_requests(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with serving(path) as store:
        end = fill(store)
        store.commit_offset("G", "T", 0, 7)
        with RemotingClient(ports(store)[1]) as client:
            facts = client.facts()
            assert (facts.log_begin, facts.log_end, facts.file_bytes) == (0, end, 8192)
            assert (facts.role, facts.broker, facts.has_controller) == ("ASYNC_MASTER", store.identity.name, False)
            topics = client.call(Request.GET_ALL_TOPIC_CONFIG)
            assert topics == (path / "config/topics.json").read_bytes()
            offsets = client.call(Request.GET_ALL_CONSUMER_OFFSET)
            assert offsets == (path / "config/consumerOffset.json").read_bytes()
            assert json.loads(client.call(Request.GET_ALL_DELAY_OFFSET)) == {"offsetTable": {}}
            groups = json.loads(client.call(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
            assert groups["subscriptionGroupTable"] == {}


@pytest.mark.parametrize("code", [10, 11, 34, 17, 25, 103, 106, 310, -1, 1 << 40])
def test_it_refuses_every_other_request(tmp_path: Path, code: int) -> None:
    with serving(tmp_path / "store") as store, socket.create_connection(ports(store)[1]) as client:
        client.settimeout(20)
        client.sendall(Command(code, 5).encode() + Command(26, 6).encode())
        decoder, answers = CommandDecoder("master"), list[Command]()
        while len(answers) < 2:
            answers += decoder.feed(client.recv(1 << 16))
        assert [(one.code, one.opaque, one.is_answer) for one in answers] == [(3, 5, True), (0, 6, True)]
        assert f"{code} not supported" in answers[0].remark


@pytest.mark.parametrize("sent", [pack(">II", 1 << 30, 10), pack(">II", 100_000, 10), b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_request_closes_the_connection_by_name(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path / "store") as store:
        with socket.create_connection(ports(store)[1]) as client:
            client.settimeout(20)
            client.sendall(sent)
            assert client.recv(1) == b""
        assert "does not speak RocketMQ's protocol" in str(figures(store).last_refusal)


def test_an_answer_that_is_too_long_or_cannot_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.replication.answers.MAX_BODY_BYTES", 100)
    path = tmp_path / "store"
    with serving(path) as store:
        fill(store, 3)
        (path / "config/subscriptionGroup.json").mkdir()
        with RemotingClient(ports(store)[1]) as client:
            with pytest.raises(RemotingError, match="GET_ALL_TOPIC_CONFIG: it has more than 100 bytes"):
                client.call(Request.GET_ALL_TOPIC_CONFIG)
            with pytest.raises(RemotingError, match="GET_ALL_SUBSCRIPTIONGROUP_CONFIG"):
                client.call(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            client.call(Request.GET_BROKER_CONFIG)
        (path / "config/subscriptionGroup.json").rmdir()


def test_a_client_that_asks_much_and_reads_nothing_is_answered_one_at_a_time(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store, socket.create_connection(ports(store)[1]) as client:
        store.create_topics({f"T{number}": 4 for number in range(2000)})
        client.sendall(Command(21, 1).encode() * 100)
        fill(store, 3)
        with RemotingClient(ports(store)[1]) as other:
            assert other.facts().log_end == store.physical_end
        assert store._master is not None
        assert max(len(one._pending) for one in store._master._requesters) <= 1


def test_a_client_that_asks_much_leaves_the_others_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[int] = []
    original, both_have_asked = Answers.to, threading.Event()

    def to(answers: Answers, command: Command) -> bytes:
        both_have_asked.wait(LIMIT_SECONDS)
        answered.append(command.code)
        return original(answers, command)

    monkeypatch.setattr(Answers, "to", to)
    with serving(tmp_path / "store") as store, socket.create_connection(ports(store)[1]) as client:
        client.sendall(Command(45, 1).encode() * 300)
        with socket.create_connection(ports(store)[1]) as other:
            other.sendall(Command(26, 1).encode())
            both_have_asked.set()
            assert other.recv(1)
    assert answered.index(26) < 300


# options


def master_of(**options: object) -> MasterConfig | None:
    return with_options(StoreConfig(), options).master


def test_options_have_the_brokers_names(tmp_path: Path) -> None:
    assert master_of(maxBytes="1G") is None
    assert master_of(brokerRole="ASYNC_MASTER") == MasterConfig()
    assert master_of(brokerRole="SYNC_MASTER", haListenPort="2000", inSyncReplicas="2", slaveTimeout="500") == (
        MasterConfig(sync=True, ha_port=2000, remoting_port=1999, in_sync_replicas=2, timeout_ms=500)
    )
    found = master_of(
        brokerRole="ASYNC_MASTER",
        haListenAddress="::",
        haAllow="10.0.0.0/8,fd00::/8",
        listenPort=7,
        haMaxGapNotInSync="1M",
    )
    networks = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert found == MasterConfig(address="::", allow=networks, remoting_port=7, max_gap_bytes=1 << 20)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"brokerRole": "SLAVE"}, "mountctl replicate"),
        ({"brokerRole": "master"}, "neither ASYNC_MASTER nor SYNC_MASTER"),
        ({"haListenPort": 10912}, "with brokerRole="),
        ({"brokerRole": "ASYNC_MASTER", "haListenPort": 0}, "not a port"),
        ({"brokerRole": "ASYNC_MASTER", "haListenPort": 1}, "listenPort"),
        ({"brokerRole": "ASYNC_MASTER", "listenPort": 10912}, "listenPort"),
        ({"brokerRole": "ASYNC_MASTER", "haListenAddress": "localhost"}, "not an IP address"),
        ({"brokerRole": "ASYNC_MASTER", "haListenAddress": "0.0.0.0"}, "haAllow="),
        ({"brokerRole": "ASYNC_MASTER", "haAllow": "10.0.0.1/8"}, "not a list of networks"),
        ({"brokerRole": "ASYNC_MASTER", "haAllow": ","}, "names no network"),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": 0}, "inSyncReplicas"),
        ({"brokerRole": "SYNC_MASTER", "slaveTimeout": 0}, "slaveTimeout"),
        ({"brokerRole": "SYNC_MASTER", "haTransferBatchSize": "4M"}, "haTransferBatchSize"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        master_of(**options)


def test_a_brokers_own_file_alone_makes_no_master() -> None:
    conf = {"brokerRole": "SYNC_MASTER", "haListenPort": "10912", "listenPort": "x"}
    assert with_broker_conf(StoreConfig(), conf).master is None


def test_only_a_store_that_is_written_serves_replicas(tmp_path: Path) -> None:
    with serving(tmp_path / "store"):
        pass
    for mode in (OpenMode.READ_ONLY, OpenMode.FOLLOW):
        with pytest.raises(OptionError, match="opened to write"):
            MessageStore.open(tmp_path / "store", StoreConfig(mode=mode, master=MASTER))
