"""Where: the messages for which an expression of `--where` is true (docs/where.md).

Each test gives three values: true, false and null. Tests of a message's own values come first, over whole columns. Only
messages that they leave open have their bodies searched for a text that the expression needs, and only bodies with that
text are decoded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial, reduce
from itertools import product, repeat
from typing import Any, Protocol

import numpy as np

from engine import Block, MessageStore, SliceColumn
from fsstore.query.expression import (
    INT64,
    And,
    Column,
    Comparison,
    Expression,
    Field,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Property,
    operands,
    parse,
)
from fsstore.query.json_fields import FieldReader, Path
from fsstore.query.times import parse_moment_ms

Array = np.ndarray[Any, Any]
Damaged = Callable[[int], None]
"""Takes the queue offset of a damaged message, which is skipped."""

READ_TOGETHER = 65_536
TRUE, FALSE, NULL = 1, 2, 4
"""The values of an expression. A sum is the set of those that it may have while bodies are not decoded."""

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS = (int, float)
_OF_BLOCKS = (Column("key"), Column("tag"), Column("time"))
_ESCAPED = b"\\u"
"""A body may have any character of a text in this form."""
_PLAIN = re.compile(r'[^"\\/\x00-\x1f\x7f]+')
"""Characters that JSON has as themselves, or in the form _ESCAPED."""
_SHORT = 3
"""Texts with fewer bytes are in too many bodies."""


class PropertyColumns(Protocol):
    """The properties of some messages."""

    def value(self, name: bytes) -> SliceColumn:
        """The value of one property in each message, empty where it has none."""


class Columns(Protocol):
    """The columns of some messages, beside their bodies, that an expression may test, in the order of a queue. A
    Block has them."""

    @property
    def queue_offset(self) -> Array: ...

    @property
    def store_time_ms(self) -> Array: ...

    @property
    def properties(self) -> PropertyColumns: ...

    def keys(self) -> tuple[Array, SliceColumn]:
        """(starts, keys): message i has the keys [starts[i], starts[i + 1])."""


class Where:
    """An expression. `text` means the same on another host, and later."""

    def __init__(self, text: str, now_ms: int | None = None) -> None:
        """Parse `text`. A time like -15m is before `now_ms`, by default now. WhereError."""
        self.expression, self.text = parse(text, partial(parse_moment_ms, now_ms=now_ms))
        used = operands(self.expression)
        self._fields = FieldReader(list(dict.fromkeys(one.path for one in used if isinstance(one, Field))))
        self._needs_blocks = any(isinstance(one, Property) or one in _OF_BLOCKS for one in used)
        needed = needed_texts(self.expression)
        self._needed = [*needed, _ESCAPED] if needed else []

    def __repr__(self) -> str:
        return f"Where({self.text!r})"

    def matching(
        self, store: MessageStore, topic: str, queue: int, start: int, end: int, damaged: Damaged
    ) -> Iterator[tuple[Array, SliceColumn]]:
        """The messages in [start, end) for which the expression is true, oldest first: queue offsets, int64 (n,), and
        bodies. TopicNotFoundError."""
        if self._needs_blocks:
            for block in blocks(store, topic, queue, start, end, damaged):
                rows = np.flatnonzero(self.mask(store, queue, block))
                yield block.queue_offset[rows], store.bodies(block.bodies).take(rows)
            return
        for held in store.holding(topic, queue, start, max(end - start, 0), self._needed, damaged=damaged):
            found = _Rows(queue, held.offsets, held.bodies.sizes, None, self._fields, held.bodies)
            rows = np.flatnonzero(found.values(self.expression) == TRUE)
            yield held.offsets[rows], held.bodies.take(rows)

    def mask(self, store: MessageStore, queue: int, block: Block) -> Array:
        """For which messages of a block the expression is true: bool (n,). Errors as `MessageStore.bodies`."""
        rows = _Rows(queue, block.queue_offset, block.bodies.sizes, block, self._fields)
        return self._mask(rows, lambda: store.bodies(block.bodies))

    def mask_of(self, queue: int, columns: Columns, bodies: SliceColumn) -> Array:
        """As `mask`, for messages of a queue that are not in a store."""
        rows = _Rows(queue, columns.queue_offset, bodies.sizes, columns, self._fields)
        return self._mask(rows, lambda: bodies)

    def _mask(self, rows: _Rows, every_body: Callable[[], SliceColumn]) -> Array:
        found = rows.values(self.expression)
        undecided = np.flatnonzero((found & TRUE != 0) & (found != TRUE))
        if len(undecided):
            bodies = every_body().take(undecided)
            if self._needed:
                texts = map(bodies.__getitem__, range(len(bodies)))
                kept = np.fromiter((any(text in body for text in self._needed) for body in texts), bool, len(bodies))
                undecided, bodies = undecided[kept], bodies.take(kept)
            rows.decode(bodies, undecided)
            found = rows.values(self.expression)
        return np.asarray(found == TRUE)


def blocks(store: MessageStore, topic: str, queue: int, start: int, end: int, damaged: Damaged) -> Iterator[Block]:
    """All fields of the messages in [start, end), oldest first, READ_TOGETHER at most at once. TopicNotFoundError."""
    bounds = store.bounds(topic, queue)
    for begin in range(max(start, bounds.min_offset), min(end, bounds.max_offset), READ_TOGETHER):
        until = min(begin + READ_TOGETHER, end, bounds.max_offset)
        found = store.blocks(topic, queue, begin, until - begin)
        if any(block.damaged for block in found):
            there = np.concatenate([block.queue_offset for block in found])
            first = max(begin, store.bounds(topic, queue).min_offset)  # retention may have come in between
            for offset in np.setdiff1d(np.arange(first, until), there).tolist():
                damaged(offset)
        yield from found


class _Rows:
    """Some messages of a queue, for which expressions are evaluated. Until bodies are decoded, a test of a field may
    have any value."""

    def __init__(
        self, queue: int, offsets: Array, sizes: Array, columns: Columns | None, fields: FieldReader,
        bodies: SliceColumn | None = None,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._offsets = offsets
        self._sizes = sizes
        self._columns = columns
        self._fields = fields
        self._decoded: Mapping[Path, list[Any]] | None = None
        self._decoded_rows: Array | slice = slice(None)
        self._integers: dict[Path, Array | None] = {}
        if bodies is not None:
            self.decode(bodies, slice(None))

    def decode(self, bodies: SliceColumn, rows: Array | slice) -> None:
        """Decode the bodies of some rows. Tests of fields are null for the others."""
        self._decoded = dict(zip(self._fields.paths, self._fields.values(bodies), strict=True))
        self._decoded_rows = rows
        self._integers.clear()

    def values(self, expression: Expression) -> Array:
        """The value for each row, or the set of those that it may have: uint8 (n,)."""
        match expression:
            case Not(part):
                return _NOT[self.values(part)]
            case And(parts):
                return reduce(lambda one, other: _AND[one, other], map(self.values, parts))
            case Or(parts):
                return reduce(lambda one, other: _OR[one, other], map(self.values, parts))
        if not any(isinstance(one, Field) for one in operands(expression)):
            return self._tested(expression, slice(None))
        if self._decoded is None:
            return np.full(len(self._offsets), TRUE | FALSE | NULL, np.uint8)
        found = np.full(len(self._offsets), NULL, np.uint8)
        found[self._decoded_rows] = self._tested(expression, self._decoded_rows)
        return found

    def _tested(self, test: Comparison | Like | IsNull, rows: Array | slice) -> Array:
        """The value of one test for each of `rows`."""
        found: Iterable[int]
        match test:
            case Comparison(sign, Field(path), Literal(int(number))) | Comparison(
                sign, Literal(int(number)), Field(path)
            ) if type(number) is int and (integers := self._integers_of(path)) is not None:
                holds = _SIGNS[sign if isinstance(test.right, Literal) else _MIRRORED[sign]]
                return np.where(holds(integers, number), np.uint8(TRUE), np.uint8(FALSE))
            case IsNull(operand):
                found = (TRUE if value is None else FALSE for value in self._values_of(operand, rows))
            case Like(operand, pattern):
                found = map(_of_each(operand, _liked(pattern)), self._values_of(operand, rows))
            case Comparison(sign, left, Literal(value)):
                found = map(_of_each(left, _compared(sign, value)), self._values_of(left, rows))
            case Comparison(sign, Literal(value), right):
                found = map(_of_each(right, _compared(_MIRRORED[sign], value)), self._values_of(right, rows))
            case Comparison(sign, left, right):
                pairs = self._values_of(left, rows), self._values_of(right, rows)
                found = map(_of_pairs(left, right, partial(compare, sign)), *pairs)
        return np.fromiter(found, np.uint8, len(self._offsets[rows]))

    def _integers_of(self, path: Path) -> Array | None:
        """The values of a field, int64, if each is such an integer: numpy compares these many times as fast."""
        if path not in self._integers:
            assert self._decoded is not None
            values = self._decoded[path]
            self._integers[path] = None
            if set(map(type, values)) == {int}:
                with suppress(OverflowError):
                    self._integers[path] = np.array(values, np.int64)
        return self._integers[path]

    def _values_of(self, operand: Operand, rows: Array | slice) -> Iterable[Any]:
        """The operand's value for each of `rows`; None for null. The keys of a message are a tuple."""
        match operand:
            case Literal(value):
                return repeat(value, len(self._offsets[rows]))
            case Field(path):
                assert self._decoded is not None
                return self._decoded[path]
            case Column("queue"):
                return repeat(self._queue, len(self._offsets[rows]))
            case Column("offset"):
                return self._offsets[rows].tolist()  # type: ignore[no-any-return]
            case Column("size"):
                return self._sizes[rows].tolist()  # type: ignore[no-any-return]
        assert self._columns is not None
        match operand:
            case Column("time"):
                return self._columns.store_time_ms[rows].tolist()  # type: ignore[no-any-return]
            case Column("key"):
                starts, keys = self._columns.keys()
                bounds = zip(starts[:-1][rows].tolist(), starts[1:][rows].tolist(), strict=True)
                return (tuple(keys[key].decode() for key in range(*pair)) or None for pair in bounds)
        name = operand.name.encode() if isinstance(operand, Property) else b"TAGS"
        return texts_of(self._columns.properties.value(name).take(rows))


