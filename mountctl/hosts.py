"""Reads places of several hosts at once, each by the user's own ssh, where `mountctl remote` answers.

    tail -f a:/mnt/mq @prod orders
      ├─ ssh a mountctl remote ──frames──┐
      ├─ ssh b mountctl remote ──frames──┼─> one order: store time, broker, physical offset
      └─ mountctl remote (a place here) ─┘

Nothing of the user's arguments is on the other host's command line: the request goes to its standard input. A process
is read only when its next message is wanted, so pipes hold the rest back.
"""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, islice, takewhile
from queue import Queue
from typing import IO, Self, TypeVar

import click

from fsstore.fleet.places import FleetFileError, Place, PlaceError, group_of, is_place, parse_place
from fsstore.options import DISTRIBUTION
from mountctl.client import MessageRow
from mountctl.errors import CommandError
from mountctl.frames import (
    LONGEST_BYTES,
    PROTOCOL,
    SAME_VERSION,
    End,
    Following,
    Frame,
    Hello,
    Missing,
    Refused,
    Request,
    Row,
    decode,
)
from mountctl.options import StoreSettings
from mountctl.output import visible, visible_lines
from mountctl.selection import Selection, parse_time

F = TypeVar("F", bound=Frame)

NO_ANSWER = os.EX_NOHOST
"""Exit code if a host did not answer, or not to the end."""
SSH = ("ssh", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=10", "-o", "BatchMode=no", "--")
HERE = (sys.executable, "-P", "-m", "mountctl", "remote")

LONGEST_PAUSE_SECONDS = 30.0
"""A lost host is asked again after 1 s, then after twice as long each time, up to this."""
_CLOSING_SECONDS = 0.3
"""After Ctrl-C in a terminal, the processes of ssh end before this one closes them."""
_OURS = "mountctl: "
_TOGETHER = 64
"""The most messages that wait to be printed while hosts are followed."""


def split_places(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The places that the words begin with, and the rest; no places if the only place is a store here."""
    first = list(takewhile(lambda word: word is words[0] or _looks_like_place(word), words))
    return (first, list(words[len(first) :])) if any(map(is_place, first)) else ([], list(words))


def is_fleet(places: Sequence[str]) -> bool:
    """Whether these are several places, or one of another host."""
    return len(places) > 1 or any(map(is_place, places))


def _looks_like_place(word: str) -> bool:
    return is_place(word) or word.startswith(("/", "./", "../"))


def request(
    kind: str, targets: Iterable[str] = (), selection: Selection | None = None, settings: StoreSettings | None = None
) -> Request:
    """A request, with absolute times: other hosts have other zones and clocks. CommandError: there are `settings`,
    which are for a store here."""
    if settings:
        raise CommandError("-o and --broker-conf are for a store of this host", "leave them out", os.EX_USAGE)
    chosen = selection or Selection()

    def absolute(text: str | None) -> str | None:
        return text if text is None or text.isdecimal() else f"@{parse_time(text, chosen.now_ms)}"

    bounds = absolute(chosen.start), absolute(chosen.end)
    asker = version(DISTRIBUTION)
    where = None if chosen.where is None else chosen.where.text
    return Request(kind, "", tuple(targets), *bounds, chosen.tags, chosen.key, where, version=asker)


class Host:
    """A place, and the process that reads it. `code` is the exit code of its answer. `is_lost`: it did not answer,
    or not completely. `missing` has the targets that it lacks."""

    def __init__(self, name: str, place: Place, request: Request) -> None:
        """CommandError: no ssh leads to the place."""
        if place.ssh is None and place.path is None:
            raise CommandError(f"{visible(name)} is read by HTTP alone", "name it HOST:PATH", os.EX_USAGE)
        self.name = visible(name)
        self._command = [*SSH, place.ssh.host, "mountctl remote"] if place.ssh else list(HERE)
        self._request = replace(request, place=place.ssh.path if place.ssh else os.path.abspath(place.path or ""))
        self.code = 0
        self.is_lost = self.is_following = False
        self.missing: tuple[str, ...] = ()
        self._answers = self._was_lost = False
        self._said = ""
        self._next: dict[str, dict[int, int]] = {}
        self._changing, self._closed = threading.Lock(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Send the request, or after a loss what is left of it."""
        with self._changing:
            if self._closed.is_set():
                return
            try:
                self._process = process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            except FileNotFoundError:
                raise CommandError("there is no ssh here", "install openssh-client") from None
        self._answers = self.is_lost = self.is_following = False
        self._listener = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        self._listener.start()
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # if it has ended, its other output says why
            process.stdin.write(self._request.to_line())

    def pause(self, seconds: float) -> bool:
        """Wait, but not longer than until `close`; whether it came to that."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        with self._changing:
            self._end()

    def _end(self) -> int:
        """End the process, if there is one; its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:  # it may wait for a reader
            self._process.kill()
            return self._process.wait()

    def _listen(self, errors: IO[bytes]) -> None:
        """Print the messages of mountctl on that host. The last other line, or the last one before its answer, is
        the reason of a loss."""
        for line in iter(lambda: errors.readline(4096), b""):
            text = visible(line.decode(errors="replace").strip())
            if self._answers and text.startswith(_OURS):
                self._say(text.removeprefix(_OURS))
            elif text:
                self._said = text.removeprefix(_OURS)

    def _say(self, text: str) -> None:
        click.echo(f"mountctl: {self.name}: {text}", err=True)

    def frames(self) -> Iterator[Frame]:
        """Rows, counts, topics or status of the answer, up to its end or the next Following. A refusal, or an answer
        that breaks off, is printed."""
        for frame in self._received():
            match frame:
                case Hello(theirs, protocol):
                    self._answers = protocol == PROTOCOL
                    if not self._answers:
                        self._said = f"mountctl {theirs} there is another version's: {SAME_VERSION}"
                        break
                case Missing(targets):
                    self.missing = targets
                case Following(ends):
                    self._follow(ends)
                    return
                case Refused(reason, code):
                    self.code = code
                    self._say(visible(reason))
                    return
                case End(code):
                    self.code = code
                    return
                case Row(message):
                    if self._is_new(message):
                        yield frame
                case _:
                    yield frame
        self._lose()

    def _received(self) -> Iterator[Frame]:
        """The frames received until the connection ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline(LONGEST_BYTES)).endswith(b"\n"):
            try:
                frame = decode(line)
            except ValueError:
                self._said = f"it sends '{visible(line[:60].decode(errors='replace').strip())}', which is no answer"
                return
            yield frame

    def _is_new(self, message: MessageRow) -> bool:
        """Whether the message was not sent before a loss; note it as sent."""
        if not self._request.follow:
            return True
        following = self._next.setdefault(message.topic, {})
        is_new = message.offset >= following.get(message.queue, 0)
        if is_new:
            following[message.queue] = message.offset + 1
        return is_new

    def _follow(self, ends: dict[str, dict[int, int]]) -> None:
        """Note where following goes on after a loss."""
        for topic, queues in ends.items():
            self._next.setdefault(topic, {}).update(queues)
        self._request = replace(self._request, ends=self._next)
        self.is_following = True
        if self._was_lost:
            self._say("it is back")
            self._was_lost = False

    def _lose(self) -> None:
        if self._closed.wait(_CLOSING_SECONDS):
            return
        code = self._end()
        self._listener.join(_CLOSING_SECONDS)
        self.is_lost = True
        if not self._was_lost:
            how = "it was lost" if self._answers else "it does not answer"
            self._say(f"{how}: {self._said or f'{self._command[0]} ended with exit code {code}'}")
        self._was_lost = True


class Fleet:
    """The places that a command line names, asked at once; a context manager, which ends their processes."""

    def __init__(self, words: Sequence[str], request: Request) -> None:
        """CommandError: a word is no place."""
        named = _named([place for word in words for place in _places(word)])
        self.hosts = [Host(name, place, request) for name, place in named.items()]
        self.is_single = len(self.hosts) == 1
        self._cleans = sys.stdout.isatty()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for host in self.hosts:
                started.callback(host.close)
                host.start()
            self._started = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._started.close()

    def rows(self) -> Iterator[MessageRow]:
        """Messages by store time, broker and physical offset, up to each answer's end, or to where following begins.
        CommandError as `require_targets`."""
        streams = [self._rows_of(host) for host in self.hosts]
        first = [list(islice(stream, 1)) for stream in streams]
        self.require_targets()
        return heapq.merge(*map(chain, first, streams), key=_order)

    def _rows_of(self, host: Host) -> Iterator[MessageRow]:
        name = "" if self.is_single else host.name
        for frame in host.frames():
            if isinstance(frame, Row):
                row = _cleaned(frame.message) if self._cleans else frame.message
                yield replace(row, broker=name) if name else row

    def follow(self) -> Iterator[list[MessageRow]]:
        """Messages as they come, those that come together in the order of `rows`. A lost host is asked again. It ends
        when each host has refused."""
        come: Queue[MessageRow | None] = Queue(_TOGETHER)
        for host in self.hosts:
            threading.Thread(target=self._forward, args=(host, come), daemon=True).start()
        left = len(self.hosts)
        while left:
            found = [come.get()]
            found += [come.get() for _ in range(come.qsize())]
            left -= found.count(None)
            yield sorted(filter(None, found), key=_order)

    def _forward(self, host: Host, come: Queue[MessageRow | None]) -> None:
        pause = 1.0
        while host.is_following or host.is_lost:
            if host.is_lost:
                if host.pause(pause):
                    return
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                host.start()
            for row in self._rows_of(host):
                come.put(row)
            pause = 1.0 if host.is_following else pause
        come.put(None)

    def answers(self, kind: type[F]) -> Iterator[tuple[Host, F]]:
        """The frames of one kind, host by host."""
        return ((host, frame) for host in self.hosts for frame in host.frames() if isinstance(frame, kind))

    def require_targets(self) -> None:
        """CommandError: no host has one of the targets."""
        asked = [host for host in self.hosts if not host.code and not host.is_lost]
        nowhere = set.intersection(*({*host.missing} for host in asked)) if len(asked) == len(self.hosts) else ()
        if nowhere:
            names = ", ".join(map(repr, sorted(nowhere)))
            raise CommandError(f"no place has {names}", "see `mountctl topics` with these places", os.EX_USAGE)

    def exit_code(self, otherwise: int = 0) -> int:
        """NO_ANSWER if a host is lost, else what the hosts say, else `otherwise`."""
        if any(host.is_lost for host in self.hosts):
            return NO_ANSWER
        return max(host.code for host in self.hosts) or otherwise


def _order(row: MessageRow) -> tuple[int, str, int]:
    return row.store_time_ms, row.broker, row.physical_offset


def _places(word: str) -> list[Place]:
    try:
        return group_of(word) if word.startswith("@") else [parse_place(word)]
    except (PlaceError, FleetFileError) as error:
        raise CommandError(str(error), exit_code=os.EX_USAGE) from None


def _named(places: Sequence[Place]) -> dict[str, Place]:
    """Each place once, by its name: of fleet.toml, of its host, or as it is written, if its host has several."""
    hosts = Counter(place.ssh.host for place in places if place.ssh)
    found: dict[str, Place] = {}
    for place in places:
        is_written = place.ssh is not None and place.name.endswith(f":{place.ssh.path}")
        name = place.ssh.host if place.ssh and is_written and hosts[place.ssh.host] == 1 else place.name
        if found.setdefault(name, place) != place:
            raise CommandError(f"two places are called {name!r}", "name one of them HOST:PATH", os.EX_USAGE)
    return found


def _cleaned(row: MessageRow) -> MessageRow:
    """The message for a terminal: what moves the cursor, or hides other text, is escaped."""
    body = visible_lines(row.body.decode(errors="backslashreplace")).encode()
    attributes = {name: visible_lines(text) for name, text in row.attributes.items()}
    return replace(row, topic=visible(row.topic), body=body, attributes=attributes)
