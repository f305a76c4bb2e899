"""Framing: which bytes written to one handle make one message. No store, no file: bytes in, bytes out.

A request is taken in two steps, so that a refused one leaves no trace: `lines_with` says what a request would complete,
`keep_rest_of` takes it once that has been stored.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine import IllegalMessageError, Message, MessageTooLargeError, split_text
from fsstore.tree.long_json import LongString, parse_long
from fsstore.tree.names import AppendOptions

_JSON_FIELDS = frozenset(("body", "body_base64", "keys", "tags", "properties"))
_JSON_ESCAPE_BYTES = 6
_JSON_PROPERTIES_BYTES = 1 << 18
_JSON_AT_ONCE_BYTES = 1 << 16
_FREED_AT_ONCE = 8_192
_SLICE_BYTES = 1 << 18
_BASE64_AT_ONCE_BYTES = 1 << 18


class LineFramer:
    """Cuts what one handle writes into lines; keeps the last one until its newline comes."""

    __slots__ = ("_limit_bytes", "pending")

    def __init__(self, limit_bytes: int) -> None:
        """A line without its newline has at most `limit_bytes`."""
        self._limit_bytes = limit_bytes
        self.pending = bytearray()
        """The line that has no newline yet."""

    def rest_bytes_with(self, data: bytes) -> int:
        """How long the line without its newline is, once `data` was taken. MessageTooLargeError: too long."""
        end = data.rfind(b"\n") + 1
        rest_bytes = len(data) - end if end else len(self.pending) + len(data)
        if rest_bytes > self._limit_bytes:
            raise MessageTooLargeError("line", rest_bytes, self._limit_bytes)
        return rest_bytes

    def lines_with(self, data: bytes) -> list[bytes]:
        """The whole lines, newlines included, that `data` completes."""
        lines = split_text(data)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        if lines and self.pending:
            lines[0] = b"".join((*slices_of(self.pending), lines[0]))
        return lines

    def completed_bytes_with(self, data: bytes) -> int:
        """Of those lines."""
        end = data.rfind(b"\n") + 1
        return end + len(self.pending) if end else 0

    def keep_rest_of(self, data: bytes) -> None:
        """Take `data`, whose lines have been dealt with: keep what follows the last newline."""
        end = data.rfind(b"\n") + 1
        if end:
            self.pending.clear()
        if end < len(data):
            self.pending += memoryview(data)[end:]

    def drop(self) -> None:
        """Forget the line that has no newline yet."""
        self.pending = bytearray()


def slices_of(buffer: bytearray) -> Iterator[bytes]:
    """A copy of it in pieces: `join` lets other threads go on for these, and not for a `bytearray`."""
    for start in range(0, len(buffer), _SLICE_BYTES):
        yield bytes(buffer[start : start + _SLICE_BYTES])


def let_go(rows: list[Any]) -> None:
    """Empty a long list, some at a time: to free a hundred thousand objects at once keeps all threads for 6 ms."""
    while rows:
        del rows[-_FREED_AT_ONCE:]


def json_line_limit_bytes(body_limit_bytes: int) -> int:
    """Longest line of JSON whose body can be within the limit: each byte may have been written as an escape."""
    return body_limit_bytes * _JSON_ESCAPE_BYTES + _JSON_PROPERTIES_BYTES


def parse_json_lines(topic: str, lines: Sequence[bytes], options: AppendOptions) -> list[Message]:
    """A message of each line that is not empty. IllegalMessageError for the first that is no message."""
    messages = []
    for number, line in enumerate(lines, 1):
        if line != b"\n":
            try:
                messages.append(parse_json_message(topic, memoryview(line)[:-1], options))
            except IllegalMessageError as error:
                let_go(messages)
                raise IllegalMessageError(f"line {number} of {len(lines)}: {error.reason}") from error
    return messages


def parse_json_message(topic: str, text: bytes | memoryview, options: AppendOptions) -> Message:
    """The message that one JSON object says: body, and keys, tags, properties where `options` are not to hold. A body
    that is no text is `body_base64` instead.

    IllegalMessageError when it is malformed, has another field, or no body.
    """
    record, long = _json_object(text)
    unknown = record.keys() - _JSON_FIELDS
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
        if len(text) <= _JSON_AT_ONCE_BYTES:
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
    """As `b64decode` with `validate`, so much at a time that no other thread waits for long. ValueError."""
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
