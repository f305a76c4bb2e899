"""Thousands of slow readers of `mountctl serve`: another client is answered meanwhile, and all is free afterwards.

    python -m tests.durability.slowreaders [--clients 100]

Each client has a token, holds all connections of its share (100; fewer where the limit of descriptors is below 31,000)
but one, asks for a stream of 16 MiB, and takes 4 KiB of it every few seconds. Another client has to get each of its
answers. A client that asks for more than its share gets 429. In the end the server has as many descriptors as before.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine import Message, MessageStore
from fsstore.serve.shares import MOST_CONNECTIONS
from tests.mount.harness import mounted
from tests.mountctl.conftest import eventually
from tests.mountctl.served import Server, served, tokens_in

STREAM, ASKED = "/files/orders.log", 100
PIECE_BYTES, PAUSE_S = 4 << 10, 5.0


def reader(server: Server, token: str) -> socket.socket:
    """A connection that has asked for the stream."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return connection


def took_some(connections: list[socket.socket]) -> int:
    """Take a piece of each answer; the number of connections that still have one."""
    return sum(bool(connection.recv(PIECE_BYTES)) for connection in connections)


def seconds(server: Server, token: str) -> list[float]:
    """How long each of ASKED answers takes."""
    taken = []
    for _ in range(ASKED):
        begun = time.monotonic()
        assert server.ask("/files/orders/0/0", Authorization=f"Bearer {token}").status == 200
        taken.append(time.monotonic() - begun)
    return taken


def figure(server: Server, name: str) -> int:
    """A figure in kB of the server's status."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0])


def descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@contextmanager
def place(folder: Path, clients: int) -> Iterator[tuple[Server, list[str]]]:
    """A server of a new store, and tokens: one for each client, and one more."""
    with MessageStore.open(folder / "store", create=True) as store:
        for _ in range(32):
            store.put(Message("orders", b"x" * (512 << 10)), 0)
    tokens = [secrets.token_hex(16) for _ in range(clients + 1)]
    file = tokens_in(folder / "tokens", **{f"client{number}": token for number, token in enumerate(tokens)})
    with mounted(folder, store=folder / "store") as mount, served(mount.root, folder, "--tokens", file) as server:
        yield server, tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=100)
    clients = parser.parse_args().clients
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    share = min((limit - 512) // 3, MOST_CONNECTIONS) // 100
    with (
        tempfile.TemporaryDirectory() as folder,
        place(Path(folder), clients) as (server, tokens),
        ExitStack() as stack,
    ):
        other, held = tokens[-1], list[socket.socket]()
        quiet, before = seconds(server, other), descriptors(server)
        next_turn = time.monotonic() + PAUSE_S
        for number in range(clients * (share - 1)):
            held.append(stack.enter_context(reader(server, tokens[number % clients])))
            if time.monotonic() > next_turn:
                assert took_some(held) == len(held)
                next_turn = time.monotonic() + PAUSE_S
        assert took_some(held) == len(held)
        busy = seconds(server, other)
        assert took_some(held) == len(held)
        memory, threads = figure(server, "VmRSS") >> 10, figure(server, "Threads")
        print(f"{len(held):,} readers held; the server: {memory} MiB, {threads} threads")
        for what, taken in (("before", quiet), ("beside them", busy)):
            median, worst = statistics.median(taken) * 1e3, max(taken) * 1e3
            print(f"answers to another client {what}: median {median:.1f} ms, worst {worst:.1f} ms")
        last = stack.enter_context(reader(server, tokens[0]))
        assert last.recv(12)[9:] == b"200"
        assert server.ask(STREAM, Authorization=f"Bearer {tokens[0]}").status == 429
        stack.close()
        eventually(lambda: descriptors(server) <= before, "the server has closed their connections")
        seconds(server, other)
    print("0 findings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
