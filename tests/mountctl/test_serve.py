"""A server of a mount: what docs/fleet.md does not number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from engine import Message, MessageStore
from fsstore.fleet.datasets import BrokerError
from fsstore.fleet.hadoop_tokens import TOKEN_FILE, HadoopTokensError, hadoop_token_file, own_tokens
from fsstore.fleet.http import RemoteFile, Server
from fsstore.fleet.sources import MountedSource, ServedSource, Slot
from fsstore.jobs.mount import QueueRange
from fsstore.serve.connection import Answer, Request
from fsstore.serve.files import Datasets
from fsstore.serve.tree import ServedMount, ServedTree
from fsstore.serve.webhdfs import WebHdfs
from tests.mount.claims import carried, promised
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, eventually, fill, mountctl, site_in
from tests.mountctl.served import CERTIFICATES, FIRST_TOKEN, SECOND_TOKEN, served, tokens_in

T = TypeVar("T")
TRIES = 1_000
HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs/fleet.md"
TLS = "--certificate", CERTIFICATES / "server.pem"


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A mount of 8 MB."""
    for site in site_in(tmp_path_factory.mktemp("served")):
        with MessageStore.open(site.store, create=True) as store:
            for number in range(4_000):
                store.put(Message("orders", os.urandom(1_000).hex().encode(), keys=[f"ORDER-{number}"]), queue=0)
        yield site.mounted()


def test_every_promise_has_a_test_and_every_test_its_promise() -> None:
    assert len(promised(DOCUMENT)) > 15
    kept = carried(HERE / "test_serve_promises_*.py") + carried(HERE.parent / "spark/test_fleet*.py")
    assert sorted(kept, key=lambda claim: tuple(map(int, claim[0].split(".")))) == promised(DOCUMENT)


