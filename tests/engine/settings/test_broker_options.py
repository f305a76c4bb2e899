"""Options by RocketMQ's names: the setting that each makes, and the refusal of misspelt ones."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import OptionError
from engine.settings.broker_options import OPTION_NAMES, options_of, retention_from, with_options
from engine.settings.config import EMBEDDED_SIZES, Retention, StoreConfig


def test_no_options_change_nothing() -> None:
    config = StoreConfig()
    assert with_options(config, {}) == config


def test_any_retention_option_turns_retention_on_with_a_brokers_other_values() -> None:
    assert StoreConfig().retention is None
    options = {"fileReservedTime": "72", "deleteWhen": "4;16", "maxBytes": "10G", "diskMaxUsedSpaceRatio": "80"}
    expected = Retention(max_age_hours=72.0, delete_when_hours=(4, 16), max_bytes=10 << 30, disk_use_ratio=0.8)
    assert with_options(StoreConfig(), options).retention == expected
    assert retention_from(options) == expected


def test_sizes_not_given_are_the_embedded_ones_and_a_queue_file_holds_whole_entries() -> None:
    sizes = with_options(StoreConfig(), {"mappedFileSizeCommitLog": "1G", "mappedFileSizeConsumeQueue": 1001}).sizes
    assert sizes is not None
    assert (sizes.commit_log_bytes, sizes.consume_queue_entries) == (1 << 30, 51)
    assert (sizes.index_slots, sizes.index_entries) == (EMBEDDED_SIZES.index_slots, EMBEDDED_SIZES.index_entries)


def test_the_pools_size_counts_only_when_it_is_enabled() -> None:
    assert with_options(StoreConfig(), {"transientStorePoolEnable": "true"}).transient_pool_buffers == 5
    assert with_options(StoreConfig(), {"transientStorePoolSize": "2"}).transient_pool_buffers == 0
    both = {"transientStorePoolEnable": True, "transientStorePoolSize": 2}
    assert with_options(StoreConfig(), both).transient_pool_buffers == 2


def test_flush_and_message_options_reach_their_fields() -> None:
    config = with_options(
        StoreConfig(),
        {
            "flushDiskType": "SYNC_FLUSH",
            "flushCommitLogLeastPages": "1",
            "maxMessageSize": "64K",
            "warmMapedFileEnable": "true",
        },
    )
    assert config.flush.sync
    assert config.flush.least_pages == 1
    assert config.max_message_bytes == 65_536
    assert config.warm_files


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fileReservedTme": "72"}, "did you mean fileReservedTime"),
        ({"fileReservedTime": "three days"}, "'three days' is not a number"),
        ({"fileReservedTime": "-1"}, "is not a number of hours"),
        ({"fileReservedTime": "nan"}, "is not a number of hours"),
        ({"maxBytes": "10 apples"}, "is not a size"),
        ({"deleteWhen": "25"}, "is not a list of hours"),
        ({"deleteWhen": "noon"}, "is not a whole number"),
        ({"diskMaxUsedSpaceRatio": "0"}, "is not a ratio"),
        ({"cleanFileForciblyEnable": "perhaps"}, "is neither true nor false"),
        ({"flushDiskType": "SOMETIMES"}, "is neither SYNC_FLUSH nor ASYNC_FLUSH"),
        ({"maxIndexNum": "0"}, "maxIndexNum"),
        ({"cleanResourceInterval": "0"}, "is not an interval"),
        ({"flushIntervalCommitLog": "0"}, "is not an interval"),
        ({"flushDiskType": "SYNC_FLUSH", "transientStorePoolEnable": "true"}, "sync flush"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        with_options(StoreConfig(), options)


def test_retention_takes_no_other_option() -> None:
    with pytest.raises(OptionError, match="warmMapedFileEnable"):
        retention_from({"warmMapedFileEnable": "true"})
    with pytest.raises(OptionError, match=r"no such option \(did you mean fileReservedTime\?\)"):
        retention_from({"filereservedtime": 3})


def test_names_are_listed_once_in_order() -> None:
    assert list(OPTION_NAMES) == sorted(set(OPTION_NAMES))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxBytes": "64M"},
        {"fileReservedTime": "0.5", "deleteWhen": "04;16", "diskMaxUsedSpaceRatio": "57"},
        {"diskSpaceCleanForciblyRatio": "0.855", "cleanFileForciblyEnable": "false", "deleteFileBatchMax": "3"},
    ],
)
def test_retention_as_options_asks_for_the_same(options: dict[str, str]) -> None:
    asked = retention_from(options)
    assert options_of(asked).keys() == options.keys()
    assert retention_from(options_of(asked)) == asked
