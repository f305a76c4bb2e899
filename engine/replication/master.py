"""Master: serves a log to RocketMQ's replicas and to ours, and answers what a replica asks beside it.

    haListenPort    the log (engine/replication/wire.py); acknowledgements come back
    listenPort      six read-only requests (engine/replication/answers.py); any other one is refused

One thread serves all connections. It sends what is readable, so whole records, from the mapped log without a copy, and
waits for no replica: a slow one keeps no writer waiting, nor retention, nor another replica.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from engine.errors import ListenError, NotReplicatedError, ReadError, ReplicationError
from engine.events import StoreListener
from engine.record.kernel.files import read_through
from engine.replication.access import access_problem, plain_ends
from engine.replication.acks import Acknowledgements
from engine.replication.address import Address
from engine.replication.remoting import MAX_REQUEST_BYTES, Command, CommandDecoder
from engine.replication.wire import ReportDecoder, encode_frame_header
from engine.results import MasterFigures, ReplicaFigures
from engine.settings.config import Clock, MasterConfig

if TYPE_CHECKING:
    from engine.log.commit_log import CommitLog
    from engine.replication.answers import Answers

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Longest interval between two looks at heartbeats and silent connections."""
GATHER_SECONDS = 0.025
"""Time for which puts and acknowledgements are gathered, unless a writer waits for replicas: the thread takes the
interpreter from the writers each time that it wakes."""
IDLE_SECONDS = 120.0
"""Silence after which a connection to the port of requests is closed, as by a broker."""
MOST_CONNECTIONS = 64
"""Limit of the connections to each port."""
TURN_BYTES = 4 << 20
"""Bytes that a replica is sent before the others have their turn."""
GATHERED_BYTES, GATHERED_FRAMES = 1 << 20, 256
"""Limits of what is sent by one system call."""
READ_BYTES = 64 << 10
REPEAT_SECONDS = 60.0
"""Time for which the same refusal of the same host is not logged again."""
MOST_REMEMBERED = 256
"""Limit of the refusals that are remembered for that."""
FIRST_BYTE = 1
"""The request for a whole log by a replica that can't ask where the log begins."""


