"""One mount from beginning to end: mount, serve, unmount.

        run_mount ─► Channel.mount ─► trio.run ─┬─ request loop
                                                ├─ relay (requests for pyfuse3)
                                                ├─ ready, after the answer to the kernel's first request
                                                ├─ signals that end the mount
                                                ├─ expiry (invalidates removed inodes)
                                                ├─ watch of the table of mounts
                                                ├─ sizes (of idle streams that grew)
                                                └─ follow (a store that another process writes)

All of it runs on trio's thread, which must be the process's main thread (signals). Expiry and slow work use further
threads for calls that may take long; following has one of its own. pyfuse3 keeps its session in globals, so a process
has one mount.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType

import trio

from engine import MessageStore, OpenMode, StoreError
from fsstore.core import Filesystem
from fsstore.fuse import protocol as wire
from fsstore.fuse.following import Following
from fsstore.fuse.handlers import JournaledHandlers, RequestHandlers
from fsstore.fuse.notify import Expiry, Invalidation, SizeNotifier
from fsstore.fuse.rare import RareOperations, Relay, agree_again
from fsstore.fuse.request_log import RequestLog
from fsstore.fuse.session import Channel, RequestLoop
from fsstore.handover.keeper import Keeper, KeeperMessage
from fsstore.handover.layout import HandoverError
from fsstore.handover.memory import Handover
from fsstore.interface import SLICE_S, FilesystemOptions
from fsstore.mount_table import MOUNT_TABLE, parse_mounts
from fsstore.options import ServeOptions
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.metrics import VERSION

log = logging.getLogger(__name__)


def run_mount(
    store: MessageStore,
    mountpoint: Path,
    options: ServeOptions,
    ready: Callable[[], None] | None = None,
    make_core: type[Filesystem] = Filesystem,
    keeper: Keeper | None = None,
    facts: Callable[[], Mapping[str, object]] | None = None,
) -> None:
    """See `fsstore.serve_mount`; `make_core` is for tests that need a core with faults."""
    if keeper is None or keeper.inherited is None:
        mountpoint = mountpoint.resolve()  # before it is mounted: looking at it afterwards would wait for ourselves
    core = make_core(
        store,
        FilesystemOptions(
            append_mode=options.append_mode, directory_mode=options.directory_mode, parquet=options.parquet
        ),
        status=lambda: {"mountpoint": str(mountpoint), **mount.status(), **(facts() if facts is not None else {})},
    )
    early: list[str] = []
    with handling_signals(early.append):  # else a signal would end this process and leave the mount behind
        if keeper is None or keeper.inherited is None:
            channel = Channel.mount(mountpoint, fuse_options(store, options))
        else:
            channel = Channel(keeper.inherited, mountpoint)
        mount = MountTasks(store, core, channel, options, ready, keeper)
        with handling_signals(mount.end), quick_turns():
            for name in early[:1]:
                mount.end(name)
            _serve(mount, core, channel, keeper)


def _serve(mount: MountTasks, core: Filesystem, channel: Channel, keeper: Keeper | None) -> None:
    """Serve requests, and close or leave what served them."""
    is_left = has_died = False
    try:
        trio.run(mount.serve)
        is_left = mount.is_left
    except Exception:
        has_died = mount.outlives
        raise
    finally:
        if is_left:
            core.leave()  # the channel stays open: closing the store answers writers that wait for the disk
        elif not has_died:  # else the next server continues, as after a kill
            if unfinished := core.close():
                log.info("open files with an incomplete message, not published: %d", unfinished)
            if keeper is not None:
                keeper.release()  # else requests would wait for another server
            channel.close()
    if keeper is not None:
        keeper.is_left = is_left


def require_agreement(handed_over: int) -> None:
    """HandoverError: this program and the kernel would agree on other features than the server that uses the memory."""
    agreed = Handover.agreed_in(handed_over)
    if agreed is not None:
        trio.run(agree_again, *agreed)


class MountTasks:
    """The tasks around one request loop. Thread safety: trio's thread only."""

    def __init__(
        self,
        store: MessageStore,
        core: Filesystem,
        channel: Channel,
        options: ServeOptions,
        ready: Callable[[], None] | None,
        keeper: Keeper | None = None,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self.outlives = False
        """Whether the mount outlives this process."""
        self._leaves = False
        """Whether it ends so that another process can take over."""
        self._core = core
        self._channel = channel
        self._options = options
        self._ready = ready
        self._everything = trio.CancelScope()
        self._end_asked = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    def status(self) -> dict[str, object]:
        """Fields of status.json about the mount."""
        keeper = self._keeper
        return {
            "version": VERSION,
            "outlives_daemon": self.outlives,
            **asdict(self._core.restarts),
            "keeper_pid": keeper.pid if keeper is not None and self.outlives else None,
        }

    @property
    def is_left(self) -> bool:
        """Whether the next server is to take over. Valid after `serve`."""
        return self._leaves and self._channel.is_mounted and not self._end_asked.is_set()

    async def serve(self) -> None:
        """Serve requests until the mount ends, `end` is called, or the keeper starts another server."""
        self._token = trio.lowlevel.current_trio_token()
        with self._everything, Relay.to_pyfuse3(self._channel, RareOperations(self._core)) as relay:
            await self._serve(relay)

    async def _serve(self, relay: Relay) -> None:
        handlers = self._handlers(relay)
        self._core.settle()
        expiry = Expiry(self._core, self._channel)
        invalidation = Invalidation(self._core, self._channel, expiry)
        handlers.published = invalidation.notify_kernel
        core, max_slow = self._core, self._options.max_slow
        shared = core.accounts, core.memory
        loop = RequestLoop(self._channel, handlers.by_opcode, relay, max_slow, core.ending, *shared)
        requests = RequestLog(self._core, self._channel, handlers.by_opcode)
        relay.log, handlers.waiting = requests, requests.waiting

        def refused(error: Exception, number: int, request: memoryview) -> None:
            handlers.refused(error, number, request)
            requests.failed(number, request)

        loop.refused = refused
        if self._keeper is not None:
            loop.working = self._keeper.memory.working
            loop.poisoned = handlers.instead_of(self._keeper.memory.poisoned())
        loop.figures = self._core.requests
        loop.figures.name_of = wire.operation_name
        sizes = SizeNotifier(self._core.streams, self._channel, loop.holds)
        unsubscribe = self._store.subscribe(invalidation)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(relay.run)
                nursery.start_soon(requests.run, lambda: self.is_left)
                nursery.start_soon(self._announce, relay)
                nursery.start_soon(expiry.run)
                nursery.start_soon(sizes.run)
                nursery.start_soon(self._end_when_asked, sizes)
                if self._keeper is not None:
                    nursery.start_soon(self._leave_when_asked, self._keeper, sizes)
                nursery.start_soon(self._watch_mount)
                nursery.start_soon(self._sum_streams)
                nursery.start_soon(self._look_ahead)
                if self._store.mode is OpenMode.FOLLOW:
                    following = Following(self._store, self._core, self._options.follow_interval_ms)
                    nursery.start_soon(following.run)
                await loop.run()
                nursery.cancel_scope.cancel()
        finally:
            unsubscribe()

    def _handlers(self, relay: Relay) -> RequestHandlers:
        """Plain handlers, until the kernel's first request has shown that a mount can outlive its server."""
        keeper = self._keeper
        if keeper is None:
            return RequestHandlers(self._core, self._store, self._channel)
        journal = keeper.memory.requests
        known = self._core.survive(keeper.memory)
        if self._store.mode is OpenMode.WRITE:
            self._store.when_placing(journal.placing)
        if keeper.inherited is None:
            relay.agreed = self._agreed
        else:
            agreed = keeper.memory.agreed
            if agreed is None:
                raise HandoverError("the kernel's first request is not in the shared memory")
            relay.replay(*agreed)
            self._take_over(keeper, known)
        return JournaledHandlers(self._core, self._store, self._channel, journal)

    def _agreed(self, request: bytes, reply: bytes) -> None:
        assert self._keeper is not None
        if wire.VERSION.unpack_from(request, wire.ARGUMENTS) >= (7, wire.RESEND_MINOR):
            self._keeper.memory.agree(request, reply)
            self._channel.survive(self._keeper)
            self.outlives = True

    def _take_over(self, keeper: Keeper, known: Iterable[int]) -> None:
        """Take over from the last server. Notices that it may not have sent to the kernel are sent again."""
        memory = keeper.memory
        if memory.was_left:
            log.info("took over from a daemon that left: planned restart %d of this mount", memory.planned_restarts)
        else:
            log.info("took over from a killed daemon: restart %d of this mount", memory.restarts)
        self._channel.survive(keeper)
        self.outlives = True
        for inode in known:
            self._channel.drop_attributes(inode)
        self._channel.resend()

    def end(self, why: str) -> None:
        """End `serve` after the present requests. A signal handler calls it: on the main thread, at any moment."""
        log.info("%s: unmounting", why)
        if self._token is None:
            self._everything.cancel()
            return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end_asked.set, idempotent=True)

    async def _end_when_asked(self, sizes: SizeNotifier) -> None:
        """A notice of a size may wait for requests, so they are served until it is sent."""
        await self._end_asked.wait()
        await sizes.close()
        self._everything.cancel()

    async def _leave_when_asked(self, keeper: Keeper, sizes: SizeNotifier) -> None:
        """Flush the store before leaving, so that no request waits for the disk."""
        message: KeeperMessage | None = None
        while message is not KeeperMessage.LEAVE:
            await trio.lowlevel.wait_readable(keeper)
            message = keeper.receive()
            if message is None:
                self.outlives = False
                log.error("the keeper (process %d) has ended: the mount ends with this daemon", keeper.pid)
                return
        with suppress(StoreError):  # closing the store reports it
            await trio.to_thread.run_sync(self._store.flush)
        await sizes.close()
        log.info("leaving the mount to the next server")
        self._leaves = True
        self._everything.cancel()

    async def _announce(self, relay: Relay) -> None:
        await relay.serving.wait()
        raise_read_ahead(self._channel.mountpoint, self._options.read_ahead_kb)
        if self._ready is not None:
            self._ready()
        if self._keeper is not None:
            self._keeper.send(KeeperMessage.SERVING)

    async def _watch_mount(self) -> None:
        """Log it when the mount leaves this namespace's tree and is still served."""
        mountpoint = self._channel.mountpoint
        watch, own_thread = partial(wait_until_unmounted, mountpoint), trio.CapacityLimiter(1)
        try:
            await trio.to_thread.run_sync(watch, abandon_on_cancel=True, limiter=own_thread)
        except OSError as error:
            log.warning("the table of mounts can't be watched: %s", error)
            return
        await trio.sleep(STILL_SERVED_SECONDS)
        log.warning(
            "%s is unmounted here, but still in use, so the store stays open:"
            " by another mount namespace (a container), or by a file that is open since before a lazy unmount",
            mountpoint,
        )

    async def _sum_streams(self) -> None:
        """Compute sizes of streams in advance."""
        while True:
            is_done = await self._in_advance(self._store.sum_streams, SLICE_S, "summing streams")
            await trio.sleep(SUMMING_INTERVAL_S if is_done else 0)

    async def _look_ahead(self) -> None:
        """Make footers of new Parquet files in advance, while their messages are in memory: a 50th of the time, and a
        fifth while nothing is written."""
        end, is_done = self._store.physical_end, True
        while True:
            before, end = end, self._store.physical_end
            await trio.sleep(SUMMING_INTERVAL_S if is_done or end != before else AHEAD_PAUSE_S)
            is_done = await self._in_advance(self._core.look_ahead, AHEAD_S, "making footers of Parquet files")

    async def _in_advance(self, work: Callable[[float], bool], seconds: float, what: str) -> bool:
        """Do some work in a thread for about `seconds`; returns whether none is left, also after a failure."""
        try:
            return await trio.to_thread.run_sync(work, seconds)
        except (StoreError, OSError) as error:
            text = f"{what} in advance failed: {error}"
            LIMITED_LOG.log_once(log, logging.WARNING, text, text)
            return True


