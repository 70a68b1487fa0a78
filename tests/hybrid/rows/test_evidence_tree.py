"""Evidence as a tree of layers."""

from __future__ import annotations

import re
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from query.errors import DataError
from tests.hybrid.cli.test_cli import run

VISIT = """visit AS (SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts PATTERN (X Y) SELECTION SKIP TILL NEXT MATCH
    DEFINE X AS what = 'x', Y AS what = 'y'))"""
THEFT = """theft AS (SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts PATTERN (V E) SELECTION SKIP TILL NEXT MATCH
    DEFINE V AS PATTERN visit, E AS what = 'e'))"""
RING = """SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts MEASURES T.t1 AS first, U.t1 AS last PATTERN (T U)
    SELECTION SKIP TILL NEXT MATCH DEFINE T AS PATTERN theft, U AS PATTERN theft)"""
TEXT = f"WITH {VISIT}, {THEFT} {RING}"
SEEN = [{"ts": datetime(2024, 3, 1, 9, 0, i), "what": what, "tag": 7} for i, what in enumerate("xyexye")]
SHOWN = """row 0  2024-03-01 09:00:00 to 2024-03-01 09:00:05
├─ T  2024-03-01 09:00:00 to 2024-03-01 09:00:02
│  ├─ V  2024-03-01 09:00:00 to 2024-03-01 09:00:01
│  │  ├─ X  2024-03-01 09:00:00  what x, tag 7
│  │  └─ Y  2024-03-01 09:00:01  what y, tag 7
│  └─ E  2024-03-01 09:00:02  what e, tag 7
└─ U  2024-03-01 09:00:03 to 2024-03-01 09:00:05
   ├─ V  2024-03-01 09:00:03 to 2024-03-01 09:00:04
   │  ├─ X  2024-03-01 09:00:03  what x, tag 7
   │  └─ Y  2024-03-01 09:00:04  what y, tag 7
   └─ E  2024-03-01 09:00:05  what e, tag 7"""


def test_layers_open_down_to_events() -> None:
    result = hybrid.sql(TEXT, seen=SEEN)
    tree = result.tree()
    assert str(tree) == SHOWN
    assert [part.name for part in tree.parts] == ["T", "U"]
    assert tree.parts[0].parts[0].parts[0].event == {"what": "x", "tag": 7}
    assert tree._repr_html_().count("<details") == 5


def test_a_match_of_one_layer_is_a_tree_too() -> None:
    one = "ORDER BY ts MEASURES count(*) AS n PATTERN (X Y) DEFINE X AS what = 'x', Y AS what = 'y'"
    text = f"SELECT * FROM seen MATCH_RECOGNIZE ({one})"
    assert [part.name for part in hybrid.sql(text, seen=SEEN).tree(1).parts] == ["X", "Y"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ["0", None, 1.0, True, -1, [0]], ids=repr)
def test_what_is_no_number_of_a_row(row: Any) -> None:
    # Before: TypeError: can only concatenate str (not "int") to str.
    with pytest.raises(DataError, match="is no number of a row"):
        hybrid.sql(TEXT, seen=SEEN).tree(row)
    assert str(hybrid.sql(TEXT, seen=SEEN).tree(np.int64(0))) == SHOWN  # type: ignore[arg-type]


GANG = """SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts MEASURES first(t0) AS came, count(*) AS n PATTERN (R S+)
    SELECTION SKIP TILL NEXT MATCH DEFINE R AS PATTERN ring, S AS what LIKE '<%')"""
FOUR = f"WITH {VISIT}, {THEFT}, ring AS ({RING}) {GANG}"
MORE = [*SEEN, {"ts": datetime(2024, 3, 1, 9, 1), "what": "<b>z&\n", "tag": 8}]
FOUR_SHOWN = """row 0  2024-03-01 09:00:00 to 2024-03-01 09:01:00
├─ R  2024-03-01 09:00:00 to 2024-03-01 09:00:05
""" + "\n".join(f"│  {line}" for line in SHOWN.split("\n")[1:]) + """
└─ S  2024-03-01 09:01:00  what <b>z&\\n, tag 8"""


