"""ONE ROW PER WINDOW in a statement: numbers of any size in SQL, HAVING's place, what is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from hybrid.statement.statement import compare_with_reference
from query.errors import DataError, QueryError
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


@pytest.mark.slow
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
    """The rows are an input like any other, but for numbers of any size: they are text in Arrow, and would be compared
    as such."""
    events = table(read_rows("A@1 A@11 A@12 A@21 A@22 A@23 A@31"))
    outer = (
        "SELECT * FROM ({}) MATCH_RECOGNIZE (ORDER BY window_end MEASURES LAST(UP.n) AS n, count(*) AS windows "
        "PATTERN (FIRST_ UP+) DEFINE UP AS n > PREV(n)) AS m"
    )
    found = hybrid.sql(outer.format(statement("A+", 10, 10, measures="COUNT(MATCHES)::BIGINT AS n")), events=events)
    assert found.arrow().to_pylist() == [{"n": 7, "windows": 3}]
    # Before: n was a text, and 15 came before 7.
    with pytest.raises(QueryError, match=r"HQ205(.|\n)*n is a BIGNUM(.|\n)*n::DOUBLE"):
        hybrid.sql(outer.format(statement("A+", 10, 10, measures="COUNT(MATCHES) AS n")), events=events)


def test_frames_have_numbers() -> None:
    """Before: the digits were texts, and their sum was a longer text."""
    frame = hybrid.sql(statement("A+ B", 10, 10, measures="COUNT(MATCHES) AS n, MAX(A.v) AS v"), events=many()).df()
    assert frame["n"].sum() == MANY + 1
    assert (frame["n"] > 5).tolist() == [True, False]
    assert frame["v"].tolist() == [1, 5]


def test_a_notebook_shows_windows() -> None:
    """Before: displaying the result raised that it has no evidence."""
    assert str(MANY) in hybrid.sql(statement("A+ B", 10, 10), events=many())._repr_html_()


@pytest.mark.slow
def test_counts_of_many_digits() -> None:
    """Before: Python refused to write more than 4,300 digits."""
    events = table([row("A", i / 2000, d=1.5) for i in range(15_000)])
    found = hybrid.sql(statement("A+", 10, 10, measures="COUNT(MATCHES) AS n"), events=events)
    assert found.arrow()["n"].to_pylist()[0].startswith("281796")
    assert int(found.df()["n"][0]) == 2**15_000 - 1
    for measure in ("AVG(A.d)", "SUM(A.d)"):  # Before: infinite without a word.
        with pytest.raises(DataError, match="more than a DOUBLE can hold"):
            hybrid.sql(statement("A+", 10, 10, measures=f"{measure} AS a"), events=events)


@pytest.mark.parametrize(
    ("measures", "pattern", "group", "said"),
    [
        ("COUNT(MATCHES) FILTER (WHERE v > 1) AS n", "A+", "g", "with DISTINCT, FILTER"),
        ("COUNT(MATCHES) AS n", "A+ B", "f", "GROUP BY f, which is"),
    ],
)
def test_what_is_refused(measures: str, pattern: str, group: str, said: str) -> None:
    events = table(read_rows("A@1 B@2")).append_column("f", pa.array([[1], [2]]))
    with pytest.raises(QueryError, match=said):
        hybrid.sql(statement(pattern, 10, 10, partition=group, group=group, measures=measures), events=events)


def test_windows_that_overlap_too_often() -> None:
    """Before: numpy failed to make room for them."""
    text = statement("A+", 10, 10).replace("SLIDE 10 SECONDS", "SLIDE 1 MICROSECOND")
    with pytest.raises(QueryError, match=r"HQ221(.|\n)*10,000,000 windows(.|\n)*longer SLIDE"):
        hybrid.sql(text, events=many())


def test_a_column_called_matches_is_quoted() -> None:
    """Before: COUNT(MATCHES) counted its values."""
    events = many().append_column("matches", pa.nulls(203, pa.int64()))
    text = statement("A+ B", 10, 10, measures='COUNT(MATCHES) AS n, COUNT("matches") AS c')
    assert hybrid.sql(text, events=events).arrow().to_pydict()["n"] == [str(MANY), "1"]
    assert hybrid.sql(text, events=events).arrow().to_pydict()["c"] == ["0", "0"]


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
        "group       g", "windows     10 seconds every 5 seconds", "engine      counts of trends by state and window",
        "            1: A -> 1; B -> trend 0", "none: trends are counted, and no run is kept",
    ):  # fmt: skip
        assert line in shown


def test_explain_shows_both_sides_of_and() -> None:
    """Before: an AssertionError."""
    text = "FROM events TYPE BY type PATTERN SEQ(A a, B b) AND C+ c WITHIN 10 SECONDS RETURN COUNT(*)"
    shown = hybrid.sql(text, events=many()).explain()
    for line in ("engine      counts of trends of each side of AND", "1: B -> trend 0", "0 start: C -> 1, trend 0"):
        assert line in shown


@pytest.mark.parametrize("far", [2**63 - 2, -(2**63) + 2])
@pytest.mark.parametrize("measure", ["COUNT(MATCHES)", "MAX(A.s)"])
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_windows_at_the_ends_of_time(far: int, measure: str) -> None:
    """Before: window_end was in the year -290308, and the first time was in no window."""
    times = pa.array([far, 0] if far < 0 else [0, far]).cast(pa.timestamp("us"))
    events = pa.table({"ts": times, "s": ["a", "b"]})
    text = f"SELECT * FROM events MATCH_RECOGNIZE (ORDER BY ts MEASURES {measure} AS n ONE ROW PER WINDOW PATTERN (A+) "
    with pytest.raises(DataError, match=r"no TIMESTAMP|the (first|last) TIMESTAMP(.|\n)*with WHERE"):
        hybrid.sql(text + "WITHIN 10 SECONDS SLIDE 5 SECONDS) AS m", events=events).arrow()


def test_bounds_have_a_zone_if_times_have_one() -> None:
    """Before: TIMESTAMP, which SQL compares with a TIMESTAMPTZ by the session's zone."""
    events = pa.table({"ts": pa.array([1, 2]).cast(pa.timestamp("us", tz="Europe/Zurich"))})
    clauses = "ORDER BY ts MEASURES COUNT(MATCHES) AS n ONE ROW PER WINDOW PATTERN (A+) WITHIN 10 SECONDS"
    found = hybrid.sql(f"SELECT * FROM events MATCH_RECOGNIZE ({clauses}) AS m", events=events).arrow()
    assert [str(t) for t in found.schema.types[:2]] == ["timestamp[us, tz=UTC]"] * 2
    assert found["window_end"].cast(pa.int64()).to_pylist() == [10_000_000]