class Master(StoreListener):
    """Serves one log, from `start` to `close`. Thread safety: any thread."""

    def __init__(self, commit_log: CommitLog, answers: Answers, config: MasterConfig, clock: Clock) -> None:
        """Listen. ListenError."""
        self._log = commit_log
        self._answers = answers
        self._config = config
        self._clock = clock
        self._tick_seconds = min(TICK_SECONDS, config.heartbeat_interval_ms / 1000)
        self._next_tick = 0.0
        self._has_news = self._is_urgent = self._is_asleep = self._is_closing = False
        self._refusals = _Refusals()
        self._replicas: list[_Replica] = []
        self._requesters: list[_Requester] = []
        self._wakeup = _Wakeup()
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[socket.socket, Callable[[int], None]] = {}
        self.acks: Acknowledgements | None = None
        """SYNC_MASTER: the writers that wait for replicas."""
        if config.sync:
            self.acks = Acknowledgements(config.in_sync_replicas, config.timeout_ms, self._hurry)
        self._thread = threading.Thread(target=self._run, name="fsstore-master", daemon=True)
        try:
            for port, connected in ((config.ha_port, self._replica), (config.remoting_port, self._requester)):
                listener = _listening(Address(config.address, port))
                self._listeners[listener] = partial(self._accept, listener, connected)
            self._addresses = [str(Address(*listener.getsockname()[:2])) for listener in self._listeners]
        except ListenError:
            self._end()
            raise

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and answer the writers that wait for replicas with StoreClosedError. Calling it twice
        is harmless."""
        self._is_closing = True
        self._wakeup.wake()
        if self._thread.ident is None:
            self._end()
        else:
            self._thread.join()

    def figures(self) -> MasterFigures:
        """The figures of the master and its replicas."""
        config, acks = self._config, self.acks
        replicas = tuple(replica.figures(self._clock()) for replica in list(self._replicas))
        return MasterFigures(
            role=str(config),
            address=self._addresses[0],
            remoting_address=self._addresses[1],
            connected=len(replicas),
            in_sync=sum(one.is_in_sync for one in replicas),
            in_oldest_file=sum(one.is_in_oldest_file for one in replicas),
            needed=config.in_sync_replicas if config.sync else 0,
            confirmed_end=0 if acks is None else acks.confirmed_end,
            timeouts=0 if acks is None else acks.timeouts,
            refused=self._refusals.count,
            last_refusal=self._refusals.last,
            replicas=replicas,
        )

    # news

    def appended(self, topic: str, queue: int) -> None:
        """Have new messages sent soon: one wake-up for all puts until the thread is awake."""
        self._has_news = True
        if self._is_asleep:
            self._is_asleep = False
            self._wakeup.wake()

    def _hurry(self) -> None:
        """A writer waits for replicas."""
        self._has_news = self._is_urgent = True
        self._wakeup.wake()

    # the thread

    def _run(self) -> None:
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._wakeup.clear)
        try:
            while not self._is_closing:
                self._turn()
                self._pause()
        except Exception:
            log.exception("replicas are not served any more")
            if self.acks is not None:
                needed = self._config.in_sync_replicas
                self.acks.close(NotReplicatedError(self._log.readable_end, 0, needed, 0.0))
        finally:
            self._end()

    def _end(self) -> None:
        for connection in (*self._replicas, *self._requesters):
            connection.close()
        for listener in self._listeners:
            listener.close()
        self._replicas.clear()
        self._requesters.clear()
        if self.acks is not None:
            self.acks.close()
        self._selector.close()
        self._wakeup.close()

    def _turn(self) -> None:
        """Sleep until a socket is ready, there is news, or something is due; then do it."""
        for key, events in self._selector.select(self._seconds_to_sleep()):
            key.data(events)
        self._is_asleep = False
        if self._has_news:
            self._has_news = self._is_urgent = False
            for replica in list(self._replicas):
                self._serve(replica, replica.send)
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + self._tick_seconds
            self._tick(now)

    def _pause(self) -> None:
        """Let puts and acknowledgements gather, if nothing is urgent."""
        is_waited_for = self._is_urgent or (self.acks is not None and self.acks.is_waited_for)
        if self._replicas and not is_waited_for and not any(replica.is_behind for replica in self._replicas):
            self._wakeup.wait(GATHER_SECONDS)

    def _seconds_to_sleep(self) -> float:
        seconds = self._next_tick - time.monotonic()
        if self.acks is not None and (next_late := self.acks.expire()) is not None:
            seconds = min(seconds, next_late)
        self._is_asleep = bool(self._replicas)
        if self._has_news:  # a put may have found the thread awake
            self._is_asleep = False
            return 0.0
        return max(seconds, 0.0)

    def _tick(self, now: float) -> None:
        for connection in (*self._replicas, *self._requesters):
            self._serve(connection, partial(connection.tick, now))
        for listener, accept in self._listeners.items():  # also one that had no descriptor left for a connection
            if listener not in self._selector.get_map():
                self._selector.register(listener, selectors.EVENT_READ, accept)

    # connections

    def _accept(self, listener: socket.socket, connected: Callable[[socket.socket, Address], None], _: int) -> None:
        try:
            connection, _ends = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            self._selector.unregister(listener)  # until the next tick
            self._refusals.note("a connection", f"it can't be accepted: {error.strerror}")
            return
        try:
            peer = Address(*plain_ends(connection)[0])
            problem = access_problem(connection, self._config.allow)
        except OSError:  # it has gone
            connection.close()
            return
        if problem is not None:
            self._refusals.note(peer.host, problem)
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected(connection, peer)

    def _replica(self, connection: socket.socket, peer: Address) -> None:
        if self._has_room(len(self._replicas), connection, peer):
            replica = _Replica(connection, peer, self._log, self._config)
            self._replicas.append(replica)
            self._watch(replica)

    def _requester(self, connection: socket.socket, peer: Address) -> None:
        if self._has_room(len(self._requesters), connection, peer):
            requester = _Requester(connection, peer, self._answers)
            self._requesters.append(requester)
            self._watch(requester)

    def _has_room(self, connections: int, connection: socket.socket, peer: Address) -> bool:
        if connections < MOST_CONNECTIONS:
            return True
        self._refusals.note(peer.host, f"there are {MOST_CONNECTIONS} connections already")
        connection.close()
        return False

    def _serve(self, connection: _Connection, work: Callable[[], None]) -> None:
        """Do a connection's work, then wait for its next event; or close it."""
        try:
            work()
        except ReplicationError as error:
            self._refusals.note(connection.peer.host, str(error))
        except _RefusedError as error:
            self._refusals.note(connection.peer.host, error.reason)
        except ReadError as error:
            self._refusals.note(connection.peer.host, f"the log can't be read for it: {error}")
        except (OSError, EOFError) as error:
            if connection.is_served:
                log.info("replica %s is gone: %s", connection.peer, error)
        except Exception:
            log.exception("a connection of %s was closed by a bug", connection.peer)
        else:
            self._watch(connection)
            self._note_acknowledged()
            return
        self._drop(connection)

    def _watch(self, connection: _Connection) -> None:
        """Wait for what a connection waits for."""
        known = self._selector.get_map().get(connection.socket)
        if known is None:
            work = partial(self._serve_events, connection)
            self._selector.register(connection.socket, connection.events, work)
        elif known.events != connection.events:
            self._selector.modify(connection.socket, connection.events, known.data)

    def _serve_events(self, connection: _Connection, events: int) -> None:
        if connection.socket.fileno() >= 0:  # else it was closed in this turn
            self._serve(connection, partial(connection.ready, events))

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.close()
        self._replicas = [one for one in self._replicas if one is not connection]
        self._requesters = [one for one in self._requesters if one is not connection]
        self._note_acknowledged()

    def _note_acknowledged(self) -> None:
        if self.acks is not None:
            self.acks.note([one.acknowledged_end for one in self._replicas if one.is_in_sync])


