"""The server's parts without a mount: paths, clients, pauses, and the times of a connection."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from fsstore.serve.access import Access, AccessError, Peer, Tokens
from fsstore.serve.connection import (
    FIRST_PAUSE_S,
    HEADERS_S,
    PAUSE_S,
    SEND_BUFFER_BYTES,
    SILENT_S,
    Answer,
    Connection,
    CutError,
    Request,
    RequestError,
    answer_with,
    pump,
)
from fsstore.serve.shares import MOST_AT_ONCE, PATIENCE_S, THREADS_EACH, BusyError, Shares
from fsstore.serve.stream import TcpStream, listen
from fsstore.serve.tree import MountGoneError, PathError, ServedMount, ServedTree, is_served, parse_path
from fsstore.serve.webhdfs import pauses

TOKEN = "5f0e3c1a9b7d2468ace013579bdf2468"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def in_mocked_time(work: Callable[..., Awaitable[Any]], *arguments: object) -> None:
    trio.run(work, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


# paths


@pytest.fixture
def tree(tmp_path: Path) -> ServedTree:
    """A tree of plain files, with links that stay in it and links that do not."""
    root = tmp_path / "root"
    (root / "orders/keys").mkdir(parents=True)
    (root / "orders/7").write_text("seven")
    (tmp_path / "secret").write_text("secret")
    for name, target in {"in": "../7", "out": "../../../secret", "far": "/etc/passwd", "self": "self"}.items():
        (root / "orders/keys" / name).symlink_to(target)
    return ServedTree(str(root), lambda: ServedMount(root.stat().st_dev, False))


def test_a_link_is_followed_within_the_tree_alone(tree: ServedTree) -> None:
    assert tree.open(parse_path(b"/orders/keys/in")).read() == b"seven"
    for name in (b"out", b"far", b"self"):
        for look in (tree.open, tree.entry):
            with pytest.raises(PathError) as refused:
                look((b"orders", b"keys", name))
            assert refused.value.status == 403
    shown = {entry.name: entry.target for entry in tree.entries((b"orders", b"keys"))}
    assert shown[b"out"] == b"../../../secret"  # a listing shows where it leads, and opens nothing


def test_a_directory_without_its_mount_is_no_empty_store(tmp_path: Path) -> None:
    for found in (None, ServedMount(12_345, False)):
        gone = ServedTree(str(tmp_path), lambda found=found: found)  # type: ignore[misc]
        for look in (gone.entry, gone.open):
            with pytest.raises(MountGoneError):
                look((b"orders",))
    with pytest.raises(MountGoneError):
        ServedTree(str(tmp_path / "none"), lambda: ServedMount(1, False)).require_answer()


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("", True),
        ("@parquet/topic=append/queue=0", True),
        ("append", True),  # a topic
        ("drop/0/7", True),
        ("orders/keys/append", True),
        ("orders/keys/drop@all/0-7", True),
        ("orders/append", False),
        ("orders/12/append@tags=x", False),
        ("orders/12/drop/.draft", False),
        ("orders/drop", False),
        ("@store", True),
        ("@store/metrics", True),
        ("@store/metrics/x", False),
        ("@store/news", False),
    ],
)
def test_which_paths_are_served(path: str, served: bool) -> None:
    assert is_served(tuple(filter(None, path.encode().split(b"/")))) is served


# clients


def peer(**facts: Any) -> Peer:
    known = {"host": "10.0.0.7", "port": 1, "is_local": False, "user": None, "certificate": None}
    return Peer(**{**known, "own_host": "10.0.0.5", **facts})


def asking(headers: Mapping[str, str]) -> Request:
    return Request("GET", "/", b"/", {}, dict(headers))


def client(access: Access, headers: Mapping[str, str], one: Peer, *, allows_others: bool = False) -> str | int:
    """The client, or the status of the refusal."""
    try:
        return access.client(asking(headers), one, lambda: ServedMount(1, allows_others))
    except AccessError as error:
        return error.status


def test_which_client_a_request_is_of() -> None:
    access, bearer = Access(frozenset(), Tokens({"spark": TOKEN})), {"authorization": f"Bearer {TOKEN}"}
    mine, others = os.geteuid(), 64_104
    assert client(access, bearer, peer()) == "token:spark"
    assert client(access, {"authorization": "bearer  nonsense"}, peer()) == 401
    assert client(access, {"authorization": "Basic c3Bhcms6eA=="}, peer()) == 401
    assert client(access, {}, peer()) == 401
    assert client(access, {}, peer(certificate="job")) == "certificate:job"
    assert client(access, {"authorization": "Bearer nonsense"}, peer(certificate="job")) == 401
    local = peer(host="127.0.0.1", is_local=True, user=mine)
    assert client(access, {}, local) == f"user:{mine}"
    assert client(access, {"authorization": "Bearer nonsense"}, local) == 401
    assert client(access, {}, peer(is_local=True, user=0)) == "user:0"
    assert client(access, {}, peer(is_local=True, user=others)) == 403
    assert client(access, {}, peer(is_local=True, user=others), allows_others=True) == f"user:{others}"
    assert client(access, {}, peer(is_local=True, user=None), allows_others=True) == 403
    assert client(Access(frozenset(), Tokens({}), open_to_all=True), {}, peer()) == "10.0.0.7"


def test_what_a_client_lacks_is_named() -> None:
    for tokens, lacks in (({"spark": TOKEN}, "a token"), ({}, "a client's certificate")):
        with pytest.raises(AccessError, match=f"^{lacks} is needed$"):
            Access(frozenset(), Tokens(tokens)).client(asking({}), peer(), lambda: ServedMount(1, False))


def test_a_request_by_the_address_that_it_came_to() -> None:
    access = Access(frozenset({"localhost"}), Tokens({}))
    access.require_host(asking({"host": "10.0.0.5:9870"}), peer())
    access.require_host(asking({"host": "[fd00::5]:9870"}), peer(own_host="fd00::5"))
    for host in ("10.0.0.6", "10.0.0.5.evil.example", ""):
        with pytest.raises(AccessError):
            access.require_host(asking({"host": host}), peer())


# pauses


def test_what_a_client_is_sent_in_vain() -> None:
    """Wherever it hangs up, at the end of a chunk, the next pause is near."""
    random.seed(7)
    for _ in range(300):
        sizes = [random.choice((10, 5_000, 300_000)) for _ in range(40)]
        ends, position = [], 4_096
        for size in sizes:
            position += size
            ends.append(position)
        begin = random.choice([4_096, *ends[:-1]])
        found = pauses(begin, position + 9_999, ends)
        for end in (end for end in ends if end > begin):
            pause = next((one for one in found if one >= end), end)
            assert pause - end <= 0.5 * (end - begin)
        assert len(found) <= 40
    assert pauses(0, 9_000_000, ends) == []  # all of the file: a copy
    many = list(range(5_000, 90_000_000, 5_000))
    assert len(pauses(4_096, 90_000_000, many)) < 50


# a connection


def streams() -> tuple[TcpStream, TcpStream]:
    """Both ends of a connection."""
    ours, theirs = map(TcpStream, socket.socketpair())
    return ours, theirs


def test_silence_and_slow_headers_end_a_connection() -> None:
    async def silent() -> None:
        ours, _theirs = streams()
        began_s = trio.current_time()
        assert await Connection(ours).request() is None
        assert trio.current_time() - began_s == pytest.approx(SILENT_S)

    async def slow() -> None:
        ours, theirs = streams()
        began_s = trio.current_time()

        async def trickle() -> None:
            for byte in REQUEST[:-1]:
                await theirs.send_all(bytes((byte,)))
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            assert await Connection(ours).request() is None
            assert trio.current_time() - began_s == pytest.approx(HEADERS_S)
            nursery.cancel_scope.cancel()

    async def waits_between_requests() -> None:
        ours, theirs = streams()
        connection = Connection(ours)
        for _ in range(3):
            await theirs.send_all(REQUEST)
            request = await connection.request()
            assert request is not None
            assert request.path == b"/healthz"
            await connection.send(Answer(200, body=b"ok"), None)  # type: ignore[arg-type]
            await trio.sleep(SILENT_S - 1)
        assert (await theirs.receive_some()).count(b"200 OK") == 3

    for work in (silent, slow, waits_between_requests):
        in_mocked_time(work)


def test_a_client_that_takes_nothing_ends() -> None:
    async def stuck() -> None:
        ours, theirs = streams()
        connection = Connection(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.send_all, REQUEST)
            await connection.request()
        began_s = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await connection.send(Answer(200, body=bytes(4 << 20)), None)  # type: ignore[arg-type]
        assert trio.current_time() - began_s == pytest.approx(SILENT_S)

    in_mocked_time(stuck)
    assert PAUSE_S < SILENT_S


@pytest.mark.parametrize("first", [50_000, 70_000])
def test_a_pause_lasts_until_the_client_hangs_up_or_for_a_time(first: int, tmp_path: Path) -> None:
    """By a clock that stands still: a client that hangs up in a pause is sent no byte more, however late it is."""
    path, content = tmp_path / "file", os.urandom(300_000)
    path.write_bytes(content)

    async def run(work: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(work)

    async def answered(listener: socket.socket, ends: list[tuple[int, bool]]) -> None:
        await trio.lowlevel.wait_readable(listener)
        connection = Connection(TcpStream(listener.accept()[0]))
        await connection.request()
        answer = answer_with(200, (), FileIO(path), 1_000, 300_000, [first, 200_000])
        try:
            await connection.send(answer, run)
        except OSError:
            ends.append((answer.sent, False))
        else:
            ends.append((answer.sent, True))

    async def ask(hangs_up: bool) -> tuple[int, bool]:
        ends: list[tuple[int, bool]] = []
        with listen("127.0.0.1", 0, SEND_BUFFER_BYTES) as listener:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answered, listener, ends)
                theirs = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
                await theirs.send_all(REQUEST)
                got = b""
                while len(got.partition(b"\r\n\r\n")[2]) < first - 1_000:
                    got += await theirs.receive_some()
                assert got.partition(b"\r\n\r\n")[2] == content[1_000:first]
                if hangs_up:
                    await theirs.aclose()
                else:
                    nursery.start_soon(go_on, ends)
                while not hangs_up and len(got.partition(b"\r\n\r\n")[2]) < 299_000:
                    got += await theirs.receive_some()
                while not ends:
                    await run(partial(time.sleep, 0.005))
                assert hangs_up or got.partition(b"\r\n\r\n")[2] == content[1_000:]
        return ends[0]

    async def go_on(ends: list[tuple[int, bool]]) -> None:
        while not ends:
            clock.jump(FIRST_PAUSE_S)
            await run(partial(time.sleep, 0.005))

    clock = trio.testing.MockClock()
    assert trio.run(ask, True, clock=clock) == (first - 1_000, False)
    clock = trio.testing.MockClock()
    assert trio.run(ask, False, clock=clock) == (299_000, True)


def test_what_was_sent_before_a_client_hung_up_is_counted(tmp_path: Path) -> None:
    taken_bytes, file_bytes = 4 << 20, 256 << 20
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, file_bytes)

    def take() -> None:
        with taker:
            for _ in range(taken_bytes >> 16):
                taker.recv(1 << 16, socket.MSG_WAITALL)

    sender, taker = socket.socketpair()
    sender.setblocking(False)
    with ThreadPoolExecutor(1) as thread, sender, FileIO(path) as file:
        taking, counted = thread.submit(take), 0
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                counted += pump(sender, file, counted, file_bytes)
        taking.result()
    assert taken_bytes <= counted < file_bytes


def test_a_file_that_ends_early_is_sent_until_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"short")
    sender, taker = socket.socketpair()
    with sender, taker, FileIO(tmp_path / "file") as file:
        assert pump(sender, file, 0, 9) == len(b"short")
        with pytest.raises(CutError):
            pump(sender, file, len(b"short"), 9)


def test_headers_of_16_kib() -> None:
    async def long() -> None:
        for size, is_good in ((16_000, True), (16_400, False)):
            ours, theirs = streams()
            await theirs.send_all(REQUEST[:-2] + b"X: " + b"y" * size + b"\r\n\r\n")
            if is_good:
                assert await Connection(ours).request() is not None
                continue
            with pytest.raises(RequestError) as refused:
                await Connection(ours).request()
            assert refused.value.status == 431

    in_mocked_time(long)


async def said(
    *words: bytes, answers: int = 1, content: Callable[[], Answer] = lambda: Answer(200, body=b"ok")
) -> bytes:
    """All that a server with these answers says to a client with these words."""
    ours, theirs = streams()
    connection = Connection(ours)
    for word in words:
        await theirs.send_all(word)
    for _ in range(answers):
        if await connection.request() is None:
            break

        async def run(work: Callable[[], Any]) -> Any:
            return work()

        await connection.send(content(), run)
        if not connection.may_go_on:
            await connection.close()
            break
    await ours.aclose()
    return bytes([byte async for part in theirs for byte in part])


HEAD, END = b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"\r\n"


@pytest.mark.parametrize(
    "word",
    [
        b"\x16\x03\x01\x02\x00\x01",  # the hello of TLS: no end of a head will come
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\n\r\n",
        HEAD + b"Host: elsewhere\r\n" + END,
        HEAD + b"X : y\r\n" + END,
        HEAD + b"X: y\rz\r\n" + END,
        HEAD + b"X: y\r\n z\r\n" + END,
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n" + END,
        HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n" + END,
    ],
)
def test_what_is_no_request(word: bytes) -> None:
    async def refused() -> None:
        with pytest.raises(RequestError) as error:
            await said(word)
        assert error.value.status == 400

    in_mocked_time(refused)


def test_how_many_requests_a_connection_takes() -> None:
    async def counted(words: bytes, count: int) -> None:
        found = await said(words, answers=9)
        assert found.count(b"HTTP/1.1 200 OK\r\n") == count
        assert found.count(b"Connection: close\r\n") == (count == 1)

    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    for words, count in (
        (2 * (HEAD + END), 2),
        (END + HEAD + END + END + HEAD + END, 2),
        (2 * (HEAD + upgrade + END), 2),  # it stays HTTP/1.1
        (2 * (HEAD + b"Connection: close\r\n" + END), 1),
        (2 * b"GET / HTTP/1.0\r\n\r\n", 1),
        (HEAD + b"Content-Length: 40\r\n" + END + HEAD + END, 1),  # a body is not read, and is no request
        (HEAD + b"Transfer-Encoding: chunked\r\n" + END + b"28\r\n" + HEAD + END, 1),
    ):
        in_mocked_time(counted, words, count)


def test_an_answer_of_unknown_length() -> None:
    def pieces() -> Answer:
        return Answer(200, pieces=iter((b"piece", b"by piece")))

    async def asked(word: bytes, wanted: bytes) -> None:
        found = (await said(word, content=pieces)).partition(b"\r\n\r\n")[2]
        assert found == wanted

    in_mocked_time(asked, HEAD + END, b"5\r\npiece\r\n8\r\nby piece\r\n0\r\n\r\n")
    in_mocked_time(asked, b"GET / HTTP/1.0\r\n\r\n", b"pieceby piece")
    in_mocked_time(asked, HEAD.replace(b"GET", b"HEAD") + END, b"")


def test_an_answer_has_no_header_of_two_lines() -> None:
    for text in ("here\r\nSet-Cookie: x", "here\rthere"):
        with pytest.raises(ValueError, match="line break"):
            in_mocked_time(partial(said, HEAD + END, content=lambda: Answer(307, [("Location", text)])))  # noqa: B023


# shares


def test_one_client_leaves_connections_and_threads_to_others() -> None:
    shares = Shares(10_000)
    for _ in range(100):
        shares.take("user:1")
    with pytest.raises(BusyError) as refused:
        shares.take("user:1")
    assert refused.value.status == 429
    shares.take("user:2")
    shares.give("user:1")
    shares.take("user:1")
    few = Shares(20)
    for number in range(20):
        few.take(f"user:{number}")
    with pytest.raises(BusyError) as full:
        few.take("user:21")
    assert full.value.status == 503


def test_a_client_whose_threads_hang_keeps_no_other_waiting() -> None:
    async def hang() -> None:
        shares, reading, writing = Shares(10_000), *os.pipe()
        late = []

        async def ask() -> None:
            with pytest.raises(BusyError) as refused:
                await shares.run("user:1", lambda: os.read(reading, 1))
            late.append(refused.value.status)

        async with trio.open_nursery() as nursery:
            for _ in range(THREADS_EACH + 2):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert await shares.run("user:2", lambda: 7) == 7
            assert late == []
            clock.jump(PATIENCE_S)
        assert late == [503] * (THREADS_EACH + 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)  # its threads still hang, and it has no others
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(PATIENCE_S)
        assert late == [503] * (THREADS_EACH + 3)
        assert await shares.run("user:2", lambda: 7) == 7
        os.write(writing, b"x" * THREADS_EACH)

    clock = trio.testing.MockClock()
    trio.run(hang, clock=clock)


@pytest.mark.parametrize("hangs", [False, True])
def test_short_work_is_waited_for_and_what_hangs_keeps_no_other_waiting(hangs: bool) -> None:
    async def ask() -> None:
        shares, reading, writing = Shares(10_000), *os.pipe()
        others = []

        async def other() -> None:
            others.append(await shares.run("user:2", lambda: 7))
            os.write(writing, b"x")

        def work() -> bytes:
            return os.read(reading, 1) if hangs else b"x"

        async with trio.open_nursery() as nursery:
            if hangs:
                nursery.start_soon(other)
            assert await shares.run_short("user:1", work) == b"x"
        assert others == [7] * hangs
        with pytest.raises(ZeroDivisionError):
            await shares.run_short("user:1", lambda: 1 // 0)
        assert await shares.run_short("user:1", lambda: 8) == 8
        for one in (reading, writing):
            os.close(one)

    trio.run(ask)


def test_short_work_lets_others_have_their_turn() -> None:
    async def ask() -> None:
        shares, turns, times = Shares(10_000), 0, 20 * MOST_AT_ONCE

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for _ in range(times):
                await shares.run_short("user:1", lambda: 7)
            nursery.cancel_scope.cancel()
        assert turns > times // MOST_AT_ONCE // 2

    trio.run(ask)


def test_threads_that_were_waited_for_are_given_back() -> None:
    async def ask() -> None:
        shares = Shares(10_000)
        for _ in range(THREADS_EACH + 1):
            with suppress(ZeroDivisionError):
                await shares.run_short("user:1", lambda: 1 // 0)
        assert await shares.run("user:1", lambda: 7) == 7

    trio.run(ask)