def texts_of(column: SliceColumn) -> list[str | None]:
    """The texts of a column; None for empty ones. Equal texts are decoded once, if they are many."""
    coded = column.coded()
    if coded is None:
        return [column[row].decode() or None for row in range(len(column))]
    texts = [coded.texts[code].decode() or None for code in range(len(coded.texts))]
    return [texts[code] for code in coded.codes.tolist()]


def _liked(pattern: str) -> Callable[[Any], int]:
    """Whether a text matches a pattern of `like`. Each % takes the first place that fits, which takes linear time."""
    first, *rest = (re.escape(part).replace("_", ".") for part in pattern.split("%"))
    ends = f".*{rest.pop()}" if rest else ""
    matches = re.compile(first + "".join(f"(?>.*?{part})" for part in rest) + ends, re.DOTALL).fullmatch
    return lambda value: NULL if type(value) is not str else TRUE if matches(value) else FALSE


def _compared(sign: str, literal: str | float | bool) -> Callable[[Any], int]:
    """`compare` with a literal on the right."""
    holds, kind = _SIGNS[sign], type(literal)

    def compared(value: Any) -> int:
        if type(value) is kind and (kind is not int or value in INT64):
            return TRUE if holds(value, literal) else FALSE
        return compare(sign, value, literal)

    return compared