TURN_S = 0.0002
"""Seconds for which a thread of slow work keeps the interpreter while the request loop waits for it. A request gives
the interpreter away some three times, and an ordinary read takes three requests: with Python's own 5 ms it would take
45 ms beside any slow work. Only threads that compete switch more often; a single one takes as much time as before."""


@contextmanager
def quick_turns() -> Iterator[None]:
    """Meanwhile this process's threads take turns of TURN_S."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


STILL_SERVED_SECONDS = 2.0
SUMMING_INTERVAL_S = 2.0
AHEAD_S, AHEAD_PAUSE_S = 0.04, 0.16
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR)
"""Signals that end a mount as unmounting does."""


@contextmanager
def handling_signals(end: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile each of ENDING_SIGNALS calls `end` with its name; repeated signals do no harm."""

    def handle(number: int, _: FrameType | None) -> None:
        end(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fuse_options(store: MessageStore, options: ServeOptions) -> list[bytes]:
    """Options of the mount: its source, its users, and the options that the user added."""
    named = os.fsencode(store.path.absolute()).replace(b"\\", b"\\\\").replace(b",", b"\\,")
    chosen = [b"default_permissions", b"fsname=" + named, b"subtype=fsstore"]
    if options.allow_other:
        chosen.append(b"allow_other")
    if store.mode is not OpenMode.WRITE:
        chosen.append(b"ro")
    return chosen + [os.fsencode(option) for option in options.mount_options]


def raise_read_ahead(mountpoint: Path, kb: int) -> None:
    """Raise the kernel's read-ahead from 128 KiB. Only root may; without it the mount is only slower."""
    device = device_of(mountpoint)
    if device is None:
        return
    with suppress(OSError):
        Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(str(kb))


def wait_until_unmounted(mountpoint: Path) -> None:
    """Return when the present mount at `mountpoint` has left the table of mounts. Opens a descriptor first: OSError."""
    with open(MOUNT_TABLE, "rb", buffering=0) as table:
        changed = select.poll()
        changed.register(table, select.POLLPRI)
        rows = os.fsdecode(table.readall())
        device = _device_in(rows, mountpoint)
        while device is not None and any(row.device == device for row in parse_mounts(rows)):
            changed.poll()
            table.seek(0)
            rows = os.fsdecode(table.readall())


def device_of(mountpoint: Path) -> str | None:
    """`major:minor` of the mount at a resolved path, from the table of mounts: a stat of the path would wait for us."""
    return _device_in(os.fsdecode(MOUNT_TABLE.read_bytes()), mountpoint)


def _device_in(table: str, mountpoint: Path) -> str | None:
    devices = [row.device for row in parse_mounts(table) if row.mountpoint == mountpoint]
    return devices[-1] if devices else None  # the last one mounted there is on top
