"""Names in the mounted tree: parsing and spelling. Pure functions without a store.

00000000000000000042     a queue offset: listed with 20 digits, looked up in any decimal spelling
@first @last @<time>     computed: epoch milliseconds, or ISO 8601 (without a zone: local time)
a%2Fb                    a key: percent-encoded if a name can't contain it; raw characters are accepted too
append@tags=paid,…       publish, with options
orders@queues=1          in `mkdir` alone: the topic `orders`, with options
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

NAME_MAX_BYTES = 255
MAX_QUEUE_OFFSET = (1 << 63) - 1
MATCHES_SUFFIX = b"@all"
APPEND = b"append"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_MALFORMED_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_PLAIN_NUMBER = re.compile(rb"0|[1-9][0-9]{0,9}")
_MATCH = re.compile(rb"(0|[1-9][0-9]{0,9})-([0-9]+)")


def offset_name(queue_offset: int) -> bytes:
    """The listed name of a message file."""
    return b"%020d" % queue_offset


def parse_queue(name: bytes) -> int | None:
    """The queue of a plain decimal; None for any other name, also with a leading zero."""
    return int(name) if _PLAIN_NUMBER.fullmatch(name) else None


def parse_match(name: bytes) -> tuple[int, int] | None:
    """Queue and queue offset of a name `<queue>-<offset>`."""
    found = _MATCH.fullmatch(name)
    if found is None:
        return None
    queue_offset = int(found[2])
    return (int(found[1]), queue_offset) if queue_offset <= MAX_QUEUE_OFFSET else None


def from_name(name: bytes) -> str:
    """The text of a topic's or group's name. Any bytes survive `to_name(from_name(name))`."""
    return name.decode("utf-8", "surrogateescape")


def to_name(text: str) -> bytes:
    """The name of a topic or group."""
    return text.encode("utf-8", "surrogateescape")


def to_names(texts: Sequence[str]) -> list[bytes]:
    """`to_name` of each; together they take a fraction of the time. None has a NUL."""
    return to_name("\0".join(texts)).split(b"\0") if texts else []


def can_be_name(name: bytes) -> bool:
    """Whether a file can have this name without encoding."""
    return 0 < len(name) <= NAME_MAX_BYTES and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def can_all_be_names(names: Sequence[bytes], most_bytes: int = NAME_MAX_BYTES) -> bool:
    """Whether all of `names`, of up to `most_bytes` each, `can_be_name`. It takes a fraction of the time for one."""
    joined = b"/".join([b"", *names, b""])
    return (
        joined.count(b"/") == len(names) + 1
        and not any(impossible in joined for impossible in (b"\0", b"//", b"/./", b"/../"))
        and max(map(len, names), default=0) <= most_bytes
    )


def never_exists(name: bytes) -> bool:
    """Whether no topic, queue or offset can ever have this name: it is one of Hadoop's checksum files."""
    return name.startswith(b".") and name.endswith(b".crc")


def encode_key(key: str) -> bytes | None:
    """The listed name of a key; None: it would have over 255 bytes."""
    if key in (".", ".."):
        return b"%2E" * len(key)
    name = (key if key.isalnum() else "".join(map(_encoded, key))).encode()
    return name if 0 < len(name) <= NAME_MAX_BYTES else None


def _encoded(character: str) -> str:
    if character not in "/%@:" and unicodedata.category(character) != "Cc":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode())


def decode_key(name: bytes) -> str | None:
    """The key of a name: `%XX` is decoded; None: it is not UTF-8."""
    return _text(_unescaped(name))


