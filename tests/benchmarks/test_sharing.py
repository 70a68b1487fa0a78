"""The experiments of [SHARING]: streams with the rates they promise, workloads of queries that differ, and contenders
that find the rows of the reference."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.sharing.contenders import CONTENDERS, Digest, Push, Workload, pieces_of, run
from benchmarks.sharing.experiments import Setting, disagreements, measured, settings
from benchmarks.sharing.picture import draw, panels
from benchmarks.sharing.streams import STREAMS, TRIPS, Stream, bus, delivery, simulated, stock
from benchmarks.sharing.workloads import DELIVERIES, Shape, nested, plans_of, workload
from matching.types import arrow_type
from matching.workload.template import template
from query.plan.fingerprint import fingerprint
from query.trend_reference import trend_rows
from simulator.scenario import MINUTE_US
from tests.benchmarks.test_benchmarks import printed
from tests.properties.comparing import is_nightly


def times_of(events: pa.Table) -> np.ndarray:
    return events["ts"].cast(pa.int64()).to_numpy()


# ---- streams


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_seed_gives_the_same_events_in_order_of_time(name: str) -> None:
    once, again, other = (STREAMS[name](seed, 3_000, 1, 32) for seed in (7, 7, 8))
    assert once.events.equals(again.events)
    assert not once.events.equals(other.events)
    assert (np.diff(times_of(once.events)) >= 0).all()
    assert len(once.events) == 3_000
    assert set(once.events["type"].to_pylist()) == set(once.types)
    assert [(f.name, f.type) for f in once.events.schema] == [
        (f.name, arrow_type(f.type)) for f in once.schema.fields
    ]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("events", [0, 1])
def test_a_stream_may_be_short(name: str, events: int) -> None:
    stream = STREAMS[name](1, events, 1, 128)
    assert len(stream.events) == events
    assert all(stream.levels.values())


@pytest.mark.parametrize("name", ["stock", "bus", "simulated"])
def test_levels_part_the_events(name: str) -> None:
    stream = STREAMS[name](1, 5_000, 1, 128)
    for attribute, levels in stream.levels.items():
        for level in levels:
            assert 0.2 < pc.mean(pc.cast(pc.greater(stream.events[attribute], level), pa.float64())).as_py() < 0.8


@pytest.mark.parametrize("make", [stock, bus, simulated])
def test_rates_change_three_to_five_fold_at_the_begin_of_a_phase(make: Callable[..., Stream]) -> None:
    stream = make(2, 60_000, phases=5, keys=20)
    times, kinds = times_of(stream.events), np.array(stream.events["type"].to_pylist())
    bounds = [*stream.phases_us, 2 * stream.phases_us[-1] - stream.phases_us[-2]]
    assert times[0] >= bounds[0]
    changes = {"up": 0, "down": 0, "same": 0}
    for kind in stream.types:
        counts = np.histogram(times[kinds == kind], bounds)[0]
        for before, after in pairwise(counts[: len(bounds) - 2]):  # the last phase may be cut short
            ratio = after / before
            if 0.6 < ratio < 1.6:
                changes["same"] += 1
            elif ratio > 1:
                assert 2.2 < ratio < 6
                changes["up"] += 1
            else:
                assert 2.2 < 1 / ratio < 6
                changes["down"] += 1
    assert min(changes.values()) > 3


def test_a_steady_stream_has_one_phase() -> None:
    stream = simulated(1, 20_000, phases=1)
    halves = [pc.value_counts(half["type"]).to_pylist() for half in (stream.events[:10_000], stream.events[10_000:])]
    first, second = ({each["values"]: each["counts"] for each in half} for half in halves)
    assert len(stream.phases_us) == 1
    assert all(0.75 < first[kind] / second[kind] < 1.33 for kind in stream.types)


def test_a_company_has_one_tick_a_minute_and_opens_where_it_closed() -> None:
    events = stock(3, 8_000, keys=8, types=8).events
    rows = events.to_pylist()
    assert len({(row["ts"], row["company"]) for row in rows}) == len(rows)
    assert not (times_of(events) % MINUTE_US).any()
    last: dict[str, int] = {}
    for row in rows:
        assert row["low"] <= min(row["open"], row["close"]) <= max(row["open"], row["close"]) <= row["high"]
        assert row["open"] == last.get(row["company"], row["open"])
        last[row["company"]] = row["close"]
    assert len(last) == 64
    kinds = {(row["sector"], row["company"]): row["type"] for row in rows}
    assert len(kinds) == 64
    assert len({(sector, kind) for (sector, _), kind in kinds.items()}) == 64


def test_companies_may_be_the_types() -> None:
    stream = stock(1, 2_000, keys=1, types=200)
    assert len(stream.types) == 200
    assert set(stream.events["sector"].to_pylist()) == {0}


def test_buses_have_the_trips_of_the_paper_and_lose_time_in_congestion() -> None:
    events = bus(1, 60_000, phases=1, lines=20, keys=60).events
    trips = events["trip"].to_numpy()
    assert trips.min() >= 0
    assert trips.max() < TRIPS
    assert len(np.unique(trips)) > 3_000
    congestion, delay = events["congestion"].to_numpy(), events["delay"].to_numpy()
    assert 0.25 < congestion.mean() < 0.42
    order = np.argsort(trips, kind="stable")
    same = np.diff(trips[order]) == 0
    step, jam = np.diff(delay[order])[same], congestion[order][1:][same] == 1
    assert abs(step[jam].mean() - 20) < 2
    assert abs(step[~jam].mean() + 10) < 2


ORDER = re.compile(r"((A|W)R(PT{1,3}){1,4}(D|C))*((A|W)(R((PT{1,3})*(PT{0,3})?)?)?)?")


def test_drivers_take_one_order_after_the_other() -> None:
    stream = delivery(1, 6_000, keys=30)
    rows = stream.events.to_pylist()
    letters = dict(zip(stream.types, "AWRPTDC", strict=True))
    of: dict[int, str] = {}
    for row in rows:
        of[row["driver_id"]] = of.get(row["driver_id"], "") + letters[row["type"]]
        assert (row["speed"] is not None) == (row["duration"] is not None) == (row["type"] == "Travel")
        assert (row["place"] is not None) == (row["type"] == "Dropoff")
    assert len(of) == 30
    assert all(ORDER.fullmatch(taken) for taken in of.values())
    assert len({(row["driver_id"], row["district"]) for row in rows}) == 30
    speeds = stream.events["speed"].drop_null().to_numpy()
    assert (speeds.min(), speeds.max()) == (3, 60)
    assert 0.3 < (speeds < 13).mean() < 0.55
    with pytest.raises(ValueError, match="stay the same"):
        delivery(1, 10, phases=2)


# ---- workloads


STOCK = stock(1, 2_000, 1)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "shape", [Shape(40), Shape(40, kleene=0.0), Shape(40, kleene=1.0, length=10), Shape(40, kleene=1.0, depth=5)]
)
def test_queries_differ_and_share_windows_and_partition(shape: Shape) -> None:
    texts = workload(STOCK, shape, 3)
    plans = plans_of(STOCK.schema, texts)
    assert len(plans) == len(set(texts.values())) == len({fingerprint(plan) for plan in plans.values()}) == 40
    assert texts == workload(STOCK, shape, 3)
    assert texts != workload(STOCK, shape, 4)
    asked = set()
    for plan in plans.values():
        assert plan.trends is not None
        asked.add((plan.trends.within_us, plan.trends.slide_us, tuple(c.name for c in plan.partition_by)))
    assert asked == {(30 * MINUTE_US, 10 * MINUTE_US, ("sector",))}
    assert len({re.search(r"PATTERN (.*)", text)[1] for text in texts.values()}) > 15  # type: ignore[index]
    assert len({text.partition("\n")[0] for text in texts.values()}) > 30
    assert 20 < sum("GROUP BY" in text for text in texts.values()) < 36
    assert 8 < sum(" AND " in text for text in texts.values()) < 36


def test_a_smaller_workload_is_the_begin_of_a_larger_one() -> None:
    small, large = (list(workload(STOCK, Shape(n), 1).items()) for n in (12, 70))
    assert large[:12] == small


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_the_share_of_kleene_queries_is_as_asked(share: float) -> None:
    texts = workload(STOCK, Shape(50, kleene=share), 1)
    assert sum("+" in text for text in texts.values()) == round(50 * share)


@pytest.mark.parametrize(("length", "depth"), [(1, 1), (2, 1), (10, 1), (1, 3), (2, 5), (4, 3)])
def test_kleene_patterns_are_as_long_and_deep_as_asked(length: int, depth: int) -> None:
    texts = workload(STOCK, Shape(10, kleene=1.0, length=length, depth=depth), 1)
    inner = rf"\(SEQ\((\w+, ){{{length - 1}}}\w+\)\)\+" if length > 1 else r"\w+\+"
    for text in texts.values():
        assert text.count("+") == depth
        assert re.search(inner, text)


def test_nested_patterns_are_those_of_the_paper() -> None:
    assert nested(["A", "B", "C", "D"], 2) == "(SEQ(A, (SEQ(B, C))+, D))+"
    assert nested(["B"], 1) == "B+"


def test_a_core_is_shared_by_thirty_queries() -> None:
    texts = list(workload(STOCK, Shape(60, kleene=1.0), 1).values())
    cores = [re.search(r"\(SEQ\(\w+, \w+\)\)\+", text)[0] for text in texts]  # type: ignore[index]
    assert len(set(cores[:30])) == len(set(cores[30:])) == 1
    assert cores[0] != cores[30]
    alike = workload(STOCK, Shape(60, kleene=1.0, core_queries=60), 1).values()
    assert all(cores[0] in text for text in alike)  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("kleene", [0.0, 1.0])
def test_each_transition_of_a_core_is_of_all_its_queries(kleene: float) -> None:
    """As the engine lays the queries on one another."""
    plans = plans_of(STOCK.schema, workload(STOCK, Shape(30, kleene=kleene, length=3), 1))
    found = template(plans)
    shared = [edge for edge, queries in found.transitions.items() if len(queries) == len(plans)]
    assert found.exclusive
    assert len(shared) == (3 if kleene else 2)
    assert len(set(found.transitions.values())) > 15


@pytest.mark.slow
def test_types_follow_each_other_in_one_order_in_all_queries() -> None:
    """A template of queries without Kleene has no cycle."""
    plans = plans_of(STOCK.schema, workload(STOCK, Shape(120, kleene=0.0), 1))
    order = TopologicalSorter[int]()
    for before, after in template(plans).transitions:
        order.add(after, before)
    assert len(list(order.static_order())) > 12


def test_a_stream_may_have_too_few_types() -> None:
    with pytest.raises(ValueError, match="12 types in the core and two beside it, of 13"):
        workload(simulated(1, 10, types=13), Shape(3, length=4, depth=5), 1)


# ---- contenders


def by_reference(workload: Workload, events: pa.Table) -> dict[str, list[tuple[object, ...]]]:
    """Rows as values of Python: BIGNUM as int."""
    rows = events.set_column(0, "ts", events["ts"].cast(pa.int64())).to_pylist()
    return {
        name: [(r.start_us, r.end_us, *r.group, *r.values) for r in trend_rows(plan, rows, [r["ts"] for r in rows])]
        for name, plan in workload.plans.items()
    }


def values_of(table: pa.Table) -> list[tuple[object, ...]]:
    whole = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns
    ]
    return [
        tuple(int(v) if isinstance(v, str) and v.lstrip("-").isdigit() else v for v in row)
        for row in zip(*(column.to_pylist() for column in whole), strict=True)
    ]


def small(name: str) -> tuple[Workload, pa.Table, int]:
    """A workload with windows of few events, its events, and its slide."""
    if name == "delivery":
        stream, texts, slide = delivery(1, 150, keys=4, districts=2), DELIVERIES, 5
    else:
        shape = {
            "mixed": Shape(8, within=6, slide=3), "nested": Shape(8, kleene=1.0, length=1, depth=2, within=6, slide=2),
            "sequences": Shape(8, kleene=0.0, sequence=2, within=12, slide=12),
        }[name]  # fmt: skip
        stream, slide = simulated(2, 200, phases=2, types=6, keys=2), shape.slide
        texts = workload(stream, shape, 1)
    return Workload(stream.schema, texts, plans_of(stream.schema, texts)), stream.events, slide


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["delivery", "mixed", "nested", "sequences"])
def test_contenders_find_what_the_reference_finds(name: str) -> None:
    asked, events, slide = small(name)
    expected = by_reference(asked, events)
    assert sum(map(bool, expected.values())) > len(expected) / 2
    for rows in (20, 1000) if is_nightly() else (20,):
        pieces = pieces_of(events, slide, rows)
        hashes = set()
        for contender in CONTENDERS.values():
            found: dict[str, list[tuple[object, ...]]] = {query: [] for query in expected}
            digest = Digest()

            def take(query: str, table: pa.Table, found: dict = found, digest: Digest = digest) -> None:
                digest(query, table)
                found[query] += values_of(table)

            result = run(contender, asked, pieces, take)
            assert found == expected
            assert digest.rows == {query: len(rows) for query, rows in expected.items() if rows}
            assert len(result.latencies) == sum(len({row[1] for row in rows}) for rows in expected.values())
            assert result.latencies.min() > 0
            hashes.add(digest.hash())
        assert len(hashes) == 1


def test_batches_end_where_windows_may() -> None:
    events = simulated(1, 2_000, keys=2).events
    pieces = pieces_of(events, 10, rows=50)
    assert pa.Table.from_batches([p.batch.columns for p in pieces]).equals(events.combine_chunks())
    assert pieces[-1].until_us is None
    full = 0
    for piece, following in pairwise(pieces):
        times = piece.batch.ts_us
        assert piece.until_us == following.batch.ts_us[0]
        assert times[0] // (10 * MINUTE_US) == times[-1] // (10 * MINUTE_US)
        assert 0 < len(piece.batch) <= 50
        if len(piece.batch) == 50:
            full += 1
        else:
            assert times[-1] // (10 * MINUTE_US) < following.batch.ts_us[0] // (10 * MINUTE_US)
    assert full > 10


def test_a_digest_depends_on_rows_and_queries_and_not_on_their_order() -> None:
    rows = pa.table({"n": ["1", "22", "3"], "x": [1.5, 2.5, -0.0]})

    def digest(*parts: tuple[str, pa.Table]) -> str:
        found = Digest()
        for name, part in parts:
            found(name, part)
        return found.hash()

    whole = digest(("a", rows), ("b", rows[:1]))
    assert whole == digest(("b", rows[:1]), ("a", rows[2:]), ("a", rows[:2]))
    assert whole != digest(("b", rows[1:2]), ("a", rows))
    assert whole != digest(("b", rows), ("a", rows[:1]))
    assert whole != digest(("a", rows))


def test_what_contenders_disagree_on_is_said() -> None:
    setting = settings("1", 100, 1, queries=[12])[0]
    same = {"rows": 3, "hash": "ab", "same_each_round": True}
    assert disagreements(setting, {"none": same, "other": same}) == []
    (fault,) = disagreements(setting, {"none": same, "other": {**same, "hash": "ac"}})
    assert fault == "experiment 1, stock, queries 12: hash: other has ac, none has ab"
    assert len(disagreements(setting, {"none": {**same, "same_each_round": False}})) == 1


@pytest.mark.slow
def test_a_contender_that_loses_rows_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.sharing.__main__ import main

    def forgetful(workload: Workload) -> Push:
        push = CONTENDERS["none"](workload)
        return lambda piece: ((name, rows.slice(1)) for name, rows in push(piece))

    monkeypatch.setitem(CONTENDERS, "feed", forgetful)
    few = ["--events", "400", "--keys", "10", "--repeat", "1"]
    assert main(["--experiment", "delivery", "--here", "--no-pin", *few]) == 1
    assert "feed has" in capsys.readouterr().err


def test_the_page_is_what_was_measured() -> None:
    from benchmarks.sharing import page

    measured = json.loads(page.MEASURED.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.render(measured), "run python -m benchmarks.sharing.page"
    assert page.PICTURE.stat().st_size < 60_000
    with pytest.raises(ValueError, match="same rows"):
        page.together([{"disagreements": ["other rows"], "results": []}])


def test_settings_are_the_papers() -> None:
    assert [s.x for s in settings("1", 10, 1)] == [12, 36, 60, 84, 120]
    assert {(s.stream, s.shape.kleene) for s in settings("1", 10, 1) if s.shape} == {("stock", 0.6)}
    second = settings("2", 10, 1)
    assert {s.by: [t.x for t in second if t.by == s.by] for s in second} == {
        "queries": [40, 80, 120, 160, 200], "length": [2, 4, 6, 8, 10], "depth": [1, 2, 3, 4, 5],
        "kleene": [0.2, 0.4, 0.6, 0.8, 1.0],
    }  # fmt: skip
    assert {s.shape.queries for s in second if s.shape and s.by != "queries"} == {100}
    assert {s.stream for s in settings("3", 10, 1)} == {"stock", "bus"}
    with pytest.raises(ValueError, match="no experiment 4"):
        settings("4", 10, 1)


# ---- the run


@pytest.mark.slow
def test_the_experiments_run_small() -> None:
    result = printed(
        "benchmarks.sharing", "--experiment", "1", "2", "3", "--events", "300", "--queries", "3", "--size", "3",
        "--lengths", "4", "--depths", "2", "--shares", "0.5", "--repeat", "1", "--keys", "8", "--here", "--no-pin",
    )  # fmt: skip
    assert result["disagreements"] == []
    assert [r["x"] for r in result["results"]] == [3, 3, 4, 2, 0.5, 3, 3]
    for told in result["results"]:
        assert set(told["contenders"]) == {"none", "feed"}
        assert min(c["query_events_per_second"] for c in told["contenders"].values()) > 0
    assert len(panels(result)) == 6  # two of experiment 1, and no memory


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own() -> None:
    result = printed("benchmarks.sharing", "--experiment", "3", "--stream", "simulated", "--events", "2_000",
                     "--queries", "8", "--keys", "8", "--modes", "none", "--repeat", "1", "--no-pin")  # fmt: skip
    (told,) = result["results"]
    assert told["contenders"]["none"]["rows"] > 20
    assert 0 < told["contenders"]["none"]["peak_bytes"] < 100 * 2**20
    assert [(title, y) for title, _, y, _ in panels(result)] == [("Experiment 3, simulated", "peak memory, MiB")]


@pytest.mark.slow
def test_the_picture_has_a_line_for_each_contender(tmp_path: Path) -> None:
    def told(setting: Setting, seconds: float) -> dict[str, Any]:
        contenders = {"none": {"cpu_seconds": seconds}, "feed": {"cpu_seconds": seconds / 2}}
        return {"experiment": "2", "stream": "bus", "by": setting.by, "x": setting.x, "contenders": contenders}

    result = {"results": [told(s, s.x + 1) for s in settings("2", 10, 1) if s.by == "depth"]}
    ((title, x, y, lines),) = panels(result)
    assert (title, x, y) == ("Experiment 2, bus", "Kleene patterns around each other", "processor seconds")
    assert lines["feed"] == [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5), (5, 3.0)]
    draw(result, str(tmp_path / "sharing.svg"))
    assert (tmp_path / "sharing.svg").read_text(encoding="utf-8").count("Experiment 2, bus") == 1
    with pytest.raises(ValueError, match="no results"):
        draw({"results": []}, str(tmp_path / "none.svg"))


@pytest.mark.slow
def test_latency_and_throughput_are_told() -> None:
    setting = Setting("1", "queries", "simulated", 1_500, 2, 8, Shape(5), 1)
    told = measured(setting, "feed", 1, False)
    assert told["queries"] == 5
    assert told["queries_with_rows"] == 5
    for latency in (told["latency_ms"], told["cpu_latency_ms"]):
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p100"]
        assert 0 < latency["mean"] <= latency["p100"]
    assert told["query_events_per_second"] == pytest.approx(5 * told["events_per_second"], rel=0.01)
