"""Properties: a message's names and values, as one string in its record (docs/format.md, 2).

    name 0x01 value 0x02 name 0x01 value 0x02 ...     UTF-8; some versions write a last 0x02, some don't, both are read

Nothing is escaped, so a name or value holding a separator cannot be written, nor one holding a NUL: zeros are what a
lost disk sector reads as. RocketMQ reads an empty value as no property: so do we, and write it as given.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.kernel.decode import decode_properties as decode_properties
from engine.record.kernel.decode import find_property as find_property

MAX_PROPERTIES_BYTES = 32767

KEYS = b"KEYS"
TAGS = b"TAGS"
UNIQUE_KEY = b"UNIQ_KEY"

_NAME_END = "\x01"
_VALUE_END = "\x02"
_ITEMS_END = "\x02\x02"
"""Stands between two messages' properties while they are one text: none holds it, since a name is never empty."""


def encode_properties(keys: Sequence[str], tags: str, properties: Mapping[str, str]) -> bytes:
    """The stored form, without a last separator: KEYS and TAGS first unless `properties` has them, then `properties` in
    order.

    IllegalMessageError for a separator or a NUL in a name or value, an empty name, a key that is empty or holds a
    space; MessageTooLargeError over 32,767 bytes.
    """
    if properties:
        return _encode_all(keys, tags, properties)
    ending = _tags_ending(tags)
    if not keys:
        return ending[1:]
    key = keys[0]
    if len(keys) == 1 and key.isprintable() and " " not in key and key and not isinstance(keys, str):
        raw = b"KEYS\x01" + key.encode() + ending  # no separator and no NUL is printable
        if len(raw) <= MAX_PROPERTIES_BYTES:
            return raw
    return _encode_all(keys, tags, properties)


def _encode_all(keys: Sequence[str], tags: str, properties: Mapping[str, str]) -> bytes:
    items = []
    if keys and "KEYS" not in properties:
        items.append("KEYS\x01" + _joined_keys(keys))
    if tags and "TAGS" not in properties:
        items.append("TAGS\x01" + tags)
    items += [name + _NAME_END + value for name, value in properties.items()]
    text = _VALUE_END.join(items)
    if text.count(_NAME_END) != len(items) or text.count(_VALUE_END) != len(items) - 1 or "" in properties:
        raise IllegalMessageError("a property has no name, or holds the character 1 or 2")
    if "\0" in text:
        raise IllegalMessageError("a key, the tags or a property holds the character 0")
    raw = _utf8(text)
    check_size(len(raw))
    return raw


def _tags_ending(tags: str) -> bytes:
    """The property TAGS after others: their separator, then itself; nothing without tags."""
    return _short_ending(tags) if len(tags) <= _REMEMBERED_CHARACTERS else _ending(tags)


def _ending(tags: str) -> bytes:
    return b"\x02" + _encode_all((), tags, {}) if tags else b""


_short_ending = lru_cache(maxsize=1_000)(_ending)
_REMEMBERED_CHARACTERS = 128
"""Longer tags are not remembered: a publisher may send different ones of 32 KB with each message."""


def check_size(size: int) -> None:
    """MessageTooLargeError when properties of `size` bytes as stored are too many."""
    if size > MAX_PROPERTIES_BYTES:
        raise MessageTooLargeError("properties", size, MAX_PROPERTIES_BYTES)


def encode_labels(key_lists: Sequence[Sequence[str]], keys: Sequence[str], tags: Sequence[str]) -> list[bytes]:
    """`encode_properties` of many messages without further properties: one text, checked and encoded at once, where
    every message has a key. `keys` are those of all lists. Leaves it to the caller to check sizes."""
    if all(key_lists) and not any(issubclass(kind, str) for kind in {*map(type, key_lists)}):
        joined = keys if len(keys) == len(key_lists) else list(map(" ".join, key_lists))
        spaced = f" {' '.join(keys)} "
        text = _labels_text(joined, tags)
        tag_count = len(tags) - tags.count("")
        if (
            spaced.count(" ") == len(keys) + 1
            and "  " not in spaced
            and text.count(_NAME_END) == len(joined) + tag_count
            and text.count(_VALUE_END) == tag_count + len(_ITEMS_END) * (len(joined) - 1)
            and "\0" not in text
        ):
            return _utf8(text).split(_ITEMS_END.encode())
    return [encode_properties(own, tag, {}) for own, tag in zip(key_lists, tags, strict=True)]


def _labels_text(joined_keys: Sequence[str], tags: Sequence[str]) -> str:
    """The properties KEYS and TAGS of each message, _ITEMS_END between them."""
    endings = {tag: f"\x02TAGS\x01{tag}" if tag else "" for tag in set(tags)}
    if len(endings) == 1:
        (ending,) = endings.values()
        return "KEYS\x01" + f"{ending}{_ITEMS_END}KEYS\x01".join(joined_keys) + ending
    return _ITEMS_END.join([f"KEYS\x01{keys}{endings[tag]}" for keys, tag in zip(joined_keys, tags, strict=True)])


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessageError("a property is not valid Unicode") from error


def _joined_keys(keys: Sequence[str]) -> str:
    joined = " ".join(keys)
    if joined.count(" ") != len(keys) - 1 or "" in keys or isinstance(keys, str):
        raise IllegalMessageError("keys are a list of texts that are not empty and hold no space")
    return joined


def split_keys(text: str) -> list[str]:
    """The keys in a KEYS value: RocketMQ splits at single spaces and skips what is empty."""
    keys = text.split(" ")
    return [key for key in keys if key] if "" in keys else keys
