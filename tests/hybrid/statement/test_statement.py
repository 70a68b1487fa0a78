"""hybrid.sql over every kind of input, with every kind of outer SELECT; order, ties, evidence, errors."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid

ROWS = [
    ("a", 1, 10.0), ("b", 1, 5.0), ("a", 2, 9.0), ("b", 2, 6.0),
    ("a", 3, 8.0), ("a", 4, 9.5), ("b", 4, 5.5), ("b", 5, 7.0),
]  # fmt: skip
TICKS = pa.table(
    {
        "symbol": [r[0] for r in ROWS],
        "ts": pa.array([r[1] * 1_000_000 for r in ROWS], pa.timestamp("us")),
        "price": [r[2] for r in ROWS],
    }
)
PATTERN = """MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts
  MEASURES A.price AS top, LAST(B.price) AS bottom, C.ts AS up_ts
  PATTERN (A B+ C)
  DEFINE B AS price < PREV(price), C AS price > PREV(price)
)"""
QUERY = f"SELECT * FROM ticks {PATTERN} AS m"
#: By hand: a falls 10, 9, 8 and rises at 4 s; b falls 6, 5.5 and rises at 5 s.
ANSWER = [("a", 10.0, 8.0, datetime(1970, 1, 1, 0, 0, 4)), ("b", 6.0, 5.5, datetime(1970, 1, 1, 0, 0, 5))]


def rows(result: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in result.arrow().columns)))  # names may repeat


@pytest.mark.slow
def test_an_input_may_be_named_in_the_with_list() -> None:
    falls = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3), "
        "high AS MATERIALIZED (SELECT * FROM ticks WHERE price > (SELECT min(price) FROM ticks)) "
        f"SELECT m.*, (SELECT count(*) FROM n) AS c FROM high {PATTERN} AS m"
    )
    # without the row at 5.0, b begins at 6 and falls to 5.5 all the same
    assert rows(hybrid.sql(falls, ticks=TICKS)) == [(*row, 3) for row in ANSWER]
    shadowed = (
        "WITH ticks AS (SELECT 'z' AS symbol, * EXCLUDE symbol FROM given WHERE symbol = 'a') "
        f"SELECT * FROM ticks {PATTERN}"
    )
    assert rows(hybrid.sql(shadowed, given=TICKS, ticks=TICKS)) == [("z", *ANSWER[0][1:])]


def test_a_missing_table_is_told_with_the_names_there_are() -> None:
    with pytest.raises(hybrid.QueryError, match="did you mean ticks") as caught:
        hybrid.sql(QUERY.replace("ticks", "tick"), ticks=TICKS)
    assert "duckdb_" not in str(caught.value)


@pytest.mark.parametrize("data", ["reference", True, 3, None])
def test_an_option_that_there_is_not_is_no_table(data: Any) -> None:
    with pytest.raises(hybrid.DataError, match="engine is neither an option nor a table in the text"):
        hybrid.sql(QUERY, ticks=TICKS, engine=data)
    for table in (TICKS, "a/b.csv"):
        assert sorted(rows(hybrid.sql(QUERY, ticks=TICKS, engine=table))) == ANSWER


def test_a_match_without_columns_is_refused() -> None:
    with pytest.raises(hybrid.QueryError, match="HQ217"):
        hybrid.sql("SELECT count(*) FROM ticks MATCH_RECOGNIZE (ORDER BY ts PATTERN (A B))", ticks=TICKS)


class Capsule:
    """Any object with the PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TICKS.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "ticks",
    [
        TICKS,
        TICKS.to_reader(),
        TICKS.to_batches()[0],
        Capsule(),
        TICKS.to_pandas(),
        TICKS.to_pandas().astype({"symbol": "category", "ts": "datetime64[ns]"}),
        pl.from_arrow(TICKS),
        pl.from_arrow(TICKS).lazy(),
        TICKS.to_pylist(),
        TICKS.to_pydict(),
        TICKS.set_column(0, "symbol", TICKS["symbol"].dictionary_encode()),
        TICKS.set_column(0, "symbol", TICKS["symbol"].cast(pa.large_string())),
        TICKS.set_column(0, "symbol", TICKS["symbol"].cast(pa.string_view())),
        TICKS.set_column(1, "ts", TICKS["ts"].cast(pa.timestamp("ns"))),
        pa.concat_tables([TICKS.slice(0, 3), TICKS.slice(3)]),
        TICKS.take(pa.array([7, 1, 0, 5, 4, 2, 3, 6])),
    ],
    ids=lambda value: type(value).__module__ + "." + type(value).__name__,
)
def test_every_kind_of_table(ticks: Any) -> None:
    assert sorted(rows(hybrid.sql(QUERY, ticks=ticks))) == ANSWER


