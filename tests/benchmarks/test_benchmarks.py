"""Every benchmark runs small in the ordinary suite, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archive.spark.conftest import why_no_spark
from tests.programs import run_module

ROOT = Path(__file__).parent.parent.parent


def printed(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON object that a benchmark prints."""
    run = run_module(ROOT, module, *arguments)
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.slow
def test_v_pattern_contenders_agree() -> None:
    result = printed("benchmarks.v_pattern", "--rows", "20_000", "--symbols", "50", "--repeat", "1")
    full = {name: r for name, r in result["contenders"].items() if r["rows"] == 20_000}
    assert {"hybrid watch", "hybrid sql", "hybrid watch, archiving", "numba by hand"} <= set(full)
    assert len({(r["matches"], r["hash"]) for r in full.values()}) == 1
    assert full["hybrid watch"]["matches"] > 1000
    assert len(result["drawn"]) == 3
    for drawn in result["drawn"]:
        assert drawn["hybrid watch"]["matches"] == drawn["hybrid sql"]["matches"] > 0


@pytest.mark.slow
def test_the_log_changes_no_event() -> None:
    result = printed("benchmarks.log", "--batches", "1", "500", "--events", "2_000", "--repeat", "1")
    for size, count in (("1", 2_000), ("500", 2_000)):
        assert {policy: told["events"] for policy, told in result["batches"][size].items()} == dict.fromkeys(
            ("None", "os", "fsync"), count
        )
        assert all(told["events_per_second"] > 0 for told in result["batches"][size].values())


@pytest.mark.slow
def test_all_rows_agrees_with_code_by_hand() -> None:
    result = printed("benchmarks.all_rows", "--rows", "20_000", "--symbols", "50", "--repeat", "1")
    ours, by_hand = result["contenders"]["hybrid sql"], result["contenders"]["numba by hand"]
    assert (ours["matches"], ours["hash"]) == (by_hand["matches"], by_hand["hash"])
    assert ours["matches"] > 5000
    assert result["ratio"] > 0


@pytest.mark.slow
def test_live_queries_give_the_rows_of_statements() -> None:
    result = printed("benchmarks.watch", "--rows", "20_000", "--repeat", "1")
    assert set(result["cases"]) == {"q1", "q2", "q3", "q4", "long matches"}
    for case in result["cases"].values():
        assert set(case["ratios"]) == {"watch", "ids", "disk"}
        for way, ratio in case["ratios"].items():
            assert case["matches"]["sql"] == case["matches"][way] > 0
            assert case["hash"]["sql"] == case["hash"][way]
            assert ratio > 0
    assert result["cases"]["long matches"]["matches"]["watch"] > 15_000


@pytest.mark.slow
def test_trends_agree_with_code_by_hand() -> None:
    result = printed("benchmarks.trends", "--rows", "60_000", "--repeat", "1")
    assert len(result["cases"]) == 14
    for case in result["cases"].values():
        assert case["matches"]["rows by hand"] == case["matches"]["kernel"] > 0
        assert case["hash"]["rows by hand"] == case["hash"]["rows"] == case["hash"]["sql"]
        assert all(ratio > 0 for ratio in case["ratios"].values())
    assert result["cases"]["A+ B, 1 x 5,000"]["digits"] > 1_000
    assert result["cases"]["trips, 1 x 20"]["digits"] < 10


@pytest.mark.slow
def test_like_agrees_with_code_by_hand() -> None:
    result = printed("benchmarks.like", "--rows", "20_000", "--symbols", "50", "--repeat", "1")
    assert set(result["columns"]) == {"few distinct", "many distinct"}
    for column in result["columns"].values():
        ours, by_hand = column["contenders"]["hybrid sql"], column["contenders"]["numba by hand"]
        assert (ours["matches"], ours["hash"]) == (by_hand["matches"], by_hand["hash"])
        assert ours["matches"] > 500


@pytest.mark.slow
def test_many_queries_find_together_what_each_finds_alone() -> None:
    result = printed("benchmarks.many", "--rows", "20_000", "--symbols", "50", "--counts", "1", "8")
    assert result["agree"]
    assert [together["queries"] for together in result["together"]] == [1, 8]
    assert result["together"][1]["matches"] > 200
    assert result["never_met"]["queries"] == 8


@pytest.mark.slow
def test_first_row_comes_from_a_warm_and_from_a_new_process() -> None:
    result = printed("benchmarks.first_row", "--runs", "2", "--processes", "1")
    assert result["warm"]["matches"] > 50
    assert result["warm"]["milliseconds"] > 0
    assert set(result["warm"]["profiled"]) == {"parse", "bind", "match and measure", "outer select"}
    assert result["cold"]["matches"] > 50
    assert result["cold"]["seconds"] > result["cold"]["sql"] > 0


