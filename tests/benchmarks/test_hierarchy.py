"""The experiments of [HIERARCHY]: hierarchies with the parameters of the paper, and contenders that find what
composition means."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks import answers
from benchmarks.hierarchy.contenders import CONTENDERS, Push, batches_of, run
from benchmarks.hierarchy.experiments import Setting, disagreements, line, measured, settings
from benchmarks.hierarchy.hced import Hced
from benchmarks.hierarchy.one_layer import one_layer
from benchmarks.hierarchy.page import page
from benchmarks.hierarchy.picture import draw, panels
from benchmarks.hierarchy.shared import shared
from benchmarks.hierarchy.workloads import SECOND_US, Shape, plan_of, query, stream
from matching.batch import Matches
from query.hierarchy_reference import Composed, compose
from query.plan.flatten import flattened
from query.plan.pattern import variables
from query.plan.plan import Plan
from tests.benchmarks.test_benchmarks import printed

SMALL = Shape(layers=2, within=12, events=120, types=5, planted=0)


# ---- workloads


def test_the_same_seed_gives_the_same_events_one_each_second() -> None:
    shape = Shape(events=3_000)
    once, again, other = (stream(shape, seed) for seed in (7, 7, 8))
    assert once.equals(again)
    assert not once.equals(other)
    assert (np.diff(once["ts"].cast(pa.int64()).to_numpy()) == SECOND_US).all()
    assert len(set(once["type"].to_pylist())) == shape.types
    assert stream(Shape(events=3_000, planted=100), 7) != once
    assert 0.65 < pc.mean(pc.less(once["v"], 70)).as_py() < 0.76


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("length", [3, 4, 5])
def test_types_come_in_the_order_of_the_flattened_sequence(layers: int, length: int) -> None:
    shape = Shape(layers, length, types=30)
    assert shape.variables == layers * (length - 1) + 1

    def flat(layer: int) -> list[int]:
        return [t for e in shape.elements(layer) for t in (flat(layer - 1) if e is None else [e])]

    assert flat(layers) == list(range(shape.variables))
    assert len(shape.elements(layers)) == length
    plan = flattened(plan_of(shape))
    assert isinstance(plan, Plan)
    assert len(variables(plan.pattern)) == shape.variables


def test_one_layer_is_a_plain_pattern() -> None:
    plan = plan_of(Shape(layers=1))
    assert not plan.boxes
    assert flattened(plan) is plan


def test_related_conditions_compare_with_the_first_event_of_the_layer() -> None:
    assert "E2 AS type = 'T04' AND (v + E0.v) % 100 < 70" in query(Shape(layers=2, length=3, related=True))


@pytest.mark.slow
@pytest.mark.parametrize("related", [False, True])
def test_matches_are_planted_among_events_of_many_types(related: bool) -> None:
    shape = Shape(events=5_000, types=1_000, planted=500, related=related)
    told = run("flattened", shape, batches_of(stream(shape, 1)))
    assert 9 <= told.matches <= 20
    assert 9 <= run("hced", shape, batches_of(stream(shape, 1))).matches <= told.matches
    none = Shape(events=5_000, types=1_000, planted=0, related=related)
    assert run("flattened", none, batches_of(stream(none, 1))).matches == 0


# ---- contenders


def composed(shape: Shape, seed: int) -> list[Composed]:
    events = stream(shape, seed)
    rows = events.set_column(0, "ts", events["ts"].cast(pa.int64())).to_pylist()
    return compose(plan_of(shape), rows, [row["ts"] for row in rows])


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("related", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_contenders_find_what_composition_means(layers: int, related: bool) -> None:
    shape = Shape(layers, within=10 + 4 * layers, events=100, types=5, planted=50, related=related)
    expected = sorted([i for _, i in found.leaves()] for found in composed(shape, 2))
    assert len(expected) > 10
    batches = batches_of(stream(shape, 2), 16)
    hashes = set()
    for name in ("hierarchical", "flattened", "chosen"):
        push, found = CONTENDERS[name](shape), []
        for i, batch in enumerate(batches):
            for matches in push(batch, int(batches[i + 1].ts_us[0]) if i + 1 < len(batches) else None):
                assert isinstance(matches, Matches)
                bounds = matches.event_bounds.tolist()
                found += [matches.event_offset[a:b].tolist() for a, b in pairwise(bounds)]
        assert sorted(found) == expected
        told = run(name, shape, batches)
        assert told.matches == len(expected)
        hashes.add(told.hash)
    assert len(hashes) == 1
    assert run("hced", shape, batches).hash == ""


@pytest.mark.slow
def test_a_hash_depends_on_the_events_and_not_on_batches() -> None:
    def told(seed: int, rows: int) -> str:
        return run("flattened", SMALL, batches_of(stream(SMALL, seed), rows)).hash

    assert told(1, 7) == told(1, 1000)
    assert told(1, 7) != told(2, 7)


def hced(shape: Shape, *kinds: int) -> list[list[int]]:
    events = {"ts": pa.array(range(len(kinds))).cast(pa.timestamp("s")).cast(pa.timestamp("us")),
              "type": [f"T{k:02}" for k in kinds], "v": [0] * len(kinds), "id": range(len(kinds))}  # fmt: skip
    return list(Hced(shape).push(pa.RecordBatch.from_pydict(events)))


def test_hced_finds_the_matches_of_one_layer_that_skip_till_the_next_event() -> None:
    assert hced(Shape(layers=1), 0, 1, 1, 2) == [[0, 1, 3]]
    assert hced(Shape(layers=1), 0, 0, 1, 2) == [[0, 2, 3], [1, 2, 3]]
    assert hced(Shape(layers=1, within=2), 0, 1, 9, 2) == []


def test_hced_calls_the_lower_layer_and_returns() -> None:
    assert hced(Shape(layers=3), 0, 1, 2, 3, 4, 5, 6) == [[0, 1, 2, 3, 4, 5, 6]]


def test_hced_gives_a_caller_one_match_of_its_box_only() -> None:
    """The fault of the algorithm as printed: both matches of the box lie between 0 and 4; composition finds two."""
    kinds = (0, 1, 2, 3, 1, 2, 3, 4)
    assert hced(Shape(layers=2), *kinds) == [[0, 1, 2, 3, 7]]


def test_hced_ends_the_caller_with_the_lower_run() -> None:
    """The lower run begins at second 1 and is out of its window at the end of the caller's."""
    assert hced(Shape(layers=2, within=3), 0, 1, 9, 9, 9, 1, 2, 3, 4) == []