@pytest.mark.slow
def test_a_relation_of_a_connection_of_ones_own() -> None:
    connection = duckdb.connect()
    connection.register("frame", TICKS)
    assert sorted(rows(hybrid.sql(QUERY, ticks=connection.sql("FROM frame")))) == ANSWER
    connection.execute("CREATE TABLE ticks AS FROM frame")
    assert sorted(rows(hybrid.sql(QUERY, connection))) == ANSWER
    assert sorted(rows(hybrid.sql(QUERY.replace("ticks", "frame"), connection))) == ANSWER
    assert connection.sql("SELECT count(*) FROM frame").fetchall() == [(8,)]  # still there


@pytest.mark.parametrize(
    "source",
    [
        "(SELECT * FROM ticks)",
        "(SELECT symbol, ts, price FROM ticks WHERE price > 0 ORDER BY random())",
        "(SELECT * FROM (VALUES ('a', TIMESTAMP '1970-01-01 00:00:01', 2.0::DOUBLE), "
        "('a', '1970-01-01 00:00:02', 1.0), ('a', '1970-01-01 00:00:03', 3.0)) AS v(symbol, ts, price) "
        "UNION ALL FROM ticks WHERE symbol = 'b')",
    ],
)
def test_subqueries(source: str) -> None:
    found = sorted(rows(hybrid.sql(QUERY.replace("ticks", source, 1), ticks=TICKS)))
    assert found[-1] == ANSWER[1]
    assert len(found) == 2


def test_parquet_and_csv_files(tmp_path: Path) -> None:
    pq.write_table(TICKS, tmp_path / "ticks.parquet")
    TICKS.to_pandas().to_csv(tmp_path / "ticks.csv", index=False)
    for reader in (f"read_parquet('{tmp_path}/ticks.parquet')", f"read_csv('{tmp_path}/ticks.csv')"):
        assert sorted(rows(hybrid.sql(QUERY.replace("ticks", reader, 1)))) == ANSWER


@pytest.mark.slow
def test_the_outer_select_is_duckdbs() -> None:
    names = pa.table({"symbol": ["a", "b"], "name": ["Alpha", "Beta"]})
    text = f"SELECT name, top - bottom AS fall FROM ticks {PATTERN} AS m JOIN names USING (symbol) ORDER BY fall"
    assert rows(hybrid.sql(text, ticks=TICKS, names=names)) == [("Beta", 0.5), ("Alpha", 2.0)]
    counted = f"SELECT count(*), max(top) FROM ticks {PATTERN} AS m"
    assert rows(hybrid.sql(counted, ticks=TICKS)) == [(2, 10.0)]
    filtered = f"SELECT top AS t, symbol FROM ticks {PATTERN} AS m WHERE m.top > 7"
    assert rows(hybrid.sql(filtered, ticks=TICKS)) == [(10.0, "a")]
    within = (
        f"WITH v AS (SELECT * FROM ticks {PATTERN} AS m) "
        "SELECT a.symbol, b.symbol FROM v a JOIN v b ON a.top > b.top"
    )
    assert rows(hybrid.sql(within, ticks=TICKS)) == [("a", "b")]
    two = f"SELECT x.symbol, y.symbol FROM ticks {PATTERN} AS x JOIN ticks {PATTERN} AS y ON x.top < y.top"
    assert rows(hybrid.sql(two, ticks=TICKS)) == [("b", "a")]
    assert rows(hybrid.sql("SELECT 1 + 1 AS two")) == [(2,)]


def test_no_match_still_has_columns() -> None:
    result = hybrid.sql(QUERY, ticks=TICKS.slice(0, 0))
    assert len(result) == 0
    assert result.arrow().schema.names == ["symbol", "top", "bottom", "up_ts"]
    assert result.arrow().schema.types == [pa.string(), pa.float64(), pa.float64(), pa.timestamp("us")]
    assert result.evidence().num_rows == 0


def test_the_shapes_of_a_result() -> None:
    result = hybrid.sql(QUERY, ticks=TICKS)
    assert isinstance(result.df(), pd.DataFrame)
    assert result.pl().shape == (2, 4)
    assert pa.table(result).equals(result.arrow())
    assert duckdb.connect().from_arrow(pa.table(result)).shape == (2, 4)
    assert "2 rows" in repr(result)
    assert "<td>a</td>" in result._repr_html_()
    assert "pattern     A B+ C" in result.explain("plan")
    for stage in ("ast", "nfab", "automaton", "program", "all"):
        assert result.explain(stage)
    with pytest.raises(hybrid.QueryError, match="unknown stage"):
        result.explain("gantt")


