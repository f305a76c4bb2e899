"""Programs that read Parquet from URLs: the lines of `/datasets` are what they are given."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig
from tests.mountctl.conftest import eventually, site_in
from tests.mountctl.served import Server, served

MESSAGES = 4_000
SIZES = FileSizes(commit_log_bytes=4 << 20, consume_queue_entries=10_000, index_slots=5_000, index_entries=20_000)


class Ranges(io.RawIOBase):
    """A file at a URL, read by ranges, as a program without an HTTP filesystem may open it."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end == self._at:
            return b""
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{end - 1}"})
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        self._at = end
        return content


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    for site in site_in(tmp_path_factory.mktemp("readers")):
        with MessageStore.open(site.store, StoreConfig(sizes=SIZES), create=True) as store:
            store.create_topic("orders", 2)
            for queue in range(2):
                store.put_batch([Message("orders", b"%01000d" % (2 * n + queue)) for n in range(MESSAGES // 2)], queue)
        site.mounted()
        with served(site.mountpoint, site.log.parent) as server:
            yield server


def sizes(server: Server) -> dict[str, int]:
    """URLs of the files, and their lengths."""
    lines = map(json.loads, server.ask("/datasets?topic=orders").body.splitlines())
    return {line["url"]: line["bytes"] for line in lines}


def chunk_of(url: str, size: int, column: str) -> tuple[int, int]:
    """Where the chunk of a column begins, and its length."""
    group = pq.ParquetFile(pa.PythonFile(Ranges(url, size))).metadata.row_group(0)
    chunk = next(one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == column)
    return chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size


def sent_from(server: Server, url: str, begin: int) -> list[int]:
    """Bytes that were sent of a file from an offset on, by answer."""
    path = urlsplit(url).path
    return [int(line[6]) for line in server.logged(path) if (line[4], int(line[5])) == (path, begin)]


def in_mount(server: Server, url: str, column: str) -> list[object]:
    """The values of a column in the file as it is in the mount, beside the server's logs."""
    file = server.access_log.parent / "mnt" / urlsplit(url).path.removeprefix("/files/")
    return list(pq.ParquetFile(file).read([column])[column].to_pylist())


def by_polars(files: dict[str, int], column: str) -> list[object]:
    return list(polars.scan_parquet(list(files)).select(column).collect()[column])


def by_pyarrow(files: dict[str, int], column: str) -> list[object]:
    opened = (pq.ParquetFile(pa.PythonFile(Ranges(url, size))) for url, size in files.items())
    return [value for file in opened for value in file.read([column])[column].to_pylist()]


def by_pandas(files: dict[str, int], column: str) -> list[object]:
    return [value for url in files for value in pandas.read_parquet(url, columns=[column])[column]]


@pytest.mark.parametrize(
    ("read", "column", "takes_ranges"),
    [(by_polars, "queue_offset", True), (by_pyarrow, "physical_offset", True), (by_pandas, "body", False)],
)
def test_a_program_reads_a_column_by_urls(
    server: Server, read: Callable[[dict[str, int], str], list[object]], column: str, takes_ranges: bool
) -> None:
    files = sizes(server)
    assert len(files) == 2
    chunks = [(url, *chunk_of(url, size, column)) for url, size in files.items()]
    assert read(files, column) == [value for url in files for value in in_mount(server, url, column)]
    for url, begin, length in chunks if takes_ranges else ():
        eventually(lambda: bool(sent_from(server, url, begin)), "the chunk in the access log")  # noqa: B023
        assert sent_from(server, url, begin) == [length]
