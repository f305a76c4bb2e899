"""A body as a page shows it: as an image, JSON that folds, text, or hexadecimal numbers."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

TEXT_BYTES, HEX_BYTES, JSON_BYTES, IMAGE_BYTES = 64 << 10, 4 << 10, 256 << 10, 16 << 20
"""Bytes of a body that are shown as text and as numbers, and of bodies that are shown as JSON and as an image."""
MOST_NODES, DEEPEST = 2_000, 50
_WIDTH = 16
FORMS = ("image", "json", "text", "hex")

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class Number(str):
    """A number as it is written."""


class Node(NamedTuple):
    """A value of JSON. `kind` is object, array, string, number or literal; `name` that of a member, or its index."""

    name: str
    kind: str
    text: str
    members: Sequence[Node]


class HexLine(NamedTuple):
    position: int
    numbers: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body of `size` bytes in one of its `forms`; `shown` bytes of it are there."""

    size: int
    form: str
    forms: Sequence[str]
    shown: int
    text: str = ""
    tree: Node | None = None
    lines: Sequence[HexLine] = ()

    @property
    def is_cut(self) -> bool:
        return self.shown < self.size


def image_type(body: bytes) -> str | None:
    """The media type of an image that browsers show; None: it is none."""
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _IMAGES.items() if body.startswith(begin)), None)


def shown_body(body: bytes, asked: str) -> ShownBody:
    """A body in the form that is asked for, or else in the first that it has."""
    is_image = image_type(body) is not None and len(body) <= IMAGE_BYTES
    tree, text = _tree(body), _text(body)
    forms = [
        form
        for form, is_there in zip(FORMS, (is_image, tree is not None, text is not None, True), strict=True)
        if is_there
    ]
    form = asked if asked in forms else forms[0]
    if form == "hex":
        return ShownBody(len(body), form, forms, min(len(body), HEX_BYTES), lines=list(_hex_lines(body[:HEX_BYTES])))
    if form == "text":
        return ShownBody(len(body), form, forms, min(len(body), TEXT_BYTES), text or "")
    return ShownBody(len(body), form, forms, len(body), tree=tree if form == "json" else None)


def preview_of(begin: bytes) -> str:
    """One line for the begin of a body."""
    text = _text(begin)
    return begin[:48].hex(" ") if text is None else " ".join(text.split())


def _text(body: bytes) -> str | None:
    """The begin of a body as text; None: it is none."""
    begin = body[:TEXT_BYTES]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(begin, final=False)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _hex_lines(body: bytes) -> Iterator[HexLine]:
    for position in range(0, len(body), _WIDTH):
        part = body[position : position + _WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in part)
        yield HexLine(position, part.hex(" "), text)


def _tree(body: bytes) -> Node | None:
    """The JSON of a body that is an object or an array; None: it is none, or too large to unfold."""
    if len(body) > JSON_BYTES or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(body, parse_int=Number, parse_float=Number, object_pairs_hook=_Members)
        return _node("", value, DEEPEST, count())
    except (ValueError, RecursionError):
        return None


class _Members(list[tuple[str, Any]]):
    """Members of an object in their order; a name may come twice."""


def _node(name: str, value: Any, depth: int, made: Iterator[int]) -> Node:
    """ValueError: it is too deep, or too many."""
    if not depth or next(made) >= MOST_NODES:
        raise ValueError("too large")
    match value:
        case _Members():
            return Node(name, "object", "", [_node(inner, item, depth - 1, made) for inner, item in value])
        case list():
            return Node(name, "array", "", [_node(str(at), item, depth - 1, made) for at, item in enumerate(value)])
        case Number():
            return Node(name, "number", str(value), ())
        case str():
            return Node(name, "string", value, ())
    return Node(name, "literal", json.dumps(value), ())