def test_evidence_names_every_event() -> None:
    evidence = hybrid.sql(f"SELECT symbol FROM ticks {PATTERN} AS m WHERE symbol = 'b'", ticks=TICKS).evidence()
    assert evidence.column("row").to_pylist() == [0, 0, 0]
    assert evidence.column("variable").to_pylist() == ["A", "B", "C"]
    assert evidence.column("price").to_pylist() == [6.0, 5.5, 7.0]
    assert evidence.column("side").to_pylist() == ["pl"] * 3
    assert len(set(evidence.column("match_id").to_pylist())) == 1
    assert all(len(name) == 32 for name in evidence.column("match_id").to_pylist())


def test_evidence_of_a_grouped_select_lists_all_matches() -> None:
    evidence = hybrid.sql(f"SELECT count(*) FROM ticks {PATTERN} AS m", ticks=TICKS).evidence()
    assert set(evidence.column("row").to_pylist()) == {-1}
    assert evidence.num_rows == 7


def test_match_ids_do_not_depend_on_the_text() -> None:
    def ids(text: str) -> list[str]:
        return hybrid.sql(text, ticks=TICKS).evidence().column("match_id").to_pylist()

    first = ids(QUERY)
    other = ids(QUERY.replace("C.ts AS up_ts", "C.price AS up_ts"))
    assert ids("/* again */ " + QUERY.replace("  ", "      ")) == first
    assert not set(first) & set(other)


@pytest.mark.parametrize(
    ("order", "expected"), [("x", (1, 2, None)), ("x DESC", (2, 1, None)), ("x NULLS FIRST", (None, 1, 2))]
)
def test_order_by_anything(order: str, expected: tuple[int | None, ...]) -> None:
    table = pa.table({"x": pa.array([2, None, 1], pa.int64()), "y": ["p", "q", "r"]})
    measures = "A.x AS a, B.x AS b, C.x AS c"
    text = f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY {order} MEASURES {measures} PATTERN (A B C)) AS m"
    assert rows(hybrid.sql(text, t=table)) == [expected]


def test_hidden_columns_stay_hidden() -> None:
    text = f"SELECT * FROM ticks {PATTERN.replace('PATTERN', 'ALL ROWS PER MATCH PATTERN', 1)} AS m"
    assert hybrid.sql(text, ticks=TICKS).arrow().column_names == ["symbol", "ts", "top", "bottom", "up_ts", "price"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (QUERY.replace("ticks", "tikcs"), "HQ200"),
        (QUERY.replace("price < PREV", "prize < PREV"), "HQ201"),
        (QUERY.replace("SELECT *", "SELECT tpo"), "HQ201"),
        (QUERY.replace("ticks", "read_parquet('missing.parquet')"), None),
        (QUERY.replace("ticks", "(SELECT nothing FROM ticks)"), "HQ201"),
        (QUERY + " WHERE", None),
        ("SELECT", None),
        ("", None),
    ],
)
def test_faults_are_query_errors_inside_the_text(text: str, code: str | None) -> None:
    with pytest.raises(hybrid.QueryError) as caught:
        hybrid.sql(text, ticks=TICKS)
    for diagnostic in caught.value.diagnostics:
        assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(text)
        assert code is None or diagnostic.code == code
    assert sorted(rows(hybrid.sql(QUERY, ticks=TICKS))) == ANSWER


@pytest.mark.parametrize(
    "ticks",
    [
        TICKS.set_column(1, "ts", pa.array(range(8), pa.timestamp("ns"))),
        7,
        "ticks.parquet",
    ],
)
def test_faults_of_data(ticks: Any) -> None:
    with pytest.raises(hybrid.DataError):
        hybrid.sql(QUERY, ticks=ticks)


@pytest.mark.slow
def test_a_plot_of_a_match(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "match.png"
    hybrid.sql(QUERY, ticks=TICKS).plot(1, path=path)
    assert path.stat().st_size > 5_000
    with pytest.raises(hybrid.DataError, match="row 9 has no evidence"):
        hybrid.sql(QUERY, ticks=TICKS).plot(9)


@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("condition", ["v >= 0", "string_agg(CLASSIFIER(), '') <> 'x'"], ids=["engine", "reference"])
@pytest.mark.parametrize("type", [pa.float64(), pa.float32()], ids=str)
def test_zeros_are_one_key_that_is_shown_without_a_sign(type: pa.DataType, condition: str) -> None:
    # Before: as the one that came first in memory, and by the reference as that of the first row of the match.
    table = pa.table({"ts": range(4), "k": pa.array([-0.0, 0.0, -0.0, 0.0], type), "v": range(4)})
    text = f"""SELECT k FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts PATTERN (A B)
        DEFINE A AS {condition}, B AS v > A.v)"""
    assert [str(row["k"]) for row in hybrid.sql(text, t=table).arrow().to_pylist()] == ["0.0", "0.0"]
