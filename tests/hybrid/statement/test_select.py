"""hybrid.sql around its patterns: several and nested ones, names of inputs and outputs, statements that keep rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
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
#: One row for each fall that ends in a rise. By hand: a falls 10, 9, 8 and rises at 4 s; b falls 6, 5.5, rises at 5 s.
FALLS = """MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts
  MEASURES A.price AS top, LAST(B.price) AS bottom, C.ts AS up_ts
  PATTERN (A B+ C)
  DEFINE B AS price < PREV(price), C AS price > PREV(price)
)"""
FOUR = datetime(1970, 1, 1, 0, 0, 4)
FIVE = FOUR + timedelta(seconds=1)
FOUND = [("a", 10.0, 8.0, FOUR), ("b", 6.0, 5.5, FIVE)]
#: Two falls, the first one higher, in the order of their ends: 10 (ends at 4 s), then 6 (ends at 5 s).
LOWER = """MATCH_RECOGNIZE (
  ORDER BY up_ts MEASURES X.top AS first_top, Y.top AS second_top, Y.up_ts AS at
  PATTERN (X Y) DEFINE Y AS top < PREV(top)
)"""
PAIR = (10.0, 6.0, FIVE)


def rows(result: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in result.arrow().columns)))  # names may repeat


def ask(text: str, connection: duckdb.DuckDBPyConnection | None = None, **tables: Any) -> list[tuple[Any, ...]]:
    return rows(hybrid.sql(text, connection, **(tables or {"ticks": TICKS})))


def fault_of(text: str, connection: duckdb.DuckDBPyConnection | None = None) -> tuple[str, str, str]:
    """Code, the text under the caret, and the rendered error."""
    with pytest.raises(hybrid.QueryError) as caught:
        hybrid.sql(text, connection, ticks=TICKS)
    found = caught.value.diagnostics[0]
    return found.code, text[found.span.start : found.span.end], str(caught.value)


# ---- several patterns ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM (SELECT * FROM ticks {FALLS}) {LOWER} AS z",
        f"SELECT z.* FROM (SELECT * FROM ticks AS t {FALLS} AS m WHERE top > 0) AS falls {LOWER} AS z",
        f"WITH f AS (SELECT * FROM ticks {FALLS} AS m) SELECT * FROM f {LOWER} AS z",
        f"WITH f AS (SELECT * FROM ticks {FALLS} AS m), g AS (FROM f), h AS (SELECT * FROM g {LOWER}) SELECT * FROM h",
        f"SELECT * FROM (WITH f AS (SELECT * FROM ticks {FALLS} AS m) FROM f) {LOWER}",
        f"WITH o AS (SELECT 0 AS low) SELECT * FROM (WITH i AS (FROM ticks, o WHERE price > low) "
        f"SELECT * FROM (SELECT symbol, ts, price FROM i) {FALLS} AS m) {LOWER}",
        f"WITH RECURSIVE f AS (SELECT * FROM ticks {FALLS} AS m) SELECT * FROM f {LOWER} AS z",
    ],
)
def test_a_pattern_over_the_matches_of_another(text: str) -> None:
    assert ask(text) == [PAIR]


@pytest.mark.slow
def test_a_pattern_over_one_is_that_over_its_table() -> None:
    connection = duckdb.connect()
    connection.register("falls", hybrid.sql(f"SELECT * FROM ticks {FALLS}", ticks=TICKS).arrow())
    two_steps = ask(f"SELECT * FROM falls {LOWER} AS z", connection)
    assert ask(f"SELECT * FROM (SELECT * FROM ticks {FALLS}) {LOWER} AS z") == two_steps == [PAIR]


@pytest.mark.slow
def test_patterns_in_every_place_of_a_select() -> None:
    assert ask(f"SELECT max(top) FROM ticks {FALLS} AS m UNION ALL SELECT min(top) FROM ticks {FALLS} AS m") == [
        (10.0,), (6.0,),
    ]  # fmt: skip
    assert ask(f"SELECT (SELECT max(top) FROM ticks {FALLS}) AS x") == [(10.0,)]
    found = f"SELECT DISTINCT symbol FROM ticks WHERE price IN (SELECT bottom FROM ticks {FALLS} WHERE top < 7)"
    assert ask(found) == [("b",)]
    joined = f"SELECT m.symbol, n.symbol FROM ticks {FALLS} AS m JOIN (FROM ticks {FALLS}) AS n ON m.top > n.top"
    assert ask(joined) == [("a", "b")]
    ranked = f"SELECT symbol FROM ticks {FALLS} AS m QUALIFY rank() OVER (ORDER BY top) = 1"
    assert ask(ranked) == [("b",)]
    pivoted = f"SELECT * FROM (SELECT symbol, top FROM ticks {FALLS}) PIVOT (sum(top) FOR symbol IN ('a', 'b'))"
    assert ask(pivoted) == [(10.0, 6.0)]
    first = f"SELECT count(*) FROM ticks {FALLS}"
    numbers = f"WITH RECURSIVE n(i) AS ({first} UNION ALL SELECT i + 1 FROM n WHERE i < 4) FROM n"
    assert ask(numbers) == [(2,), (3,), (4,)]


HISTORY = "JOIN HISTORY OF ticks FROM m.up_ts - INTERVAL 1 HOUR TO m.up_ts AS h ON h.symbol = m.symbol"


@pytest.mark.slow
def test_history_beside_other_patterns() -> None:
    """Rows of the symbol before the rise: a has 3, b has 3."""
    alone = f"SELECT m.symbol, count(*) AS n FROM ticks {FALLS} AS m {HISTORY} GROUP BY ALL"
    assert sorted(ask(alone)) == [("a", 3), ("b", 3)]
    inside = f"SELECT o.symbol, i.n FROM ticks {FALLS} AS o JOIN ({alone}) AS i USING (symbol)"
    assert sorted(ask(inside)) == [("a", 3), ("b", 3)]
    before = f"SELECT count(*) FROM (SELECT * FROM ticks {FALLS}) {LOWER} AS z, ticks {FALLS} AS m {HISTORY}"
    assert ask(before) == [(6,)]
    counted = "MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A+))"
    over = f"SELECT * FROM (SELECT h.ts, h.price FROM ticks {FALLS} AS m {HISTORY}) {counted}"
    assert ask(over) == [(6,)]


def test_evidence_of_nested_patterns_names_the_events_of_both() -> None:
    result = hybrid.sql(f"SELECT * FROM (SELECT * FROM ticks {FALLS} AS m) {LOWER} AS m", ticks=TICKS)
    evidence = result.evidence()
    assert evidence.column("variable").to_pylist() == ["A", "B", "B", "C", "A", "B", "C", "X", "Y"]
    assert evidence.column("top").to_pylist()[-2:] == [10.0, 6.0]
    assert set(evidence.column("row").to_pylist()) == {-1}  # which of the inner ones a row stems from is not known


def test_explain_shows_what_each_input_is() -> None:
    shown = hybrid.sql(f"WITH w AS (FROM ticks) SELECT * FROM (SELECT * FROM w {FALLS}) {LOWER} AS z", ticks=TICKS)
    assert "OVER WITH w AS (FROM ticks) SELECT * FROM w" in shown.explain("plan")
    assert "OVER WITH w AS (FROM ticks) SELECT * FROM (SELECT * FROM __hybrid_factor_0 AS w)" in shown.explain("plan")


def test_explain_of_a_select_without_a_pattern() -> None:
    # Before: headings of stages with nothing below.
    result = hybrid.sql("SELECT 1 AS x")
    assert result.explain() == "== ast\nQuerySyntax\n  kind: SELECT\n\n== plan\nselect      SELECT 1 AS x"
    assert result.explain("nfab") == "none: the statement has no pattern"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'n=' + count(*) FROM ticks",
        f"SELECT 'n=' + top FROM ticks {FALLS}",
        f"SELECT * FROM ticks {FALLS.replace('A.price AS top', chr(39) + 'n=' + chr(39) + ' + count(*) AS top')}",
        f"SELECT * FROM ticks {FALLS.replace('price > PREV(price)', chr(39) + 'n=' + chr(39) + ' + price > 1')}",
    ],
)
def test_a_text_plus_a_number_has_a_hint(text: str) -> None:
    # Before: none, or to guard it with TRY.
    with pytest.raises(hybrid.Error, match=r"Could not convert string 'n='(.|\n)*\nhint: join texts with \|\|"):
        hybrid.sql(text, ticks=TICKS)


@pytest.mark.parametrize(
    ("text", "code", "piece"),
    [
        (f"SELECT * FROM (SELECT topp FROM ticks {FALLS}) {LOWER} AS z", "HQ201", "topp"),
        (f"SELECT * FROM (FROM ticks {FALLS}) {LOWER.replace('ORDER BY up_ts', 'ORDER BY upts')}", "HQ201", "upts"),
        (f"SELECT * FROM (SELECT * FROM tick {FALLS}) {LOWER} AS z", "HQ200", "tick"),
        (f"WITH f AS (SELECT * FROM ticks {FALLS}) SELECT * FROM (SELECT zop FROM f) {LOWER}", "HQ201", "zop"),
        (f"WITH f AS (SELECT prise FROM ticks) SELECT * FROM f {FALLS}", "HQ201", "prise"),
        (f"SELECT * FROM ticks t WHERE EXISTS (FROM (FROM ticks WHERE symbol = t.symbol) {FALLS})", "HQ200", "t"),
        (f"WITH RECURSIVE r AS (FROM ticks UNION ALL FROM (FROM r) {FALLS}) FROM r", "HQ500", "(FROM r)"),
        (f"SELECT * FROM ticks {FALLS} AS m UNION ALL SELECT 1 FROM ticks {HISTORY}", "HQ300", HISTORY),
    ],
)
def test_faults_point_into_the_text_of_nested_patterns(text: str, code: str, piece: str) -> None:
    assert fault_of(text)[:2] == (code, piece)


# ---- names -----------------------------------------------------------------------------------------------------


def test_columns_of_the_output_may_be_renamed() -> None:
    text = f'SELECT m.s, "Top Price", bottom FROM ticks x {FALLS} AS m (s, "Top Price")'
    assert sorted(ask(text)) == [row[:3] for row in FOUND]
    assert hybrid.sql(f"SELECT * FROM ticks {FALLS} m (s, t)", ticks=TICKS).arrow().column_names == [
        "s", "t", "bottom", "up_ts",
    ]  # fmt: skip
    assert fault_of(f"SELECT m.symbol FROM ticks {FALLS} AS m (s)")[:2] == ("HQ201", "symbol")
    assert fault_of(f"SELECT * FROM ticks {FALLS} AS m (a, b, c, d, e)")[:2] == ("HQ201", "e")
    assert fault_of(f"SELECT * FROM ticks {FALLS} AS m (a, A)")[:2] == ("HQ206", "A")


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "SEMI JOIN", "NEAREST JOIN"])
def test_history_sees_the_new_names(kind: str) -> None:
    join = f"{kind} HISTORY OF ticks FROM m.up - INTERVAL 1 HOUR TO m.up AS h ON h.symbol = m.s AND h.price = m.t"
    text = f"SELECT m.s FROM ticks {FALLS} AS m (s, t, b, up) {join}"
    assert sorted(ask(text)) == [("a",), ("b",)]


@pytest.mark.slow
def test_names_that_have_to_be_quoted() -> None:
    odd = TICKS.rename_columns(["the symbol", "select", 'pr"ice'])
    text = (
        'SELECT "from"."A price", "from"."the symbol" FROM "odd table" AS "in put" MATCH_RECOGNIZE ('
        'PARTITION BY "the symbol" ORDER BY "select" MEASURES "a b"."pr""ice" AS "A price" PATTERN ("a b" B+ C) '
        'DEFINE B AS "pr""ice" < PREV("pr""ice"), C AS "pr""ice" > PREV("pr""ice")) AS "from" ORDER BY 1'
    )
    connection = duckdb.connect()
    connection.from_arrow(odd).create("odd table")
    assert ask(text, connection) == [(6.0, "b"), (10.0, "a")]


# ---- inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_relations_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "ticks.parquet"
    pq.write_table(TICKS, file)
    connection = duckdb.connect()
    connection.register("given", TICKS)
    connection.execute("CREATE SCHEMA s; CREATE TABLE s.ticks AS FROM given; CREATE VIEW seen AS FROM s.ticks")
    connection.execute("CREATE MACRO after(x) AS TABLE SELECT * FROM s.ticks WHERE price > x")
    for source in (
        f"'{file}'", f'"{file}"', f"read_parquet('{file}') AS r", "s.ticks", "memory.s.ticks t", "seen", "after(0)",
        "(FROM s.ticks)", "(s.ticks JOIN (SELECT 1 AS one) AS o ON one = 1) AS j",
    ):  # fmt: skip
        assert sorted(ask(f"SELECT * FROM {source} {FALLS} AS m", connection, ticks=TICKS)) == FOUND
    values = ", ".join(f"('{s}', make_timestamp({t}000000), {p}::DOUBLE)" for s, t, p in ROWS)
    assert sorted(ask(f"SELECT * FROM (VALUES {values}) AS v(symbol, ts, price) {FALLS} AS m")) == FOUND
    counted = "SELECT n FROM range(5) AS r(i) MATCH_RECOGNIZE (ORDER BY i MEASURES count(*) AS n PATTERN (A{2}))"
    assert ask(counted) == [(2,), (2,)]


@pytest.mark.slow
def test_the_connections_own_names_may_stand_anywhere() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA s; CREATE TABLE s.names AS SELECT 'a' AS symbol, 'Alpha' AS name")
    connection.execute("CREATE MACRO twice(x) AS 2 * x; CREATE TEMP TABLE low AS SELECT 7 AS v")
    text = (
        f"SELECT name, twice(top) FROM (SELECT * FROM ticks WHERE twice(price) > 0) {FALLS} AS m "
        "JOIN s.names USING (symbol) WHERE top > (FROM low)"
    )
    assert ask(text, connection, ticks=TICKS) == [("Alpha", 20.0)]


@pytest.mark.slow
def test_our_own_variables_are_no_tables() -> None:
    """DuckDB would look for a missing table among the Python variables of its caller."""
    for name in ("text", "query", "relation"):
        assert fault_of(f"SELECT * FROM {name}", duckdb.connect())[0] == "HQ200"
        assert fault_of(f"SELECT * FROM {name} {FALLS}", duckdb.connect())[0] == "HQ200"


# ---- statements that keep rows -----------------------------------------------------------------------------------


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE kept(symbol VARCHAR, top DOUBLE, bottom DOUBLE, up_ts TIMESTAMP)")
    return connection


@pytest.mark.parametrize(
    "text",
    [
        f"INSERT INTO kept SELECT * FROM ticks {FALLS} AS m",
        f"INSERT INTO kept BY NAME SELECT up_ts, bottom, top, symbol FROM ticks {FALLS} AS m",
        f"WITH w AS (FROM ticks) INSERT INTO kept SELECT * FROM w {FALLS} AS m;",
        f"CREATE OR REPLACE TABLE kept AS SELECT * FROM ticks {FALLS} AS m",
        f"CREATE TEMP TABLE kept AS WITH w AS (FROM ticks) SELECT * FROM w {FALLS} AS m",
    ],
)
def test_rows_may_be_kept_in_a_connection(text: str, connection: duckdb.DuckDBPyConnection) -> None:
    assert ask(text, connection, ticks=TICKS) == [(2,)]
    assert sorted(connection.sql("FROM kept").fetchall()) == FOUND
    assert connection.sql("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall() == [(0,)]  # none of ours


def test_insert_returning(connection: duckdb.DuckDBPyConnection) -> None:
    text = f"INSERT INTO kept SELECT * FROM ticks {FALLS} AS m RETURNING symbol, top - bottom AS fall"
    assert sorted(ask(text, connection, ticks=TICKS)) == [("a", 2.0), ("b", 0.5)]


def test_copy_needs_no_connection(tmp_path: Path) -> None:
    for given in (None, duckdb.connect()):
        file = tmp_path / f"out{given is None}.parquet"
        assert ask(f"COPY (SELECT * FROM ticks {FALLS} AS m) TO '{file}'", given, ticks=TICKS) == [(2,)]
        assert sorted(duckdb.sql(f"FROM '{file}'").fetchall()) == FOUND


@pytest.mark.parametrize(
    ("text", "code", "piece"),
    [
        ("INSERT INTO kpt SELECT * FROM ticks {}", "HQ200", "kpt"),
        ("INSERT INTO kept SELECT topp FROM ticks {}", "HQ201", "topp"),
        ("INSERT INTO kept SELECT * FROM tick {}", "HQ200", "tick"),
        ("CREATE TABLE t AS SELECT m.nothing FROM ticks {} AS m", "HQ201", "nothing"),
        ("CREATE VIEW v AS SELECT * FROM ticks {}", "HQ500", "CREATE VIEW"),
    ],
)
def test_faults_of_statements(text: str, code: str, piece: str, connection: duckdb.DuckDBPyConnection) -> None:
    before = connection.sql("SELECT table_name FROM duckdb_tables()").fetchall()
    assert fault_of(text.format(FALLS), connection)[:2] == (code, piece)
    assert connection.sql("SELECT table_name FROM duckdb_tables()").fetchall() == before
    assert connection.sql("FROM kept").fetchall() == []


def test_what_writes_needs_a_connection() -> None:
    for text in (f"INSERT INTO kept SELECT * FROM ticks {FALLS}", f"CREATE TABLE kept AS SELECT * FROM ticks {FALLS}"):
        code, _, shown = fault_of(text)
        assert code == "HQ100"
        assert "hybrid.sql(text, connection)" in shown


@pytest.mark.slow
def test_a_transaction_of_the_user_stays_his(connection: duckdb.DuckDBPyConnection) -> None:
    text = f"INSERT INTO kept SELECT * FROM ticks {FALLS}"
    connection.begin()
    assert ask(text, connection, ticks=TICKS) == [(2,)]
    connection.rollback()
    assert connection.sql("FROM kept").fetchall() == []
    connection.begin()
    assert fault_of(text.replace("SELECT *", "SELECT nothing"), connection)[:2] == ("HQ201", "nothing")
    connection.rollback()
    settings = "SELECT current_setting('errors_as_json'), current_setting('python_enable_replacements')"
    assert connection.sql(settings).fetchall() == [(False, True)]


def test_returning_is_no_name_of_the_matches(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TABLE found (x BIGINT)")
    matches = "FROM (VALUES (1), (2)) AS t(v) MATCH_RECOGNIZE (MEASURES B.v AS x PATTERN (A B))"
    text = f"INSERT INTO found {matches} RETURNING x + 1"
    assert hybrid.sql(text, connection).arrow().columns[0].to_pylist() == [3]


def test_evidence_of_a_statement_without_a_pattern() -> None:
    """Text in its last column must not be taken for the number of a row."""
    result = hybrid.sql("SELECT * FROM t", t=[{"v": 1, "s": "x"}])
    assert result.evidence().num_rows == 0
    assert "1 row" in result._repr_html_()


@pytest.mark.parametrize(
    ("clauses", "code", "piece"),
    [
        ("AFTER MATCH SKIP TO FIRST A PATTERN (A B)", "HQ601", "AFTER MATCH SKIP TO FIRST A"),
        ("AFTER MATCH SKIP TO NEXT ROW PATTERN (A{20000} B{20000})", "HQ600", "A{20000} B{20000}"),
    ],
)
def test_what_comes_up_while_matching_points_into_the_text(clauses: str, code: str, piece: str) -> None:
    text = f"SELECT * FROM (FROM t)\nMATCH_RECOGNIZE (MEASURES count(*) AS n {clauses}) AS m"
    with pytest.raises(hybrid.QueryError) as caught:
        hybrid.sql(text, t=[{"v": 1}, {"v": 2}])
    fault = caught.value.diagnostics[0]
    assert (fault.code, text[fault.span.start : fault.span.end]) == (code, piece)
    assert "query:2:" in str(caught.value)


def test_what_is_no_table_and_no_connection() -> None:
    series = pytest.importorskip("pandas").Series([1], name="v")
    with pytest.raises(hybrid.DataError, match="Series is not a table"):
        hybrid.sql("FROM t", t=series)
    with pytest.raises(hybrid.DataError, match=r"list is not a DuckDB connection(?s:.)*passed by name"):
        hybrid.sql("FROM t", [{"v": 1}])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_picture_of_rows_without_one_match_says_so() -> None:
    pytest.importorskip("matplotlib")
    text = "SELECT count(*) AS n FROM t MATCH_RECOGNIZE (MEASURES A.v AS v PATTERN (A)) AS m"
    result = hybrid.sql(text, t=[{"v": 1}, {"v": 2}])
    with pytest.raises(hybrid.DataError, match=r"do not come from one match each(?s:.)*row=None"):
        result.plot()
    assert result.plot(None) is not None


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("items", ["{}", "A.v, {}"])
def test_a_list_of_values_may_be_long(items: str) -> None:
    listed = items.format(", ".join(map(str, range(0, 6000, 2))))
    text = f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY v MEASURES B.v AS v PATTERN (A B) DEFINE B AS v IN ({listed}))"
    found = hybrid.sql(text, t=[{"v": v} for v in (1, 4, 5, 7, 9, 5998)]).arrow()
    assert found["v"].to_pylist() == [4, 5998]


@pytest.mark.parametrize(
    ("clauses", "engine"),
    [
        ("PATTERN (A B+) DEFINE B AS v > PREV(v)", "engine      table of lists\ntable       3 lists x 2 masks"),
        ("AFTER MATCH SKIP TO LAST B PATTERN (A B+) DEFINE B AS v > PREV(v)", "engine      table of lists\n"),
        (
            "PATTERN (A B+) WITHIN 3 ROWS DEFINE B AS v > PREV(v)",
            "engine      table of starts\n"
            "table       5 configurations x 2 masks\n"
            "            0: failed\n"
            "            1: matched\n"
            "            2: (0)  none -> 3, B -> 3\n"
            "            3: (1)  none -> 0, B -> 4 ends\n"
            "            4: (2 match)  none -> 1, B -> 4 ends",
        ),
        ("PATTERN (A B+) DEFINE B AS v > A.v", "engine      run lists"),
        ("PATTERN (A B) SELECTION SKIP TILL NEXT MATCH", "engine      graph of runs"),
        ("PATTERN (A $) SELECTION SKIP TILL ANY MATCH", "engine      reference matcher: an anchor under"),
    ],
)
@pytest.mark.filterwarnings("ignore::hybrid.HybridWarning")
def test_explain_names_the_engine(clauses: str, engine: str) -> None:
    text = f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY v MEASURES A.v AS v {clauses}) AS m"
    assert engine in hybrid.sql(text, t=[{"v": 1}]).explain("program")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT v::INT AS x FROM t", hybrid.QueryError),
        ("SELECT m.x::INT AS y FROM t MATCH_RECOGNIZE (MEASURES A.v AS x PATTERN (A)) AS m", hybrid.QueryError),
        ("FROM (SELECT v::INT AS v FROM t) MATCH_RECOGNIZE (MEASURES A.v AS x PATTERN (A))", hybrid.QueryError),
        ("FROM t MATCH_RECOGNIZE (MEASURES A.v::INT AS x PATTERN (A))", hybrid.DataError),
        ("FROM t MATCH_RECOGNIZE (MEASURES 1 AS x PATTERN (A) DEFINE A AS v::INT > 5)", hybrid.DataError),
    ],
)
def test_a_value_that_cannot_be_computed_far_behind_the_first_rows(text: str, error: type[Exception]) -> None:
    """DuckDB finds it when most of its answer has been read."""
    values = [str(i) for i in range(100_000)]
    values[90_000] = "x"
    with pytest.raises(error, match=r"Could not convert string 'x'"):
        hybrid.sql(text, t={"v": values})