# ---- the run


def test_what_contenders_disagree_on_is_said() -> None:
    setting = settings("1", Shape(), 1)[0]
    same: dict[str, Any] = {"matches": 3, "hash": "ab", "same_each_round": True}
    fewer = {"matches": 2, "hash": "", "same_each_round": True}
    assert disagreements(setting, {"hierarchical": same, "flattened": same, "hced": fewer}) == []
    (fault,) = disagreements(setting, {"hierarchical": same, "flattened": {**same, "hash": "ac"}})
    assert fault == "experiment 1, layers 1, length 3: hash: flattened has ac, hierarchical has ab"
    assert len(disagreements(setting, {"hierarchical": {**same, "same_each_round": False}})) == 1
    assert disagreements(setting, {"hierarchical": same, "flattened": {"failed": "too much"}}) == []


@pytest.mark.slow
def test_a_contender_that_loses_matches_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.hierarchy import contenders
    from benchmarks.hierarchy.__main__ import main

    def forgetful(shape: Shape) -> Push:
        push, calls = CONTENDERS["hierarchical"](shape), iter(range(9))
        return lambda batch, until_us: iter(list(push(batch, until_us))[: next(calls) and 2])

    monkeypatch.setattr(contenders, "CONTENDERS", {**CONTENDERS, "flattened": forgetful})
    few = ["--experiment", "1", "--layers", "1", "--lengths", "3", "--events", "1_000", "--repeat", "1"]
    assert main([*few, "--here", "--no-pin"]) == 1
    assert "flattened has" in capsys.readouterr().err


