r"""Parsing of `-o` and broker.conf. `mountctl mount` takes its own options, the store's, and mount(8)'s.

docs/operations.md lists them. The engine knows the store's options, by RocketMQ's names
(engine/settings/broker_options.py). Some of these take paths or networks separated by commas: a word with a slash in
its name continues the one before. Verbs that open a store themselves take the store's options and --broker-conf.

broker.conf is parsed as java.util.Properties parses it, its bytes as ISO 8859-1:

    # a comment
    storePathRootDir=/srv/store
    storePathCommitLog = /disk1/commitlog,\
                         /disk2/commitlog

A backslash at a line's end continues it; `\t`, `\u00e9` and the like are escapes of a character.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fsstore import ParquetOptions
from mountctl.errors import CommandError

if TYPE_CHECKING:
    from engine import StoreConfig


ROOT = "storePathRootDir"

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNFINISHED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_SETTING = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_BLANKS = " \t\f"
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a properties file; the last of equal names counts."""
    found = {}
    for line in _logical_lines(text):
        match = _SETTING.fullmatch(line)
        assert match is not None  # each part of the pattern may be empty
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    goes_on = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not goes_on and (not line or line[0] in "#!"):
            continue
        rest = line[:-1] if _UNFINISHED.search(line) else line
        lines[-1:] = [lines[-1] + rest] if goes_on else [*lines[-1:], rest]
        goes_on = rest is not line
    return lines


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _LETTERS.get(escaped, escaped)

    return _ESCAPED.sub(character, text)


def root_of(settings: Mapping[str, str]) -> Path | None:
    """The store's root directory that the settings name, if any."""
    root = settings.get(ROOT, "").strip()
    return Path(root) if root else None