class _RefusedError(Exception):
    """A connection is closed for a `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Connection:
    """One client, with bytes that wait until its socket takes them. Thread safety: the master's thread.

    Methods raise OSError or EOFError when the client is gone, and _RefusedError or ReplicationError when it has to go.
    """

    is_served = False
    """Whether its end is worth a line in the log."""

    def __init__(self, connection: socket.socket, peer: Address) -> None:
        """Own the socket."""
        self.socket = connection
        self.peer = peer
        self._pending: list[memoryview | bytes] = []
        self.heard_s = self.wrote_s = time.monotonic()

    @property
    def events(self) -> int:
        """The events of the socket that it waits for."""
        raise NotImplementedError

    def ready(self, events: int) -> None:
        """The socket can be read or written."""
        if events & selectors.EVENT_READ:
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise EOFError("it closed the connection")
            self.heard_s = time.monotonic()
            self.received(data)
        if events & selectors.EVENT_WRITE:
            self.send()

    def received(self, data: bytes) -> None:
        """Take what the client sent."""
        raise NotImplementedError

    def send(self) -> None:
        """Send what there is, as far as the socket takes it."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Do what is due."""
        raise NotImplementedError

    def _push(self) -> bool:
        """Send pending bytes; returns whether the socket took all of them."""
        pending = self._pending
        try:
            sent = self.socket.sendmsg(pending)
        except BlockingIOError:
            return False
        self.wrote_s = time.monotonic()
        while pending and sent >= len(pending[0]):
            sent -= len(pending.pop(0))
        if pending:
            pending[0] = memoryview(pending[0])[sent:]
        return not pending

    def close(self) -> None:
        """Close the socket."""
        self._pending.clear()
        self.socket.close()


