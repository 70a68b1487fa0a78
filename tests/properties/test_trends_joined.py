"""Trends beside history: every strategy, with and without what is kept, gives the naive answer, which is the reference
for PL, and for PA the reference of trends over the events of each range alone, without the windows that it cuts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.join.covered import Covered
from hybrid.join.history_cache import HistoryCache
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from query.trend_reference import trend_rows
from tests.properties.comparing import by_reference, drawn_until, fewer
from tests.properties.test_hybrid import (
    COLUMNS,
    KINDS,
    SECOND_US,
    STRATEGIES,
    OnDisk,
    Rows,
    table,
    watched,
)
from tests.properties.test_hybrid import Case as JoinCase

#: PARTITION BY and GROUP BY of PA.
BY = (("k", "k"), ("k", "k"), ("k, s", "k"), ("k", ""), ("", ""))
ON = ("pa.n >= 1", "pa.n > 10", "pa.window_end <= pl.at", "pa.hi >= pl.w")
PATTERNS = ("A+ B", "A B", "A+", "A (B | C)+", "A ~C B", "(A B?)+")
CONDITIONS = ("TRUE", "s = 'a'", "s <> 'c'", "v >= 2", "v IS NOT NULL")
#: The last one is enumerated.
BETWEEN = (" AND (LAST(v, 1) IS NULL OR v >= LAST(v, 1))", " AND coalesce(s >= LAST(s, 1), true)")


@dataclass(frozen=True)
class Case(JoinCase):
    """windows: PL has windows, too."""

    windows: bool = False

    @property
    def text(self) -> str:
        at = "pl.window_end" if self.windows else "pl.at"
        low, high = f"{at} - INTERVAL '{self.before}' SECOND", f"{at} + INTERVAL '{self.after}' SECOND"
        range_ = f"BETWEEN {low} AND {high}" if self.closed else f"FROM {low} TO {high}"
        shown = "" if self.kind in ("SEMI JOIN", "ANTI JOIN") else ", pa.window_start, pa.n, pa.s, pa.hi, pa.d"
        live = f"MEASURES LAST(ts) AS at, LAST(v) AS w AFTER MATCH SKIP TO NEXT ROW {self.live}"
        if self.windows:
            live = f"GROUP BY k MEASURES MAX(v) AS w ONE ROW PER WINDOW {self.live}"
        return (
            f"SELECT pl.k, {at}, pl.w{shown} FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {live}) AS pl "
            f"{self.kind} HISTORY OF e {range_} MATCH_RECOGNIZE ({self.archive}) AS pa "
            f"ON {self.on.replace('pl.at', at)}"
        )


@cache
def planned(text: str) -> tuple[Plan, Plan]:
    """PL and PA."""
    schema = Schema("e", tuple(Field(name, type) for name, type in COLUMNS.items()), time="ts", keys=("k",))
    factor = bind(parse(text), lambda _: schema, live=True).factors[0]
    archive = factor.histories[0].plan
    assert archive is not None
    return factor.plan, archive


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(8, 16))
    seconds, events = 0, []
    for _ in range(count):
        seconds += draw(st.sampled_from((0, 1, 1, 1, 2, 4)))
        events.append({
            "ts": seconds * SECOND_US, "k": draw(st.sampled_from(("p", "p", "q", None))),
            "s": draw(st.sampled_from("aabbc")), "v": draw(st.sampled_from((0, 1, 2, 3, None))),
            "x": draw(st.sampled_from((0.1, 0.2, 1.75, 8.5))),
        })  # fmt: skip

    def defined(pattern: str, names: str, more: str = "") -> str:
        of = [f"{n} AS {draw(st.sampled_from(CONDITIONS))}{more * (n == names[0])}" for n in names if n in pattern]
        return f"DEFINE {', '.join(of)}"

    pattern, (partition, group) = draw(st.sampled_from(PATTERNS)), draw(st.sampled_from(BY))
    within, slide = draw(st.sampled_from(((5, 5), (6, 2), (10, 4), (3, 5))))
    between = draw(st.sampled_from(("", "", *BETWEEN))) if pattern in ("A+", "A+ B") else ""
    clauses = [
        f"PARTITION BY {partition}" * bool(partition), "ORDER BY ts", f"GROUP BY {group}" * bool(group),
        "MEASURES COUNT(MATCHES) AS n, SUM(v) AS s, MAX(v) AS hi, SUM(x) AS d ONE ROW PER WINDOW",
        f"PATTERN ({pattern}) WITHIN {within} SECONDS SLIDE {slide} SECONDS", defined(pattern, "ABC", between),
    ]  # fmt: skip
    windows = draw(st.booleans())
    live = f"PATTERN (P Q) {'WITHIN 4 SECONDS ' * windows}{defined('P Q', 'PQ')}"
    on = [draw(st.sampled_from(ON))] + ["pa.k = pl.k"] * (bool(group) and draw(st.booleans()))
    return Case(
        tuple(events), live, " ".join(c for c in clauses if c), draw(st.sampled_from((8, 12, 16, 20, 4, 0))),
        draw(st.integers(-2, 3)), draw(st.booleans()), draw(st.sampled_from(KINDS)), " AND ".join(on[::-1]),
        tuple(sorted(draw(st.lists(st.integers(0, count), max_size=3)))), windows,
    )  # fmt: skip


def live_rows(case: Case, live: Plan) -> list[tuple[Any, int, Any]]:
    """Returns k, the time and w of the rows of PL."""
    if case.windows:
        found = trend_rows(live, case.events, [row["ts"] for row in case.events])  # type: ignore[misc]
        return [(r.group[0], r.end_us, r.values[0]) for r in found]
    rows = by_reference(live, case.events).rows.to_pylist()
    return [(r["k"], int(r["at"].replace(tzinfo=UTC).timestamp()) * SECOND_US, r["w"]) for r in rows]


def naive(case: Case, counts: Counter[str]) -> Rows:
    """The definition, by the references alone."""
    live, archive = planned(case.text)
    assert archive.trends is not None
    by_key = [c.name for c in archive.trends.group_by] == ["k"]
    found: Rows = []
    for k, at, w in live_rows(case, live):
        low, high = at - case.before * SECOND_US, at + case.after * SECOND_US
        inside = [row for row in case.events if low <= row["ts"] < high + case.closed]  # type: ignore[operator]
        others = []
        for r in trend_rows(archive, inside, [row["ts"] for row in inside]):  # type: ignore[misc]
            n, s, hi, d = r.values
            # the last instant of a window is a microsecond before its end
            if r.start_us < low or r.end_us > high + case.closed:
                counts["cut windows"] += 1
                continue
            counts["whole windows"] += 1
            counts["to the end"] += r.end_us == high
            counts["from the begin"] += r.start_us == low
            meets = "pa.k" not in case.on or (k is not None and r.group[0] == k)
            meets &= "pa.n" not in case.on or n > (10 if "10" in case.on else 0)
            meets &= "pa.window_end" not in case.on or r.end_us <= at
            meets &= "pa.hi" not in case.on or (None not in (hi, w) and hi >= w)
            if meets:
                others.append((us(r.start_us), str(n), None if s is None else str(s), hi, d))
        counts["of groups"] += by_key and len({o[0] for o in others}) < len(others)
        mine = (k, us(at), w)
        match case.kind:
            case "SEMI JOIN":
                found += [mine] if others else []
            case "ANTI JOIN":
                found += [] if others else [mine]
            case "NEAREST JOIN":
                found += [(*mine, *other) for other in others[-1:]]
            case "LEFT NEAREST JOIN":
                found += [(*mine, *other) for other in others[-1:] or [(None,) * 5]]
            case "LEFT JOIN":
                found += [(*mine, *other) for other in others or [(None,) * 5]]
            case _:
                found += [(*mine, *other) for other in others]
    return in_order(found)


def us(time: int) -> datetime:
    return datetime.fromtimestamp(time // SECOND_US, UTC).replace(tzinfo=None)


def in_order(rows: Rows) -> Rows:
    """Returns rows in one order, doubles to the digits that all orders of adding have in common."""
    return sorted((tuple(f"{v:.6e}" if isinstance(v, float) else v for v in row) for row in rows), key=repr)


pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


@pytest.mark.slow
@pytest.mark.nightly
def test_every_strategy_gives_the_naive_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    examples: Counter[str] = Counter()
    monkeypatch.setattr("hybrid.join.history_cache.SAMPLE_STAKE_S", 0.0)  # costs are known from the first match on
    monkeypatch.setattr("hybrid.join.driver.PER_MATCH_S", 0.5)

    @fewer(12)
    @given(case=cases(), ways=st.lists(st.sampled_from(STRATEGIES), min_size=3, max_size=3, unique=True))
    def check(case: Case, ways: list[tuple[str, str | None]]) -> None:
        expected = naive(case, examples)
        for (strategy, tolerance), anew in zip(ways, (-1, 5, 100), strict=True):
            with pytest.MonkeyPatch.context() as patch:  # up to so many events are counted again, then from a state
                patch.setattr(Covered.__init__, "__defaults__", (anew,))
                rows, stats = watched(case, strategy, tolerance)
            assert in_order(rows) == expected, (strategy, tolerance)
            examples[strategy] += 1
            examples[f"{strategy} found ahead"] += stats["history_found_ahead"] > 0
            examples["from what is kept"] += stats["history_kept"] > 0
            examples["from a state"] += stats["history_kept"] > 0 and anew == -1 and bool(expected)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HistoryCache, "serves", lambda history: False)
            rows, stats = watched(case, *ways[0])
            assert in_order(rows) == expected, ("nothing kept", ways[0])
            assert stats["history_kept"] == 0
        bounded = hybrid.sql(case.text, e=table(case.events)).arrow().to_pylist()
        assert in_order([tuple(row.values()) for row in bounded]) == expected
        examples["cases"] += 1
        examples["rows"] += bool(expected)
        examples["windows of both"] += bool(expected) and case.windows

    edges = ("cut windows", "whole windows", "to the end", "from the begin")
    met = (*edges, "windows of both", "from a state", *(s for s, _ in STRATEGIES))
    drawn_until(check, lambda: min(examples[name] for name in met) > 3)
    assert 3 * examples["rows"] >= examples["cases"]
    assert 3 * examples["alaa found ahead"] >= examples["alaa"] > 0
    assert 5 * examples["from what is kept"] >= examples["cases"]
    assert min(examples[name] for name in met) > 3


@pytest.mark.slow
def test_files_and_a_kill_or_restart_change_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With their ids: what comes again is known by them."""
    examples: Counter[str] = Counter()

    @fewer(12)
    @given(case=cases(), how=st.sampled_from(STRATEGIES), restart=st.integers(0, 3), killed=st.booleans())
    def check(case: Case, how: tuple[str, str | None], restart: int, killed: bool) -> None:
        on_disk = OnDisk(tmp_path_factory.mktemp("db"), None, restart, killed, examples)
        assert in_order(watched(case, *how, on_disk)[0]) == naive(case, examples)
        examples["killed"] += killed and restart <= len(case.cuts)

    drawn_until(check, lambda: examples["killed"] > 0)
    assert examples["killed"] > 0