MOST_INTERVAL_MS = 3_600_000
_SWITCHES = {"ro": "read_only", "follow": "follow", "sync_flush": "sync_flush", "allow_other": "allow_other"}
_PATHS = frozenset({"storePathCommitLog", "readOnlyCommitLogStorePaths"})
_LISTS = _PATHS | {"haAllow"}
"""Options whose value may have commas; each part has a slash."""
_KERNEL = frozenset(
    {"suid", "nosuid", "dev", "nodev", "exec", "noexec", "atime", "noatime", "dirsync", "sync", "async"}
)
_FOR_OTHERS = frozenset({"rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "nofail", "_netdev"})


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings for opening a store, by RocketMQ's names, with absolute paths. `options` of the command line take
    precedence over `broker`, the settings of the broker.conf at `conf` (None: none was named)."""

    options: Mapping[str, str] = field(default_factory=dict)
    conf: Path | None = None
    broker: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.options) or self.conf is not None

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """Folders of the commit log that the settings name."""
        known = {**self.broker, **self.options}
        return tuple(Path(path) for name in sorted(_PATHS) for path in known.get(name, "").split(",") if path)

    @property
    def passed_over(self) -> list[str]:
        """Names in broker.conf that have no meaning here."""
        from engine import MASTER_NAMES, OPTION_NAMES

        return sorted(self.broker.keys() - {*OPTION_NAMES, ROOT} | self.broker.keys() & {*MASTER_NAMES})

    def require_store(self, store: Path) -> None:
        """CommandError: broker.conf belongs to another store."""
        root = root_of(self.broker)
        if root is not None and os.path.realpath(root) != os.path.realpath(store):
            raise CommandError(
                f"{self.conf} belongs to another store than {store}: its {ROOT} is {root}",
                "name its paths by -o storePathCommitLog=PATH",
                os.EX_USAGE,
            )

    def without(self, names: Set[str]) -> StoreSettings:
        """These settings without those options of the command line."""
        return replace(self, options={name: value for name, value in self.options.items() if name not in names})

    def applied_to(self, config: StoreConfig) -> StoreConfig:
        """`config`, changed by these settings. OptionError."""
        from engine import with_broker_conf, with_options  # not in a process that forks

        if self.conf is not None:
            config = with_broker_conf(config, self.broker)
        return with_options(config, self.options)


@dataclass(frozen=True, slots=True)
class MountRequest:
    """All facts of one mount, with absolute paths. Its text may go to a server of another version.

    `mode` is write, read-only or follow (engine.OpenMode's values); `settings` go to the engine, `kernel_options` to
    mount(2). `append_mode` None leaves the permission bits of `append` files to the filesystem. `cache` is the
    directory for queues that a follower derives from the log. A follower looks every `follow_interval_ms`; None: the
    filesystem's own interval. `has_replica`: a replica that was started with the mount has the same settings.
    """

    store: Path
    mountpoint: Path
    mode: str = "write"
    sync_flush: bool = False
    allow_other: bool = False
    append_mode: int | None = None
    settings: StoreSettings = field(default_factory=StoreSettings)
    kernel_options: tuple[str, ...] = ()
    parquet: ParquetOptions = field(default_factory=ParquetOptions)
    cache: Path | None = None
    follow_interval_ms: int | None = None
    has_replica: bool = False

    def to_text(self) -> bytes:
        """JSON, by the fields' names."""
        return json.dumps(asdict(self), default=os.fspath).encode()

    @classmethod
    def from_text(cls, text: bytes) -> MountRequest:
        """The request in a text of `to_text`; fields that this version does not know are ignored."""
        values = json.loads(text)
        values["store"], values["mountpoint"] = Path(values["store"]), Path(values["mountpoint"])
        values["kernel_options"] = tuple(values["kernel_options"])
        values["settings"] = _made(StoreSettings, values["settings"], "conf")
        values["parquet"] = _made(ParquetOptions, values["parquet"])
        return _made(cls, values, "cache")

    @staticmethod
    def require_changeable(words: ParsedOptions) -> None:
        """CommandError names options that can't change while the store is mounted."""
        if fixed := words.fixed:
            reason = f"-o {', '.join(fixed)} can't change while it is mounted"
            raise CommandError(reason, "umount, then mount with it", os.EX_USAGE)

    def changed_by(self, words: ParsedOptions) -> MountRequest:
        """This request with other options, where these can change."""
        return replace(
            self,
            sync_flush=self.sync_flush or "sync_flush" in words.switches,
            append_mode=self.append_mode if words.append_mode is None else words.append_mode,
            settings=replace(self.settings, options={**self.settings.options, **words.store}),
            parquet=self.parquet if words.parquet is None else words.parquet,
            follow_interval_ms=words.follow_interval_ms or self.follow_interval_ms,
        )


K = TypeVar("K")


def _made(kind: type[K], values: dict[str, Any], path: str = "") -> K:
    """A dataclass made of the values that it has fields for; the field named `path` is a path or None."""
    known = {one.name: values[one.name] for one in fields(kind) if one.name in values}  # type: ignore[arg-type]
    if known.get(path) is not None:
        known[path] = Path(known[path])
    return kind(**known)


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """The words after `-o`, sorted by their receivers."""

    switches: frozenset[str]
    store: Mapping[str, str]
    kernel: tuple[str, ...]
    append_mode: int | None = None
    parquet: ParquetOptions | None = None
    log_file: Path | None = None
    broker_conf: Path | None = None
    cache: Path | None = None
    follow_interval_ms: int | None = None

    @property
    def fixed(self) -> list[str]:
        """Options that can be given at the mount only."""
        switches = (name for name, switch in _SWITCHES.items() if switch in self.switches and name != "sync_flush")
        paths = (name for name in ("log_file", "broker_conf", "cache") if getattr(self, name) is not None)
        return [*switches, *self.kernel, *paths, *sorted(_PATHS & self.store.keys())]


def parse(texts: Iterable[str]) -> ParsedOptions:
    """Parse the words of every `-o`, separated by commas. CommandError names an unknown one."""
    switches, store, kernel = set(), {}, []
    values: dict[str, Any] = {}
    for name, equals, value in _words(texts):
        word = f"{name}{equals}{value}"
        if name in _VALUES and equals:
            field_name, read = _VALUES[name]
            values[field_name] = read(value)
        elif name in _GONE:
            raise CommandError(f"-o {name} is no longer offered", _GONE[name], os.EX_USAGE)
        elif equals and not name.startswith("x-"):
            # the engine checks its own names
            store[name] = _absolute_paths(value) if name in _PATHS else value
        elif name in _SWITCHES:
            switches.add(_SWITCHES[name])
        elif name in _KERNEL:
            kernel.append(name)
        elif name and name not in _FOR_OTHERS and not name.startswith("x-"):
            raise CommandError(f"unknown option: -o {word}", "see `mountctl mount --help`", 64)
    return ParsedOptions(frozenset(switches), store, tuple(kernel), **values)


def _words(texts: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name, equals sign and value of each word. A list's commas belong to it, for no name contains a slash."""
    name = equals = value = ""
    for text in texts:
        for word in (word.strip() for word in text.split(",")):
            if name in _LISTS and "/" in word.partition("=")[0]:
                value += f",{word}"
                continue
            yield name, equals, value
            name, equals, value = word.partition("=")
    yield name, equals, value


def _absolute_paths(value: str) -> str:
    """A broker's paths made absolute, since the process may change its working directory."""
    return ",".join(os.path.abspath(path.strip()) for path in value.split(",") if path.strip())


def option_words(for_mount: bool) -> list[str]:
    """The possible beginnings of a word of `-o`: the store's options, and with `for_mount` the mount's."""
    from engine import OPTION_NAMES

    store = [f"{name}=" for name in OPTION_NAMES]
    mount = [*_SWITCHES, *(f"{name}=" for name in _VALUES), *_KERNEL, *_FOR_OTHERS]
    return sorted([*store, *mount] if for_mount else store)


def settings_of(options: Mapping[str, str], conf: Path | None) -> StoreSettings:
    """The settings of a store that a command line gives. CommandError, OSError."""
    if conf is None:
        return StoreSettings(options)
    found = parse_properties(conf.read_bytes().decode("latin-1"))
    return StoreSettings(options, conf, found | {name: _absolute_paths(found[name]) for name in _PATHS & found.keys()})


BROKER_CONF = click.option(
    "--broker-conf", type=click.Path(path_type=Path, dir_okay=False), help="A broker's broker.conf, unchanged."
)


def takes_settings(
    command: Callable[..., Any], names: Sequence[str] = ("-o", "--option"), own: frozenset[str] = frozenset()
) -> Callable[..., Any]:
    """Give a verb that opens a store `-o` and `--broker-conf`; its function gets them as `settings`. `own` are names
    that the verb itself understands."""

    @functools.wraps(command)
    def with_settings(options: tuple[str, ...], broker_conf: Path | None, **rest: Any) -> Any:
        words = parse(options)
        if replace(words, store={}) != parse(()):
            raise CommandError("-o takes the store's options here", "see docs/operations.md", os.EX_USAGE)
        _refuse_master(words.store.keys() - own)
        return command(settings=settings_of(words.store, broker_conf), **rest)

    named = click.option(*names, "options", multiple=True, metavar="NAME=VALUE,...", help="How to open the store.")
    return named(BROKER_CONF(with_settings))


def _refuse_master(options: Set[str]) -> None:
    """CommandError: the options would have a verb serve replicas."""
    if not options:
        return
    from engine import MASTER_NAMES

    if named := sorted(options & {*MASTER_NAMES}):
        raise CommandError(f"-o {', '.join(named)}: only mount and replicate serve replicas", "", os.EX_USAGE)


def parse_size(text: str) -> int:
    """Bytes of a size that may end in K, M, G or T (powers of 1024)."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    exponent = "KMGT".find(unit) + 1 if unit else 0
    if not digits.isdecimal() or (unit and not exponent):
        raise CommandError(f"invalid size {text!r}", "give bytes, or a number with K, M, G or T, like 256M", 64)
    return int(digits) << 10 * exponent


def parse_mode(text: str) -> int:
    """Permission bits from octal digits: '222' -> 0o222."""
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise CommandError(f"invalid file mode {text!r}", "give octal digits, like 222", 64)
    return mode


def parse_interval(text: str) -> int:
    """Milliseconds of an interval."""
    if not text.isdecimal() or not 0 < int(text[:9]) <= MOST_INTERVAL_MS:
        raise CommandError(f"invalid interval {text!r}", f"give milliseconds, 1 to {MOST_INTERVAL_MS}", 64)
    return int(text)


_VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "append_mode": ("append_mode", parse_mode),
    "log_file": ("log_file", Path),
    "broker_conf": ("broker_conf", Path),
    "cache": ("cache", Path),
    "follow_interval_ms": ("follow_interval_ms", parse_interval),
    "parquet_memory": ("parquet", lambda text: ParquetOptions(parse_size(text))),
}
"""The field of ParsedOptions that each option sets, and the parser of its value."""

_GONE = {
    "parquet_disk": "leave it out: the kernel keeps what was read; parquet_memory=SIZE bounds what the daemon keeps",
    "parquet_cache": "leave it out: nothing rendered is written to disk; what --follow derives goes to -o cache=DIR",
}
"""Options of earlier versions, and their replacements."""
