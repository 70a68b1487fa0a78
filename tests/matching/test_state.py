"""What a state holds, by name, is pinned: another name without need makes queries go through their events again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matching.by_reference import ReferenceMatcher
from matching.matcher import KernelMatcher, make_matcher
from matching.spill import Spill
from matching.state import unpack, unpack_head
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from tests.events import batch_of
from tests.matching.memory_store import MemoryStore
from tests.strategies import SCHEMA

BODIES = {
    "table": "PATTERN (A B) DEFINE A AS v < 3, B AS v > 3",
    "starts": "AFTER MATCH SKIP TO NEXT ROW PATTERN (A B+ C) WITHIN INTERVAL '9' SECOND"
    " DEFINE A AS v < 3, B AS v > 3, C AS v < 2",
    "lists": "PATTERN (A B+ C) DEFINE A AS v < 3, B AS v > A.v, C AS v < A.v",
    "blocks": "PATTERN (A B) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS v < 3, B AS v > A.v",
    "graph": "PATTERN (A B+ C) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL ANY MATCH"
    " DEFINE A AS v < 3, B AS v > 3, C AS v < 2",
    "merged": "PATTERN (A B+ C) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL ANY MATCH"
    " DEFINE A AS v < 3, B AS v > 3, C AS k = 'a' AND count(B.v) > 1",
}


def plan_of(body: str) -> Plan:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {body})"
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


def matcher_of(body: str, spill: Spill | None = None) -> KernelMatcher:
    found = make_matcher(plan_of(body), spill=spill)
    assert isinstance(found, KernelMatcher)
    return found


def fed(matcher: KernelMatcher) -> KernelMatcher:
    nothing = dict.fromkeys(SCHEMA.names)
    rows: list[dict[str, Any]] = [nothing | {"ts": i, "k": "ab"[i % 2], "v": i % 7} for i in range(8)]
    matcher.push(batch_of(SCHEMA, rows))
    return matcher


def names_of(engine: str) -> dict[str, list[str]]:
    """The arrays of a state, and of the records of partitions that are out."""
    _, arrays = unpack(fed(matcher_of(BODIES[engine])).snapshot())
    _, out = unpack(fed(matcher_of(BODIES[engine], Spill(0, MemoryStore()))).snapshot())
    (layout,) = json.loads(out["spill.head"].tobytes())["layouts"]
    return {
        "state": sorted(arrays), "spilled": sorted({*out} - {*arrays}),
        "records": sorted(f"{block}.{column}" for block, columns in layout for column, *_ in columns),
    }


#: Arrays of counters and of lines have places in place of names: with them STATE_VERSION changes too.
PINNED = json.loads((Path(__file__).parent / "state_names.json").read_text())


@pytest.mark.parametrize("engine", BODIES)
def test_the_names_in_a_state_are_pinned(engine: str) -> None:
    """Another name for an attribute is no reason for another name here: see the TAGS of the matching package. Where
    what is kept has changed, STATE_VERSION is to be raised, and these are written anew."""
    assert names_of(engine) == PINNED[engine]


@pytest.mark.parametrize("engine", BODIES)
def test_a_state_fits_where_its_numbers_mean_the_same(engine: str) -> None:
    matcher = fed(matcher_of(BODIES[engine]))
    state = matcher.snapshot()
    assert unpack_head(state)["engine"] == engine
    again = matcher_of(BODIES[engine].replace(" DEFINE", "  DEFINE"))
    assert again.fits(state)
    again.restore(state)
    assert again.snapshot() == state
    for other in BODIES:
        assert matcher_of(BODIES[other]).fits(state) == (other == engine)
    changed = replace(again.program, accept=again.program.accept[::-1])
    again._planned = replace(again._planned, program=changed)
    assert not again.fits(state)
    with pytest.raises(DataError, match="this matcher runs plan"):
        again.restore(state)


def test_the_names_of_numbers_over_several_values_are_pinned() -> None:
    body = "PATTERN (A B) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS v < 3, B AS v = A.v"
    matcher = fed(matcher_of(body))
    assert [c.name for c in matcher.chosen.looked_up] == ["v"]
    _, arrays = unpack(matcher.snapshot())
    assert sorted(name for name in arrays if name.startswith("number.")) == PINNED["numbers over several values"]


def test_the_reference_knows_its_states() -> None:
    one, other = (ReferenceMatcher(plan_of(BODIES[engine])) for engine in ("table", "lists"))
    assert one.fits(one.snapshot())
    assert not other.fits(one.snapshot())
    assert not other.fits(b"HREF")
