"""Rows of windows are the same wherever they are asked for: live, over the archive, in a backtest, over a table, and as
a stream with a history of its own. tests/archive/spark/test_search.py adds Spark."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import hybrid
from query.errors import QueryError
from tests.events import batch_of
from tests.properties.comparing import drawn_until, fewer
from tests.trends import EVENTS, PATTERNS, SECOND, SELECTIONS, Row, plan_of, rows, statement

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
COLUMNS = {f.name: f.type for f in EVENTS.fields}
MEASURES = "COUNT(MATCHES)::BIGINT AS n, SUM(A.d) AS sd, AVG(h) AS ah, MIN(v) AS lo, MAX(A.d) AS hi"
CONDITIONS = ("", "", "A: count(A.*) = 1 OR v >= LAST(A.v, 1)", "B: g >= LAST(g, 1)")
#: A window asks for earlier ones with more trends.
AMONG = (
    "SELECT pl.*, h.window_end AS before, h.n AS more FROM windows MATCH_RECOGNIZE (ORDER BY window_end "
    "MEASURES W.window_end AS at, W.n AS n AFTER MATCH SKIP TO NEXT ROW PATTERN (W)) AS pl "
    "JOIN HISTORY OF windows FROM pl.at - INTERVAL '8' SECOND TO pl.at AS h ON h.n > pl.n"
)


def table(events: list[Row]) -> pa.Table:
    return pa.Table.from_batches([batch_of(EVENTS, events).columns])


def in_order(found: list[dict[str, Any]]) -> list[str]:
    return sorted(map(str, found))


@pytest.mark.slow
@pytest.mark.nightly
def test_rows_of_windows_are_the_same_everywhere() -> None:
    counts: Counter[str] = Counter()

    @fewer(16, least=6)
    @given(
        pattern=PATTERNS, events=rows(10), windows=st.sampled_from(((3, 3), (5, 2), (10, 3), (2, 4))),
        keys=st.sampled_from((("", ""), ("g", ""), ("g", "g"), ("g, h", "h"))), selection=SELECTIONS,
        conditions=st.sampled_from(CONDITIONS), size=st.integers(1, 5), flushed=st.sets(st.integers(0, 9)),
        start=st.integers(0, 4), begun=st.integers(0, 3),
    )  # fmt: skip
    def check(
        pattern: str, events: list[Row], windows: tuple[int, int], keys: tuple[str, str], selection: str,
        conditions: str, size: int, flushed: set[int], start: int, begun: int,
    ) -> None:  # fmt: skip
        assume("A" in pattern and "B" in pattern)
        text = statement(pattern, *windows, partition=keys[0], group=keys[1], selection=selection, measures=MEASURES,
                         conditions=conditions)  # fmt: skip
        try:
            plan_of(text)
        except QueryError:
            return
        events = sorted(events, key=lambda r: (r["ts"], str(r["g"])))
        wanted = hybrid.sql(text, events=table(events)).arrow().to_pylist()
        after = [row for row in events if row["ts"] >= start * SECOND]
        wanted_after = hybrid.sql(text, events=table(after)).arrow().to_pylist()
        with tempfile.TemporaryDirectory() as place, hybrid.connect(place, maintenance=False) as db:
            db.create_stream("events", COLUMNS, time="ts", key="g")
            live, later, found, found_later = db.watch(text), None, [], []
            db.watch(text, into="windows")
            among = db.watch(AMONG)
            for i, begin in enumerate(range(0, len(events), size)):
                if i == begun:
                    later = db.watch(text, start=start * SECOND)
                db.push("events", table(events[begin : begin + size]))
                if i in flushed:
                    db.flush()
                found += live.fetch().to_pylist()
                if later is not None:
                    found_later += later.fetch().to_pylist()
            later = later or db.watch(text, start=start * SECOND)
            db.advance("events", None)
            found += live.fetch().to_pylist()
            found_later += later.fetch().to_pylist()
            assert found == wanted
            assert found_later == wanted_after
            assert db.sql(text).arrow().to_pylist() == wanted
            assert db.backtest(text, 0).arrow().to_pylist() == wanted
            assert db.backtest(text, start * SECOND).arrow().to_pylist() == wanted_after
            of_stream = db.sql("SELECT * FROM windows").arrow().to_pylist()
            assert in_order(of_stream) == in_order(wanted)
            joined = in_order(among.fetch().to_pylist())
            assert joined == in_order(db.sql(AMONG).arrow().to_pylist())
            assert joined == in_order(db.backtest(AMONG, 0).arrow().to_pylist())
        counts["rows"] += bool(wanted)
        counts["of some"] += bool(wanted_after) and wanted_after != wanted
        counts["joined"] += bool(joined)
        counts["begun later"] += bool(wanted_after) and 0 < begun * size < len(events)

    names = ("rows", "of some", "joined", "begun later")
    drawn_until(check, lambda: min(counts[name] for name in names) > 2)
    assert min(counts[name] for name in names) > 2
