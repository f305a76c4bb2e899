"""The table of columns: everything that readers and writers know of them follows from it."""

from __future__ import annotations

import pytest

from fsstore.parquet.format import FIELDS, INT64, SCHEMA, Column, Field, Schema, Type
from fsstore.spark.frame import MESSAGE_SCHEMA, schema_of


def test_a_column_is_added_in_one_place() -> None:
    fields = (*FIELDS, Field("extra", Type.LONG))
    schema = Schema(fields)
    assert schema.columns == (*SCHEMA.columns, Column("extra", INT64))
    assert set(schema.in_file) == set(schema.columns)
    assert schema.row_bytes == SCHEMA.row_bytes + 8
    assert len(schema.elements) == len(SCHEMA.elements) + 1
    assert schema_of(fields)["extra"].dataType.simpleString() == "bigint"


@pytest.mark.parametrize("kind", Type)
def test_spark_has_a_type_for_each(kind: Type) -> None:
    assert schema_of([Field("any", kind)]).names == ["any", "topic", "queue"]


def test_the_expensive_columns_are_last_in_a_file() -> None:
    assert [column.name for column in SCHEMA.in_file][-4:] == [
        "unique_key",
        "properties.key_value.key",
        "properties.key_value.value",
        "body",
    ]
    assert [column.name for column in SCHEMA.in_file[:2]] == ["queue_offset", "physical_offset"]


def test_a_row_takes_at_most_its_numbers_hosts_lengths_and_levels() -> None:
    assert SCHEMA.row_bytes == 44 + 60 + 12 + 1
    assert len(MESSAGE_SCHEMA) == len(FIELDS) + 2
