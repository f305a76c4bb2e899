"""Hosts: each has namespaces of its own for network, processes and mounts, and a wire to a bridge.

The proof runs in such namespaces, too, as the host of Spark's driver. All the others are made inside, so they end with
it. Where namespaces can't be made, hosts are addresses of the loopback, and no wire is there to count bytes on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.cluster import process

NEW_NAMESPACES = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
BRIDGE = "fleet"
POLL_S, LIMIT_S = 0.02, 60


def can_have_namespaces() -> bool:
    """Whether hosts of the network's own can be made here."""
    probe = "ip link add probe type bridge && ip link add one type veth peer name other"
    with suppress(FileNotFoundError):
        return not subprocess.run([*NEW_NAMESPACES, "sh", "-c", probe], capture_output=True, check=False).returncode
    return False


@dataclass(slots=True)
class Host:
    """A host. `init` is the first process in its namespaces; None: it has only its address."""

    name: str
    address: str
    domain: str
    """Its name on the network, or its address."""
    folder: Path
    init: int | None = None
    started: ExitStack = field(default_factory=ExitStack)

    def words(self, *command: str | Path, only_network: bool = False) -> list[str]:
        """The command line that runs a command on the host. `only_network`: it has the process number of the command
        itself, and does not end with the host."""
        if self.init is None:
            return list(map(str, command))
        others = () if only_network else ("--pid", "--mount")
        return ["nsenter", "--target", str(self.init), "--net", *others, *map(str, command)]

    def start(self, log: Path, *command: str | Path) -> subprocess.Popen[bytes]:
        """A process of the host, with its children. It ends with the host at the latest."""
        return self.started.enter_context(process(log, *self.words(*command), address=self.address))

    def run(self, *command: str | Path) -> str:
        """Run a command to its end; its output. RuntimeError: it failed."""
        done = subprocess.run(
            self.words(*command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command} on {self.name}: {done.stderr or done.stdout}")
        return done.stdout

    def signal(self, running: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to a command that was started here, and wait for its end."""
        running_here = running.pid
        if self.init is not None:  # its parent is `nsenter`, which passes no signal on
            [running_here] = map(int, _children(running.pid).read_text().split())
        os.kill(running_here, number)
        running.wait(LIMIT_S)

    def kill(self) -> None:
        """End all processes at once, as a kernel that stops; its wire is cut."""
        if self.init is not None:
            with suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
        self.started.close()

    @property
    def wire(self) -> str:
        """The name of its wire at the bridge."""
        return f"to-{self.name}"


class Network:
    """Hosts of one network, 10.77.0.0/24, in which this process is 10.77.0.1; or addresses of the loopback."""

    def __init__(self, folder: Path, isolated: bool) -> None:
        """`isolated`: this process has namespaces of its own already."""
        self.folder = folder
        self.isolated = isolated
        self.address = "10.77.0.1" if isolated else "127.0.0.1"
        self.hosts: dict[str, Host] = {}
        if isolated:
            self._name_hosts()
            _ip("link", "set", "lo", "up")
            _ip("link", "add", BRIDGE, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", BRIDGE)
            _ip("link", "set", BRIDGE, "up")

    @property
    def _names(self) -> Path:
        return self.folder / "hosts"

    def _name_hosts(self) -> None:
        """Names come from a file, and from no server, which each look-up would wait for in vain."""
        servers = self.folder / "resolv.conf"
        servers.touch()
        self._names.write_text(f"127.0.0.1 localhost\n{self.address} driver {socket.gethostname()}\n")
        for ours, place in ((self._names, "/etc/hosts"), (servers, "/etc/resolv.conf")):
            subprocess.run(["mount", "--bind", ours, place], check=True)

    def host(self, name: str) -> Host:
        """A new host, in the place of one of that name that was killed."""
        known = self.hosts.get(name)
        number = len(self.hosts) + 2 if known is None else int(known.address.rpartition(".")[2])
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if not self.isolated:
            address = f"127.0.0.{number}"
            host = Host(name, address, address, folder)
        else:
            host = Host(name, f"10.77.0.{number}", f"broker-{name}", folder)
            if known is None:
                with self._names.open("a") as names:
                    names.write(f"{host.address} {host.domain}\n")
            self._connect(host)
        self.hosts[name] = host
        return host

    def _connect(self, host: Host) -> None:
        stopping = process(host.folder / "init.log", *NEW_NAMESPACES, "sleep", "infinity")
        outside = host.started.enter_context(stopping).pid
        host.init = init = _first_process_in(outside)
        with suppress(RuntimeError):  # of its predecessor; it goes by itself some time after the host
            _ip("link", "delete", host.wire)
        number = int(host.address.rpartition(".")[2])
        card = ("name", "eth0", "address", f"02:00:00:00:00:{number:02x}")  # as that of its predecessor, which is known
        _ip("link", "add", host.wire, "type", "veth", "peer", *card, "netns", str(init))
        _ip("link", "set", host.wire, "master", BRIDGE, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{host.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            host.run("ip", *words)

    def wire_bytes(self) -> int:
        """Bytes on the wires of all hosts until now, to them and from them. Those from host to host count twice."""
        links = json.loads(_ip("-json", "-statistics", "link", "show"))
        wires = {host.wire for host in self.hosts.values()}
        counted = [link["stats64"] for link in links if link["ifname"] in wires]
        return sum(int(one[way]["bytes"]) for one in counted for way in ("rx", "tx"))


@contextmanager
def network(folder: Path, isolated: bool) -> Iterator[Network]:
    """A network without hosts; those that are made end with the block."""
    made = Network(folder, isolated)
    try:
        yield made
    finally:
        for host in made.hosts.values():
            host.kill()


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr}")
    return done.stdout


def _children(parent: int) -> Path:
    return Path(f"/proc/{parent}/task/{parent}/children")


def _first_process_in(outside: int) -> int:
    """The process in the new namespaces that `unshare` has made, as soon as it runs its command."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            for child in _children(outside).read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "sleep":
                    return int(child)
        time.sleep(POLL_S)
    raise RuntimeError("a host does not start")