class Outline(HTMLParser):
    """The texts of a tree in HTML, with the number of <details> that each is in; all must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.lines: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("details", "summary", "div")
        self.depth += tag == "details"

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "details"

    def handle_data(self, data: str) -> None:
        self.lines.append((self.depth, data))


@pytest.mark.slow
def test_four_layers_open_down_to_events_in_python_notebooks_and_on_the_command_line(tmp_path: Path) -> None:
    tree = hybrid.sql(FOUR, seen=MORE).tree()
    assert str(tree) == repr(tree) == FOUR_SHOWN
    assert tree.parts[0].parts[0].parts[0].parts[0].event == {"what": "x", "tag": 7}
    page = tree._repr_html_()
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.depth == 0
    drawn = [re.sub("^[│├└─ ]+", "", line) for line in FOUR_SHOWN.split("\n")]
    assert [text for _, text in outline.lines] == drawn
    layers = {text.partition(" ")[0]: depth for depth, text in outline.lines}
    assert layers == {"row": 1, "R": 2, "T": 3, "U": 3, "V": 4, "X": 4, "Y": 4, "E": 3, "S": 1}
    assert "<b>" not in page
    assert len(page) < 3_000
    pq.write_table(pa.Table.from_pylist(MORE), tmp_path / "seen.parquet")
    done = run("sql", FOUR, "-t", f"seen={tmp_path / 'seen.parquet'}", "--tree")
    assert FOUR_SHOWN in done.stdout


def test_a_row_without_evidence() -> None:
    with pytest.raises(DataError, match="there is no row 5: the last one is 0"):
        hybrid.sql(TEXT, seen=SEEN).tree(5)


def test_live_rows_have_the_same_tree() -> None:
    db = hybrid.connect()
    db.create_stream("seen", {"ts": "TIMESTAMP", "what": "VARCHAR", "tag": "BIGINT"}, time="ts")
    with pytest.warns(hybrid.HybridWarning, match="may be kept for ever"):
        alerts = db.watch(TEXT)
    db.push("seen", SEEN)
    assert len(alerts.fetch()) == 1
    assert str(alerts.tree()) == SHOWN
    assert str(db.sql(TEXT).tree()) == SHOWN


@pytest.mark.parametrize(("most", "shown"), [
    (None, ["A", "B 1", "B 2", "B 3", "B 4", "C"]), (4, ["A", "B 1", "B 2", "B 3", "B 4", "C"]),
    (2, ["A", "B 1", "B  ... 2 more", "B 4", "C"]), (1, ["A", "B  ... 3 more", "B 4", "C"]),
])  # fmt: skip
def test_events_of_one_variable_in_a_row_are_counted(most: int | None, shown: list[str]) -> None:
    rows = [{"ts": datetime(2024, 3, 1, 9, 0, i), "v": v} for i, v in enumerate([9, 1, 2, 3, 4, 0])]
    tree = hybrid.sql(
        "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A B+ C) "
        "DEFINE A AS v = 9, B AS v > 0, C AS v = 0)", t=rows,
    ).tree()  # fmt: skip
    lines = tree.text(most).splitlines()[1:]
    assert all(line.startswith("├─ ") for line in lines[:-1])
    assert lines[-1] == "└─ C  2024-03-01 09:00:05  v 0"
    names = [line[3:] if "more" in line else f"{line[3]} {line[-1]}".replace("A 9", "A").replace("C 0", "C")
             for line in lines]  # fmt: skip
    assert names == shown


def test_events_at_the_end_are_counted_too() -> None:
    rows = [{"ts": datetime(2024, 3, 1, 9, 0, i), "v": i} for i in range(5)]
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A+))"
    assert hybrid.sql(text, t=rows).tree().text(2).splitlines()[1:] == [
        "├─ A  2024-03-01 09:00:00  v 0", "├─ A  ... 3 more", "└─ A  2024-03-01 09:00:04  v 4",
    ]  # fmt: skip
