"""A result without rows says how many rows met each condition, and how far the longest attempt came."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest

import hybrid
from hybrid.cli import main

#: search at 8, 9 and 13, pay at 11: no buy at all
KINDS = ("search", "search", "see", "pay", "see", "search", "see", "see", "see")
CLICKS = [{"ts": datetime(2024, 3, 1, 8) + timedelta(hours=i), "page": page, "n": i} for i, page in enumerate(KINDS)]
BOUGHT = """SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES S.ts AS at PATTERN (S P B)
    WITHIN INTERVAL 2 HOUR SELECTION SKIP TILL NEXT MATCH
    DEFINE S AS page = 'search', P AS page = 'pay', B AS page = 'buy') AS m"""
SAID = (
    "Conditions alone: S 3 of 9 rows, P 1 of 9 rows, B 0 of 9 rows (never true); "
    "longest attempt: S P, then no B within 2:00:00"
)


def why(inside: str, rows: list[dict[str, object]] | None = None, outer: str = "") -> str:
    text = f"SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n {inside}) AS m {outer}"
    return hybrid.sql(text, clicks=CLICKS if rows is None else rows).why_empty()


def test_it_is_shown() -> None:
    # Before: "0 rows".
    result = hybrid.sql(BOUGHT, clicks=CLICKS)
    assert repr(result) == f"at\n--\n0 rows. {SAID}"
    assert f"<p>0 rows. {SAID}</p>" in result._repr_html_()
    assert result.why_empty() == SAID
    assert hybrid.sql(BOUGHT.replace("buy", "see").replace("2 HOUR", "3 HOUR"), clicks=CLICKS).why_empty() == ""


@pytest.mark.parametrize(("inside", "line"), [
    ("PATTERN (S B) DEFINE S AS page = 'search', B AS n > 9 * S.n AND page = 'pay'",
     "Conditions alone: S 3 of 9 rows, B 0 of 3 rows tried (never true); longest attempt: S, then no B"),
    ("PATTERN (S{2} W{3}) WITHIN 4 ROWS DEFINE S AS page = 'search'",
     "Conditions alone: S 3 of 9 rows; longest attempt: S{2} W{2}, then no W within 4 rows"),
    ("PATTERN (S NOT T) WITHIN INTERVAL 9 HOUR DEFINE S AS page = 'pay', T AS page = 'search'",
     "Conditions alone: S 1 of 9 rows, T 3 of 9 rows; longest attempt: S, but T occurs"),
    ("PATTERN (B S) DEFINE B AS page = 'buy'", "Conditions alone: B 0 of 9 rows (never true); no attempt: no row is B"),
])  # fmt: skip
def test_what_it_says(inside: str, line: str) -> None:
    assert why(inside) == line


def test_rows_that_the_select_leaves_out() -> None:
    pattern = "AFTER MATCH SKIP PAST LAST ROW PATTERN (S) DEFINE S AS page = 'search'"
    assert why(pattern, outer="WHERE n > 7") == "The pattern has 3 rows, and the SELECT around it keeps none"


def test_matches_that_the_history_leaves_out() -> None:
    text = """SELECT m.at FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES S.ts AS at PATTERN (S)
        DEFINE S AS page = 'search') AS m JOIN HISTORY OF clicks FROM m.at - INTERVAL 1 DAY TO m.at AS h
        ON h.page = 'buy'"""
    said = "The pattern has 3 matches, and the joined history keeps none"
    assert hybrid.sql(text, clicks=CLICKS).why_empty() == said


def test_an_input_without_rows() -> None:
    with hybrid.connect() as db:
        db.create_stream("clicks", {"ts": "TIMESTAMP", "page": "VARCHAR", "n": "BIGINT"}, time="ts")
        for result in (db.sql(BOUGHT), db.backtest(BOUGHT, 0), db.sql(BOUGHT, as_live=True)):
            assert result.why_empty() == "clicks has no rows"
        db.push("clicks", CLICKS)
        for result in (db.sql(BOUGHT), db.backtest(BOUGHT, 0)):
            assert result.why_empty() == SAID


def test_a_large_input_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid.statement.zero_rows.ROWS_MAX", 4)
    assert hybrid.sql(BOUGHT, clicks=CLICKS).why_empty() == (
        "The first 4 of 9 rows; conditions alone: S 2 of 4 rows, P 1 of 4 rows, B 0 of 4 rows (never true); "
        "longest attempt: S P, then no B within 2:00:00"
    )
    monkeypatch.setattr("hybrid.statement.zero_rows.SECONDS_MAX", -1.0)  # no time at all
    assert hybrid.sql(BOUGHT, clicks=CLICKS).why_empty().startswith("The first 0 of 9 rows; no attempt")


def test_it_leaves_the_connection_of_the_user_alone() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE clicks AS SELECT TIMESTAMP '2024-03-01' AS ts, 'search' AS page, 1 AS n")
    result = hybrid.sql(BOUGHT, connection)
    pending = connection.execute("SELECT * FROM range(3)")
    assert result.why_empty().endswith("longest attempt: S, then no P within 2:00:00")
    assert pending.fetchall() == [(0,), (1,), (2,)]
    result = hybrid.sql(BOUGHT, connection)
    connection.close()
    assert repr(result).startswith("at\n--\n0 rows. Conditions alone")


@pytest.mark.parametrize("inside", [
    "COUNT(MATCHES) AS m ONE ROW PER WINDOW PATTERN (S B) WITHIN INTERVAL 2 HOUR",
    "S.ts AS m PATTERN (^ S B $)",
    "S.ts AS m PATTERN (PERMUTE(S, B))",
    "S.ts AS m PATTERN (S {- X* -} B) SELECTION SKIP TILL ANY MATCH",
])  # fmt: skip
def test_every_kind_of_pattern_is_shown(inside: str) -> None:
    text = f"""SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES {inside}
        DEFINE S AS page = 'search', B AS regexp_matches(page, 'bu')) AS m WHERE m IS NOT NULL"""
    assert "\n0 rows" in repr(hybrid.sql(text, clicks=CLICKS))


def test_a_row_that_is_not_there_has_no_tree() -> None:
    # Before: "row 0 has no evidence on the side pl".
    with pytest.raises(hybrid.DataError, match=r"^there are no rows\nhint: Conditions alone: S 3"):
        hybrid.sql(BOUGHT, clicks=CLICKS).tree()
    three = hybrid.sql(
        "SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES S.ts AS at PATTERN (S) "
        "DEFINE S AS page = 'search')", clicks=CLICKS,
    )  # fmt: skip
    with pytest.raises(hybrid.DataError, match=r"^there is no row 3: the last one is 2"):
        three.tree(3)
    with pytest.raises(hybrid.DataError, match=r"^row 1 has no events of the history"):
        three.tree(1, side="pa")
    with pytest.raises(hybrid.DataError, match=r"^there is no side 'live'"):
        three.tree(1, side="live")
    assert hybrid.sql(BOUGHT, clicks=CLICKS).evidence().num_rows == 0


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{row['ts']},{row['page']},{row['n']}\n" for row in CLICKS]
    (tmp_path / "clicks.csv").write_text("ts,page,n\n" + "".join(lines))
    monkeypatch.setattr("sys.argv", ["hybrid", "sql", BOUGHT, "-t", f"clicks={tmp_path / 'clicks.csv'}"])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    shown = capsys.readouterr()
    assert shown.out == "at\n--\n0 rows\n"
    assert shown.err == f"no rows. {SAID}\n"