class _Replica(_Connection):
    """A replica: its first report says where to begin, each later one how far it has the log."""

    def __init__(self, connection: socket.socket, peer: Address, commit_log: CommitLog, config: MasterConfig) -> None:
        super().__init__(connection, peer)
        self._log = commit_log
        self._config = config
        self._reports = ReportDecoder(str(peer))
        self._begin = self._next = 0
        self._sent_bytes = 0
        self._is_cut = False
        """Whether its turn ended before everything was sent."""
        self.acknowledged_end = 0
        """Physical offset before which it has the log."""
        self._was_in_oldest_file = False

    @property
    def events(self) -> int:
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.is_behind else 0)

    @property
    def is_behind(self) -> bool:
        """Whether there is more to send as soon as its socket takes it."""
        return bool(self._pending) or self._is_cut

    @property
    def is_in_sync(self) -> bool:
        """Whether it has the log but for `max_gap_bytes`."""
        return self.is_served and self._log.readable_end - self.acknowledged_end <= self._config.max_gap_bytes

    @property
    def _sent_end(self) -> int:
        """Physical offset before which the socket has taken the log."""
        return self._next - sum(map(len, self._pending[::-2]))  # headers and data in turn, data last

    def received(self, data: bytes) -> None:
        for end in self._reports.feed(data):
            if not self.is_served:
                self._start(end)
                self.send()
            elif end > self._sent_end:
                raise _RefusedError(f"it acknowledged the log up to {end}, and was sent it up to {self._sent_end}")
            else:
                self.acknowledged_end = max(end, self._begin)

    def _start(self, asked: int) -> None:
        """Begin where the first report asks for: 0 and, if the log begins later, FIRST_BYTE ask for the whole log."""
        begin, end = self._log.min_offset, self._log.readable_end
        start = begin if asked == 0 or (asked == FIRST_BYTE and begin > FIRST_BYTE) else asked
        if start < begin:
            raise _RefusedError(f"it asks for the log from {asked} on, which begins at {begin}: retention passed it")
        if start > end:
            raise _RefusedError(f"it has a log up to {asked}, and this one ends at {end}: it is another log")
        self._begin = self._next = self.acknowledged_end = start
        self.is_served = True
        log.info("replica %s is sent the log from %d on, which ends at %d", self.peer, start, end)

    def send(self) -> None:
        if not self.is_served:
            return
        end = self._log.readable_end
        stop = min(end, self._next + TURN_BYTES)
        while self._pending or self._next < stop:
            if not self._pending:
                self._pending = self._frames(min(stop, self._next + GATHERED_BYTES))
            if not self._push():
                return
        self._is_cut = stop < end

    def _frames(self, stop: int) -> list[memoryview | bytes]:
        """Frames with the log up to `stop`, or a part of it: headers and data in turn. ReadError."""
        found: list[memoryview | bytes] = []
        file_bytes = self._log.files.file_bytes
        while self._next < stop and len(found) < 2 * GATHERED_FRAMES:
            start = self._next
            size = min(stop - start, file_bytes - start % file_bytes, self._config.batch_bytes)
            data = self._log.view(start, size)
            read_through(data)
            found += (encode_frame_header(start, size), data)
            self._next += size
            self._sent_bytes += size
        return found

    def tick(self, now: float) -> None:
        if now - self.heard_s > self._config.housekeeping_interval_ms / 1000:
            raise _RefusedError(f"it was silent for {now - self.heard_s:.0f} s")
        if not self.is_served:
            return
        self.send()  # also messages that are in no queue, of which there is no news
        if not self._pending and now - self.wrote_s >= self._config.heartbeat_interval_ms / 1000:
            self._pending = [encode_frame_header(self._next, 0), b""]
            self._push()
        is_in_oldest_file = self._is_in_oldest_file
        if is_in_oldest_file and not self._was_in_oldest_file:
            log.warning(
                "replica %s has the log up to %d only, which is in its oldest file: retention waits for no replica",
                self.peer,
                self.acknowledged_end,
            )
        self._was_in_oldest_file = is_in_oldest_file

    @property
    def _is_in_oldest_file(self) -> bool:
        """Whether retention would take its next byte first."""
        files = self._log.files.files
        return self.is_served and len(files) > 1 and self.acknowledged_end < files[1].start

    def figures(self, now_ms: int) -> ReplicaFigures:
        """The replica's figures. Thread safety: any thread."""
        end, acknowledged = self._log.readable_end, self.acknowledged_end
        lag_ms: int | None = 0
        if acknowledged < end:
            stored_ms = self._log.stored_ms(acknowledged)
            lag_ms = max(now_ms - stored_ms, 0) if stored_ms >= 0 else None
        return ReplicaFigures(
            replica=str(self.peer),
            is_in_sync=self.is_in_sync,
            is_in_oldest_file=self._is_in_oldest_file,
            acknowledged_end=acknowledged,
            lag_bytes=max(end - acknowledged, 0) if self.is_served else end - self._log.min_offset,
            lag_ms=lag_ms,
            last_heard_seconds=round(time.monotonic() - self.heard_s, 3),
            sent_bytes=self._sent_bytes,
        )


