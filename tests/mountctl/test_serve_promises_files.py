"""docs/fleet.md, 1 and 4: what a server of a mount serves, and how it is watched."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import polars
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine import FileSizes, Message, MessageStore, StoreConfig
from tests.mount.harness import SMALL_SIZES
from tests.mountctl.conftest import Site, eventually, site_in
from tests.mountctl.served import Reply, Server, served

NOT_SERVED = (
    "orders/append",
    "orders/append@keys=x",
    "orders/0/append",
    "orders/drop",
    "orders/drop/draft",
    "orders/0/drop",
    "@store/control",
    "@store/groups",
    "@store/groups/billing/orders/0",
    "@store/accesslog",
    "@store/refusals",
    "@store/anything",
)


class Place(NamedTuple):
    site: Site
    server: Server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server of a mount; its store has three files of the log, and 1,200 short messages in `many/0`."""
    for site in site_in(tmp_path_factory.mktemp("served")):
        with MessageStore.open(site.store, StoreConfig(sizes=FileSizes(**SMALL_SIZES)), create=True) as store:
            for number in range(2_500):
                body = b"%d " % number + os.urandom(500)
                store.put(Message("orders", body, keys=[f"ORDER-{number}"], tags=f"tag {number}"), queue=number % 2)
            store.put_lines("many", b"".join(b"%d\n" % number for number in range(1_200)), queue=0)
            store.put(Message("%RETRY%billing", b"again"), queue=0)
        site.mounted()
        with served(site.mountpoint, site.log.parent) as server:
            yield Place(site, server)


def below(root: Path) -> Iterator[Path]:
    """The files of a mount that are served; links are none."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in ("drop", "groups")]
        refused = {"append", "control", "refusals", "accesslog"}
        yield from (found for name in files if name not in refused and not (found := Path(folder, name)).is_symlink())


def test_files_by_path(place: Place) -> None:
    """1.1 `/files/PATH` is the file at PATH in the mount. GET and HEAD return the whole file or one byte range, with
    the file's size, its time, and an ETag made of both."""
    root, server = place.site.mountpoint, place.server
    parquet = next((root / "@parquet/topic=orders/queue=1").iterdir())
    names = ("orders.log", "orders/0.log", "orders/1/7", "orders/keys/ORDER-3", "orders/0/@last", "%RETRY%billing.log")
    for path in (*names, str(parquet.relative_to(root)), "@store/config.json"):
        content, url = (root / path).read_bytes(), f"/files/{quote(path)}"
        whole = server.ask(url)
        assert (whole.status, whole.body) == (200, content), path
        assert int(whole.headers["content-length"]) == len(content)
        head = server.ask(url, "HEAD")
        assert (head.status, head.body, head.headers["etag"]) == (200, b"", whole.headers["etag"])
        size = len(content)
        for asked, begin, end in (("0-9", 0, 10), ("5-", 5, size), ("-4", size - 4, size), (f"2-{size + 9}", 2, size)):
            end = min(end, size)
            part = server.ask(url, Range=f"bytes={asked}", If_Range=whole.headers["etag"])
            assert (part.status, part.body) == (206, content[begin:end]), asked
            assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{size}"
        assert server.ask(url, Range=f"bytes={size}-").status == 416
        assert server.ask(url, Range="bytes=0-1", If_Range='"another"').body == content
        assert server.ask(url, If_None_Match=whole.headers["etag"]).status == 304
    assert server.ask("/files/orders/0/99999").status == 404
    assert server.ask("/files/orders/0").status == 404


