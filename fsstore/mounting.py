"""One mount from beginning to end: mount, serve, unmount.

    run_mount ─► pyfuse3.init ─► trio.run ─┬─ session loop (requests)
                                           ├─ ready, once the kernel's first request has come
                                           ├─ signals: SIGTERM and SIGINT end the loop
                                           ├─ expiry (names that are gone)
                                           └─ follow (a store that another process writes)

All of it runs on trio's thread, which has to be the process's main thread (signals); expiry and follow use a thread for
what may block. pyfuse3 holds its session in globals: one mount a process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyfuse3
import trio

from engine import MessageStore, OpenMode, StoreError
from fsstore.core import Filesystem
from fsstore.expiry import Expiry
from fsstore.interface import FilesystemOptions
from fsstore.invalidation import Invalidation
from fsstore.operations import StoreOperations
from fsstore.options import MountError, ServeOptions
from fsstore.sessionloop import SessionLoop, choose_loop, fuse_descriptors

log = logging.getLogger(__name__)


def run_mount(
    store: MessageStore,
    mountpoint: Path,
    options: ServeOptions,
    ready: Callable[[], None] | None = None,
    make_core: type[Filesystem] = Filesystem,
) -> None:
    """See `fsstore.serve`; `make_core` is for tests that need a core with faults."""
    mountpoint = mountpoint.resolve()  # before it is mounted: looking at it afterwards would wait for ourselves
    core = make_core(
        store,
        FilesystemOptions(
            append_mode=options.append_mode, directory_mode=options.directory_mode, parquet=options.parquet
        ),
        status=lambda: {"mountpoint": str(mountpoint)},
    )
    operations = StoreOperations(core, store)
    before = fuse_descriptors()
    with mounted(operations, mountpoint, fuse_options(store, options)):
        operations.loop = choose_loop(fuse_descriptors() - before, options.fast_loop)
        mount = Mount(store, core, operations, mountpoint, options, ready)
        try:
            trio.run(mount.serve)
        finally:
            for error in core.close():
                log.error("not published at the end: %s", error)


class Mount:
    """The tasks around one session loop. Thread safety: trio's thread only."""

    def __init__(
        self,
        store: MessageStore,
        core: Filesystem,
        operations: StoreOperations,
        mountpoint: Path,
        options: ServeOptions,
        ready: Callable[[], None] | None,
    ) -> None:
        self._store = store
        self._core = core
        self._operations = operations
        self._loop: SessionLoop = operations.loop
        self._mountpoint = mountpoint
        self._options = options
        self._ready = ready

    async def serve(self) -> None:
        """Serve requests until the mount is gone or a signal ends it."""
        expiry = Expiry(self._core)
        invalidation = Invalidation(self._core, expiry)
        self._operations.published = invalidation.tell_kernel
        unsubscribe = self._store.subscribe(invalidation)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._end_on_signal, expiry)
                nursery.start_soon(self._announce)
                nursery.start_soon(expiry.run)
                if self._store.mode is OpenMode.FOLLOW:
                    nursery.start_soon(self._follow)
                await self._loop.run(self._options.max_waiting)
                expiry.close()
                nursery.cancel_scope.cancel()
        finally:
            unsubscribe()

    async def _end_on_signal(self, expiry: Expiry, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                log.info("%s: unmounting", signal.Signals(number).name)
                expiry.close()
                self._loop.stop()

    async def _announce(self) -> None:
        await self._operations.mounted.wait()
        raise_read_ahead(self._mountpoint, self._options.read_ahead_kb)
        if self._ready is not None:
            self._ready()

    async def _follow(self) -> None:
        while True:
            await trio.sleep(self._options.follow_interval_ms / 1000)
            try:
                await trio.to_thread.run_sync(self._store.refresh)
            except (StoreError, OSError) as error:
                log.warning("looking for what the writer did: %s", error)


def fuse_options(store: MessageStore, options: ServeOptions) -> set[str]:
    """Options of the mount: who made it, who may use it, what the person added."""
    named = str(store.path.absolute()).replace("\\", "\\\\").replace(",", "\\,")
    chosen = {"default_permissions", f"fsname={named}", "subtype=fsstore"}
    if options.allow_other:
        chosen.add("allow_other")
    if store.mode is not OpenMode.WRITE:
        chosen.add("ro")
    return {MountOption(option) for option in chosen.union(options.mount_options)}


class MountOption(str):
    """A mount option that may hold any path: pyfuse3 encodes options as ASCII, and the kernel takes any bytes."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """The bytes of the file system's encoding, whatever was asked for."""
        return os.fsencode(str.__str__(self))


@contextmanager
def mounted(operations: StoreOperations, mountpoint: Path, options: set[str]) -> Iterator[None]:
    """Mount, and unmount at the end however it comes. MountError with what libfuse and fusermount3 said."""
    with said_on_stderr() as said:
        try:
            pyfuse3.init(operations, str(mountpoint), options)
        except RuntimeError as error:
            raise MountError(mountpoint, said() or str(error)) from error
    try:
        yield
    finally:
        pyfuse3.close(unmount=True)


@contextmanager
def said_on_stderr() -> Iterator[Callable[[], str]]:
    """What is written to descriptor 2 meanwhile, by C code and children too: libfuse prints its reasons there.

    What nobody asked for goes where it was meant to go, at the end.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def said() -> str:
            file.seek(0)
            words = file.read().decode(errors="replace").strip()
            file.truncate(0)
            return words

        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            os.write(2, file.read())


def raise_read_ahead(mountpoint: Path, kb: int) -> None:
    """Let the kernel read further ahead than its 128 KiB. Only root may; without it the mount is slower, no more."""
    device = device_of(mountpoint)
    if device is None:
        return
    with suppress(OSError):
        Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(str(kb))


def device_of(mountpoint: Path) -> str | None:
    """`major:minor` of the mount at a resolved path, from the table of mounts: the mount itself would wait for us."""
    found = None
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        if fields[4].decode("unicode_escape").encode("latin-1") == os.fsencode(mountpoint):
            found = fields[2].decode()  # the last one mounted there is on top
    return found