@pytest.mark.slow
def test_memory_is_measured_along_the_stream(tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    few = ["--events", "400_000", "--keys", "2_000", "--most", "1.5", "--plot", str(picture)]
    result = printed("benchmarks.memory", *few)
    assert len(result["queries"]) == 3
    for run in result["queries"].values():
        assert run["matches"] > 5000
        assert run["events"][-1] == 400_000
        assert min(run["resident_bytes"]) > 10_000_000
        assert run["ratio"] == pytest.approx(run["last_half_bytes"] / run["second_quarter_bytes"], abs=1e-4)
    assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_every_form_of_a_source_gives_the_same_rows() -> None:
    result = printed("benchmarks.sources", "--events", "3_000", "--repeat", "1")
    assert len(result["events_per_second"]) == 7
    assert min(result["processor_seconds"].values()) > 0


@pytest.mark.slow
def test_an_archive_gives_the_same_events_and_matches(tmp_path: Path) -> None:
    size = ("--directory", str(tmp_path), "--events", "250_000", "--symbols", "100", "--days", "2")
    reads = printed("benchmarks.archive.reads", *size, "--repeat", "2")
    assert reads["files"]["open"] > reads["files"]["closed"] > 0
    for question in reads["reads"].values():
        assert len({(r["rows"], r["hash"]) for r in question.values()}) == 1
        assert all(r["rows"] > 0 for r in question.values())
    few = ("--only", "across symbols", "rare", "carried")  # each search is a process
    searches = printed("benchmarks.archive.search", *size, "--carried", "1_000", "--files", "5", *few)
    assert set(searches["searches"]) == {"across symbols", "rare", "carried"}
    for runs in searches["searches"].values():
        assert len({(r["rows"], r["hash"]) for r in runs.values()}) == 1
        assert all(r["rows"] > 0 for r in runs.values())
    carried = searches["searches"]["carried"].values()
    assert {run["rows"] for run in carried} == {1_000}


@pytest.mark.slow
def test_a_live_match_asks_a_large_history(tmp_path: Path) -> None:
    size = ("--directory", str(tmp_path), "--events", "50_000", "--symbols", "20", "--days", "10")
    found = printed("benchmarks.hybrid.latency", *size, "--matches", "10", "--processes", "1")["strategies"]
    assert set(found) == {"llaa", "sllaa", "auto"}
    assert len({(run["rows"], run["hash"]) for run in found.values()}) == 1
    assert found["llaa"]["rows"] > 10
    assert found["llaa"]["again"]["p50"] > 0


@pytest.mark.slow
def test_a_slow_read_changes_no_row() -> None:
    """The run itself fails where it does."""
    found = printed("benchmarks.hybrid.slow_read", "--seconds", "1.5", "--rate", "20_000", "--repeat", "1")
    assert found["events"] == 30_000
    assert found["rows"] > 15
    assert found["runs"]["slow"]["behind"] > found["runs"]["quick"]["behind"]


@pytest.mark.slow
def test_a_backtest_gives_what_live_gives(tmp_path: Path) -> None:
    """The run itself fails where they differ."""
    size = ("--directory", str(tmp_path / "db"), "--events", "200_000", "--symbols", "100", "--days", "3")
    runs = printed("benchmarks.hybrid.backtest", *size, "--live", "100_000", "--repeat", "1")["runs"]
    assert runs["scan"]["rows"] == 200_000
    assert runs["valleys"]["rows"] > runs["valleys"]["as_live"] > 10_000
    assert all(runs[name]["as_live"] > 0 for name in ("crashes", "joined", "stacked"))


@pytest.mark.slow
def test_appends_with_and_without_upkeep_keep_the_same_events() -> None:
    result = printed("benchmarks.archive.appends", "--appends", "30", "--rows", "50", "--repeat", "3", "--sizes", "100")
    assert set(result["one"]) == {"100 rows"}
    assert {run["events"] for run in result["many"].values()} == {1500}
    assert result["many"]["with upkeep"]["hash"] == result["many"]["without"]["hash"]
    assert result["many"]["without"]["files"] == 30


@pytest.mark.spark
def test_search_by_spark_agrees_with_one_process() -> None:
    if why := why_no_spark():
        pytest.skip(why)
    result = printed("benchmarks.spark.search", "--rows", "30_000", "--symbols", "20", "--memory", "1g")
    assert result["agree"]
    assert all(each["spark"]["matches"] > 50 for each in result["queries"].values())


@pytest.mark.spark
def test_files_archived_by_spark_are_what_one_process_makes_of_them() -> None:
    if why := why_no_spark():
        pytest.skip(why)
    found = printed("benchmarks.spark.ingest", "--rows", "20_000", "--files", "2", "--only", "csv")
    assert found["results"]["csv by Spark"]["sums"] == found["results"]["csv"]["sums"]


@pytest.mark.slow
def test_files_are_archived_whatever_their_format() -> None:
    """The run itself fails where formats give other tables."""
    found = printed("benchmarks.spark.ingest", "--rows", "20_000", "--files", "5", "--master", "")
    assert {name: result["rows"] for name, result in found["results"].items()} == {
        "parquet": 20_000, "csv": 20_000, "ndjson": 20_000, "many": 500,
    }  # fmt: skip


@pytest.mark.slow
def test_the_questions_of_the_tutorial_have_rows() -> None:
    result = printed("benchmarks.tutorial", "--rows", "20_000")
    assert list(result["questions"]) == [
        "Sessions", "A funnel", "A funnel, 2", "A V", "An absence", "An outlier"
    ]  # fmt: skip
    assert all(question["rows"] > 0 for question in result["questions"].values())


@pytest.mark.slow
def test_ctrl_c_ends_a_statement_a_push_and_a_command() -> None:
    cases = ("ORDER BY sorts", "push", "archive verify")
    result = printed("benchmarks.ctrl_c", "--rows", "30_000", "--moments", "2", "--only", *cases)
    assert set(result["cases"]) == set(cases)
    assert all(case["wrong"] == [] and len(case["moments"]) == 2 for case in result["cases"].values())