def test_the_calls_of_hadoops_client(place: Place) -> None:
    """1.2 `/webhdfs/v1/PATH` answers GETFILESTATUS, LISTSTATUS, LISTSTATUS_BATCH, GETFILEBLOCKLOCATIONS,
    GETHOMEDIRECTORY and OPEN as a name node does. The first OPEN is redirected to this server. JSON answers have no
    Content-Type."""
    root, server = place.site.mountpoint, place.server
    found = {}

    def walk(path: str) -> None:
        listing = server.ask(f"/webhdfs/v1{quote(path)}?op=LISTSTATUS")
        assert "content-type" not in listing.headers
        for status in listing.json["FileStatuses"]["FileStatus"]:
            name = f"{path}/{status['pathSuffix']}"
            if status["type"] == "DIRECTORY":
                walk(name)
            elif status["type"] == "FILE":
                found[name] = status["length"], status["modificationTime"]

    walk("")
    assert found.keys() == {f"/{file.relative_to(root)}" for file in below(root)}
    for path in ("/orders.log", "/orders/0/00000000000000000007", *(name for name in found if "@parquet" in name)):
        content, url = Path(f"{root}{path}").read_bytes(), f"/webhdfs/v1{quote(path)}"
        status = server.ask(f"{url}?op=GETFILESTATUS&user.name=spark").json["FileStatus"]
        assert (status["length"], status["modificationTime"]) == found[path] == (len(content), int_mtime(root, path))
        redirected = server.ask(f"{url}?op=OPEN&offset=3&length=5")
        assert (redirected.status, redirected.body) == (307, b"")
        there = redirected.headers["location"].removeprefix(server.origin)
        assert server.ask(there).body == content[3:8]
        assert server.ask(f"{url}?op=open&direct=1&offset={len(content) - 8}").body == content[-8:]
        assert server.ask(f"{url}?op=OPEN&direct=1&length=null").body == content
        [block] = server.ask(f"{url}?op=GETFILEBLOCKLOCATIONS").json["BlockLocations"]["BlockLocation"]
        assert (block["offset"], block["length"], len(block["hosts"])) == (0, len(content), 1)
        part = server.ask(f"{url}?op=GETFILEBLOCKLOCATIONS&offset=5&length=7").json["BlockLocations"]["BlockLocation"]
        assert part == [{**block, "offset": 5, "length": 7}]
    assert server.ask("/webhdfs/v1/?op=GETHOMEDIRECTORY").json == {"Path": "/"}
    names: list[str] = []
    after, remaining = "", 1
    while remaining:
        call = f"/webhdfs/v1/many/0?op=LISTSTATUS_BATCH&startAfter={after}"
        listing = server.ask(call).json["DirectoryListing"]
        some = [status["pathSuffix"] for status in listing["partialListing"]["FileStatuses"]["FileStatus"]]
        names, after, remaining = names + some, some[-1], listing["remainingEntries"]
    assert names == [f"{number:020}" for number in range(1_200)]
    for path in ("/@parquet/_spark_metadata", "/none"):
        absent = server.ask(f"/webhdfs/v1{path}?op=GETFILESTATUS")
        assert (absent.status, absent.json["RemoteException"]["exception"]) == (404, "FileNotFoundException")
        assert "content-type" not in absent.headers
    beyond = server.ask("/webhdfs/v1/orders/0/7?op=OPEN&direct=1&offset=9999")
    assert (beyond.status, server.ask("/webhdfs/v1/orders.log?op=OPEN&direct=1&offset=x").status) == (403, 400)


def int_mtime(root: Path, path: str) -> int:
    return Path(f"{root}{path}").stat().st_mtime_ns // 1_000_000


def test_a_client_that_hangs_up_gets_no_more_than_it_came_for(place: Place) -> None:
    """1.3 When a client opens a Parquet file at a column chunk and hangs up after that chunk, the server has sent at
    most half as much again. A client that keeps reading gets the rest of the file."""
    root, server = place.site.mountpoint, place.server
    file = next((root / "@parquet/topic=orders/queue=0").iterdir())
    content, group = file.read_bytes(), pq.ParquetFile(file).metadata.row_group(0)
    asked: Counter[int] = Counter()

    def sent_from(begin: int) -> list[int]:
        lines = server.logged(f" OPEN /webhdfs/v1/{file.relative_to(root)} ")
        return [int(line[6]) for line in lines if line[5] == str(begin)]

    for number in range(group.num_columns):
        chunk = group.column(number)
        start, size = chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size
        url = f"/webhdfs/v1/{quote(str(file.relative_to(root)))}?op=OPEN&direct=1&offset={start}"

        def is_sent_little(url: str = url, start: int = start, size: int = size) -> bool:
            """Whether so little is sent: this process may be too late on a busy machine, and then it asks again."""
            with server.connect() as connection:
                connection.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                got = b""
                while len(got.partition(b"\r\n\r\n")[2]) < size:
                    got += connection.recv(size)
                assert got.partition(b"\r\n\r\n")[2][:size] == content[start : start + size]
                asked[start] += 1
            eventually(lambda: len(sent_from(start)) == asked[start], "the request is logged")
            return size <= sent_from(start)[-1] <= 1.5 * size

        eventually(is_sent_little, f"chunk {number} is sent alone")
    assert server.ask(url).body == content[start:]


