"""Rows of many keys are brought together, and tables by key are matched block by block: with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from hybrid.rows import inputs
from hybrid.statement import by_key, gathered, rows_met
from hybrid.statement.by_key import ByKey
from hybrid.statement.gathered import Gathered
from hybrid.statement.statement import compare_with_reference
from matching.kernels.radix import BLOCK, by_number
from matching.keys import numbered
from tests.properties.comparing import is_nightly

PATTERNS = {
    "sessions": "(A B*) DEFINE B AS ts - PREV(ts) <= INTERVAL 3 SECOND",
    "islands": "(A{2,}) DEFINE A AS x > 4",
    "V": "(A B+ C+) DEFINE B AS x < PREV(x), C AS x > PREV(x)",
    "first row": "(A B?) DEFINE A AS PREV(x) IS NULL, B AS x > 3",
    "next row": "(A B+) DEFINE B AS x > PREV(x) AND NEXT(x) > 2",
    "within": "(A B+) WITHIN INTERVAL 9 SECOND DEFINE B AS x >= PREV(x)",
    "within rows": "(A B+) WITHIN 4 ROWS DEFINE B AS x >= PREV(x)",
    "skip till next": "(A B) WITHIN INTERVAL 9 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS x = 1, B AS x = 5",
    "skip till any": "(A B) WITHIN INTERVAL 9 SECOND SELECTION SKIP TILL ANY MATCH DEFINE A AS x = 1, B AS x = 5",
    "absence": "(A NOT B) WITHIN INTERVAL 9 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS x = 1, B AS x = 5",
    "late absence": "(A B NOT C) WITHIN INTERVAL 9 SECOND SELECTION SKIP TILL NEXT MATCH "
    "DEFINE A AS x = 1, B AS x = 5, C AS x = 1",
    "so far": "(A B+) DEFINE B AS x > avg(x)",
}
AFTER = ("AFTER MATCH SKIP PAST LAST ROW", "AFTER MATCH SKIP TO NEXT ROW", "AFTER MATCH SKIP TO LAST B")
ROWS = ("ONE ROW PER MATCH", "ALL ROWS PER MATCH WITH UNMATCHED ROWS", "ALL ROWS PER MATCH")
ORDERS = ("time", "key", "shuffled", "ties")


def table(seed: int, order: str, rows: int = 2_000, keys: int = 150) -> pa.Table:
    random = np.random.default_rng(seed)
    ts = np.sort(random.integers(0, rows * 20_000, rows))
    if order == "ties":
        ts -= ts % 5_000_000
    key = random.integers(0, keys, rows)
    index = {"key": np.argsort(key, kind="stable"), "shuffled": random.permutation(rows)}.get(order, np.arange(rows))
    names = pa.array([None, *(f"k{i * 7919 % keys}" for i in range(1, keys))])
    return pa.table({
        "ts": pa.array(ts[index], pa.timestamp("us")), "k": names.take(pa.array(key[index])),
        "j": pa.array((key % 3)[index]), "x": random.integers(0, 9, rows)[index], "unread": random.random(rows),
    })  # fmt: skip


def text(pattern: str, after: str, rows: str, keys: str) -> str:
    measures = "MATCH_NUMBER() AS n, FIRST(ts) AS first_ts, LAST(ts) AS last_ts, count(*) AS c, sum(x) AS s"
    pattern, define = PATTERNS[pattern].split(" DEFINE ")
    return (
        f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {keys} ORDER BY ts MEASURES {measures} {rows} {after} "
        f"PATTERN {pattern} DEFINE {define})"
    )


WAYS = ("by key", "gathered")


@contextmanager
def shortcut(way: str) -> Iterator[list[str]]:
    """Both shortcuts for few rows, in blocks of some hundred; or that by key never. What they were used for is added to
    the list."""
    used: list[str] = []
    of, gathered_of = ByKey.of, Gathered.of

    def noted(name: str, make: Any) -> Any:
        def made(*arguments: Any) -> Any:
            found = make(*arguments)
            used.extend([name] * (found is not None))
            return found

        return staticmethod(made)

    with pytest.MonkeyPatch.context() as patch:
        for module in (by_key, gathered, rows_met):
            patch.setattr(module, "ROWS_MIN", 0)
        patch.setattr(gathered, "KEYS_MANY", 2)
        for module in (by_key, gathered):
            patch.setattr(module, "BATCH_ROWS", 300)
        patch.setattr(Gathered, "of", noted("gathered", gathered_of))
        patch.setattr(ByKey, "of", noted("by key", of) if way == "by key" else lambda *arguments: None)
        yield used


@pytest.fixture(params=WAYS)
def ways(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    with shortcut(request.param) as used:
        yield used


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_same_rows_in_the_same_order(pattern: str, order: str) -> None:
    for seed, (after, rows) in enumerate((a, r) for a in AFTER for r in ROWS):
        if "SKIP TO LAST B" in after and ("B+" not in PATTERNS[pattern] or "SELECTION" in PATTERNS[pattern]):
            continue
        if "SELECTION" in PATTERNS[pattern]:
            if rows != ROWS[0] or after != AFTER[1]:
                continue
        elif not is_nightly() and (seed + ORDERS.index(order)) % 4:  # each with one of the orders
            continue
        query, events = text(pattern, after, rows, "k" if seed % 2 else "k, j"), table(seed, order)
        expected = hybrid.sql(query, t=events).arrow().to_pylist()  # so few rows are matched without a shortcut
        by_repr = sorted(expected, key=repr)
        assert expected or pattern in ("first row", "next row")
        for way in WAYS:
            with shortcut(way) as used:
                found = hybrid.sql(query, t=events).arrow().to_pylist()
            if "by key" in used:  # matches come key by key
                assert sorted(found, key=repr) == by_repr, (after, rows)
            else:
                assert found == expected, (way, after, rows)


@pytest.mark.slow
def test_many_keys_are_gathered_and_keep_the_order_of_matches(ways: list[str]) -> None:
    for order in ("time", "shuffled", "ties"):
        events = table(7, order)
        for pattern in ("sessions", "islands", "V"):
            hybrid.sql(text(pattern, AFTER[0], ROWS[0], "k"), t=events).arrow()
    assert "gathered" in ways


@pytest.mark.slow
def test_evidence_is_that_of_the_rows_as_given(ways: list[str]) -> None:
    for order in ("time", "key", "shuffled", "ties"):
        result = hybrid.sql(text("V", AFTER[0], ROWS[0], "k"), t=table(3, order))
        evidence, found = result.evidence(), result.arrow().to_pylist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(by_key, "ROWS_MIN", 1 << 17)
            expected = hybrid.sql(text("V", AFTER[0], ROWS[0], "k"), t=table(3, order))
            columns = [c for c in evidence.column_names if c != "row"]
            assert sorted(map(repr, evidence.select(columns).to_pylist())) == sorted(
                map(repr, expected.evidence().select(columns).to_pylist())
            )
        for row, line in enumerate(found):
            assert evidence.filter(pa.compute.equal(evidence.column("row"), row)).num_rows == line["c"]


@pytest.mark.slow
def test_a_condition_that_cannot_be_computed_fails_as_by_time(ways: list[str]) -> None:
    query = text("V", AFTER[0], ROWS[0], "k").replace("B AS x", "B AS CAST(t AS INTEGER) < 9 AND x")
    events = table(5, "time")
    words = np.array(["1"] * events.num_rows, object)
    words[[40, 1_500]] = ["first", "second"]
    events = events.append_column("t", pa.array(words))
    errors = []
    for least in (0, 1 << 17):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gathered, "ROWS_MIN", least)
            with pytest.raises(hybrid.DataError) as raised:
                hybrid.sql(query, t=events)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["skip till next", "late absence"])
@pytest.mark.parametrize("order", ["time", "shuffled"])
def test_rows_that_no_condition_takes_are_not_brought_together(
    order: str, pattern: str, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: all rows were, of which a funnel takes three in ten, and an absence two."""
    events = table(3, order).drop_columns(["unread"])
    words = ["a" if x == 1 else "12" if x == 5 else "6" for x in events.column("x").to_pylist()]
    events = events.append_column("t", pa.array(words))
    kept: list[int] = []
    gathered_of = Gathered.of

    def noted(*arguments: Any) -> Any:
        found = gathered_of(*arguments)
        kept.append(len(found.seq))
        return found

    monkeypatch.setattr(Gathered, "of", staticmethod(noted))
    monkeypatch.setattr(ByKey, "of", lambda *arguments: None)
    query = text(pattern, AFTER[1], ROWS[0], "k")
    assert hybrid.sql(query, t=events).arrow().num_rows
    taken = sum(word != "6" for word in words)
    assert kept == [taken]
    assert 2 * taken < events.num_rows
    # a row whose condition cannot be computed is one that may be taken
    with pytest.raises(hybrid.DataError, match="'a' to INT"):
        hybrid.sql(query.replace("A AS x = 1", "A AS t::INTEGER = 7"), t=events)


