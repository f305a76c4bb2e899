"""An expression of `--where` in DuckDB's SQL, over the columns of `mountctl sql`.

A field of JSON has one type a row, so an operand is up to four expressions, one a type: each is null in rows of another
type. A comparison takes the first type that both sides have. DuckDB reads bodies as JSON that are none by RFC 8259:
with NaN, Infinity, or a comma before a closing bracket. `_LOOSE` finds these.
"""

from __future__ import annotations

from typing import TypeAlias

from fsstore.query.expression import (
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
)

_LOOSE = r'(?s)^(?:[^"]|"(?:[^"\\]|\\.)*")*?(?:,[ \t\r\n]*[\]}]|[iIN]|n[aA])'
_JSON = "_where_json"
_KEY = "_key"
_LARGEST = "1.7976931348623157e308::double"

Typed: TypeAlias = dict[str, str]
"""SQL of an operand by type: text, bool, int, number; int is a number, too."""


def rows_where(expression: Expression, view: str) -> str:
    """A query for the rows of `view`, a query with the columns of `mountctl sql`, for which the expression is true."""
    json = f"case when regexp_matches(body, {_text(_LOOSE)}) then null else json end"
    inner = f"select *, {json} as {_JSON} from ({view})"
    return f"select * exclude ({_JSON}) from ({inner}) where {_sql(expression)}"


def _sql(expression: Expression) -> str:
    match expression:
        case Not(part):
            return f"(not {_sql(part)})"
        case And(parts):
            return f"({' and '.join(map(_sql, parts))})"
        case Or(parts):
            return f"({' or '.join(map(_sql, parts))})"
        case IsNull(Field(path) as field):
            kind = f"coalesce(json_type({_JSON}, {_path(path)}), 'NULL')"
            return f"({kind} = 'NULL' or ({kind} = 'DOUBLE' and {_typed(field)['number']} is null))"
        case IsNull(Column("key")):
            return "(len(keys) = 0)"
        case IsNull(operand):
            return f"({next(iter(_typed(operand).values()))} is null)"
        case Like(operand, pattern):
            text = _typed(operand).get("text", "null")
            return _of_keys(f"({text} like {_text(pattern)})", operand)
        case Comparison(sign, left, right):
            one, other = _typed(left), _typed(right)
            cases = [_case(one[kind], sign, other[kind]) for kind in one if kind in other]
            return _of_keys(f"(case {' '.join(cases)} end)" if cases else "null::boolean", left, right)


def _case(left: str, sign: str, right: str) -> str:
    return f"when {left} is not null and {right} is not null then {left} {sign} {right}"


def _of_keys(test: str, *tested: Operand) -> str:
    """The test; for keys true if one of them passes, null without keys or if it is null for each."""
    if Column("key") not in tested:
        return test
    return f"list_bool_or(list_transform(keys, lambda {_KEY}: {test}))"


def _typed(operand: Operand) -> Typed:
    match operand:
        case Literal(bool(value)):
            return {"bool": str(value).lower()}
        case Literal(int(value)):
            return {"int": f"({value})::bigint", "number": f"({value})::double"}
        case Literal(float(value)):
            return {"number": f"'{value!r}'::double"}
        case Literal(value):
            return {"text": _text(str(value))}
        case Column("key"):
            return {"text": _KEY}
        case Column("tag"):
            return {"text": "nullif(tags, '')"}
        case Property(name):
            return {"text": f"nullif(properties[{_text(name)}], '')"}
        case Column(name):
            number = _COLUMNS[name]
            return {"int": number, "number": f"{number}::double"}
        case Field(path):
            kind = f"json_type({_JSON}, {_path(path)})"
            text = f"json_extract_string({_JSON}, {_path(path)})"
            number = f"try_cast({text} as double)"
            return {
                "text": f"(case when {kind} = 'VARCHAR' then {text} end)",
                "bool": f"(case when {kind} = 'BOOLEAN' then {text} = 'true' end)",
                "int": f"(case when {kind} in ('BIGINT', 'UBIGINT') then try_cast({text} as bigint) end)",
                "number": f"(case when {kind} in ('BIGINT', 'UBIGINT', 'DOUBLE') and abs({number}) <= {_LARGEST} "
                f"then {number} end)",
            }


_COLUMNS = {
    "time": "epoch_ms(store_time)",
    "queue": "queue::bigint",
    "offset": "queue_offset",
    "size": "octet_length(bytes)",
}


def _path(path: tuple[str | int, ...]) -> str:
    """A path as DuckDB has it; names have no double quotes."""
    return _text("$" + "".join(f"[{part}]" if isinstance(part, int) else f'."{part}"' for part in path))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
