"""Errors about a column of text that is taken for numbers name the first text that is none, and its row."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import hybrid

ROWS = pa.table({"i": [1, 2, 3, 4], "amount": ["1", None, "n/a", "x"]})
TEXT = "SELECT * FROM {} MATCH_RECOGNIZE (ORDER BY i MEASURES {} AS m PATTERN (A+) DEFINE A AS {})"


def said(measure: str, condition: str = "i > 0", of: str = "t", **tables: pa.Table) -> str:
    with pytest.raises(hybrid.Error) as refused:
        hybrid.sql(TEXT.format(of, measure, condition), **(tables or {"t": ROWS}))
    return str(refused.value)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("sum(amount)", "sum takes numbers, and amount is VARCHAR"),
        ("avg(A.amount)", "avg takes numbers, and A.amount is VARCHAR"),
        ("min(amount) + 1", "+ takes numbers, and min(amount) is VARCHAR"),
        ("amount * 2", "* takes numbers, and amount is VARCHAR"),
        ("LAST(A.amount) > 2", "LAST(A.amount) is VARCHAR, and is compared with INTEGER"),
    ],
)
def test_a_measure(measure: str, message: str) -> None:
    lines = said(measure).split("\n")
    assert lines[0] == f"error[HQ205]: {message}"
    assert lines[3].strip(" |") == "^" * len(measure) + " 'n/a' is in row 3 of t"
    of = re.sub(r".*, and (.*) is VARCHAR|(.*) is VARCHAR,.*", r"\1\2", message)
    assert lines[4].startswith(f"hint: write TRY_CAST({of} AS DOUBLE): a number, or null where the text is none")


def test_a_condition() -> None:
    assert "'n/a' is in row 3 of t" in said("count(*)", "amount > 1 + i")
    assert "'n/a' is in row 3 of t" in said("count(*)", "amount - PREV(amount) > 1")


def test_a_conversion_of_some_rows() -> None:
    """The row of the text that has failed, which need not be the first that is no number."""
    assert said("sum(amount::DOUBLE)").split("\n")[0].endswith("Could not convert string 'n/a' to DOUBLE; "
                                                               "'n/a' is in row 3 of t")
    failed = said("count(*)", "i <> 3 AND amount = 1", t=pa.table({"i": [1, 3, 4], "amount": ["1", "n/a", "x"]}))
    assert "'x' is in row 3 of t" in failed


def test_where_no_row_is_known(tmp_path: Path) -> None:
    """All are numbers, an entry of WITH hides the table, or there are no rows yet."""
    assert "row" not in said("sum(amount)", t=pa.table({"i": [1], "amount": ["1"]})).split("\n")[3]
    with pytest.raises(hybrid.QueryError) as refused:
        hybrid.sql("WITH t AS (SELECT 1 AS i, 'a' AS amount) " + TEXT.format("t", "sum(amount)", "i > 0"), t=ROWS)
    assert "is in row" not in str(refused.value)
    with hybrid.connect() as db:
        db.create_stream("t", {"i": "TIMESTAMP", "amount": "VARCHAR"}, time="i")
        with pytest.raises(hybrid.QueryError, match="sum takes numbers, and amount is VARCHAR"):
            db.watch(TEXT.format("t", "sum(amount)", "true"))


def test_tables_of_a_connection_and_files(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT unnest(range(3)) AS i, unnest(['1', 'n/a', '2']) AS amount")
        with pytest.raises(hybrid.QueryError, match="'n/a' is in row 2 of t"):
            hybrid.sql(TEXT.format("t", "sum(amount)", "true"), connection)
    (tmp_path / "t.csv").write_text("i,amount\n1,2\n2,n/a\n")
    with pytest.raises(hybrid.QueryError, match="'n/a' is in row 2 of "):
        hybrid.sql(TEXT.format(f"'{tmp_path / 't.csv'}'", "sum(amount)", "true"))


def test_a_sum_in_the_outer_select() -> None:
    text = TEXT.format("t", "FIRST(amount)", "true").replace("SELECT *", "SELECT sum(m)")
    with pytest.raises(hybrid.QueryError, match=r"sum does not take \(VARCHAR\)[^$]*write TRY_CAST\(... AS DOUBLE\)"):
        hybrid.sql(text, t=ROWS)
