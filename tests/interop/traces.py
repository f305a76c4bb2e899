"""What real clients leave in a store beside their messages: timers, transactions, requests, retries, traces, and what
clients do that speak gRPC to a proxy; looked at through a mount beside the broker, as docs/rocketmq.md shows it."""

import base64
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import MessageStore, OpenMode, StoreConfig
from tests.interop.brokers import Broker, client_message, free_ports, live_broker
from tests.interop.compare import compare_dump
from tests.interop.defaults import await_presence
from tests.interop.driver import Driver, DriverError, public_listeners
from tests.interop.mounts import MountError, mountctl, mounted, status
from tests.interop.room import SMALL, Room, java_config

SOON_MS, TOMORROW_MS = 2_000, 86_400_000
HIDDEN_MS = 2_000
RECEIVE_LIMIT_MS = 60_000
CLUSTER = "DefaultCluster"
REVIVE = f"rmq_sys_REVIVE_LOG_{CLUSTER}"
INSTANCE = "INST_1"
GROUP = "readers"
SETTINGS = {"traceTopicEnable": "true", "transactionOpBatchInterval": 200, "enableRetryTopicV2": "true"}
"""The last one puts a plus sign into the names of topics, which a broker grants to nobody else."""
TOPICS = {
    "orders": "NORMAL",
    "asked": "NORMAL",
    f"{INSTANCE}%orders": "NORMAL",
    "in-order": "FIFO",
    "later": "DELAY",
    "settled": "TRANSACTION",
}
"""A topic, and the type that a proxy requires of its messages."""


@dataclass(frozen=True, slots=True)
class Look:
    """A path below the mount, what its body begins with, and some of its properties."""

    path: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)


WHEEL, HALF, OP = "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LOOKS = (
    Look("orders/keys/soon", b"soon", {"REAL_TOPIC": "orders", "TIMER_DELAY_MS": str(SOON_MS)}),
    Look(f"{WHEEL}/keys/soon", b"soon", {"REAL_TOPIC": "orders"}),
    Look(f"{WHEEL}/keys/tomorrow", b"tomorrow", {"REAL_TOPIC": "orders", "TIMER_DELAY_MS": str(TOMORROW_MS)}),
    Look("orders/keys/committed", b"committed", {"TRAN_MSG": "true"}),
    Look(f"{HALF}/keys/committed", b"committed", {"REAL_TOPIC": "orders"}),
    Look(f"{HALF}/keys/rolled-back", b"rolled-back", {"REAL_TOPIC": "orders"}),
    Look(f"{OP}/0/0", b"", {"TAGS": "d"}),
    Look("RMQ_SYS_TRACE_TOPIC/keys/traced", b"Pub\x01"),
    Look(f"{INSTANCE}%orders/keys/ours", b"ours", {"INSTANCE_ID": INSTANCE}),
    Look("asked/keys/question", b"question", {"TTL": "30000"}),
    Look(f"{CLUSTER}_REPLY_TOPIC/0/0", b"42", {"MSG_TYPE": "reply"}),
    Look("orders/keys/one", b"one", {"by": "gRPC"}),
    Look(f"%RETRY%{GROUP}+orders/keys/two", b"two", {"ORIGIN_GROUP": GROUP, "by": "gRPC"}),
    Look(f"{REVIVE}/0/@first", b'{"', {"REAL_TOPIC": REVIVE}),
    Look("in-order/keys/first", b"first", {"__SHARDINGKEY": "g1"}),
    Look("later/keys/at-last", b"at-last", {"REAL_TOPIC": "later"}),
    Look(f"{WHEEL}/keys/at-last", b"at-last", {"REAL_TOPIC": "later"}),
    Look("settled/keys/agreed", b"agreed", {"TRAN_MSG": "true"}),
    Look(f"{HALF}/keys/refused", b"refused", {"REAL_TOPIC": "settled"}),
)
NEVER = ("orders/keys/tomorrow", "orders/keys/rolled-back", "settled/keys/refused")
"""Messages that were not delivered, and so are not in their topic."""


def real_clients(room: Room) -> None:
    """Clients of both kinds work beside a mount; then the broker stops, and all of it is compared, derived anew too."""
    path, config = room.folder / "theirs", java_config(SMALL, **SETTINGS)
    with room.driver() as driver, room.driver(grpc=True) as clients:
        with live_broker(driver, path, config) as broker, mounted(path, room.folder / "mount", "--follow") as mount:
            for topic, kind in TOPICS.items():
                broker.make_topic(topic, 1, {"message.type": kind})
            work(room, broker)
            work_by_grpc(room, broker, clients)
            for look in LOOKS:
                compare_look(room, mount, look)
            for name in NEVER:
                room.tally.expect(name, False, (mount / name).exists())
            compare_reply(room, mount)
            room.tally.expect("settings that are not understood", [], status(mount)["settings_problems"])
        with driver.store(room.copy(path, "copy"), config) as store:
            dump = store.dump()
    try:
        mountctl("check", path)
    except MountError as error:
        room.tally.differences.append(f"a check of the broker's store: {error}")
    compare_closed(room, path, dump)
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    compare_closed(room, path, dump)


