"""Messages as Arrow tables: what `@parquet` shows, without a mount."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig, TopicNotFoundError
from fsstore.arrow import to_arrow


def test_a_topic_is_a_table_with_the_columns_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsstore.arrow.PIECE_MESSAGES", 7)
    with MessageStore.open(tmp_path / "s", StoreConfig(sizes=FileSizes(8192, 100, 100, 400)), create=True) as store:
        put = [
            store.put(Message("orders", b"order %d" % number, [f"K-{number}", "all"], "t", {"A": "b"}), number % 2)
            for number in range(100)
        ]
        store.put(Message("orders", zlib.compress(b"packed" * 99), sys_flag=0x1 | 0x300), queue=0)
        table = to_arrow(store, "orders")
        assert table.column("queue").to_pylist() == [0] * 51 + [1] * 50
        assert table.column("body").to_pylist()[:3] == [b"order 0", b"order 2", b"order 4"]
        assert table.column("body").to_pylist()[50] == b"packed" * 99
        row = table.slice(52, 1).to_pylist()[0]
        assert (row["keys"], row["tags"], row["queue_offset"]) == (["K-3", "all"], "t", 1)
        assert row["properties"] == [("KEYS", "K-3 all"), ("TAGS", "t"), ("A", "b")]
        assert row["physical_offset"] == put[3].physical_offset
        assert row["store_time"] == datetime.fromtimestamp(put[3].store_time_ms / 1000, UTC)
        some = to_arrow(store, "orders", 1, start=40, count=3)
        assert some.column("queue_offset").to_pylist() == [40, 41, 42]
        assert some.schema == table.schema
        store.create_topic("empty")
        assert to_arrow(store, "empty").schema == table.schema
        assert len(to_arrow(store, "orders", 0, start=1000)) == 0
        with pytest.raises(TopicNotFoundError):
            to_arrow(store, "nosuch")
        with pytest.raises(TopicNotFoundError):
            to_arrow(store, "orders", 9)