def test_settings_are_the_papers() -> None:
    base = Shape()
    first = settings("1", base, 1)
    assert {s.shape.length: [t.x for t in first if t.figure == s.figure] for s in first} == {
        length: [1, 2, 3, 4, 5] for length in (3, 4, 5)
    }
    assert {s.shape.layers: [t.x for t in settings("2", base, 1) if t.figure == s.figure]
            for s in settings("2", base, 1)} == {layers: [3, 4, 5] for layers in (2, 3, 4, 5)}  # fmt: skip
    assert {s.x for s in settings("3", base, 1)} == {100, 150, 200, 250}
    assert {(s.shape.layers, s.x) for s in settings("4", base, 1)} == {
        (h, n) for h in (3, 4, 5) for n in (5_000, 10_000, 15_000, 20_000, 25_000)
    }
    with pytest.raises(ValueError, match="no experiment 5"):
        settings("5", base, 1)


@pytest.mark.slow
def test_too_many_partial_matches_are_told_and_end_nothing() -> None:
    shape = Shape(layers=5, length=3, within=900, events=2_000, types=6, related=True)
    told = measured(shape, 1, "flattened", 1, False)
    assert told == {"failed": "one partition needs more than 200,000 partial matches"}
    assert told["failed"] in line(Setting("1", "layers", "length", shape, 1), "flattened", told)


@pytest.mark.slow
def test_the_experiments_run_small(tmp_path: Path) -> None:
    result = printed(
        "benchmarks.hierarchy", "--layers", "1", "2", "--lengths", "3", "--windows", "20", "--events", "300",
        "--within", "30", "--types", "6", "--repeat", "1", "--here", "--no-pin", "--related",
        "--plot", str(tmp_path / "hierarchy.svg"),
    )  # fmt: skip
    assert result["disagreements"] == []
    assert [(r["experiment"], r["x"]) for r in result["results"]] == [
        ("1", 1), ("1", 2), ("2", 3), ("3", 20), ("4", 300)
    ]  # fmt: skip
    for told in result["results"]:
        assert set(told["contenders"]) == set(CONTENDERS)
        found = told["contenders"]
        assert found["hierarchical"]["matches"] == found["flattened"]["matches"] >= found["hced"]["matches"] > 0
    assert len(panels(result)) == 4  # and no memory
    assert (tmp_path / "hierarchy.svg").read_text(encoding="utf-8").count("Experiment 1, length 3") == 1
    with pytest.raises(ValueError, match="no results"):
        draw({"results": []}, str(tmp_path / "none.svg"))


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own() -> None:
    result = printed("benchmarks.hierarchy", "--experiment", "1", "--layers", "2", "--lengths", "3",
                     "--events", "3_000", "--contenders", "flattened", "--repeat", "1", "--no-pin")  # fmt: skip
    (told,) = result["results"]
    assert told["contenders"]["flattened"]["matches"] > 20
    assert 0 < told["contenders"]["flattened"]["peak_bytes"] < 100 * 2**20
    assert [y for _, _, y, _ in panels(result)] == ["events/s, processor", "peak memory, MiB"]


