"""Remoting: requests and answers, against a broker that a script plays."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import OptionError, ProtocolError, RemotingError
from engine.replication.address import Address, parse_address
from engine.replication.remoting import (
    REQUEST_CODE_NOT_SUPPORTED,
    Command,
    CommandDecoder,
    RemotingClient,
    Request,
)

COMMANDS = st.builds(
    Command,
    st.integers(0, 999),
    st.integers(0, 1 << 31),
    st.booleans(),
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.binary(max_size=50),
)


@given(st.lists(COMMANDS, max_size=5), st.integers(1, 60))
def test_commands_are_decoded_from_pieces_of_any_size(commands: list[Command], size: int) -> None:
    sent, decoder = b"".join(command.encode() for command in commands), CommandDecoder("peer")
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    assert [command for piece in pieces for command in decoder.feed(piece)] == commands


def command(header: bytes, body: bytes = b"", form: int = 0, size: int | None = None) -> bytes:
    size = 4 + len(header) + len(body) if size is None else size
    return pack(">II", size, form << 24 | len(header)) + header + body


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (command(b"", size=3), "has 3 bytes"),
        (command(b"", size=1_001), "has 1,001 bytes"),
        (command(b"{}", form=1), "not in JSON"),
        (command(b"{}", size=5), "header of 2"),
        (command(b"{"), "not JSON"),
        (command(b"[" * 900), "not JSON"),
        (command(b"\xff"), "not JSON"),
        (command(b"[]"), "lacks code or opaque"),
        (command(b'{"code":1}'), "lacks code or opaque"),
        (command(b'{"code":true,"opaque":1}'), "lacks code or opaque"),
    ],
)
def test_a_command_that_is_none_is_refused(sent: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        CommandDecoder("peer", max_bytes=1_000).feed(sent)


def test_a_header_with_other_types_than_expected_is_read_without_them() -> None:
    header = {"code": 26, "opaque": 4, "flag": "x", "remark": None, "extFields": {"a": 1}}
    (found,) = CommandDecoder("peer").feed(command(json.dumps(header).encode()))
    assert found == Command(26, 4, fields={"a": "1"})


Answers = Callable[[Command], bytes]


@contextmanager
def broker(answer: Answers) -> Iterator[Address]:
    """A broker for one connection."""

    def serve() -> None:
        connection, _ = listener.accept()
        decoder = CommandDecoder("client")
        with connection:
            while data := connection.recv(4_096):
                for request in decoder.feed(data):
                    connection.sendall(answer(request))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(*listener.getsockname())
        thread.join(10)
    assert not thread.is_alive()


FIGURES = {"commitLogMinOffset": "1024", "commitLogMaxOffset": "9000", "brokerVersionDesc": "V5_5_1"}
SETTINGS = "brokerName=a\nbrokerClusterName=c=d\nmappedFileSizeCommitLog=1024\nbrokerRole=SYNC_MASTER\n"


def facts(figures: dict[str, str] = FIGURES, settings: str = SETTINGS) -> Answers:
    def answer(request: Command) -> bytes:
        texts = {26: settings, 28: json.dumps({"table": figures})}
        return request.answer(texts[request.code].encode()).encode()

    return answer


def test_a_broker_tells_where_its_log_begins_and_how_large_its_files_are() -> None:
    with broker(facts()) as address, RemotingClient(address) as client:
        found = client.facts()
    assert (found.log_begin, found.log_end, found.file_bytes) == (1_024, 9_000, 1_024)
    assert (found.broker, found.cluster, found.role, found.version) == ("a", "c=d", "SYNC_MASTER", "V5_5_1")
    assert not found.has_controller


@pytest.mark.parametrize("offset", ["", "-5", "x", "1" * 30, "9223372036854775808"])
def test_an_offset_that_is_none_is_refused(offset: str) -> None:
    answer = facts({**FIGURES, "commitLogMaxOffset": offset})
    with broker(answer) as address, RemotingClient(address) as client, pytest.raises(ProtocolError, match="MaxOffset"):
        client.facts()


@pytest.mark.parametrize("text", ["", "[]", '{"table": 3}', "{}"])
def test_figures_without_a_table_are_refused(text: str) -> None:
    with (
        broker(lambda request: request.answer(text.encode()).encode()) as address,
        RemotingClient(address) as client,
        pytest.raises(ProtocolError, match="runtime info"),
    ):
        client.facts()


def test_a_refusal_is_an_error_with_the_brokers_words() -> None:
    def refuse(request: Command) -> bytes:
        return request.refusal(REQUEST_CODE_NOT_SUPPORTED, "not here").encode()

    with broker(refuse) as address, RemotingClient(address) as client, pytest.raises(RemotingError) as refused:
        client.call(Request.GET_ALL_DELAY_OFFSET)
    assert "GET_ALL_DELAY_OFFSET: code 3: not here" in str(refused.value)


def test_answers_to_other_requests_are_passed_over() -> None:
    def answer(request: Command) -> bytes:
        other = Command(0, request.opaque + 7, is_answer=True, body=b"other")
        return other.encode() + request.encode() + request.answer(b"mine").encode()

    with broker(answer) as address, RemotingClient(address) as client:
        assert client.call(Request.GET_ALL_TOPIC_CONFIG) == b"mine"


def test_a_broker_that_says_nothing_is_not_waited_for_longer_than_told() -> None:
    with (
        broker(lambda request: b"\0") as address,
        RemotingClient(address, timeout_seconds=0.1) as client,
        pytest.raises(RemotingError, match=r"no answer in 0\.1 s"),
    ):
        client.call(Request.GET_ALL_TOPIC_CONFIG)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("mq-1", Address("mq-1", 10_912), "mq-1:10912"),
        ("mq-1:10", Address("mq-1", 10), "mq-1:10"),
        ("::1", Address("::1", 10_912), "[::1]:10912"),
        ("[::1]:80", Address("::1", 80), "[::1]:80"),
        ("[::1]", Address("::1", 10_912), "[::1]:10912"),
    ],
)
def test_an_address_is_read_as_users_write_it(text: str, address: Address, shown: str) -> None:
    assert parse_address(text, 10_912, "--remoting") == address
    assert str(address) == shown


@pytest.mark.parametrize("text", ["", ":5", "a:", "a:0", "a:65536", "a:x", "a:-1", "[::1]5", "[::1", "a b", "a:٣"])
def test_an_address_that_is_none_is_refused_by_its_options_name(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_address(text, 1, "--remoting")
    assert refused.value.name == "--remoting"