def compare_closed(room: Room, path: Path, dump: dict[str, Any]) -> None:
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as ours:
        compare_dump(room.tally, dump, ours)


def text(topic: str, name: str, **properties: str) -> dict[str, Any]:
    """A message whose body is its key."""
    return client_message(topic, name.encode(), KEYS=name, **properties)


def work(room: Room, broker: Broker) -> None:
    """Timers, transactions, a trace, a namespace, a request, by the client that speaks RocketMQ's own protocol."""
    timers = {"soon": SOON_MS, "tomorrow": TOMORROW_MS}
    broker.send([text("orders", name, TIMER_DELAY_MS=str(delay_ms)) for name, delay_ms in timers.items()])
    fates = {"committed": "commit", "rolled-back": "rollback"}
    broker.send_transactions([{**text("orders", name), "fate": fate} for name, fate in fates.items()])
    broker.send([text("orders", "traced")], traced=True)
    broker.send([text("orders", "ours")], namespace=INSTANCE)
    answer = broker.driver.call(
        "request_reply", names=broker.names, topic="asked", group="answerers", answer="42",
        message=text("asked", "question"),
    )  # fmt: skip
    room.tally.expect("the answer to a request", "42", answer["answer"])


def work_by_grpc(room: Room, broker: Broker, clients: Driver) -> None:
    """The same by clients that speak gRPC to a proxy, and a consumer that gives one of two messages back."""
    port = free_ports(1)[0]
    settings = {
        "rocketMQClusterName": CLUSTER,
        "proxyMode": "local",
        "namesrvAddr": broker.names,
        "grpcServerPort": port,
        "enableGrpcEpoll": False,
        "minInvisibleTimeMillsForRecv": HIDDEN_MS,
    }
    broker.driver.call("broker_group", group=GROUP)
    broker.driver.call("proxy_start", path=str(room.folder / "rmq-proxy.json"), port=port, settings=settings)
    public = public_listeners(broker.driver.pid)
    if public:
        raise DriverError(f"the proxy listens beyond loopback: {public}")
    messages = [
        by_grpc("orders", "one"),
        by_grpc("orders", "two"),
        by_grpc("in-order", "first", group="g1"),
        by_grpc("in-order", "second", group="g1"),
        by_grpc("later", "at-last", deliver_in_ms=SOON_MS),
        by_grpc("settled", "agreed", fate="commit"),
        by_grpc("settled", "refused", fate="rollback"),
    ]
    clients.call("grpc_send", port=port, messages=messages)
    rest = ["one", "soon", "committed", "traced"]
    receive = {"port": port, "topic": "orders", "group": GROUP, "hidden_ms": HIDDEN_MS, "limit_ms": RECEIVE_LIMIT_MS}
    first = clients.call("grpc_receive", **receive, count=len(rest) + 1, acknowledged=rest)["received"]
    room.tally.expect("received", sorted([*rest, "two"]), sorted(one["body"] for one in first))
    again = clients.call("grpc_receive", **receive, count=1)["received"]
    room.tally.expect("received again", [{"body": "two", "attempt": 2}], again)
    broker.driver.call("proxy_stop")


def by_grpc(topic: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"topic": topic, "body": base64.b64encode(name.encode()).decode(), "key": name, "tag": "t", **fields}


def compare_look(room: Room, mount: Path, look: Look) -> None:
    """The content of a path below the mount."""
    room.tally.queries += 1
    path = mount / look.path
    await_presence(path, wanted=True)
    room.tally.expect(look.path, look.body, path.read_bytes()[: len(look.body)])
    shown = {name: os.getxattr(path, f"user.mq.property.{name}").decode() for name in look.properties}
    room.tally.expect(f"properties of {look.path}", look.properties, shown)


def compare_reply(room: Room, mount: Path) -> None:
    """A request and its reply are told by the same number."""
    paths = (mount / "asked" / "keys" / "question", mount / f"{CLUSTER}_REPLY_TOPIC" / "0" / "0")
    asked, answered = (os.getxattr(path, "user.mq.property.CORRELATION_ID") for path in paths)
    room.tally.expect("number of a request and its reply", asked, answered)
