"""Pictures of matches: which keys, how much around, lines, points and timelines, the waits of absences."""

from __future__ import annotations

import gc
import sys
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.dates import date2num
from matplotlib.figure import Figure

import hybrid
from hybrid.rows.picture import Picture

START = datetime(2024, 3, 1, 9)
DOWN = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES LAST(D.price) AS low
    PATTERN (A D+) DEFINE D AS price < PREV(price))"""
CLICKS = [
    ("ann", 0, "search"), ("bob", 1, "search"), ("ann", 2, "product"), ("ann", 4, "cart"), ("bob", 5, "product"),
    ("ann", 9, "buy"), ("bob", 10, "cart"), ("cid", 20, "search"), ("bob", 105, "search"),
]  # fmt: skip
FUNNEL = """SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY who ORDER BY ts MEASURES S.ts AS searched
    PATTERN (S P C) SELECTION SKIP TILL NEXT MATCH
    DEFINE S AS page = 'search', P AS page = 'product', C AS page = 'cart')"""
LEFT = """SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY who ORDER BY ts MEASURES C.ts AS left_in_cart
    PATTERN (C NOT B) WITHIN INTERVAL 1 HOUR SELECTION SKIP TILL NEXT MATCH
    DEFINE C AS page = 'cart', B AS page = 'buy')"""


def minute(n: float) -> datetime:
    return START + timedelta(minutes=n)


def falls(**of: list[float]) -> hybrid.Result:
    """The falls of symbols, each with a price a minute."""
    ticks = [{"symbol": s, "ts": minute(i), "price": p} for s, prices in of.items() for i, p in enumerate(prices)]
    return hybrid.sql(DOWN, ticks=ticks)


def clicks(text: str) -> hybrid.Result:
    # an amount that no condition reads: it orders nothing
    rows = [{"who": w, "ts": minute(m), "page": p, "amount": 3 * m % 7} for w, m, p in CLICKS]
    return hybrid.sql(text, clicks=rows)


def titles(picture: Picture) -> list[str]:
    return [axes.get_title(loc="left") for axes in picture.figure.axes]


def lanes(picture: Picture) -> list[str]:
    (axes,) = picture.figure.axes
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(picture: Picture) -> list[str]:
    (found,) = picture.figure.legends
    return [text.get_text() for text in found.get_texts()]


def bars(axes: Any, label: str, picture: Picture) -> list[tuple[int, int, float]]:
    """The bars that the legend calls so: begin and end in minutes, and the middle of the lane."""
    look = dict(zip(legend(picture), picture.figure.legends[0].legend_handles))[label]
    found = [c for c in axes.collections if isinstance(c, PolyCollection) and c.get_hatch() == look.get_hatch()]
    paths = [path.get_extents() for c in found for path in c.get_paths()]
    begin = date2num(START)
    return [(round((p.x0 - begin) * 1440), round((p.x1 - begin) * 1440), round((p.y0 + p.y1) / 2, 6)) for p in paths]


def marks(axes: Any) -> list[tuple[str, list[tuple[int, float]]]]:
    """The marks of each variable in each lane: minute and height."""
    return [
        (c.get_label(), [(round((x - date2num(START)) * 1440), y) for x, y in c.get_offsets()])
        for c in axes.collections if isinstance(c, PathCollection)
    ]  # fmt: skip


MANY = {f"s{i}": [3.0, 2.0, 4.0, 3.0] if i in (7, 9) else [3.0, 2.0] for i in range(10)}


@pytest.mark.slow
def test_keys_with_most_matches_are_drawn_on_one_axis_with_one_legend() -> None:
    picture = falls(**MANY).plot(None)
    # Before: those with most events, in the order of the rows, each with its own legend, and no word of the others.
    assert titles(picture) == [
        "s7, 2 matches", "s9, 2 matches", "s0, 1 match", "s1, 1 match", "s2, 1 match", "s3, 1 match",
    ]  # fmt: skip
    assert picture.figure.get_suptitle() == "6 of 10 keys with matches, those with most matches"
    assert legend(picture) == ["A", "D", "match"]
    assert [axes.get_legend() for axes in picture.figure.axes] == [None] * 6
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in picture.figure.axes}) == 1


@pytest.mark.slow
def test_keys_are_chosen_by_name() -> None:
    found = falls(**MANY)
    picture = found.plot(keys=["s9", "s3"])
    assert titles(picture) == ["s9, 2 matches", "s3, 1 match"]
    assert picture.figure.get_suptitle() == "2 of 10 keys with matches"
    assert titles(found.plot(keys="s3")) == ["s3, 2024-03-01 09:00:00 to 2024-03-01 09:01:00"]
    with pytest.raises(hybrid.DataError, match=r"the key s10\nhint: keys with matches: s7, s9, s0, .*, \.\.\. 2 more"):
        found.plot(keys=["s3", "s10"])
    with pytest.raises(hybrid.DataError, match="0 keys to plot"):
        found.plot(keys=[])
    with pytest.raises(hybrid.DataError, match="row 2 has one key"):
        found.plot(2, keys="s3")
    ticks = [{"ts": minute(i), "price": 3.0 - i} for i in range(2)]
    with pytest.raises(hybrid.DataError, match="no keys: the statement has no PARTITION BY"):
        hybrid.sql(DOWN.replace("PARTITION BY symbol", ""), ticks=ticks).plot(keys="s3")


def test_keys_of_two_columns_dates_and_nulls() -> None:
    days = [date(2024, 3, 1), None]
    ticks = [
        {"symbol": s, "day": d, "ts": minute(i), "price": 9.0 - i} for s in ("a", "b") for d in days for i in range(2)
    ]
    found = hybrid.sql(DOWN.replace("BY symbol", "BY symbol, day"), ticks=ticks)
    asked = [("b", None), ("a", date(2024, 3, 1))]
    assert titles(found.plot(keys=asked)) == ["b, day NULL, 1 match", "a, day 2024-03-01, 1 match"]
    with pytest.raises(hybrid.DataError, match=r"a key has 2 values, of symbol, day\n.*\(a, 2024-03-01\)"):
        found.plot(keys="a")


@pytest.mark.parametrize(
    ("around", "prices"),
    [
        (0, [5, 4, 3]), (1, [6, 5, 4, 3, 4]), (10, [8, 7, 6, 5, 4, 3, 4, 5, 6]), ("2 minutes", [7, 6, 5, 4, 3, 4, 5]),
        (timedelta(minutes=1), [6, 5, 4, 3, 4]), (None, [6, 5, 4, 3, 4]),
    ],
)  # fmt: skip
def test_around_is_a_duration_or_a_number_of_rows(around: Any, prices: list[float]) -> None:
    ticks = [{"symbol": "a", "ts": minute(i), "price": p} for i, p in enumerate([8, 7, 6, 5, 4, 3, 4, 5, 6])]
    text = DOWN.replace("(A D+)", "(A D D)").replace("DEFINE", "DEFINE A AS price = 5,")
    (axes,) = hybrid.sql(text, ticks=ticks).plot(around=around).figure.axes
    assert list(axes.lines[0].get_ydata()) == prices


def test_arguments_that_name_what_is_not_there() -> None:
    found = clicks(FUNNEL)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kind": "pie"}, "'pie' is no kind of plot\nhint: kind= is one of line, points, timeline"),
        ({"value": "nix"}, "no column nix to plot\nhint: set value= to one of who, ts, page, amount"),
        ({"around": "3 fortnights"}, "around is '3 fortnights', not a duration\nhint: around= is a duration"),
        ({"around": -1}, "around is -1, not a duration"),
        ({"kind": "line", "value": "page"}, "kind='line' draws a column of numbers, and the numbers are amount"),
    ]
    for arguments, said in wrong:
        with pytest.raises(hybrid.DataError) as raised:
            found.plot(**arguments)
        assert str(raised.value).startswith(said)


def test_a_funnel_is_a_timeline_with_a_lane_for_each_key() -> None:
    picture = clicks(FUNNEL).plot(None)
    (axes,) = picture.figure.axes
    # Before: the amounts, joined by a line.
    assert lanes(picture) == ["ann, 1 match", "bob, 1 match"]
    assert [found for name, found in marks(axes) if name == "S"] == [[(0, 0)], [(1, 1)]]
    assert bars(axes, "match", picture) == [(0, 4, 0), (1, 10, 1)]
    assert legend(picture) == ["S", "P", "C", "match", "other events"]


def test_a_timeline_of_one_key_has_a_lane_for_each_variable() -> None:
    picture = clicks(FUNNEL).plot(around="10 minutes")
    (axes,) = picture.figure.axes
    assert lanes(picture) == ["match", "S: search", "P: product", "C: cart", "other events"]
    assert marks(axes) == [("S", [(0, 1)]), ("P", [(2, 2)]), ("C", [(4, 3)]), ("other events", [(9, 4)])]
    assert titles(picture) == ["ann, 2024-03-01 09:00:00 to 2024-03-01 09:04:00"]
    assert bars(axes, "match", picture) == [(0, 4, 0)]


@pytest.mark.slow
def test_the_wait_of_an_absence_is_hatched_until_within_ends() -> None:
    picture = clicks(LEFT).plot()
    (axes,) = picture.figure.axes
    assert lanes(picture)[:2] == ["match", "C: cart"]
    assert bars(axes, "no B", picture) == [(10, 70, 0)]  # bob's cart of 09:10
    # a wait before the first event: nobody searched in the hour up to the cart
    text = LEFT.replace("(C NOT B)", "(NOT B P C)").replace("DEFINE", "DEFINE P AS page = 'product',")
    picture = clicks(text).plot(keys="bob")
    assert bars(picture.figure.axes[0], "no B", picture) == [(10 - 60, 5, 0)]
    # and over a line
    picture = clicks(LEFT).plot(value="amount")
    assert legend(picture) == ["C", "no B"]


@pytest.mark.slow
def test_the_kind_follows_what_conditions_read() -> None:
    rows = [{"ts": minute(i), "id": i % 2, "price": 5.0 - i} for i in range(3)]

    def drawn(define: str, **arguments: Any) -> str:
        text = f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a PATTERN (A B) {define})"
        (axes,) = hybrid.sql(text, t=rows).plot(around=0, **arguments).figure.axes
        return str(axes.get_ylabel() or [label.get_text() for label in axes.get_yticklabels()])

    assert drawn("DEFINE B AS price < PREV(price)") == "price"
    assert drawn("DEFINE B AS id > PREV(id)") == "id"  # before: price, by its name
    assert drawn("DEFINE B AS id = 1") == "['match', 'A', 'B']"  # an identity is no size
    assert drawn("DEFINE B AS ts > PREV(ts)") == "['match', 'A', 'B']"
    assert drawn("") == "price"
    assert drawn("DEFINE B AS id = 1", kind="points") == "price"
    assert drawn("DEFINE B AS price < PREV(price)", kind="timeline") == "['match', 'A', 'B']"


@pytest.mark.slow
def test_large_numbers_names_and_many_categories_stay_readable() -> None:
    pages = [f"https://example.org/a/long/path/that/goes/on/{i}" for i in range(40)]
    rows = [{"ts": minute(i), "page": p, "v": 1e8 * i} for i, p in enumerate(pages)]
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a PATTERN (A B+) DEFINE B AS v > PREV(v))"
    found = hybrid.sql(text, t=rows)
    (axes,) = found.plot(value="page").figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:2] == ["https://example.org…oes/on/0", "https://example.org…oes/on/3"]
    assert len(labels) <= 15
    picture = found.plot()
    picture.figure.canvas.draw()
    assert "1G" in [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]  # before: 1e9 in a corner


@pytest.mark.slow
def test_a_picture_is_shown_by_a_notebook_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = falls(a=[3.0, 2.0, 4.0, 3.0])
    picture = found.plot(path=tmp_path / "one.png")
    shown, size = picture._repr_png_()  # before: <Figure size 1100x500 with 1 Axes>, without a magic line
    assert shown.startswith(b"\x89PNG")
    assert size["width"] == 880
    assert repr(picture) == "<picture of 1 panel: a notebook shows it, .save(path) writes it>"
    assert picture.save(tmp_path / "two.svg") is picture
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.svg"]
    assert isinstance(picture.figure, Figure)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
    gc.collect()
    before = sum(isinstance(o, Figure) for o in gc.get_objects())
    for _ in range(3):
        found.plot()
    gc.collect()
    assert sum(isinstance(o, Figure) for o in gc.get_objects()) <= before


@pytest.mark.slow
def test_alerts_have_the_rows_around_too() -> None:
    with hybrid.connect() as db:
        db.create_stream("ticks", {"symbol": "VARCHAR", "ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts", key="symbol")
        alerts = db.watch(DOWN.replace("(A D+)", "(A D D)"))
        db.push("ticks", [{"symbol": "a", "ts": minute(i), "price": p} for i, p in enumerate([7, 8, 6, 5, 9.0])])
        db.push("ticks", [{"symbol": "b", "ts": minute(5), "price": 1.0}])
        assert alerts.fetch().num_rows == 1
        (axes,) = alerts.plot(around=1).figure.axes
        # Before: the three matched prices.
        assert list(axes.lines[0].get_ydata()) == [7, 8, 6, 5, 9]
        assert titles(alerts.plot(keys=["a"])) == ["a, 2024-03-01 09:01:00 to 2024-03-01 09:03:00"]


@pytest.mark.slow
def test_history_of_the_same_stream_lies_on_the_line() -> None:
    with hybrid.connect() as db:
        db.create_stream("ticks", {"symbol": "VARCHAR", "ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts", key="symbol")
        prices = [5.0, 4, 6, 6, 6, 6, 9, 8, 7]
        db.push("ticks", [{"symbol": "a", "ts": minute(i), "price": p} for i, p in enumerate(prices)])
        text = """SELECT pl.low FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
            MEASURES A.ts AS began, C.price AS low PATTERN (A B C)
            DEFINE B AS price < PREV(price), C AS price < PREV(price)) AS pl
            JOIN HISTORY OF ticks BETWEEN pl.began - INTERVAL 1 DAY AND pl.began
            MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES V.price AS bottom
            PATTERN (S V) DEFINE V AS price < PREV(price)) AS pa ON pl.symbol = pa.symbol"""
        picture = db.backtest(text, START).plot(around=0)
    (axes,) = picture.figure.axes
    assert list(axes.lines[0].get_ydata()) == prices  # before: the three of the match, and marks in the air
    assert legend(picture)[-2:] == ["live: match", "history: match"]
    assert all(low <= high for low, high in pairwise(axes.lines[0].get_xdata()))
