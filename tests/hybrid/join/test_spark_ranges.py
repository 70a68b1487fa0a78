"""Large ranges of history that Spark searches, with a search in its place that gives partitions in any order."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from archive.search.slices import only
from archive.snapshot import HistorySnapshot
from archive.spark import search, session
from archive.spark.search import Archived
from hybrid.join.spark_ranges import SPARK_EVENTS, LargeRanges
from hybrid.rows.evidence import of_matches
from hybrid.statement.statement import make_matcher
from matching.batch import Matches
from query.errors import DataError, HybridWarning
from query.plan.plan import Plan
from tests.hybrid.inside import opened_of
from tests.hybrid.large import COLUMNS, NOW_US, RANGES, SCHEMA, case, opened, settled, watched
from tests.in_memory import MEMORY
from tests.properties.comparing import is_nightly


def in_any_order(_: Any, archived: Archived, plan: Plan, told: bool = False) -> list[Matches]:
    """Stands for archive.spark.search.matches: reads the files alone, and gives one partition after another."""
    files = HistorySnapshot(archived.schema, (), archived.table.sources, archived.place, archived.table)
    events = files.read(archived.request)
    matcher = make_matcher(plan)
    whole = [found for found in (matcher.push(events), matcher.advance(None)) if len(found)]
    parts = []
    for found in whole:
        first = of_matches(found).bounds[:-1]
        at = {seq: i for i, seq in enumerate(events.seq.tolist())}
        keys = events.columns.select([c.name for c in plan.partition_by]).to_pylist()
        of = [repr(keys[at[seq]]) if plan.partition_by else "" for seq in found.event_seq[first].tolist()]
        names = sorted(set(of))
        Random(len(events)).shuffle(names)
        parts += [only(found, np.flatnonzero(np.array(of) == name)) for name in names]
    return parts


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "matches", in_any_order)
    monkeypatch.setattr(session, "spark_session", lambda where: None)


SEEDS = 600 if is_nightly() else 24


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_rows_order_and_evidence_are_those_without_spark() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        rows_order_and_evidence(Path(place))


def rows_order_and_evidence(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        one = case(seed)
        with opened(tmp_path / f"{seed}", one) as db:
            rows, evidence, _ = watched(db, one)
        with opened(tmp_path / f"{seed}-spark", one, "local[2]", Random(seed).choice((0, 10, 20))) as db:
            by_spark = watched(db, one)
        stats = by_spark[2].stats()
        assert by_spark[0] == rows, (seed, one.query)
        assert by_spark[1].equals(evidence), (seed, one.query)
        seen += Counter(
            rows=len(rows) > 5, by_spark=stats["history_by_spark"], kept=stats["history_kept"], late=stats["late"],
            both=stats["history_by_spark"] > 0 and stats["history_reads"] > 0,
        )  # fmt: skip
    assert seen["by_spark"] > SEEDS * 5 // 2
    assert min(seen["rows"], seen["kept"], seen["both"], seen["late"]) > 5


TIED = "SELECT pl.n AS p, pa.n FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES P.n AS n, P.ts AS at PATTERN (P) " \
    "DEFINE P AS s = 'p') AS pl {} HISTORY OF e FROM pl.at - INTERVAL 1 HOUR TO pl.at MATCH_RECOGNIZE (" \
    "PARTITION BY k ORDER BY ts MEASURES U.n AS n PATTERN (U)) AS pa ON TRUE"  # fmt: skip


def tied(rows: Sequence[tuple[int, int, str]]) -> pa.Table:
    """Events of (second, v, key), numbered as they come; the last one is the live match."""
    return pa.Table.from_pylist(
        [
            dict(zip(SCHEMA.names, (NOW_US + second * 1_000_000, n, k, "p" if n == len(rows) - 1 else "q", v)))
            for n, (second, v, k) in enumerate(rows)
        ], SCHEMA,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("order", "expected"), [
    ((), [0, 1, 2, 3, 4]),  # by the place in the source
    (("v",), [0, 3, 1, 2, 4]),
    (("v", "k"), [0, 3, 2, 1, 4]),
])  # fmt: skip
def test_matches_that_end_at_one_instant_stand_in_the_total_order(
    tmp_path: Path, order: tuple[str, ...], expected: list[int]
) -> None:
    events = tied([(0, 5, "b"), (1, 7, "c"), (1, 7, "a"), (1, 3, "d"), (2, 0, "a"), (9, 0, "e")])
    with hybrid.connect(tmp_path, spark="local[2]", spark_events=0) as db:
        db.create_stream("e", COLUMNS, time="ts", order=order)
        every, *nearest = (db.watch(TIED.format(f"{kind} JOIN")) for kind in ("", "NEAREST", "LEFT NEAREST"))
        db.push("e", events.slice(0, 4))
        db.push("e", events.slice(4))
        db.advance("e", None)
        assert [row["n"] for row in settled(db, every)] == expected
        assert [[row["n"] for row in settled(db, one)] for one in nearest] == [expected[-1:]] * 2
        assert every.stats()["history_by_spark"] == 1
        assert every.stats()["history_reads"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_equal_ranges_are_searched_once(tmp_path: Path) -> None:
    one = case(1, "LEFT JOIN", RANGES[3])
    query = one.query[: one.query.index("MATCH_RECOGNIZE (", one.query.index("HISTORY"))] + (
        "MATCH_RECOGNIZE (ORDER BY ts MEASURES U.n AS n PATTERN (U)) AS pa ON TRUE"
    )
    with opened(tmp_path, one, "local[2]", 0) as db:
        alerts = db.watch(query, strategy="llaa")
        for source, rows in one.pushes:
            db.push("e", rows, source=source)
        db.advance("e", None)
        settled(db, alerts)
        assert alerts.stats()["matches"] > 3
        assert alerts.stats()["history_by_spark"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_statements_backtests_and_merged_inputs(tmp_path: Path) -> None:
    """Those that read what was kept, and patterns over several streams."""
    one = case(4, "JOIN", RANGES[0])
    merged = one.query.replace("FROM e MATCH", "FROM MERGE(e, f) MATCH")
    answers = []
    for spark in (None, "local[2]"):
        with opened(tmp_path / f"{spark}", one, spark, None if spark is None else 0) as db:
            db.create_stream("f", COLUMNS, time="ts", key="k", order=one.ties)
            alerts = db.watch(merged, evidence=True)
            for source, rows in one.pushes:
                db.push("e", rows, source=source)
            db.advance("e", None)
            db.advance("f", None)
            found: list[Any] = [settled(db, alerts)]
            for result in (db.sql(one.query), db.sql(one.query, late=False), db.backtest(one.query, 0)):
                found += [result.arrow().to_pylist(), result.evidence().to_pylist()]
            assert (alerts.stats()["history_by_spark"] > 0) is (spark is not None)
            answers.append(found)
    assert answers[0] == answers[1]
    assert min(map(len, answers[0])) > 5


@pytest.mark.slow
@pytest.mark.parametrize("error", [DataError("the cluster is on fire"), ValueError("the cluster is on fire")])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_search_that_fails_is_tried_again_and_then_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int
) -> None:
    """Before: the query had failed, of the first failure."""
    left = failures

    def broken(*given: Any, **_: Any) -> list[Matches]:
        nonlocal left
        if left:
            left -= 1
            raise error
        return in_any_order(*given)

    monkeypatch.setattr(search, "matches", broken)
    monkeypatch.setattr(session, "spark_session", lambda where: None)
    events = tied([(0, 5, "b"), (1, 7, "c"), (1, 7, "a"), (1, 3, "d"), (2, 0, "a"), (9, 0, "e")])
    with hybrid.connect(tmp_path, spark="local[2]", spark_events=0) as db:
        db.create_stream("e", COLUMNS, time="ts", order=("v",))
        alerts = db.watch(TIED.format("LEFT JOIN"))
        db.push("e", events)
        db.advance("e", None)
        told = pytest.warns(HybridWarning, match="of e was searched without Spark: the cluster is on fire")
        with told if failures > 1 else nullcontext():
            rows = settled(db, alerts)
        assert [row["n"] for row in rows] == [0, 3, 1, 2, 4]
        stats = alerts.stats()
        assert (stats["history_by_spark"], stats["history_spark_failed"]) == (2 - failures, failures - 1)
        assert (stats["state"], stats["waiting_for_history"]) == ("ended", 0)


@pytest.mark.slow
def test_rows_order_and_evidence_without_spark_are_those_of_a_range_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search that takes Spark's place, over random events."""
    def broken(*_: Any, **__: Any) -> list[Matches]:
        raise DataError("the cluster is on fire")

    monkeypatch.setattr(search, "matches", broken)
    monkeypatch.setattr(session, "spark_session", lambda where: None)
    failed, seeds = 0, 20 if is_nightly() else 8
    for seed in range(seeds):
        one = case(seed)
        with opened(tmp_path / f"{seed}", one) as db:
            rows, evidence, _ = watched(db, one)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            with opened(tmp_path / f"{seed}-spark", one, "local[2]", Random(seed).choice((0, 10, 20))) as db:
                here = watched(db, one)
        assert here[0] == rows, (seed, one.query)
        assert here[1].equals(evidence), (seed, one.query)
        failed += here[2].stats()["history_spark_failed"]
    assert failed > seeds * 5 // 2


