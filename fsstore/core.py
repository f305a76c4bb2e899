"""The filesystem core: paths, inodes and handles mapped to engine calls. It uses no FUSE type and no event loop.

        directories computed_links streams append store_reports    the nodes of all names but messages
        status metrics                                             the texts of @store
        messages inodes                                            message files: computed inodes without nodes
        this module                                                a short method per request: inodes, handles to nodes

Thread safety: none; an adapter calls it from one thread.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn, TypeVar

from engine import Expired, MessageStore, StoreError
from fsstore.accounts import Accounts
from fsstore.handover.handles import HandleEntry
from fsstore.handover.memory import Handover
from fsstore.interface import (
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
    WorkKind,
)
from fsstore.parquet.dataset import Dataset
from fsstore.parquet.nodes import DatasetDirectory, invalidate_expired_files
from fsstore.tree.access_log import AccessLog, AccessLogFile
from fsstore.tree.append import AppendFile, StillRefusedError
from fsstore.tree.attributes import AttributeFactory
from fsstore.tree.deferred import DoneInThread
from fsstore.tree.directories import QueueDirectory, RootDirectory, TopicDirectory, Tree
from fsstore.tree.drop import DropDirectory, DropFile, DropHandle, SetattrRequest
from fsstore.tree.groups import GroupsDirectory
from fsstore.tree.inodes import COMPUTED, MESSAGE, ComputedInodes, InodeTable, NodeKey
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.listing import Batch, Listing
from fsstore.tree.memory_budget import HandoverShares, MemoryBudget, UnansweredShares
from fsstore.tree.messages import CompressedBody, HeldBody, MessageFiles, SmallBody
from fsstore.tree.metrics import (
    RequestFigures,
    account_metrics,
    handover_metrics,
    metrics_of,
    process_metrics,
    refusal_metrics,
    request_metrics,
)
from fsstore.tree.names import NAME_MAX_BYTES, append_problem, from_name
from fsstore.tree.nodes import Context, Creation, LongPuts, Node, OpenFile, Survival
from fsstore.tree.refusals import RefusalKind, Refusals
from fsstore.tree.stale import invalidate_expired, invalidate_queue, invalidate_removed
from fsstore.tree.status import config_of, status_of, to_json
from fsstore.tree.store_reports import ControlFile, StoreDirectory
from fsstore.tree.xattrs import list_names, no_attribute, read_value

H = TypeVar("H")

NO_CHANGE = SetattrRequest()

MOST_UNOPENED = 256
"""Files that stay open after a read on mounts where the kernel opens files without a request."""


class _Handles(dict[int, H]):
    """Open files or listings by handle. A handle of the last server is opened again at its first use."""

    def __init__(self, reopen: Callable[[int], H]) -> None:
        super().__init__()
        self._reopen = reopen

    def __missing__(self, handle: int) -> H:
        return self._reopen(handle)


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
        self._inodes: InodeTable[Node] = InodeTable(self.accounts)
        attribute_factory = AttributeFactory(options, store.mode, clock_ns())
        self._background = ThreadPoolExecutor(1, "fsstore-background")
        self._computed = ComputedInodes()
        self.memory = MemoryBudget(accounts=self.accounts)
        """The budget for memory that clients make the daemon hold."""
        changes: DoneInThread[None] = DoneInThread(WorkKind.WAITING)
        self._context = Context(
            store,
            attribute_factory,
            self._inodes,
            self._computed,
            clock_ns,
            self._background,
            changes,
            self.memory,
            LongPuts(),
            Survival(),
            Refusals(clock_ns),
            self.accounts,
        )
        self._messages = MessageFiles(store, attribute_factory, self._computed, self.memory)
        tree = Tree(self._context, self._messages)
        self._drops = tree.drops
        self.streams = tree.streams
        """Streams, for the adapter to ask which of them have grown."""
        self._files: dict[int, OpenFile] = _Handles(self._reopen)
        self._listings: dict[int, Listing] = _Handles(self._reopen_directory)
        self._unopened: dict[int, OpenFile] = {}  # by inode, the least recently read first
        self._at_slow_work: set[int] = set()
        self._handed_over: Handover | None = None
        self._inherited: dict[int, HandleEntry] = {}
        """Handles of the last server that were not used since the take-over."""
        self._open_names: dict[int, int] = {}
        """Inode of each handle on a name that a user made up."""
        self._next_handle = 1
        self._stored = DoneInThread[int]()
        self.requests = RequestFigures()
        """Counters, which the adapter increments."""
        self._started_ns = clock_ns()
        self._followed_ns: int | None = None
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
            figures = {
                "parquet": self._parquet.status(),
                "complaints": {"made": LIMITED_LOG.made, "left_out_of_log": LIMITED_LOG.left_out},
                "memory": {
                    "budget_bytes": self.memory.limit_bytes,
                    "bytes": self.memory.used,
                    "refused": self.memory.refused,
                },
                "handover": None if self._handed_over is None else self._handed_over.figures()._asdict(),
                "accounts": {kind.value: row._asdict() for kind, row in self.accounts.figures().items()},
            }
            return to_json({"pid": os.getpid(), **status_of(store), **figures, **status()})

        def metrics_text() -> bytes:
            now_ns = context.clock_ns()
            seen_s = None if self._followed_ns is None else (now_ns - self._followed_ns) / 1e9
            more = (
                *process_metrics(self._started_ns / 1e9, seen_s),
                *refusal_metrics(context.refusals.counts),
                *account_metrics(self.accounts.figures()),
                *(handover_metrics(self._handed_over.figures()) if self._handed_over is not None else ()),
                *request_metrics(self.requests, LIMITED_LOG.by_errno),
            )
            return metrics_of(store, LIMITED_LOG, self.memory, context.survival, more)

        directory.add_report("status.json", status_text, is_slow=True)
        directory.add_report("config.json", lambda: to_json(config_of(store, options)))
        directory.add_report("metrics", metrics_text, is_slow=True)
        directory.add_report("refusals", self._refusals_text, is_private=True)
        if not self.opens_unasked:  # the log grows while it is read, so it needs its open requests
            directory.add(b"accesslog", self._access_log_file, is_listed=False)  # `grep -r` would wait there for ever
        directory.add(b"groups", GroupsDirectory(context))
        if not self.read_only:
            directory.add(b"control", ControlFile(context))
        return directory

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
        unfinished = sum(file.is_unfinished for file in self._files.values())
        for file in (*self._files.values(), *self._unopened.values()):
            file.abandon()
        self._files.clear()
        self._unopened.clear()
        self._drops.close()
        self._listings.clear()
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
            self.keep(handle, 0, 0)
            size = None
        if isinstance(node, DropFile):
            node.set(size, wanted)
        return node.attributes()

    def readlink(self, inode: int) -> bytes:
        """The target of a symbolic link; EINVAL for anything else."""
        return self._messages.target(inode) if COMPUTED <= inode < MESSAGE else self._node(inode).target()

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
                raise self._context.refusal()
            body = self._messages.open(inode)
            return self._opened(
                inode, body, Opened(0, False, True, body.body if type(body) is SmallBody else None), flags
            )
        node = self._node(inode)
        if flags & os.O_TRUNC and not node.ignores_setattr:
            raise self._context.refusal()
        return self._opened(inode, *node.open(flags), flags)

    def _opened(self, inode: int, file: OpenFile, how: Opened, flags: int) -> Opened:
        """Give an open file a handle. OSError: there is no room to note that it is open, and it is closed."""
        handle = self._next_handle
        opened = Opened(handle, how.direct_io, how.keep_cache, how.body)
        if self._handed_over is not None:
            try:
                self._inodes.opened(inode)
                self._handed_over.handles.add(handle, inode, flags, self.accounts.caller)
            except OSError:
                file.abandon()
                raise
        self._files[handle] = file
        if inode < COMPUTED:
            self._note_open(handle, inode)
            self.keep(handle, 0, 0)
        self._next_handle = handle + 1
        return opened

    def _note_open(self, handle: int, inode: int) -> None:
        if self._inodes.made_up.opened(inode):
            self._open_names[handle] = inode

    def _note_closed(self, handle: int) -> None:
        inode = self._open_names.pop(handle, None)
        if inode is not None:
            self._inodes.made_up.closed(inode)

    def read(self, handle: int, position: int, size: int) -> Data:
        """Bytes of an open file, fewer than asked for at its end."""
        return self._files[handle].read(position, size)

    @property
    def opens_unasked(self) -> bool:
        """Whether the kernel is to open and close files without requests; it then reads by inode."""
        return self._context.opens_unasked

    def read_unopened(self, inode: int, position: int, size: int) -> Data:
        """Bytes of a file that the kernel opened without a request. A file that is costly to open stays open while it
        is among the MOST_UNOPENED that were read last."""
        file = self._unopened.pop(inode, None)
        if file is None:
            file = self._messages.open(inode) if inode >= MESSAGE else self._node(inode).open(os.O_RDONLY)[0]
        if type(file) is SmallBody:
            return file.read(position, size)
        self._unopened[inode] = file
        if len(self._unopened) > MOST_UNOPENED:
            self._close_oldest()
        try:
            return file.read(position, size)
        except SlowWork as slow:
            slow.work = self._kept_open(inode, slow.work)
            raise

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

    def release(self, handle: int) -> None:
        """Close a handle. Bytes that flush refused are dropped; bytes that wait for the close are published."""
        handed_over = self._handed_over
        if handed_over is None:
            self._files[handle].release()
            del self._files[handle]
            self._note_closed(handle)
            return
        file = self._files.get(handle) or self._inherited_writer(handle)
        if file is not None:
            file.release()
            self._files.pop(handle, None)
        self._inherited.pop(handle, None)
        handed_over.handles.drop(handle)
        self._note_closed(handle)

    def drop_handle(self, handle: int) -> None:
        """Forget a handle whose release killed servers. Its unpublished bytes stay as they are."""
        self._inherited.pop(handle, None)
        self._note_closed(handle)
        if self._handed_over is not None:
            self._handed_over.handles.drop(handle)

    # directories

    def opendir(self, inode: int) -> OpenedDirectory:
        """Open a directory for a listing."""
        handle = self._next_handle
        listing, opened = self._node(inode).opendir()
        if self._handed_over is not None:
            try:
                self._handed_over.handles.add(handle, inode, 0, self.accounts.caller, is_directory=True)
            except OSError:
                listing.release()
                raise
        self._listings[handle] = listing
        self._note_open(handle, inode)
        self._next_handle = handle + 1
        return opened._replace(handle=handle)

    def readdir(self, handle: int, position: int, limit: int, *, with_attributes: bool = True) -> Batch:
        """Up to `limit` entries after `position` (0: the beginning); an empty list at the end. Messages are returned as
        MessageNames unless `with_attributes`."""
        return self._listings[handle].read(position, limit, with_attributes=with_attributes)

    def releasedir(self, handle: int) -> None:
        listing = self._listings.pop(handle, None)  # None: the last server opened it, and no request has used it since
        if listing is not None:
            listing.release()
        self._note_closed(handle)
        if self._handed_over is not None:
            self._inherited.pop(handle, None)
            self._handed_over.handles.drop(handle)

    def fsyncdir(self, handle: int) -> int:
        """Wait for everything published so far."""
        return self._everything(0)

    def mkdir(self, parent_inode: int, name: bytes) -> Attributes:
        """Make a topic, or add queues to one; counted as one lookup. SlowWork: it waits for the disk."""
        _require_length(name)
        parent = self._node(parent_inode)
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
        parent = self._node(parent_inode)
        node, file, opened = parent.make(name, how)
        self._inodes.count(node.inode)
        return node.attributes(), self._opened(node.inode, file, opened, how.flags)

    def refuse_creation(self, parent_inode: int, name: bytes) -> NoReturn:
        """Refuse to make a file: ENOENT for a malformed `append@…`, else EPERM or EROFS."""
        _require_length(name)
        raise self._node(parent_inode).create(name)

    def unlink(self, parent_inode: int, name: bytes) -> None:
        """Remove a dropped file. EPERM or EROFS for everything else."""
        _require_length(name)
        parent = self._node(parent_inode)
        if not isinstance(parent, DropDirectory):
            raise self._context.refusal()
        parent.remove(name)

    def rename(self, parent_inode: int, name: bytes, new_parent_inode: int, new_name: bytes, flags: int) -> int:
        """Rename a dropped file; returns the physical offset to wait for. EPERM or EROFS for everything else."""
        _require_length(name)
        _require_length(new_name)
        parent = self._node(parent_inode)
        if not isinstance(parent, DropDirectory):
            raise self._context.refusal()
        return parent.move(name, self._node(new_parent_inode), new_name, flags)

    def refuse(self, *names: bytes) -> NoReturn:
        """Refuse unlink, rmdir, rename, link or symlink of `names`: EPERM, or EROFS on a read-only mount."""
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
                path = f"{message.topic}/{message.queue_id}/{message.queue_offset:020d}"
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
            self._at_once(partial(self._inherited_writer, handle))
        file = self._files.get(handle)
        if file is not None:
            file.write_refused(number)
            self.keep(handle, unique, number)

    def note_refused_open(self, inode: int, pid: int, number: int, error: BaseException) -> None:
        """As `note_refused`, for a file that was to be opened for writing."""
        node = self._inodes.nodes.get(inode)
        if isinstance(node, AppendFile):
            self._note_refusal(pid, node.path, "", number, _reason_of(error))

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
        self._context.survival.restarts = handed_over.restarts
        self._context.survival.planned_restarts = handed_over.planned_restarts
        self._computed.begin = handed_over.computed_begin
        attribute_factory = self._context.attribute_factory
        attribute_factory.started_ns = handed_over.started_ns(attribute_factory.started_ns)
        handed_over.requests.settle(self._store.physical_end)
        handed_over.requests.share_out(UnansweredShares(self.accounts))
        handed_over.ledger.share_out(HandoverShares(self.accounts, self.memory))
        self._inherited = dict(handed_over.handles.all())
        self._next_handle = handed_over.handles.last + 1
        known = self._inodes.survive(handed_over.nodes)
        for handle, entry in self._inherited.items():
            self._note_open(handle, entry.inode)
        for handle in [handle for handle, entry in self._inherited.items() if self._is_needed_at_once(entry.inode)]:
            with suppress(FilesystemError, StoreError):
                self._at_once(partial(self._files.__getitem__, handle))
        return known

    def _at_once(self, call: Callable[[], object]) -> None:
        """Make a call to its end before the first request, even if it is slow work."""
        try:
            call()
        except SlowWork as slow:
            slow.work()
            self._at_once(call)

    def _is_needed_at_once(self, inode: int) -> bool:
        """Whether an open file takes effect before its next request: it logs accesses, or is written."""
        return inode == self.access_log_inode or self._is_of(inode, DropFile)

    def _is_of(self, inode: int, *kinds: type | None) -> bool:
        """Whether the last server gave the inode to a node of one of the kinds; None: the node exists again."""
        key = self._inodes.inherited(inode)
        return (None if key is None else key.kind) in kinds

    def settle(self) -> None:
        """Publish the files that the last server was about to publish: after `survive`, before the first request."""
        self._drops.settle()

    def takes_positions(self, handle: int) -> bool:
        """True if O_APPEND writes need an explicit position, so that a write that is sent again is idempotent."""
        return isinstance(self._files[handle], DropHandle)

    def leave(self) -> None:
        """Instead of `close`, after the last request: another server takes over all open files."""
        assert self._handed_over is not None
        for handle, file in self._files.items():
            if (state := file.unpublished(whole=True)) is not None:
                self._handed_over.handles.save_whole(handle, state)
        self._background.shutdown(cancel_futures=True)

    def inherited_files(self) -> Iterator[tuple[int, int]]:
        """Handle and inode of each inherited file whose content the kernel caches."""
        for handle, entry in self._inherited.items():
            if entry.inode >= MESSAGE:
                yield handle, entry.inode

    def holds_bytes(self, handle: int) -> bool:
        file = self._files.get(handle)
        if file is not None:
            return file.is_unfinished
        return self._handed_over is not None and self._handed_over.handles.has_state(handle)

    def is_synced(self, handle: int) -> bool:
        """Whether each write through a handle waits for the disk."""
        return getattr(self._files[handle], "is_synced", False)

    def outcome(self, handle: int, unique: int) -> int | None:
        """The errno (0: success) of request `unique`, if the last server noted it with the handle's state."""
        return self._handed_over.handles.outcome(handle, unique) if self._handed_over is not None else None

    def keep(self, handle: int, unique: int, number: int) -> None:
        """Note a handle's state before a request is answered with errno `number` (0: success)."""
        if self._handed_over is not None and (file := self._files.get(handle)) is not None:
            self._handed_over.handles.save(handle, file.unpublished(), unique, number)

    @contextmanager
    def already_stored(self, handle: int) -> Iterator[None]:
        """While a request is repeated whose messages are in the log already: it does everything but put them."""
        survival = self._context.survival
        survival.stored_until = self._store.physical_end
        try:
            if handle in self._files or handle in self._inherited:
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

    def _reopen(self, handle: int) -> OpenFile:
        """Open a handle of the last server again. EBADF: it had no such handle."""
        entry = self._inherited.get(handle)
        if entry is None or entry.is_directory or self._handed_over is None:
            raise FilesystemError(errno.EBADF)
        flags = entry.flags & ~os.O_TRUNC
        file: OpenFile
        if entry.inode >= MESSAGE:
            file = self._messages.open(entry.inode)
        else:
            with self._reopening(entry.user):
                file, _ = self._node(entry.inode).open(flags)
                file.resume(self._handed_over.handles.state(handle))
        del self._inherited[handle]
        self._files[handle] = file
        if entry.inode < COMPUTED:  # an `append` is forgotten with its last handle, so it needs to have all of them
            for other in [other for other, inherited in self._inherited.items() if inherited.inode == entry.inode]:
                self._files[other]
        return file

    @contextmanager
    def _reopening(self, user: int) -> Iterator[None]:
        """While open files of a user are opened again: they count to this user, and are never refused."""
        self._context.survival.is_reopening = True
        try:
            with self.accounts.acting_for(user):
                yield
        finally:
            self._context.survival.is_reopening = False

    def _inherited_writer(self, handle: int) -> OpenFile | None:
        """The file of a handle that was not used since the take-over, if its close has an effect; else None."""
        entry = self._inherited.get(handle)
        if entry is None or entry.inode >= COMPUTED:
            return None
        if not self._is_of(entry.inode, None, AppendFile, DropFile):  # other nodes need not be made again for a close
            return None
        with suppress(FilesystemError, StoreError):
            if isinstance(self._inodes.nodes[entry.inode], AppendFile | DropFile):
                return self._files[handle]
        return None

    def _reopen_directory(self, handle: int) -> Listing:
        entry = self._inherited.get(handle)
        if entry is None or not entry.is_directory:
            raise FilesystemError(errno.EBADF)
        with self._reopening(entry.user):
            listing, _ = self._node(entry.inode).opendir()
        listing.resume()
        del self._inherited[handle]
        self._listings[handle] = listing
        return listing

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
        messages = self._stored.do((), lambda: self._store.stats().messages)
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

    # invalidation of the kernel's caches after changes of the store

    def expired(self, expired: Expired) -> Iterator[int]:
        """Inodes to invalidate after the oldest messages of a queue have expired."""
        self._messages.forget()
        self._parquet.forget_expired(expired)
        return itertools.chain(
            invalidate_expired_files(self._inodes, expired), invalidate_expired(self._context, expired)
        )

    def followed(self) -> None:
        """Note the time: the tree shows all that another process has written so far."""
        self._followed_ns = self._context.clock_ns()

    def queue_gone(self, topic: str, queue: int) -> list[int]:
        """Inodes to invalidate after a queue was removed or made anew: the queue and all below it."""
        self._messages.forget()
        self._parquet.forget_queue(topic, queue)
        return invalidate_queue(self._context, topic, queue)

    def topics_changed(self) -> list[int]:
        """Inodes to invalidate for topics and queues that were removed since the last call, and all below them."""
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

    def _node(self, inode: int) -> Node:
        """The node of an inode. EPERM or EROFS for a message or a link to one: they have no nodes."""
        if inode >= COMPUTED:
            raise self._context.refusal()
        return self._inodes.nodes[inode]

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
