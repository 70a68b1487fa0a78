"""The experiments of [SASE]: all contenders find what the reference finds, and the page is what the figures say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.sase import page
from benchmarks.sase.backtracking import Backtracking
from benchmarks.sase.contenders import CONTENDERS, Answer, Prepared, answer, can, prepared
from benchmarks.sase.experiments import disagreements, settings
from benchmarks.sase.questions import ITERATORS, Question, events_of, plan_of
from matching.program.program import assemble
from query import reference
from simulator.scenario import generator
from tests.benchmarks.test_benchmarks import printed

pytestmark = pytest.mark.slow

QUESTIONS = [
    Question(strategy, iterator, 9, starred, overlapping)
    for strategy in ("s2", "s3") for iterator in ITERATORS for starred in (False, True) for overlapping in (True, False)
]  # fmt: skip


def stock_of(seed: int, rows: int) -> pa.Table:
    """Few prices, many of them starts, and volumes of which half end an array."""
    rng = generator(seed)
    events = events_of(Question("s2", "p1", rows), seed, 1).slice(0, rows)
    names = events.schema.names
    price = rng.choice([0, 500, 100, 200, 300, 501, 502], rows)
    events = events.set_column(names.index("price"), "price", pa.array(price))
    return events.set_column(names.index("volume"), "volume", pa.array(rng.integers(1, 300, rows)))


def by_reference(text: str, events: pa.Table) -> list[tuple[int, ...]]:
    times = events["ts"].cast(pa.int64()).to_pylist()
    found = reference.find(plan_of(text), events.to_pylist(), times)
    return sorted(tuple(row for _, row in match.labels) for match in found)


def hashed(matches: list[tuple[int, ...]]) -> int:
    """What Answer.hash is of these rows."""
    total = 0
    for rows in matches:
        h = 0x9E3779B97F4A7C15
        for row in rows:
            h = (h ^ (row + 1)) * 0xFF51AFD7ED558CCD % 2**64
            h ^= h >> 32
        total = (total + h) % 2**64
    return total


def answers(rows: Prepared) -> dict[str, Answer]:
    return {name: answer(name, rows, True) for name in CONTENDERS if can(name, rows.program)}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.name} {'all' if q.overlapping else 'apart'}")
def test_all_contenders_find_what_the_reference_finds(question: Question) -> None:
    found_some = 0
    for seed in range(6):
        events = stock_of(seed, 60)
        expected = by_reference(question.text, events)
        rows = prepared(plan_of(question.text), events)
        for name, found in answers(rows).items():
            assert (found.matches, found.rows) == (len(expected), sum(map(len, expected))), name
            assert found.hash == hashed(expected), name
            counted = answer(name, rows, False)
            assert counted.matches in ((0,) if name == "merged" else (found.matches,)), name
        found_some += len(expected)
    assert found_some > 3


@pytest.mark.thinned(2)
@pytest.mark.parametrize("iterator", ITERATORS)
@pytest.mark.parametrize("starred", [False, True])
@pytest.mark.parametrize("strategy", ["s2", "s3"])
def test_the_query_in_sql_is_the_papers(strategy: str, iterator: str, starred: bool) -> None:
    question = Question(strategy, iterator, 11, starred)
    some = 0
    for seed in range(4):
        events = stock_of(seed, 60)
        expected = by_reference(question.sase, events)
        assert by_reference(question.text, events) == expected
        some += len(expected)
    assert some > 3


def test_p1_reads_single_rows_and_p2_the_match_so_far() -> None:
    assert not any(assemble(plan_of(Question("s3", "p1", 9).text)).code)
    assert any(assemble(plan_of(Question("s3", "p2", 9).text)).code)


@pytest.mark.parametrize("overlapping", [True, False])
def test_contenders_agree_on_the_papers_events(overlapping: bool) -> None:
    """Longer than one batch, with more matches than there is room for at first, and events read more than once."""
    some = (("s2", "p3", False), ("s3", "p1", False), ("s3", "p2", True), ("s3", "p3", True))
    for strategy, iterator, starred in some:
        question = Question(strategy, iterator, 300, starred, overlapping)
        events = events_of(replace(question, p_rise=0.6), 3, 12)
        rows = prepared(plan_of(question.text), events)
        found = answers(rows)
        assert len({(a.matches, a.rows, a.hash) for a in found.values()}) == 1, question
        assert found["basic"].matches > 0
        assert found["backtracking"].counts["read again"] > 0


def test_backtracking_goes_on_where_there_was_no_room() -> None:
    question = Question("s3", "p2", 60)
    rows = prepared(plan_of(question.text), stock_of(1, 3000))
    engine = Backtracking(rows.program, True)
    partition = rows.store.partition[: len(rows.mask)]
    order = np.argsort(partition, kind="stable")
    begin = np.searchsorted(partition[order], np.arange(rows.partitions + 1))
    calls, matches, done = 0, 0, False
    while not done:
        done = engine.search(begin, order, rows.mask[order], rows.feature[:, order].copy(),
                             rows.feature_valid[:, order].copy())  # fmt: skip
        matches += engine.counted()[0]
        calls += 1
    assert calls > 2
    assert matches == answer("basic", rows, True).matches


def test_what_contenders_disagree_on_is_said() -> None:
    same = {"matches": 3, "rows": 9, "hash": "ab"}
    result = {"name": "p1 s3", "question": {"window": 5, "overlapping": True}, "contenders": {"a": same, "b": same}}
    assert disagreements(result) == []
    result["contenders"] = {"a": same, "b": {**same, "hash": "ac"}}
    assert len(disagreements(result)) == 1


def test_settings_are_the_papers() -> None:
    asked = settings((500, 1000))
    assert [q.name for q, _ in asked["1"]] == ["p1 s2", "p1 s3", "p2 s2", "p2 s3", "p3 s2", "p3 s3"]
    assert {q.window for q, _ in asked["1"]} == {500}
    assert {q.window for q, _ in asked["6"]} == {500, 1000}
    assert {q.name for q, _ in asked["6"]} == {"p1 s3", "p2 s3", "p3 s3"}
    assert not any(q.overlapping for q, _ in asked["4"])


@pytest.mark.slow
def test_the_experiments_run_small() -> None:
    result = printed("benchmarks.sase", "--windows", "60", "90", "--per-symbol", "15", "--repeat", "1")
    assert result["disagreements"] == []
    for measured in result["results"]:
        assert {"basic"} <= set(measured["contenders"]) <= set(CONTENDERS)
    text = page.render(result)
    assert "Experiment 6" in text
    assert "p3* s3" in text


def test_the_page_is_what_was_measured() -> None:
    measured = json.loads(page.MEASURED.read_text(encoding="utf-8"))
    assert measured["disagreements"] == []
    assert page.PAGE.read_text(encoding="utf-8") == page.render(measured), "run python -m benchmarks.sase --page"
