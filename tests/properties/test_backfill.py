"""A watch with `start` gives what a backtest from there gives, and a watch that had begun then, wherever it begins."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.database.database import Database
from query.errors import HybridWarning
from tests.hybrid.ends import opened_again
from tests.properties.comparing import drawn_until, fewer
from tests.properties.test_streams import STREAMS, Step, histories, played, rows_of

FEWER = fewer(3)

#: of one stream {0}, of several, and with history
QUERIES = (
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES FIRST({1}) AS f, LAST({1}) AS l,
       count(*) AS n, MATCH_NUMBER() AS m PATTERN (A B+) DEFINE B AS {2} >= PREV({2})) AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES FIRST({1}) AS f, LAST({1}) AS l
       PATTERN (A B C?) WITHIN INTERVAL 3 SECOND SELECTION SKIP TILL ANY MATCH
       DEFINE B AS {2} > A.{2}, C AS {2} < B.{2}) AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (ORDER BY {1} ALL ROWS PER MATCH WITH UNMATCHED ROWS
       AFTER MATCH SKIP TO NEXT ROW PATTERN (A{{2,}}) WITHIN INTERVAL 3 SECOND DEFINE A AS {2} > 0) AS m""",
    """SELECT m.k, m.f, m.l, h.{2}, h.{1} AS t FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1}
       MEASURES FIRST({1}) AS f, LAST({1}) AS l, LAST({2}) AS v PATTERN (A B) DEFINE B AS {2} <> PREV({2})) AS m
       JOIN HISTORY OF {0} FROM m.f - INTERVAL 5 SECOND TO m.l + INTERVAL 1 SECOND AS h
       ON h.k = m.k AND h.{2} < m.v""",
    """SELECT k, l, v FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES LAST({1}) AS l, LAST({2}) AS v
       PATTERN (A B) WITHIN INTERVAL 4 SECOND DEFINE B AS {2} > PREV({2})) AS m
       ALERT ONCE PER k WITHIN INTERVAL 4 SECOND""",
    """SELECT * FROM MERGE(a, b, c) MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
       MEASURES A.ts AS f, C.ts AS l, count(*) AS n
       PATTERN (A ~B C+) WITHIN INTERVAL 4 SECOND SELECTION SKIP TILL ANY MATCH
       DEFINE A AS stream = 'a', B AS stream = 'b', C AS stream = 'c') AS m""",
    """SELECT * FROM (SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES LAST({1}) AS u,
       LAST({2}) AS v PATTERN (A B) WITHIN INTERVAL 3 SECOND DEFINE B AS {2} >= PREV({2})) AS p)
       MATCH_RECOGNIZE (PARTITION BY k ORDER BY u MEASURES FIRST(u) AS f, LAST(u) AS l, count(*) AS n
       PATTERN (X Y) DEFINE Y AS v <> PREV(v)) AS m""",
)
READS = {"a": ("ts", "v"), "b": ('"at"', "w")}
#: What has run on the streams before: it knows what is held back, and must not see anything of the other.
OTHER = QUERIES[0].format("b", *READS["b"])


def opened(path: str) -> Database:
    db = opened_again(path, maintenance=False)
    for name, columns, lateness in STREAMS:
        db.create_stream(name, columns, time=next(iter(columns)), lateness=f"{lateness}s")
    return db


@pytest.mark.slow
@pytest.mark.nightly
def test_it_is_the_backtest_and_the_watch_from_the_beginning(record_property: Callable[[str, object], None]) -> None:
    seen = {"rows": 0, "before": 0, "behind": 0}

    @FEWER
    @given(
        steps=histories(), which=st.integers(0, len(QUERIES) - 1), name=st.sampled_from(sorted(READS)),
        start=st.sampled_from((0, 0, 0, 0, 3, 8, 20)), data=st.data(),
    )  # fmt: skip
    def check(steps: list[Step], which: int, name: str, start: int, data: st.DataObject) -> None:
        text = QUERIES[which].format(name, *READS[name])
        cut = len(steps) - data.draw(st.integers(0, len(steps)), "steps behind the cut")
        again = data.draw(st.integers(cut, len(steps)), "restart")
        flushed = data.draw(st.sets(st.integers(0, len(steps))), "flushed")
        other, reopened, named = data.draw(st.tuples(*3 * [st.booleans()]), "other, reopened, named")
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(), hybrid.connect() as whole:
            warnings.simplefilter("ignore", HybridWarning)
            for stream, columns, lateness in STREAMS:
                whole.create_stream(stream, columns, time=next(iter(columns)), lateness=f"{lateness}s")
            from_begin = whole.watch(text)
            db, beside, mine, rows = opened(place), None, None, []
            for i, step in enumerate([*steps, None]):
                if i == cut // 2 and other:
                    beside = db.watch(OTHER, name="other")
                if i == cut:
                    if reopened:
                        db.close()
                        db = opened(place)
                        beside = db.watching().get("other")
                    mine = db.watch(text, start=start * 1_000_000, name="mine" if named else None)
                    rows.append(mine.take())
                    seen["before"] += rows[0].num_rows
                if i == again and named and mine is not None:
                    rows.append(mine.take())
                    db.close()
                    db = opened(place)
                    mine = db.watch(text, start=start * 1_000_000, name="mine")
                    beside = db.watching().get("other")
                if i in flushed:
                    db.flush()
                if step is not None:
                    played(db, [step], [])
            assert mine is not None
            played(whole, steps, [])
            rows.append(mine.take())
            for stream, *_ in STREAMS:
                db.advance(stream, None)
                whole.advance(stream, None)
            rows.append(mine.take())
            found = pa.concat_tables(rows)
            tested = db.backtest(text, start * 1_000_000).arrow()
            assert rows_of(found) == rows_of(tested)
            if start == 0 and not reopened:
                assert rows_of(found) == rows_of(from_begin.fetch())
            seen["rows"] += found.num_rows
            seen["behind"] += found.num_rows - rows[0].num_rows
            if beside is not None:
                assert not beside.failed
            db.close()

    drawn_until(check, lambda: min(seen.values()) > 5)
    record_property("rows", seen)
    assert min(seen.values()) > 5
