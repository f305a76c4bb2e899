"""WebHDFS: the calls of Hadoop's client that read, `/webhdfs/v1/PATH?op=…`.

Beside the mount's files there are directories `@parquet@SINCE-UNTIL` here, in epoch milliseconds: `@parquet` with the
files of those times alone. Hadoop lists a directory by one request, and files that it is given by two each.

Needs of the client that no document names: JSON has no Content-Type, for Hadoop's own packing of its client can't load
the class that parses one. The first OPEN is redirected, since the client throws its body away. The content of an OPEN
reaches to the end of the file or of `length`, never less: the client takes it for the file's end.
"""

from __future__ import annotations

import os
import pwd
import stat
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from io import FileIO
from itertools import islice
from typing import NamedTuple

import msgspec

from fsstore.interface import NS_PER_MS
from fsstore.parquet.cache import Recent
from fsstore.parquet.file_map import chunk_ends
from fsstore.parquet.layout import PAGE_BYTES
from fsstore.parquet.names import SUFFIX
from fsstore.serve.connection import SHORT_BYTES, Answer, Request, answer_in_pieces, answer_with
from fsstore.serve.files import DATASET, Datasets, dataset_of_times
from fsstore.serve.tree import Entry, KeptFile, Parts, PathError, ServedTree

BLOCK_BYTES = 128 << 20
BATCH_FILES = 1_000
"""Files of one answer to LISTSTATUS_BATCH: as many as a name node gives."""
PIECE_FILES = 256
"""Files of a listing that are held at a time."""
SPARE = 0.4
"""The bytes that may be sent past the end of a column chunk before the next pause, as a fraction of the bytes sent
before."""
_FOOTER_END_BYTES = 8
_QUEUE_DEPTH = 3
"""Names of the path of a queue's directory in `@parquet/`."""
_KEPT_BYTES, _KEPT_S = 16 << 20, 10.0
"""Bytes of footers that are remembered, and for how long: a reader asks for the end of a file and for its footer."""
IDLE_S = 0.2
"""How long a file is kept open that is not asked for: `mountctl umount` tries for a second."""
_MOST_KEPT = 64
"""Files that are kept open."""
_BYTES = (("Content-Type", "application/octet-stream"),)
_EXCEPTIONS = {
    400: "java.lang.IllegalArgumentException",
    401: "org.apache.hadoop.security.AccessControlException",
    403: "org.apache.hadoop.security.AccessControlException",
    404: "java.io.FileNotFoundException",
    405: "java.lang.UnsupportedOperationException",
}

CALLS = ("GETFILESTATUS", "LISTSTATUS", "LISTSTATUS_BATCH", "GETFILEBLOCKLOCATIONS", "GETHOMEDIRECTORY", "OPEN")
"""Operations that are served."""

_json = msgspec.json.Encoder()


class Footer(NamedTuple):
    """The end of a file of `@parquet/`, from its metadata on: where it begins, its bytes, where the column chunks end,
    and until when it is remembered, on the monotonic clock."""

    begin: int
    content: bytes
    chunk_ends: Sequence[int]
    until_s: float


def failure(status: int, reason: str) -> Answer:
    """An error, as the client turns it into an exception of Java's."""
    name = _EXCEPTIONS.get(status, "java.io.IOException")
    error = {"exception": name.rpartition(".")[2], "javaClassName": name, "message": reason}
    return Answer(status, body=_json.encode({"RemoteException": error}))


