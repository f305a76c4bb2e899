"""The filesystem core: paths, inodes and handles mapped to engine calls. It uses no FUSE type and no event loop.

        directories computed_links streams append store_reports    the nodes of all names but messages
        figures status metrics                                     the texts of @store
        messages inodes                                            message files: computed inodes without nodes
        this module                                                a short method per request: inodes, handles to nodes

Thread safety: none; an adapter calls it from one thread.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import NoReturn, TypeVar

from engine import Expired, MessageStore, StoreError, within
from fsstore.accounts import Accounts
from fsstore.callers import Callers
from fsstore.handover.memory import Handover
from fsstore.interface import (
    CACHED,
    NO_OWNER,
    NOTHING_TO_WAIT_FOR,
    ROOT_INODE,
    Attributes,
    Data,
    FilesystemError,
    FilesystemOptions,
    FilesystemSpace,
    Opened,
    OpenedDirectory,
    SlowWork,
)
from fsstore.open_handles import OpenHandles
from fsstore.parquet.dataset import Dataset
from fsstore.parquet.nodes import DatasetDirectory, invalidate_expired_files
from fsstore.tree.access_log import AccessLog, AccessLogFile
from fsstore.tree.append import AppendFile, StillRefusedError
from fsstore.tree.attributes import AttributeFactory
from fsstore.tree.deferred import deferred
from fsstore.tree.directories import QueueDirectory, RootDirectory, TopicDirectory, Tree
from fsstore.tree.drop import DropDirectory, DropFile, SetattrRequest
from fsstore.tree.figures import RestartFigures, mount_figures
from fsstore.tree.groups import GroupsDirectory
from fsstore.tree.inodes import COMPUTED, MESSAGE, ComputedInodes, InodeTable, NodeKey
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.listing import Batch
from fsstore.tree.memory_budget import HandoverShares, MemoryBudget, UnansweredShares
from fsstore.tree.messages import CompressedBody, HeldBody, MessageFiles, SmallBody
from fsstore.tree.metrics import (
    RequestFigures,
    caller_metrics,
    metric,
    metrics_of,
    process_metrics,
    record_metrics,
    refusal_metrics,
    request_metrics,
)
from fsstore.tree.names import NAME_MAX_BYTES, append_problem, from_name
from fsstore.tree.nodes import Context, Creation, LongPuts, Node, OpenFile, Survival
from fsstore.tree.refusals import RefusalKind, Refusals
from fsstore.tree.stale import invalidate_expired, invalidate_queue, invalidate_removed
from fsstore.tree.status import callers_of, config_of, status_of, to_json
from fsstore.tree.store_reports import ControlFile, StoreDirectory
from fsstore.tree.streams import StreamFile
from fsstore.tree.xattrs import list_names, no_attribute, read_value

H = TypeVar("H")

NO_CHANGE = SetattrRequest()
NOT_REMOVED = "messages are removed by retention, a topic by `mountctl topics delete`"

MOST_UNOPENED = 256
"""Files that stay open after a read on mounts where the kernel opens files without a request."""


class Filesystem:
    """The mounted tree over `store`. Every method may raise FilesystemError or an engine StoreError (`errno_of`)."""

    def __init__(
        self,
        store: MessageStore,
        options: FilesystemOptions,
        *,
        status: Callable[[], Mapping[str, object]] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`status` returns further fields of `@store/status.json` (the mount point…)."""
        self._store = store
        self.accounts = Accounts(options.uid)
        """The share of each user in the resources of the mount."""
        self.callers = Callers(self.accounts)
        self._inodes: InodeTable[Node] = InodeTable(self.accounts)
        attribute_factory = AttributeFactory(options, store.mode, clock_ns())
        self._background = ThreadPoolExecutor(1, "fsstore-background")
        self._computed = ComputedInodes()
        self.memory = MemoryBudget(accounts=self.accounts)
        """The budget for memory that clients make the daemon hold."""
        self._context = Context(
            store,
            attribute_factory,
            self._inodes,
            self._computed,
            clock_ns,
            self._background,
            self.memory,
            LongPuts(),
            Survival(),
            Refusals(clock_ns),
            self.accounts,
            self.callers,
        )
        self._messages = MessageFiles(store, attribute_factory, self._computed, self.memory)
        tree = Tree(self._context, self._messages)
        self._drops = tree.drops
        self.streams = tree.streams
        """Streams, for the adapter to ask which of them have grown."""
        self.handles = OpenHandles(self._context, self._messages)
        self._files = self.handles.files
        self._unopened: dict[int, OpenFile] = {}  # by inode, the file that was read last at the end
        self._at_slow_work: set[int] = set()
        self._handed_over: Handover | None = None
        self.requests = RequestFigures()
        """Counters, which the adapter increments."""
        self._started_ns = clock_ns()
        self._followed_ns: int | None = None
        self._topics_removed = store.topics_removed
        self.access_log = AccessLog()
        """The readers of `@store/accesslog`."""
        self._access_log_file = AccessLogFile(self._context, self.access_log)
        root = RootDirectory(tree)
        self._inodes.pin(root, "")
        root.add(b"@store", self._store_directory(options, status or dict))
        self._parquet = Dataset(store, options.parquet)
        root.add(b"@parquet", DatasetDirectory(self._context, self._parquet))

    def _store_directory(
        self, options: FilesystemOptions, status: Callable[[], Mapping[str, object]]
    ) -> StoreDirectory:
        store, context = self._store, self._context
        directory = StoreDirectory(context)

        def status_text() -> bytes:
            figures = asdict(mount_figures(LIMITED_LOG, self.memory, self._handed_over))
            mine = {"pid": os.getpid(), **status_of(store), "parquet": self._parquet.status()}
            mine["refused_publications"] = context.refusals.counts
            return to_json({**mine, **figures, **callers_of(self.callers), **status()})

        def metrics_text() -> bytes:
            now_ns = context.clock_ns()
            seen_s = None if self._followed_ns is None else (now_ns - self._followed_ns) / 1e9
            evicted = [(None, self.memory.evicted)]
            more = (
                *process_metrics(self._started_ns / 1e9, seen_s),
                *refusal_metrics(context.refusals.counts),
                *record_metrics("", [(None, self.restarts)]),
                *caller_metrics(self.callers),
                *metric("memory_evicted_total", "counter", "Evictions of data kept for further reads", evicted),
                *request_metrics(self.requests, LIMITED_LOG.by_errno),
            )
            return metrics_of(store, mount_figures(LIMITED_LOG, self.memory, self._handed_over), more)

        directory.add_report("status.json", status_text)
        directory.add_report("config.json", lambda: to_json(config_of(store, options)))
        directory.add_report("metrics", metrics_text)
        directory.add_report("refusals", self._refusals_text, is_private=True)
        if not self.is_no_open:  # the log grows while it is read, so it needs its open requests
            directory.add(b"accesslog", self._access_log_file, is_listed=False)  # `grep -r` would wait there for ever
        directory.add(b"groups", GroupsDirectory(context))
        if not self.read_only:
            directory.add(b"control", ControlFile(context))
        return directory

    @property
    def restarts(self) -> RestartFigures:
        """The daemons that served this mount before."""
        known = self._handed_over
        return RestartFigures() if known is None else RestartFigures(known.restarts, known.planned_restarts)

    def _refusals_text(self) -> bytes:
        """The refusals that the user of the present request may see."""
        user = self.accounts.caller
        return self._context.refusals.text(None if self.accounts.is_privileged(user) else user)

    @property
    def read_only(self) -> bool:
        """Whether nothing can be published: the mount is read-only or follows a writer, or the disk failed."""
        return self._context.read_only

    def ending(self) -> None:
        """No more requests come: stop the background listing of a long queue for `@parquet`, if there is one."""
        self._parquet.ending()

    def close(self) -> int:
        """Free everything after the last request. Returns the number of open handles with unpublished bytes: these may
        be parts of messages, so they are dropped, and a close that comes later fails."""
        unfinished = self.handles.abandon()
        for file in self._unopened.values():
            file.abandon()
        self._unopened.clear()
        self._drops.close()
        self._messages.forget()
        self._background.shutdown(cancel_futures=True)
        return unfinished

    # names and attributes

    def lookup(self, parent_inode: int, name: bytes) -> Attributes:
        """Attributes of `name`; counted as one lookup, which a `forget` takes back. Inode 0 is a cacheable ENOENT.

        ENAMETOOLONG for a name over 255 bytes, in all methods that take a name.
        """
        if len(name) > NAME_MAX_BYTES:
            raise FilesystemError(errno.ENAMETOOLONG)
        attributes = self._inodes.nodes[parent_inode].lookup(name)
        inode = attributes.inode
        if 0 < inode < COMPUTED:
            self._inodes.count(inode)
        return attributes

    def getattr(self, inode: int) -> Attributes:
        """Attributes of an inode; ESTALE for an expired message that is not open: the kernel then looks up its path."""
        if inode < COMPUTED:
            return self._inodes.nodes[inode].attributes()
        try:
            return self._messages.attributes(inode)
        except FilesystemError:
            for file in self._files.values():
                if isinstance(file, SmallBody | HeldBody | CompressedBody) and file.inode == inode:
                    return self._messages.attributes_of_open(file)
            raise

    def setattr(
        self, inode: int, size: int | None = None, handle: int | None = None, wanted: SetattrRequest = NO_CHANGE
    ) -> Attributes:
        """Attributes of an inode after a change. `append` ignores changes, dropped files take them; EPERM or EROFS for
        all others. `size` is the size to set, through `handle` if the request names one. An `append` changes only
        then."""
        if inode >= COMPUTED or not self._inodes.nodes[inode].ignores_setattr:
            raise self._context.refusal()
        node = self._inodes.nodes[inode]
        if size is not None and handle is not None:
            self._files[handle].truncate(size)
            self.handles.keep(handle, 0, 0)
            size = None
        if isinstance(node, DropFile):
            node.set(size, wanted)
        return node.attributes()

    def readlink(self, inode: int) -> bytes:
        """The target of a symbolic link; EINVAL for anything else."""
        return self._messages.target(inode) if COMPUTED <= inode < MESSAGE else self._context.node(inode).target()

    def listed(self, inode: int) -> None:
        """Count a DirectoryEntry that the kernel took as one lookup."""
        if 0 < inode < COMPUTED:
            self._inodes.count(inode)

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` lookups of an inode."""
        if inode < COMPUTED:
            self._inodes.forget(inode, count)

    # files

    def open(self, inode: int, flags: int) -> Opened:
        """Open a file. The whole body of a small message is returned too.

        O_TRUNC is refused unless sizes can be set, even for a reader: the kernel would drop the size and the pages of a
        file that opens.
        """
        if inode >= MESSAGE:
            if flags & (os.O_ACCMODE | os.O_TRUNC):
                raise self._context.refusal("a message never changes: write a new one to append")
            return self.handles.add(inode, self._messages.open(inode), CACHED, flags)
        node = self._context.node(inode)
        if flags & os.O_TRUNC and not node.ignores_setattr:
            raise self._context.refusal()
        return self.handles.add(inode, *node.open(flags), flags)

    def read(self, handle: int, position: int, size: int) -> Data:
        """Bytes of an open file, fewer than asked for at its end."""
        data = self._files[handle].read(position, size)
        self.callers.read(len(data))
        return data

    @property
    def is_no_open(self) -> bool:
        """Whether the kernel is to open and close files without requests; it then reads by inode."""
        return self._context.is_no_open

    def read_unopened(self, inode: int, position: int, size: int) -> Data:
        """Bytes of a file that the kernel opened without a request. A file that is costly to open stays open while it
        is among the MOST_UNOPENED that were read last."""
        file = self._unopened.pop(inode, None)
        if file is None:
            file = self._messages.open(inode) if inode >= MESSAGE else self._context.node(inode).open(os.O_RDONLY)[0]
        if type(file) is SmallBody:
            body = file.read(position, size)
            self.callers.read(len(body))
            return body
        self._unopened[inode] = file
        if len(self._unopened) > MOST_UNOPENED:
            self._close_oldest()
        try:
            data = file.read(position, size)
        except SlowWork as slow:
            slow.work = self._kept_open(inode, slow.work)
            raise
        self.callers.read(len(data))
        return data

    def _kept_open(self, inode: int, work: Callable[[], object]) -> Callable[[], None]:
        """The same work; the file stays open until it is done."""
        self._at_slow_work.add(inode)

        def work_and_release() -> None:
            try:
                work()
            finally:
                self._at_slow_work.discard(inode)

        return work_and_release

    def _close_oldest(self) -> None:
        oldest = next((inode for inode in self._unopened if inode not in self._at_slow_work), None)
        if oldest is not None:
            self._unopened.pop(oldest).release()

    def write(self, handle: int, position: int, data: bytes, owner: int = NO_OWNER) -> int:
        """Publish what a write request completes: all of it, or none and an error. See `OpenFile.write`.

        Returns the physical offset to wait for before the answer, or NOTHING_TO_WAIT_FOR, as flush, fsync and fsyncdir
        do.
        """
        return self._files[handle].write(position, data, owner)

    def flush(self, handle: int, owner: int = NO_OWNER) -> int:
        """Publish an unterminated line or a `frame=file` message if `owner` wrote it; close(2) returns its error."""
        return self._files[handle].flush(owner)

    def fsync(self, handle: int) -> int:
        """Flush, and wait for everything published so far, by any user."""
        return self._everything(self._files[handle].flush())

    # directories

    def opendir(self, inode: int) -> OpenedDirectory:
        """Open a directory for a listing."""
        return self.handles.add_directory(inode, *self._context.node(inode).opendir())

    def readdir(self, handle: int, position: int, limit: int, *, with_attributes: bool = True) -> Batch:
        """Up to `limit` entries after `position` (0: the beginning); an empty list at the end. Messages are returned as
        MessageNames unless `with_attributes`."""
        return self.handles.listings[handle].read(position, limit, with_attributes=with_attributes)

    def fsyncdir(self, handle: int) -> int:
        """Wait for everything published so far."""
        return self._everything(0)

    def mkdir(self, parent_inode: int, name: bytes) -> Attributes:
        """Make a topic, or add queues to one; counted as one lookup. SlowWork: it waits for the disk."""
        _require_length(name)
        parent = self._context.node(parent_inode)
        attributes = None
        if self._context.survival.was_begun:
            with suppress(FilesystemError, StoreError):
                attributes = parent.made(name)
        if attributes is None:
            parent.mkdir(name)
            attributes = parent.made(name)
        self._inodes.count(attributes.inode)
        return attributes

    def create(self, parent_inode: int, name: bytes, how: Creation) -> tuple[Attributes, Opened]:
        """Make and open a file in a drop box; counted as one lookup. In other directories as `refuse_creation`."""
        _require_length(name)
        parent = self._context.node(parent_inode)
        node, file, opened = parent.make(name, how)
        self._inodes.count(node.inode)
        return node.attributes(), self.handles.add(node.inode, file, opened, how.flags)

    def refuse_creation(self, parent_inode: int, name: bytes) -> NoReturn:
        """Refuse to make a file: ENOENT for a malformed `append@…`, else EPERM or EROFS."""
        _require_length(name)
        raise self._context.node(parent_inode).create(name)

    def unlink(self, parent_inode: int, name: bytes) -> None:
        """Remove a dropped file. EPERM or EROFS for everything else."""
        _require_length(name)
        parent = self._context.node(parent_inode)
        if not isinstance(parent, DropDirectory):
            raise self._context.refusal(NOT_REMOVED)
        parent.remove(name)

    def rmdir(self, name: bytes) -> NoReturn:
        """Refuse to remove a directory: EPERM, or EROFS on a read-only mount."""
        _require_length(name)
        raise self._context.refusal(NOT_REMOVED)

    def rename(self, parent_inode: int, name: bytes, new_parent_inode: int, new_name: bytes, flags: int) -> int:
        """Rename a dropped file; returns the physical offset to wait for. EPERM or EROFS for everything else."""
        _require_length(name)
        _require_length(new_name)
        parent = self._context.node(parent_inode)
        if not isinstance(parent, DropDirectory):
            raise self._context.refusal("nothing is renamed here: mountctl copy copies messages to another topic")
        return parent.move(name, self._context.node(new_parent_inode), new_name, flags)

    def refuse(self, *names: bytes) -> NoReturn:
        """Refuse link or symlink of `names`: EPERM, or EROFS on a read-only mount."""
        for name in names:
            _require_length(name)
        raise self._context.refusal()

    # the access log

    @property
    def access_log_inode(self) -> int:
        return self._access_log_file.inode

    def path_of(self, inode: int) -> str:
        """The path below the mount point, `/` for the root; `inode:N` if the path isn't known."""
        if inode == ROOT_INODE:
            return "/"
        path = ""
        if inode >= MESSAGE:
            with suppress(StoreError, FilesystemError):
                message = self._messages.message(inode)
                path = f"{message.topic}/{message.queue}/{message.queue_offset:020d}"
        elif (node := self._inodes.nodes.get(inode)) is not None:
            path = self._inodes.pinned_name(inode) or node.path
        elif (key := self._inodes.inherited(inode)) is not None:
            path = _path_of(key)
        return path or f"inode:{inode}"

    # reasons of refusals

    def note_refused(self, handle: int, pid: int, number: int, error: BaseException) -> None:
        """Note why a request of process `pid` through a handle was refused, if the request was to publish."""
        file = self._files.get(handle)
        if file is None or not file.published_to:
            return
        if isinstance(error, StillRefusedError):
            self._context.refusals.count(number)
        else:
            self._note_refusal(pid, file.published_to, file.refused_lines, number, _reason_of(error))

    def write_refused(self, handle: int, unique: int, number: int) -> None:
        """Note that a write through a handle was refused with errno `number`, perhaps before it came here. Bytes before
        it are an incomplete message until the write is repeated."""
        if handle not in self._files:
            self._at_once(partial(self.handles.writer, handle))
        file = self._files.get(handle)
        if file is not None:
            file.write_refused(number)
            self.handles.keep(handle, unique, number)

    def note_refused_open(self, inode: int, pid: int, number: int, error: BaseException) -> None:
        """As `note_refused`, for a file that was to be opened for writing."""
        node = self._inodes.nodes.get(inode)
        if isinstance(node, AppendFile):
            self._note_refusal(pid, node.path, "", number, _reason_of(error))
        elif number == errno.EPERM and (inode >= MESSAGE or isinstance(node, StreamFile)):
            self._context.refusals.note_change(
                self.accounts.caller, pid, self.path_of(inode), number, _reason_of(error)
            )

    def note_refused_removal(self, parent_inode: int, name: bytes, pid: int, number: int, error: BaseException) -> None:
        """Note why a name outside of drop boxes was not removed."""
        parent = self._inodes.nodes.get(parent_inode)
        if number == errno.EPERM and not isinstance(parent, DropDirectory):
            path = f"{self.path_of(parent_inode)}/{from_name(name)}".removeprefix("//")
            self._context.refusals.note_change(self.accounts.caller, pid, path, number, _reason_of(error))

    def note_refused_name(self, parent_inode: int, name: bytes, pid: int, number: int, error: BaseException) -> None:
        """As `note_refused`, for a name in a directory: an `append@…` that was looked up, or a name to be made."""
        parent = self._inodes.nodes.get(parent_inode)
        if not isinstance(parent, RootDirectory | TopicDirectory | QueueDirectory | DropDirectory | GroupsDirectory):
            return
        path = f"{parent.path}/{from_name(name)}".removeprefix("/")
        if not name.startswith(b"append@"):
            reason, kind = _reason_of(error), RefusalKind.NAME
        elif isinstance(parent, RootDirectory):
            return
        else:
            problem = append_problem(name)
            reason, kind = (problem, RefusalKind.NAME) if problem else ("no such topic or queue", RefusalKind.NO_TOPIC)
        self._note_refusal(pid, path, "", number, reason, kind)

    def _note_refusal(
        self, pid: int, path: str, lines: str, number: int, reason: str, kind: RefusalKind | None = None
    ) -> None:
        self._context.refusals.note(self.accounts.caller, pid, path, lines, number, reason, kind)

    # state that outlives this process

    def survive(self, handed_over: Handover) -> list[int]:
        """Continue after the last server, if there was one, and note the state that the next one needs. Call it before
        the first request. Returns the inodes that the last server gave out: the kernel's caches of them may be
        outdated."""
        self._handed_over = handed_over
        self._computed.begin = handed_over.computed_begin
        attribute_factory = self._context.attribute_factory
        attribute_factory.started_ns = handed_over.started_ns(attribute_factory.started_ns)
        handed_over.requests.settle(self._store.physical_end)
        handed_over.requests.share_out(UnansweredShares(self.accounts))
        handed_over.ledger.share_out(HandoverShares(self.accounts, self.memory))
        known = self._inodes.survive(handed_over.nodes)
        self.handles.take_over(handed_over)
        for handle, entry in list(self.handles.inherited.items()):
            # these take effect before their next request: they log accesses, or are written
            if entry.inode == self.access_log_inode or self.handles.is_of(entry.inode, DropFile):
                with suppress(FilesystemError, StoreError):
                    self._at_once(partial(self._files.__getitem__, handle))
        return known

    def _at_once(self, call: Callable[[], object]) -> None:
        """Make a call to its end before the first request, or for one that failed, even if it is slow work."""
        try:
            call()
        except SlowWork as slow:
            with within(math.inf):
                slow.work()
            self._at_once(call)

    def settle(self) -> None:
        """Publish the files that the last server was about to publish: after `survive`, before the first request."""
        self._drops.settle()

    def leave(self) -> None:
        """Instead of `close`, after the last request: another server takes over all open files."""
        self.handles.hand_over()
        self._background.shutdown(cancel_futures=True)

    @contextmanager
    def already_stored(self, handle: int) -> Iterator[None]:
        """While a request is repeated whose messages are in the log already: it does everything but put them."""
        survival = self._context.survival
        survival.stored_until = self._store.physical_end
        try:
            if handle in self._files or handle in self.handles.inherited:
                self._files[handle].was_published()
            yield
        finally:
            survival.stored_until = 0

    @contextmanager
    def already_begun(self) -> Iterator[None]:
        """While a request is repeated that a killed server had begun: the things it makes may exist already."""
        self._context.survival.was_begun = True
        try:
            yield
        finally:
            self._context.survival.was_begun = False

    # extended attributes

    def listxattr(self, inode: int) -> list[bytes]:
        """Names of a message's attributes; other files have none."""
        return list_names(self._messages.message(inode)) if inode >= MESSAGE else []

    def getxattr(self, inode: int, name: bytes) -> bytes:
        """Value of a message's attribute. ENODATA: there is no such `user.` attribute; ENOTSUP: not in `user.`."""
        if inode < MESSAGE or not name.startswith(b"user."):
            raise no_attribute(name)
        return read_value(self._messages.message(inode), name)

    def setxattr(self, inode: int) -> NoReturn:
        """Refuse setxattr and removexattr: ENOTSUP for `append`, EPERM or EROFS for everything else."""
        if inode < COMPUTED and self._inodes.nodes[inode].ignores_setattr:
            raise no_attribute(b"")
        raise self._context.refusal()

    def statfs(self) -> FilesystemSpace:
        """The disk's space, with messages as files. SlowWork: messages are counted queue by queue."""
        messages = deferred(lambda: self._store.stats().messages, (self, "messages"))
        disk = os.statvfs(self._store.path)
        return FilesystemSpace(
            disk.f_frsize,
            disk.f_blocks,
            disk.f_bfree,
            disk.f_bavail,
            messages + disk.f_ffree,
            disk.f_ffree,
            NAME_MAX_BYTES,
        )

    def look_ahead(self, seconds: float) -> bool:
        """Make footers of new Parquet files for about `seconds`; returns whether none is left. One thread at a time."""
        return self._parquet.look_ahead(seconds)

    # invalidation of the kernel's caches after changes of the store

    def expired(self, expired: Expired) -> Iterator[int]:
        """Inodes to invalidate after the oldest messages of a queue have expired."""
        self._messages.forget()
        return itertools.chain(
            invalidate_expired_files(self._inodes, expired),
            invalidate_expired(self._context, expired),
            self.streams.expired(expired.topic),
        )

    def followed(self) -> None:
        """Note the time: the tree shows all that another process has written so far. Any thread."""
        self._followed_ns = self._context.clock_ns()

    def queue_gone(self, topic: str, queue: int) -> list[int]:
        """Inodes to invalidate after a queue was removed or made anew: the queue and all below it."""
        self._messages.forget()
        self._parquet.forget_queue(topic, queue)
        return invalidate_queue(self._context, topic, queue)

    def topics_changed(self) -> list[int]:
        """Inodes to invalidate for topics and queues that were removed since the last call, and all below them."""
        removed = self._store.topics_removed
        if removed == self._topics_removed:
            return []  # topics were made, which must not take longer the more there are
        self._topics_removed = removed
        self._messages.forget()
        self._parquet.forget_all_but(frozenset(self._store.topics()))
        return invalidate_removed(self._context)

    def log_rewritten(self, physical_end: int) -> list[int]:
        """Inodes to invalidate after another log replaced the one that was shown up to `physical_end`: topics, queues
        and all below them. None of them is valid any more."""
        self._messages.forget()
        for file in self._files.values():
            if isinstance(file, HeldBody):
                file.log_rewritten()
        self._computed.log_rewritten(physical_end)
        if self._handed_over is not None:
            self._handed_over.computed_begin = self._computed.begin
        self._parquet.forget_all_but(frozenset())
        return self._inodes.invalidate(lambda _: True)

    def _everything(self, physical_end: int) -> int:
        """The physical offset to wait for so that all that was published is on disk."""
        if self._context.read_only and not physical_end:
            return NOTHING_TO_WAIT_FOR
        return max(physical_end, self._store.physical_end)


def _reason_of(error: BaseException) -> str:
    """The reason of a refusal, in words for a publisher."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, StoreError) else "a defect of this program: see the daemon's log"


def _path_of(key: NodeKey) -> str:
    """The path of a node that was not made again, as far as its key has it."""
    name = key.detail[0] if isinstance(key.detail, tuple) and key.detail else None
    parts = (key.topic, key.queue, name)
    return "/".join(str(part) for part in parts if part is not None)


def _require_length(name: bytes) -> None:
    """ENAMETOOLONG for a name that is longer than statfs says."""
    if len(name) > NAME_MAX_BYTES:
        raise FilesystemError(errno.ENAMETOOLONG)
