"""Replica: the live copy of a remote broker's store, by RocketMQ's own replication.

    master ─frames─► assembly ─whole records─► receiver: log ─► fdatasync ─► acknowledgement
       │                                                └► queues, index ─► news to followers
       └─remoting──► topics, groups, offsets ─► STORE/config

A group is what has come since the last one; one sync brings it to disk, then it is acknowledged. Queues and index get
it at once, or, of groups that come within DISPATCH_SECONDS, together with the next ones.

The port tells nothing about the master's log, so each connection begins OVERLAP_BYTES before the copy's end, and what
comes is compared with what is there. Nothing of the copy is ever changed: a master whose log does not continue it is
refused.

A broker with a controller may lose its newest bytes when another one becomes the master. It tells up to where its log
is confirmed, so safe from that: only this is stored. Its epochs are stored before bytes of them.

`STORE/fsstore/replica.json` marks the store as a replica from the first moment on, and has its state each second.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from engine.errors import (
    ConnectionEndedError,
    MasterRefusedError,
    OptionError,
    ProtocolError,
    ReadError,
    RemotingError,
    ReplicationError,
    StoreFullError,
)
from engine.files.news import News
from engine.files.paths import read_file, store_root
from engine.files.periodic import PeriodicThread
from engine.open.geometry import layout_of
from engine.replication.assembly import RecordAssembly
from engine.replication.epochs import Epoch, merged, read_epochs, shared_end, write_epochs
from engine.replication.remoting import RemotingClient, Request
from engine.replication.wire import (
    Frame,
    FrameDecoder,
    decode_handshake,
    encode_epoch_report,
    encode_handshake,
    encode_report,
)
from engine.settings.broker_options import with_options
from engine.settings.config import (
    COMMIT_LOG_BYTES,
    CONSUME_QUEUE_BYTES,
    EMBEDDED_SIZES,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    OpenMode,
    StoreConfig,
)
from engine.settings.config_file import MOST_BYTES, parse_config, replace_config
from engine.settings.notes import ReplicaNote, ReplicaState, read_replica_note, write_replica_note
from engine.store import MessageStore

if TYPE_CHECKING:
    from engine.files.disk import Disk
    from engine.files.layout import StoreLayout
    from engine.replication.address import Address
    from engine.replication.remoting import BrokerFacts

OVERLAP_BYTES = 64 << 10
"""Bytes before the copy's end that each connection compares."""

RECEIVE_BYTES, GROUP_BYTES = 1 << 20, 8 << 20
"""Bytes that one call receives; bytes after which a group ends, even if more are there."""

FEW_BYTES = 16 << 10
"""A call that receives fewer has left none: a group ends with it."""

HELD_BYTES = 64 << 20
"""Bytes that are held in memory until they are confirmed."""

FIRST_BYTE = 1
"""The request for a whole log: 0 asks for the newest file, and a log's first byte is that of a record's size: 0."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""Pause before the master is asked again; it doubles with each failure."""

NOTE_MS, SETTINGS_MS = 1_000, 5_000
"""Intervals of the note in replica.json, and of the requests for settings."""

TICK_SECONDS = 0.25
"""Time after which a wait for bytes looks whether the process is to end."""

DISPATCH_SECONDS = 0.004
"""Interval in which queues and index get records at most, as a mount that follows looks for them at most."""

COPIED_SETTINGS = (
    COMMIT_LOG_BYTES,
    CONSUME_QUEUE_BYTES,
    INDEX_SLOTS,
    INDEX_ENTRIES,
    "messageDelayLevel",
    "enableMultiDispatch",
)
"""Settings of the master that a new copy takes over: with them, a broker with the master's broker.conf can open it."""

NO_REMOTING = "topics and groups: the master's --remoting is not known"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """A replica's master: its `haListenPort`, and its `listenPort`, None if that can't be reached. Without a word for
    `heartbeat_seconds` a report is sent; a master without a word for `silence_seconds` is connected to anew.
    `has_controller` is asked of one with a listenPort."""

    master: Address
    remoting: Address | None
    heartbeat_seconds: float = 5.0
    silence_seconds: float = 20.0
    has_controller: bool = False


