"""An expression of `--where`: its text, parsed into a tree (docs/where.md).

    level = "error" and ms > 500  ->  And((Comparison(=, Field(level), "error"), Comparison(>, Field(ms), 500)))

Every test is one of Comparison, Like and IsNull: `in` is an Or of comparisons, and `!=` is a Not of one. Lark parses,
because it is small, has no dependencies, and knows where in the text an error is (docs/where.md compares it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

COLUMNS = ("key", "tag", "time", "queue", "offset", "size")
"""Names of a message's own values; `body.NAME` is a field of the body that is called so."""
_RESERVED = {*COLUMNS, *["property", "body", "or", "and", "not", "in", "like", "is", "null", "true", "false"]}
_NAME = re.compile(r"[^\W\d][\w$-]*")
LONGEST = 2_000
"""Limit of an expression, in characters, which also bounds how deeply it is nested."""
_AROUND = 40
"""Characters of an expression that an error shows before and behind its place."""
INT64 = range(-(1 << 63), 1 << 63)


class WhereError(ValueError):
    """`text` is no expression: `reason` says why, `position` is the character, from 0, at which it is wrong."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        super().__init__(text, position, reason)
        self.text = text
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        before, after = self.text[: self.position][-_AROUND:], self.text[self.position :][:_AROUND]
        return f"{self.reason}, at character {self.position + 1}: {before}<HERE>{after}"


@dataclass(frozen=True, slots=True)
class Column:
    """One of COLUMNS."""

    name: str


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message."""

    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """A value in a body that is JSON: names of fields, and indices of arrays; the whole body for an empty path."""

    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, a number, true or false. Integers are of int64."""

    value: str | int | float | bool


Operand: TypeAlias = Column | Property | Field | Literal


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left operator right`, where the operator is =, <, <=, > or >=."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a whole text matches a pattern: % is any text, _ is one character."""

    operand: Operand
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether there is no value, or JSON's null."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """True for false, false for true, null for null."""

    part: Expression


@dataclass(frozen=True, slots=True)
class And:
    """False if a part is, else null if a part is, else true."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if a part is, else null if a part is, else false."""

    parts: tuple[Expression, ...]


Expression: TypeAlias = Comparison | Like | IsNull | Not | And | Or

_GRAMMAR = r"""
?start: either
?either: both (_OR both)*
?both: negated (_AND negated)*
?negated: _NOT negated -> negation
    | "(" either ")"
    | operand OPERATOR operand -> comparison
    | operand _IN "(" _literals ")" -> membership
    | operand _NOT _IN "(" _literals ")" -> absence
    | operand _LIKE STRING -> pattern
    | operand _NOT _LIKE STRING -> difference
    | operand _IS NULL -> nullness
    | operand _IS _NOT NULL -> presence
_literals: literal ("," literal)*
?operand: path | literal
path: NAME step*
?step: "." NAME -> member
    | "[" INDEX "]" -> index
    | "[" STRING "]" -> named
?literal: STRING -> text | NUMBER -> number | TRUE -> true | FALSE -> false | NULL -> null

_OR: "or"i
_AND: "and"i
_NOT: "not"i
_IN: "in"i
_LIKE: "like"i
_IS: "is"i
NULL: "null"i
TRUE: "true"i
FALSE: "false"i
OPERATOR: "<=" | ">=" | "!=" | "<>" | "=" | "<" | ">"
NAME: /[^\W\d][\w$-]*/i
INDEX: /\d{1,9}/
STRING: /'(?:[^']|'')*'|"(?:[^"]|"")*"/
NUMBER: /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/
%ignore /\s+/
"""

_EXPECTED = (
    ("INDEX", "an index or a name in quotes"),
    ("NUMBER", "a value"),
    ("NAME", "a name"),
    ("OPERATOR", "a comparison"),
    ("STRING", "a text in quotes"),
    ("COMMA", "a comma or a closing parenthesis"),
    ("RPAR", "and, or, or a closing parenthesis"),
    ("LPAR", "an opening parenthesis"),
    ("$END", "and, or, or the end"),
    ("NULL", "null"),
)
"""The description of what is missing if one of these terminals is expected; the first one counts."""


