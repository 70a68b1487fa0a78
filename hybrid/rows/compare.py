"""Differences between the rows of two versions of a query over the same events."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from hybrid.rows import duck
from hybrid.rows.words import counted_are
from query.errors import DataError, first_line
from query.plan.expression import quote

VERSION = "version"


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that only one of two versions of a query returns; the result of db.compare.

    rows: the column `version` ('old' or 'new'), then the columns of both versions; first the rows of the old version
    in its order, then the rows of the new one in its order. only_old, only_new: number of these rows. both: number of
    equal rows. columns_old, columns_new: columns of one version only, which are not compared.
    """

    rows: pa.Table
    only_old: int
    only_new: int
    both: int
    columns_old: tuple[str, ...]
    columns_new: tuple[str, ...]

    def __len__(self) -> int:
        return self.only_old + self.only_new

    def __str__(self) -> str:
        lines = [f"{counted_are(self.both, 'row')} equal, {self.only_old:,} only old, {self.only_new:,} only new"]
        for version, columns in (("old", self.columns_old), ("new", self.columns_new)):
            if columns:
                lines.append(f"not compared, only in the {version} version: {', '.join(columns)}")
        return "\n".join(lines)


def difference(old: pa.Table, new: pa.Table) -> Difference:
    """Compares two tables as multisets of rows, by the columns that both have. Null equals null, NaN equals NaN. Raises
    DataError without common columns, or if types cannot be compared."""
    names = [name for name in old.column_names if name in new.column_names]
    if not names:
        message = f"the versions share no column: {', '.join(old.column_names)} and {', '.join(new.column_names)}"
        raise DataError(message, "give corresponding columns the same name with AS")
    version = VERSION
    while version in names:
        version += "_"
    columns = ", ".join(map(quote, names))
    connection = duck.cursor()
    for name, table in (("__hybrid_old", old), ("__hybrid_new", new)):
        places = pa.array(range(table.num_rows), pa.int64())
        connection.register(name, table.select(names).append_column("__hybrid_at", places))
    try:
        rows = connection.sql(
            f"""WITH both_ AS (
                SELECT false AS __hybrid_is_new, * FROM __hybrid_old UNION ALL SELECT true, * FROM __hybrid_new
            ), counted AS (
                SELECT *, count(*) OVER (PARTITION BY {columns}) AS __hybrid_all,
                    count(*) OVER (PARTITION BY __hybrid_is_new, {columns}) AS __hybrid_own,
                    row_number() OVER (PARTITION BY __hybrid_is_new, {columns} ORDER BY __hybrid_at) AS __hybrid_nth
                FROM both_
            )
            SELECT CASE WHEN __hybrid_is_new THEN 'new' ELSE 'old' END AS {quote(version)}, {columns} FROM counted
            WHERE __hybrid_nth > __hybrid_all - __hybrid_own ORDER BY __hybrid_is_new, __hybrid_at"""
        ).to_arrow_table()
    except duckdb.Error as error:
        raise DataError(f"the rows of the two versions cannot be compared: {first_line(error)}") from None
    only_new = rows.column(version).to_pylist().count("new")
    only_old = rows.num_rows - only_new
    return Difference(
        rows, only_old, only_new, old.num_rows - only_old,
        tuple(name for name in old.column_names if name not in names),
        tuple(name for name in new.column_names if name not in names),
    )  # fmt: skip
