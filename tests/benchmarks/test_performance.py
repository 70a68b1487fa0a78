"""The performance page is what its figures say, and what makes it works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import latency, performance
from tests.benchmarks.test_benchmarks import ROOT, printed

KEPT = performance.DOCS / "performance.json"


@pytest.mark.slow
def test_latency_runs_small() -> None:
    result = printed("benchmarks.latency", "--keys", "3_000", "--events", "800")
    assert set(result["queries"]) == set(latency.QUERIES)
    for name, r in result["queries"].items():
        assert r["matches"] > 30, name
        assert r["events"] == 700 == sum(n for _, n in r["histogram"])
        times = list(r["us"].values())
        assert times[0] > 0
        assert times == sorted(times)
        assert latency.histogram(r).count("\n") + 1 == len(r["histogram"])


@pytest.mark.slow
@pytest.mark.nightly
def test_latency_draws(tmp_path: Path) -> None:
    result = latency.benchmark(200, 200, 1, progress=False)
    latency.plot(result, str(tmp_path / "latency.png"))
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_run_writes_figures_and_page(tmp_path: Path) -> None:
    arguments = [
        "--rows", "1500", "3000", "--keys", "20", "--repeat", "1", "--only", "q1", "q4", "hybrid sql", "by hand",
        "--latency-keys", "500", "--latency-events", "300", "--folder", str(tmp_path),
    ]  # fmt: skip
    assert performance.main(arguments) == 0
    figures = json.loads((tmp_path / "performance.json").read_text())
    assert [run["rows"] for run in figures["peers"]] == [1500, 3000]
    page = (tmp_path / "performance.md").read_text()
    assert "## 1,500 events" in page
    assert "## 3,000 events" in page
    for run in figures["peers"]:
        assert set(run["questions"]) == {"q1", "q4"}
        for asked in run["questions"].values():
            for name, r in asked["samples"][0]["contenders"].items():
                assert row(page, name, r) == 1


def row(page: str, name: str, r: dict[str, Any]) -> int:
    """How many lines of the page show this result."""
    start = f"| {name} | {r['rows']:,} | "
    end = f" | {r['matches']:,} | `{r['hash'][:8]}` |"
    return sum(line.startswith(start) and line.endswith(end) for line in page.splitlines())


@pytest.mark.skipif(not KEPT.exists(), reason="make performance has not run yet")
def test_the_page_is_that_of_the_kept_figures() -> None:
    figures = json.loads(KEPT.read_text(encoding="utf-8"))
    page = (performance.DOCS / "performance.md").read_text(encoding="utf-8")
    assert page == performance.page(figures)
    versions = figures["peers"][0]["versions"]
    assert {"numba", "pyarrow", "polars"} <= set(versions)
    assert all(f"{name} {version}" in page for name, version in versions.items())
    assert all(run["disagreements"] == [] for run in figures["peers"])


def test_a_contender_that_did_not_run_has_a_reason_and_no_figure() -> None:
    r = {"rows": 10, "seconds": 1.0, "cpu_seconds": 1.0, "events_per_second": 10, "matches": 3, "hash": "ab" * 8}
    asked = {
        "name": "rise", "constants": {}, "skipped": {"flink sql": "make flink installs it"},
        "samples": [{"rows": 10, "keys": 1, "ratios": {}, "contenders": {"numba by hand": r}}],
    }  # fmt: skip
    text = "\n".join(performance.question_section("q1", asked))
    assert "- flink sql: no figure: make flink installs it." in text
    assert not re.search(r"^\| flink sql", text, re.MULTILINE)
    assert row(text, "numba by hand", r) == 1


def test_goals_compare_processor_time() -> None:
    def result(seconds: float, rows: int = 1000) -> dict[str, Any]:
        return {"rows": rows, "cpu_seconds": seconds}

    ours, by_hand, polars = result(0.2), result(0.1), result(0.5)
    contenders = {"hybrid sql": ours, "numba by hand": by_hand, "polars by hand": polars}
    few = {"hybrid sql": result(0.1, 10), "flink cep": result(4.0, 10)}
    run = {"questions": {"q1": {"samples": [{"contenders": contenders}, {"contenders": few}]}}}
    found = {what: (measured, most) for _, what, measured, most in performance.goals(run)}
    assert found == {
        "hybrid sql to numba by hand": (2.0, 3.0),
        "hybrid sql to polars by hand": (0.4, 0.25),
        "hybrid sql to flink cep, processor time an event": (0.0002 / 0.4, 0.01),
    }
    lines = list(performance.goal_section(run))
    assert [line.split("|")[-2].strip() for line in lines[2:5]] == ["yes", "no", "yes"]


def test_the_java_source_stands_beside_what_compiles_it() -> None:
    assert "class FlinkPeer" in (ROOT / "benchmarks" / "peers" / "FlinkPeer.java").read_text(encoding="utf-8")
