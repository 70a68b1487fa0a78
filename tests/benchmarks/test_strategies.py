"""The experiments of what strategies cost: all give the same rows, and the page is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hybrid import page
from tests.benchmarks.test_benchmarks import printed

Result = dict[str, Any]


def result(experiment: str, cases: list[Result], events: int = 50_000) -> Result:
    return {
        "experiment": experiment, "events": events, "symbols": 10, "days": 2, "live": 1_000, "repeat": 3, "seed": 1,
        "machine": {"cpu": "a", "cores": 1, "system": "b", "python": "3"}, "versions": {"c": "1"}, "cases": cases,
    }  # fmt: skip


def case(seconds: dict[str, float], **at: Any) -> Result:
    few = {"matches": 7, "rows": 3, "reads": 5, "files": 2, "cpu": 0.1}
    return {**at, "runs": [{"strategy": name, "seconds": s, **few} for name, s in seconds.items()]}


@pytest.mark.slow
@pytest.mark.nightly
def test_every_strategy_gives_the_same_rows(tmp_path: Path) -> None:
    """The run itself fails where they do not."""
    size = ("--directory", str(tmp_path), "--events", "20_000", "--symbols", "20", "--days", "2")
    few = ("--live", "2_000", "--together", "100", "--repeat", "1", "--grid-live", "400", "--grid-repeat", "1")
    measured = printed("benchmarks.hybrid.strategies", *size, *few)
    assert [(r["experiment"], r["events"]) for r in measured["results"]] == [
        ("sizes", 10_000), ("sizes", 20_000), *((name, 20_000) for name in page.EXPERIMENTS[1:]),
    ]  # fmt: skip
    selectivity, windows, together, memory, grid = (r["cases"] for r in measured["results"][2:])
    assert all(c["runs"][0]["matches"] > 20 for c in selectivity)
    assert selectivity[-1]["runs"][0]["rows"] > 20
    assert windows[0]["runs"][0]["reads"] > windows[-1]["runs"][0]["reads"]
    assert [c["runs"][0]["reads"] for c in together] == [100, 100, 100]
    assert all(0 < c["runs"][1]["reads"] < 100 for c in together)
    assert together[-1]["runs"][0]["rows"] > 20
    files = [c["runs"][0]["files"] for c in memory]
    assert files[0] >= 20 > files[1] > files[2] == files[3] == 0
    assert len(grid) == 24
    assert all(set(cell["seconds"]) == set(page.STRATEGIES) for cell in grid)
    text = page.render(measured)
    assert "With 20,000 archived events auto takes at most 1.25 times" in text
    assert text.count("\n## ") == len(page.EXPERIMENTS)


@pytest.mark.slow
def test_the_page_is_what_was_measured() -> None:
    measured = json.loads(page.MEASURED.read_text(encoding="utf-8"))
    expected = page.render(measured)
    assert page.PAGE.read_text(encoding="utf-8") == expected, "run python -m benchmarks.hybrid.strategies --page"
    assert {r["experiment"] for r in measured["results"]} == set(page.EXPERIMENTS)
    assert page.merged(measured, []) == measured


def test_results_take_the_place_of_the_same_size() -> None:
    before = {"results": [result("sizes", [], 10), result("sizes", [], 30), result("grid", [], 10)]}
    new = [result("grid", [{}], 10), result("windows", [], 10), result("sizes", [{}], 20)]
    found = page.merged(before, new)["results"]
    assert [(r["experiment"], r["events"], len(r["cases"])) for r in found] == [
        ("sizes", 10, 0), ("sizes", 20, 1), ("sizes", 30, 0), ("windows", 10, 0), ("grid", 10, 1),
    ]  # fmt: skip


def test_alaa_is_said_to_be_dearer_only_where_it_is() -> None:
    dear = [result("sizes", [case({"alaa": 3.0, "llaa": 1.5})], n) for n in (10, 20)]
    assert page.sizes_said(dear) == (
        "ALAA takes 2 times as long as LLAA: longer with 10 and 20 archived events. So it is in the paper."
    )
    mixed = [*dear, *(result("sizes", [case({"alaa": s, "llaa": 1.0})], n) for n, s in ((30, 1.02), (40, 0.5)))]
    said = page.sizes_said(mixed)
    assert "0.5 to 2 times" in said
    assert "longer with 10 and 20; shorter with 40; as long, within 5 %, with 30 archived events" in said
    assert "differs from the paper" in said


def test_ollaa_is_said_to_gain_only_where_it_does() -> None:
    fading = [case({"llaa": 4.0, "ollaa": 1.0, "auto": 0.5}, share=0.001),
              case({"llaa": 4.0, "ollaa": 4.0, "auto": 1.0}, share=0.1)]  # fmt: skip
    said = page.selectivity_said(result("selectivity", fading))
    assert "4 times as long as OLLAA at 0.1 %, 1 times at 10 %" in said
    assert "cheaper at 0.1 %, not elsewhere, and the gain fades, as in the paper" in said
    fading[0]["runs"][0]["matches"] = 200  # of 1,000 live events: PA is the rarer one at 10 %, too
    assert "and the gain fades, not as in the paper" in page.selectivity_said(result("selectivity", fading))
    assert "auto takes 0.25 to 0.5 times" in said
    never = [case({"llaa": 1.0, "ollaa": 1.0, "auto": 2.0}, share=share) for share in (0.001, 0.1)]
    assert "nowhere cheaper" in page.selectivity_said(result("selectivity", never))


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ([1.0, 0.9, 0.5, 0.9], ["0.25 to 0.5 times", "less with every", "in the middle is cheapest, as there"]),
        ([3.0, 0.9, 0.8, 0.3], ["longer with 100 events", "least with 3,000", "in the middle is no cheaper"]),
    ],
)
def test_a_middle_sub_window_is_said_to_be_best_only_where_it_is(seconds: list[float], says: list[str]) -> None:
    cases = [case({"llaa": 2.0}, sub_window=None)]
    cases += [case({"sllaa": s}, sub_window=n) for n, s in zip((100, 500, 1000, 3000), seconds, strict=True)]
    said = page.windows_said(result("windows", cases))
    for text in says:
        assert text in said


def test_matches_at_once_are_told_by_case() -> None:
    at = {"of": "one symbol", "spread_s": 600, "range_s": 120}
    said = page.together_said(result("together", [case({"llaa": 4.0, "sllaa": 0.5}, **at)]))
    assert said.endswith("LLAA takes, beside SLLAA, 8 times as long with 2 min of one symbol over 10 min.")


def test_auto_is_held_against_the_best_of_the_others() -> None:
    at = {"live_share": 0.01, "share": 0.1, "live": 100, "matches": 2, "rounds": dict.fromkeys(page.STRATEGIES, 3)}
    costs = ((1.0, 1.5), (1.0, 1.0), (2.0, 1.0), (4.0, 4.0))
    cells = [
        {**at, "hours": hours, "seconds": {"llaa": best, "sllaa": 8.0, "alaa": 8.0, "ollaa": 8.0, "auto": auto}}
        for hours, (best, auto) in enumerate(costs)
    ]
    said = page.grid_said(result("grid", cells))
    assert "in 3 of 4 cells (75 %); 1.00 times in the median, 1.50 at worst (PL 1 %, PA 10 %, 0 h, 100 events)" in said
    assert "The best of the others is LLAA in 4, and takes 1 to 4 s." in said
    assert "LLAA 2, SLLAA 8, ALAA 8 and OLLAA 8" in said
