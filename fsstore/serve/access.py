"""The client of a request, and whether it may read.

    a token              in `Authorization: Bearer`, or, as Hadoop sends it, in the parameter `delegation`
    a certificate        of the client, which one of ours has signed (TLS)
    a user               on the loopback, without any of these: the server's own user and root, and all users if the
                         mount lets others in. The kernel says whose socket it is
    an address           only with `open_to_all`

A request must name this server (`Host`): otherwise a page in a user's browser could read it by a name of its own that
leads here.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from engine import plain_ends, socket_owner
from fsstore.serve.connection import Request
from fsstore.serve.tree import RefusedError, ServedMount

LEAST_BITS = 128
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]+")
_HEX = re.compile(r"[0-9a-fA-F]+")
_KINDS = ("WEBHDFS delegation", "SWEBHDFS delegation")
"""Kinds of token that Hadoop's clients look for."""
_MAGIC = b"HDTS\0"  # and the version of the format


class TokenFileError(Exception):
    """A file of tokens can't be used; `reason` says why. It has no token."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class AccessError(RefusedError):
    """The client of a request may not read, or is not known."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection: its address, whether that is the loopback's, the user of its socket there, the
    name in its certificate, and our own address."""

    host: str
    port: int
    is_local: bool
    user: int | None
    certificate: str | None
    own_host: str

    @property
    def client(self) -> str:
        """The client until a request names another one."""
        return self.host if self.user is None else f"user:{self.user}"


class Tokens:
    """Tokens by the name of their holder. Only their hashes are compared, each in constant time."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._hashes = {name: _hash(token) for name, token in tokens.items()}

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def holder(self, token: str) -> str | None:
        """The name of a token's holder; None: it is none of ours."""
        asked = _hash(token)
        found = [name for name, known in self._hashes.items() if hmac.compare_digest(known, asked)]
        return found[0] if found else None


def _hash(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> dict[str, str]:
    """The tokens of a file, by name: a line is NAME TOKEN, or begins with #. TokenFileError, OSError."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        facts = os.fstat(file.fileno())
        if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in (os.geteuid(), 0):
            raise TokenFileError(path, "other users could read or replace it: it has to be yours, with mode 0600")
        lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    tokens: dict[str, str] = {}
    for number, words in enumerate(lines, 1):
        if len(words) != 2 or not _TOKEN.fullmatch(words[1]):
            raise TokenFileError(path, f"entry {number} is not NAME TOKEN")
        name, token = words
        if len(token) * (4 if _HEX.fullmatch(token) else 6) < LEAST_BITS or len(set(token)) < 8:
            raise TokenFileError(path, f"the token of {name} is shorter than {LEAST_BITS} bits: openssl rand -hex 32")
        if name in tokens or token in tokens.values():
            raise TokenFileError(path, f"entry {number} repeats a name or a token")
        tokens[name] = token
    if not tokens:
        raise TokenFileError(path, "there is no token in it")
    return tokens


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. `hosts` are its names; `open_to_all` lets requests without a token in from
    everywhere."""

    hosts: frozenset[str]
    tokens: Tokens
    open_to_all: bool = False

    def require_host(self, request: Request, peer: Peer) -> None:
        """AccessError: the request is for another server, or a page of another one sent it."""
        name = _without_port(request.headers.get("host", "")).lower()
        if name not in self.hosts and name != peer.own_host:
            raise AccessError(421, "Host is no name of this server: --host NAME adds one")
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise AccessError(403, "a page of another site sent this request")

    def client(self, request: Request, peer: Peer, mount: Callable[[], ServedMount]) -> str:
        """The client of a request, as shares and the access log name it. AccessError; errors of `mount`."""
        token = _token_of(request)
        if token is not None:
            holder = self.tokens.holder(token)
            if holder is None:
                raise AccessError(401, "the token is not valid")
            return f"token:{holder}"
        if peer.certificate is not None:
            return f"certificate:{peer.certificate}"
        if peer.is_local and not self.open_to_all:
            return self._local_client(peer, mount)
        if self.open_to_all:
            return peer.client
        raise AccessError(401, "a token is needed")

    def _local_client(self, peer: Peer, mount: Callable[[], ServedMount]) -> str:
        if peer.user is None:
            raise AccessError(403, "the kernel does not say whose socket this is: a token is needed")
        if peer.user not in (0, os.geteuid()) and not mount().allows_others:
            raise AccessError(403, f"user {peer.user} may not read this mount: a token is needed")
        return peer.client


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _token_of(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    if "delegation" not in request.parameters:
        return None
    try:
        return _password_of(request.parameters["delegation"])
    except (ValueError, EOFError):
        return ""


def peer_of(connection: socket.socket, certificate: str | None) -> Peer:
    """The other end of a connection. OSError: it is gone."""
    (host, port), own = plain_ends(connection)
    user, own_host = None, own[0]
    if is_local := is_loopback(host):
        user = socket_owner((host, port), own)
    return Peer(host, port, is_local, user, certificate, own_host)


def is_loopback(host: str) -> bool:
    """Whether an address leads to this machine alone. ValueError: it is a name."""
    return ip_address(host).is_loopback


def hadoop_token_file(token: str, hosts: Iterable[str], port: int) -> bytes:
    """The file for HADOOP_TOKEN_FILE_LOCATION that has `token` for a server at these addresses."""
    entries = [
        _text(f"{kind}:{host}:{port}") + _vint(0) + _bytes(token.encode()) + _text(kind) + _text(f"{host}:{port}")
        for host in hosts
        for kind in _KINDS
    ]
    return _MAGIC + _vint(len(entries)) + b"".join(entries) + _vint(0)


def _password_of(text: str) -> str:
    """The password of a delegation token as it is in a URL. ValueError, EOFError: it is none."""
    try:
        encoded = io.BytesIO(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    _read_bytes(encoded)  # the identifier
    return _read_bytes(encoded).decode("utf-8", "surrogateescape")


def _vint(number: int) -> bytes:
    """A number of 0 or more, as org.apache.hadoop.io.WritableUtils writes it."""
    if number <= 127:
        return bytes((number,))
    digits = number.to_bytes(-(-number.bit_length() // 8), "big")
    return bytes((256 - 112 - len(digits),)) + digits


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(content: bytes) -> bytes:
    return _vint(len(content)) + content


def _read_bytes(encoded: io.BytesIO) -> bytes:
    size = _read_exactly(encoded, 1)[0]
    if 136 <= size <= 143:  # so many bytes of a number follow
        size = int.from_bytes(_read_exactly(encoded, 144 - size), "big")
    elif size > 127:
        raise ValueError("a negative length")
    return _read_exactly(encoded, size)


def _read_exactly(encoded: io.BytesIO, size: int) -> bytes:
    found = encoded.read(size)
    if len(found) < size:
        raise EOFError
    return found
