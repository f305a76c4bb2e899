"""The server: listens, identifies clients, answers, counts and logs.

    /webhdfs/v1/PATH?op=…      fsstore/serve/webhdfs.py
    /files/PATH                fsstore/serve/files.py
    /datasets?topic=…          fsstore/serve/files.py
    /positions?of=…            fsstore/serve/files.py
    /witness                   what identifies the store's log: fsstore/fleet/identity.py
    /metrics                   figures of this server
    /healthz                   whether the mount answers; for all
    / and /page/               for people: fsstore/serve/page/

A line of the access log is as one of the mount's, with the client in the place of uid, gid and pid:

    2026-11-24T01:02:03.456Z token:spark 10.0.0.7 OPEN orders/0.log 0 4096 200 0.000021
    time                     client      address  operation path begin size result seconds
"""

from __future__ import annotations

import logging
import re
import resource
import signal
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache, partial
from typing import NamedTuple

import trio

from engine import MessageStore, StoreError, counter, gauge
from fsstore.serve.access import Access, Peer, Tokens, peer_of
from fsstore.serve.connection import HEADERS_S, SEND_BUFFER_BYTES, Answer, Connection, CutError, Request, RequestError
from fsstore.serve.files import FILES, Datasets, file_answer, positions_answer, witness_answer
from fsstore.serve.page.data import DATA
from fsstore.serve.page.page import Page
from fsstore.serve.shares import BusyError, Shares
from fsstore.serve.stream import TcpStream, accept, listen
from fsstore.serve.tree import PathError, RefusedError, ServedTree, parse_path
from fsstore.serve.webhdfs import CALLS, IDLE_S, WebHdfs, failure, redirect
from fsstore.tree.limited_log import RateLimitedLog
from fsstore.tree.metrics import metric, record_metrics
from fsstore.tree.refusals import escaped, time_text

log = logging.getLogger("fsstore.serve")

WEBHDFS = b"/webhdfs/v1"
RETRY_S = 5
"""Seconds that a client is told to wait while the mount is gone."""
HEALTH_S = 2.0
SPARE_DESCRIPTORS = 512
"""Descriptors that are no client's; among them, of connections that are being refused."""
DESCRIPTORS_EACH = 3
"""Descriptors of a connection at most: its socket twice, and a file."""
MOST_REFUSING = 256
MOST_WORD_CHARACTERS = 1_000
_METHODS = ("GET", "HEAD")
_FORMS = "POST"
_PLAIN = re.compile(r"[!-\[\]-~]+")
"""Words that the access log shows as they are."""
_PLACES = ("files", "datasets", "positions", "witness", "metrics", "healthz", "page")


class Secrets(NamedTuple):
    """Tokens, and certificates (None: no TLS). SIGHUP has them read again."""

    tokens: Tokens
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """`address` and `port` to listen at; `host`, the name in block locations; `hosts`, by which clients may call the
    server; `open_to_all` as in Access."""

    address: str
    port: int
    host: str
    hosts: frozenset[str]
    open_to_all: bool = False


@dataclass(slots=True)
class ServerFigures:
    """Figures of a server since it began."""

    connections: int = gauge("Open connections", default=0)
    clients: int = gauge("Clients that have a connection", default=0)
    refused_connections: int = counter("Connections beyond their client's share", default=0)
    sent_bytes: int = counter("Bytes of answers that left, without headers", default=0)
    unfinished: int = counter("Answers whose client hung up before their end", default=0)