@pytest.mark.slow
@pytest.mark.parametrize("after", ["TO NEXT ROW", "TO FIRST B", "TO LAST C"])
def test_what_measures_read_of_a_match_is_that_of_its_rows(after: str) -> None:
    """Before: matches whose starts are decided separately were written down row by row, a third of the time of a V."""
    picked = "A.x AS a, FIRST(B.x) AS b, LAST(B.x) AS c, LAST(C.ts) AS d, count(B.*) AS e, count(*) AS f, LAST(x) AS g"
    define = "DEFINE B AS x < PREV(x), C AS x > PREV(x)"
    for measures in (picked, "MATCH_NUMBER() AS n", f"{picked}, FIRST(B.x, 1) AS second"):
        for pattern in ("A B+ C+", "A B* C", "(A | B) B* C{2,}"):
            if after == "TO FIRST B" and pattern != "A B+ C+":
                continue  # it would not move on
            query = (
                f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measures} "
                f"AFTER MATCH SKIP {after} PATTERN ({pattern}) {define})"
            )
            rows, same = compare_with_reference(query, {"t": table(6, "time", 400, 7)})
            assert rows > 10
            assert same, (measures, pattern)


@pytest.mark.parametrize("kind", ["near", "far", "null", "text"])
def test_keys_are_numbered_by_first_appearance(kind: str) -> None:
    random = np.random.default_rng(7)
    values = random.integers(-40, 40, 500) * (1 << 40 if kind == "far" else 1)
    column = pa.array(values, mask=random.random(500) < (0.1 if kind == "null" else 0))
    column = column.cast(pa.string()) if kind == "text" else column
    known: dict[object, int] = {}
    expected = [known.setdefault(value, len(known)) for value in column.to_pylist()]
    assert numbered([column], 500).tolist() == expected


def test_ties_across_keys_need_no_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "sorting_order", None)
    events = table(2, "ties")
    assert hybrid.sql(text("V", AFTER[0], ROWS[0], "k"), t=events).arrow().num_rows


@pytest.mark.parametrize("count", [1, 1_000, BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_are_placed_by_number_in_their_order(shuffled: bool, count: int) -> None:
    random = np.random.default_rng(4)
    order = random.permutation(count).astype(np.int32) if shuffled else np.arange(count)
    drawn = random.integers(0, 50, count)
    seen = list(dict.fromkeys(drawn.tolist()))  # as rows stand; by first appearance in the order if that is how they do
    numbers = np.array([seen.index(x) for x in drawn])
    places, rows, begins = by_number(numbers, order if shuffled else None)
    groups = [np.flatnonzero(drawn[order] == key) for key in dict.fromkeys(drawn[order].tolist())]
    assert np.array_equal(places, np.concatenate(groups))
    assert np.array_equal(rows, order[np.concatenate(groups)])
    assert begins.tolist() == [0, *np.cumsum([len(group) for group in groups])[:-1]]
