"""Values of bodies that are JSON: many bodies are decoded together, and of each only the fields that are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from engine import SliceColumn

Path = tuple[str | int, ...]
"""Names of fields and indices of arrays, from the body's own value on."""

NO_JSON = object()
"""Represents a body that is not JSON."""

_TOGETHER_BYTES = 8 << 20
_OPENING, _CLOSING = b"{}"
_LARGEST = float("inf")


class FieldReader:
    """Reads the values at `paths` of bodies. Fields that no path begins with are passed over undecoded."""

    def __init__(self, paths: Sequence[Path]) -> None:
        names = [path[0] for path in paths if path and isinstance(path[0], str)]
        self.paths = paths
        self._fields = {name: f"field{number}" for number, name in enumerate(dict.fromkeys(names))}
        self._row: Callable[..., Any] | None = None
        if len(names) == len(paths):
            fields = [(field, Any, None) for field in self._fields.values()]
            renamed = {field: name for name, field in self._fields.items()}
            self._row = msgspec.defstruct("Row", fields, rename=renamed, gc=False)
        self._decoder = msgspec.json.Decoder(Any if self._row is None else self._row)

    def values(self, bodies: SliceColumn) -> list[list[Any]]:
        """For each path, its value in each body: what JSON has there; None where nothing is, or null, or where the body
        is no JSON. Errors as `SliceColumn`."""
        found: list[list[Any]] = [[] for _ in self.paths]
        for rows in _together(bodies.sizes):
            decoded = self._all_decoded(bodies.take(rows))
            for values, path in zip(found, self.paths, strict=True):
                values += self._at(decoded, path)
        return found

    def _at(self, decoded: list[Any], path: Path) -> list[Any]:
        if self._row is None:
            return [_value_at(one, path) for one in decoded]
        first, *rest = path
        values = list(map(attrgetter(self._fields[str(first)]), decoded))
        return [_value_at(one, rest) for one in values] if rest else values

    def _all_decoded(self, bodies: SliceColumn) -> list[Any]:
        """The decoded bodies: rows of the named fields, or the whole values if a path needs them."""
        borders, joined = bodies.joined(b"\n")
        if self._are_objects(borders, joined):
            try:
                str(joined.data, "utf-8")
                found = self._decoder.decode_lines(joined.data[1:])
            except (ValueError, RecursionError):
                found = []
            if len(found) == len(bodies):
                return list(found)
        ends, text = borders.tolist(), joined.data
        nothing = None if self._row is None else self._row()
        decoded = (self.decoded(bytes(text[begin + 1 : end])) for begin, end in pairwise(ends))
        return [nothing if one is NO_JSON else one for one in decoded]

    @staticmethod
    def _are_objects(borders: Any, joined: Any) -> bool:
        """Whether each body begins and ends as an object. A newline between } and { is within no value of JSON, so if
        there are as many values as lines, each line is one."""
        if (np.diff(borders) < 3).any():  # a border and two braces
            return False
        return bool((joined[borders[:-1] + 1] == _OPENING).all() and (joined[borders[1:] - 1] == _CLOSING).all())

    def decoded(self, body: bytes) -> Any:
        """One body: a row of the named fields, or the whole value if a path needs it; NO_JSON."""
        try:
            if not body.isascii():
                body.decode()  # fields that are passed over are not looked at
            return self._decoder.decode(body)
        except msgspec.ValidationError:  # no object, or a number that is too large
            value = whole_value(body)
            if self._row is None:
                return value
            return self._row(*map(value.get, self._fields)) if isinstance(value, dict) else NO_JSON
        except (ValueError, RecursionError):
            return NO_JSON


def whole_value(body: bytes) -> Any:
    """The value of a body, in which numbers that are too large are None; NO_JSON."""
    try:
        return json.loads(body.decode(), parse_float=_finite, parse_constant=_refused)
    except (ValueError, RecursionError):
        return NO_JSON


def _finite(text: str) -> float | None:
    number = float(text)
    return number if abs(number) < _LARGEST else None


def _refused(text: str) -> Any:
    raise ValueError(text)  # NaN and Infinity are no JSON


def _value_at(value: Any, path: Sequence[str | int]) -> Any:
    """The value that `path` leads to; None: there is none."""
    for part in path:
        if isinstance(part, str):
            value = value.get(part) if isinstance(value, dict) else None
        else:
            value = value[part] if isinstance(value, list) and part < len(value) else None
    return value


def _together(sizes: Any) -> Iterator[slice]:
    """Ranges of rows with at most _TOGETHER_BYTES, or of one row."""
    ends = np.cumsum(sizes)
    first, done = 0, 0
    while first < len(sizes):
        end = max(int(np.searchsorted(ends, done + _TOGETHER_BYTES, side="right")), first + 1)
        yield slice(first, end)
        first, done = end, int(ends[end - 1])
