"""The benchmark of conditions: all of them bind, the paths agree, and what falls short is shown as such."""

from __future__ import annotations

from collections import Counter

import pytest

import hybrid
from benchmarks.conditions.__main__ import disagreements, table
from benchmarks.conditions.cases import EVENTS, cases
from benchmarks.conditions.measure import Worker, measured
from tests.benchmarks.test_benchmarks import printed


@pytest.mark.slow
def test_every_condition_is_one_of_the_language() -> None:
    every = cases()
    assert len({(c.kind, c.name) for c in every}) == len(every) >= 150
    assert min(Counter(c.kind for c in every).values()) >= 10
    for case in every:
        assert case.neighbour in {c.name for c in every if c.kind == case.kind}
    for case in every[::12]:  # binding them all takes a second; the benchmark does
        hybrid.plan(case.text(), {"t": EVENTS})


@pytest.mark.slow
def test_the_paths_find_the_same() -> None:
    few = "--rows", "400", "--keys", "5", "--limit", "60"
    named = "s < A.s", "lower(s) = lower(A.s)", "coalesce(n, 0) > coalesce(A.n, 1)"
    result = printed("benchmarks.conditions", *few, "--kinds", "text", "null", "--cases", *named)
    assert result["conditions"] == 5
    assert result["disagreements"] == []
    assert {row["path"] for row in result["measured"]} == {"batch", "live", "backtest"}
    assert all(row["many"]["matches"] > row["few"]["matches"] > 10 for row in result["measured"])
    assert all(row["times"] == 1.0 for row in result["measured"] if row["condition"] == row["neighbour"])
    lines = table(result).splitlines()
    assert len(lines) == 4 + 15
    assert "| text | `s < A.s` | batch |" in lines[7]


@pytest.mark.slow
@pytest.mark.nightly
def test_what_takes_too_long_falls_short() -> None:
    case = next(c for c in cases() if c.name == "v > A.v * 1.01")
    worker = Worker(5, 1, 0.001)
    try:
        assert worker.ask(case, "batch", 400).error == "more than 0.001 s"
    finally:
        worker.close()
    said: list[str] = []
    neighbour = next(c for c in cases() if c.name == case.neighbour)
    rows = measured([neighbour, case], ["batch"], 400, 5, 1, 0.001, said.append)
    assert [row["short"] for row in rows] == [True, True]
    assert said[1].endswith("more than 0.001 s  falls short")
    assert disagreements(rows) == []
    other = [{**row, "few": {"seconds": 1.0, "matches": i, "hash": ""}} for i, row in enumerate([rows[0], rows[0]])]
    assert disagreements(other) == ["v > A.v (numbers): paths disagree at few rows: [(0, ''), (1, '')]"]
