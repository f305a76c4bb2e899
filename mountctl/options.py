"""What `-o` means to `mountctl mount`: the mount's own switches, the store's options, and what mount(8) hands on.

ro, follow, sync_flush, allow_other        as the long options of those names
append_mode=OCTAL, log_file=PATH           likewise
parquet_memory=SIZE, parquet_disk=SIZE,    how much is kept of the rendered files of @parquet, in memory and on disk,
parquet_cache=PATH                         and where on disk
fileReservedTime=72, maxBytes=10G, ...     the store's options, by RocketMQ's names (engine/brokeroptions.py)
nosuid, nodev, noexec, noatime, ...        passed to the kernel
defaults, nofail, _netdev, x-...           meant for fstab's readers; nothing to do
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsstore import ParquetOptions
from mountctl.errors import CommandError
from mountctl.places import absolute

_SWITCHES = {"ro": "read_only", "follow": "follow", "sync_flush": "sync_flush", "allow_other": "allow_other"}
_PARQUET = frozenset({"parquet_memory", "parquet_disk", "parquet_cache"})
_KERNEL = frozenset(
    {"suid", "nosuid", "dev", "nodev", "exec", "noexec", "atime", "noatime", "dirsync", "sync", "async"}
)
_FOR_OTHERS = frozenset({"rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "nofail", "_netdev"})


@dataclass(frozen=True, slots=True)
class MountRequest:
    """One mount, as it was asked for. Paths are absolute.

    `mode` is write, read-only or follow (engine.OpenMode's values); `store_options` go to the engine by RocketMQ's
    names; `kernel_options` to mount(2). `append_mode` None leaves the permission bits of `append` to the filesystem.
    """

    store: Path
    mountpoint: Path
    mode: str = "write"
    sync_flush: bool = False
    allow_other: bool = False
    append_mode: int | None = None
    store_options: Mapping[str, str] | None = None
    kernel_options: tuple[str, ...] = ()
    parquet: ParquetOptions = field(default_factory=ParquetOptions)


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """The words after `-o`, sorted by whom they are for."""

    switches: frozenset[str]
    append_mode: int | None
    log_file: Path | None
    store: Mapping[str, str]
    kernel: tuple[str, ...]
    parquet: ParquetOptions


def parse(texts: Iterable[str]) -> ParsedOptions:
    """The options of every `-o`, each a list of words with commas between. CommandError names one that is not known."""
    switches, store, kernel = set(), {}, []
    append_mode, log_file, parquet = None, None, ParquetOptions()
    for word in (word.strip() for text in texts for word in text.split(",")):
        name, equals, value = word.partition("=")
        if name == "append_mode" and equals:
            append_mode = parse_mode(value)
        elif name == "log_file" and equals:
            log_file = Path(value)
        elif name in _PARQUET and equals:
            parquet = _with_parquet(parquet, name, value)
        elif equals and not name.startswith("x-"):
            store[name] = value  # the engine knows its own names, and says which it does not
        elif name in _SWITCHES:
            switches.add(_SWITCHES[name])
        elif name in _KERNEL:
            kernel.append(name)
        elif name and name not in _FOR_OTHERS and not name.startswith("x-"):
            raise CommandError(f"-o {word} is not known", "see `mountctl mount --help`", 64)
    return ParsedOptions(frozenset(switches), append_mode, log_file, store, tuple(kernel), parquet)


def _with_parquet(options: ParquetOptions, name: str, value: str) -> ParquetOptions:
    if name == "parquet_cache":
        return replace(options, directory=absolute(Path(value)))
    if name == "parquet_disk":
        return replace(options, disk_bytes=parse_size(value))
    return replace(options, memory_bytes=parse_size(value))


def parse_size(text: str) -> int:
    """A number of bytes; it may end in K, M, G or T (powers of 1024)."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    exponent = "KMGT".find(unit) + 1 if unit else 0
    if not digits.isdecimal() or (unit and not exponent):
        raise CommandError(f"{text!r} is no size", "give bytes, or a number with K, M, G or T, like 256M", 64)
    return int(digits) << 10 * exponent


def parse_mode(text: str) -> int:
    """Permission bits in octal: '222' -> 0o222."""
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise CommandError(f"{text!r} is no file mode", "give octal digits, like 222", 64)
    return mode
