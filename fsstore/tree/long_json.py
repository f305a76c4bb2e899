"""Long JSON, read in pieces: no call into C takes more of it at once than a millisecond's worth.

    {"keys": ["K"], "body": "…megabytes…"}
    {"keys": ["K"], "body": "9f02…xxxx"}   + what stands for 9f02…xxxx: the string, unescaped, in parts of UTF-8

A thread that parses 24 MiB in one call keeps the interpreter from all others meanwhile. So long strings are cut out and
unescaped piece by piece; what is left is short, and the parser's. It says of the whole what it would have said at once,
but for one thing: what would still be long is refused (MOST_TOKENS, MOST_REST_CHARACTERS), and not parsed.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined] # not in the stubs; it is what a string of JSON means
from typing import Any

PIECE_BYTES = 1 << 14
"""What is decoded, searched and unescaped at a time."""

MOST_KEPT_BYTES = 32_767
"""A longer string can be none of a message's properties, and is cut out."""

MOST_TOKENS = 1 << 17
"""Characters outside of strings, a run of white space being one, and strings: twice what 32,767 bytes of keys of one
letter need."""

MOST_REST_CHARACTERS = 1 << 20
"""Of what is left for the parser: a body of MOST_KEPT_BYTES and as many of properties need less, if each byte is an
escape."""

_SHORT = 1 << 12
"""A string of fewer characters as written, within one piece, stays as it is written."""
_SPACES = re.compile(r"[ \t\n\r]+")
_CONTENT = re.compile(r'(?:[^"\\]++|\\[^u]|\\u.{4})*+', re.DOTALL)
"""Of a string, up to its quote or to the escape that the text breaks off in; whether escapes are right is not looked
at."""
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_SPECIAL = ("\0", "\1", "\2", " ")
"""Characters for which a property is refused, whatever its length."""


@dataclass(slots=True)
class LongString:
    """A string that was cut out."""

    parts: list[bytes] = field(default_factory=list)
    """Its UTF-8, or what would be that if surrogates had any."""
    size: int = 0
    """Bytes of all parts."""
    special: set[str] = field(default_factory=set)
    """Which of _SPECIAL it holds, and a surrogate if it holds one."""

    @property
    def is_unicode(self) -> bool:
        """Whether it holds no surrogate."""
        return _SURROGATE not in self.special

    def add(self, written: str) -> None:
        """Go on with a piece of it as it is written, which ends between two characters. ValueError: a bad escape."""
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
        """The whole of it."""
        return b"".join(self.parts).decode(errors="surrogatepass")


_SURROGATE = "\ud800"


def parse_long(text: bytes | memoryview) -> tuple[Any, Mapping[str, LongString]]:
    """What `json.loads` makes of `text`, but for strings over MOST_KEPT_BYTES: others stand for them, which nobody can
    guess, as long as a property must not be, and with those of their characters that it must not have.

    ValueError, RecursionError: it is no JSON, or longer without its long strings than any message's.
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
        if encoding.startswith("utf-8"):  # whose decoder takes no surrogate in two pieces
            for _ in range(3):
                end -= end < len(data) and data[end] & 0xC0 == 0x80
        yield decoder.decode(bytes(data[start:end]))
        start = end
    yield decoder.decode(b"", final=True)


class _Rest:
    """What is left for the parser of a text that comes in pieces."""

    def __init__(self) -> None:
        self.long: dict[str, LongString] = {}
        self._token = secrets.token_hex(16)
        self._parts: list[str] = []
        self._characters = 0
        self._tokens = 0
        self._begun = ""  # what a string's piece breaks off in
        self._string: LongString | None = None  # that the text is in

    def take(self, piece: str) -> None:
        """Go on with the next piece. ValueError."""
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
            assert content is not None  # an empty one is one
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
        """What it says. ValueError, RecursionError."""
        if self._string is not None:
            raise ValueError("a string does not end")
        try:
            return json.loads("".join(self._parts))
        except json.JSONDecodeError as error:
            raise ValueError(error.msg) from error  # its place is one in what is left
