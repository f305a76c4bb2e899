"""Places of a fleet: a mount or store of this host, one of another host by ssh, or a server's URL.

/mnt/mq                                                       local: no `:` before its first `/`
host-a:/mnt/mq    root@host-a:mq                              by ssh
https://host-a:9870                                           by HTTP: `mountctl serve`
@prod                                                         a group of `~/.config/fsstore/fleet.toml`

[prod]
a = "host-a:/mnt/mq"
b = { ssh = "host-b:/mnt/mq", url = "https://host-b:9870" }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from fsstore.fleet.unusable import UnusableFileError

FLEET_FILE = Path("~/.config/fsstore/fleet.toml")
"""The file of groups, if no other is named."""

_SSH = re.compile(r"((?:[^@/:\[\]]*@)?)(\[[^\]/]*\]|[^:/\[\]]*):(.*)", re.DOTALL)
_WAYS = ("ssh", "url", "path")


class PlaceError(ValueError):
    """A text names no place; `reason` says why."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.text!r}: {self.reason}"


class FleetFileError(UnusableFileError):
    """A file of groups can't be used, or lacks the group asked for; `reason` says why."""


class SshPlace(NamedTuple):
    """A mount or store on another host: `host` as ssh takes it, `path` as `mountctl` there takes it."""

    host: str
    path: str


@dataclass(frozen=True, slots=True)
class Place:
    """A broker's store, called `name`: at least one of the ways to it is there."""

    name: str
    path: str | None = None
    ssh: SshPlace | None = None
    url: str | None = None


def is_place(argument: str) -> bool:
    """Whether an argument of a command is a group, or a place of another host. No topic is."""
    return argument.startswith("@") or ":" in argument.partition("/")[0]


def parse_place(text: str, name: str | None = None) -> Place:
    """The place that a text names; it is called `name`, or as it is written. PlaceError."""
    called = text if name is None else name
    if text.startswith(("http://", "https://")):
        return Place(called, url=_url(text))
    if not is_place(text):
        if not text or "\0" in text:
            raise PlaceError(text, "this is not a path")
        return Place(called, path=text)
    return Place(called, ssh=_ssh(text))


def _ssh(text: str) -> SshPlace:
    found = _SSH.fullmatch(text)
    if found is None:
        raise PlaceError(text, "a place of another host is HOST:PATH")
    user, host, path = found[1], found[2].removeprefix("[").removesuffix("]"), found[3]
    if not host or host.startswith("-") or user.startswith(("-", "@")) or not f"{user}{host}".isprintable():
        raise PlaceError(text, "this is not a host name")
    if " " in user + host or not path or path.startswith("-") or "\0" in path:
        raise PlaceError(text, "a place of another host is HOST:PATH")
    return SshPlace(user + host, path)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname and parts.port)
    except ValueError:
        has_host = False
    if not has_host or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise PlaceError(text, "the URL of a server is http://HOST:PORT or https://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}"


def group_of(text: str, file: Path = FLEET_FILE) -> list[Place]:
    """The places of the group `@NAME`, in the file's order. FleetFileError, OSError."""
    file, name = file.expanduser(), text.removeprefix("@")
    try:
        groups = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise FleetFileError(file, f"it is not there, and would name the group {text}") from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise FleetFileError(file, f"this is not TOML: {error}") from None
    group = groups.get(name)
    if not isinstance(group, Mapping) or not group:
        known = ", ".join(f"@{known}" for known in groups) or "none"
        raise FleetFileError(file, f"there is no group {text} with places in it; there are: {known}")
    return [_entry(file, f"{name}.{broker}", broker, value) for broker, value in group.items()]


def _entry(file: Path, shown: str, name: str, value: object) -> Place:
    """A place of a group: a text, or a table of the ways to it."""
    ways = {way: text for way, text in value.items() if way in _WAYS} if isinstance(value, Mapping) else {"": value}
    if not ways or (isinstance(value, Mapping) and len(ways) < len(value)):
        raise FleetFileError(file, f"{shown} is a place, or a table with {', '.join(_WAYS)}")
    found = Place(name)
    for way, text in ways.items():
        if not isinstance(text, str):
            raise FleetFileError(file, f"{shown} is no text")
        try:
            place = parse_place(text, name)
        except PlaceError as error:
            raise FleetFileError(file, f"{shown}: {error}") from None
        if way and getattr(place, way) is None:
            raise FleetFileError(file, f"{shown}: {text!r} is no {way}")
        found = Place(name, found.path or place.path, found.ssh or place.ssh, found.url or place.url)
    return found
