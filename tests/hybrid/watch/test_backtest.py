"""db.backtest reads no more of the archive than it has to. That it is what live says: tests/properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from archive.snapshot import HistorySnapshot
from matching.matcher import KernelMatcher

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
RARE = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES A.ts AS a, LAST(B.v) AS b, count(*) AS n PATTERN (A B+) WITHIN INTERVAL 30 SECOND
    DEFINE A AS v = 0, B AS v > LAST(v, 1))"""


JOINED = " AS m JOIN HISTORY OF ticks FROM m.a - INTERVAL 1 MINUTE TO m.a AS h ON h.k = m.k"


@pytest.mark.slow
@pytest.mark.parametrize("end", [None, "1970-01-01 00:50"])
@pytest.mark.parametrize("history", ["", JOINED])
def test_only_the_surroundings_of_rare_rows_are_matched(
    tmp_path: Path, monkeypatch: Any, end: str | None, history: str
) -> None:
    rng = np.random.default_rng(5)
    count = 6_000
    drawn = np.where(rng.random(count) < 0.01, 0, rng.integers(1, 90, count))
    times = pa.array(np.arange(count) * 1_000_000, pa.timestamp("us"))
    events = pa.table({"ts": times, "k": rng.choice(["p", "q", "r"], count), "v": drawn})
    matched: list[int] = []
    push = KernelMatcher.push

    def counting(self: KernelMatcher, batch: Any) -> Any:
        matched.append(len(batch))
        return push(self, batch)

    query = RARE + history
    with hybrid.connect(tmp_path, maintenance=False) as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
        alerts = db.watch(query)
        for start in range(0, count, 700):
            db.push("ticks", events.slice(start, 700))
        db.flush()
        monkeypatch.setattr(KernelMatcher, "push", counting)
        whole = db.backtest(query, 60_000_000, end).arrow()
        seen = sum(matched)
        matched.clear()
        monkeypatch.setattr("archive.search.prefilter.ROWS_MIN", 1)
        monkeypatch.setattr("archive.search.prefilter.EVENTS_PART_MAX", 0.9)
        tested = db.backtest(query, 60_000_000, end)
        assert 0 < sum(matched) < 0.7 * seen
        assert sorted(map(str, tested.arrow().to_pylist())) == sorted(map(str, whole.to_pylist()))
        assert tested.evidence().num_rows > len(whole) > 20
        if end is None and not history:
            db.advance("ticks", None)
            live = sorted(map(str, alerts.fetch().to_pylist()))
            assert set(map(str, whole.to_pylist())) <= set(live)
            assert len(live) - len(whole) <= 3  # those of the first minute


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("(SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES LAST(ts) AS ts, B.v AS v "
         "PATTERN (A B) DEFINE B AS v > A.v) AS below)", {"ts", "k", "v"}),
        ("MERGE(ticks, others)", {"ts", "k", "v", "unread"}),  # what is merged has the columns of all
    ],
)  # fmt: skip
def test_patterns_over_others_read_the_columns_that_they_need(
    source: str, read: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = f"SELECT * FROM {source} MATCH_RECOGNIZE (ORDER BY ts MEASURES X.v AS x, Y.v AS y PATTERN (X Y)) AS m"
    n = 500
    rng = np.random.default_rng(3)
    times = pa.array(np.arange(n) * 1_000_000, pa.timestamp("us"))
    events = pa.table({"ts": times, "k": rng.choice(["p", "q"], n), "v": rng.integers(0, 9, n), "unread": ["x"] * n})
    seen: set[str] = set()
    batches = HistorySnapshot.batches

    def watched(*given: Any, **named: Any) -> Any:
        for batch in batches(*given, **named):
            seen.update(batch.columns.schema.names)
            yield batch

    with hybrid.connect(maintenance=False) as db:
        for name in ("ticks", "others"):
            db.create_stream(name, COLUMNS | {"unread": "VARCHAR"}, time="ts", key="k")
        alerts = db.watch(query)
        for name in ("ticks", "others"):
            db.push(name, events)
            db.advance(name, None)
        monkeypatch.setattr(HistorySnapshot, "batches", watched)
        found = db.backtest(query, 0).arrow()
        assert seen == read
        assert found.to_pylist() == alerts.fetch().to_pylist()
        assert len(found) > 50
