"""What people look at: evidence of the rows, pictures with the series they lie in, tables in notebooks."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import fontManager, get_font

import hybrid
from hybrid.rows.plot import PANELS_MAX
from hybrid.watch.alerts import Alerts
from live.sinks.ndjson import NdjsonSink
from live.sinks.parquet import ParquetSink

START = datetime(2024, 3, 1, 9, 30)
PRICES = {
    "ACME": [10.0, 9.0, 8.0, 9.0, 11.0, 11.0, 10.0, 9.0, 12.0],
    "BOLT": [5.0, 6.0, 7.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.5],
}
TICKS = [
    {"symbol": symbol, "ts": START + timedelta(minutes=i), "price": price}
    for i in range(9)
    for symbol, prices in PRICES.items()
    for price in prices[i : i + 1]
]
VALLEYS = """SELECT * FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts MEASURES LAST(DOWN.price) AS bottom
    PATTERN (START DOWN+ UP+) DEFINE DOWN AS price < PREV(price), UP AS price > PREV(price)) AS m
    WHERE symbol = 'ACME'"""


def test_a_row_shows_the_variables_of_its_match() -> None:
    page = hybrid.sql(VALLEYS, ticks=TICKS)._repr_html_()
    assert "<th>match</th>" in page
    chips = re.findall(r'title="([^"]*)">(\w+(?:×\d+)?)</span>', page)
    assert chips[:3] == [
        ("2024-03-01 09:30:00", "START"),
        ("2024-03-01 09:31:00 to 2024-03-01 09:32:00", "DOWN×2"),
        ("2024-03-01 09:33:00 to 2024-03-01 09:34:00", "UP×2"),
    ]
    assert page.endswith("<p>2 rows</p>")


def test_rows_without_one_origin_are_a_plain_table() -> None:
    text = f"SELECT count(*) AS n, NULL AS nothing, '<b>' AS tag FROM ({VALLEYS}) AS v"
    page = hybrid.sql(text, ticks=TICKS)._repr_html_()
    assert "match</th>" not in page
    assert "<td>2</td>" in page
    assert "NULL</span>" in page
    assert "&lt;b&gt;" in page


def test_no_rows_are_a_table_too() -> None:
    page = hybrid.sql(VALLEYS.replace("'ACME'", "'NONE'"), ticks=TICKS)._repr_html_()
    assert page.endswith("<p>0 rows. The pattern has 2 rows, and the SELECT around it keeps none</p>")


def test_a_long_table_is_cut() -> None:
    rows = [{"i": i} for i in range(50)]
    found = hybrid.sql("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.i AS i PATTERN (A)) AS m", t=rows)
    page = found._repr_html_()
    assert page.count("<tr>") == 21
    assert page.endswith("<p>50 rows, the first 20 shown</p>")


def dots(axes: Axes) -> dict[Any, int]:
    """The number of marks of each variable."""
    return {c.get_label(): len(c.get_offsets()) for c in axes.collections if isinstance(c, PathCollection)}


@pytest.mark.slow
def test_a_picture_has_the_series_around_the_match(tmp_path: Path) -> None:
    (axes,) = hybrid.sql(VALLEYS, ticks=TICKS).plot(path=tmp_path / "match.png").figure.axes
    (line,) = axes.lines
    # the match lasts four minutes, so two more before (there are none) and behind; of its own symbol only
    assert line.get_ydata().tolist() == PRICES["ACME"][:7]
    assert dots(axes) == {"START": 1, "DOWN": 2, "UP": 2}
    assert (tmp_path / "match.png").stat().st_size > 10_000


def test_a_picture_of_all_matches() -> None:
    (axes,) = hybrid.sql(VALLEYS, ticks=TICKS).plot(row=None).figure.axes
    assert dots(axes) == {"START": 2, "DOWN": 4, "UP": 3}
    assert axes.get_title(loc="left") == "ACME, 2 matches, 2024-03-01 09:30:00 to 2024-03-01 09:38:00"


def test_events_without_time_are_drawn_in_their_order() -> None:
    rows = [{"i": i, "v": v} for i, v in enumerate([3, 2, 1, 2, 3])]
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.v AS a PATTERN (A+) DEFINE A AS v < PREV(v)) AS m"
    (axes,) = hybrid.sql(text, t=rows).plot(value="v").figure.axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert line.get_ydata().tolist() == [3, 2, 1, 2, 3]


def test_a_row_that_is_not_there() -> None:
    found = hybrid.sql(VALLEYS, ticks=TICKS)
    with pytest.raises(hybrid.DataError, match="row 7 has no evidence"):
        found.plot(row=7)
    with pytest.raises(hybrid.DataError, match="no column nothing to plot"):
        found.plot(value="nothing")


def test_evidence_names_every_matched_row_with_its_variable() -> None:
    evidence = hybrid.sql(VALLEYS, ticks=TICKS).evidence()
    first = evidence.filter(pc.equal(evidence["row"], 0))
    assert list(zip(first["variable"].to_pylist(), first["price"].to_pylist(), strict=True)) == [
        ("START", 10.0), ("DOWN", 9.0), ("DOWN", 8.0), ("UP", 9.0), ("UP", 11.0),
    ]  # fmt: skip


def test_evidence_that_was_not_kept_is_found_when_it_is_asked_for() -> None:
    # runs of this query carry counts and positions; its rows say nothing of the events in between
    text = """SELECT symbol, n, low FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
        MEASURES count(*) AS n, LAST(B.price) AS low PATTERN (A B+ C) SELECTION SKIP TILL NEXT MATCH
        DEFINE B AS price < A.price AND price <= coalesce(LAST(B.price, 1), price), C AS price > A.price) AS m
        ORDER BY n DESC, symbol LIMIT 3"""
    found = hybrid.sql(text, ticks=TICKS)
    assert "carries" in found.explain("program")
    rows = found.arrow().to_pylist()
    evidence = found.evidence().to_pylist()
    for i, row in enumerate(rows):
        events = [e for e in evidence if e["row"] == i]
        assert len(events) == row["n"] >= 3
        assert [e["price"] for e in events if e["variable"] == "B"][-1] == row["low"]
        assert {e["symbol"] for e in events} == {row["symbol"]}
    with hybrid.connect() as db:
        db.create_stream("ticks", {"symbol": "VARCHAR", "ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts")
        with pytest.warns(hybrid.HybridWarning, match="may be kept for ever"):
            alerts = db.watch(text.partition("ORDER BY n")[0], evidence=True)
        assert "carries" not in alerts.explain("program")  # a live query keeps its evidence
        db.push("ticks", TICKS)
        live = alerts.fetch().to_pylist()
        kept = alerts.evidence().to_pylist()

    def events_of(row: int, listed: list[dict[str, Any]]) -> list[Any]:
        return [(e["variable"], e["event_time"], e["symbol"], e["price"]) for e in listed if e["row"] == row]

    for i, row in enumerate(rows):
        same = [k for k, r in enumerate(live) if (r["symbol"], r["n"], r["low"]) == tuple(row.values())]
        assert events_of(i, evidence) in [events_of(k, kept) for k in same]


IN_A_NOTEBOOK = """
import sys, types
module = types.ModuleType("IPython")
module.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = module  # this is how DuckDB knows a Jupyter kernel; ipywidgets cannot be imported in it
sys.modules["ipywidgets"] = None