class WebHdfs:
    """Answers calls. All methods may raise MountGoneError, PathError and OSError."""

    def __init__(self, tree: ServedTree, host: str, datasets: Datasets) -> None:
        """`host` is what GETFILEBLOCKLOCATIONS says: the name that a Spark worker of this machine has. `datasets`
        knows the files of a time."""
        self._tree = tree
        self._host = host
        self._datasets = datasets
        self._footers: Recent[tuple[Parts, int, int], Footer] = Recent(_KEPT_BYTES)
        self._kept: dict[tuple[Parts, int, int], KeptFile] = {}  # closed by trio's thread, and used there alone
        self._lock = threading.Lock()
        calls = self._status, self._list, self._list_batch, self._locations, self._home, self._open
        self._calls: Mapping[str, Callable[[Parts, Request], Answer]] = dict(zip(CALLS, calls, strict=True))

    def known_answer(self, parts: Parts, operation: str, request: Request) -> Answer | None:
        """The answer to a call that the mount need not be asked for; None: it has to be. Does not block."""
        if operation == "GETFILEBLOCKLOCATIONS" and "length" in request.parameters:
            return self._locations(parts, request)
        if operation not in ("GETFILESTATUS", "OPEN") or not parts or not parts[-1].endswith(SUFFIX):
            return None
        below = parts if dataset_of_times(parts[0]) is None else (DATASET, *parts[1:])
        entry = self._tree.known_entry(below) if below[0] == DATASET else None
        if entry is None or operation == "GETFILESTATUS":
            return entry and _answer({"FileStatus": _shown(entry, b"")})
        footer = self._kept_footer(below, entry.status)
        if footer is None:
            return None
        begin, end = _range(request, entry.status.st_size)
        if begin >= footer.begin:
            return Answer(200, _BYTES, footer.content[begin - footer.begin : end - footer.begin], begin=begin)
        kept, stops = self._kept.get(_key(below, entry.status)), pauses(begin, end, footer.chunk_ends)
        stop = stops[0] if stops else end
        if kept is None or (stop - begin <= SHORT_BYTES and not kept.has(begin, stop)):
            return None
        return answer_with(200, _BYTES, kept.opened(), begin, end, stops)

    def close_idle(self) -> None:
        """Close the files that were not asked for in IDLE_S. Called in trio's thread."""
        until_s = time.monotonic() - IDLE_S
        with self._lock:
            idle = [key for key, kept in self._kept.items() if kept.used_s < until_s]
            closing = [self._kept.pop(key) for key in idle]
        for kept in closing:
            kept.close()

    def answer(self, parts: Parts, operation: str, request: Request) -> Answer:
        """The answer to a call. Blocks."""
        call = self._calls.get(operation)
        if call is None:
            raise PathError(405, f"this call is not served: there are {', '.join(CALLS)}")
        times = dataset_of_times(parts[0]) if parts else None
        if times is None:
            return call(parts, request)
        below = (DATASET, *parts[1:])
        if operation != "LISTSTATUS":
            return call(below, request)
        self._datasets.require_times(times)
        if len(below) != _QUEUE_DEPTH:
            return call(below, request)
        _, folder, queue = below
        return answer_in_pieces(200, (), _listing(self._datasets.files(folder, queue, times)))

    def _status(self, parts: Parts, request: Request) -> Answer:
        return _answer({"FileStatus": _shown(self._tree.entry(parts), b"")})

    def _home(self, parts: Parts, request: Request) -> Answer:
        return _answer({"Path": "/"})

    def _list(self, parts: Parts, request: Request) -> Answer:
        entry = self._tree.entry(parts)
        if not stat.S_ISDIR(entry.status.st_mode):
            return _answer({"FileStatuses": {"FileStatus": [_shown(entry, b"")]}})
        return answer_in_pieces(200, (), _listing(self._tree.entries(parts)))

    def _list_batch(self, parts: Parts, request: Request) -> Answer:
        """Names after `startAfter`, sorted. The directory is read for each batch, so that none is held between them."""
        after, behind = os.fsencode(request.parameters.get("startafter", "")), 0

        def rest() -> Iterator[bytes]:
            nonlocal behind
            for name in self._tree.names(parts):
                if name > after:
                    behind += 1
                    yield name

        names = nsmallest(BATCH_FILES, rest())
        found = [_shown(self._tree.entry((*parts, name)), name) for name in names]
        listing = {"partialListing": {"FileStatuses": {"FileStatus": found}}, "remainingEntries": behind - len(names)}
        return _answer({"DirectoryListing": listing})

    def _locations(self, parts: Parts, request: Request) -> Answer:
        """All of a file is on this host. Clients ask for the length that they know, so nothing is looked up."""
        length = _number(request, "length")
        block = {
            "cachedHosts": [],
            "corrupt": False,
            "hosts": [self._host],
            "length": self._tree.entry(parts).status.st_size if length is None else length,
            "names": [request.headers["host"]],
            "offset": 0 if length is None else _number(request, "offset") or 0,
            "topologyPaths": [f"/default-rack/{self._host}"],
        }
        return _answer({"BlockLocations": {"BlockLocation": [block]}})

    def _open(self, parts: Parts, request: Request) -> Answer:
        file = self._tree.open(parts)
        status = os.fstat(file.fileno())
        begin, end = _range(request, status.st_size)
        chunk_ends = self._chunk_ends(parts, file, status) if parts[-1].endswith(SUFFIX) else ()
        if chunk_ends and status.st_uid == os.geteuid():
            self._keep(_key(parts, status), file)
        return answer_with(200, _BYTES, file, begin, end, pauses(begin, end, chunk_ends))

    def _chunk_ends(self, parts: Parts, file: FileIO, status: os.stat_result) -> Sequence[int]:
        footer = self._kept_footer(parts, status)
        if footer is None:
            footer = _footer_of(file, status.st_size)
            with self._lock:
                self._footers.put(_key(parts, status), footer, len(footer.content))
        return footer.chunk_ends

    def _keep(self, key: tuple[Parts, int, int], file: FileIO) -> None:
        """Keep a file open, if there is room: a reader comes for several parts of it."""
        if key in self._kept or len(self._kept) >= _MOST_KEPT:
            return
        with suppress(OSError):  # it is opened anew each time, then
            kept = KeptFile(file, key[1])
            with self._lock:
                known = self._kept.setdefault(key, kept)
            if known is not kept:
                kept.close()

    def _kept_footer(self, parts: Parts, status: os.stat_result) -> Footer | None:
        with self._lock:
            footer = self._footers.get(_key(parts, status))
        return None if footer is None or footer.until_s < time.monotonic() else footer


