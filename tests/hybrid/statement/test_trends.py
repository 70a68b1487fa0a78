"""ONE ROW PER WINDOW in a statement: numbers of any size in SQL, HAVING's place, what is refused."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from query.errors import QueryError
from tests.trends import EVENTS, Row, read_rows, row, statement

MANY = 2**200 - 1


def table(rows: list[Row]) -> pa.Table:
    from tests.events import batch_of

    return pa.Table.from_batches([batch_of(EVENTS, rows).columns])


def many() -> pa.Table:
    """Returns 200 events of A and one of B: MANY trends of A+ B in the first window, one in the second."""
    return table([row("A", i / 100, 1) for i in range(200)] + [row("B", 3), row("A", 11, 5), row("B", 12)])


def asked(select: str, tables: dict[str, pa.Table], rest: str = "", **clauses: str) -> pa.Table:
    text = statement("A+ B", 10, 10, measures="COUNT(MATCHES) AS n, SUM(A.v) AS s", **clauses)
    return hybrid.sql(text.replace("SELECT *", f"SELECT {select}") + f" {rest}", **tables).arrow()


def test_the_columns_and_their_types() -> None:
    found = asked("*", {"events": many()})
    assert found.schema.names == ["window_start", "window_end", "n", "s"]
    assert [str(t) for t in found.schema.types] == ["timestamp[us]", "timestamp[us]", "string", "string"]
    assert found["n"].to_pylist() == [str(MANY), "1"]
    assert found["s"].to_pylist() == [str(200 * 2**199), "5"]


def test_numbers_of_any_size_are_numbers_in_sql() -> None:
    """Compared, added and aggregated in full; digits when they leave."""
    found = asked("n + 1 AS more, n > 10 AS large, sum(n) OVER () AS total", {"events": many()}, "WHERE s >= 5")
    assert found.to_pydict() == {
        "more": [str(MANY + 1), "2"], "large": [True, False], "total": [str(MANY + 1)] * 2
    }  # fmt: skip
    (only,) = asked("n::BIGINT AS n, n::DOUBLE AS d", {"events": many()}, "WHERE n < 10").to_pylist()
    assert only == {"n": 1, "d": 1.0}


def test_numbers_of_any_size_on_the_users_connection() -> None:
    with duckdb.connect() as connection:
        connection.sql("CREATE TYPE mood AS ENUM ('A', 'B')")
        connection.register("given", many())
        connection.sql("CREATE TABLE events AS SELECT * REPLACE (type::mood AS type) FROM given")
        text = statement("A+ B", 10, 10, measures="COUNT(MATCHES) AS n, MAX(A.v) + 1 AS v")
        found = hybrid.sql(f"SELECT n * 2::DOUBLE AS n, v FROM ({text})", connection)
        assert found.arrow().to_pydict() == {"n": [2.0 * MANY, 2.0], "v": [2, 6]}
        stored = hybrid.sql(f"CREATE TABLE kept AS {text}", connection)
        assert stored is not None
        assert connection.sql("SELECT typeof(n), n::VARCHAR FROM kept ORDER BY n").fetchall() == [
            ("BIGNUM", "1"), ("BIGNUM", str(MANY))
        ]  # fmt: skip


def test_a_pattern_over_windows() -> None:
    """The rows are an input like any other: numbers grow from window to window."""
    inner = statement("A+", 10, 10, measures="COUNT(MATCHES) AS n")
    events = table(read_rows("A@1 A@11 A@12 A@21 A@22 A@23 A@31"))
    found = hybrid.sql(
        f"SELECT * FROM ({inner}) MATCH_RECOGNIZE (ORDER BY window_end MEASURES LAST(UP.n) AS n, count(*) AS windows "
        "PATTERN (FIRST_ UP+) DEFINE UP AS n::BIGINT > PREV(n::BIGINT)) AS m",
        events=events,
    )
    assert found.arrow().to_pylist() == [{"n": "7", "windows": 3}]


@pytest.mark.parametrize("file", [False, True])
def test_groups_of_partitions(file: bool, tmp_path: Path) -> None:
    """GROUP BY puts the partitions of a group together, also from a file that is stored by key."""
    rows = read_rows("A@1{1} A@2{2} B@3 A@4{4} B@5")
    rows = [r | {"g": g, "h": h} for h, g in enumerate(("x", "x", None)) for r in rows]
    given = table(sorted(rows, key=lambda r: (str(r["g"]), r["h"])))
    if file:
        pq.write_table(given, tmp_path / "events.parquet")
    source = f"'{tmp_path}/events.parquet'" if file else "events"
    text = statement("A+ B", 10, 10, partition="g, h", group="g", source=source)
    found = hybrid.sql(text, **({} if file else {"events": given})).arrow()
    assert found.drop_columns(["window_start", "window_end"]).to_pydict() == {
        "g": [None, "x"], "n": ["10", "20"], "c": ["16", "32"], "s": ["34", "68"], "lo": [1, 1], "hi": [4, 4]
    }  # fmt: skip


def test_rows_of_windows_have_no_evidence() -> None:
    result = hybrid.sql(statement("A+ B", 10, 10), events=many())
    with pytest.raises(QueryError, match=r"HQ221(.|\n)*have no evidence(.|\n)*ONE ROW PER MATCH"):
        result.evidence()


def test_there_is_no_graph_of_windows() -> None:
    with pytest.raises(QueryError, match="HQ500"):
        hybrid.matches(statement("A+ B", 10, 10), events=many())


def test_explain_shows_windows_states_and_sums() -> None:
    shown = hybrid.sql(statement("A+ B", 10, 5, partition="g", group="g"), events=many()).explain()
    for line in (
        "group       g", "windows     10000000 us every 5000000 us", "engine      counts of trends by state and window",
        "            1: A -> 1; B -> trend 0", "none: trends are counted, and no run is kept",
    ):  # fmt: skip
        assert line in shown