from datetime import datetime
import duckdb
try:
    duckdb.connect().execute("SET enable_progress_bar=false")
except duckdb.InvalidInputException:
    print("refused")

import hybrid
with hybrid.connect(sys.argv[1], log=None) as db:
    db.create_stream("t", {"k": "VARCHAR", "ts": "TIMESTAMP", "v": "BIGINT"}, time="ts", key="k")
    db.push("t", [{"k": "a", "ts": datetime(2024, 1, 1, 0, 0, i), "v": v} for i, v in enumerate((3, 1, 2))])
    db.flush()
    query = "SELECT m.v FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES B.v AS v PATTERN (A B) "
    print(db.sql(query + "DEFINE B AS v < PREV(v)) AS m").arrow().to_pylist())
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_notebook_needs_no_ipywidgets(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NOTEBOOK, str(tmp_path / "db")], env={"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "refused\n[{'v': 1}]\n"), done.stderr


def test_a_plot_has_its_key_and_times_as_title() -> None:
    (axes,) = hybrid.sql(VALLEYS, ticks=TICKS).plot().figure.axes
    assert (
        axes.get_title(loc="left") == "ACME, 2024-03-01 09:30:00 to 2024-03-01 09:34:00"
    )  # before: the id of the match
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("event time", "price")  # before: the time had no name


ANY = """SELECT * FROM t MATCH_RECOGNIZE (
    PARTITION BY id ORDER BY ts MEASURES A.v AS v PATTERN (A{2}) DEFINE A AS v > 1) AS m"""


def test_partitions_have_panels_and_a_key_is_no_value() -> None:
    rows = [{"id": i, "ts": START + timedelta(minutes=j), "v": v} for i in range(9) for j, v in enumerate([1, 2, 3, 1])]
    panels = hybrid.sql(ANY, t=rows).plot(row=None).figure.axes
    assert len(panels) == PANELS_MAX  # before: one line through all partitions
    assert [p.get_title(loc="left")[:5] for p in panels] == [f"id {i}," for i in range(PANELS_MAX)]
    assert panels[0].figure.get_supylabel() == "v"  # before: id, the first number
    (line,) = panels[0].get_lines()
    assert list(line.get_ydata()) == [2, 3]


def test_a_match_of_one_event_lies_in_its_series() -> None:
    rows = [{"id": i % 2, "ts": START + timedelta(minutes=i), "v": i} for i in range(100)]
    text = ANY.replace("A{2}", "A").replace("v > 1", "v = 50")
    (axes,) = hybrid.sql(text, t=rows).plot(value="v").figure.axes
    (line,) = axes.get_lines()
    assert list(line.get_ydata()) == list(range(30, 71, 2))  # before: one dot
    assert axes.get_title(loc="left") == "id 0, 2024-03-01 10:20:00"  # before: 0


@pytest.mark.slow
def test_the_same_plot_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        hybrid.sql(VALLEYS, ticks=TICKS).plot(path=tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_pictures_of_texts_and_of_columns_with_nulls() -> None:
    pages, values = ["s", None, "b", "s", "b"], [1, None, 3, 4, None]
    rows = [{"ts": datetime(2024, 3, 1, 0, i), "page": p, "v": v} for i, (p, v) in enumerate(zip(pages, values))]
    text = """SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a PATTERN (A B)
        SELECTION SKIP TILL NEXT MATCH DEFINE A AS page = 's', B AS page = 'b') AS m"""
    found = hybrid.sql(text, t=rows)
    # Before: a line from text to text, a TypeError for null.
    (axes,) = found.plot(row=None, value="page").figure.axes
    (line,) = axes.get_lines()
    assert line.get_linestyle() == "None"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["s", "b", "NULL"]
    (axes,) = found.plot(row=None, value="v").figure.axes
    assert list(axes.get_lines()[0].get_ydata()) == [1, 3, 4]
    # Before: 2024-03-01 to 2024-03-01 00:04:00
    assert axes.get_title(loc="left") == "2 matches, 2024-03-01 00:00:00 to 2024-03-01 00:04:00"


@pytest.mark.slow
def test_arguments_of_pictures_and_tables(tmp_path: Path) -> None:
    found = hybrid.sql(VALLEYS, ticks=TICKS)
    wrong: Any = "match.png"
    # Before: a TypeError, `no match to plot`, errors of matplotlib and the file system, `the first -1 shown`.
    with pytest.raises(hybrid.DataError, match=r"no number of a row\nhint: name the file: plot\(path='match\.png'\)"):
        found.plot(wrong)
    with pytest.raises(hybrid.DataError, match="-1 is no number of a row"):
        found.plot(-1)
    for name in ("none/match.png", "match.xyz"):
        with pytest.raises(hybrid.DataError, match="cannot be written"):
            found.plot(path=tmp_path / name)
    for rows in (-1, True, "3"):
        with pytest.raises(hybrid.DataError, match="no number of rows"):
            found.show(rows)  # type: ignore[arg-type]


def test_a_table_of_wide_letters_lines_and_zones() -> None:
    frame = pd.DataFrame({"k": ["日本", "a\nb"], "ts": pd.date_range("2024-03-01", periods=2, tz="Europe/Berlin")})
    found = hybrid.sql("SELECT k, ts, 1 AS n FROM frame")
    # Before: columns that did not align, a row on two lines, and times in UTC, other than in found.df().
    assert str(found).splitlines() == [
        "k     ts                         n",
        "----  -------------------------  -",
        "日本  2024-03-01 00:00:00+01:00  1",
        "a\\nb  2024-03-02 00:00:00+01:00  1",
        "2 rows",
    ]
    assert "2024-03-01 00:00:00+01:00" in found._repr_html_()
    assert frame["ts"].tolist() == found.df()["ts"].tolist()
    for offset, shown in ((timedelta(hours=5, minutes=30), "+05:30"), (timedelta(0), "+00:00")):
        moment = datetime(2024, 3, 1, tzinfo=timezone(offset))
        frame = pd.DataFrame({"ts": [moment]})
        assert f"2024-03-01 00:00:00{shown}" in str(hybrid.sql("SELECT * FROM frame"))


def test_columns_and_one_row_after_the_other() -> None:
    result = hybrid.sql("SELECT range AS i, range * 0.5 AS half FROM range(2)")
    # Before: AttributeError for both.
    assert result.columns == ["i", "half"]
    assert [result.fetchone() for _ in range(4)] == [(0, 0.0), (1, 0.5), None, None]
    assert result.fetchall() == [(0, 0.0), (1, 0.5)]


def test_a_pickle_has_the_rows_and_the_evidence_that_was_read() -> None:
    result = hybrid.sql(VALLEYS, ticks=TICKS)
    # Before: AttributeError, a local object cannot be pickled.
    bare = pickle.loads(pickle.dumps(result))
    assert bare.fetchall() == result.fetchall()
    assert bare.df().equals(result.df())
    assert bare._repr_html_().endswith("<p>2 rows</p>")
    for ask in (bare.evidence, bare.tree, bare.plot, copy.deepcopy(bare).evidence):
        with pytest.raises(hybrid.DataError, match="a pickled result has no evidence"):
            ask()
    with pytest.raises(hybrid.DataError, match=r"a pickled result has no explain\(\)"):
        bare.explain()
    assert result.evidence().num_rows > 0
    whole = pickle.loads(pickle.dumps(result))
    assert whole.evidence().equals(result.evidence())
    assert str(whole.tree()) == str(result.tree())
    assert whole._repr_html_() == result._repr_html_()
    assert whole.plot() is not None
    assert copy.deepcopy(result).evidence().equals(copy.copy(result).evidence())


BERLIN = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES LAST(D.price) AS low
    PATTERN (A D+ U) DEFINE D AS price < PREV(price), U AS price > PREV(price))"""


def in_berlin(symbol: str = "ACME") -> pd.DataFrame:
    """Six hours around the change to summer time, which has no 2 o'clock."""
    hours = pd.date_range("2024-03-31 00:00", periods=6, freq="h", tz="Europe/Berlin")
    return pd.DataFrame({"ts": hours, "symbol": symbol, "price": [5, 4, 3, 4, 5, 6]})


@pytest.mark.slow
def test_evidence_and_pictures_are_in_the_time_zone_of_the_frame() -> None:
    result = hybrid.sql(BERLIN, ticks=in_berlin())
    # Before: UTC, without a zone; and the tree had the time twice.
    assert [str(at) for at in result.evidence()["event_time"].to_pylist()] == [
        "2024-03-31 00:00:00+01:00", "2024-03-31 01:00:00+01:00", "2024-03-31 03:00:00+02:00",
        "2024-03-31 04:00:00+02:00",
    ]  # fmt: skip
    assert str(result.tree()).splitlines()[1] == "├─ A  2024-03-31 00:00:00+01:00  symbol ACME, price 5"
    figure = result.plot().figure
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "ACME, 2024-03-31 00:00:00 to 2024-03-31 04:00:00"
    assert axes.get_xlabel() == "event time, Europe/Berlin"
    at = [x for c in axes.collections if isinstance(c, PathCollection) for x, _ in c.get_offsets()]
    assert [round(24 * (x - min(at))) for x in at] == [0, 1, 3, 4]
    (line,) = axes.lines
    assert [round(24 * (x - min(at))) for x in line.get_xdata()] == [0, 1, 3, 4, 5]
    naive = hybrid.sql(BERLIN, ticks=in_berlin().assign(ts=lambda frame: frame["ts"].dt.tz_localize(None)))
    assert naive.evidence().schema.field("event_time").type.tz is None
    assert naive.plot().figure.axes[0].get_xlabel() == "event time"


@pytest.mark.slow
def test_letters_that_no_font_has_are_drawn_as_their_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [f for f in fontManager.ttflist if f.name.startswith(("DejaVu", "Last"))]
    monkeypatch.setattr(fontManager, "ttflist", few)
    odd = in_berlin("茅🚀").assign(page=["a$b", "$", "中", "é", "x\ny", "{$"])
    result = hybrid.sql(BERLIN, ticks=odd)
    # Before: warnings of matplotlib, which are errors here, and boxes; `$` began a formula.
    figure = result.plot(None, value="page", path=tmp_path / "odd.png").figure
    (axes,) = figure.axes
    assert axes.get_title(loc="left").startswith("\\u8305\\U0001f680, ")
    assert [t.get_text() for t in axes.get_yticklabels()] == [r"a\$b", r"\$", r"\u4e2d", "é", r"x\ny"]


@pytest.mark.slow
def test_letters_that_another_font_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, other = (next(f for f in fontManager.ttflist if f.name == name) for name in ("DejaVu Sans", "STIXGeneral"))
    usual = get_font(fontManager.findfont("DejaVu Sans")).get_charmap()
    monkeypatch.setattr(fontManager, "ttflist", [first, other])
    letters = sorted(get_font(other.fname).get_charmap(), reverse=True)
    only_there = next(chr(c) for c in letters if c not in usual and chr(c).isprintable())
    figure = hybrid.sql(BERLIN, ticks=in_berlin(only_there)).plot(path=tmp_path / "letter.png").figure
    assert figure.axes[0].get_title(loc="left").startswith(only_there)
    assert "STIXGeneral" in figure.axes[0].title.get_fontfamily()


def test_values_and_names_have_no_control_characters_where_people_read() -> None:
    # Before: ESC in a value coloured the terminal, and a name with a line break broke the table.
    data = pa.table({"ts": [1, 2], "a\nb": ["x\x1b[31m", "y\u202e"]})
    text = """SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A."a
b" AS "a
b" PATTERN (A) DEFINE A AS ts > 0) AS m"""
    found = hybrid.sql(text, t=data)
    for shown in (str(found), found._repr_html_(), str(found.tree())):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert r"a\nb" in shown
    assert found.arrow()["a\nb"].to_pylist() == ["x\x1b[31m", "y\u202e"]


def watched(evidence: bool = False) -> Alerts:
    """Alerts of a stream in which ACME falls and rises, with a row to fetch."""
    db = hybrid.connect()
    db.create_stream("ticks", {"symbol": "VARCHAR", "ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts", key="symbol")
    alerts = db.watch(VALLEYS.replace("UP+", "UP").replace("AS bottom", "AS bottom, UP.ts AS at"), evidence=evidence)
    db.push("ticks", TICKS)
    return alerts


def test_fetched_rows_and_evidence_are_shown_as_tables() -> None:
    alerts = watched()
    rows = alerts.fetch()
    # Before: `pyarrow.Table`, the types, `----`, and chunks in brackets.
    assert repr(rows).splitlines()[:3] == [
        "symbol  bottom  at", "------  ------  -------------------", "ACME       8.0  2024-03-01 09:33:00",
    ]  # fmt: skip
    assert str(rows).endswith(f"{rows.num_rows} rows")
    assert rows._repr_html_().startswith("<table><thead><tr><th>symbol</th>")
    for events in (alerts.evidence(), hybrid.sql(VALLEYS, ticks=TICKS).evidence()):
        assert str(events).splitlines()[0].split()[:4] == ["row", "match_id", "join_id", "side"]
        assert "<td>START</td>" in events._repr_html_()


def test_rows_that_are_shown_are_an_arrow_table_all_the_same() -> None:
    rows = watched().fetch()
    plain = rows.arrow()
    assert type(plain) is pa.Table
    assert rows.to_pylist() == plain.to_pylist() != []
    assert (rows.num_rows, len(rows), rows.column_names, rows.schema) == (
        plain.num_rows, plain.num_rows, plain.column_names, plain.schema
    )  # fmt: skip
    assert rows["bottom"].to_pylist() == rows.column("bottom").to_pylist()
    assert rows.select(["bottom"]).to_pandas().equals(plain.select(["bottom"]).to_pandas())
    assert rows.filter(pc.equal(rows["symbol"], "ACME")).num_rows == rows.num_rows
    assert rows == plain
    assert plain == rows
    assert rows.equals(plain)
    assert rows.equals(rows)
    assert rows != plain.slice(1)
    assert [column.to_pylist() for column in rows] == [column.to_pylist() for column in plain.columns]
    assert pa.table(rows).equals(plain)
    assert pl.DataFrame(rows).equals(rows.pl())
    assert rows.df().equals(plain.to_pandas())
    assert duckdb.sql("SELECT count(*) FROM rows").fetchall() == [(plain.num_rows,)]
    assert hybrid.sql("SELECT * FROM rows").arrow().equals(plain)
    assert pickle.loads(pickle.dumps(rows)).equals(copy.deepcopy(rows))
    assert "to_pylist" in dir(rows)
    assert "show" in dir(rows)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rows.nothing  # noqa: B018


def test_fetched_rows_go_on_to_a_stream_and_to_files(tmp_path: Path) -> None:
    rows = watched().fetch()
    with hybrid.connect() as db:
        db.create_stream("low", {"symbol": "VARCHAR", "bottom": "DOUBLE", "at": "TIMESTAMP"}, time="at")
        assert db.push("low", rows) == rows.num_rows
    rows = watched(evidence=True).fetch()
    for sink in (ParquetSink(tmp_path / "parquet"), NdjsonSink(tmp_path / "rows.ndjson")):
        sink.check(rows.schema)
        sink.open(None)
        sink.write(rows)
        sink.close()
    assert len((tmp_path / "rows.ndjson").read_text().splitlines()) == rows.num_rows


def test_plans_and_explain_are_shown_as_print_does() -> None:
    plan = hybrid.plan(VALLEYS, {"ticks": {"symbol": "VARCHAR", "ts": "TIMESTAMP", "price": "DOUBLE"}})
    result = hybrid.sql(VALLEYS, ticks=TICKS)
    with hybrid.connect() as db:
        db.create_stream("ticks", {"symbol": "VARCHAR", "ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts")
        explained = db.explain(VALLEYS, "plan")
    # Before: QueryPlan(text='SELECT ...', select_sql=..., one line of 4,000 letters; and a text with \\n in it.
    for shown in (plan, plan.factors[0], plan.factors[0].plan, result.explain("plan"), explained):
        assert repr(shown) == str(shown)
        assert "\npattern     START DOWN+ UP+\n" in repr(shown)
    assert type(str(explained)) is str