def compare(sign: str, left: Any, right: Any) -> int:
    """TRUE or FALSE if both are texts, both are numbers, or both are true or false; otherwise NULL."""
    kinds = type(left), type(right)
    if kinds == (int, int) and left in INT64 and right in INT64:
        pass
    elif kinds[0] in _NUMBERS and kinds[1] in _NUMBERS:
        try:
            left, right = float(left), float(right)
        except OverflowError:
            return NULL
    elif kinds not in ((str, str), (bool, bool)):
        return NULL
    return TRUE if _SIGNS[sign](left, right) else FALSE


def _of_each(operand: Operand, test: Callable[[Any], int]) -> Callable[[Any], int]:
    """The test; for keys true if one of them passes, and null without keys."""
    return (lambda keys: _of_any(map(test, keys or ()))) if operand == Column("key") else test


def _of_pairs(left: Operand, right: Operand, test: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
    """As `_of_each`, for the values of two operands."""
    if left == Column("key"):
        return lambda keys, value: _of_any(test(key, value) for key in keys or ())
    if right == Column("key"):
        return lambda value, keys: _of_any(test(value, key) for key in keys or ())
    return test


def _of_any(values: Iterable[int]) -> int:
    found = reduce(operator.or_, values, 0)
    return TRUE if found & TRUE else FALSE if found == FALSE else NULL


def _table(function: Callable[[int, int], int]) -> Array:
    """For each two sets of values, the set of what the function makes of one of each: uint8 (8, 8)."""
    found = np.zeros((8, 8), np.uint8)
    for one, other in product(range(8), repeat=2):
        for left, right in product((TRUE, FALSE, NULL), repeat=2):
            if one & left and other & right:
                found[one, other] |= function(left, right)
    return found


_AND = _table(lambda left, right: FALSE if FALSE in (left, right) else NULL if NULL in (left, right) else TRUE)
_OR = _table(lambda left, right: TRUE if TRUE in (left, right) else NULL if NULL in (left, right) else FALSE)
_NOT = np.array([(values & TRUE) * FALSE | (values & FALSE) // FALSE | values & NULL for values in range(8)], np.uint8)


def needed_texts(expression: Expression, wanted: bool = True) -> list[bytes]:
    """Texts, one of which is in each body for which the expression is true (or false, with `wanted` False), unless the
    body has characters as _ESCAPED. Empty: nothing is needed."""
    match expression:
        case Not(part):
            return needed_texts(part, not wanted)
        case And(parts) | Or(parts):
            of_parts = [needed_texts(part, wanted) for part in parts]
            if isinstance(expression, And) is wanted:  # each part has to be
                return max(of_parts, key=lambda texts: min(map(len, texts), default=0))
            return [text for texts in of_parts for text in texts] if all(of_parts) else []
        case IsNull(operand):
            return [] if wanted else _names(operand)
        case Like(Field() as field, pattern) if wanted:
            texts = [part.encode() for text in re.split("[%_]", pattern) for part in _PLAIN.findall(text)]
            longest = max(texts, key=len, default=b"")
            return [longest] if len(longest) >= _SHORT else _names(field)
        case Like(operand, _):
            return _names(operand)
        case Comparison("=", Field(), Literal(str() as text)) if wanted and _PLAIN.fullmatch(text):
            return [_quoted(text)]
        case Comparison(_, left, right):
            return _names(left) or _names(right)


def _names(operand: Operand) -> list[bytes]:
    """A name that each body has which has a value for the operand; none where it may look different in JSON."""
    path = operand.path if isinstance(operand, Field) else ()
    names = [_quoted(part) for part in path if isinstance(part, str) and _PLAIN.fullmatch(part)]
    return [max(names, key=len)] if names else []


def _quoted(text: str) -> bytes:
    return f'"{text}"'.encode()
