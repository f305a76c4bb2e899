"""Messages as JSON, for `append@format=json`; long ones are parsed in pieces.

    {"keys": ["K"], "body": "…megabytes…"}
    {"keys": ["K"], "body": "9f02…xxxx"}   + the string that 9f02…xxxx replaces: unescaped, in parts of UTF-8

A thread that parses 24 MiB in one call keeps the interpreter from all other threads, so no call into C takes more than
about a millisecond. Long strings are cut out and unescaped piece by piece; the rest is short, and the parser gets it.
Its result and errors are those for the whole text, with one exception: a rest that is still long is refused
(MOST_TOKENS, MOST_REST_CHARACTERS), and not parsed.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined] # not in the stubs; it decodes a JSON string
from typing import Any

from engine import IllegalMessageError, Message
from fsstore.tree.names import AppendOptions

_FIELDS = frozenset(("body", "body_base64", "keys", "tags", "properties"))
_ESCAPE_BYTES = 6
_PROPERTIES_BYTES = 1 << 18
_AT_ONCE_BYTES = 1 << 16
_BASE64_AT_ONCE_BYTES = 1 << 18
_FREED_AT_ONCE = 8_192

PIECE_BYTES = 1 << 14
"""Bytes that are decoded, searched and unescaped at a time."""

MOST_KEPT_BYTES = 32_767
"""A longer string can't be a property, so it is cut out."""

MOST_TOKENS = 1 << 17
"""The limit of strings plus characters outside of strings; a run of white space counts as one. It is twice the number
that 32,767 bytes of keys of one letter need."""

MOST_REST_CHARACTERS = 1 << 20
"""The limit of the rest in characters: more than MOST_KEPT_BYTES of body and of properties, each byte an escape."""

_SHORT = 1 << 12
"""A string with fewer characters as written, within one piece, is left as written."""
_SPACES = re.compile(r"[ \t\n\r]+")
_CONTENT = re.compile(r'(?:[^"\\]++|\\[^u]|\\u.{4})*+', re.DOTALL)
"""Content of a string, up to its quote or to an incomplete escape at the end of the text. Escapes are not checked."""
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_SPECIAL = ("\0", "\1", "\2", " ")
"""Characters for which a property of any length is refused."""


def json_line_limit_bytes(body_limit_bytes: int) -> int:
    """The longest line of JSON whose body can be within the limit: each byte may be written as an escape."""
    return body_limit_bytes * _ESCAPE_BYTES + _PROPERTIES_BYTES


def parse_json_lines(
    topic: str, lines: Sequence[bytes], options: AppendOptions, blame: Callable[[int], None] = lambda number: None
) -> list[Message]:
    """A message for each line that is not empty. IllegalMessageError: one is invalid; `blame` has got its number."""
    messages = []
    for number, line in enumerate(lines, 1):
        if line != b"\n":
            try:
                messages.append(parse_json_message(topic, memoryview(line)[:-1], options))
            except IllegalMessageError as error:
                free_slowly(messages)
                blame(number)
                raise IllegalMessageError(f"line {number} of {len(lines)}: {error.reason}") from error
    return messages


def parse_json_message(topic: str, text: bytes | memoryview, options: AppendOptions) -> Message:
    """The message of a JSON object: its body, and keys, tags and properties that override `options`. A body that is not
    text is `body_base64` instead.

    IllegalMessageError: it is malformed, has another field, or no body.
    """
    record, long = _json_object(text)
    unknown = record.keys() - _FIELDS
    if unknown:
        raise IllegalMessageError(
            f"unknown field {min(unknown)[:64]!r}; there are body, body_base64, keys, tags and properties"
        )
    return Message(
        topic,
        _json_body(record, long),
        keys=_json_keys(record.get("keys", options.keys)),
        tags=_json_text("tags", record.get("tags", options.tags)),
        properties=_json_properties(record.get("properties", {})),
    )


def _json_object(text: bytes | memoryview) -> tuple[dict[str, Any], Mapping[str, LongString]]:
    """The object, and its strings that are too long to be parsed at once."""
    long: Mapping[str, LongString] = {}
    try:
        if len(text) <= _AT_ONCE_BYTES:
            record = json.loads(bytes(text))
        else:
            record, long = parse_long(text)
    except (ValueError, RecursionError) as error:
        raise IllegalMessageError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise IllegalMessageError("not a JSON object")
    return record, long


def _json_body(record: dict[str, Any], long: Mapping[str, LongString]) -> bytes:
    if ("body" in record) == ("body_base64" in record):
        raise IllegalMessageError("both body and body_base64" if "body" in record else "no body")
    if "body_base64" in record:
        return _json_bytes(record["body_base64"], long)
    body = _json_text("body", record["body"])
    try:
        if body not in long:
            return body.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessageError("body is not valid Unicode") from error
    if not long[body].is_unicode:
        raise IllegalMessageError("body is not valid Unicode")
    return b"".join(long[body].parts)


def _json_bytes(value: object, long: Mapping[str, LongString]) -> bytes:
    text = _json_text("body_base64", value)
    try:
        if text not in long:
            return base64.b64decode(text, validate=True)
        return _decoded_base64(b"".join(long[text].parts))
    except ValueError as error:
        raise IllegalMessageError(f"body_base64: {error}") from error


def _decoded_base64(text: bytes) -> bytes:
    """As `b64decode` with `validate`, in pieces, so that no other thread waits long. ValueError."""
    parts = []
    for start in range(0, len(text), _BASE64_AT_ONCE_BYTES):
        part = text[start : start + _BASE64_AT_ONCE_BYTES]
        if b"=" in part and start + len(part) < len(text):
            raise ValueError("padding within it")
        parts.append(base64.b64decode(part, validate=True))
    return b"".join(parts)