def replicate(
    path: Path | str,
    options: ReplicaOptions,
    config: StoreConfig,
    stopping: threading.Event,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Keep the store at `path` a copy of its master until `stopping` is set. It is made if nothing is there, with the
    master's sizes of files. `started` is called once it is open. With `config.master` it serves replicas of its own.

    MasterRefusedError: the master's log does not continue the copy; RemotingError, ProtocolError, OSError: it did not
    answer before the copy was made; OptionError, OpenError, FlushFailedError.
    """
    if config.master is not None and config.master.sync:
        raise OptionError(
            "brokerRole", "nothing is published to a copy, so nothing waits for its replicas: ASYNC_MASTER"
        )
    layout = layout_of(store_root(path), config)
    known = read_replica_note(layout.replica_note)
    if known is not None:
        settings = known.settings
    elif options.remoting is not None:
        with RemotingClient(options.remoting) as client:
            settings = {name: value for name, value in client.settings().items() if name in COPIED_SETTINGS}
        _require_sizes(config, settings)
    else:
        settings = {}
    config = replace(with_options(config, settings), mode=OpenMode.WRITE, is_replica=True, transient_pool_buffers=0)
    with ExitStack() as stack:
        store = stack.enter_context(MessageStore.open(path, config, create=True))
        replica = _Replica(store, layout, options, known or ReplicaNote(settings=settings))
        stack.callback(replica.close)
        started()
        replica.run(stopping)


def _require_sizes(config: StoreConfig, settings: Mapping[str, str]) -> None:
    """OptionError: a size was given that is not the master's."""
    size, given = settings.get(COMMIT_LOG_BYTES, ""), config.sizes
    if given is not None and str(given.commit_log_bytes) not in (size, str(EMBEDDED_SIZES.commit_log_bytes)):
        raise OptionError(COMMIT_LOG_BYTES, f"the master's files have {size} bytes, not {given.commit_log_bytes}")


class _Replica:
    """A replica's process: connections to its master, one after another. Thread safety: `run` has one caller."""

    def __init__(self, store: MessageStore, layout: StoreLayout, options: ReplicaOptions, known: ReplicaNote) -> None:
        """`known` is the note of an earlier process."""
        self.store = store
        self.options = options
        self.receiver = store.receiver()
        self.peer = str(options.master)
        self._layout = layout
        self._settings = _Settings(layout, options.remoting, store.config.disk)
        self._log_begin = 0
        """Physical offset at which the master's log begins, as far as it is known."""
        self._has_differed = False
        self._told_end = -1
        """Physical offset up to which followers were told of the log."""
        self._lock = threading.Lock()
        self._note = replace(
            known,
            master=self.peer,
            remoting=str(options.remoting or ""),
            state=ReplicaState.CONNECTING,
            reason="",
            lacks=NO_REMOTING if options.remoting is None else "",
            physical_end=self.receiver.end,
            newest_ms=self.receiver.newest_ms,
            received_bytes=0,
            connections=0,
            refused_frames=0,
            epoch=-1,
            confirmed_end=-1,
        )
        self._write_note(durably=True)
        self._news = News(layout.replica_news)
        self._threads = (
            PeriodicThread("fsstore-replica-note", NOTE_MS, self._tell, failed=self._thread_failed),
            PeriodicThread("fsstore-replica-settings", SETTINGS_MS, self._look_again, failed=self._thread_failed),
        )
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Note the end of the process. OSError."""
        for thread in self._threads:
            thread.close()
        self._news.close()
        if self._note.state is not ReplicaState.REFUSED:
            self.tell(state=ReplicaState.STOPPED)
        self._write_note(durably=True)

    def run(self, stopping: threading.Event) -> None:
        """Connect again and again until `stopping`. MasterRefusedError, FlushFailedError."""
        pause = FIRST_PAUSE_SECONDS
        while not stopping.is_set():
            before = self.receiver.end
            try:
                self._connect_once(stopping)
                continue
            except MasterRefusedError as error:
                self.tell(state=ReplicaState.REFUSED, reason=error.what)
                raise
            except StoreFullError as error:
                self._interrupted(ReplicaState.NO_SPACE, error)
            except (ReplicationError, ReadError, OSError) as error:
                self._interrupted(ReplicaState.CONNECTING, error)
            pause = FIRST_PAUSE_SECONDS if self.receiver.end > before else min(pause * 2, LONGEST_PAUSE_SECONDS)
            stopping.wait(pause)

    def _interrupted(self, state: ReplicaState, error: Exception) -> None:
        if str(error) != self._note.reason:
            log.warning("replication is interrupted: %s", error)
        refused = self._note.refused_frames + isinstance(error, ProtocolError)
        self.tell(state=state, reason=str(error), refused_frames=refused)

    def _connect_once(self, stopping: threading.Event) -> None:
        facts = self._settings.look()
        if facts is not None:
            self._require_same_broker(facts)
        self.tell(connections=self._note.connections + 1)
        has_controller = self.options.has_controller if facts is None else facts.has_controller
        if facts is not None:
            log_begin = facts.log_begin
        else:
            log_begin = 0 if has_controller or self.receiver.end else self._find_begin()
        with self._connection() as connection:
            _Session(connection, self, log_begin, has_controller).run(stopping)

    def _connection(self) -> socket.socket:
        try:
            connection = socket.create_connection(self.options.master, self.options.silence_seconds)
        except OSError as error:
            raise ConnectionEndedError(self.peer, f"it can't be made: {error.strerror or error}") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _find_begin(self) -> int:
        """The begin of the log, a physical offset, of a master that can't be asked. The master answers a request for
        an existing offset with bytes, for any other with heartbeats, and for 0 with its newest file.
        ReplicationError, OSError."""
        if self._answer_to(FIRST_BYTE).data or not (newest := self._answer_to(0)).data:
            return 0
        file_bytes = self.store.sizes.commit_log_bytes
        missing, there = 0, newest.physical_offset // file_bytes
        while there - missing > 1:
            middle = (missing + there) // 2
            if self._answer_to(middle * file_bytes).data:
                there = middle
            else:
                missing = middle
        return there * file_bytes

    def _answer_to(self, request: int) -> Frame:
        """The first frame of a connection. ReplicationError, OSError."""
        decoder, deadline = FrameDecoder(self.peer), time.monotonic() + self.options.silence_seconds
        with self._connection() as connection:
            connection.sendall(encode_report(request))
            while (data := connection.recv(RECEIVE_BYTES)) and time.monotonic() < deadline:
                if found := decoder.feed(data):
                    return found[0]
        raise ConnectionEndedError(self.peer, f"there was no answer to a request for the log from {request} on")

    def _require_same_broker(self, facts: BrokerFacts) -> None:
        """MasterRefusedError: another broker answers, or its log does not continue the copy. ProtocolError."""
        note, end = self._note, self.receiver.end
        known, found = (note.cluster, note.broker), (facts.cluster, facts.broker)
        own_bytes = self.store.sizes.commit_log_bytes
        if any(known) and known != found:
            self.refuse(f"it is a copy of broker {'/'.join(known)}, and {'/'.join(found)} answers")
        if facts.file_bytes != own_bytes:
            sizes = f"{own_bytes:,} bytes, the master's {facts.file_bytes:,} ({COMMIT_LOG_BYTES})"
            self.refuse(f"the copy's log has files of {sizes}")
        if facts.log_begin % facts.file_bytes:
            raise ProtocolError(self.peer, f"its log begins at {facts.log_begin}, where no file does")
        if facts.log_end < end:
            self.refuse(f"the master's log ends at {facts.log_end}, the copy's at {end}: it was cut, or made anew")
        self._note_facts(facts)
        self.require_no_gap()
        if known != found:
            self.tell(cluster=facts.cluster, broker=facts.broker)
            self._write_note(durably=True)

    def agree_on(self, epochs: tuple[Epoch, ...], log_end: int) -> None:
        """Take the master's epochs over. ProtocolError, MasterRefusedError: by them, the copy has what its log has not;
        ConfigFileError, OSError."""
        path, end = self._layout.epochs, self.receiver.end
        own = read_epochs(path)
        shared = shared_end(own, end, epochs, log_end)
        if own and 0 < end != shared:
            same = "no epoch is the same" if shared is None else f"epochs are the same up to {shared}"
            self.note_difference(f"the copy ends at {end}, and {same}: they diverged")
        known = merged(own, epochs)
        if known != own:
            write_epochs(path, known, self.store.config.disk)
        self.tell(epoch=epochs[-1].number if epochs else -1)

    def require_no_gap(self) -> None:
        """MasterRefusedError: the master has deleted what follows the copy."""
        end = self.receiver.end
        if 0 < end < self._log_begin:
            self.refuse(f"the master's log begins at {self._log_begin} by now, the copy's ends at {end}: a gap")

    def refuse(self, what: str) -> NoReturn:
        """MasterRefusedError."""
        raise MasterRefusedError(self._layout.root, self.peer, what)

    def note_difference(self, what: str) -> NoReturn:
        """ProtocolError: the bytes may have changed on their way; MasterRefusedError: they differ again."""
        if self._has_differed:
            self.refuse(what)
        self._has_differed = True
        raise ProtocolError(self.peer, what)

    def forget_difference(self) -> None:
        """The copy's newest bytes are the master's."""
        self._has_differed = False

    # what is told

    def tell(self, **changes: Any) -> None:
        """Change fields of the note."""
        with self._lock:
            self._note = replace(self._note, **changes)

    def _note_facts(self, facts: BrokerFacts) -> None:
        self._log_begin = facts.log_begin
        master_end = max(facts.log_end, self._note.master_end)
        self.tell(lacks=self._settings.refused, master_end=master_end, heard_ms=self.store.config.clock())

    def note_group(self, received_bytes: int, newest_ms: int, master_end: int, confirmed_end: int) -> None:
        """`received_bytes` of log came; what is whole of them is on disk. The master's log reaches `master_end`, and is
        confirmed up to `confirmed_end`; -1: it has no controller."""
        end, note = self.receiver.end, self._note
        master_end = max(master_end, note.master_end)
        self.tell(
            state=ReplicaState.IN_SYNC if end >= master_end else ReplicaState.CATCHING_UP,
            reason="",
            physical_end=end,
            newest_ms=newest_ms or note.newest_ms,
            received_bytes=note.received_bytes + received_bytes,
            master_end=master_end,
            confirmed_end=confirmed_end,
            heard_ms=self.store.config.clock(),
        )

    @property
    def is_dispatch_due(self) -> bool:
        """Whether the log has records that readers do not see yet."""
        return self.receiver.end != self._told_end

    def dispatch(self) -> None:
        """Show readers what is in the log. StoreFullError, OSError."""
        end = self.receiver.end
        self.receiver.dispatch()
        if end != self._told_end:
            self._told_end = end
            self._news.tell()

    def _look_again(self) -> None:
        if self._note.state not in (ReplicaState.IN_SYNC, ReplicaState.CATCHING_UP):
            return  # the next connection looks
        try:
            facts = self._settings.look()
        except (ReplicationError, OSError) as error:
            self.tell(lacks=f"news of topics and groups: {error}")
            return
        if facts is not None:
            self._note_facts(facts)

    def _tell(self) -> None:
        with suppress(OSError):  # a full disk: the note gets old
            self._write_note(durably=False)

    def _write_note(self, *, durably: bool) -> None:
        serves = None if self.store.config.master is None else self.store.master_figures()
        self.tell(noted_ms=self.store.config.clock(), serves=serves)
        write_replica_note(self._layout.replica_note, self._note, self.store.config.disk, durably=durably)

    def _thread_failed(self, error: Exception) -> None:
        self.tell(lacks=f"a thread of the replica ended: {error!r}")


class _Session:
    """One connection. Thread safety: one caller."""

    def __init__(self, connection: socket.socket, replica: _Replica, log_begin: int, has_controller: bool) -> None:
        """The master's log begins at the physical offset `log_begin`; 0: so it does, or that is not known."""
        self._connection = connection
        self._replica = replica
        self._receiver = receiver = replica.receiver
        self._options = replica.options
        self._peer = replica.peer
        self._has_controller = has_controller
        self._decoder = FrameDecoder(self._peer, has_epochs=has_controller)
        self._epochs = frozenset[Epoch]()
        self._has_log = receiver.end > 0
        if self._has_log:
            log_begin = max(log_begin, replica.store.log_begin, receiver.end - OVERLAP_BYTES)
        self._begin = log_begin or (0 if has_controller and not self._has_log else FIRST_BYTE)
        self._next = self._begin if self._has_log else -1
        """Physical offset at which the next frame has to begin; -1: where the log answers."""
        self._assembly = RecordAssembly(self._peer, receiver.end, replica.store.sizes.commit_log_bytes)
        self._confirmed_end = receiver.end
        self._held = deque[Frame]()
        """Frames received and not confirmed."""
        self._is_compared = False
        """Whether the master has the copy's newest bytes."""
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._began_at = self._heard_at = self._reported_at = time.monotonic()
        self._dispatches_at = 0.0

    def run(self, stopping: threading.Event) -> None:
        """Receive until `stopping`. ReplicationError, StoreFullError, FlushFailedError, OSError."""
        self._replica.dispatch()
        if self._has_controller:
            self._shake_hands()
        self._report(self._begin)
        try:
            while not stopping.is_set():
                data, is_open = self._receive()
                if data:
                    self._heard_at = time.monotonic()
                    self._take(self._decoder.feed(data))
                if not is_open:
                    raise ConnectionEndedError(self._peer, "it closed it")
                self._dispatch_if_due()
                self._look_at_clock()
        finally:
            self._replica.dispatch()

    def _dispatch_if_due(self) -> None:
        """Dispatch what has come, unless the last time was a moment ago."""
        now = time.monotonic()
        if self._replica.is_dispatch_due and now >= self._dispatches_at:
            self._dispatches_at = now + DISPATCH_SECONDS
            self._replica.dispatch()

    def _shake_hands(self) -> None:
        """Learn the master's epochs. ReplicationError, OSError."""
        self._connection.sendall(encode_handshake())
        received, deadline = b"", self._began_at + self._options.silence_seconds
        while (answer := decode_handshake(received, self._peer)) is None:
            self._connection.settimeout(max(deadline - time.monotonic(), TICK_SECONDS))
            data = self._connection.recv(RECEIVE_BYTES)
            if not data or time.monotonic() > deadline:
                raise ConnectionEndedError(self._peer, "it did not answer the handshake")
            received += data
        log_end, epochs = answer
        self._replica.agree_on(epochs, log_end)
        self._epochs = frozenset(epochs)

    def _look_at_clock(self) -> None:
        now, silence = time.monotonic(), self._options.silence_seconds
        self._replica.require_no_gap()
        if now - self._heard_at >= silence:
            raise ConnectionEndedError(self._peer, f"it was silent for {silence:g} s")
        if self._begin > FIRST_BYTE and not self._is_compared and now - self._began_at >= silence:
            raise ConnectionEndedError(self._peer, f"in {silence:g} s it sent nothing from {self._begin} on")
        if now - self._reported_at >= self._options.heartbeat_seconds:
            self._report(self._receiver.end if self._is_compared else self._begin)

    def _receive(self) -> tuple[bytearray, bool]:
        """The bytes received, at most about GROUP_BYTES, and whether more may come. Waits for the first byte until a
        dispatch is due, up to TICK_SECONDS. OSError."""
        connection, buffer, received = self._connection, self._buffer, bytearray()
        wait_seconds = self._dispatches_at - time.monotonic() if self._replica.is_dispatch_due else TICK_SECONDS
        connection.settimeout(min(max(wait_seconds, 0.0), TICK_SECONDS))
        while len(received) < GROUP_BYTES:
            try:
                size = connection.recv_into(buffer)
            except (TimeoutError, BlockingIOError):
                break
            if not size:
                return received, False
            received += buffer[:size]
            if size < FEW_BYTES:
                break
            connection.settimeout(0)
        return received, True

    def _take(self, frames: list[Frame]) -> None:
        """Compare, store and acknowledge what frames bring."""
        received = newest_ms = 0
        for frame in frames:
            received += len(frame.data)
            if frame.physical_offset >= 0:
                self._require_next(frame)
                for confirmed in self._confirm(frame):
                    self._add(confirmed)
        pieces = self._assembly.take()
        for piece in pieces:
            self._receiver.append(piece.data, piece.physical_offset, piece.store_time_ms)
            newest_ms = piece.store_time_ms or newest_ms
        self._dispatch_if_due()
        has_brought = bool(received or pieces)  # a frame without bytes may confirm those of an earlier one
        if has_brought:
            self._receiver.sync()
        confirmed_end = self._confirmed_end if self._has_controller else -1
        self._replica.note_group(received, newest_ms, max(self._next, 0), confirmed_end)
        if self._is_compared and has_brought:
            self._report(self._receiver.end)

    def _require_next(self, frame: Frame) -> None:
        """ProtocolError: the frame does not go on from the last one; ConnectionEndedError: its epoch is a new one."""
        start = frame.physical_offset
        if self._next < 0 and frame.data:  # the copy is empty
            begin, file_bytes = start - (start == FIRST_BYTE), self._replica.store.sizes.commit_log_bytes
            if begin % file_bytes:
                raise ProtocolError(self._peer, f"its log begins at {begin}, where no file does")
            self._assembly = RecordAssembly(self._peer, begin, file_bytes)
            self._assembly.add(begin, bytes(start - begin))
            self._next = start
        if self._next not in (-1, start):
            raise ProtocolError(self._peer, f"a frame begins at {start}, not at {self._next}")
        if frame.epoch is not None and frame.epoch not in self._epochs:
            number, begin = frame.epoch
            raise ConnectionEndedError(self._peer, f"its epoch {number}, which begins at {begin}, is a new one")
        self._next = frame.end if frame.data else self._next

    def _confirm(self, frame: Frame) -> Iterator[Frame]:
        """The frames, or parts of them, that are confirmed once `frame` has come. ConnectionEndedError: too much is
        not."""
        self._held.append(frame)
        end = self._confirmed_end = max(self._confirmed_end, frame.confirmed_end)
        while self._held and self._held[0].physical_offset <= end:
            one = self._held.popleft()
            known = end - one.physical_offset
            if known < len(one.data):
                self._held.appendleft(replace(one, physical_offset=end, data=one.data[known:]))
                yield replace(one, data=one.data[:known])
                break
            yield one
        if self._next - end > HELD_BYTES:
            raise ConnectionEndedError(self._peer, f"{self._next - end:,} bytes of its log are not confirmed")

    def _add(self, frame: Frame) -> None:
        """Compare the part of a frame that the copy has; the rest is new. MasterRefusedError: they differ."""
        start, end = frame.physical_offset, self._assembly.end
        known = min(max(end - start, 0), len(frame.data)) if self._has_log else 0
        if known and self._receiver.bytes_at(start, known) != frame.data[:known]:
            self._replica.note_difference(f"its log has other bytes from {start} to {start + known}: they diverged")
        if frame.end >= end and not self._is_compared:
            self._is_compared = True
            self._replica.forget_difference()
        if len(frame.data) > known:
            self._assembly.add(start + known, frame.data[known:])

    def _report(self, physical_offset: int) -> None:
        self._connection.settimeout(self._options.silence_seconds)
        encode = encode_epoch_report if self._has_controller else encode_report
        self._connection.sendall(encode(physical_offset))
        self._reported_at = time.monotonic()


class _Settings:
    """The master's settings, which its log does not contain, as files below config/. Thread safety: any thread."""

    def __init__(self, layout: StoreLayout, remoting: Address | None, disk: Disk) -> None:
        self._remoting = remoting
        self._disk = disk
        self._lock = threading.Lock()
        self.refused = ""
        """A sentence about the master's refusal at the last look; empty: none."""
        self._files = {
            Request.GET_ALL_TOPIC_CONFIG: layout.topics,
            Request.GET_ALL_CONSUMER_OFFSET: layout.consumer_offsets,
            Request.GET_ALL_DELAY_OFFSET: layout.config / "delayOffset.json",
            Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: layout.config / "subscriptionGroup.json",
        }

    def look(self) -> BrokerFacts | None:
        """Ask the master about itself, and write the settings that have changed; None: it has no remoting. A master may
        refuse some: see `refused`. RemotingError, ProtocolError, OSError."""
        if self._remoting is None:
            return None
        refused = []
        with self._lock, RemotingClient(self._remoting) as client:
            facts = client.facts()
            for request, path in self._files.items():
                try:
                    text = client.call(request)
                except RemotingError as error:
                    refused.append(f"{path.name}: {error}")
                else:
                    self._keep(path, text)
        self.refused = "; ".join(refused)
        return facts

    def _keep(self, path: Path, text: bytes) -> None:
        try:
            parse_config(text.decode())
        except ValueError as error:
            raise ProtocolError(str(self._remoting), f"its {path.name} can't be understood: {error}") from error
        try:
            known = read_file(path, MOST_BYTES)
        except (FileNotFoundError, ValueError):
            known = b""
        if known != text:
            replace_config(path, [text], self._disk)
