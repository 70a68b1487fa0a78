"""Rows joined with history as events: a live pattern over them, in one text and over a stream that they feed, gives
what the archive gives, and what two steps give: the naive answer of the join as a table, and the reference over it."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.database.database import Database
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer
from matching.by_reference import ReferenceMatcher
from tests.hybrid.ends import opened_again
from tests.properties.comparing import drawn_until_told, fewer
from tests.properties.test_hybrid import COLUMNS, KINDS, ON, SECOND_US, STRATEGIES, Case, naive, table

#: over the input {0}
OUTER = (
    "SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES C.t AS f, C.w AS cw, D.t AS l, D.w AS dw "
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (C D)) AS m",
    "SELECT * FROM {0} MATCH_RECOGNIZE (ORDER BY t MEASURES FIRST(k) AS k1, count(*) AS n, sum(w) AS s, LAST(t) AS l "
    "PATTERN (C D+) WITHIN INTERVAL 5 SECOND DEFINE D AS w >= PREV(w)) AS m",
    "SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES C.w AS cw, D.w AS dw, D.t AS l "
    "PATTERN (C ~X D) WITHIN INTERVAL 6 SECOND SELECTION SKIP TILL NEXT MATCH "
    "DEFINE D AS w > C.w, X AS w IS NULL) AS m",
    "FROM {0} AS r PATTERN SEQ(r c, r d) WHERE skip_till_any_match(c, d) {{ [k] and c.w <= d.w }} WITHIN 4 seconds "
    "RETURN c.w AS cw, d.w AS dw, d.t AS l",
)


@dataclass(frozen=True)
class Run:
    """How the events come: those of `e` and, if the history is another stream, the same ones of `h`, each in its own
    batches. kill: after which of the steps the process ends, -1: never."""

    apart: bool
    seed: int
    kill: int
    how: tuple[str, str | None]


#: Patterns of live matches and of the history, most of which match often.
LIVE = (
    "PATTERN (P) WITHIN INTERVAL '4' SECOND DEFINE P AS v >= 1",
    "PATTERN (P Q) WITHIN INTERVAL '4' SECOND DEFINE P AS v IS NOT NULL",
    "PATTERN (P Q*) WITHIN INTERVAL '4' SECOND DEFINE Q AS v > PREV(v)",
    "PATTERN (P+ Q) WITHIN INTERVAL '4' SECOND DEFINE P AS s <> 'c', Q AS s = 'b'",
)
ARCHIVE = (
    "PATTERN (A) DEFINE A AS s <> 'c'",
    "PATTERN (A B) DEFINE B AS s <> A.s",
    "PATTERN (A B*) DEFINE B AS v >= PREV(v)",
    "AFTER MATCH NO SKIP PATTERN (A B+) DEFINE A AS s = 'a'",
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = draw(st.randoms(use_true_random=False))  # few examples, and most of them are to hold matches
    seconds, events = 0, []
    for _ in range(draw(st.integers(6, 20))):
        seconds += rng.choice((0, 1, 1, 1, 2, 4))
        events.append({
            "ts": seconds * SECOND_US, "k": rng.choice(("p", "p", "p", "q", None)), "s": rng.choice("aabbc"),
            "v": rng.choice((0, 1, 2, 3, 3, None)), "x": 0.5,
        })  # fmt: skip
    return Case(
        tuple(events), draw(st.sampled_from(LIVE)), draw(st.sampled_from(ARCHIVE)), rng.randint(1, 12),
        rng.randint(-2, 4), draw(st.booleans()), draw(st.sampled_from(KINDS)), draw(st.sampled_from(ON)), (),
    )  # fmt: skip


runs = st.builds(
    Run, st.booleans(), st.integers(0, 10**6), st.sampled_from((-1, -1, 1, 2, 3, 5)), st.sampled_from(STRATEGIES)
)


def hit_of(case: Case, run: Run) -> str:
    text = case.text.replace("pl.at,", "pl.at AS t,", 1)
    return text.replace("HISTORY OF e", "HISTORY OF h") if run.apart else text


def in_two_steps(case: Case, outer: str) -> Counter[str]:
    """The rows of the join as a table in their order, and the reference over that."""
    rows = sorted(naive(case), key=lambda row: (row[1], *((v is not None, v) for v in row)))
    fields = [("k", pa.string()), ("t", pa.timestamp("us")), ("w", pa.int64())]
    fields += [] if case.kind in ("SEMI JOIN", "ANTI JOIN") else [("n", pa.int64()), ("aw", pa.int64())]
    columns = {name: pa.array([row[i] for row in rows], type) for i, (name, type) in enumerate(fields)}
    text = outer.format("r")
    with Relations(text, {"r": pa.table(columns)}).open() as relations:
        return rows_of(answer(text, relations, ReferenceMatcher).arrow())


def rows_of(table: pa.Table) -> Counter[str]:
    ours = ("match_id", "join_id")
    return Counter(repr([v for c, v in row.items() if c not in ours]) for row in table.to_pylist())


def begun(db: Database, hit: str, outer: str, run: Run) -> dict[str, Any]:
    """The alerts of the chain, and of a query over the stream that the joined rows feed."""
    if not db.streams():
        for name in ("e", "h") if run.apart else ("e",):
            db.create_stream(name, COLUMNS, time="ts", key="k", lateness="1s")
    strategy, tolerance = run.how
    named = run.kill >= 0
    how = {"strategy": strategy, "tolerance": tolerance}
    db.watch(hit, into="r", time="t", **how, **({"name": "hit"} if named else {}))
    return {
        name: db.watch(text, evidence=True, **more, **({"name": name} if named else {}))
        for name, text, more in (("over", outer.format("r"), {}), ("chain", outer.format(f"({hit})"), how))
    }


def live(case: Case, outer: str, run: Run, directory: Path) -> tuple[dict[str, Counter[str]], list[Counter[str]], bool]:
    """The rows of the live queries, what the archive gives of the same, and True if the process ended on the way."""
    hit, rng, events = hit_of(case, run), random.Random(run.seed), table(case.events)
    names = ("e", "h") if run.apart else ("e",)
    left = dict.fromkeys(names, 0)
    db = opened(directory, run)
    watched = begun(db, hit, outer, run)
    found: dict[str, dict[tuple[str, str], int]] = {name: {} for name in watched}
    killed, step = False, 0

    def fetch() -> None:
        for name, alerts in watched.items():
            rows: Counter[tuple[str, str]] = Counter()
            for row in alerts.fetch().to_pylist():
                rows[row["match_id"], repr([v for c, v in row.items() if c != "match_id"])] += 1
            for key, n in rows.items():  # what came after the last checkpoint comes again, with the same id
                found[name][key] = max(found[name].get(key, 0), n)

    while any(left[name] < len(events) for name in names):
        name = rng.choice(names)
        n = rng.randint(1, 4)
        if left[name] < len(events):
            db.push(name, events.slice(left[name], n))
            left[name] += n
        if run.kill >= 0 and rng.random() < 0.3:
            db.checkpoint()
        if rng.random() < 0.5:
            fetch()
        if step == run.kill:
            db.flush()
            copy = directory.with_name(f"{directory.name}-left")
            shutil.copytree(directory, copy)
            db.close()
            db, killed = opened(copy, run), True
            watched = begun(db, hit, outer, run)
        step += 1
    for name in rng.sample(names, len(names)):
        db.advance(name, None)
    fetch()
    kept = [outer.format(f"({hit})"), outer.format("r")]
    stored = [rows_of(db.sql(text, late=False).arrow()) for text in kept]
    stored.append(rows_of(db.backtest(kept[0], 0).arrow()))
    joined = rows_of(db.sql("SELECT * FROM r").arrow())
    assert joined == rows_of(db.sql(hit, late=False).arrow()) == Counter(repr(list(row)) for row in naive(case))
    assert db.streams()["r"]["late"] == 0
    assert db.streams()["r"]["ended"]
    db.close()
    rows = {name: Counter({row: 0 for _, row in of}) for name, of in found.items()}
    for name, of in found.items():
        for (_, row), n in of.items():
            rows[name][row] += n
    return rows, stored, killed


def opened(directory: Path, run: Run) -> Database:
    return hybrid.connect() if run.kill < 0 else opened_again(directory, maintenance=False, log="os")


pytestmark = [
    pytest.mark.filterwarnings("ignore:BETWEEN holds both ends:hybrid.HybridWarning"),
    pytest.mark.filterwarnings("ignore:the pattern ends in a greedy:hybrid.HybridWarning"),
    pytest.mark.filterwarnings("ignore:partial matches of:hybrid.HybridWarning"),
]


@pytest.mark.slow
@pytest.mark.nightly
def test_joined_rows_are_events(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()

    @fewer(6)
    @given(case=cases(), outer=st.sampled_from(OUTER), run=runs)
    def check(case: Case, outer: str, run: Run) -> None:
        expected = in_two_steps(case, outer)
        rows, stored, killed = live(case, outer, run, tmp_path_factory.mktemp("db"))
        assert rows == {"over": expected, "chain": expected}
        assert stored == [expected] * 3
        seen["examples"] += 1
        seen["rows"] += bool(expected)
        seen["killed"] += killed
        seen["two streams"] += run.apart

    def told() -> None:
        assert seen["rows"] * 3 >= seen["examples"]
        assert seen["killed"] * 6 >= seen["examples"]

    drawn_until_told(check, told)
    record_property("examples", dict(seen))
