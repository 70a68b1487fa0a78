"""Only rows that meet a condition are brought into order and matched: the same rows, in the order of the reference."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from hybrid.rows import inputs
from hybrid.statement import by_key, gathered, rows_met, statement
from hybrid.statement.relations import Relations
from matching.engines.choose import choose_engine
from matching.engines.run_awaited import RunAwaited
from matching.purpose import Purpose
from tests.properties.comparing import is_nightly

PATTERNS = (
    "(A NOT B)", "(A B NOT C)", "(A+ NOT B)", "(NOT C A NOT B)", "(A NOT C B NOT A)", "((A | B) NOT C)",
    "(A SAME NOT B)", "(A NOT SAME)", "(A B)", "(A NOT C B)",
)  # fmt: skip
AFTER = ("NO SKIP", "SKIP TO NEXT ROW", "SKIP PAST LAST ROW")
ROWS = ("ONE ROW PER MATCH", "ALL ROWS PER MATCH")
DEFINES = {"A": "x = 1", "B": "x = 5", "C": "x = 7", "SAME": "x = 3 AND y = A.y"}


def table(seed: int, order: str, rows: int = 400) -> pa.Table:
    random = np.random.default_rng(seed)
    ts = np.sort(random.integers(0, rows * 300_000, rows)) // (1 if order != "ties" else 2_000_000)
    ts *= 1 if order != "ties" else 2_000_000
    key = random.integers(0, 6, rows)
    index = {"key": np.argsort(key, kind="stable"), "shuffled": random.permutation(rows)}.get(order, np.arange(rows))
    x = random.choice([1, 3, 5, 7, 0], rows, p=[0.12, 0.08, 0.08, 0.04, 0.68])
    return pa.table({
        "ts": pa.array(ts[index], pa.timestamp("us")), "k": key[index], "x": x[index],
        "y": random.integers(0, 2, rows), "n": np.arange(rows),
    })  # fmt: skip


def text(pattern: str, selection: str, after: str, rows: str, keys: str = "k") -> str:
    names = set(re.findall(r"\w+", pattern))
    defines = ", ".join(f"{name} AS {of}" for name, of in DEFINES.items() if name in names)
    measures = "MATCH_NUMBER() AS m, FIRST(n) AS first_n, LAST(n) AS last_n, count(*) AS c"
    return (
        f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {keys} ORDER BY ts MEASURES {measures} {rows} "
        f"AFTER MATCH {after} PATTERN {pattern} WITHIN INTERVAL 6 SECOND SELECTION {selection} DEFINE {defines})"
    )


def by_reference(query: str, events: pa.Table, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The rows of the reference, in its own order of emission."""
    with monkeypatch.context() as patch:
        patch.setattr(statement, "waits", lambda plan: False)
        with Relations(query, {"t": events}).open() as relations:
            return statement.answer(query, relations, statement.by_reference).arrow().to_pylist()


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("many", [False, True], ids=["few keys", "many keys"])
@pytest.mark.parametrize("order", ["time", "key", "shuffled", "ties"])
def test_the_rows_of_the_reference_in_its_order(order: str, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: what a row of the same key decides came out with that row, and only then what the end decides."""
    monkeypatch.setattr(rows_met, "ROWS_MIN", 0)
    for module in (by_key, gathered):
        monkeypatch.setattr(module, "ROWS_MIN", 0 if many or order == "key" else 1 << 17)
    monkeypatch.setattr(gathered, "KEYS_MANY", 2)
    for module in (by_key, gathered):
        monkeypatch.setattr(module, "BATCH_ROWS", 90)
    monkeypatch.setattr(rows_met, "BATCH_ROWS", 70)
    monkeypatch.setattr(inputs.OrderedInput.batches, "__defaults__", (None, 50))
    used: list[bool] = []

    def noted(matcher: object, rows: pa.Table) -> by_key.RowsMet | None:
        found = kept(matcher, rows)  # type: ignore[arg-type]
        used.append(found is not None)
        return found

    kept = rows_met.rows_met
    monkeypatch.setattr(statement, "rows_met", noted)
    came = 0
    for seed, pattern in enumerate(PATTERNS * (8 if is_nightly() else 1)):
        selection = "SKIP TILL ANY MATCH" if seed % 3 == 2 else "SKIP TILL NEXT MATCH"
        for i, after in enumerate(AFTER):
            query, events = text(pattern, selection, after, ROWS[(seed + i) % 2]), table(seed + 100 * i, order)
            result = hybrid.sql(query, t=events)
            expected = by_reference(query, events, monkeypatch)
            found = result.arrow().to_pylist()
            if order == "key":  # matches come key by key
                found, expected = sorted(found, key=repr), sorted(expected, key=repr)
            if "NOT" in pattern.split()[-2] or order == "key":
                assert found == expected, query
            else:
                assert sorted(found, key=repr) == sorted(expected, key=repr), query
            came += len(found)
            result.evidence()  # finds the matches again in all rows, in the same order
    assert came > 300
    assert sum(used) > 0.9 * len(used)


KEYS: dict[str, pa.Array] = {
    "int64": pa.array([-(2**63), -3, 0, 2**40, 2**63 - 1, None], pa.int64()),
    "uint64": pa.array([0, 1, 2**63, 2**64 - 2, 2**64 - 1, None], pa.uint64()),
    "int16": pa.array([-300, -1, 0, 1, 2, 3], pa.int16()),
    "text": pa.array(["", "a", "ab", "a" * 20, "ä", None], pa.string()),
    "double": pa.array([float("nan"), float("inf"), -1.5, 0.0, 1e300, None], pa.float64()),
    "date": pa.array([0, -1, 1, 40_000, -40_000, None], pa.int32()).view(pa.date32()),
    "decimal": pa.array([1, 2, 3, -4, 5, None], pa.decimal128(12, 2)),
    "boolean": pa.array([True, False, None, True, False, None], pa.bool_()),
    "two": pa.array([0, 0, 1, 1, 2, None], pa.int64()),
    "none": pa.array([0, 0, 0, 0, 0, 0], pa.int64()),
}
#: Conditions of A and B.
BOTH = [("x = 1", "x = 5"), ("x IN (1, 5)", "x = 5"), ("x = 5", "x = 5"), ("x = 1", "x IN (1, 7)"),
        ("x = 1 AND y = 0", "y = 1 AND x > 4"), ("s = 'c1'", "s = 'c5' OR s = 'c3'")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", KEYS)
def test_single_rows_that_stay_are_matched_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: all rows of the two conditions were kept by key until WITHIN was over."""
    monkeypatch.setattr(rows_met, "ROWS_MIN", 0)
    for module in (by_key, gathered):
        monkeypatch.setattr(module, "BATCH_ROWS", 30)
    monkeypatch.setattr(rows_met, "BATCH_ROWS", 70)
    used: list[bool] = []

    def noted(*arguments: object) -> object:
        found = run_alone(*arguments)  # type: ignore[arg-type]
        used.append(found is not None)
        return found

    run_alone = gathered.run_alone
    monkeypatch.setattr(statement, "run_alone", noted)
    keys = {"two": "k, y", "none": ""}.get(kind, "k")
    #: a double or a decimal may be shown in two ways
    plain = kind not in ("none", "double", "decimal")
    came = 0
    for seed, (a, b) in enumerate(BOTH * (20 if is_nightly() else 1)):
        order = ("time", "shuffled", "ties", "key")[(seed + list(KEYS).index(kind)) % 4]
        for module in (by_key, gathered):
            monkeypatch.setattr(module, "ROWS_MIN", 0 if order == "key" else 1 << 17)
        events = table(seed, order)
        texts = [None if x == 7 else f"c{x}" for x in events.column("x").to_pylist()]
        events = events.set_column(1, "k", KEYS[kind].take(events.column("k"))).append_column("s", pa.array(texts))
        query = text("(A NOT B)", "SKIP TILL NEXT MATCH", AFTER[seed % 3], ROWS[seed % 2], keys)
        query = query.replace("x = 1", a).replace("x = 5", b).replace("INTERVAL 6 SECOND", "INTERVAL 3 SECOND")
        query = query if keys else query.replace("PARTITION BY ", "")
        for alone, one in ((False, query), (True, query.replace("MATCH_NUMBER() AS m, ", ""))):
            result, expected = hybrid.sql(one, t=events), by_reference(one, events, monkeypatch)
            found = result.arrow().to_pylist()
            if order == "key":  # matches come key by key
                found, expected = sorted(found, key=repr), sorted(expected, key=repr)
            assert repr(found) == repr(expected), one  # NaN equals itself
            stands = order == "key" and plain and kind not in ("two", "boolean")
            assert used == ([] if stands else [alone and plain]), one
            assert result.evidence().num_rows >= len(found)
            came += len(found)
            used.clear()
    assert came > 100


def test_rows_that_others_read_or_a_random_condition_takes_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: of a table of many keys, a random condition was asked twice of the rows that it took."""
    monkeypatch.setattr(rows_met, "ROWS_MIN", 0)
    query = text("(A NOT B)", "SKIP TILL NEXT MATCH", "SKIP TO NEXT ROW", ROWS[0])
    for other in (
        query.replace("x = 1", "x = 1 AND random() < 0.5"), query.replace("x = 1", "PREV(x) = 1"),
        query.replace("count(*) AS c", "PREV(FIRST(x)) AS c"),
        query.replace("INTERVAL 6 SECOND", "6 ROWS").replace("NOT B", "B"),
        query.replace("A AS x = 1", "A AS x >= 0"),
    ):  # fmt: skip
        with Relations(other, {"t": table(1, "time")}).open() as relations:
            plan = relations.bind(statement.parse(other, relations.names(), relations.patterns)).factors[0].plan
            assert rows_met.rows_met(statement.rows_matcher(plan), table(1, "time")) is None, other


def test_a_condition_on_the_match_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reads the row, of which only the columns of conditions on single rows were known."""
    monkeypatch.setattr(rows_met, "ROWS_MIN", 0)
    query = text("(A+ B)", "SKIP TILL NEXT MATCH", "SKIP TO NEXT ROW", ROWS[0]).replace("FIRST(n)", "1")
    query = query.replace("LAST(n)", "1").replace("A AS x = 1", "A AS x = 1 AND CAST(count(*) * 100 AS TINYINT) > 0")
    with pytest.raises(hybrid.DataError, match="the condition of A cannot be computed at 1970-01-01"):
        hybrid.sql(query, t=table(1, "shuffled"))


@pytest.mark.parametrize("order", ["time", "shuffled"])
def test_a_row_without_a_time_is_an_error_met_or_not(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_met, "ROWS_MIN", 0)
    events = table(1, order)
    times = events.column("ts").to_pylist()
    times[events.column("x").to_pylist().index(0)] = None
    events = events.set_column(0, "ts", pa.array(times, pa.timestamp("us")))
    with pytest.raises(hybrid.DataError, match="ts orders the rows and has 1 null"):
        hybrid.sql(text("(A NOT B)", "SKIP TILL NEXT MATCH", "SKIP TO NEXT ROW", ROWS[0]), t=events)


@pytest.mark.parametrize("order", ["time", "key", "shuffled"])
def test_no_row_meets_a_condition(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_met, "ROWS_MIN", 0)
    for module in (by_key, gathered):
        monkeypatch.setattr(module, "ROWS_MIN", 0)
    query = text("(A NOT B)", "SKIP TILL NEXT MATCH", "SKIP TO NEXT ROW", ROWS[0]).replace("x = ", "x = 100 + ")
    for events in (table(1, order), table(1, order).slice(0, 0)):
        assert hybrid.sql(query, t=events).arrow().num_rows == 0


def test_the_queue_of_starts_goes_on_from_its_state() -> None:
    query, events = text("(A NOT B)", "SKIP TILL NEXT MATCH", "SKIP TO NEXT ROW", ROWS[0]), table(3, "time")
    with Relations(query, {"t": events}).open() as relations:
        factor = relations.bind(statement.parse(query, relations.names(), relations.patterns)).factors[0]
        (batch,) = relations.factor(factor)[0]

    def found(restarts: bool) -> list[dict[str, object]]:
        matcher, parts = statement.rows_matcher(factor.plan), []
        for at in range(0, len(batch), 40):
            parts.append(matcher.push(batch.slice(at, at + 40)).rows)
            if restarts:
                state = matcher.snapshot()
                matcher = statement.rows_matcher(factor.plan)
                assert matcher.fits(state)
                matcher.restore(state)
        return pa.concat_tables([*parts, matcher.advance(None).rows]).to_pylist()

    assert choose_engine(factor.plan, Purpose.ROWS).engine is RunAwaited
    assert found(True) == found(False)
    assert len(found(True)) > 20
