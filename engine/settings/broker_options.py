"""Store options under their names in RocketMQ's broker.conf.

    retention    fileReservedTime (hours), maxBytes (ours), deleteWhen ("04" or "4;16"), diskMaxUsedSpaceRatio (%), ...
    flush        flushDiskType, flushIntervalCommitLog (ms), flushCommitLogLeastPages (pages of 4096 bytes), ...
    sizes        mappedFileSizeCommitLog (bytes), mappedFileSizeConsumeQueue (bytes), maxHashSlotNum, maxIndexNum
    paths        storePathCommitLog, readOnlyCommitLogStorePaths: folders, with commas between
    replicas     brokerRole (ASYNC_MASTER, SYNC_MASTER), haListenPort, haListenAddress (ours), haAllow (ours), ...
    others       messageDelayLevel ("1s 5s 10s ..."), maxMessageSize (bytes), transientStorePoolEnable,
                 transientStorePoolSize, warmMapedFileEnable, ...

Values come from a command line or a JSON file: text, numbers, booleans. A broker ignores unknown names and values; here
they raise OptionError, because a misspelt retention option would show only by a full disk.

config/retention.json has retention options under the same names. It is ours; a broker ignores it. Without the file,
nothing is deleted.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from engine.errors import ConfigFileError, OptionError
from engine.settings.config import (
    BROKER_RETENTION,
    BROKER_SIZES,
    COMMIT_LOG_BYTES,
    CONSUME_QUEUE_BYTES,
    CONSUME_QUEUE_ENTRY_BYTES,
    EMBEDDED_SIZES,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    READ_ONLY_PATHS,
    WRITABLE_PATHS,
    MasterConfig,
    Retention,
    StoreConfig,
)
from engine.settings.config_file import read_config
from engine.settings.delay_levels import DelayLevels

_Parsed = tuple[str, Callable[[Any], Any]]

MOST = (1 << 31) - 1
"""Largest number in broker.conf, a Java int; sizes may be larger."""
MOST_DIGITS = 18
MOST_BATCH_BYTES = 2 << 20
"""Largest frame for replicas: the buffer of a broker's replica has 4 MiB, and never holds two."""
_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _whole(value: Any) -> int:
    text = str(value).strip()
    if not text.isdecimal() or len(text) > len(str(MOST)) or int(text) > MOST:
        raise ValueError(f"is not a whole number up to {MOST}")
    return int(text)


def _interval(value: Any) -> int:
    milliseconds = _whole(value)
    if not milliseconds:
        raise ValueError("is not an interval: at least 1 ms")
    return milliseconds


def _count(value: Any) -> int:
    number = _whole(value)
    if not number:
        raise ValueError("is not a number of 1 or more")
    return number


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("is not a number") from None