class Server:
    """An HTTP server of one mount. Thread safety: trio's thread."""

    def __init__(
        self,
        tree: ServedTree,
        store: MessageStore | None,
        page: Page,
        options: HttpOptions,
        load: Callable[[], Secrets],
        log_line: Callable[[bytes], None] | None = None,
    ) -> None:
        """`store` follows the mount's store (None: its files can't be read here). `load` reads the secrets. `log_line`
        takes lines of the access log."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._tree = tree
        self._options = options
        self._load = load
        self._secrets = load()
        self._log_line = log_line
        self._datasets = Datasets(tree, store)
        self._web_hdfs = WebHdfs(tree, options.host, self._datasets)
        self._page = page
        self._shares = Shares(max((soft - SPARE_DESCRIPTORS) // DESCRIPTORS_EACH, 1))
        self._problems = RateLimitedLog()
        self._refusing = 0
        self._figures = ServerFigures()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def run(self, ready: Callable[[int], None]) -> None:
        """Serve until SIGTERM or SIGINT. `ready` is called once with the port. OSError: it can't listen there."""
        trio.run(self._run, ready)

    async def _run(self, ready: Callable[[int], None]) -> None:
        address, port = self._options.address, self._options.port
        listener = listen(address, port, SEND_BUFFER_BYTES)
        with listener, trio.open_signal_receiver(signal.SIGHUP, signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accept, listener, self._connected)
                nursery.start_soon(self._close_idle_files)
                ready(listener.getsockname()[1])
                async for number in signals:
                    if number != signal.SIGHUP:
                        nursery.cancel_scope.cancel()
                        return
                    self._reload()

    async def _close_idle_files(self) -> None:
        while True:
            await trio.sleep(IDLE_S)
            self._web_hdfs.close_idle()

    def _reload(self) -> None:
        try:
            self._secrets = self._load()
        except Exception as error:  # whatever is wrong with the files, the server goes on with what it has
            log.error("SIGHUP: tokens and certificates stay as they were: %s", error)
        else:
            log.info("SIGHUP: tokens and certificates were read again")

    # connections

    async def _connected(self, stream: TcpStream) -> None:
        try:
            await self._admit(stream, peer_of(stream.socket, None))
        except (OSError, trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or silent
        except Exception as error:  # a defect must not end the connections of others
            self._problems.log_once(log, logging.ERROR, repr(error), f"a connection failed: {error}", error)
        finally:
            stream.close()

    async def _admit(self, stream: TcpStream, peer: Peer) -> None:
        held = _Held(self._shares)
        try:
            held.take(peer.client)
        except BusyError as error:
            await self._refuse(stream, error)
            return
        try:
            encrypted = await self._encrypted(stream)
            connection = Connection(encrypted)
            if isinstance(encrypted, trio.SSLStream):
                peer = peer._replace(certificate=_name_in(encrypted))
            try:
                await self._converse(connection, peer, held)
            finally:
                await connection.close()
        finally:
            held.give()

    async def _encrypted(self, stream: TcpStream) -> TcpStream | trio.SSLStream[TcpStream]:
        if self._secrets.tls is None:
            return stream
        encrypted = trio.SSLStream(stream, self._secrets.tls, server_side=True, https_compatible=True)
        with trio.fail_after(HEADERS_S):
            await encrypted.do_handshake()
        return encrypted

    async def _refuse(self, stream: TcpStream, error: BusyError) -> None:
        """Answer a connection beyond a share, if there are few such at this moment."""
        self._figures.refused_connections += 1
        self._problems.log_once(log, logging.WARNING, ("share", error.reason), f"a connection was refused: {error}")
        if self._refusing >= MOST_REFUSING:
            return
        self._refusing += 1
        try:
            with trio.fail_after(HEADERS_S):
                connection = Connection(await self._encrypted(stream))
                await connection.send(_failure(error, is_web_hdfs=False), self._no_thread)
                await connection.close()
        finally:
            self._refusing -= 1

    async def _no_thread(self, work: Callable[[], bytes]) -> bytes:
        return work()

    async def _converse(self, connection: Connection, peer: Peer, held: _Held) -> None:
        while True:
            try:
                request = await connection.request()
            except RequestError as error:
                await connection.send(Answer(error.status, body=b"this is not a request\n"), self._no_thread)
                return
            if request is None:
                return
            call = _Call(request, peer, _operation(request), time.time_ns(), time.perf_counter())
            answer = await self._answer(call, held)
            try:
                await connection.send(answer, partial(self._shares.run, held.client))
            except BaseException as error:
                self._finished(call, answer, held.client, f"{answer.status}-closed")
                if not isinstance(error, RefusedError | CutError | StoreError):
                    raise
                self._problems.log_once(log, logging.WARNING, repr(error), f"an answer was cut: {error}")
                return
            self._finished(call, answer, held.client, str(answer.status))
            if answer.file is not None:
                answer.file.close()  # while the connection waits for a request, nothing keeps the mount in use
            if not connection.may_go_on:
                return

    def _finished(self, call: _Call, answer: Answer, client: str, result: str) -> None:
        """Count a request, and log it without its parameters: a token may be among them."""
        seconds = time.perf_counter() - call.began_s
        self._requests[call.operation, answer.status] += 1
        self._seconds[call.operation] += seconds
        self._figures.sent_bytes += answer.sent
        self._figures.unfinished += result != str(answer.status)
        if self._log_line is not None:
            path, begin = call.request.path.decode("utf-8", "surrogateescape"), answer.begin
            at = "-" if begin is None else begin
            words = time_text(call.time_ns), _one_word(client), call.peer.host, call.operation, _one_word(path)
            line = f"{' '.join(words)} {at} {answer.sent} {result} {seconds:.6f}\n"
            self._log_line(line.encode("utf-8", "replace"))

    # answers

    async def _answer(self, call: _Call, held: _Held) -> Answer:
        try:
            answer = await self._routed(call, held)
        except RefusedError as error:
            answer = self._failed(call, error)
            if not isinstance(error, PathError):
                about = type(error), held.client
                self._problems.log_once(log, logging.WARNING, about, f"{held.client}: {error}")
        except (OSError, StoreError, CutError) as error:
            self._problems.log_once(log, logging.WARNING, str(error), f"{call.operation} failed: {error}")
            answer = self._failed(call, PathError(500, str(error)))
        except Exception as error:
            self._problems.log_once(log, logging.ERROR, repr(error), f"{call.operation} failed: {error}", error)
            answer = self._failed(call, PathError(500, "the server has a defect; its log says more"))
        answer.headers = [("Date", _date(int(time.time()))), *answer.headers]
        return answer

    def _failed(self, call: _Call, error: RefusedError) -> Answer:
        if call.operation == "page" and not call.request.path.startswith(DATA):
            return self._page.failure(error, call.request, self._secrets.tokens)
        return _failure(error, call.request.path.startswith(WEBHDFS))

    async def _routed(self, call: _Call, held: _Held) -> Answer:
        request, options = call.request, self._options
        access = Access(options.hosts, self._secrets.tokens, options.open_to_all)
        access.require_host(request, call.peer)
        if request.method == _FORMS and call.operation == "page":
            return self._page.posted(request, self._secrets.tokens, call.peer.host, self._secrets.tls is not None)
        if request.method not in _METHODS:
            raise PathError(405, f"{request.method} is not served: this server reads")
        if call.operation == "healthz":
            return await self._health(held)
        if call.operation == "page" and (answer := self._page.for_all(request)) is not None:
            return answer
        session = self._page.client(request, self._secrets.tokens)
        held.move(session or access.client(request, call.peer, self._tree.mount))
        if call.operation == "page":
            return await self._shares.run(held.client, partial(self._page.answer, request, session is not None))
        if call.operation == "metrics":
            return Answer(200, [("Content-Type", "text/plain; version=0.0.4")], body=self._metrics())
        work = self._work(request, call.operation)
        return work if isinstance(work, Answer) else await self._shares.run_short(held.client, work)

    def _work(self, request: Request, operation: str) -> Answer | Callable[[], Answer]:
        """The answer, or what makes it in a thread. PathError."""
        scheme = "http" if self._secrets.tls is None else "https"
        if operation == "files":
            return partial(file_answer, self._tree, request.path.removeprefix(FILES.encode()), request)
        if operation == "datasets":
            return partial(self._datasets.answer, request, f"{scheme}://{request.headers['host']}")
        if operation == "positions":
            return partial(positions_answer, self._tree, request)
        if operation == "witness":
            return partial(witness_answer, self._tree, request)
        if not request.path.startswith(WEBHDFS):
            raise PathError(
                404, "there are /, /webhdfs/v1/, /files/, /datasets, /positions, /witness, /metrics and /healthz"
            )
        parts = parse_path(request.path.removeprefix(WEBHDFS))
        if operation == "OPEN" and "direct" not in request.parameters:
            return redirect(request, scheme)
        known = self._web_hdfs.known_answer(parts, operation, request)
        return partial(self._web_hdfs.answer, parts, operation, request) if known is None else known

    async def _health(self, held: _Held) -> Answer:
        with trio.move_on_after(HEALTH_S):
            await self._shares.run(held.client, self._tree.require_answer)
            return Answer(200, body=b"ok\n")
        raise BusyError(503, f"the mount at {self._tree.mountpoint} does not answer")

    def _metrics(self) -> bytes:
        self._figures.connections, self._figures.clients = self._shares.connections, len(self._shares.held)
        requests = [({"operation": name, "status": str(status)}, n) for (name, status), n in self._requests.items()]
        seconds = [({"operation": name}, taken) for name, taken in self._seconds.items()]
        lines = [
            *record_metrics("serve_", [(None, self._figures)]),
            *metric("serve_requests_total", "counter", "Requests, by operation and status", requests),
            *metric("serve_request_seconds_total", "counter", "Time from requests to the end of answers", seconds),
        ]
        return "\n".join([*lines, ""]).encode()


class _Held:
    """The share that one connection holds."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.client = ""

    def take(self, client: str) -> None:
        """BusyError."""
        self._shares.take(client)
        self.client = client

    def move(self, client: str) -> None:
        """Hold it for another client from now on. BusyError: that one has no room."""
        if client != self.client:
            self._shares.take(client)
            self.give()
            self.client = client

    def give(self) -> None:
        self._shares.give(self.client)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _one_word(text: str) -> str:
    """A text of the access log."""
    if len(text) <= MOST_WORD_CHARACTERS and _PLAIN.fullmatch(text):
        return text
    return escaped(text, MOST_WORD_CHARACTERS).replace(" ", "\\x20")


class _Call(NamedTuple):
    """A request, its client's end of the connection, its operation, and when it came."""

    request: Request
    peer: Peer
    operation: str
    time_ns: int
    began_s: float


def _operation(request: Request) -> str:
    """The operation as metrics and the access log name it: one of a few."""
    if request.path.startswith(WEBHDFS):
        name = request.parameters.get("op", "").upper()
        return name if name in CALLS else "other"
    name = request.path[1:].partition(b"/")[0].decode("ascii", "replace") or "page"
    return name if name in _PLACES else "other"


def _name_in(stream: trio.SSLStream[TcpStream]) -> str | None:
    """The common name in a client's certificate, which TLS has verified; None: it sent none."""
    certificate = stream.getpeercert()
    subject = () if not certificate else certificate.get("subject", ())
    return next((value for row in subject for name, value in row if name == "commonName"), None)


def _failure(error: RefusedError, is_web_hdfs: bool) -> Answer:
    """The answer for an error."""
    status = error.status
    answer = failure(status, str(error)) if is_web_hdfs else Answer(status, body=f"{error}\n".encode())
    more = {
        401: [("WWW-Authenticate", "Bearer")],
        405: [("Allow", ", ".join(_METHODS))],
        429: [("Retry-After", "1")],
        503: [("Retry-After", str(RETRY_S))],
    }
    kind = [] if is_web_hdfs else [("Content-Type", "text/plain; charset=utf-8")]
    answer.headers = [*kind, *more.get(status, [])]
    return answer
