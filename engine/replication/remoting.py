"""Remoting: RocketMQ's requests and answers, as far as a replica and its master need them.

    length i32 | header's length i32, its top byte 0 for JSON | header, JSON | body

`length` counts what follows it. A header has `code`, `opaque` (the number that an answer repeats), `flag` (bit 0: an
answer), `remark` and `extFields`. The six requests are read-only. They give a replica what the log does not contain:

    26, 28           the broker's settings; where its log begins and ends
    21, 43, 45, 201  topics, group offsets, delay offsets, subscription groups: the text of the files in config/
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from types import TracebackType
from typing import Any, Self

from engine.errors import ProtocolError, RemotingError
from engine.files.disk import is_whole_number
from engine.record.header import MAX_OFFSET
from engine.replication.address import Address

MAX_COMMAND_BYTES = 16 << 20
"""Limit of a request or an answer, as RocketMQ's own (`com.rocketmq.remoting.frameMaxLength`)."""

MAX_REQUEST_BYTES = 64 << 10
"""Limit of a request to a server. The six requests have no body."""

SUCCESS, SYSTEM_ERROR, REQUEST_CODE_NOT_SUPPORTED = 0, 1, 3
"""Codes of an answer."""

TIMEOUT_SECONDS = 10.0
"""Time in which a request has to be answered."""

_LENGTHS = Struct(">II")
_LENGTH_BYTES = 4
_JSON_FORM, _HEADER_BITS = 0, 24
_ANSWER_FLAG = 1
_VERSION = 399
"""A version of RocketMQ that both lines accept in a header: 4.9.4's."""


class Request(IntEnum):
    """The requests, by RocketMQ's codes."""

    GET_ALL_TOPIC_CONFIG = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201


@dataclass(frozen=True, slots=True)
class Command:
    """A request, or an answer to one with the same `opaque`. `code` says which request, or how it ended."""

    code: int
    opaque: int
    is_answer: bool = False
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encode(self) -> bytes:
        """The bytes of the command."""
        header: dict[str, Any] = {
            "code": self.code,
            "language": "OTHER",
            "version": _VERSION,
            "opaque": self.opaque,
            "flag": _ANSWER_FLAG if self.is_answer else 0,
            "serializeTypeCurrentRPC": "JSON",
        }
        if self.remark:
            header["remark"] = self.remark
        if self.fields:
            header["extFields"] = dict(self.fields)
        text = json.dumps(header).encode()
        return _LENGTHS.pack(_LENGTH_BYTES + len(text) + len(self.body), len(text)) + text + self.body

    def answer(self, body: bytes = b"") -> Command:
        """The answer to this request that it succeeded."""
        return Command(SUCCESS, self.opaque, is_answer=True, body=body)

    def refusal(self, code: int, remark: str) -> Command:
        """The answer to this request that it failed with `code`."""
        return Command(code, self.opaque, is_answer=True, remark=remark)


class CommandDecoder:
    """Decodes commands that come in pieces of any size. It holds at most one incomplete command."""

    def __init__(self, peer: str, max_bytes: int = MAX_COMMAND_BYTES) -> None:
        """`peer` names the other end in errors. A command has at most `max_bytes`."""
        self._peer = peer
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Command]:
        """The commands that are complete with `data`, in order. ProtocolError: one is none."""
        rest, found = self._rest, list[Command]()
        rest += data
        while len(rest) >= _LENGTHS.size:
            size_bytes, form_and_length = _LENGTHS.unpack_from(rest)
            header_bytes = form_and_length & ((1 << _HEADER_BITS) - 1)
            if not _LENGTH_BYTES <= size_bytes <= self._max_bytes:
                raise ProtocolError(self._peer, f"a command has {size_bytes:,} bytes, of at most {self._max_bytes:,}")
            if header_bytes > size_bytes - _LENGTH_BYTES:
                raise ProtocolError(self._peer, f"a command of {size_bytes:,} bytes has a header of {header_bytes:,}")
            if form_and_length >> _HEADER_BITS != _JSON_FORM:
                raise ProtocolError(self._peer, "a command's header is not in JSON (rocketmq.serialize.type)")
            end = _LENGTH_BYTES + size_bytes
            if len(rest) < end:
                break
            body = _LENGTHS.size + header_bytes
            found.append(self._command(bytes(rest[_LENGTHS.size : body]), bytes(rest[body:end])))
            del rest[:end]
        return found

    def _command(self, header: bytes, body: bytes) -> Command:
        try:
            parsed = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(self._peer, f"a command's header is not JSON: {error}") from error
        if not isinstance(parsed, dict) or not all(is_whole_number(parsed.get(one)) for one in ("code", "opaque")):
            raise ProtocolError(self._peer, "a command's header lacks code or opaque")
        flag, remark, fields = parsed.get("flag", 0), parsed.get("remark"), parsed.get("extFields")
        return Command(
            parsed["code"],
            parsed["opaque"],
            is_answer=bool(is_whole_number(flag) and flag & _ANSWER_FLAG),
            remark=remark if isinstance(remark, str) else "",
            fields={str(name): str(value) for name, value in fields.items()} if isinstance(fields, dict) else {},
            body=body,
        )


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker's report. Its log is [log_begin, log_end), physical offsets, in files of `file_bytes`."""

    log_begin: int
    log_end: int
    file_bytes: int
    cluster: str
    broker: str
    role: str
    version: str
    has_controller: bool


