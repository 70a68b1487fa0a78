"""db.sql(as_live=True) gives what a watch has given by now, at any moment; db.sql says how many matches it adds."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from query.errors import HybridWarning
from tests.properties import test_backfill
from tests.properties.comparing import drawn_until, fewer
from tests.properties.test_streams import Step, histories, opened, played, rows_of

FEWER = fewer(6)

#: over one stream {0} with time {1} and value {2}: what waits for the end of WITHIN; with history, windows, a box
WAITING = (
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.{1} AS f, A.{2} AS x
       PATTERN (A ~B) WITHIN INTERVAL 2 SECOND SELECTION SKIP TILL NEXT MATCH
       DEFINE A AS {2} > 1, B AS {2} = 0) AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES FIRST({1}) AS f, count(*) AS n
       PATTERN (A B+ ~C) WITHIN INTERVAL 3 SECOND DEFINE A AS {2} > 0, B AS {2} > 0, C AS {2} = 0) AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.{1} AS f, B.{2} AS x TIMEOUT ROWS
       PATTERN (A B) WITHIN INTERVAL 2 SECOND DEFINE A AS {2} > 0, B AS {2} > A.{2}) AS m""",
)
OTHERS = (
    """SELECT * FROM {0} MATCH_RECOGNIZE (ORDER BY {1} MEASURES COUNT(MATCHES) AS n, SUM(A.{2}) AS x
       ONE ROW PER WINDOW PATTERN (A B+) WITHIN INTERVAL 4 SECOND SLIDE INTERVAL 2 SECOND
       DEFINE A AS {2} > 0, B AS {2} < 3) AS m""",
    """SELECT m.k, m.f FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.{1} AS f
       PATTERN (A ~B) WITHIN INTERVAL 2 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS {2} > 1, B AS {2} = 0) AS m
       ANTI JOIN HISTORY OF b FROM m.f - INTERVAL 3 SECOND TO m.f + INTERVAL 3 SECOND AS h ON h.k = m.k AND h.w > 2""",
    """WITH pair AS (SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.{1} AS f, B.{1} AS l
       PATTERN (A B) WITHIN INTERVAL 3 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS {2} > 1, B AS {2} < A.{2}))
       SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES V.f AS f, C.{1} AS c
       PATTERN (V C) WITHIN INTERVAL 6 SECOND SELECTION SKIP TILL ANY MATCH
       DEFINE V AS PATTERN pair, C AS {2} = 2) AS m""",
)
QUERIES = (*WAITING, *WAITING, *OTHERS, *test_backfill.QUERIES)
EXTRA = ("match_id", "join_id", "history_complete")


@pytest.mark.slow
def test_it_is_what_a_watch_has_given(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(
        steps=histories(), which=st.integers(0, len(QUERIES) - 1), name=st.sampled_from(sorted(test_backfill.READS)),
        looks=st.sets(st.integers(0, 23), max_size=3), ends=st.booleans(),
    )  # fmt: skip
    def check(steps: list[Step], which: int, name: str, looks: set[int], ends: bool) -> None:
        text = QUERIES[which].format(name, *test_backfill.READS[name])
        found: list[pa.Table] = []
        with warnings.catch_warnings(), opened() as db:
            warnings.simplefilter("ignore", HybridWarning)
            alerts = db.watch(text, evidence=True)
            for i, step in enumerate([*steps, None]):
                played(db, [step] if step is not None else [], [0, 1, 2] if ends and step is None else [])
                if i not in looks and step is not None:
                    continue
                found.append(alerts.take())
                given_by_now = pa.concat_tables(found)
                now = db.sql(text, as_live=True)
                rows = given_by_now.drop_columns([c for c in EXTRA if c in given_by_now.column_names])
                assert rows_of(now.arrow()) == rows_of(rows)
                if "WINDOW" not in text:
                    ids = Counter(given_by_now.column("match_id").to_pylist())
                    # evidence has no lines of unmatched rows
                    assert ids_of(now) <= ids if "UNMATCHED" in text else ids_of(now) == ids
                seen["looks"] += 1
                seen["rows"] += bool(len(now))
                seen["late"] += any(s["late"] for s in db.streams().values())
                if which < len(WAITING):
                    more = len(db.sql(text, late=False)) - len(now)
                    told = said(lambda: db.sql(text, late=False))
                    # with TIMEOUT ROWS, also matches whose last event is ahead of the watermark
                    assert more >= told if "TIMEOUT" in text and name == "b" else more == told
                    seen["more"] += bool(more)

    drawn_until(check, lambda: min(seen["rows"] * 4, seen["more"] * 20, seen["late"] * 20) >= seen["looks"])
    record_property("looks", dict(seen))
    assert min(seen["rows"] * 4, seen["more"] * 20, seen["late"] * 20) >= seen["looks"]


def ids_of(result: hybrid.Result) -> Counter[str]:
    """The ids of the live matches, one for each row that has one."""
    lines = result.evidence().to_pylist()
    found = {line["row"]: line["match_id"] for line in lines if line["side"] == "pl"}
    return Counter(filter(None, found.values()))


def said(act: Callable[[], object]) -> int:
    """The number of rows that exist only because the input ends, as the warning has it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    (match,) = [re.match(r"([\d,]+) of", str(w.message)) for w in caught if "only because" in str(w.message)] or [None]
    return 0 if match is None else int(match[1])
