"""A real name server and broker on loopback, and their clients."""

import base64
import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.driver import Driver, DriverError, public_listeners

NAME = "interop"
LIMIT_SECONDS = 120
POLL_SECONDS = 0.02


def free_ports(count: int) -> list[int]:
    """Free ports of loopback; a broker also uses the one two below its own, and the next one."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe, socket.socket() as below, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                below.bind(("127.0.0.1", port - 2))
                above.bind(("127.0.0.1", port + 1))
                ports.append(port)
    return ports


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that runs in `driver`'s process; its clients run there too."""

    driver: Driver
    names: str
    address: str

    def make_topic(self, topic: str, queues: int, attributes: dict[str, str] | None = None) -> None:
        self.driver.call("broker_topic", topic=topic, queues=queues, attributes=attributes or {})

    def delete_topic(self, topic: str) -> None:
        """As an administrator's tool does."""
        self.driver.call("delete_topic", names=self.names, address=self.address, topic=topic)

    def query(self, queries: list[dict[str, Any]]) -> list[list[int]]:
        """As `RealStore.query`; a query with `tags` asks by tag, which is known from 5.4 on."""
        results: list[list[int]] = self.driver.call("broker_query", queries=queries)["results"]
        return results

    def send(
        self,
        messages: list[dict[str, Any]],
        *,
        compress_type: str = "ZLIB",
        traced: bool = False,
        namespace: str | None = None,
    ) -> list[dict[str, Any]]:
        """Send by RocketMQ's producer, one after the other; it compresses bodies over 4 KiB. `traced`: it leaves traces
        of what it sends; `namespace`: its instance, which it puts before names of topics."""
        results: list[dict[str, Any]] = self.driver.call(
            "send",
            names=self.names,
            compress_type=compress_type,
            messages=messages,
            traced=traced,
            namespace=namespace,
        )["results"]
        return results

    def send_transactions(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send by RocketMQ's transactional producer; `fate` says how each ends."""
        results: list[dict[str, Any]] = self.driver.call("send_transactions", names=self.names, messages=messages)[
            "results"
        ]
        return results

    def consume(self, topic: str, group: str, count: int, *, reject_every: int) -> list[bytes]:
        """Have a group consume until it is done with all `count` messages of a topic: the bodies that came. Every
        `reject_every`th ends in the group's dead letters."""
        answer = self.driver.call(
            "consume", names=self.names, topic=topic, group=group, count=count, reject_every=reject_every
        )
        return [base64.b64decode(body) for body in answer["bodies"]]

    def pull(self, topics: dict[str, int]) -> list[dict[str, Any]]:
        """All that a client is handed of topics (name to number of queues), in the words of tests/data/golden55."""
        lines: list[dict[str, Any]] = self.driver.call("pull", names=self.names, broker=NAME, topics=topics)["lines"]
        return lines

    def offsets(self) -> dict[str, dict[str, int]]:
        """Where each group stands in each "topic@group", by queue."""
        return self.driver.call("broker_offsets")

    def await_offsets(self, topic: str, group: str, count: int) -> dict[str, dict[str, int]]:
        """The same, once the broker heard that the group is done with `count` messages of the topic."""
        limit = time.monotonic() + LIMIT_SECONDS
        while sum((offsets := self.offsets()).get(f"{topic}@{group}", {}).values()) < count:
            if time.monotonic() > limit:
                raise DriverError(f"the broker never heard the last offsets of {group}: {offsets}")
            time.sleep(POLL_SECONDS)
        return offsets

    def bounds(self, topic: str, queues: int) -> list[list[int]]:
        """Oldest and next queue offset of each queue."""
        bounds: list[list[int]] = self.driver.call("broker_bounds", topic=topic, queues=queues)["bounds"]
        return bounds

    def figures(self) -> dict[str, Any]:
        """Durations of puts in the store since the last call, and the log's bounds."""
        return self.driver.call("broker_figures")


@contextlib.contextmanager
def live_broker(
    driver: Driver, path: Path, config: dict[str, Any], *, master: Broker | None = None
) -> Iterator[Broker]:
    """A broker over the store at `path`; ended cleanly when the block is left without an error. With a `master`, of
    another driver, it is a replica of that one."""
    yield start_broker(driver, path, config, master=master)
    driver.call("broker_stop")


def start_broker(
    driver: Driver,
    path: Path,
    config: dict[str, Any],
    *,
    master: Broker | None = None,
    port: int | None = None,
    names: int | None = None,
) -> Broker:
    """As `live_broker`; it runs until its driver stops it or ends. `port`: that of a broker before it; `names`: that of
    a name server that runs."""
    names_port, broker_port = free_ports(2)
    names_port = names_port if names is None else names
    broker_port = broker_port if port is None else port
    if master is not None:
        names_port = int(master.names.rpartition(":")[2])
        config = {"brokerId": 1, "brokerRole": "SLAVE", **config}
    driver.call(
        "broker_start",
        path=str(path),
        names_port=names_port,
        shares_names=master is not None or names is not None,
        broker_port=broker_port,
        config={"brokerName": NAME, "fetchNamesrvAddrByAddressServer": "false", **config},
    )
    public = public_listeners(driver.pid)
    if public:
        raise DriverError(f"RocketMQ listens beyond loopback: {public}")
    return Broker(driver, f"127.0.0.1:{names_port}", f"127.0.0.1:{broker_port}")


def client_message(topic: str, body: bytes, **properties: str) -> dict[str, Any]:
    """A message for `Broker.send`: KEYS, TAGS and DELAY by those names, others as user properties."""
    return {"topic": topic, "body": base64.b64encode(body).decode(), "properties": list(properties.items())}


def client_batch(topic: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Several messages that the client sends as one."""
    return {"topic": topic, "items": messages}
