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

from engine import Block, ExpiredMessageError, Host, Message, MessageStore, Retention
from fsstore.parquet import layout as layouts
from fsstore.parquet.render import BoundError, render_row_group, table_of
from tests.fsstore.parquetfiles import expected_rows, layout_of, rendered, rows, small_files

COMPRESSED = 0x1
V6 = Host(bytes(range(240, 256)), 65_535)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", small_files()) as store:
        yield store


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """A store in which each example makes a topic of its own."""
    with MessageStore.open(tmp_path_factory.mktemp("shared") / "store") as store:
        yield store


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=40)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=6)
words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02 "), min_size=1, max_size=9)


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
    "one byte each": [Message("orders", b"x", keys=[str(n % 10)], tags=str(n % 7)) for n in range(20_000)],
    "tags of their own": [Message("orders", b"", tags=f"{n:x}") for n in range(20_000)],
    "one large body": [Message("orders", bytes(4 << 20))],
    "a single short message": [Message("orders", b"x")],
    "well compressed": [Message("orders", zlib.compress(bytes(1 << 20)), sys_flag=COMPRESSED)] * 40,
}


@pytest.mark.parametrize("kind", DEAREST)
def test_the_dearest_messages_fit_the_computed_size(shared: MessageStore, kind: str) -> None:
    topic = "dearest-" + kind.replace(" ", "-")
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
    with MessageStore.open(tmp_path / "store", small_files()) as store:
        store.create_topic("orders", 1)
        store.put_batch([Message("orders", b"", keys=["k", value.replace(" ", "")], properties={"p": "v"})] * 9, 0)
    text = value.replace(" ", "").encode()
    assert overwrite_in_log(tmp_path / "store", text, b"\xff" * len(text))
    with MessageStore.open(tmp_path / "store") as store:
        layout = layout_of(store, "orders")
        found = rows(rendered(store, layout)[0])
        assert [row["keys"] for row in found] == [["k", "?" * len(text)]] * 9
        assert [row["properties"]["p"] for row in found] == ["v"] * 9


def test_a_few_bytes_that_are_no_text_show_as_in_the_engine(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files()) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"body", tags="brokentag"), 0)
    assert overwrite_in_log(tmp_path / "store", b"brokentag", b"broken\xff\xffg")
    with MessageStore.open(tmp_path / "store") as store:
        assert rows(rendered(store, layout_of(store, "orders"))[0]) == expected_rows(store, "orders")


def test_a_broken_message_is_left_out_and_counted_in_the_file(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files()) as store:
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
        assert {b"fsstore.version", b"fsstore.pyarrow"} <= set(metadata)


def test_a_range_of_broken_messages_alone_is_a_file_without_rows(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files()) as store:
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


def test_a_row_group_rendered_alone_is_the_same_bytes(lines: MessageStore) -> None:
    layout = layout_of(lines, "orders")
    text, _ = rendered(lines, layout)
    assert len(layout.row_groups) == 3
    for index, row_group in enumerate(layout.row_groups):
        alone = render_row_group(lines, layout, index)
        assert text[row_group.position : row_group.position + len(alone)] == alone
        assert not any(text[row_group.position + len(alone) : row_group.position + row_group.size])


def test_the_first_rendering_does_not_wait_for_pandas_to_load(lines: MessageStore) -> None:
    lines.close()
    script = """if True:
        import sys
        from engine import MessageStore
        from tests.fsstore.parquetfiles import layout_of
        from fsstore.parquet.render import render
        with MessageStore.open(sys.argv[1]) as store:
            render(store, layout_of(store, "orders"), lambda index, row_group: None)
        print("pandas" in sys.modules)
    """
    command = [sys.executable, "-c", script, str(lines.path)]
    shown = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[2])
    assert shown.stdout == "False\n"


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
    read = MessageStore.block

    def read_late(store: MessageStore, *place: Any) -> Block:
        store.clean()
        return read(store, *place)

    with MessageStore.open(tmp_path / "store", small_files(retention=Retention(max_bytes=1))) as store:
        store.create_topic("orders", 1)
        store.put_lines("orders", b"0123456789\n" * 30_000, 0)
        layout = layout_of(store, "orders", end=1_000)
        monkeypatch.setattr(MessageStore, "block", read_late)
        with pytest.raises(ExpiredMessageError):
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


def test_names_that_become_equal_stay_the_names_of_their_properties(store: MessageStore) -> None:
    store.create_topic("orders", 1)
    for row in range(9):
        store.put(Message("orders", b"", properties={"\ufffd": f"a{row}", "?": f"b{row}"}), 0)
    table = table_of(store.block("orders", 0, 0, 9), replacement="?")
    target = io.BytesIO()
    pq.write_table(table, target, store_schema=False)
    assert pq.read_table(target)["properties"].to_pylist() == [[("?", f"a{row}"), ("?", f"b{row}")] for row in range(9)]
