"""The clients that may have the log: on the loopback by the owner of their socket, from elsewhere by their network."""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import IPv4Network, IPv6Network, ip_address

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1  # linux/sock_diag.h, linux/netlink.h
_MESSAGE = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBxI")
_REPLY = struct.Struct("=BBBB48xIIIII")
_ANY_INTERFACE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # and no cookie


def access_problem(connection: socket.socket, allow: tuple[IPv4Network | IPv6Network, ...]) -> str | None:
    """The reason why the other end of a connection may not have the log; None: it may. A client on the loopback has to
    be our own user or root, one from elsewhere in a network of `allow`. OSError: it is gone."""
    peer, own = plain_ends(connection)
    if not ip_address(peer[0]).is_loopback:
        return None if any(ip_address(peer[0]) in network for network in allow) else "its address is not in haAllow"
    owner = socket_owner(peer, own)
    if owner is None:
        return "the kernel does not say whose socket it is"
    return None if owner in (0, os.geteuid()) else f"it belongs to user {owner}"


def plain_ends(connection: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    """Address and port of the other end, and our own, without an IPv6 scope or a mapped IPv4 address's prefix. OSError:
    it is gone."""
    (host, port), (own_host, own_port) = connection.getpeername()[:2], connection.getsockname()[:2]
    return (_plain(host), port), (_plain(own_host), own_port)


def _plain(host: str) -> str:
    return host.partition("%")[0].removeprefix("::ffff:")


def socket_owner(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user of a TCP socket of this machine, by its two ends; None: the kernel does not say."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    hosts = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (peer, own))
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    query += struct.pack("!HH", peer[1], own[1]) + hosts + _ANY_INTERFACE
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _SOCK_DIAG) as asking:
            asking.send(_MESSAGE.pack(_MESSAGE.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + query)
            answer = asking.recv(4096)  # the kernel has answered before `send` returns
    except OSError:
        return None
    if _MESSAGE.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    *_, user, inode = _REPLY.unpack_from(answer, _MESSAGE.size)
    return int(user) if inode else None  # a socket that was closed meanwhile seems to be root's