def test_the_files_of_a_dataset(place: Place) -> None:
    """1.4 `/datasets?topic=&since=&until=` lists the Parquet files with the messages of one topic, or of all topics,
    stored in [since, until). Each line is a JSON object with url, topic, queue, begin, end, bytes and rows."""
    root, server = place.site.mountpoint, place.server

    def named(question: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in server.ask(f"/datasets{question}").body.splitlines()]

    every = named("")
    assert {row["topic"] for row in every} == {"orders", "many", "%RETRY%billing"}
    orders = named("?topic=orders")
    assert orders == [row for row in every if row["topic"] == "orders"]
    assert len(orders) > 2
    for row in orders:
        file = root / str(row["url"]).removeprefix(f"{server.origin}/files/")
        assert (file.stat().st_size, pq.ParquetFile(file).metadata.num_rows) == (row["bytes"], row["rows"])
    bodies = polars.scan_parquet([str(row["url"]) for row in orders]).select("body").collect()["body"]
    assert sorted(bodies) == sorted(
        message.read_bytes() for queue in "01" for message in (root / "orders" / queue).glob("0*")
    )
    times = {
        (queue, offset): int(os.getxattr(root / f"orders/{queue}/{offset}", "user.mq.store_time"))
        for queue in range(2)
        for offset in range(1_250)
    }
    since, until = sorted(times.values())[400], sorted(times.values())[900]
    some = named(f"?topic=orders&since={since}&until={until}")
    assert 0 < len(some) < len(orders)
    covered = {(row["queue"], offset) for row in some for offset in range(int(str(row["begin"])), int(str(row["end"])))}
    assert {slot for slot, time_ms in times.items() if since <= time_ms < until} <= covered
    assert named("?topic=orders&since=2100-01-01") == []
    assert named("?topic=orders&since=2001-01-01&until=2100-01-01") == orders
    assert server.ask("/datasets?topic=none").status == 404
    assert server.ask("/datasets?since=soon").status == 400


