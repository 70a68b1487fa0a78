"""DuckDB types and Arrow types: one table of which is which, and it is DuckDB's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import duckdb
import pyarrow as pa

from query.errors import first_line
from query.language.duck import quiet_connection
from query.plan.trends import BIGNUM
from query.schema import Schema


@cache
def arrow_type(duckdb_type: str) -> pa.DataType:
    """The Arrow type DuckDB hands out for one of its types; strings and blobs in their plain (32-bit offset) form. A
    BIGNUM, which would be bytes that only DuckDB reads, is the text of its digits.

    Raises ValueError for a name that DuckDB does not know."""
    if duckdb_type == BIGNUM:
        return pa.string()
    try:
        table = quiet_connection().sql(f"SELECT NULL::{duckdb_type} AS x").to_arrow_table()
    except duckdb.Error as error:
        raise ValueError(f"{duckdb_type} is no DuckDB type: {first_line(error)}") from None
    return table.schema.field("x").type


@cache
def duckdb_type(type: pa.DataType) -> str:
    """DuckDB's name for the type of an Arrow column, for example `VARCHAR` for string, large_string and dictionaries
    of them."""
    if pa.types.is_dictionary(type):
        return duckdb_type(type.value_type)
    if pa.types.is_fixed_size_list(type):  # of an ENUM DuckDB would read the numbers
        return f"{duckdb_type(type.value_type)}[{type.list_size}]"
    empty = pa.table({"x": pa.array([], type)})
    relation = quiet_connection().from_arrow(empty)
    return str(relation.types[0])


@cache
def plain_type(name: str) -> pa.DataType:
    """Returns the Arrow type in which columns of a DuckDB type are kept and handed out: ENUMs as strings, also nested.
    Raises ValueError for a name that DuckDB does not know."""
    type = arrow_type(name)
    if pa.types.is_dictionary(type):
        return type.value_type
    return arrow_type(duckdb_type(type)) if pa.types.is_nested(type) and "ENUM" in name else type


@cache
def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of EventBatch.columns for an input: as declared, in their plain Arrow types."""
    return pa.schema([
        digits_field(field.name) if field.type == BIGNUM else pa.field(field.name, plain_type(field.type))
        for field in schema.fields
    ])  # fmt: skip


def contains(type: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """True if a type, or one inside it, is one of these."""
    return is_one(type) or any(contains(type.field(i).type, is_one) for i in range(type.num_fields))


def digits_field(name: str) -> pa.Field:
    """Returns the field of a column of BIGNUMs: the text of their digits, marked as numbers."""
    return pa.field(name, pa.string(), metadata={b"duckdb_type": BIGNUM.encode()})


def holds_digits(field: pa.Field) -> bool:
    """True for a column that `digits_field` marked."""
    return bool(field.metadata) and field.metadata.get(b"duckdb_type") == BIGNUM.encode()
