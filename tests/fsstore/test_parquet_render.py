"""Rendered files: what is in them, that they keep to the size that was computed for them, and that they never vary."""

from __future__ import annotations

import io
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine import Block, ExpiredMessageError, Host, Message, MessageStore, ReadError, Retention
from fsstore.options import ParquetOptions
from fsstore.parquet import dataset as datasets
from fsstore.parquet import layout as layouts
from fsstore.parquet import row_groups
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.row_groups import BoundError
from tests.fsstore.parquetfiles import expected_rows, layout_of, mapped, rendered, rows, small_files

COMPRESSED = 0x1
V6 = Host(bytes(range(240, 256)), 65_535)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        yield store


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """A store in which each example makes a topic of its own."""
    with MessageStore.open(tmp_path_factory.mktemp("shared") / "store", create=True) as store:
        yield store


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), max_size=40)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), min_size=1, max_size=6).filter(
    lambda name: name not in ("DELAY", "KEYS", "TAGS")  # words that mean something, which are found in the code
)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02 "), min_size=1, max_size=9)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    body = draw(st.one_of(st.binary(max_size=300), st.integers(0, 70_000).map(bytes)))
    is_compressed = draw(st.booleans())
    return Message(
        "later",
        zlib.compress(body) if is_compressed else body,
        keys=draw(st.lists(words, max_size=12)),
        tags=draw(texts),
        properties=draw(st.dictionaries(names, texts, max_size=25)),
        flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        sys_flag=COMPRESSED if is_compressed else 0,
        born_time_ms=draw(st.integers(0, 253_402_300_799_999)),
        born_host=draw(st.sampled_from([None, V6, Host(b"\xff" * 4, 65_535)])),
        store_host=draw(st.sampled_from([None, V6])),
        reconsume_times=draw(st.integers(0, (1 << 31) - 1)),
    )


topics = iter(range(1 << 30))


@settings(max_examples=60)
@given(st.lists(messages(), min_size=1, max_size=12))
def test_any_messages_come_back_and_fit_the_computed_size(shared: MessageStore, drawn: list[Message]) -> None:
    topic = f"example-{next(topics)}"
    drawn = [replace(message, topic=topic) for message in drawn]
    shared.create_topic(topic, 1)
    shared.put_batch(drawn, 0)
    text, outcome = rendered(shared, layout_of(shared, topic))
    assert rows(text) == expected_rows(shared, topic)
    assert outcome.left_out == 0


def distinct_names(count: int) -> dict[str, str]:
    return {f"{number:x}": "v" for number in range(count)}