@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_groups_of_doubles_nan_last_and_zeros_together() -> None:
    """Before: NaN came first. Zeros are shown without a sign, as keys of PARTITION BY are."""
    values = [2.0, float("nan"), None, -0.0, 0.0, float("inf"), -float("nan")]
    events = pa.table({"ts": pa.array(range(7)).cast(pa.timestamp("us")), "d": pa.array(values)})
    text = (
        "SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY d ORDER BY ts GROUP BY d MEASURES COUNT(MATCHES) AS n, "
        "MAX({}) AS s ONE ROW PER WINDOW PATTERN (A+) WITHIN 10 SECONDS) AS m"
    )
    for largest in ("1", "'a'"):  # the second one is enumerated
        found = hybrid.sql(text.format(largest), events=events).arrow()
        assert found["n"].to_pylist() == ["1", "3", "1", "1", "3"]
        assert [str(d) for d in found["d"].to_pylist()] == ["None", "0.0", "2.0", "inf", "nan"]


@pytest.mark.parametrize(
    ("clauses", "hint"),
    [
        ("ONE ROW PER WINDOW MEASURES COUNT(MATCHES) AS n PATTERN (A+)", "or ONE ROW PER WINDOW, TIMEOUT"),
        ("MEASURES COUNT(MATCHES) AS n ONE ROW PER WINDOW PATTERN (A) SLIDE 2 SECONDS", "comes right after WITHIN"),
        ("MEASURES COUNT(MATCHES) AS n PATTERN (A)", "is a measure of ONE ROW PER WINDOW"),
        ("MEASURES window_end AS n ONE ROW PER WINDOW PATTERN (A) WITHIN 2 SECONDS", "in the SELECT around them"),
        ("MEASURES COUNT(MATCHES) AS n ONE ROW PER WINDOW PATTERN (A+) WITHIN 2 SECONDS DEFINE A AS v > PREV(v)",
         r"LAST\(v, 1\) is that of the latter"),
    ],
)  # fmt: skip
def test_hints_for_what_stands_in_the_wrong_place(clauses: str, hint: str) -> None:
    with pytest.raises(QueryError, match=hint):
        hybrid.sql(f"SELECT * FROM events MATCH_RECOGNIZE (ORDER BY ts {clauses}) AS m", events=many())


