"""Serving a store at a mount point, from opening to closing, in a daemon or in the foreground."""

from __future__ import annotations

import errno
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from types import FrameType

from engine import (
    MASTER_NAMES,
    FlushFailedError,
    FlushPolicy,
    MessageStore,
    OpenMode,
    RecoveryProgress,
    Retention,
    StoreConfig,
    StoreError,
    StoreIdentity,
    uncollected,
)
from fsstore import ServeOptions, serve_mount
from fsstore.fuse.mount import ENDING_SIGNALS, require_agreement
from fsstore.handover.keeper import Keeper
from fsstore.handover.memory import StoreNote
from mountctl.daemon import CATCHABLE_SIGNALS, CRASHES, Report, Reporter, tell_systemd
from mountctl.errors import one_line
from mountctl.log_file import LogFile, SystemLog, log_to_stderr
from mountctl.options import MountRequest
from mountctl.output import human_seconds, human_size, plural, throttled
from mountctl.process import raise_open_files, start_trimming
from mountctl.replicating import CONTROLLER, MASTER
from mountctl.supervisor import RESTART_SIGNAL

log = logging.getLogger("mountctl")

MOST_REFUSED, MOST_LOOKED_AT = 5, 1_000
"""Sentences about what is not served, and queues that are looked at for them."""
LOG_INTERVAL_SECONDS = 5.0
SHOW_INTERVAL_SECONDS = 0.1
REFUSED_SECONDS, LONGEST_REFUSED_SECONDS = 1.0, 60.0
"""Interval for testing a disk that refused writes, and the longest pause before the first test."""


def serve_request(
    request: MountRequest, reporter: Reporter, log_file: LogFile | None, keeper: Keeper | None = None
) -> None:
    """Open the store, serve it at the mount point until an unmount or a signal, and close it. The caller has blocked
    SIGHUP (`daemon.hold_hangups`)."""
    log_to_stderr()
    if log_file is not None:
        logging.getLogger().addHandler(SystemLog(log_file))
    faulthandler.enable(sys.stderr)
    raise_open_files()
    start_trimming()
    interrupts = Interrupts()
    hangups = Hangups(log_file)
    log.info("process %d opens %s (%s)", os.getpid(), request.store, request.mode)
    is_first = keeper is None or keeper.inherited is None  # a next server never creates its store
    create = request.mode == "write" and is_first
    config = _going_on(_config(request, reporter), keeper)
    with uncollected():
        opened = MessageStore.open(request.store, config, create=create)
        gc.freeze()  # a store of many queues has many permanent objects, which the collector need not visit even once
    with opened as store, _Watched(store, keeper):
        _log_opening(store)
        hangups.store = store
        try:
            ready = partial(_ready, request, store, reporter, interrupts, keeper)
            facts = partial(_facts, log_file)
            serve_mount(store, request.mountpoint, _serve_options(request), ready=ready, keeper=keeper, facts=facts)
        finally:
            _ignore(ENDING_SIGNALS)  # the end has begun
        is_left = keeper is not None and keeper.is_left
        log.info("closing the store, for the next server" if is_left else "unmounted; closing the store")
    if keeper is not None and keeper.is_left:
        keeper.memory.leave()
    log.info("closed %s", request.store)


def _going_on(config: StoreConfig, keeper: Keeper | None) -> StoreConfig:
    """The configuration of a next server: only the last server's store, and read-only after a failed flush."""
    known = keeper.memory.store if keeper is not None and keeper.inherited is not None else StoreNote()
    identity = StoreIdentity(known.name, known.inode) if known.inode else None
    return replace(config, identity=identity, stopped=known.failure or config.stopped, serves_readers=True)


