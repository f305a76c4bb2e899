"""All consume queues of a store, by topic and queue id (docs/format.md, 6).

    consumequeue/<topic>/<queue id>/<20 digits>

Only decimal names below a topic are queues. A store may have thousands: names are listed at once, a queue's files are
opened at its first use.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.deadline import uncollected, within
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.remade import Make
from engine.derived.round_robin import RoundRobin
from engine.errors import ReadError, RefusedReadError
from engine.events import Expired
from engine.files.disk import Disk
from engine.files.file_queue import FileQueue, Unflushed
from engine.files.file_scan import file_name, folders_in
from engine.files.mapped_file import Access
from engine.files.open_files import OpenFiles
from engine.files.paths import open_folder, remove_tree, require_held
from engine.files.watch import Watch
from engine.log.entries import ENTRY, ENTRY_STRUCT, Entries, physical_offset_of, record_end, starts_from
from engine.log.evidence import Extents
from engine.record.kernel.entries import Look, look
from engine.record.kernel.folders import has_entry, read_ends, read_queues
from engine.results import QueueState

Key = tuple[str, int]
Entry = tuple[int, int, int]

MANY_FILES = 64
"""More files than this are flushed by one sync of the filesystem, if it can do that."""

_FOLDER = -1
"""Queue id that stands for the folder of a topic."""


class EndsAtRest(NamedTuple):
    """A queue at rest: its first queue offset, the next one, and the physical offset of its newest message."""

    min_offset: int
    max_offset: int
    newest_physical: int


class ConsumeQueues:
    """The queues of a store. Thread safety: one writer; look-ups from any thread (a lock guards opening)."""

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        access: Access,
        disk: Disk | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`open_files` limits the number of mapped files."""
        self.directory = directory
        self.file_bytes = file_bytes
        self.access = access
        self.generation = 0
        """Changes with each topic or queue that appears or disappears."""
        self.removals = 0
        """Changes after topics or queues have disappeared."""
        self._disk = disk or Disk()
        self._open_files = open_files
        self._lock = threading.RLock()
        self._ids: dict[str, set[int]] = {}
        self._watch = Watch(directory)
        self._watches: dict[str, Watch] = {}
        self.by_key: dict[Key, ConsumeQueue] = {}
        """The queues opened so far. Callers must not change it."""
        self._scan = access is Access.READ
        self.at_rest: Extents = {}
        """Extents, by a mark, of queues that were not opened since. Of queues that are open it may say anything."""
        self._rest_end: int | None = None
        """If set, each queue is open or `at_rest`, and those at rest lead to records before this physical offset."""
        self.multi_dispatch = False
        """Whether records may have secondary slots, as recovery found, or a mark says."""
        self._is_made_here = False
        self._removed: set[str] = set()  # topics whose files remain, because access forbids deleting them
        self._min_physical = 0
        self._to_expire: list[ConsumeQueue] = []
        self._expired: list[Expired] = []
        self._shortened: set[ConsumeQueue] = set()
        self._refreshed: list[Key] = []
        self._due: dict[Key, None] = {}
        """FOLLOW: queues that the next refresh looks at, in this order."""
        self._states: dict[Key, QueueState] = {}
        """States of queues that are not open. FOLLOW: each until a refresh looks at its queue."""
        self._round_robin = RoundRobin()
        self._gone: list[Key] = []
        self._visible_end: int | None = None
        self.unread: dict[Key, RefusedReadError] | None = None
        """If set, a queue that the disk refuses is noted here and opened empty, to be made again from the log. None:
        opening it raises the error."""
        self._make: Make | None = None
        self._folder: int | None = None
        """`directory`, for queues at rest. WRITE: opened before the first write, because a sync of its filesystem
        reports failures since then."""

    # the queues

    def load(self, known: Extents | None = None) -> None:
        """List the queues in the directory. No queue file is read. WRITE: without a list if all are `known`."""
        with self._lock:
            if self.access is Access.READ:
                self._list(())
            elif known is not None:
                self._ids = {topic: set(known[topic]) for topic in sorted(known) if known[topic]}
                self._open_folder()
            elif self.directory.is_dir():  # no other process changes it, so it is not watched
                self._open_folder()
                for name in sorted(folders_in(self.directory)):
                    self._take_ids(name, _queue_ids(f"{self.directory}/{name}"))
            self.generation += 1

    def _open_folder(self) -> None:
        if self._folder is None and self.directory.is_dir():
            self._folder = open_folder(self.directory)

    def _close_folder(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _list(self, topics: Iterable[str]) -> list[str]:
        """List the folders of `topics` that may have changed, and of all topics if one may have come or gone; return
        the listed ones. After an error (OSError) the next call lists all."""
        try:
            if self._watch.changed():
                self._close_folder()
                self._open_folder()
                names = folders_in(self.directory)
                for name in self._watches.keys() - set(names):
                    self._take_ids(name, set())
                self._watches = {name: self._watches.get(name) or Watch(f"{self.directory}/{name}") for name in names}
                topics = names
            listed = [name for name in topics if name in self._watches and self._watches[name].changed()]
            for name in listed:
                self._take_ids(name, _queue_ids(f"{self.directory}/{name}"))
        except OSError:
            for watch in (self._watch, *self._watches.values()):
                watch.forget()
            raise
        return listed

    def _take_ids(self, topic: str, ids: set[int]) -> None:
        """Note the queue ids of a topic's folder as it is now."""
        before = self._ids.pop(topic, set())
        if ids:
            self._ids[topic] = ids
        if ids != before:
            for queue_id in before - ids:
                self._drop((topic, queue_id))
            self.generation += 1
            self.removals += bool(before - ids)

    @property
    def has_any(self) -> bool:
        """Whether there is a queue."""
        return bool(self._ids)

    def topics(self) -> list[str]:
        """Topics with at least one queue, sorted."""
        with self._lock:
            return sorted(self._ids)

    def has_topic(self, topic: str) -> bool:
        """Whether the topic has a queue."""
        return bool(self._ids.get(topic))

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the queue exists. It is not opened."""
        return (topic, queue_id) in self.by_key or queue_id in self._ids.get(topic, ())

    def ids(self) -> dict[str, list[int]]:
        """Queue ids by topic."""
        with self._lock:
            return {topic: list(ids) for topic, ids in self._ids.items()}

    def queue_ids(self, topic: str) -> list[int]:
        """Queue ids of a topic, ascending; empty for an unknown one."""
        with self._lock:
            return sorted(self._ids.get(topic, ()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, whose end is found at its first use; None if it does not exist. OSError: the store was moved."""
        found = self.by_key.get((topic, queue_id))
        if found is not None or queue_id not in self._ids.get(topic, ()):
            return found
        with self._lock:
            return self.by_key.get((topic, queue_id)) or self._open(topic, queue_id)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue. A new one gets its directory with its first entry."""
        found = self.by_key.get((topic, queue_id))
        if found is not None:
            return found
        with self._lock:
            is_followed = self._visible_end is not None  # then only its writer makes queues
            if queue_id not in self._ids.get(topic, ()) and not is_followed:
                self._ids.setdefault(topic, set()).add(queue_id)
                self.generation += 1
            return self.by_key.get((topic, queue_id)) or self._open(topic, queue_id)

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self.by_key[topic, queue_id] = self._ready((topic, queue_id))
        return queue

    def _ready(self, key: Key) -> ConsumeQueue:
        """A queue of which the messages that may be shown are known."""
        with within(math.inf):  # any other thread would hold the lock as long
            queue = self._found(key)
            if self._visible_end is not None:
                queue.truncate(self._visible_end)
                if self.access is Access.READ:
                    queue.take_in(self._visible_end)  # a damaged entry may have hidden later ones
            queue.begin_at(self._min_physical)
        return queue

    def _found(self, key: Key) -> ConsumeQueue:
        topic, queue_id = key
        directory = Path(f"{self.directory}/{topic}/{queue_id}")  # two joins take four times as long
        require_held(directory)  # else the queues of a store that was moved away would look empty
        files = FileQueue(
            directory,
            self.file_bytes,
            self.access,
            disk=self._disk,
            open_files=self._open_files,
            is_new=self._is_made_here or topic in self._removed or key in (self.unread or ()),
            reads_ahead=False,  # with thousands of queues, a page of zeros of each would fill the memory
        )
        queue = ConsumeQueue(topic, queue_id, files)
        queue.make = self._make
        try:
            self._find_end(queue)
        except RefusedReadError as error:
            files.close()
            if self.unread is None or key in self.unread:
                raise
            self.unread[key] = error
            return self._found(key)
        return queue

    def is_on_disk(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """Whether the file of a queue has that entry for the record at a physical offset. No queue is opened for it.
        False, too, if it can't be read here: opening the queue tells more."""
        folder = self._folder
        name = os.fsencode(topic)
        return folder is not None and has_entry(folder, name, queue_id, queue_offset, physical_offset, self.file_bytes)

    def leads_to(self, key: Key, physical_offset: int, queue_offset: int) -> bool:
        """FOLLOW: whether the queue has that entry by now. No queue is opened for it. RefusedReadError, OSError."""
        topic, queue_id = key
        if self.is_on_disk(topic, queue_id, queue_offset, physical_offset):
            return True
        files = FileQueue(self.directory / topic / str(queue_id), self.file_bytes, self.access)
        try:
            raw = files.peek(queue_offset * ENTRY.itemsize, ENTRY.itemsize)
        finally:
            files.close()
        return len(raw) == ENTRY.itemsize and ENTRY_STRUCT.unpack(raw)[0] == physical_offset

    def make_refused(self, make: Make) -> None:
        """Make refused entries again in memory, from now on and in all queues."""
        with self._lock:
            self._make = make
            for queue in self.opened():
                queue.make = make

    def _find_end(self, queue: ConsumeQueue) -> None:
        extent = self._rest_of(queue.topic, queue.queue_id)
        if extent is None or self._rest_end is None:
            queue.recover(self._scan)
        else:
            queue.resume(extent[1], self._rest_end)

    def _rest_of(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """The extent, by a mark, of a queue that was not opened since; None if it is unknown."""
        return self.at_rest.get(topic, {}).get(queue_id) if self._rest_end is not None else None

    def _open_all(self) -> None:
        """Open the queues that are neither open nor at rest."""
        with self._lock, uncollected():
            for key in self._keys():
                if key in self.by_key or key[1] in self.at_rest.get(key[0], ()):
                    continue
                try:
                    queue = self._found(key)
                except RefusedReadError:
                    if self.access is not Access.READ:
                        raise
                    continue  # reading it raises the error
                if self.access is Access.READ and queue.files.last is not None:
                    queue.files.last.evict()  # there may be more queues than descriptors, or than maps of memory
                queue.begin_at(self._min_physical)
                self.by_key[queue.topic, queue.queue_id] = queue

    def open_long(self) -> None:
        """Open the queues that have more than one file. Folders of queues at rest are not listed. OSError."""
        with self._lock:
            keys = [key for key in self._in_several_files() if key not in self.by_key]
        for topic, queue_id in keys:
            with suppress(FileNotFoundError):  # retention or a deletion took it meanwhile
                if len(os.listdir(self.directory / topic / str(queue_id))) > 1:
                    self.get(topic, queue_id)

    def state(self, topic: str, queue_id: int) -> QueueState:
        """The state of a queue; one that is not open stays closed, because all queues together would take much memory.
        Zeros for a queue that does not exist."""
        key = (topic, queue_id)
        with self._lock:
            queue = self.by_key.get(key)
            if queue is None and queue_id not in self._ids.get(topic, ()):
                return QueueState(topic, queue_id)
            try:
                if queue is not None:
                    return _state_of(queue)
                found = self._states.get(key)
                if found is None:
                    found = self._states[key] = self._state_of_closed(key)
                return found
            except (RefusedReadError, OSError) as error:
                return QueueState(topic, queue_id, refused=error)

    def _state_of_closed(self, key: Key) -> QueueState:
        if self._visible_end is None:
            ends = self.ends_at_rest(*key)
            if ends is not None:
                return QueueState(*key, ends.min_offset, ends.max_offset, 1)
            with suppress(FileNotFoundError):  # opening it tells whether the store was moved
                if not os.listdir(f"{self.directory}/{key[0]}/{key[1]}"):
                    return QueueState(*key)
            return self._state_by_opening(key)
        found = self._look(key, 1)
        if found is not None and found.files < 2 and self._is_shown(found.newest):
            return QueueState(*key, found.min_offset, found.max_offset, found.files)
        return self._state_by_opening(key)

    def _is_shown(self, entry: bytes) -> bool:
        """FOLLOW: whether the record that an entry leads to is shown; True without one."""
        return not entry or record_end(ENTRY_STRUCT.unpack(entry)) <= (self._visible_end or 0)

    def _state_by_opening(self, key: Key) -> QueueState:
        queue = self._ready(key)
        try:
            return _state_of(queue)
        finally:
            queue.close()

    def _look(self, key: Key, count: int) -> Look | None:
        """The state of a queue's files now, with up to `count` of the newest entries. None: the queue has to be opened
        to find it."""
        if self._folder is None:
            return None
        topic, queue_id = key
        return look(self._folder, os.fsencode(topic), b"%d" % queue_id, self.file_bytes, self._min_physical, count)

    def newest_entries(self, count: int) -> Entries:
        """Up to `count` of the newest entries of each queue, read from its files now. Queues that the disk refuses are
        left out. No file stays open. ReadError, OSError."""
        return np.frombuffer(b"".join(self._newest_of(key, count) for key in self._keys()), ENTRY)

    def _newest_of(self, key: Key, count: int) -> bytes:
        found = self._look(key, count)
        if found is not None:
            return found.newest
        try:
            queue = self._found(key)
        except RefusedReadError:
            return b""
        try:
            newest = queue.entries(max(queue.max_offset - count, queue.first_offset), count)
            return newest.astype(ENTRY).tobytes()  # numpy joins them in this machine's byte order
        except RefusedReadError:
            return b""
        finally:
            queue.close()

    def leading_into(self, start: int, end: int) -> Iterator[ConsumeQueue]:
        """The queues that may lead to records in [start, end), physical offsets. Those that are not open are closed
        again after their turn. ReadError, OSError."""
        with self._lock:
            keys = self._keys()
        for key in keys:
            queue = self.by_key.get(key)
            if queue is not None:
                yield queue
            elif key[1] in self._ids.get(key[0], ()) and self._may_lead_into(key, start, end):
                queue = self._found(key)
                try:
                    yield queue
                finally:
                    queue.close()

    def ends_at_rest(self, topic: str, queue_id: int) -> EndsAtRest | None:
        """The begin and end of a queue at rest, without opening it. None: it is open, or must be opened for that, or
        has no message."""
        key = (topic, queue_id)
        extent = self._rest_of(*key) if self._visible_end is None and key not in self.by_key else None
        ends = None if extent is None else self._ends_at_rest(key)
        if extent is None or ends is None or not starts_from(ends[0], self._min_physical):
            return None
        return EndsAtRest(*extent, ends[1][0])

    def _may_lead_into(self, key: Key, start: int, end: int) -> bool:
        """Whether a queue that is not open may lead to records in [start, end), by its oldest and newest entry."""
        ends = self._ends_at_rest(key)
        return ends is None or bool(ends[1][0] >= start and ends[0][0] < end)

    def _ends_at_rest(self, key: Key) -> tuple[Entry, Entry] | None:
        """The oldest and the newest entry of a queue at rest in one file. None: it is not, or has no entry, or can't be
        read here."""
        extent = self._rest_of(*key)
        if extent is None or self._folder is None or not self._rests_in_one_file(key):
            return None
        path = f"{key[0]}/{key[1]}/{file_name(extent[0] * ENTRY.itemsize)}"
        ends = read_ends(self._folder, os.fsencode(path), (extent[1] - extent[0]) * ENTRY.itemsize, ENTRY.itemsize)
        if len(ends) < 2 * ENTRY.itemsize:
            return None
        oldest, newest = ENTRY_STRUCT.iter_unpack(ends)
        return oldest, newest

    def rows_at_rest(self, topic: str, most: int) -> bytes | None:
        """All messages of a topic (TOPIC_ROW), in the order of the log. No queue is opened for it. None: one of its
        queues is open or long, or can't be read here, or there are more than `most` messages, or none."""
        extents = self.at_rest.get(topic) if self._rest_end is not None and self._visible_end is None else None
        ids = self._ids.get(topic)
        if self._folder is None or not extents or ids is None or extents.keys() != ids:
            return None
        for queue_id in extents:
            if (topic, queue_id) in self.by_key:
                return None
        rows = read_queues(self._folder, os.fsencode(topic), extents, min(most, self.file_bytes // ENTRY.itemsize))
        return rows if rows is not None and physical_offset_of(rows, 0) >= self._min_physical else None

    def state_of_topic(self, topic: str) -> tuple[int, ...]:
        """Changes with each message of the topic, and each queue of it that is opened, comes or goes."""
        opened = [self.by_key.get((topic, queue_id)) for queue_id in tuple(self._ids.get(topic, ()))]
        return self.removals, *(-1 if queue is None else queue.max_offset for queue in opened)

    def _keys(self) -> list[Key]:
        return [(topic, queue_id) for topic in sorted(self._ids) for queue_id in sorted(self._ids[topic])]

    def opened(self) -> list[ConsumeQueue]:
        """The queues opened so far."""
        return list(self.by_key.values())

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Every queue. Those not open yet are opened."""
        with self._lock:
            keys = self._keys()
        for topic, queue_id in keys:
            queue = self.get(topic, queue_id)
            if queue is not None:
                yield queue

    # recovery and retention

    def recover(self, scan: bool, at_rest: Extents | None = None, rest_end: int = 0) -> int:
        """Find every queue's end; return the highest physical end (-1: all are empty).

        Without `scan` (after a clean close) each end is found at the queue's first use, and -1 is returned. Queues
        `at_rest`, which lead to records before the physical offset `rest_end`, are not opened, and not counted. WRITE:
        files without a byte are deleted.
        """
        self._scan = scan or self.access is Access.READ
        self.at_rest, self._rest_end = at_rest or {}, None if at_rest is None else rest_end
        if not scan:
            return -1
        self._open_all()
        for queue in self.opened():
            queue.files.drop_empty()
        return max((queue.physical_end for queue in self.opened()), default=-1)

    def resume(self, extents: Extents, physical_end: int) -> None:
        """Take the extents, and the log's physical end, from a clean mark. A queue's first use checks its end."""
        self._scan, self.at_rest, self._rest_end = False, extents, physical_end
        self._open_folder()

    def reaching(self, physical_end: int) -> Iterable[ConsumeQueue]:
        """The queues that may lead to records that end after `physical_end`: not those at rest before it."""
        is_behind_all = self._rest_end is not None and physical_end >= self._rest_end
        return self.opened() if is_behind_all else self

    def extent(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """A queue's extent, by the mark if it is at rest; None if it does not exist."""
        is_closed = (topic, queue_id) not in self.by_key and queue_id in self._ids.get(topic, ())
        known = self._rest_of(topic, queue_id) if is_closed else None
        if known is not None:
            return known
        queue = self.get(topic, queue_id)
        return queue.extent if queue is not None else None

    def note_extents(self) -> Extents:
        """Every queue's extent now, which counts from now on for those at rest."""
        found: Extents = {}
        for topic, queue_id in self._keys():
            extent = self.extent(topic, queue_id)
            if extent is not None:
                found.setdefault(topic, {})[queue_id] = extent
        self.at_rest = found
        return found

    def remove_deleted(self, until: Callable[[str], int], forget: Callable[[str], None]) -> None:
        """Finish deletions that a crash interrupted: remove the topics with entries for records before `until(topic)`,
        a physical offset, 0 for a topic that was not deleted. `forget` is called with each topic first."""
        for topic in self.topics():
            if not until(topic):
                continue
            queues = [self.get(topic, queue_id) for queue_id in self.queue_ids(topic)]
            if any(queue is not None and queue.leads_before(until(topic)) for queue in queues):
                forget(topic)
                self.remove_topic(topic)
                self.sync_names()

    def truncate(self, physical_end: int) -> int:
        """Drop entries of records that end after `physical_end` from all queues; return their number."""
        return sum(queue.truncate(physical_end) for queue in self.reaching(physical_end))

    def expire(self, min_physical_offset: int) -> list[Expired]:
        """Move the opened queues to a log that begins at `min_physical_offset`; return the expired ranges. After an
        error (ReadError, NoDescriptorError) the next call continues and returns the earlier ranges, too."""
        with self._lock:  # a queue that another thread is opening either begins there, or is expired below
            if min_physical_offset != self._min_physical:
                self._min_physical = min_physical_offset
                self._to_expire = self.opened()
                self._round_robin.begin_again()  # FOLLOW: their writer deletes their first files now
                self._states.clear()
        while self._to_expire:
            self._expire(self._to_expire[-1])
            self._to_expire.pop()
        moved, self._expired = self._expired, []
        return moved

    def _expire(self, queue: ConsumeQueue) -> None:
        old = queue.notified_min
        if self.by_key.get((queue.topic, queue.queue_id)) is not queue:
            return  # its topic was deleted after the failed call
        if old is None:
            queue.begin_at(self._min_physical)
            return
        new = queue.expire(self._min_physical)
        if new > old:
            gone = queue.physical_offsets(old, new)
            self._expired.append(Expired(queue.topic, queue.queue_id, old, new, gone))
        queue.notified_min = new

    def contents(self, topic: str) -> list[Expired]:
        """All messages of a topic's queues, as the ranges that go when the topic is deleted."""
        found = []
        for queue_id in self.queue_ids(topic):
            queue = self.get(topic, queue_id)
            if queue is not None:
                start, end = min(queue.min_offset, queue.max_offset), queue.max_offset
                found.append(Expired(topic, queue_id, start, end, queue.physical_offsets(start, end)))
        return found

    def delete_expired(self, now_ms: int) -> int:
        """Delete expired files of all queues; return their number. Queues at rest with one file, which stays, are not
        opened. OSError."""
        deleted = 0
        for queue in self._with_several_files():
            files = queue.files.files
            try:
                deleted += queue.delete_expired(now_ms)
            finally:
                if queue.files.files != files:
                    self._shortened.add(queue)
        return deleted

    def _with_several_files(self) -> Iterator[ConsumeQueue]:
        """The queues that may have more than one file."""
        with self._lock:
            keys = self._in_several_files()
        for key in keys:
            queue = self.get(*key)
            if queue is not None and len(queue.files.files) > 1:
                yield queue

    def _in_several_files(self) -> list[Key]:
        """The queues that are open, or may have more than one file. It takes a fraction of going through the queues one
        by one: other threads wait meanwhile."""
        extents, most = self.at_rest if self._rest_end is not None else {}, self.file_bytes // ENTRY.itemsize
        found = set(self.by_key)
        for topic, ids in self._ids.items():
            known = extents.get(topic, {})
            if known.keys() != ids:
                found.update((topic, queue_id) for queue_id in ids - known.keys())
            found.update([(topic, queue_id) for queue_id, (first, end) in known.items() if end - first > most])
        return sorted(found)

    def _rests_in_one_file(self, key: Key) -> bool:
        extent = self._rest_of(*key)
        return extent is not None and (extent[1] - extent[0]) * ENTRY.itemsize <= self.file_bytes

    def take_shortened(self) -> set[ConsumeQueue]:
        """The queues that lost files to `delete_expired` since the last call."""
        taken, self._shortened = self._shortened, set()
        return taken

    def sweep(self, now_ms: int, forced_interval_ms: int) -> None:
        """Unmap deleted files that have no readers any more, or were deleted `forced_interval_ms` ago."""
        for queue in self.opened():
            queue.files.sweep(now_ms, forced_interval_ms)

    def refresh(self, physical_end: int, named: Iterable[Key] | None = None, topics: Iterable[str] = ()) -> list[Key]:
        """FOLLOW: find new topics, queues, and entries of opened queues; return the opened queues that changed. After
        an error (OSError) the next call looks again, and returns the earlier changes, too. See `is_behind`.

        Looks at all, or at the `named` queues, the folders of `topics`, folders that came or went, and a few others in
        turn, until each was looked at after the last change.
        """
        with self._lock:
            self._visible_end = physical_end
            if named is None:
                self._look_at_all()
            else:
                self._look_at(list(named), topics)
        for key in list(self._due):
            self._refresh(key, physical_end)
        changed, self._refreshed = self._refreshed, []
        return changed

    @property
    def is_behind(self) -> bool:
        """FOLLOW: whether another refresh is due: a queue could not be read, or some were not looked at since the last
        change."""
        return bool(self._due) or self._round_robin.is_behind

    def _look_at_all(self) -> None:
        """List the folders that may have changed. All opened queues are due."""
        self._round_robin = RoundRobin()
        self._due.update(dict.fromkeys(self.by_key))
        self._states.clear()
        self._list(list(self._watches))

    def _look_at(self, named: list[Key], topics: Iterable[str]) -> None:
        """List the folders of `topics` and of new queues that may have changed. The `named` queues are due, those in
        changed folders, and the next part of the round."""
        if named:
            self._round_robin.begin_again()
        part = self._round_robin.next_part(self._in_use)
        self._due.update(dict.fromkeys((*named, *part)))
        new = (topic for topic, queue_id in (*named, *part) if queue_id not in self._ids.get(topic, ()))
        listed = self._list({*topics, *new})
        if listed:
            self._round_robin.begin_again()
        self._due.update(((topic, queue_id), None) for topic in listed for queue_id in self._ids.get(topic, ()))

    def _in_use(self) -> Iterator[Key]:
        """The queues that are open or have a known state, and all folders of topics, as they are now."""
        folders = ((topic, _FOLDER) for topic in list(self._watches))
        return chain(list(self.by_key), list(self._states), folders)

    def _refresh(self, key: Key, physical_end: int) -> None:
        queue = self.by_key.get(key)
        if queue is not None:
            try:
                if queue.refresh(physical_end):
                    self._refreshed.append(key)
            except ReadError:  # its writer removed a file meanwhile: it stays due
                return
            if queue.is_stale:
                with self._lock:
                    self._drop(key)
        with self._lock:  # not while another thread finds its state
            self._states.pop(key, None)
        del self._due[key]

    def forget(self, file_bytes: int) -> None:
        """FOLLOW: close every queue. `gone` returns the closed ones; `load` lists the queues again, whose files have
        `file_bytes` each."""
        with self._lock:
            for key in list(self.by_key):
                self._drop(key)
            self.file_bytes = file_bytes
            self._ids, self._watches = {}, {}
            self._watch.forget()
            self._close_folder()
            self._min_physical = 0
            self._visible_end = None if self._is_made_here else 0  # a queue opened before `refresh` is empty
            self._to_expire, self._expired, self._refreshed, self._due, self._states = [], [], [], {}, {}
            self._round_robin = RoundRobin()
            self.generation += 1
            self.removals += 1

    def move(self, directory: Path, file_bytes: int, access: Access, *, is_made_here: bool) -> None:
        """FOLLOW: as `forget`, and use the queues below `directory` from now on. `is_made_here`: this process makes
        them, and none exists yet."""
        with self._lock:
            self.directory, self.access, self._watch = directory, access, Watch(directory)
            self._is_made_here = is_made_here
            self._scan = not is_made_here
            self.forget(file_bytes)

    def _drop(self, key: Key) -> None:
        queue = self.by_key.pop(key, None)
        self._states.pop(key, None)
        if queue is not None:
            queue.is_stale = True
            queue.close()
            self._gone.append(key)

    def gone(self) -> list[Key]:
        """FOLLOW: the opened queues that were dropped since the last call. A new one may have replaced each."""
        gone, self._gone = self._gone, []
        return gone

    # durability and life

    @property
    def many_open(self) -> int:
        """Number of queues whose files are soon evicted for others'. A file that was not flushed before is then synced
        by the thread that opens another."""
        return self._open_files.limit // 2 if self._open_files is not None else MANY_FILES

    def flush(self, changed: Iterable[ConsumeQueue], least_pages: int = 0) -> None:
        """Flush those of the changed queues that have at least `least_pages` unflushed pages (0: any byte).
        FlushFailedError; NoDescriptorError: the flush is incomplete."""
        known = [queue.files for queue in changed if not queue.is_stale]
        waiting = [(files, found) for files in known if (found := files.unflushed(least_pages)) is not None]
        if self._sync_at_once([found for _, found in waiting]):
            for files, found in waiting:
                files.note_flushed(found)
        else:
            for files, _ in waiting:
                files.flush(least_pages)

    def _sync_at_once(self, waiting: Sequence[Unflushed]) -> bool:
        """Bring many files to disk by one sync of their filesystem. False, for few files, or if it can't do that: sync
        them one by one. That also shows whether a failed write was one of theirs."""
        paths = [file.path for found in waiting for file, _ in found.files]
        if self._folder is None or len(paths) <= MANY_FILES:
            return False
        try:
            device = os.fstat(self._folder).st_dev
            is_common = all(os.stat(path).st_dev == device for path in paths)
            return is_common and self._disk.sync_filesystem(self._folder, self.directory)
        except OSError:
            return False

    def ends(self, topic: str) -> dict[int, int]:
        """The next queue offset of each queue of a topic, by queue id."""
        found = {queue_id: self.get(topic, queue_id) for queue_id in self.queue_ids(topic)}
        return {queue_id: queue.max_offset for queue_id, queue in found.items() if queue is not None}

    def remove_topic(self, topic: str) -> None:
        """Delete the files and directories of a topic's queues, durably after `sync_names`. OSError."""
        with self._lock:
            ids = self._ids.pop(topic, set())
            self.at_rest.pop(topic, None)
            self.generation += 1
            self.removals += 1
            for queue_id in ids:
                self._states.pop((topic, queue_id), None)
                queue = self.by_key.pop((topic, queue_id), None)
                if queue is not None:
                    queue.is_stale = True
                    queue.destroy(durably=False)
        if self.access is not Access.WRITE:
            self._removed.add(topic)
        elif (self.directory / topic).is_dir():
            remove_tree(self.directory / topic)

    def sync_names(self) -> None:
        """Sync the directory of topics. OSError."""
        if self.access is Access.WRITE and self.directory.is_dir():
            self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Unmap and close all files."""
        for queue in self.opened():
            queue.is_stale = True
            queue.close()
        self.by_key.clear()
        self._close_folder()


def _state_of(queue: ConsumeQueue) -> QueueState:
    max_offset = queue.max_offset
    min_offset = min(queue.min_offset, max_offset)
    return QueueState(queue.topic, queue.queue_id, min_offset, max_offset, len(queue.files.files))


def _queue_ids(directory: str) -> set[int]:
    names = folders_in(directory)
    return {int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name}
