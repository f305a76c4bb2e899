"""RocketMQ's consumers read what a mount publishes: steps around a slave broker of a mount that serves replicas.

python examples/feed_consumers.py topics MASTER SLAVE_STORE     before each start of the slave
python examples/feed_consumers.py connect SLAVE MASTER_HA       after each start of a slave of 5.x
python examples/feed_consumers.py route MASTER SLAVE NAMES      once, and after new topics

MASTER is HOST:listenPort of the mount, MASTER_HA its HOST:haListenPort, SLAVE the broker's HOST:PORT and NAMES a name
server's. docs/rocketmq.md says what each step is for. It needs nothing but Python, so it can be copied to any host.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

GET_ALL_TOPIC_CONFIG, GET_BROKER_CONFIG = 21, 26
REGISTER_BROKER, UNREGISTER_BROKER, EXCHANGE_BROKER_HA_INFO = 103, 104, 906
TIMEOUT_SECONDS = 10


def call(address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    """The body of a broker's answer to one request."""
    header = json.dumps(
        {"code": code, "language": "OTHER", "version": 399, "opaque": 1, "flag": 0, "extFields": fields or {}}
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        with connection.makefile("rb") as answers:
            size, header_size = struct.unpack(">II", answers.read(8))
            header_size &= 0xFFFFFF
            answer = json.loads(answers.read(header_size))
            found = answers.read(size - 4 - header_size)
    if answer["code"]:
        sys.exit(f"{address} refused request {code}: {answer.get('remark')}")
    return found


def topics(master: str, store: str) -> None:
    """Give a slave that is not running the master's topics: it does not ask for them, and can't be told."""
    path = Path(store) / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(call(master, GET_ALL_TOPIC_CONFIG))
    print(f"{path} is written")


def connect(slave: str, master_ha: str) -> None:
    """Tell a running slave of 5.x where its master is: it forgets its own setting haMasterAddress at its start."""
    call(slave, EXCHANGE_BROKER_HA_INFO, {"masterHaAddress": master_ha})
    print(f"{slave} replicates {master_ha}")


def route(master: str, slave: str, names: str) -> None:
    """Bring the topics into the routes of a name server, which takes them from a master alone: register one, and take
    it back, so that consumers read from the slave."""
    text = call(slave, GET_BROKER_CONFIG).decode("utf-8", "replace")
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    cluster, broker = settings["brokerClusterName"], settings["brokerName"]
    found = json.loads(call(master, GET_ALL_TOPIC_CONFIG))
    for name in (cluster, broker):  # every broker has these; a first registration with one topic alone is refused
        own = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 7, "topicSysFlag": 0, "order": False}
        found["topicConfigTable"].setdefault(name, own)
    body = json.dumps({"topicConfigSerializeWrapper": found, "filterServerList": []}).encode()
    fields = {"brokerName": broker, "brokerAddr": master, "clusterName": cluster, "brokerId": "0"}
    register = {**fields, "haServerAddr": master, "compressed": "false", "bodyCrc32": "0"}
    call(names, REGISTER_BROKER, register, body)
    call(names, UNREGISTER_BROKER, fields)
    print(f"{names} leads to {broker} at {slave}, {len(found['topicConfigTable'])} topics")


STEPS: dict[str, tuple[Callable[..., None], int]] = {
    "topics": (topics, 2),
    "connect": (connect, 2),
    "route": (route, 3),
}

if __name__ == "__main__":
    step, *words = sys.argv[1:] or [""]
    if step not in STEPS or len(words) != STEPS[step][1]:
        sys.exit(__doc__)
    STEPS[step][0](*words)