class _Watched:
    """Records the store's identity and failures for the next server; requests a restart once a refusing disk takes
    writes."""

    def __init__(self, store: MessageStore, keeper: Keeper | None) -> None:
        self._store = store
        self._keeper = keeper
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._keeper is None:
            return
        memory, identity = self._keeper.memory, self._store.identity
        known = memory.store
        is_refused = self._store.config.stopped is not None and not known.failure
        refused = known.refused + 1 if is_refused else 0
        memory.store = StoreNote(identity.name or known.name, identity.inode, known.failure, refused)
        self._store.when_flush_fails(self._note_failure)
        if is_refused:
            self._thread = threading.Thread(target=self._wait_for_disk, args=(refused,), name="mountctl-disk")
            self._thread.start()

    def _note_failure(self, error: FlushFailedError) -> None:
        assert self._keeper is not None
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ESTALE:
            return  # the store was moved, and no write was refused: the next server waits for it
        self._keeper.memory.store = self._keeper.memory.store._replace(failure=one_line(error))

    def _wait_for_disk(self, refused: int) -> None:
        """Test the disk once a second, then request a restart. The first pause grows with the number of refused
        servers."""
        assert self._keeper is not None
        pause = min(2.0 ** (refused - 1), LONGEST_REFUSED_SECONDS)
        while not self._ending.wait(pause):
            pause = REFUSED_SECONDS
            if self._store.disk_takes_writes():
                log.info("the disk takes writes again: the mount is restarted")
                with suppress(OSError):
                    os.kill(self._keeper.pid, RESTART_SIGNAL)
                pause = LONGEST_REFUSED_SECONDS

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()


def _facts(log_file: LogFile | None) -> dict[str, object]:
    """Fields of status.json about the serving process."""
    return {
        "log_file": None if log_file is None else str(log_file.path),
        "log_problem": None if log_file is None else log_file.problem,
    }


def prepare(request: MountRequest, handed_over: int) -> None:
    """Check the options and libfuse's version while another server serves. OptionError, HandoverError."""
    _config(request, Reporter())
    require_agreement(handed_over)


class Interrupts:
    """Signals before the mount is there: ENDING_SIGNALS interrupt the opening, and harmless ones are ignored. Later the
    serving loop handles them, and no signal interrupts the closing."""

    def __init__(self) -> None:
        self._is_opening = True
        for number in ENDING_SIGNALS:
            signal.signal(number, self._interrupt)
        _ignore(CATCHABLE_SIGNALS - CRASHES - {*ENDING_SIGNALS, signal.SIGHUP})

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_opening:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Stop interrupting: the mount is there."""
        self._is_opening = False


def _ignore(numbers: Iterable[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


class Hangups:
    """A thread for SIGHUP: it reopens the log file and reads the store's retention again. In the foreground of a
    terminal SIGHUP means that the terminal is gone, so the mount ends."""

    def __init__(self, log_file: LogFile | None) -> None:
        self.store: MessageStore | None = None
        """The open store; None before the opening."""
        self._log_file = log_file
        self._on_terminal = log_file is None and os.isatty(sys.stderr.fileno())  # later it may be gone
        threading.Thread(target=self._run, name="mountctl-hangups", daemon=True).start()

    def _run(self) -> None:
        while True:
            signal.sigwait({signal.SIGHUP})
            try:
                self._answer()
            except Exception as error:  # after any error the next SIGHUP is still handled
                is_foreseen = isinstance(error, StoreError | OSError)
                log.error("SIGHUP: %s", one_line(error), exc_info=not is_foreseen)

    def _answer(self) -> None:
        if self._log_file is not None:
            self._log_file.use()
            if self._log_file.problem is not None:
                log.error("SIGHUP: the log goes on where it was: %s", self._log_file.problem)
            else:
                log.info("SIGHUP: the log goes on in %s", self._log_file.path)
        elif self._on_terminal:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self.store is not None:
            log.info("SIGHUP: retention is %s", _retention_in_words(self.store.reread_retention()))


def _config(request: MountRequest, reporter: Reporter) -> StoreConfig:
    config = StoreConfig(
        mode=OpenMode(request.mode),
        flush=FlushPolicy(sync=request.sync_flush),
        cache=request.cache,
        progress=_progress(reporter),
    )
    if unknown := request.settings.passed_over:
        log.info("broker.conf: ignored %s", ", ".join(unknown))
    settings = request.settings
    if request.has_replica:
        settings = settings.without({MASTER, CONTROLLER, *MASTER_NAMES})  # these are the replica's
    return settings.applied_to(config)


def _serve_options(request: MountRequest) -> ServeOptions:
    options = ServeOptions(
        allow_other=request.allow_other, mount_options=request.kernel_options, parquet=request.parquet
    )
    if request.follow_interval_ms is not None:
        options = replace(options, follow_interval_ms=request.follow_interval_ms)
    return options if request.append_mode is None else replace(options, append_mode=request.append_mode)


def _progress(reporter: Reporter) -> Callable[[RecoveryProgress], None]:
    """Reports recovery's progress, often to the waiting command, rarely to the log."""

    def to_log(stage: str, done: int, total: int) -> None:
        log.info("%s: %s of %s", stage, human_size(done), human_size(total))

    def to_command(stage: str, done: int, total: int) -> None:
        reporter.tell(Report("progress", stage, done=done, total=total))

    logged, shown = throttled(to_log, LOG_INTERVAL_SECONDS), throttled(to_command, SHOW_INTERVAL_SECONDS)

    def progress(now: RecoveryProgress) -> None:
        logged(now.stage, now.done_bytes, now.total_bytes)
        shown(now.stage, now.done_bytes, now.total_bytes)

    return progress