class _Requester(_Connection):
    """A client of the port of requests."""

    def __init__(self, connection: socket.socket, peer: Address, answers: Answers) -> None:
        super().__init__(connection, peer)
        self._answers = answers
        self._decoder = CommandDecoder(str(peer), MAX_REQUEST_BYTES)
        self._commands: deque[Command] = deque()

    @property
    def events(self) -> int:
        return selectors.EVENT_WRITE if self._pending or self._commands else selectors.EVENT_READ

    def received(self, data: bytes) -> None:
        self._commands += self._decoder.feed(data)
        self.send()

    def send(self) -> None:
        """One answer, or the rest of it: the other connections have their turn before the next one."""
        if not self._pending and self._commands:
            command = self._commands.popleft()
            self._pending = [] if command.is_answer else [self._answers.to(command)]
        if self._pending:
            self._push()

    def tick(self, now: float) -> None:
        if now - max(self.heard_s, self.wrote_s) > IDLE_SECONDS:
            raise EOFError("it was idle")


class _Wakeup:
    """Wakes a thread that waits for sockets. Thread safety: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._descriptor

    def wake(self) -> None:
        """Wake the thread; later it does nothing."""
        with self._lock:  # a descriptor that is closed may be another file's by now
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, seconds: float) -> None:
        """Return when the thread is woken, after `seconds` at the latest."""
        self._poll.poll(seconds * 1000)

    def clear(self, _: int) -> None:
        """Let the thread sleep again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor. Calling it twice is harmless."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Refusals:
    """Counts refused clients, and logs each reason once a minute for each host."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None
        self._logged_s: dict[tuple[str, str], float] = {}

    def note(self, host: str, reason: str) -> None:
        """A client at `host` was refused."""
        now = time.monotonic()
        self.count += 1
        self.last = f"{host}: {reason}"
        kind = host, "".join(one for one in reason if not one.isdigit())
        if now - self._logged_s.get(kind, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        if len(self._logged_s) >= MOST_REMEMBERED:
            self._logged_s.clear()
        self._logged_s[kind] = now
        log.warning("refused %s: %s", host, reason)


def _listening(address: Address) -> socket.socket:
    """A socket that listens at `address`, also while connections of the last process linger. ListenError."""
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(MOST_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(str(address), error.strerror or str(error)) from error
    return listener
