"""docs/hierarchies.md: the patterns are those of the demos, and the numbers those of the simulator."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from hybrid.demo import delays
from simulator.thieves import LAYERS, TOGETHER_QUERY, thieves
from tests.docs.documents import ROOT, blocks

DOCUMENT = "docs/hierarchies.md"


def rows_behind(heading: str) -> dict[str, list[int]]:
    """The numbers of each line of the first table behind a text."""
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8").partition(heading)[2]
    lines = re.findall(r"^\| ([\w ]+?) \| (.*?) \|$", text.partition("\n\n")[0], re.MULTILINE)
    return {name: [int(cell) for cell in rest.split(" | ") if cell.isdigit()] for name, rest in lines}


def test_the_patterns_are_those_of_the_demos() -> None:
    shown = [block.text for block in blocks("sql") if block.path == DOCUMENT]
    assert shown == [*LAYERS.values(), TOGETHER_QUERY, delays.GROWTH, *delays.LAYERS.values()]


@pytest.mark.slow
def test_the_picture_is_of_the_ring_that_the_demo_shows() -> None:
    planted = thieves(1)
    begin = min(case["t0"] for case in planted.scenario.cases.to_pylist() if case["kind"] == "ring")
    (ring,) = (row for row in planted.truths["ring"].to_pylist() if row["t0"] == begin)
    picture = (ROOT / "docs" / "thieves.svg").read_text(encoding="utf-8")
    assert all(f">{ring[nth]}</text>" in picture for nth in ("first", "second", "third"))
    assert f"at the {ring['shelf']} shelf</text>" in picture


@pytest.mark.slow
def test_the_numbers_are_those_of_the_simulator() -> None:
    planted = thieves(1)
    counts = {name: table.num_rows for name, table in planted.truths.items()}
    assert rows_behind("| layer | planted") == {name: [n, n, 0, 0] for name, n in counts.items()}
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    stole = found = 0
    for one in planted.people.to_pylist():
        by_kind[one["kind"].replace("_", " ")][0] += 1
        by_kind[one["kind"].replace("_", " ")][1] += one["stole"]
        by_kind[one["kind"].replace("_", " ")][2] += one["thefts"] > 0
        stole += one["stole"]
        found += one["stole"] and one["thefts"] > 0
    told = rows_behind("| who | trips")
    assert told == {kind: by_kind[kind] for kind in told}
    assert set(told) == {kind for kind, (_, did, shown) in by_kind.items() if did != shown}
    text = " ".join((ROOT / DOCUMENT).read_text(encoding="utf-8").split())
    assert f"of {stole} trips on which something was stolen, {found} are found" in text