def _log_opening(store: MessageStore) -> None:
    found = store.recovery
    if not found.clean:
        log.warning("the store was not closed by its last writer: it was recovered")
    if store.config.stopped is not None:
        log.error("the store takes no messages: %s", store.read_only_reason)
    log.info(
        "opened in %s: %s of log read, %s of torn tail cut, %d damaged ranges",
        human_seconds(found.seconds),
        human_size(found.scanned_bytes),
        human_size(found.cut_bytes),
        len(found.damaged),
    )
    if found.damaged:
        ranges = ", ".join(map(str, found.damaged[:10])) + (" ..." if len(found.damaged) > 10 else "")
        log.error("the log is damaged at physical offset %s: messages there read as an I/O error", ranges)
    if store.mode is OpenMode.WRITE:
        log.info("retention is %s", _retention_in_words(store.retention))
    for name in found.rebuilt:
        log.info("rebuilt: %s", name)
    for note in found.notes:
        log.warning("%s", note)
    if store.queues_derived is not None and store.mode is OpenMode.READ_ONLY:
        log.info("queues: derived from the log: %s", store.queues_derived)
    for sentence in store.not_shown:
        log.warning("%s", sentence)


def _ready(
    request: MountRequest, store: MessageStore, reporter: Reporter, interrupts: Interrupts, keeper: Keeper | None
) -> None:
    interrupts.end()
    log.info("%s is mounted at %s", request.store, request.mountpoint)
    if reporter.is_heard:
        reporter.tell(Report("ready", "\n".join(islice(not_served(store), MOST_REFUSED))))
    reporter.close()
    tell_systemd("READY=1" if keeper is None else f"MAINPID={keeper.pid}\nREADY=1")


def not_served(store: MessageStore) -> Iterator[str]:
    """Sentences about parts of the store that the disk keeps from being served. Of a store with more than
    MOST_LOOKED_AT queues these are not looked at: that would read each queue's files before anybody asks for one."""
    if store.mode is OpenMode.WRITE and store.read_only_reason:
        yield f"the store is only read: {' '.join(store.read_only_reason.split())}"
    if damaged := store.recovery.damaged:
        yield f"{plural(len(damaged), 'place')} in the log can't be read (see mountctl check)"
    if len(store.topics()) > MOST_LOOKED_AT or sum(map(len, store.queues_by_topic().values())) > MOST_LOOKED_AT:
        return
    try:
        refused = [queue for queue in store.queue_states() if queue.refused is not None]
    except (StoreError, OSError) as error:
        yield f"the queues can't be looked at: {one_line(error)}"
        return
    for queue in refused:
        assert queue.refused is not None
        yield f"not served: {queue.topic}/{queue.queue}: {one_line(queue.refused)}"


def _retention_in_words(retention: Retention | None) -> str:
    return "off" if retention is None else f"on: {retention}"
