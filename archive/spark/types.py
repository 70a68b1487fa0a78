"""Stored types in Spark SQL."""

from __future__ import annotations

import pyarrow as pa

_PLAIN = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
}  # fmt: skip


def spark_type(type: pa.DataType) -> str:
    """Returns a stored type in Spark SQL."""
    if pa.types.is_decimal(type):
        return f"decimal({type.precision}, {type.scale})"
    if pa.types.is_timestamp(type):
        return "timestamp"
    if pa.types.is_list(type):
        return f"array<{spark_type(type.value_type)}>"
    if pa.types.is_map(type):
        return f"map<{spark_type(type.key_type)}, {spark_type(type.item_type)}>"
    if pa.types.is_struct(type):
        fields = (type.field(i) for i in range(type.num_fields))
        return "struct<" + ", ".join(f"{quoted(f.name)}: {spark_type(f.type)}" for f in fields) + ">"
    return _PLAIN[type]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
