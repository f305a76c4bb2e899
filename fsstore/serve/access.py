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

import hmac
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from engine import plain_ends, socket_owner
from fsstore.fleet.hadoop_tokens import token_in_url
from fsstore.fleet.unusable import UnusableFileError
from fsstore.serve.connection import Request
from fsstore.serve.tree import RefusedError, ServedMount

LEAST_BITS = 128
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]+")
_HEX = re.compile(r"[0-9a-fA-F]+")


class TokenFileError(UnusableFileError):
    """A file of tokens can't be used; `reason` says why. It has no token."""


class AccessError(RefusedError):
    """The client of a request may not read, or is not known."""


class Peer(NamedTuple):
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
        self._hashes = {name: token_digest(token) for name, token in tokens.items()}

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def holder(self, token: str) -> str | None:
        """The name of a token's holder; None: it is none of ours."""
        return self.holder_of(token_digest(token))

    def holder_of(self, digest: bytes) -> str | None:
        """As `holder`, by a token's `token_digest`."""
        found = [name for name, known in self._hashes.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None


def token_digest(token: str) -> bytes:
    """The digest that is kept in memory instead of a token."""
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


class Access(NamedTuple):
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
        raise AccessError(401, "a token is needed" if self.tokens else "a client's certificate is needed")

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
        return token_in_url(request.parameters["delegation"])
    except ValueError:
        return ""


def peer_of(connection: socket.socket, certificate: str | None) -> Peer:
    """The other end of a connection. OSError: it is gone."""
    (host, port), own = plain_ends(connection)
    user, own_host = None, own[0]
    if is_local := is_loopback(host):
        user = socket_owner((host, port), own)
    return Peer(host, port, is_local, user, certificate, own_host)


@lru_cache
def is_loopback(host: str) -> bool:
    """Whether an address leads to this machine alone. ValueError: it is a name."""
    return ip_address(host).is_loopback
