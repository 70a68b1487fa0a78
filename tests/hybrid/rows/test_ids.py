"""Ids of matches as users see them: computed again from the evidence by the document's own words, and the same however
the match was found."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.rows.evidence import join_id
from hybrid.watch.alerts import Alerts
from live.sinks.base import row_ids
from query.plan.fingerprint import fingerprint, fingerprint_of_rows
from tests.docs.documents import blocks
from tests.properties.comparing import fewer

START = dt.datetime(2024, 1, 1)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
VALUES = (5, 3, 4, 2, 6, 1, 3, 3, 2, 7)
PATTERN = "MEASURES A.v AS a PATTERN (A B) DEFINE B AS v < A.v"


def documented() -> Any:
    """The function match_id of docs/identity.md."""
    (block,) = (b for b in blocks("python") if b.path == "docs/identity.md")
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block.text, found)
    return found["match_id"]


def filled(db: hybrid.Database, *streams: str) -> hybrid.Database:
    for name in streams:
        db.create_stream(name, COLUMNS, time="ts", key="k")
        for i, v in enumerate(VALUES):
            row = {"ts": START + dt.timedelta(seconds=i), "k": "ab"[i % 2], "v": v}
            db.push(name, [row], ("x", "y")[i % 2], 100 + i)
    return db


def chains(evidence: pa.Table) -> dict[tuple[str, str], list[tuple[str, str, int]]]:
    """The events of each match, by its side and its id."""
    found: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
    for row in evidence.to_pylist():
        if row["match_id"] is not None:
            event = (row["variable"] or "", row["source"], row["offset"])
            found.setdefault((row["side"], row["match_id"]), []).append(event)
    return found


INPUTS = {
    "a stream": f"one MATCH_RECOGNIZE (PARTITION BY k {PATTERN})",
    "hidden rows": "one MATCH_RECOGNIZE (ALL ROWS PER MATCH PATTERN (A {- B+ -} C) DEFINE B AS v < A.v, C AS v > A.v)",
    "all matches": "one MATCH_RECOGNIZE (MEASURES A.v AS a PATTERN (A B) WITHIN INTERVAL '5' SECOND"
    " SELECTION SKIP TILL ANY MATCH DEFINE B AS v < A.v)",
    "merged streams": "MERGE(one, two) MATCH_RECOGNIZE (MEASURES A.v AS a PATTERN (A B C)"
    " DEFINE B AS stream <> A.stream)",
    "a SELECT": f"(SELECT * FROM one WHERE v > 1) MATCH_RECOGNIZE (ORDER BY ts {PATTERN})",
    "rows of a pattern": "(SELECT * FROM one MATCH_RECOGNIZE (MEASURES LAST(ts) AS ts, LAST(v) AS v PATTERN (X Y)))"
    f" MATCH_RECOGNIZE (ORDER BY ts {PATTERN})",
}


@pytest.mark.parametrize("what", INPUTS)
def test_an_id_is_what_the_document_says(what: str) -> None:
    with filled(hybrid.connect(), "one", "two") as db:
        result = db.sql(f"SELECT * FROM {INPUTS[what]}")
        plans = [fingerprint(factor.plan) for factor in result.plan.factors]
        found = chains(result.evidence())
    assert found
    for (_, name), events in found.items():
        # a row of ALL ROWS PER MATCH has all events of its match behind it
        count = next(n for n in range(1, len(events) + 1) if events[:n] * (len(events) // n) == events)
        assert name in [documented()(plan, events[:count]) for plan in plans]


@pytest.mark.slow
def test_the_id_of_a_joined_row_is_made_of_those_of_its_matches() -> None:
    text = """SELECT * FROM one MATCH_RECOGNIZE (MEASURES LAST(ts) AS t PATTERN (A B) DEFINE B AS v < A.v) AS f
        LEFT JOIN HISTORY OF two FROM f.t - INTERVAL 3 SECOND TO f.t AS h ON h.v = 3
        LEFT JOIN HISTORY OF two FROM f.t - INTERVAL 2 SECOND TO f.t AS g ON g.v = 3"""
    with filled(hybrid.connect(), "one", "two") as db:
        evidence = db.sql(text).evidence().to_pylist()
    joined: dict[str, tuple[set[str], list[str]]] = {}
    for row in evidence:
        live, archive = joined.setdefault(row["join_id"], (set(), []))
        if row["side"] == "pl":
            live.add(row["match_id"])
        else:
            archive.append(row["match_id"])
            assert row["match_id"] == documented()(fingerprint_of_rows("two"), [("", row["source"], row["offset"])])
    assert any(archive for _, archive in joined.values())
    for name, (live, archive) in joined.items():
        (match,) = live
        # Before: the same id whichever of two histories of one stream had joined.
        both = (*archive, *[""] * (2 - len(archive)))
        assert name in (join_id(match, *both), join_id(match, *both[::-1]))


@pytest.mark.slow
def test_ids_are_the_same_live_and_in_the_archive(tmp_path: Path) -> None:
    text = f"SELECT * FROM one {INPUTS['a stream'].removeprefix('one ')}"
    with hybrid.connect(tmp_path) as db:
        db.create_stream("one", COLUMNS, time="ts", key="k")
        alerts = db.watch(text, evidence=True)
        for i, v in enumerate(VALUES):
            row = {"ts": START + dt.timedelta(seconds=i), "k": "ab"[i % 2], "v": v}
            db.push("one", [row], ("x", "y")[i % 2], 100 + i)
        db.advance("one", None)
        live = alerts.fetch().column("match_id").to_pylist()
        kept = [name for _, name in chains(db.sql(text).evidence())]
        db.flush()
        filed = [name for _, name in chains(db.sql(f"-- again\n{text.lower()}").evidence())]
    assert sorted(live) == sorted(kept) == sorted(filed)
    with filled(hybrid.connect(), "one", "two") as db:
        assert sorted(kept) == sorted(name for _, name in chains(db.sql(text).evidence()))
        other = {name for _, name in chains(db.sql(text.replace("one", "two")).evidence())}
    assert len(other) == len(kept)
    assert not other & set(kept)  # the same sources, offsets and pattern, of another stream


@pytest.mark.slow
def test_a_file_may_be_moved(tmp_path: Path) -> None:
    # Before: the path was in the id.
    rows = "ts,v\n" + "".join(f"2024-01-01 00:00:0{i},{v}\n" for i, v in enumerate(VALUES))
    found = []
    for name in ("a.csv", "b c.csv"):
        (tmp_path / name).write_text(rows)
        with hybrid.connect() as db:
            for source in (f"'{tmp_path / name}'", f"(SELECT * FROM read_csv('{tmp_path / name}') WHERE v > 1)"):
                text = f"SELECT * FROM {source} MATCH_RECOGNIZE (ORDER BY ts {PATTERN})"
                found.append([name for _, name in chains(db.sql(text).evidence())])
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]


OTHERS = {
    "timeouts": "ALL ROWS PER MATCH TIMEOUT ROWS PATTERN (A B C) WITHIN INTERVAL '4' SECOND",
    "unmatched rows": "ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A B C) WITHIN INTERVAL '4' SECOND",
    "both": "ALL ROWS PER MATCH WITH UNMATCHED ROWS TIMEOUT ROWS PATTERN (A B C) WITHIN INTERVAL '4' SECOND",
    "empty matches": "ALL ROWS PER MATCH PATTERN (A B C | A*)",
    "by the reference": "ALL ROWS PER MATCH PATTERN (A B C | A*)",
}
LETTERS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "VARCHAR"}


def of_others(what: str) -> str:
    """A query over the stream s that gives a row for each row of its matches, timeouts and unmatched rows."""
    opaque = " AND md5(v) <> ''" if what == "by the reference" else ""
    return f"""SELECT * FROM s MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES CLASSIFIER() AS variable
        {OTHERS[what]} DEFINE A AS v = 'a'{opaque}, B AS v = 'b'{opaque}, C AS v = 'c')"""


def letters(steps: list[tuple[int, str, str]]) -> list[dict[str, Any]]:
    """Rows of (seconds since the one before, key, value); no two of a time."""
    rows, at = [], START
    for seconds, k, v in steps:
        at += dt.timedelta(seconds=seconds)
        rows.append({"ts": at, "k": k, "v": v})
    return rows


def delivered(alerts: Alerts) -> list[tuple[dict[str, Any], str]]:
    """The next rows, each with the id by which a sink sends it."""
    table = alerts.fetch()
    return list(zip(table.to_pylist(), map(str, row_ids(table))))


def expected(plan: str, what: str, rows: list[dict[str, Any]], found: dict[str, Any], number: int) -> str | None:
    """The id of a row of no match by the document, None for a row of a match. number: of the row in its attempt."""
    key = [(i, row) for i, row in enumerate(rows) if row["k"] == found["k"]]
    at = next(n for n, (_, row) in enumerate(key) if row["ts"] == found["ts"]) - number
    name = "timeout" if found.get("timeout") else "unmatched" if "UNMATCHED" in OTHERS[what] else "empty"
    if found["variable"] is not None and name != "timeout":
        return None
    labels = found["labels"] if name == "timeout" else []
    events = [(label, "default", key[at + n][0]) for n, label in enumerate(labels)]
    mine: str = documented()(plan, events, [(name, "default", key[at][0])])
    return mine


STEPS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from("pq"), st.sampled_from("abcx")), min_size=3, max_size=14)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*greedy quantifier")
@pytest.mark.parametrize("what", OTHERS)
@fewer(4)
@given(steps=STEPS, cuts=st.lists(st.integers(1, 5), min_size=1, max_size=6), fetches=st.booleans())
def test_what_is_no_match_has_an_id_of_its_own(
    what: str, steps: list[tuple[int, str, str]], cuts: list[int], fetches: bool
) -> None:
    # Before: none; a sink hashed the row, so that two alike were one, unless they had been fetched together.
    rows, text = letters(steps), of_others(what)
    with hybrid.connect() as db:
        db.create_stream("s", LETTERS, time="ts", key="k")
        alerts, whole = db.watch(text, evidence=True), db.watch(text, evidence=True)
        found, at = [], 0
        for cut in itertools.cycle(cuts):
            if at >= len(rows):
                break
            db.push("s", rows[at : at + cut])
            found += delivered(alerts) if fetches else []
            at += cut
        db.advance("s", None)
        found += delivered(alerts)
        assert delivered(whole) == found
        plan = fingerprint(alerts.plan.factors[0].plan)
    names = [name for _, name in found]
    assert len(set(names)) == len(names)
    for row, name in found:
        match, _, number = name.partition("/")
        assert expected(plan, what, rows, row, int(number or 0)) in (None, match)


@pytest.mark.slow
def test_what_is_no_match_has_its_id_after_a_restart_and_in_the_archive(tmp_path: Path) -> None:
    rows = letters([(1, "p", "a"), (9, "p", "a"), (9, "p", "x"), (1, "q", "x")])
    text, found = of_others("both"), []
    for i in range(len(rows)):
        with hybrid.connect(tmp_path) as db:
            db.create_stream("s", LETTERS, time="ts", key="k")
            alerts = db.watch(text, name="both", evidence=True)
            db.push("s", rows[i : i + 1])
            if i % 2:  # else they are pending as the database closes
                found += delivered(alerts)
    with hybrid.connect(tmp_path) as db:
        alerts = db.watch(text, name="both", evidence=True)
        db.advance("s", None)
        found += delivered(alerts)
        plan, evidence = fingerprint(alerts.plan.factors[0].plan), db.sql(text).evidence().to_pylist()
    assert len(found) == 6  # four unmatched rows and two timeouts, alike but for their times
    assert [expected(plan, "both", rows, row, 0) for row, _ in found] == [name for _, name in found]
    assert {line["match_id"] for line in evidence} == {name for row, name in found if row["timeout"]}