def test_what_is_not_served(place: Place) -> None:
    """1.5 Some files are not listed and answer 405: `append`, `drop`, and everything in `@store` except status.json,
    config.json and metrics. Those files publish, hold unpublished data, take commands, or belong to one user. Every
    method except GET and HEAD is answered 405 as well."""
    server = place.server
    for path in NOT_SERVED:
        for url in (f"/files/{path}", f"/webhdfs/v1/{path}?op=GETFILESTATUS", f"/webhdfs/v1/{path}?op=OPEN&direct=1"):
            assert server.ask(url).status == 405, url
    for method in ("PUT", "POST", "DELETE", "PATCH", "OPTIONS"):
        refused = server.ask("/webhdfs/v1/orders/0/append?op=CREATE", method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert server.ask("/webhdfs/v1/orders?op=DELETE").status == 405
    for folder, names in {"": {"orders", "orders.log"}, "@store": {"status.json", "config.json", "metrics"}}.items():
        listed = server.ask(f"/webhdfs/v1/{folder}?op=LISTSTATUS").json["FileStatuses"]["FileStatus"]
        shown = {status["pathSuffix"] for status in listed}
        assert names <= shown
        assert not shown & {path.rpartition("/")[2] for path in NOT_SERVED}
        assert folder == "" or shown == names


def test_paths_that_lead_out(place: Place) -> None:
    """1.6 No path leads out of the mount: not by `..`, encoded or not, not by NUL, and not by a link."""
    server, outside = place.server, place.site.log.parent / "secret"
    outside.write_text("secret")
    ups = ("..", "%2e%2e", "%2E.", "..%2f..", "orders/../..", "orders/%2e%2e/%2e%2e", ".", "orders/0/7%00", "%00")
    for up in ups:
        for url in (f"/files/{up}/secret", f"/webhdfs/v1/{up}/secret?op=OPEN&direct=1"):
            refused = server.ask(url)
            assert refused.status == 403, url
            assert refused.body != b"secret"
    assert server.ask(f"/files/{quote(str(outside))}").status == 404
    assert server.ask("http://127.0.0.1/files/orders.log").status == 404


def test_what_identifies_a_log(place: Place) -> None:
    """1.7 `/witness` returns the number of messages and the newest record. With topic, queue and offset it returns
    the record of that message, or null if there is none."""
    root, server = place.site.mountpoint, place.server

    def facts(message: Path) -> dict[str, str]:
        names = (
            "physical_offset",
            "store_size",
            "store_time",
            "store_host",
            "born_time",
            "born_host",
            "body_crc",
            "sys_flag",
        )
        return {name: os.getxattr(message, f"user.mq.{name}").decode() for name in names}

    newest = facts(root / "%RETRY%billing/0/0")
    record = {"topic": "%RETRY%billing", "queue": 0, "queue_offset": 0, "facts": newest}
    assert server.ask("/witness").json == {"messages": 3_701, "newest": record}
    assert server.ask("/witness?topic=%25RETRY%25billing&queue=0&offset=0").json == newest
    assert server.ask("/witness?topic=orders&queue=1&offset=7").json == facts(root / "orders/1/7")
    assert server.ask("/witness?topic=orders&queue=1&offset=9999").json is None
    for wrong in (
        "topic=orders",
        "topic=orders/1&queue=0&offset=0",
        "topic=orders&queue=x&offset=0",
        "topic=&queue=0&offset=0",
    ):
        assert server.ask(f"/witness?{wrong}").status == 400
    for outside in ("..", "../orders", "a%00b"):
        assert server.ask(f"/witness?topic={outside}&queue=0&offset=0").status == 403


def test_a_name_means_the_same_bytes_with_each_version(place: Place) -> None:
    """1.8 The layout of a Parquet file is part of its name. A version that lays files out differently names them
    differently, and a name that this version does not know is answered 404."""
    known = next((place.site.mountpoint / "@parquet/topic=orders/queue=1").iterdir()).name
    folder, name = "@parquet/topic=orders/queue=1", known.partition(".")[0]
    for suffix, status in ((".parquet", 200), (".2.parquet", 404), (".parquet2", 404), (".v2.tail.parquet", 404)):
        assert place.server.ask(f"/files/{folder}/{name}{suffix}", "HEAD").status == status
        for call in ("GETFILESTATUS", "OPEN&direct=1&length=4"):
            assert place.server.ask(f"/webhdfs/v1/{folder}/{name}{suffix}?op={call}").status == status


def test_positions_of_messages(place: Place) -> None:
    """1.9 `/positions?of=` takes JSON, {topic: {queue: N}}, and returns the physical offset of each message N, or
    null if there is none. For "@TIME" (epoch milliseconds or ISO 8601) it returns the queue offset of the first
    message stored at or after that time."""
    root, server = place.site.mountpoint, place.server
    orders = root / "orders"

    def ask(**queues: object) -> Reply:
        return server.ask(f"/positions?of={quote(json.dumps({'orders': queues}))}")

    truth = {number: int(os.getxattr(orders / "0" / str(number), "user.mq.physical_offset")) for number in (0, 7)}
    assert ask(**{"0": 7}).json == {"orders": {"0": truth[7]}}
    assert ask(**{"0": 0, "1": 99_999, "17": 0}).json == {"orders": {"0": truth[0], "1": None, "17": None}}
    stored_ms = int(os.getxattr(orders / "1/900", "user.mq.store_time"))
    [first] = [int(Path(os.readlink(orders / f"1/@{stored_ms}")).name)]
    assert ask(**{"0": "@0", "1": f"@{stored_ms}"}).json == {"orders": {"0": 0, "1": first}}
    assert ask(**{"0": "@2999-01-01"}).json == {"orders": {"0": None}}
    several = quote(json.dumps({"%RETRY%billing": {"0": 0}, "none": {"0": 0}}))
    found = server.ask(f"/positions?of={several}").json
    assert found["none"] == {"0": None}
    assert found["%RETRY%billing"]["0"] > truth[7]
    nonsense = '{"orders": {"0": 1.5}}', '{"orders": {"x": 0}}', '{"a/b": {"0": 0}}', '{"orders": {"0": "7"}}', "7", ""
    assert [server.ask(f"/positions?of={quote(text)}").status for text in nonsense] == [400] * len(nonsense)
    outside = quote('{"..": {"0": 0}}')
    assert server.ask(f"/positions?of={outside}").status == 403


def test_a_directory_with_the_files_of_a_time(place: Place) -> None:
    """1.10 `/webhdfs/v1/@parquet@SINCE-UNTIL/` is `@parquet` with only the files that `/datasets` lists for these
    times. The times are epoch milliseconds, and either may be left out."""
    server, queue = place.server, place.site.mountpoint / "orders/0"

    def listed(times: str) -> set[str]:
        call = f"/webhdfs/v1/@parquet@{times}/topic=orders/queue=0?op=LISTSTATUS"
        return {one["pathSuffix"] for one in server.ask(call).json["FileStatuses"]["FileStatus"]}

    def named(**times: int) -> set[str]:
        options = "&".join(f"{name}={time}" for name, time in times.items())
        lines = [json.loads(line) for line in server.ask(f"/datasets?topic=orders&{options}").body.splitlines()]
        return {line["url"].rpartition("/")[2] for line in lines if line["queue"] == 0}

    [first, late, last] = (int(os.getxattr(queue / str(number), "user.mq.store_time")) for number in (0, 1_200, 1_249))
    every = listed("-")
    assert len(every) > 1
    assert every == named() == listed(f"{first}-") == listed(f"-{last + 1}")
    assert listed(f"{last + 1}-") == listed(f"-{first}") == set()
    assert listed(f"{late}-{last}") == named(since=late, until=last) < every
    root = f"/webhdfs/v1/@parquet@{late}-"
    topics = {one["pathSuffix"] for one in server.ask(f"{root}?op=LISTSTATUS").json["FileStatuses"]["FileStatus"]}
    assert topics == {"topic=many", "topic=orders", "topic=%25RETRY%25billing"}
    [name, *_] = listed(f"{late}-")
    path = f"{root}/topic=orders/queue=0/{name}"
    assert server.ask(f"{path}?op=GETFILESTATUS").json["FileStatus"]["type"] == "FILE"
    truth = (place.site.mountpoint / "@parquet/topic=orders/queue=0" / name).read_bytes()
    assert server.ask(f"{path}?op=OPEN&direct=1").body == truth
    for nonsense in ("x-", "1", "1-2-3"):
        assert server.ask(f"/webhdfs/v1/@parquet@{nonsense}/?op=LISTSTATUS").status == 404


def test_whether_the_mount_answers(place: Place) -> None:
    """4.1 `/healthz` says, without a token, whether the mount answers."""
    well = place.server.ask("/healthz")
    assert (well.status, well.body) == (200, b"ok\n")


def test_figures_of_the_server(place: Place) -> None:
    """4.2 `/metrics` has the server's metrics in Prometheus' format."""

    def figures() -> dict[tuple[str, tuple[str, ...]], float]:
        text = place.server.ask("/metrics").body.decode()
        families = text_string_to_metric_families(text)
        return {(one.name, tuple(one.labels.values())): one.value for family in families for one in family.samples}

    size = len(place.server.ask("/files/orders.log").body)
    opened = ("fsstore_serve_requests_total", ("files", "200"))
    eventually(lambda: opened in figures(), "the first request is counted")
    sent, before = ("fsstore_serve_sent_bytes_total", ()), figures()
    place.server.ask("/files/orders.log")
    eventually(lambda: figures()[opened] == before[opened] + 1, "the second request is counted")
    assert figures()[sent] - before[sent] >= size
    assert figures()["fsstore_serve_connections", ()] >= 1


def test_a_line_for_each_request(place: Place) -> None:
    """4.3 `--access-log FILE` writes a line for each request: time, client, address, operation, path, begin, size,
    result and seconds. SIGHUP makes the server open the file anew."""
    server, moved = place.server, place.site.log.parent / "access.log.1"
    server.ask("/webhdfs/v1/orders/0/11?op=OPEN&direct=1&offset=2&length=3&mark=%0aforged")
    [line] = [one for one in server.logged("/webhdfs/v1/orders/0/11") if one[5:8] == ["2", "3", "200"]]
    assert line[0].endswith("Z")
    assert line[1:5] == [f"user:{os.geteuid()}", "127.0.0.1", "OPEN", "/webhdfs/v1/orders/0/11"]
    assert 0 <= float(line[8]) < 60
    server.access_log.rename(moved)
    server.process.send_signal(signal.SIGHUP)
    eventually(server.access_log.exists, "another access log")
    server.ask("/files/a%20b%0aforged")
    assert server.logged("/files/a\\x20b\\nforged")
    assert stat.S_IMODE(server.access_log.stat().st_mode) & 0o007 == 0