def _key(parts: Parts, status: os.stat_result) -> tuple[Parts, int, int]:
    """The key of a file with one content: its path, size in bytes, and modification time in ns."""
    return parts, status.st_size, status.st_mtime_ns


def redirect(request: Request, scheme: str) -> Answer:
    """The answer to the first OPEN: the same call once more, with `direct=1`."""
    there = f"{scheme}://{request.headers['host']}{request.target}&direct=1"
    return Answer(307, [("Location", there)])


def pauses(begin: int, end: int, ends: Sequence[int]) -> list[int]:
    """Positions in (begin, end) to pause at, ends of chunks: a client that hangs up at any end of a chunk has been sent
    at most SPARE as much beyond it at the next pause. So a long read pauses a few times. A read from the file's begin,
    where no chunk is, is one of the whole file."""
    found: list[int] = []
    if begin < PAGE_BYTES:
        return found
    number = bisect_right(ends, begin)
    while number < len(ends) and ends[number] < end:
        spared = ends[number] + SPARE * (ends[number] - begin)
        last = bisect_right(ends, min(spared, end - 1)) - 1
        found.append(ends[last])
        number = last + 1
    return found


def _footer_of(file: FileIO, size: int) -> Footer:
    """The footer of a file of `@parquet/`; an empty one, if it is none."""
    tail = os.pread(file.fileno(), _FOOTER_END_BYTES, size - _FOOTER_END_BYTES)
    begin = size - int.from_bytes(tail[:4], "little") - _FOOTER_END_BYTES
    content = os.pread(file.fileno(), size - begin, begin) if begin >= 0 else b""
    if len(content) < size - begin:
        content = b""
    return Footer(size - len(content), content, chunk_ends(content), time.monotonic() + _KEPT_S)


def _listing(entries: Iterator[Entry]) -> Iterator[bytes]:
    yield b'{"FileStatuses":{"FileStatus":['
    comma = b""
    while some := [_json.encode(_shown(entry, entry.name)) for entry in islice(entries, PIECE_FILES)]:
        yield comma + b",".join(some)
        comma = b","
    yield b"]}}"


def _answer(content: object) -> Answer:
    return Answer(200, body=_json.encode(content))


def _range(request: Request, size: int) -> tuple[int, int]:
    """The bytes [begin, end) that an OPEN asks for. PathError."""
    begin, length = _number(request, "offset") or 0, _number(request, "length")
    if begin > size:
        raise PathError(403, f"offset {begin} is out of the file, which has {size} bytes")
    return begin, size if length is None else min(begin + length, size)


def _number(request: Request, name: str) -> int | None:
    """A parameter of 0 or more; None: it is not there. PathError."""
    text = request.parameters.get(name, "null")
    if text == "null":
        return None
    if not text.isdecimal() or len(text) > 18:
        raise PathError(400, f"{name} is no number")
    return int(text)


def _shown(entry: Entry, name: bytes) -> dict[str, object]:
    """A FileStatus."""
    status = entry.status
    kind = {stat.S_IFDIR: "DIRECTORY", stat.S_IFLNK: "SYMLINK"}.get(stat.S_IFMT(status.st_mode), "FILE")
    time_ms = status.st_mtime_ns // NS_PER_MS
    shown: dict[str, object] = {
        "accessTime": time_ms,
        "blockSize": BLOCK_BYTES if kind == "FILE" else 0,
        "childrenNum": 0,
        "fileId": status.st_ino,
        "group": str(status.st_gid),
        "length": 0 if kind == "DIRECTORY" else status.st_size,
        "modificationTime": time_ms,
        "owner": _user_name(status.st_uid),
        "pathSuffix": name.decode("utf-8", "replace"),
        "permission": f"{stat.S_IMODE(status.st_mode):o}",
        "replication": 1 if kind == "FILE" else 0,
        "storagePolicy": 0,
        "type": kind,
    }
    return shown if kind != "SYMLINK" else {**shown, "symlink": entry.target.decode("utf-8", "replace")}


@lru_cache(maxsize=256)
def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
