"""Address: host and port of a broker, as users name it: HOST, HOST:PORT, [IPV6]:PORT."""

from __future__ import annotations

from typing import NamedTuple

from engine.errors import OptionError

MAX_PORT = 65_535


class Address(NamedTuple):
    """A TCP address. `host` is a name, or an IP address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int, option: str) -> Address:
    """The address that `text`, the value of `option`, names. OptionError: it names none."""
    host, colon, port = text, "", ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise OptionError(option, f"{text!r} is not HOST, HOST:PORT or [IPV6]:PORT")
        colon, port = rest[:1], rest[1:]
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
    if not host or any(one.isspace() or one in "/,;" for one in host):
        raise OptionError(option, f"{text!r} names no host")
    if not colon:
        return Address(host, default_port)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= MAX_PORT):
        raise OptionError(option, f"{port!r} is no port: 1 to {MAX_PORT}")
    return Address(host, int(port))