def _unescaped(raw: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw) if b"%" in raw else raw


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def parse_time_ms(text: bytes) -> int | None:
    """Epoch milliseconds of `@<text>`; None: it is no time.

    All digits are epoch milliseconds; ISO 8601 without a zone is local time, a date alone its midnight.
    """
    if text.isdigit():
        return min(int(text), MAX_QUEUE_OFFSET)
    decoded = decode_key(text)
    if decoded is None:
        return None
    try:
        since_epoch = datetime.fromisoformat(decoded).astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError, OSError):
        return None
    return -(-since_epoch // timedelta(milliseconds=1))


class Frame(Enum):
    """The unit of bytes written to `append` that becomes one message."""

    LINE = "line"
    WRITE = "write"
    FILE = "file"


class BodyFormat(Enum):
    """The format of the framed bytes."""

    RAW = "raw"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class AppendOptions:
    frame: Frame = Frame.LINE
    format: BodyFormat = BodyFormat.RAW
    tags: str = ""
    keys: tuple[str, ...] = ()


PLAIN_APPEND = AppendOptions()


def parse_append(name: bytes) -> AppendOptions | None:
    """Options of `append` or `append@name=value,…`; None: it is neither, or has an unknown or malformed option.

    `tags=`, `keys=` (several: joined by a plus), `frame=line|write|file`, `format=raw|json`. Values are
    percent-encoded: a literal plus in a key is `%2B`, a comma `%2C`.
    """
    if name == APPEND:
        return PLAIN_APPEND
    if not name.startswith(APPEND + b"@"):
        return None
    given: dict[str, object] = {}
    for option in name[len(APPEND) + 1 :].split(b","):
        key, _, value = option.partition(b"=")
        parsed = _parse_option(key, value)
        if parsed is None or parsed[0] in given:
            return None
        given[parsed[0]] = parsed[1]
    return AppendOptions(**given)  # type: ignore[arg-type]


class NewTopic(NamedTuple):
    """A topic to be made by `mkdir` in the root."""

    name: bytes
    queues: int | None = None
    """None: the default number of queues."""
    problem: str = ""
    """Why the name is refused; empty: it is not."""


def parse_topic(name: bytes) -> NewTopic:
    """Parse `orders` or `orders@queues=1`."""
    topic, separator, options = name.partition(b"@")
    if not topic or not separator:
        return NewTopic(name)
    option, _, value = options.partition(b"=")
    if option != b"queues" or b"," in value:
        return NewTopic(
            topic, problem=f"there is no option {options.decode(errors='replace')!r}: there is queues=NUMBER"
        )
    if not _PLAIN_NUMBER.fullmatch(value):
        return NewTopic(topic, problem=f"option queues can't be {value.decode(errors='replace')!r}: it is a number")
    return NewTopic(topic, int(value))


def append_problem(name: bytes) -> str | None:
    """The error in the options of a name that begins with `append@`; None: there is none."""
    seen: set[bytes] = set()
    for option in name[len(APPEND) + 1 :].split(b","):
        key, _, value = option.partition(b"=")
        shown = key.decode(errors="replace")
        if key not in (b"tags", b"keys", b"frame", b"format"):
            return f"there is no option {shown!r}: there are tags, keys, frame and format"
        if _parse_option(key, value) is None:
            return f"option {shown} can't be {value.decode(errors='replace')!r}"
        if key in seen:
            return f"option {shown} is there twice"
        seen.add(key)
    return None


def _parse_option(name: bytes, value: bytes) -> tuple[str, object] | None:
    if name == b"keys":
        keys = tuple(map(_parse_value, value.split(b"+")))
        return None if None in keys or any(" " in key for key in keys if key) else ("keys", keys)
    text = _parse_value(value)
    if text is None:
        return None
    if name == b"tags":
        return "tags", text
    choices: type[Enum] | None = {b"frame": Frame, b"format": BodyFormat}.get(name)
    if choices is None or text not in {choice.value for choice in choices}:
        return None
    return name.decode(), choices(text)


def _parse_value(raw: bytes) -> str | None:
    """A decoded value; None: it is empty, not UTF-8, badly escaped, or has characters that a property can't have."""
    if _MALFORMED_ESCAPE.search(raw):
        return None
    text = _text(_unescaped(raw))
    return text if text and not any(character in text for character in "\0\x01\x02") else None