def test_a_condition_on_the_row_is_in_having() -> None:
    text = "FROM events TYPE BY type PATTERN SEQ(A a, B b) WHERE COUNT(*) > 3 WITHIN 10 SECONDS RETURN COUNT(*)"
    with pytest.raises(QueryError, match="a condition on the row of a window is in HAVING"):
        hybrid.sql(text, events=many())


def test_a_value_of_one_match_is_one_fault() -> None:
    """Before: a second one said that its column is no column of GROUP BY."""
    with pytest.raises(QueryError) as refused:
        hybrid.sql(statement("A+ B", 10, 10, measures="LAST(A.v) AS n"), events=many())
    assert len(refused.value.diagnostics) == 1


def test_rows_of_windows_in_a_table_have_a_history() -> None:
    """An entry of WITH has none. Before, the hint had a name of ours, __hybrid_factor_0."""
    rows = read_rows(" ".join(f"A@{t}" for t in (1, 2, 3, 11, 21, 22, 31, 32, 33, 34, 35, 41)))
    windows = statement("A+", 10, 10, measures="COUNT(MATCHES)::BIGINT AS n")
    rising = (
        "MATCH_RECOGNIZE (ORDER BY window_end MEASURES Y.window_end AS e, Y.n AS n AFTER MATCH SKIP TO NEXT ROW "
        "PATTERN (X Y) DEFINE Y AS n > X.n)"
    )
    joined = (
        f"SELECT m.n, h.n AS before FROM w {rising} AS m "
        "JOIN HISTORY OF w FROM m.e - INTERVAL '40' SECOND TO m.e - INTERVAL '5' SECOND AS h ON h.n > 1 ORDER BY ALL"
    )
    with pytest.raises(QueryError, match=r"HQ200(.|\n)*an entry of WITH has no history: store its rows"):
        hybrid.sql(f"WITH w AS ({windows}) {joined}", events=table(rows))
    w = hybrid.sql(windows, events=table(rows)).arrow()
    assert w["n"].to_pylist() == [7, 1, 3, 31, 1]
    assert hybrid.sql(joined, w=w).arrow().to_pylist() == [
        {"n": 3, "before": 7}, {"n": 31, "before": 3}, {"n": 31, "before": 7}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "history", ["", " AS m JOIN HISTORY OF events FROM m.window_start TO m.window_end {} AS h ON true"]
)
def test_windows_are_compared_with_those_of_the_reference(history: str) -> None:
    """Before: a KeyError."""
    text = statement("A+ B", 10, 5, partition="g", group="g").removesuffix(" AS m")
    pattern = text[text.index("MATCH_RECOGNIZE") :]
    events = table(read_rows("A@1{2,g=x} A@2{3,g=y} B@3{g=x} A@4{g=x} B@6{g=y} B@11{g=x}"))
    count, same = compare_with_reference(text + history.format(pattern), {"events": events})
    assert same
    assert count > 2


def test_a_sum_of_doubles_that_so_many_trends_make_infinite_is_an_error() -> None:
    # Before: AVG was inf, or nan, without a word.
    begin = dt.datetime(2024, 3, 1, 9)
    text = "RETURN AVG(a.v) AS v FROM t TYPE BY s PATTERN SEQ(a+, b) WITHIN 1 HOUR"

    def average(values: list[float]) -> float:
        rows = [{"ts": begin + dt.timedelta(seconds=i), "s": "a", "v": v} for i, v in enumerate(values)]
        return float(hybrid.sql(text, t=[*rows, {**rows[-1], "s": "b"}]).arrow().column("v")[0].as_py())

    assert average([1.5] * 900) == 1.5
    assert average([float("inf")] * 40) == float("inf")
    for values in ([1.5] * 1_020, [1.0, -1.0] * 550):
        with pytest.raises(DataError, match="more than a DOUBLE can hold"):
            average(values)