def test_the_page_has_a_row_for_each_setting_and_sets_figures_beside_the_paper() -> None:
    def told(setting: Setting) -> dict[str, Any]:
        shape = setting.shape
        figures: dict[str, Any] = {
            "matches": 50, "hash": "ab", "cpu_seconds": 0.2, "least_cpu_seconds": 0.2, "events_per_second": 1_000,
            "peak_bytes": 3 * 2**20,
        }  # fmt: skip
        layered = figures if shape.layers == 1 else {**figures, "cpu_seconds": 0.3, "peak_bytes": 12 * 2**20}
        failed = {"failed": "too many"} if shape.layers == 5 else figures
        contenders = {"hierarchical": layered, "flattened": failed, "chosen": figures,
                      "hced": {**figures, "matches": 5, "hash": ""}}  # fmt: skip
        return {**asdict(setting), "x": setting.x, "figure": setting.figure, "contenders": contenders}

    results = [told(s) for s in settings("1", Shape(), 1, lengths=[3])]
    result = {"machine": answers.machine(), "versions": answers.versions(), "median_of": 3, "results": results}
    text = page([result, result])
    assert text.count("| 2 | 3 | 150 | 25,000 | 50 | 1,000 | 1,000 | 1.5 | 1,000 | 12 | 3 | 3 | 1,000 | 5 |") == 2
    too_many = "| 5 | 3 | 150 | 25,000 | 50 | 1,000 | too many partial matches | - | 1,000 | 12 | - | 3 | 1,000 | 5 |"
    assert text.count(too_many) == 2
    assert "conditions on single events 1.5 to 1.5 times" in text
    assert "0 of `hierarchical`, 2 of `flattened`" in text
    assert "10 to 10 % of the matches" in text


# ---- queries that share a pattern


@pytest.mark.slow
@pytest.mark.nightly
def test_queries_that_share_a_pattern_find_what_they_find_alone() -> None:
    said: list[str] = []
    result = shared(3, [50, 400], 2_500, 1, 1, False, said.append, keys=10)
    assert result["disagreements"] == []
    assert [(r["queries"], r["push"]) for r in result["results"]] == [
        ("boxes", 50), ("boxes", 400), ("events", 50), ("events", 400), ("streams", 50), ("streams", 400),
        ("different", 50), ("different", 400),
    ]  # fmt: skip
    assert all(r["matches"] > 10 and r["times"] > 0 for r in result["results"])
    assert len(said) == 9


@pytest.mark.slow
def test_a_query_that_finds_something_else_beside_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.hierarchy import shared as module

    whole = module.pushed
    monkeypatch.setattr(module, "pushed", lambda plans, *rest: (whole(plans, *rest)[0], [(len(plans), 0)] * len(plans)))
    wrong = module.shared(2, [200], 400, 1, 1, False, lambda text: None, keys=5)["disagreements"]
    assert wrong == [f"{kind}, push 200, query {q}" for kind in module.UPPERS for q in (0, 1)]


@pytest.mark.slow
def test_shared_queries_run_small() -> None:
    result = printed("benchmarks.hierarchy", "--shared", "2", "--pushes", "100", "--events", "500", "--repeat", "1",
                     "--no-pin")  # fmt: skip
    assert (result["queries"], result["events"], result["disagreements"]) == (2, 500, [])


# ---- one layer


@pytest.mark.slow
def test_a_named_pattern_alone_finds_what_it_finds_written_out() -> None:
    said: list[str] = []
    result = one_layer([100, 400], 2_000, 2, 1, False, said.append, keys=10)
    assert result["disagreements"] == []
    runs = ("push 100", "push 400", "statement")
    assert [(r["run"], r["shown"]) for r in result["results"]] == [
        (run, shown) for shown in ("its columns", "its columns and times") for run in runs
    ]
    assert all(r["rows"] > 50 and r["times"] > 0 for r in result["results"])
    assert len(said) == 7


@pytest.mark.slow
def test_other_rows_of_a_named_pattern_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.hierarchy import one_layer as module

    monkeypatch.setitem(module.SHOWN, "its columns", ("SELECT k, xv, yv FROM visit WHERE xv < 0.5", ""))
    wrong = module.one_layer([500], 1_000, 1, 1, False, lambda text: None, keys=5)["disagreements"]
    assert wrong == ["push 500, its columns", "statement, its columns"]
