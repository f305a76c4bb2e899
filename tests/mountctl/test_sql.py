"""mountctl sql: topics as tables."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig
from mountctl.mount_client import MountClient
from mountctl.places import mounts
from tests.mount.harness import Mounted, mounted
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, eventually, mountctl, succeed

LINES = ['{"user": "ann", "n": 1}', '{"user": "bob", "n": 2}', "no JSON, but ü", "a,b\t\x1b[31m"]

ENDLESS = "select count(*) from range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("sql")) as mount:
        (mount.topic("orders") / "0/append@tags=new,keys=K").write_text("\n".join([*LINES, ""]))
        (mount.root / "orders/1/append@frame=file").write_bytes(b"\xff")
        (mount.topic("%DLQ%billing") / "append").write_text("dead\n")
        mount.topic("empty")
        yield mount


def asked(mount: Mounted, query: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in succeed("sql", mount.root, query, "--json").splitlines()]


def test_fields_of_json_are_within_reach_beside_bodies_that_are_none(mount: Mounted) -> None:
    query = "select json->>'$.user' as name, sum((json->>'$.n')::int) as n from orders group by name order by name"
    assert asked(mount, query) == [{"name": "ann", "n": 1}, {"name": "bob", "n": 2}, {"name": None, "n": None}]
    rows = asked(mount, "select body, octet_length(bytes) as size, keys, tags, properties from orders order by queue")
    assert sorted(str(row["body"]) for row in rows) == sorted([*LINES, "None"])
    assert rows[-1]["size"] == 1
    assert rows[0]["properties"] == {"KEYS": "K", "TAGS": "new"}


def test_46_a_name_that_is_no_column_is_a_field_of_the_bodies(site: Site) -> None:
    bodies = [
        {"user": "ann", "n": 1, "price": 1.5, "ok": True, "spot": {"x": 1}, "mixed": 1, "queue": "q", "N": 7},
        {"user": "bob", "n": 2, "price": 2, "ok": False, "spot": {"x": 2}, "mixed": "a", "it's": 3},
        {"user": None, "n": 3},
    ]
    with MessageStore.open(site.store, create=True) as store:
        for body in bodies:
            store.put(Message("orders", json.dumps(body).encode()), 0)
        store.put(Message("orders", b"no JSON"), 0)
        store.put(Message("bills", b'{"n": 10}'), 0)

    place = site.mounted().mountpoint

    def rows(query: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in succeed("sql", place, query, "--json").splitlines()]

    found = rows('select "user", n, price, ok, spot, mixed, "it\'s" from orders order by queue_offset')
    assert found[0] == {"user": "ann", "n": 1, "price": 1.5, "ok": True, "spot": {"x": 1}, "mixed": 1, "it's": None}
    assert found[1] == {"user": "bob", "n": 2, "price": 2.0, "ok": False, "spot": {"x": 2}, "mixed": "a", "it's": 3}
    assert [row["n"] for row in found] == [1, 2, 3, None]
    assert found[2]["user"] is None
    kinds = rows("select distinct typeof(n) as n, typeof(price) as p, typeof(ok) as o, typeof(mixed) as m from orders")
    assert kinds == [{"n": "BIGINT", "p": "DOUBLE", "o": "BOOLEAN", "m": "JSON"}]
    assert rows("select sum(orders.n) as n from orders where orders.price > 1") == [{"n": 3}]
    assert rows("select sum(n) as n from messages where queue = 0") == [{"n": 16}], "queue is the message's own"
    assert rows("create table t as select n from orders; select sum(n) as n from t") == [{"n": 6}]
    assert "n" not in rows("from orders limit 1")[0], "only a query that names one gets such columns"
    unknown = mountctl("sql", place, "select nosuch from orders")
    assert (unknown.returncode, '"nosuch" not found' in unknown.stderr) == (64, True)


@pytest.mark.parametrize("way", ["unmounted", "mounted"])
def test_47_a_group_goes_on_where_it_ended(site: Site, way: str) -> None:
    def publish(*numbers: int) -> None:
        for number in numbers:
            succeed("put", place, f"orders/{number % 2}", f'{{"n": {number}}}')

    succeed("init", site.store)
    place = site.store if way == "unmounted" else site.mounted().mountpoint
    succeed("topics", "create", place, "orders", "empty")

    def had(*options: str, query: str = "select n from orders order by n") -> list[int]:
        rows = succeed("sql", place, query, "--json", "-g", "g", *options).splitlines()
        return [json.loads(row)["n"] for row in rows]

    publish(1, 2, 3)
    assert had() == [1, 2, 3]
    assert had() == []
    publish(4, 5)
    assert mountctl("sql", place, "select n + 'x' from orders", "-g", "g").returncode == 64, (
        "and the group has had none"
    )
    assert had("--where", "n > 4") == [5], "and has passed over the others"
    assert had() == []
    publish(6)
    both = "create table t as select * from orders; select count(*) as n from t join orders using (queue_offset)"
    assert had(query=both) == [1]
    assert had(query="select count(*) as n from empty") == [0]
    status = json.loads(succeed("status", place, "--json"))
    assert {queue: at["lag"] for queue, at in status["groups"]["g"]["orders"].items()} == dict.fromkeys("0123", 0)
    assert succeed("consume", place, "orders", "-g", "g") == ""
    assert mountctl("sql", place, "from orders", "-g", "g", "--from", "-1h").returncode == 64
    if way == "mounted":
        claim = MountClient(next(found for found in mounts() if found.mountpoint == place)).claim("g", "orders", 1)
        assert claim is not None
        refused = mountctl("sql", place, "from orders", "-g", "g")
        assert (refused.returncode, "another member of g consumes orders/1" in refused.stderr) == (75, True)
        claim.release()
        succeed("sql", place, "from orders", "-g", "g")


def test_any_topic_is_a_table_and_messages_are_all_of_them(mount: Mounted) -> None:
    assert asked(mount, 'select body from "%DLQ%billing"') == [{"body": "dead"}]
    assert asked(mount, "select count(*) as n from EMPTY") == [{"n": 0}]
    found = asked(mount, "select topic, count(*) as n from messages group by topic order by n")
    assert found == [{"topic": "%DLQ%billing", "n": 1}, {"topic": "orders", "n": 5}]
    both = "create table t as select queue from orders; select max(queue) as most from t"
    assert asked(mount, both) == [{"most": 1}]
    assert asked(mount, "select count(*) as n from orders a join orders b using (physical_offset)") == [{"n": 5}]
    assert asked(mount, "select 1 from orders; select count(*) as n from orders") == [{"n": 5}]


def test_rows_are_a_table_or_csv(mount: Mounted) -> None:
    query = "select body, queue from orders where queue = 0 order by queue_offset;"
    shown = succeed("sql", mount.root, query).splitlines()
    assert shown[0].split() == ["body", "queue"]
    assert "\x1b" not in shown[4], "nothing of a message reaches a terminal as it is"
    assert list(csv.reader(succeed("sql", mount.root, query, "--csv").splitlines())) == [
        ["body", "queue"],
        *([line, "0"] for line in LINES),
    ]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select * from order", "syntax error"),
        ("select * from absent", "there are topics: %DLQ%billing, empty, orders"),
        ("select absent from orders", "absent"),
        ("/* nothing */", "the query is empty"),
        ("select (body)::int from orders", "Conversion Error"),
    ],
)
def test_what_cannot_be_asked_is_said_on_a_line(mount: Mounted, query: str, words: str) -> None:
    done = mountctl("sql", mount.root, query)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert words in done.stderr


def test_files_of_other_times_are_not_opened(tmp_path: Path) -> None:
    hour_ms, now = 3_600_000, [0]
    sizes = FileSizes(commit_log_bytes=1 << 16, consume_queue_entries=1_000, index_slots=500, index_entries=2_000)
    with MessageStore.open(tmp_path / "store", StoreConfig(sizes=sizes, clock=lambda: now[0]), create=True) as store:
        store.create_topic("orders", 1)
        for number in range(1, 101):
            now[0] = number * hour_ms
            store.put(Message("orders", b"%04000d" % number), 0)
    with mounted(tmp_path, store=tmp_path / "store") as mount:
        times = ("--from", str(20 * hour_ms), "--until", str(30 * hour_ms))
        query = "select min(body::int) as first, max(body::int) as last, count(*) as n from orders"
        (found,) = map(json.loads, succeed("sql", mount.root, query, *times, "--json").splitlines())
        assert found == {"first": 20, "last": 29, "n": 10}
        assert len(list(mount.root.glob("@parquet/*/*/*"))) > 5
        assert mount.status()["parquet"]["rendered_files"] <= 2
        assert asked(mount, "select count(*) as n from orders") == [{"n": 100}]


def test_a_store_that_is_not_mounted_is_mounted_meanwhile(tmp_path: Path) -> None:
    store, query = tmp_path / "store", "select body from orders order by body"
    succeed("init", store)
    succeed("put", store, "orders", "1", "2")
    assert succeed("sql", store, query).split() == ["body", "1", "2"]
    with MessageStore.open(store):  # by another writer: it is followed
        assert succeed("sql", store, query, "--csv").split() == ["body", "1", "2"]
    assert not [mount for mount in mounts() if mount.store == store]
    succeed("put", store, "orders", "3")  # nobody has it


def test_what_is_no_store_is_refused_in_the_words_of_mount(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no store")
    refused = mountctl("sql", tmp_path, "select 1")
    assert (refused.returncode, refused.stderr) == (
        65, f"mountctl: {tmp_path} is not a message store: there is no commitlog folder, but 'notes'\n",
    )  # fmt: skip
    (tmp_path / "notes").unlink()
    refused = mountctl("sql", tmp_path, "select 1")
    assert (refused.returncode, list(tmp_path.iterdir())) == (66, [])


@pytest.mark.parametrize("killed", ["the query", "its mount"])
def test_a_query_that_is_killed_leaves_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = tmp_path / "store"
    succeed("init", store)
    command: list[str | Path] = [sys.executable, "-m", "mountctl", "sql", store, ENDLESS]
    with subprocess.Popen(command) as asking:
        eventually(lambda: any(mount.store == store for mount in mounts()), "it is mounted")
        if killed == "its mount":
            (pid,) = Path(f"/proc/{asking.pid}/task/{asking.pid}/children").read_text().split()
            os.kill(int(pid), signal.SIGKILL)
            asking.send_signal(signal.SIGINT)
            asking.wait(DEADLINE_SECONDS)
            assert not list(tmp_path.glob("mountctl-*"))
        asking.kill()
    eventually(lambda: not any(mount.store == store for mount in mounts()), "it is unmounted")


def test_a_query_is_interrupted_in_one_line(mount: Mounted) -> None:
    command: list[str | Path] = [sys.executable, "-m", "mountctl", "sql", mount.root, ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:

        def is_at_it() -> bool:
            user_ticks = int(Path(f"/proc/{asking.pid}/stat").read_text().rpartition(")")[2].split()[11])
            return user_ticks > 2 * os.sysconf("SC_CLK_TCK")  # of its own time: it starts within one second

        try:
            eventually(is_at_it, "the query runs")
            asking.send_signal(signal.SIGINT)
            assert asking.communicate(timeout=DEADLINE_SECONDS) == ("", "mountctl: interrupted\n")
        finally:
            asking.kill()
    assert asking.returncode == 130


@pytest.mark.parametrize(
    "query",
    [
        "select content from read_text('{secret}')",
        "select content from read_text('{mount}/@parquet/../../{secret}')",
        "from '{secret}'",
        "copy orders to '{written}'",
        "attach '{written}' as other",
        "install httpfs",
        "set enable_external_access = true",
        "export database '{written}'",
        "from mountpoint",
    ],
)
def test_a_query_reads_the_topics_and_nothing_else(mount: Mounted, tmp_path: Path, query: str) -> None:
    secret, written = tmp_path / "secret.csv", tmp_path / "written"
    secret.write_text("password\nhunter2\n")
    refused = mountctl("sql", mount.root, query.format(secret=secret, mount=mount.root, written=written))
    assert refused.returncode in (os.EX_NOPERM, os.EX_USAGE)
    assert "hunter2" not in refused.stdout + refused.stderr
    assert not written.exists()


def test_unsafe_opens_files_to_a_query(mount: Mounted, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("fruit,price\napple,3\n")
    query = f"select price from '{tmp_path}/prices.csv'"
    assert mountctl("sql", mount.root, query).returncode == os.EX_NOPERM
    assert json.loads(succeed("sql", mount.root, query, "--unsafe", "--json")) == {"price": 3}


def test_rows_go_to_a_file_of_the_format_that_its_name_says(mount: Mounted, tmp_path: Path) -> None:
    query = "select body, queue from orders where queue = 0 order by queue_offset limit 1;"
    for _ in range(2):  # a file that is there is replaced
        assert succeed("sql", mount.root, query, "--output", tmp_path / "rows.json") == ""
    assert json.loads((tmp_path / "rows.json").read_text()) == {"body": LINES[0], "queue": 0}
    succeed("sql", mount.root, query, "--output", tmp_path / "rows.parquet")
    found = succeed("sql", mount.root, f"from '{tmp_path}/rows.parquet'", "--json", "--unsafe")
    assert [json.loads(line) for line in found.splitlines()] == [{"body": LINES[0], "queue": 0}]
    assert mountctl("sql", mount.root, query, "--output", tmp_path / "rows").returncode == os.EX_USAGE