def _json_text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise IllegalMessageError(f"{field} is not a string")
    return value


def _json_keys(value: object) -> list[str]:
    keys = [value] if isinstance(value, str) else value
    if not isinstance(keys, list | tuple):
        raise IllegalMessageError("keys is neither a string nor a list of strings")
    return [_json_text("a key", key) for key in keys]


def _json_properties(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise IllegalMessageError("properties is not an object")
    return {name: _json_text(f"property {name[:64]!r}", text) for name, text in value.items()}


def free_slowly(rows: list[Any]) -> None:
    """Empty a long list in pieces: freeing a hundred thousand objects at once delays all threads by 6 ms."""
    while rows:
        del rows[-_FREED_AT_ONCE:]


@dataclass(slots=True)
class LongString:
    """A string that was cut out."""

    parts: list[bytes] = field(default_factory=list)
    """Its text as UTF-8; surrogates are encoded too (surrogatepass)."""
    size: int = 0
    special: set[str] = field(default_factory=set)
    """Characters of _SPECIAL that it contains, and _SURROGATE if it contains one."""

    @property
    def is_unicode(self) -> bool:
        """Whether it contains no surrogate."""
        return _SURROGATE not in self.special

    def add(self, written: str) -> None:
        """Append a piece as written, which ends between two characters. ValueError: an escape is bad."""
        text, _ = scanstring(written + '"', 0, True)
        try:
            part = text.encode()
        except UnicodeEncodeError:
            part = text.encode(errors="surrogatepass")
            self.special.add(_SURROGATE)
        self.parts.append(part)
        self.size += len(part)
        self.special.update(character for character in _SPECIAL if character in text)

    def text(self) -> str:
        return b"".join(self.parts).decode(errors="surrogatepass")


_SURROGATE = "\ud800"


def parse_long(text: bytes | memoryview) -> tuple[Any, Mapping[str, LongString]]:
    """As `json.loads`, except for strings over MOST_KEPT_BYTES. In place of each it has another string, unguessable,
    too long for a property, and with those characters of the original that a property must not have.

    ValueError, RecursionError: it is no JSON, or too long for a message even without its long strings.
    """
    rest = _Rest()
    for piece in _decoded(memoryview(text)):
        rest.take(piece)
    return rest.parsed(), rest.long


def _decoded(data: memoryview) -> Iterator[str]:
    """The text in pieces. UnicodeDecodeError."""
    encoding = json.detect_encoding(bytes(data[:4]))
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    start = 0
    while start < len(data):
        end = start + PIECE_BYTES
        if encoding.startswith("utf-8"):  # its decoder accepts no split surrogate
            for _ in range(3):
                end -= end < len(data) and data[end] & 0xC0 == 0x80
        yield decoder.decode(bytes(data[start:end]))
        start = end
    yield decoder.decode(b"", final=True)


class _Rest:
    """The rest for the parser of a text that is taken in pieces."""

    def __init__(self) -> None:
        self.long: dict[str, LongString] = {}
        self._token = secrets.token_hex(16)
        self._parts: list[str] = []
        self._characters = 0
        self._tokens = 0
        self._begun = ""  # the incomplete escape at the end of the last piece
        self._string: LongString | None = None  # the string at the end of the last piece

    def take(self, piece: str) -> None:
        """Take the next piece. ValueError."""
        text, self._begun = self._begun + piece, ""
        position = 0
        while position < len(text) or self._string is not None:
            if self._string is None:
                quote = text.find('"', position)
                outside = _SPACES.sub(" ", text[position : None if quote < 0 else quote])
                self._keep(outside, len(outside))
                if quote < 0:
                    return
                position = quote + 1
            content = _CONTENT.match(text, position)
            assert content is not None  # it matches the empty text too
            end = content.end()
            if end == len(text) or text[end] != '"':
                self._break_off(text, position, end)
                return
            self._end_string(text[position:end])
            position = end + 1

    def _break_off(self, text: str, position: int, end: int) -> None:
        """The piece ends within a string. A surrogate's escape at its end may be half of a character."""
        if _HIGH_SURROGATE.search(text, max(end - 6, position), end):
            slashes = end - 5 - len(text[position : end - 5].rstrip("\\")) - position
            end -= 6 * (slashes % 2)
        self._string = self._string or LongString()
        self._string.add(text[position:end])
        self._begun = text[end:]

    def _end_string(self, written: str) -> None:
        string, self._string = self._string, None
        if string is None and len(written) < _SHORT:
            self._keep(f'"{written}"', 1)
            return
        string = string or LongString()
        string.add(written)
        if string.size <= MOST_KEPT_BYTES:
            kept = string.text()
        else:
            special = "".join(sorted(string.special))
            kept = f"{self._token}{len(self.long)}{special}{'x' * MOST_KEPT_BYTES}"
            self.long[kept] = string
        self._keep(json.dumps(kept, ensure_ascii=False), 1)

    def _keep(self, part: str, tokens: int) -> None:
        self._parts.append(part)
        self._characters += len(part)
        self._tokens += tokens
        if self._tokens > MOST_TOKENS:
            raise ValueError("more names, values and punctuation than a message has")
        if self._characters > MOST_REST_CHARACTERS:
            raise ValueError("more text beside the body than a message has")

    def parsed(self) -> Any:
        """The parsed rest. ValueError, RecursionError."""
        if self._string is not None:
            raise ValueError("a string does not end")
        try:
            return json.loads("".join(self._parts))
        except json.JSONDecodeError as error:
            raise ValueError(error.msg) from error  # its position is in the rest, not in the text