def _bytes(value: Any) -> int:
    """A size in bytes; text may end in K, M, G or T (powers of 1024)."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(i?b)?", str(value).strip().lower())
    if not match or len(match[1]) > MOST_DIGITS:
        raise ValueError("is not a size: 1073741824, 512M or 10G")
    return int(match[1]) * _SUFFIXES[match[2]]


def _hours(value: Any) -> float:
    hours = _number(value)
    if not 0 <= hours <= MOST:
        raise ValueError("is not a number of hours")
    return hours


def _switch(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text == "true"


def _day_hours(value: Any) -> tuple[int, ...]:
    hours = tuple(_whole(hour) for hour in str(value).split(";") if hour.strip())
    if not hours or not all(0 <= hour <= 23 for hour in hours):
        raise ValueError("is not a list of hours of the day: 04 or 4;16")
    return hours


def _ratio(value: Any) -> float:
    """A fraction of the disk: 75 (percent, as in 5.x) or 0.75 (as in 4.x)."""
    ratio = _number(value)
    ratio = ratio / 100 if ratio > 1 else ratio
    if not 0 < ratio <= 1:
        raise ValueError("is not a ratio: 75 or 0.75")
    return ratio


def _used_ratio(value: Any) -> float:
    return min(max(_ratio(value), 0.10), 0.95)  # a broker clamps diskMaxUsedSpaceRatio to these limits


def _sync(value: Any) -> bool:
    if value not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError("is neither SYNC_FLUSH nor ASYNC_FLUSH")
    return bool(value == "SYNC_FLUSH")


def _queue_entries(value: Any) -> int:
    return -(-_bytes(value) // CONSUME_QUEUE_ENTRY_BYTES)  # rounded up to whole entries, as a broker does


def _delay_levels(value: Any) -> DelayLevels:
    try:
        return DelayLevels.parse(str(value))
    except ValueError:
        raise ValueError("is no list of delays: 1s 5s 1m 2h") from None


def _paths(value: Any) -> tuple[Path, ...]:
    paths = tuple(Path(os.path.abspath(path.strip())) for path in str(value).split(",") if path.strip())
    if not paths:
        raise ValueError("names no path")
    return paths


def _role(value: Any) -> bool:
    if value == "SLAVE":
        raise ValueError("is not a writer's role: `mountctl replicate` makes a replica")
    if value not in ("SYNC_MASTER", "ASYNC_MASTER"):
        raise ValueError("is neither ASYNC_MASTER nor SYNC_MASTER")
    return bool(value == "SYNC_MASTER")


def _port(value: Any) -> int:
    port = _whole(value)
    if not 0 < port < 1 << 16:
        raise ValueError("is not a port: 1 to 65535")
    return port


def _address(value: Any) -> str:
    try:
        return str(ip_address(str(value).strip()))
    except ValueError:
        raise ValueError("is not an IP address") from None


def _networks(value: Any) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        networks = tuple(ip_network(one.strip()) for one in str(value).split(",") if one.strip())
    except ValueError as error:
        raise ValueError(f"is not a list of networks: {error}") from None
    if not networks:
        raise ValueError("names no network: 10.0.0.0/8,192.168.7.4/32")
    return networks


def _batch(value: Any) -> int:
    size = _bytes(value)
    if not 1 << 10 <= size <= MOST_BATCH_BYTES:
        raise ValueError(f"is not a size from 1K to {MOST_BATCH_BYTES >> 10}K, which each replica takes")
    return size


_RETENTION: dict[str, _Parsed] = {
    "fileReservedTime": ("max_age_hours", _hours),
    "maxBytes": ("max_bytes", _bytes),
    "deleteWhen": ("delete_when_hours", _day_hours),
    "diskMaxUsedSpaceRatio": ("disk_use_ratio", _used_ratio),
    "diskSpaceCleanForciblyRatio": ("disk_clean_ratio", _ratio),
    "diskSpaceWarningLevelRatio": ("disk_warn_ratio", _ratio),
    "cleanFileForciblyEnable": ("clean_forcibly", _switch),
    "destroyMapedFileIntervalForcibly": ("forced_destroy_interval_ms", _whole),
    "cleanResourceInterval": ("clean_interval_ms", _interval),
    "deleteCommitLogFilesInterval": ("delete_pause_ms", _whole),
    "deleteFileBatchMax": ("delete_batch_files", _whole),
}

_FLUSH: dict[str, _Parsed] = {
    "flushDiskType": ("sync", _sync),
    "flushIntervalCommitLog": ("interval_ms", _interval),
    "flushCommitLogLeastPages": ("least_pages", _whole),
    "flushCommitLogThoroughInterval": ("thorough_interval_ms", _whole),
    "flushIntervalConsumeQueue": ("consume_queue_interval_ms", _interval),
    "flushConsumeQueueLeastPages": ("consume_queue_least_pages", _whole),
    "flushConsumeQueueThoroughInterval": ("consume_queue_thorough_interval_ms", _whole),
    "commitIntervalCommitLog": ("commit_interval_ms", _interval),
    "commitCommitLogLeastPages": ("commit_least_pages", _whole),
    "commitCommitLogThoroughInterval": ("commit_thorough_interval_ms", _whole),
}

_SIZES: dict[str, _Parsed] = {
    COMMIT_LOG_BYTES: ("commit_log_bytes", _bytes),
    CONSUME_QUEUE_BYTES: ("consume_queue_entries", _queue_entries),
    INDEX_SLOTS: ("index_slots", _whole),
    INDEX_ENTRIES: ("index_entries", _whole),
}

_STORE: dict[str, _Parsed] = {
    "maxMessageSize": ("max_message_bytes", _bytes),
    "warmMapedFileEnable": ("warm_files", _switch),
    "messageDelayLevel": ("delay_levels", _delay_levels),
    "enableMultiDispatch": ("multi_dispatch", _switch),
    WRITABLE_PATHS: ("commit_log_paths", _paths),
    READ_ONLY_PATHS: ("read_only_log_paths", _paths),
}

_POOL: dict[str, _Parsed] = {
    "transientStorePoolEnable": ("enabled", _switch),
    "transientStorePoolSize": ("buffers", _whole),
}

_MASTER: dict[str, _Parsed] = {
    "brokerRole": ("sync", _role),
    "haListenPort": ("ha_port", _port),
    "haListenAddress": ("address", _address),
    "haAllow": ("allow", _networks),
    "listenPort": ("remoting_port", _port),
    "inSyncReplicas": ("in_sync_replicas", _count),
    "slaveTimeout": ("timeout_ms", _interval),
    "haMaxGapNotInSync": ("max_gap_bytes", _bytes),
    "haSendHeartbeatInterval": ("heartbeat_interval_ms", _interval),
    "haHousekeepingInterval": ("housekeeping_interval_ms", _interval),
    "haTransferBatchSize": ("batch_bytes", _batch),
}

RETENTION_NAMES = tuple(sorted(_RETENTION))
"""Names of the retention options."""
MASTER_NAMES = tuple(sorted(_MASTER))
"""Names of the options of a writer that serves replicas."""
OPTION_NAMES = tuple(sorted({**_RETENTION, **_FLUSH, **_SIZES, **_STORE, **_POOL, **_MASTER}))
"""All names that `with_options` accepts."""

_POOL_BUFFERS = 5  # transientStorePoolSize's default


def with_options(config: StoreConfig, options: Mapping[str, Any]) -> StoreConfig:
    """`config` changed by `options` (broker.conf name to value). OptionError names the first invalid one.

    Any retention option turns retention on. Disk limits that are not given delete nothing. Sizes that are not given
    are EMBEDDED_SIZES. brokerRole has replicas served.
    """
    for name in options:
        if name not in OPTION_NAMES:
            raise OptionError(name, f"there is no such option{_nearest(name)}")
    if retention := _parse(_RETENTION, options):
        config = replace(config, retention=replace(config.retention or Retention(), **retention))
    if flush := _parse(_FLUSH, options):
        config = replace(config, flush=replace(config.flush, **flush))
    if master := _parse(_MASTER, options):
        config = replace(config, master=_checked_master(master))
    try:
        if sizes := _parse(_SIZES, options):
            config = replace(config, sizes=replace(config.sizes or EMBEDDED_SIZES, **sizes))
        return replace(config, transient_pool_buffers=_pool(config, options), **_parse(_STORE, options))
    except ValueError as error:  # each value alone is legal, but not all of them together
        raise OptionError(", ".join(options), str(error)) from error


def with_broker_conf(config: StoreConfig, settings: Mapping[str, str]) -> StoreConfig:
    """`config` changed by the `settings` of a broker.conf, with a broker's defaults for sizes, and for disk limits if
    there is any retention option. Other names and empty values are ignored, and so are a broker's role and ports: its
    file alone makes nobody a master. OptionError."""
    known = {name: value.strip() for name, value in settings.items() if name in OPTION_NAMES and value.strip()}
    known = {name: value for name, value in known.items() if name not in _MASTER}
    if known.get("flushDiskType") == "SYNC_FLUSH":
        known.pop("transientStorePoolEnable", None)  # a broker does not use its pool then
    if _RETENTION.keys() & known.keys():
        config = replace(config, retention=config.retention or BROKER_RETENTION)
    return with_options(replace(config, sizes=config.sizes or BROKER_SIZES), known)


def retention_from(options: Mapping[str, Any]) -> Retention:
    """The retention that `options` (broker.conf name to value, as in config/retention.json) set. OptionError."""
    for name in options:
        if name not in _RETENTION:
            raise OptionError(name, f"retention has no such option{_nearest(name)}")
    return replace(Retention(), **_parse(_RETENTION, options))


def options_of(retention: Retention) -> dict[str, str]:
    """The inverse of `retention_from`: options (broker.conf name to value) that differ from the defaults."""
    named = {name: (getattr(retention, field), convert) for name, (field, convert) in _RETENTION.items()}
    usual = {name: getattr(Retention(), field) for name, (field, _) in _RETENTION.items()}
    return {name: _text(value, convert) for name, (value, convert) in named.items() if value != usual[name]}


def _text(value: Any, convert: Callable[[Any], Any]) -> str:
    if isinstance(value, tuple):
        return ";".join(f"{hour:02d}" for hour in value)
    if isinstance(value, bool):
        return str(value).lower()
    if convert in (_ratio, _used_ratio):
        return f"{value * 100:.10g}"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def read_retention(path: Path) -> Retention | None:
    """The retention set by the file at `path`; None when it is missing or empty. ConfigFileError."""
    options = read_config(path)
    if not options:
        return None
    try:
        return retention_from(options)
    except OptionError as error:
        raise ConfigFileError(path, str(error)) from error


def _parse(table: Mapping[str, _Parsed], options: Mapping[str, Any]) -> dict[str, Any]:
    parsed = {}
    for name, (field, convert) in table.items():
        if name in options:
            try:
                parsed[field] = convert(options[name])
            except (TypeError, ValueError) as error:
                raise OptionError(name, f"{options[name]!r} {error}") from error
    return parsed


def _checked_master(found: Mapping[str, Any]) -> MasterConfig:
    """The configuration of these fields. OptionError: they don't go together."""
    if "sync" not in found:
        raise OptionError("brokerRole", "replicas are served with brokerRole=ASYNC_MASTER or SYNC_MASTER alone")
    master = MasterConfig(**found)
    if "remoting_port" not in found:
        master = replace(master, remoting_port=master.ha_port - 1)
    if not 0 < master.remoting_port != master.ha_port:
        raise OptionError("listenPort", f"{master.remoting_port} can't be used beside haListenPort={master.ha_port}")
    if not master.allow and not ip_address(master.address).is_loopback:
        raise OptionError(
            "haListenAddress",
            f"{master.address} is not a loopback address: haAllow=NETWORK,... says who may have the whole log",
        )
    return master


def _pool(config: StoreConfig, options: Mapping[str, Any]) -> int:
    pool = _parse(_POOL, options)
    if "enabled" not in pool:
        return config.transient_pool_buffers
    return int(pool.get("buffers", _POOL_BUFFERS)) if pool["enabled"] else 0


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, OPTION_NAMES, 1)
    return f" (did you mean {close[0]}?)" if close else ""