def parse(text: str, time_of: Callable[[str], int | None]) -> tuple[Expression, str]:
    """The expression of `text`; and the text with its times as epoch milliseconds, which means the same on another host
    and later. `time_of` gives those of a time in quotes; None: it is none. WhereError."""
    from lark.exceptions import UnexpectedInput, VisitError

    if len(text) > LONGEST:
        raise WhereError(text, LONGEST, f"it is longer than {LONGEST:,} characters")
    try:
        tree = _parser().parse(text, start="start")
        builder = _builder()(text, time_of)
        found = cast("Expression", builder.transform(tree))
    except UnexpectedInput as error:
        raise _unexpected(text, error) from None
    except VisitError as error:
        raise error.orig_exc from None
    return found, reduce(_replaced, sorted(builder.times, reverse=True), text)


def parse_field(text: str) -> Field:
    """The field of a body that a text names as an expression does. WhereError."""
    from lark.exceptions import UnexpectedInput, VisitError

    try:
        found = _builder()(text, lambda _: None).transform(_parser().parse(text, start="path")).value
    except UnexpectedInput as error:
        raise _unexpected(text, error) from None
    except VisitError as error:
        raise error.orig_exc from None
    if not isinstance(found, Field):
        raise WhereError(text, 0, f"this is the message's own; body.{text} is a field of the body")
    return found


def _replaced(text: str, time: tuple[int, int, int]) -> str:
    start, end, time_ms = time
    return f"{text[:start]}{time_ms}{text[end:]}"


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr", start=["start", "path"])