class RemotingClient:
    """A connection to a broker, for one request after another. A context manager. Thread safety: one caller."""

    def __init__(self, address: Address, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Connect. RemotingError: that is not possible."""
        self._peer = str(address)
        self._timeout_seconds = timeout_seconds
        self._decoder = CommandDecoder(self._peer)
        self._opaque = 0
        try:
            self._socket = socket.create_connection(address, timeout_seconds)
        except OSError as error:
            raise RemotingError(self._peer, "a connection", error.strerror or str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, request: Request) -> bytes:
        """The body of the answer to `request`. RemotingError: it failed, or took too long; ProtocolError; OSError."""
        self._opaque += 1
        deadline = time.monotonic() + self._timeout_seconds
        try:
            self._socket.settimeout(self._timeout_seconds)
            self._socket.sendall(Command(request, self._opaque).encode())
            answer = self._answer(request, deadline)
        except TimeoutError as error:
            reason = f"there was no answer in {self._timeout_seconds:g} s"
            raise RemotingError(self._peer, request.name, reason) from error
        if answer.code != SUCCESS:
            raise RemotingError(self._peer, request.name, f"code {answer.code}: {answer.remark[:500]}")
        return answer.body

    def settings(self) -> dict[str, str]:
        """The broker's settings, by their names in broker.conf. RemotingError, ProtocolError, OSError."""
        return parse_settings(self.call(Request.GET_BROKER_CONFIG))

    def facts(self) -> BrokerFacts:
        """The broker's report. In its first second a broker refuses. RemotingError, ProtocolError, OSError."""
        settings = self.settings()
        figures = _table(self.call(Request.GET_BROKER_RUNTIME_INFO), self._peer)
        return BrokerFacts(
            log_begin=_number(figures, "commitLogMinOffset", self._peer),
            log_end=_number(figures, "commitLogMaxOffset", self._peer),
            file_bytes=_number(settings, "mappedFileSizeCommitLog", self._peer),
            cluster=settings.get("brokerClusterName", ""),
            broker=settings.get("brokerName", ""),
            role=settings.get("brokerRole", ""),
            version=figures.get("brokerVersionDesc", ""),
            has_controller=settings.get("enableControllerMode") == "true",
        )

    def _answer(self, request: Request, deadline: float) -> Command:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(256 << 10)
            if not data:
                raise RemotingError(self._peer, request.name, "it closed the connection")
            for command in self._decoder.feed(data):
                if command.is_answer and command.opaque == self._opaque:
                    return command


def parse_settings(text: bytes) -> dict[str, str]:
    """The settings in the answer to GET_BROKER_CONFIG: lines of NAME=VALUE."""
    pairs = (line.partition("=") for line in text.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _table(text: bytes, peer: str) -> dict[str, str]:
    """The figures in the answer to GET_BROKER_RUNTIME_INFO."""
    try:
        table = json.loads(text)["table"]
        return {str(name): str(value) for name, value in table.items()}
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(peer, "its runtime info has no table of figures") from error


def _number(found: Mapping[str, str], name: str, peer: str) -> int:
    text = found.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_OFFSET)) and int(text) <= MAX_OFFSET):
        raise ProtocolError(peer, f"{name} is {text[:50]!r}, no number of bytes")
    return int(text)
