"""Framing: which bytes written to one handle make one message. No store, no file: bytes in, bytes out.

A request is taken in two steps, so that a refused one leaves no trace: `lines_with` says what a request would complete,
`keep_rest_of` takes it once that has been stored.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from engine import IllegalMessageError, Message, MessageTooLargeError
from fsstore.names import AppendOptions

_JSON_FIELDS = frozenset(("body", "body_base64", "keys", "tags", "properties"))
_JSON_ESCAPE_BYTES = 6
_JSON_PROPERTIES_BYTES = 1 << 18


class LineFramer:
    """Cuts what one handle writes into lines; keeps the last one until its newline comes."""

    __slots__ = ("_limit_bytes", "pending")

    def __init__(self, limit_bytes: int) -> None:
        """A line without its newline has at most `limit_bytes`."""
        self._limit_bytes = limit_bytes
        self.pending = bytearray()
        """The line that has no newline yet."""

    def lines_with(self, data: bytes) -> list[bytes]:
        """The whole lines, newlines included, that `data` completes. MessageTooLargeError for too long a rest."""
        lines = BytesIO(data).readlines()
        rest_bytes = len(lines.pop()) if lines and not lines[-1].endswith(b"\n") else 0
        if not lines:
            rest_bytes += len(self.pending)
        elif self.pending:
            lines[0] = b"".join((self.pending, lines[0]))
        if rest_bytes > self._limit_bytes:
            raise MessageTooLargeError("line", rest_bytes, self._limit_bytes)
        return lines

    def rest_bytes_with(self, data: bytes) -> int:
        """How long the line without its newline is, once `data` was taken."""
        end = data.rfind(b"\n") + 1
        return len(data) - end if end else len(self.pending) + len(data)

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


def json_line_limit_bytes(body_limit_bytes: int) -> int:
    """Longest line of JSON whose body can be within the limit: each byte may have been written as an escape."""
    return body_limit_bytes * _JSON_ESCAPE_BYTES + _JSON_PROPERTIES_BYTES


def parse_json_lines(topic: str, lines: Sequence[bytes], options: AppendOptions) -> list[Message]:
    """A message of each line that is not empty. IllegalMessageError for the first that is no message."""
    return [parse_json_message(topic, line[:-1], options) for line in lines if line != b"\n"]


def parse_json_message(topic: str, text: bytes, options: AppendOptions) -> Message:
    """The message that one JSON object says: body, and keys, tags, properties where `options` are not to hold. A body
    that is no text is `body_base64` instead.

    IllegalMessageError when it is malformed, has another field, or no body.
    """
    record = _json_object(text)
    unknown = record.keys() - _JSON_FIELDS
    if unknown:
        raise IllegalMessageError(
            f"unknown field {min(unknown)!r}; there are body, body_base64, keys, tags and properties"
        )
    return Message(
        topic,
        _json_body(record),
        keys=_json_keys(record.get("keys", options.keys)),
        tags=_json_text("tags", record.get("tags", options.tags)),
        properties=_json_properties(record.get("properties", {})),
    )


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IllegalMessageError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise IllegalMessageError("not a JSON object")
    return record


def _json_body(record: dict[str, Any]) -> bytes:
    if ("body" in record) == ("body_base64" in record):
        raise IllegalMessageError("both body and body_base64" if "body" in record else "no body")
    if "body_base64" in record:
        return _json_bytes(record["body_base64"])
    try:
        return _json_text("body", record["body"]).encode()
    except UnicodeEncodeError as error:
        raise IllegalMessageError("body is not valid Unicode") from error


def _json_bytes(value: object) -> bytes:
    try:
        return base64.b64decode(_json_text("body_base64", value), validate=True)
    except ValueError as error:
        raise IllegalMessageError(f"body_base64: {error}") from error


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
    return {name: _json_text(f"property {name!r}", text) for name, text in value.items()}