def test_what_is_known_of_a_file_is_not_asked_of_the_mount(mounted: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel knows a status for a second, and has some pages in memory. A footer is remembered for some seconds, a
    file is kept open for a moment."""
    root = mounted.mountpoint
    tree = ServedTree(str(root), lambda: ServedMount(root.stat().st_dev, False))
    file = next((root / "@parquet/topic=orders/queue=0").iterdir())
    parts, content = tuple(map(os.fsencode, file.relative_to(root).parts)), file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")

    def shown(status: os.stat_result) -> tuple[int, ...]:
        return (*status[:7], status.st_mtime_ns)

    assert shown(found(lambda: tree.known_entry(parts), file).status) == shown(file.stat())
    assert tree.known_entry((b"@parquet", b"none")) is None

    hdfs, now_s = WebHdfs(tree, "host", Datasets(tree, None)), time.monotonic()

    def opened(offset: int, **more: int) -> Answer | None:
        file.stat()
        numbers = {"offset": offset, **more}
        request = Request("GET", "", b"", {name: str(number) for name, number in numbers.items()}, {})
        return hdfs.known_answer(parts, "OPEN", request)

    asked = Request("GET", "", b"", {"offset": str(len(content) - 8)}, {})
    assert opened(len(content) - 8) is None
    assert hdfs.answer(parts, "OPEN", asked).body == content[-8:]
    for begin in (footer, len(content) - 8, len(content)):
        answer = found(partial(opened, begin), file)
        assert (answer.body, answer.begin) == (content[begin:], begin)
    assert found(partial(opened, footer, length=5), file).body == content[footer : footer + 5]
    for begin, size in ((8, 60_000), (footer - 5, 5), (5_000_001, 1)):
        with file.open("rb") as there:
            os.posix_fadvise(there.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert opened(begin, length=size) is None
            os.pread(there.fileno(), size, begin)
        assert found(partial(opened, begin, length=size), file).body == content[begin : begin + size]
    large = found(partial(opened, 8, length=1_000_000), file)
    assert large.file is not None
    assert os.pread(large.file.fileno(), 4_000, 8) == content[8:4_008]
    large.file.close()
    monkeypatch.setattr(time, "monotonic", partial(float, now_s + 9))
    hdfs.close_idle()
    assert not uses_of(root)
    assert opened(8, length=4) is None
    assert found(partial(opened, footer), file).body == content[footer:]
    monkeypatch.setattr(os, "geteuid", lambda: 64_104)  # to others the kernel does not say which pages it has
    hdfs.answer(parts, "OPEN", asked)
    assert opened(8, length=4) is None
    monkeypatch.setattr(time, "monotonic", partial(float, now_s + 21))
    assert opened(footer) is None


def test_a_mount_that_does_not_answer_is_not_waited_for(mounted: Site) -> None:
    root = mounted.mountpoint
    tree = ServedTree(str(root), lambda: ServedMount(device, False))
    device, daemon = root.stat().st_dev, int(json.loads((root / "@store/status.json").read_text())["pid"])
    with ThreadPoolExecutor(1) as thread:
        os.kill(daemon, signal.SIGSTOP)
        try:
            unknown = thread.submit(tree.known_entry, (b"@parquet", b"topic=orders", b"queue=7"))
            assert unknown.result(DEADLINE_SECONDS) is None
        finally:
            os.kill(daemon, signal.SIGCONT)


def uses_of(root: Path) -> list[str]:
    """The files below `root` that this process has open or mapped."""
    opened = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return [text for text in (*opened, *Path("/proc/self/maps").read_text().splitlines()) if str(root) in text]


def found(look: Callable[[], T | None], file: Path) -> T:
    """What a look finds when the kernel knows the status of a file."""
    for _ in range(TRIES):
        file.stat()
        if (known := look()) is not None:
            return known
    raise AssertionError("it is not known")


@pytest.mark.parametrize("options", [(), TLS], ids=["http", "https"])
def test_many_clients_at_once_get_their_own_bytes(
    mounted: Site, tmp_path: Path, options: tuple[str | Path, ...]
) -> None:
    root = mounted.mountpoint
    file = next((root / "@parquet/topic=orders/queue=0").iterdir())
    contents = {str(path.relative_to(root)): path.read_bytes() for path in (root / "orders.log", file)}
    contents["orders/0/7"] = (root / "orders/0/7").read_bytes()
    with served(root, tmp_path, *options) as server, ThreadPoolExecutor(12) as clients:
        asked = [path for path in contents for _ in range(8)]
        for path, reply in zip(
            asked, clients.map(lambda path: server.ask(f"/files/{quote(path)}"), asked), strict=True
        ):
            assert reply.body == contents[path]


def test_a_client_hangs_up_through_tls(mounted: Site, tmp_path: Path) -> None:
    root = mounted.mountpoint
    file = next((root / "@parquet/topic=orders/queue=0").iterdir())
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    begin, size = chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size
    url = f"/webhdfs/v1/{quote(str(file.relative_to(root)))}?op=OPEN&direct=1&offset={begin}"
    with served(root, tmp_path, *TLS) as server:
        authority = str(CERTIFICATES / "ca.pem")
        hangs_up = ["curl", "-s", "--cacert", authority, "--max-filesize", "1", server.origin + url]

        def is_sent_little() -> bool:
            """As without TLS: on a busy machine it may hang up too late, and asks again."""
            done = subprocess.run(hangs_up, check=False, timeout=DEADLINE_SECONDS, capture_output=True)
            assert done.returncode == 63
            asked.append(done)
            [*_, line] = server.logged(" OPEN ", len(asked))
            return int(line[6]) <= int(1.5 * size)

        asked: list[object] = []
        eventually(is_sent_little, "the chunk is sent alone")
        assert server.ask(url).body == file.read_bytes()[begin:]


@pytest.mark.parametrize("mode", ["--read-only", "--follow"])
def test_mounts_that_only_read_are_served(site: Site, tmp_path: Path, mode: str) -> None:
    fill(site.store)
    site.mounted(mode)
    with served(site.store, tmp_path) as server:
        assert server.ask("/files/orders/0/9").body == b"order 9"
        assert len(server.ask("/datasets?topic=orders&since=2001-01-01").body.splitlines()) == 1


def test_a_store_must_be_mounted(store: Path) -> None:
    refused = mountctl("serve", store)
    assert (refused.returncode, refused.stdout) == (os.EX_NOINPUT, "")
    assert "no store is mounted at" in refused.stderr


def test_a_server_that_may_not_read_the_store(site: Site, tmp_path: Path) -> None:
    fill(site.store)
    site.mounted()
    elsewhere = site.store.rename(tmp_path / "elsewhere")
    with served(site.mountpoint, tmp_path) as server:
        elsewhere.rename(site.store)
        assert "since and until are not served" in server.messages.read_text()
        assert server.ask("/files/orders/0/9").body == b"order 9"
        assert server.ask("/datasets?topic=orders&since=2001-01-01").status == 501
        assert len(server.ask("/datasets?topic=orders").body.splitlines()) == 1


def test_a_file_that_is_read_by_ranges_stays_the_same(site: Site, tmp_path: Path) -> None:
    fill(site.store)
    site.mounted()
    whole = (site.mountpoint / "orders.log").read_bytes()
    with served(site.mountpoint, tmp_path) as first:
        server = Server("a", first.origin, None)
        file = RemoteFile(server, "/files/orders.log")
        assert file.read(5) + file.read() == whole
        assert (file.seek(-3, os.SEEK_END), file.read(99), file.read(1)) == (len(whole) - 3, whole[-3:], b"")
    file.seek(0)
    with pytest.raises(BrokerError, match=r"broker a at .*Connection refused"):
        file.read()
    with served(site.mountpoint, tmp_path, "--listen", f"127.0.0.1:{first.port}"):
        assert file.read() == whole, "on another connection"
        (site.mountpoint / "orders/0/append").write_text("more\n")
        file.seek(0)
        with pytest.raises(BrokerError, match=r"another file is at /files/orders\.log now"):
            file.read()
        file.close()
        with pytest.raises(FileNotFoundError):
            RemoteFile(server, "/files/none.log")


def test_hadoops_token_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(hadoop_token_file(FIRST_TOKEN, ["10.0.0.5", "broker-a"], 9870))
    assert own_tokens({TOKEN_FILE: str(path)}) == {"10.0.0.5:9870": FIRST_TOKEN, "broker-a:9870": FIRST_TOKEN}
    assert own_tokens({}) == {}
    for content in (b"", b"HDTS\1", path.read_bytes()[:40]):
        path.write_bytes(content)
        with pytest.raises(HadoopTokensError, match="not a Hadoop token file"):
            own_tokens({TOKEN_FILE: str(path)})


def test_a_fleet_asks_a_server_by_tls_and_token(mounted: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
    with served(mounted.mountpoint, tmp_path, *TLS, "--tokens", tokens_in(tmp_path / "t", spark=FIRST_TOKEN)) as server:
        source, here = ServedSource("a", server.origin, FIRST_TOKEN), MountedSource("a", str(mounted.mountpoint))
        assert source.root == f"swebhdfs://127.0.0.1:{server.port}/@parquet"
        assert source.witness() == here.witness()
        for topics in (None, ["orders"], ["none", "orders"]):
            assert source.files(topics, None, None) == here.files(topics, None, None) != []
        assert source.files(None, 1 << 50, None) == here.files(["none"], None, None) == []
        assert source.bounds() == here.bounds()
        assert source.bounds()["orders"][0] == (0, 4_000)
        slots = [Slot("orders", 0, number) for number in (*range(0, 4_000, 100), 5_000)] + [Slot("none", 7, 0)]
        assert source.physical_offsets(slots) == here.physical_offsets(slots)
        assert source.offset_at("orders", 0, 0) == here.offset_at("orders", 0, 0) == 0
        part = QueueRange("orders", 0, 100, 3_000)
        assert source.size_of(part) == here.size_of(part) > 0 == source.size_of(QueueRange("none", 0, 0, 7))
        with source.range_file(part) as there, here.range_file(part) as path:
            assert pq.read_table(there).equals(pq.read_table(path, partitioning=None))
        with pytest.raises(BrokerError, match=r"broker a at .* 401 Unauthorized: the token is not valid"):
            ServedSource("a", server.origin, SECOND_TOKEN).files(None, None, None)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(BrokerError, match="CERTIFICATE_VERIFY_FAILED"):
            source.witness()
