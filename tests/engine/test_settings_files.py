"""Smaller config files: sizes, retention, consumer offsets; and where all files are."""

import json
from pathlib import Path

import pytest

from engine.errors import ConfigFileError
from engine.files.disk import Disk
from engine.files.layout import StoreLayout
from engine.settings.broker_options import read_retention
from engine.settings.config import BROKER_SIZES, EMBEDDED_SIZES, FileSizes, FlushPolicy, Retention, StoreConfig
from engine.settings.consumer_offsets import ConsumerOffsets
from engine.settings.shape_files import read_sizes, write_sizes


def test_broker_sizes_are_rocketmqs() -> None:
    assert (BROKER_SIZES.commit_log_bytes, BROKER_SIZES.consume_queue_bytes) == (1073741824, 6_000_000)
    assert BROKER_SIZES.index_bytes == 420_000_040


@pytest.mark.parametrize("sizes", [EMBEDDED_SIZES, BROKER_SIZES, FileSizes(4096, 3, 5, 7)])
def test_sizes_are_remembered_under_brokers_names(tmp_path: Path, sizes: FileSizes) -> None:
    path = tmp_path / "config" / "sizes.json"
    assert read_sizes(path) is None
    write_sizes(path, sizes, Disk())
    assert read_sizes(path) == sizes
    assert json.loads(path.read_bytes())["mappedFileSizeConsumeQueue"] == sizes.consume_queue_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"mappedFileSizeCommitLog": "big"},
        {"mappedFileSizeCommitLog": 0},
        {"mappedFileSizeConsumeQueue": 21},
        {"maxHashSlotNum": None},
        {"maxIndexNum": 1},
    ],
)
def test_sizes_that_no_store_has_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "sizes.json"
    write_sizes(path, EMBEDDED_SIZES, Disk())
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(ConfigFileError):
        read_sizes(path)


def test_retention_is_off_until_a_file_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "retention.json"
    assert read_retention(path) is None
    path.write_text('{"fileReservedTime": 72, "deleteWhen": "04;16", "diskMaxUsedSpaceRatio": 75}')
    assert read_retention(path) == Retention(max_age_hours=72, delete_when_hours=(4, 16), disk_use_ratio=0.75)


@pytest.mark.parametrize("text", ['{"fileReservedTime": "long"}', '{"fileReserveTime": 72}', '{"deleteWhen": "25"}'])
def test_a_retention_that_is_not_understood_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "retention.json"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as caught:
        read_retention(path)
    assert caught.value.path == path


def test_consumer_offsets_are_by_group_topic_and_queue(tmp_path: Path) -> None:
    path, lmq_path = tmp_path / "consumerOffset.json", tmp_path / "lmqConsumerOffset.json"
    assert ConsumerOffsets(path, lmq_path).read() == {}
    path.write_text('{\n\t"offsetTable":{\n\t\t"orders@billing":{0:250,1:251\n\t\t},"orders@audit":{3:7}\n\t}\n}')
    lmq_path.write_text('{"lmqOffsetTable":{"%LMQ%room@phones":12},"offsetTable":{"orders@phones":{0:5}}}')
    assert ConsumerOffsets(path, lmq_path).read() == {
        "billing": {"orders": {0: 250, 1: 251}},
        "audit": {"orders": {3: 7}},
        "phones": {"%LMQ%room": {0: 12}, "orders": {0: 5}},
    }


def test_odd_consumer_offsets_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    table = '{"nobody":{0:1},"@g":{0:1},"t@":{0:1},"t@g":{"x":1,"-1":2,"0":"3","1":true,"2":4},"u@g":7}'
    path.write_text(f'{{"offsetTable":{table}}}')
    assert ConsumerOffsets(path, tmp_path / "none").read() == {"g": {"t": {2: 4}}}


def test_a_store_is_laid_out_as_rocketmqs() -> None:
    layout = StoreLayout(Path("store"))
    assert [
        str(path) for path in (*layout.commit_log.folders, layout.index, layout.checkpoint, layout.abort, layout.lock)
    ] == [
        "store/commitlog",
        "store/index",
        "store/checkpoint",
        "store/abort",
        "store/lock",
    ]
    assert str(layout.consume_queues) == "store/consumequeue"
    assert str(layout.topics) == "store/config/topics.json"


def test_a_pool_cannot_hold_back_what_a_sync_flush_must_bring_to_disk() -> None:
    with pytest.raises(ValueError, match="transient pool"):
        StoreConfig(flush=FlushPolicy(sync=True), transient_pool_buffers=5)
