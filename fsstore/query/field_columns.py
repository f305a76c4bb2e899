"""Fields of JSON bodies as columns of DuckDB's SQL, typed by a sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fsstore.query.fields import FieldFacts

_NUMBERS = "'BIGINT', 'UBIGINT', 'DOUBLE'"
_TYPES = {
    frozenset(("text",)): ("varchar", "'VARCHAR'"),
    frozenset(("integer",)): ("bigint", "'BIGINT', 'UBIGINT'"),
    frozenset(("decimal",)): ("double", _NUMBERS),
    frozenset(("integer", "decimal")): ("double", _NUMBERS),
    frozenset(("boolean",)): ("boolean", "'BOOLEAN'"),
}
"""The type of a column by what a field's values are, and DuckDB's types of JSON that have one; any others are JSON."""


def rows_with_fields(fields: Mapping[tuple[str, ...], FieldFacts], columns: Collection[str], view: str) -> str:
    """A query for the rows of `view`, a query with `columns`, `json` among them, and a column of each outermost field
    whose name is none of theirs. A value of another type than the sample's is null."""
    taken = {name.lower() for name in columns}
    added = []
    for path, facts in fields.items():
        if len(path) == 1 and path[0].lower() not in taken and not {*path[0]} & {*'"\\\0'}:
            taken.add(path[0].lower())
            added.append(f"{_value(path[0], facts)} as {_quoted(path[0])}")
    return f"select {', '.join(['*', *added])} from ({view})"


def _value(name: str, facts: FieldFacts) -> str:
    path = "'" + f'$."{name}"'.replace("'", "''") + "'"
    if (known := _TYPES.get(frozenset(facts.types) - {"null"})) is None:
        return f"(json -> {path})"
    column, kinds = known
    return f"case when json_type(json, {path}) in ({kinds}) then try_cast(json ->> {path} as {column}) end"


def _quoted(name: str) -> str:
    return f'"{name}"'