def _unexpected(text: str, error: UnexpectedInput) -> WhereError:
    known = (getattr(error, name, None) for name in ("accepts", "expected", "allowed"))
    terminals = set(map(str, next(filter(None, known), ())))
    position = error.pos_in_stream
    if position is None or getattr(getattr(error, "token", None), "type", "") == "$END":
        position = len(text)
    if text[position : position + 1] in ("'", '"') and terminals & {"STRING", "NUMBER"}:
        return WhereError(text, position, "the quote is not closed")
    expected = next((words for name, words in _EXPECTED if name in terminals), "something else")
    return WhereError(text, position, f"expected {expected}")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A value of the text, and where it stands."""

    value: Operand | None
    start: int
    end: int


@cache
def _builder() -> Any:
    """The class that makes a tree of Lark's; Lark is loaded when there is an expression."""
    from lark import Transformer, v_args

    @v_args(inline=True)
    class Builder(Transformer):  # type: ignore[type-arg]  # of what it makes
        def __init__(self, text: str, time_of: Callable[[str], int | None]) -> None:
            super().__init__()
            self._text = text
            self._time_of = time_of
            self.times: list[tuple[int, int, int]] = []

        def either(self, *parts: Expression) -> Expression:
            return Or(parts)

        def both(self, *parts: Expression) -> Expression:
            return And(parts)

        def negation(self, part: Expression) -> Expression:
            return Not(part)

        def comparison(self, left: _Placed, operator: Token, right: _Placed) -> Expression:
            return self._compared(left, str(operator), right)

        def membership(self, operand: _Placed, *literals: _Placed) -> Expression:
            return Or(tuple(self._compared(operand, "=", one) for one in literals))

        def absence(self, operand: _Placed, *literals: _Placed) -> Expression:
            return Not(self.membership(operand, *literals))

        def pattern(self, operand: _Placed, text: Token) -> Expression:
            return Like(self._value(operand), _unquoted(text))

        def difference(self, operand: _Placed, text: Token) -> Expression:
            return Not(self.pattern(operand, text))

        def nullness(self, operand: _Placed, _: Token) -> Expression:
            return IsNull(self._value(operand))

        def presence(self, operand: _Placed, null: Token) -> Expression:
            return Not(self.nullness(operand, null))

        def _compared(self, left: _Placed, operator: str, right: _Placed) -> Expression:
            if operator in ("!=", "<>"):
                return Not(self._compared(left, "=", right))
            values = self._value(left), self._value(right)
            if values == (Column("key"),) * 2:
                raise WhereError(self._text, right.start, "key is compared with one value")
            timed = [self._timed(one, other) for one, other in ((left, values[1]), (right, values[0]))]
            return Comparison(operator, *timed)

        def _timed(self, placed: _Placed, other: Operand) -> Operand:
            """The value; a text beside `time` is a time."""
            value = self._value(placed)
            if other != Column("time") or not isinstance(value, Literal) or not isinstance(value.value, str):
                return value
            time_ms = self._time_of(value.value)
            if time_ms is None:
                raise WhereError(self._text, placed.start, "this is not a time like '2026-01-31T09:30' or '-15m'")
            if (place := (placed.start, placed.end, time_ms)) not in self.times:
                self.times.append(place)
            return Literal(time_ms)

        def _value(self, placed: _Placed) -> Operand:
            if placed.value is None:
                raise WhereError(self._text, placed.start, "nothing equals null: write `is null` or `is not null`")
            return placed.value

        def path(self, name: Token, *steps: tuple[str | int, int]) -> _Placed:
            start, end = cast(int, name.start_pos), max([cast(int, name.end_pos), *(at for _, at in steps)])
            parts = (str(name), *(part for part, _ in steps))
            return _Placed(self._named(parts, start), start, end)

        def _named(self, parts: tuple[str | int, ...], start: int) -> Operand:
            first, *rest = parts
            if first == "property":
                if not rest or not all(isinstance(part, str) for part in rest):
                    raise WhereError(self._text, start, "property is followed by a dot and a name")
                return Property(".".join(map(str, rest)))
            if first in COLUMNS:
                if rest:
                    raise WhereError(self._text, start, f"{first} has no fields; body.{first} is one of the body")
                return Column(str(first))
            return Field(tuple(rest) if first == "body" else parts)

        def member(self, name: Token) -> tuple[str, int]:
            return str(name), cast(int, name.end_pos)

        def index(self, number: Token) -> tuple[int, int]:
            return int(number), cast(int, number.end_pos) + 1

        def named(self, text: Token) -> tuple[str, int]:
            name = _unquoted(text)
            if not name or set('"\\') & set(name):
                reason = "a field's name is not empty, and has no double quote and no backslash"
                raise WhereError(self._text, cast(int, text.start_pos), reason)
            return name, cast(int, text.end_pos) + 1

        def _literal(self, token: Token, value: str | float | bool) -> _Placed:
            return _Placed(Literal(value), cast(int, token.start_pos), cast(int, token.end_pos))

        def text(self, token: Token) -> _Placed:
            return self._literal(token, _unquoted(token))

        def number(self, token: Token) -> _Placed:
            value = float(token)
            if abs(value) == float("inf"):
                raise WhereError(self._text, cast(int, token.start_pos), "the number is too large")
            is_whole = token.lstrip("-").isdecimal() and int(token) in INT64
            return self._literal(token, int(token) if is_whole else value)

        def true(self, token: Token) -> _Placed:
            return self._literal(token, True)

        def false(self, token: Token) -> _Placed:
            return self._literal(token, False)

        def null(self, token: Token) -> _Placed:
            return _Placed(None, cast(int, token.start_pos), cast(int, token.end_pos))

    return Builder


def _unquoted(token: Token) -> str:
    """The text in quotes; a doubled quote in it is one."""
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


def field_text(path: Sequence[str]) -> str:
    """A field of the body as an expression names it."""
    steps = [f".{name}" if _NAME.fullmatch(name) else f'["{name}"]' for name in path]
    is_plain = steps[0][0] == "." and path[0].lower() not in _RESERVED
    return "".join(steps)[1:] if is_plain else "body" + "".join(steps)


def bare_words(expression: Expression) -> list[str]:
    """Names of fields that stand where a text was perhaps meant: `error` of `level = error`."""
    match expression:
        case Comparison(_, Field() | Column() | Property(), Field((str(name),))):
            return [name]
        case Not(part):
            return bare_words(part)
        case And(parts) | Or(parts):
            return [name for part in parts for name in bare_words(part)]
        case _:
            return []


def operands(expression: Expression) -> Sequence[Operand]:
    """Every operand of an expression, from left to right."""
    match expression:
        case Comparison(_, left, right):
            return [left, right]
        case Like(operand, _) | IsNull(operand):
            return [operand]
        case Not(part):
            return operands(part)
        case And(parts) | Or(parts):
            return [operand for part in parts for operand in operands(part)]