DEAREST = {
    "short properties": [Message("orders", b"", properties=distinct_names(4_500))] * 40,
    "short keys": [Message("orders", b"", keys=["k"] * 16_000)] * 40,
    "a name of their own each": [
        Message("orders", b"", properties={f"{row:x}.{number:x}": "v" for number in range(3_000)}) for row in range(60)
    ],
    "nothing at all": [Message("orders", b"")] * 20_000,
    "hosts of their own": [
        Message("orders", b"x", born_host=Host(bytes((255, 255, n >> 8, n & 255)), 60_000)) for n in range(20_000)
    ],
    "long hosts of their own": [
        Message("orders", b"x", born_host=Host(bytes((255,)) * 14 + bytes((n >> 8, n & 255)), 60_000), store_host=V6)
        for n in range(20_000)
    ],
    "hosts as long as they can be": [
        Message(
            "orders",
            b"",
            keys=["k"] * 2 * (n == 0),  # so that all lists have levels
            tags="t" * (n == 0),
            born_host=Host(bytes((255, 100 + n // 22_500, 100 + n // 150 % 150, 100 + n % 150)), (1 << 31) - 1),
            store_host=Host(bytes((254, 100 + n // 22_500, 100 + n // 150 % 150, 100 + n % 150)), (1 << 31) - 1),
        )
        for n in range(65_000)
    ],
    "one byte each": [Message("orders", b"x", keys=[str(n % 10)], tags=str(n % 7)) for n in range(20_000)],
    "tags of their own": [Message("orders", b"", tags=f"{n:x}") for n in range(20_000)],
    "one large body": [Message("orders", bytes(4 << 20))],
    "a single short message": [Message("orders", b"x")],
    "well compressed": [Message("orders", zlib.compress(bytes(1 << 20)), sys_flag=COMPRESSED)] * 40,
}


@pytest.mark.parametrize("kind", DEAREST)
def test_the_dearest_messages_fit_the_computed_size(shared: MessageStore, kind: str) -> None:
    topic = chr(ord("a") + list(DEAREST).index(kind))  # a long one makes room
    shared.create_topic(topic, 1)
    batch = [replace(message, topic=topic) for message in DEAREST[kind]]
    shared.put_batch(batch, 0)
    layout = layout_of(shared, topic)
    text, _ = rendered(shared, layout)
    read = pq.ParquetFile(io.BytesIO(text)).read()
    assert len(read) == len(batch)
    assert len(text) == layout.size


def overwrite_in_log(store: Path, old: bytes, new: bytes) -> int:
    """Put bytes of the same length in the place of others; how often."""
    found = 0
    for path in sorted((store / "commitlog").iterdir()):
        text = path.read_bytes()
        found += text.count(old)
        path.write_bytes(text.replace(old, new))
    return found


def test_text_that_is_none_still_fits(tmp_path: Path) -> None:
    value = "not text yet" * 2_000
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        store.put_batch([Message("orders", b"", keys=["k", value.replace(" ", "")], properties={"p": "v"})] * 9, 0)
        store.put(Message("orders", b"", keys=["\ufffd"], properties={"p": "\ufffd"}), 0)
    text = value.replace(" ", "").encode()
    assert overwrite_in_log(tmp_path / "store", text, b"\xff" * len(text))
    with MessageStore.open(tmp_path / "store") as store:
        layout = layout_of(store, "orders")
        found = rows(rendered(store, layout)[0])
        assert [row["keys"] for row in found] == [["k", "?" * len(text)]] * 9 + [["\ufffd"]]
        assert [row["properties"]["p"] for row in found] == ["v"] * 9 + ["\ufffd"], "beside others as it is alone"


@pytest.mark.parametrize("size", [4_000, 12_000, 16_000, 24_000, 32_000])
def test_one_text_that_is_none_fits_with_the_pages_that_chunks_begin(tmp_path: Path, size: int) -> None:
    key = "nottextyet" * (size // 10)
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"", keys=[key]), 0)
    assert overwrite_in_log(tmp_path / "store", key.encode(), b"\xff" * size)
    with MessageStore.open(tmp_path / "store") as store:
        [row] = rows(rendered(store, layout_of(store, "orders"))[0])
        assert row["keys"] in (["\ufffd" * size], ["?" * size])


def test_a_few_bytes_that_are_no_text_show_as_in_the_engine(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"body", tags="brokentag"), 0)
    assert overwrite_in_log(tmp_path / "store", b"brokentag", b"broken\xff\xffg")
    with MessageStore.open(tmp_path / "store") as store:
        assert rows(rendered(store, layout_of(store, "orders"))[0]) == expected_rows(store, "orders")


@pytest.mark.parametrize("broken", [0, 1])
def test_a_footer_reads_no_columns_of_a_long_row_group_whose_messages_are_whole(
    tmp_path: Path, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        store.put_batch([Message("orders", b"the body of %d." % row, ["k"], "t") for row in range(5_000)], 0)
    assert not broken or overwrite_in_log(tmp_path / "store", b"the body of 7.", b"The body of 7.") == 1
    read: list[int] = []

    def counted(store: MessageStore, key: layouts.RangeKey, row_group: layouts.RowGroup) -> row_groups.RowGroupColumns:
        read.append(row_group.begin)
        return row_groups.read_columns(store, key, row_group)

    monkeypatch.setattr(datasets, "read_columns", counted)
    with MessageStore.open(tmp_path / "store") as store:
        layout, dataset = layout_of(store, "orders"), datasets.Dataset(store, ParquetOptions())
        found = dataset.map(layout, layout.size - 8)
        assert (read, found.left_out) == ([0] * broken, broken)
        assert found.footer == mapped(store, layout)[0].footer
        body = SCHEMA.in_file.index(next(column for column in SCHEMA.in_file if column.name == "body"))
        assert b"".join(dataset.fetch(layout, found, body)).count(b"the body of") == 5_000 - broken
        assert read == [0], "read once a column is"


def test_a_broken_message_is_left_out_and_counted_in_the_file(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        for number in range(10):
            store.put(Message("orders", b"the body of %d" % number), 0)
    assert overwrite_in_log(tmp_path / "store", b"the body of 7", b"The body of 7") == 1
    with MessageStore.open(tmp_path / "store") as store:
        layout = layout_of(store, "orders", end=10)
        text, outcome = rendered(store, layout)
        assert [row["queue_offset"] for row in rows(text)] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        metadata = pq.ParquetFile(io.BytesIO(text)).metadata.metadata
        assert outcome.left_out == 1
        assert metadata[b"fsstore.left_out"] == b"1"
        assert {b"fsstore.version", b"fsstore.range"} <= set(metadata)


def test_the_time_of_a_file_is_that_of_its_last_good_message(store: MessageStore) -> None:
    store.create_topic("orders", 1)
    for number in range(3):
        store.put(Message("orders", b"body %d" % number), 0)
    times = [0, *(store.get("orders", 0, row).store_time_ms for row in range(3))]
    with min((store.path / "commitlog").iterdir()).open("r+b") as log:
        for good in (3, 2, 1, 0):
            assert layout_of(store, "orders", end=3).mtime_ms == times[good]
            log.seek(int(store.entries("orders", 0, good - 1, 1)["physical_offset"][0]) + 4 if good else 0)
            log.write(b"\xff")  # the first byte of the record's magic
            log.flush()


def test_a_range_of_broken_messages_alone_is_a_file_without_rows(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        for body in (b"one body", b"another body", b"more"):
            store.put(Message("orders", body), 0)
    overwrite_in_log(tmp_path / "store", b"another body", b"another b0dy")
    with MessageStore.open(tmp_path / "store") as store:
        text, outcome = rendered(store, layout_of(store, "orders", begin=1, end=2))
        assert (rows(text), outcome.left_out) == ([], 1)


@pytest.fixture
def lines(store: MessageStore) -> MessageStore:
    """40,000 messages in one queue."""
    store.create_topic("orders", 1)
    store.put_lines("orders", b"".join(b"line %d\n" % number for number in range(40_000)), 0, tags="t")
    return store


def test_a_file_is_the_same_bytes_each_time_also_after_a_restart(lines: MessageStore) -> None:
    first = rendered(lines, layout_of(lines, "orders", end=40_000))[0]
    assert rendered(lines, layout_of(lines, "orders", end=40_000))[0] == first
    lines.close()
    with MessageStore.open(lines.path) as again:
        assert rendered(again, layout_of(again, "orders", end=40_000))[0] == first


def test_what_is_read_again_is_the_same_bytes(lines: MessageStore) -> None:
    layout = layout_of(lines, "orders")
    _, first = mapped(lines, layout)
    _, again = mapped(lines, layout)
    for one, other in zip(first, again, strict=True):
        assert {column: bytes(chunk.encode()) for column, chunk in one.chunks.items()} == {
            column: bytes(chunk.encode()) for column, chunk in other.chunks.items()
        }


def test_a_row_group_lies_in_one_file_of_the_log(lines: MessageStore) -> None:
    row_groups = layout_of(lines, "orders").row_groups
    assert [row_group.begin for row_group in row_groups[1:]] == [row_group.end for row_group in row_groups[:-1]]
    assert (row_groups[0].begin, row_groups[-1].end) == (0, 40_000)
    files = [
        lines.entries("orders", 0, begin, end - begin)["physical_offset"] // (1 << 20) for begin, end, _ in row_groups
    ]
    assert [set(found.tolist()) for found in files] == [{0}, {1}, {2}, {3}, {4}]


def test_a_row_group_is_cut_before_it_is_too_long_but_has_a_message(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "ROW_GROUP_BYTES", 30_000)
    for size in (10_000, 10_000, 10_000, 40_000, 10_000, 10):
        store.put(Message("orders", bytes(size)), 0)
    layout = layout_of(store, "orders")
    assert [(group.begin, group.end) for group in layout.row_groups] == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert rows(rendered(store, layout)[0]) == expected_rows(store, "orders")


def test_reading_needs_no_library_that_takes_long_to_load(lines: MessageStore) -> None:
    lines.close()
    script = """if True:
        import sys
        from engine import MessageStore
        from fsstore.parquet.layout import measure, range_key
        from fsstore.parquet.row_groups import read_columns
        with MessageStore.open(sys.argv[1]) as store:
            layout = measure(store, range_key(store, "orders", 0, 0, 9))
            [chunk.encode() for chunk in read_columns(store, layout.key, layout.row_groups[0]).chunks.values()]
        print({"pandas", "pyarrow"} & set(sys.modules))
    """
    command = [sys.executable, "-c", script, str(lines.path)]
    shown = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[2])
    assert shown.stdout == "set()\n"


def test_statistics_of_row_groups_say_which_offsets_and_times_are_in_them(lines: MessageStore) -> None:
    file = pq.ParquetFile(io.BytesIO(rendered(lines, layout_of(lines, "orders"))[0]))
    begin = 0
    for index in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(index)
        statistics = {
            column.path_in_schema: column.statistics
            for column in map(row_group.column, range(row_group.num_columns))
            if column.statistics is not None
        }
        offsets = statistics["queue_offset"]
        assert (offsets.min, offsets.max) == (begin, begin + row_group.num_rows - 1)
        assert statistics["store_time"].has_min_max
        assert statistics["born_time"].has_min_max
        assert statistics["physical_offset"].has_min_max
        begin += row_group.num_rows
    assert begin == 40_000


@pytest.mark.parametrize(
    ("clock_ms", "shown_ms"),
    [((1 << 63) - 1, 253_402_300_799_999), (-(1 << 63), -62_135_596_800_000), (-1, -1), (0, 0)],
)
def test_a_publishers_clock_may_say_anything(store: MessageStore, clock_ms: int, shown_ms: int) -> None:
    store.create_topic("orders", 1)
    store.put(Message("orders", b"x", born_time_ms=clock_ms), 0)
    assert [row["born_time"] for row in rows(rendered(store, layout_of(store, "orders"))[0])] == [shown_ms]


def test_what_retention_takes_meanwhile_does_not_pass_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MessageStore.blocks

    def read_late(store: MessageStore, *place: Any) -> list[Block]:
        store.clean()
        return read(store, *place)

    with MessageStore.open(tmp_path / "store", small_files(retention=Retention(max_bytes=1)), create=True) as store:
        store.create_topic("orders", 1)
        store.put_lines("orders", b"0123456789\n" * 30_000, 0)
        layout = layout_of(store, "orders", end=1_000)
        monkeypatch.setattr(MessageStore, "blocks", read_late)
        with pytest.raises(ExpiredMessageError):
            rendered(store, layout)


def test_what_goes_from_the_queue_meanwhile_is_not_missing_without_a_word(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MessageStore.blocks

    def read_late(store: MessageStore, *place: Any) -> list[Block]:
        store.delete_topic("orders")
        store.create_topic("orders", 1)
        store.put_lines("orders", b"another\n" * 300, 0)
        return read(store, *place)

    store.create_topic("orders", 1)
    store.put_lines("orders", b"0123456789\n" * 1_000, 0)
    layout = layout_of(store, "orders")
    monkeypatch.setattr(MessageStore, "blocks", read_late)
    with pytest.raises(ReadError):
        rendered(store, layout)


def test_row_groups_are_short_enough_for_memory(store: MessageStore) -> None:
    store.create_topic("blobs", 1)
    compressed = zlib.compress(bytes(8 << 20))
    for _ in range(10):
        store.put(Message("blobs", compressed, sys_flag=COMPRESSED), 0)
    layout = layout_of(store, "blobs")
    assert [row_group.end - row_group.begin for row_group in layout.row_groups] == [3, 3, 3, 1]
    assert [len(row["body"]) for row in rows(rendered(store, layout)[0])] == [8 << 20] * 10


def test_duckdb_and_polars_read_a_padded_file(lines: MessageStore, tmp_path: Path) -> None:
    path = tmp_path / "orders.parquet"
    path.write_bytes(rendered(lines, layout_of(lines, "orders"))[0])
    what = "count(*), min(queue_offset), max(queue_offset), sum(octet_length(body)), min(tags)"
    expected = (40_000, 0, 39_999, sum(len(f"line {number}") for number in range(40_000)), "t")
    with duckdb.connect() as connection:
        assert connection.sql(f"select {what} from read_parquet('{path}')").fetchall() == [expected]
    frame = pl.read_parquet(path)
    assert frame["queue_offset"].to_list() == list(range(40_000))
    assert frame["body"].to_list() == [b"line %d" % number for number in range(40_000)]
    assert frame["keys"].to_list() == [[]] * 40_000


def test_a_row_group_that_became_longer_than_its_place_is_refused(
    lines: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "_ROW_BYTES", -20)
    layout = layout_of(lines, "orders")
    with pytest.raises(BoundError):
        rendered(lines, layout)


def test_names_of_a_row_go_on_to_differ_where_other_text_is_shortened(tmp_path: Path) -> None:
    key = "nottextyet" * 2_000
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        for row in range(9):
            store.put(Message("orders", b"", [key], properties={"\ufffd": f"a{row}", "?": f"b{row}"}), 0)
    assert overwrite_in_log(tmp_path / "store", key.encode(), b"\xff" * len(key))
    path = tmp_path / "orders.parquet"
    with MessageStore.open(tmp_path / "store") as store:
        path.write_bytes(rendered(store, layout_of(store, "orders"))[0])
    expected = [{"KEYS": "?" * len(key), "\ufffd": f"a{row}", "?": f"b{row}"} for row in range(9)]
    assert [row["properties"] for row in rows(path.read_bytes())] == expected
    with duckdb.connect() as connection:  # it refuses a map in which a name stands twice
        assert connection.sql(f"select properties from read_parquet('{path}')").fetchall() == [
            (row,) for row in expected
        ]


@pytest.mark.parametrize("units", [1, 5, 500, 4_000])
@pytest.mark.parametrize("count", [1, 9, 100])
@pytest.mark.parametrize("different", [1, 9])
def test_tags_that_are_no_text_fit_as_they_are(tmp_path: Path, units: int, count: int, different: int) -> None:
    tags = ["no text~" * (units - row % different) for row in range(count)]
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("o", 1)
        for tag in tags:
            store.put(Message("o", b"", tags=tag), 0)
    assert overwrite_in_log(tmp_path / "store", b"no text~", b"\xff" * 8) == sum(map(len, tags)) // 8
    with MessageStore.open(tmp_path / "store") as store:
        found = rows(rendered(store, layout_of(store, "o"))[0])
        assert [row["tags"] for row in found] == ["\ufffd" * len(tag) for tag in tags]


def test_names_that_are_no_text_fit_as_they_are(tmp_path: Path) -> None:
    def filled(first: str) -> dict[str, str]:
        return {first * count: "v" for count in range(1, 250)}

    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("o", 1)
        store.put_batch([Message("o", b"", properties=filled("~"))] * 30, 0)
    assert overwrite_in_log(tmp_path / "store", b"~", b"\xff")
    with MessageStore.open(tmp_path / "store") as store:
        found = rows(rendered(store, layout_of(store, "o"))[0])
        assert [row["properties"] for row in found] == [filled("\ufffd")] * 30


@pytest.mark.parametrize("different", [1, 2, 200, 300])
def test_tags_of_which_few_differ_have_a_dictionary(store: MessageStore, different: int) -> None:
    store.create_topic("orders", 1)
    tags = [f"tag-{row % different}" for row in range(5_003)]
    store.put_batch([Message("orders", b"", tags=tag) for tag in tags], 0)
    text, _ = rendered(store, layout_of(store, "orders"))
    file = pq.ParquetFile(io.BytesIO(text))
    columns = {column.path_in_schema: column for column in map(file.metadata.row_group(0).column, range(15))}
    assert columns["tags"].has_dictionary_page == (different < 64)
    assert columns["born_host"].has_dictionary_page
    assert file.read()["tags"].to_pylist() == tags