@pytest.mark.parametrize(("join", "says"), [
    ("MATCH_RECOGNIZE (ORDER BY ts PATTERN (U)) AS pa ON TRUE", "ranges of pa with more than 7 events"),
    ("AS pa ON TRUE", "no range of pa: it has plain rows and no pattern"),
    ("MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts PATTERN (U)) AS pa ON pa.k = pl.k", "ON selects keys"),
    ("MATCH_RECOGNIZE (ORDER BY ts PATTERN (U?)) AS pa ON TRUE", "without a match of events"),
    ("MATCH_RECOGNIZE (ORDER BY ts AFTER MATCH SKIP TO LAST U PATTERN (T U)) AS pa ON TRUE", "may not move on"),
    ("MATCH_RECOGNIZE (PARTITION BY w ORDER BY ts PATTERN (U)) AS pa ON TRUE", "0 and -0"),
])  # fmt: skip
def test_explain_says_what_goes_there(tmp_path: Path, join: str, says: str) -> None:
    text = "SELECT pl.at FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES P.ts AS at PATTERN (P)) AS pl " \
        "LEFT JOIN HISTORY OF e FROM pl.at - INTERVAL 1 HOUR TO pl.at " \
        + join.replace("BY ts", "BY ts MEASURES U.n AS m")  # fmt: skip
    for spark, events in ((None, None), ("local[2]", 7)):
        with hybrid.connect(tmp_path, spark=spark, spark_events=events) as db:
            db.create_stream("e", {**COLUMNS, "w": "DOUBLE"}, time="ts")
            lines = [line for line in db.watch(text).explain().splitlines() if line.startswith("spark ")]
            assert len(lines) == (spark is not None)
            assert not lines or says in lines[0]


@pytest.mark.parametrize(("given", "says"), [
    ({"spark": "sprak"}, "invalid Spark address 'sprak'"),
    ({"spark": 7}, "invalid Spark address 7"),
    ({"spark": "local", "spark_events": -1}, "spark_events is -1"),
    ({"spark": "local", "spark_events": 1.5}, "spark_events is 1.5"),
    ({"spark_events": 5}, "spark_events needs spark"),
])  # fmt: skip
def test_settings_that_cannot_be_meant(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        hybrid.connect(tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="in memory has no files"):
        hybrid.connect(spark="local")
    with hybrid.connect(tmp_path / "one", spark="sc://host:15002") as db:
        assert opened_of(db).large == LargeRanges("sc://host:15002", SPARK_EVENTS)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="not installed"):
        hybrid.connect(tmp_path / "two", spark="local")
