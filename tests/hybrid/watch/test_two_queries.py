"""Several live queries over one stream find what each finds alone: rows are read once for all of them."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

import hybrid

#: Values of each type, as SQL of i.
TYPES = {
    "HUGEINT": "i::HUGEINT * 10000000000000000000000", "UBIGINT": "i::UBIGINT", "DECIMAL(38,2)": "i::DECIMAL(38,2)",
    "INTEGER[]": "[i, 1]", "STRUCT(a INTEGER)": "{'a': i}", "VARCHAR": "i::VARCHAR", "DOUBLE": "i::DOUBLE",
    "TIMESTAMP_NS": "TIMESTAMP_NS '2024-01-01' + to_seconds(i)", "DATE": "DATE '2024-01-01' + i",
    "UUID": "lpad(i::VARCHAR, 32, '0')::UUID", "BLOB": "i::VARCHAR::BLOB", "TIME": "TIME '10:00:00' + to_seconds(i)",
}  # fmt: skip
QUERY = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS a, B.ts AS b PATTERN (A B)
    DEFINE B AS {})"""
CONDITIONS = ("x > A.x", "x = A.x", "x <> A.x", "x > PREV(x) AND x >= A.x", "list(A.x)[1] < x", "max(A.x) < x")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("type", TYPES)
def test_queries_beside_each_other_find_what_they_find_alone(type: str) -> None:
    # Before: with a second query, whatever it was, values that are kept by code were looked up in another dictionary,
    # and matches were missing or wrong.
    rows = duckdb.sql(f"""SELECT TIMESTAMP '2024-01-01' + n * INTERVAL 1 SECOND AS ts, n % 3 AS k, {TYPES[type]} AS x
        FROM (SELECT n::INT AS n, (n // 3 % 7 // 2)::INT AS i FROM range(60) AS r(n))""").to_arrow_table()
    texts = [QUERY.format(condition) for condition in CONDITIONS]

    def found(chosen: list[str]) -> list[list[tuple[object, ...]]]:
        with hybrid.connect() as db:
            db.create_stream("t", {"ts": "TIMESTAMP", "k": "INTEGER", "x": type}, time="ts", key="k")
            alerts = [db.watch(text) for text in chosen]
            for batch in rows.to_batches(max_chunksize=7):
                db.push("t", pa.Table.from_batches([batch]))
            db.advance("t", None)
            return [sorted(map(tuple, map(dict.values, one.fetch().to_pylist()))) for one in alerts]

    together = found(texts)
    assert together == [found([text])[0] for text in texts]
    assert together == [sorted(hybrid.sql(text, t=rows).fetchall()) for text in texts]
    assert all(together)
