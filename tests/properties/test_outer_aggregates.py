"""Aggregates over matches that are not found equal those over the matches that the reference finds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.rows.result import Result
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer
from matching.by_reference import ReferenceMatcher
from query.errors import DataError, QueryError
from tests.events import batch_of
from tests.properties.comparing import FEWER, drawn_alike, drawn_until_told
from tests.trends import EVENTS, PATTERNS, Row, rows

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
#: Their values are of every type, null, and large.
MEASURES = (
    "count(*)", "count(A.*)", "count(B.v)", "sum(A.v)", "sum(v)", "min(A.v)", "max(B.v)", "sum(A.d)", "min(d)",
    "sum(B.m)", "max(m)", "A.v", "B.v", "FIRST(v)", "LAST(v)", "B.d", "A.m", "LAST(m)", "LAST(ts)", "B.h * 2",
    "A.h + B.h", "h + 1", "coalesce(B.h, 0)", "avg(A.v)", "LAST(A.v, 1)",
)  # fmt: skip
FUNCTIONS = ("sum", "avg", "min", "max", "count")
PAIRS = [(function, measure) for measure in MEASURES for function in FUNCTIONS]
#: Most of those that are aggregates over trends.
EQUAL = [
    *((f, m) for m in ("count(*)", "count(A.*)", "count(B.v)") for f in ("sum", "avg", "count")),
    *((f, m) for m in ("sum(A.v)", "sum(B.m)", "sum(A.d)") for f in ("sum", "avg", "count")),
    *(("min", m) for m in ("min(A.v)", "min(d)")), *(("max", m) for m in ("max(B.v)", "max(m)")),
    *((f, m) for m in ("B.v", "A.v", "LAST(v)", "B.d", "A.m", "B.h * 2", "h + 1") for f in FUNCTIONS),
]  # fmt: skip
CONDITIONS = (
    "", "A: v >= 1", "B: v IS NULL OR LAST(A.v) IS NULL OR v > LAST(A.v)",
    "A: count(A.*) = 1 OR v <> LAST(A.v, 1)", "B: count(B.*) = 1 OR count(B.*) > 1 AND v > 1",
    "A: count(A.*) > 1 OR v > 1", "B: CAST(g AS INTEGER) = 1", "B: sum(A.h) > 1",
)  # fmt: skip
AROUND = ("{}", "(SELECT * FROM {}) AS m", "(SELECT k, x0, x1, x2 FROM (FROM {}) AS n) AS m")
BETWEEN = CONDITIONS[2:6]
#: Rows of a match have a value in common, by which the search divides them.
TIES = ("B: v = LAST(A.v)", "B: LAST(A.v) = v AND h > 0", "B: v = FIRST(A.v) AND k IS NOT NULL", "B: m = LAST(A.m)")
#: Besides random patterns.
OFTEN = ("A+ B", "A B+ A", "A B*", "A+ B?", "(A | B) A+", "A B NOT C A", "A B{2,}", "B A* B?")
#: With HAVING, an alias stands for an aggregate.
SHAPES = (
    "SELECT {}, count(*) FROM {} ", "SELECT {} FROM {} WHERE m.k = 'x' OR k IS NULL", "SELECT k, {} FROM {} GROUP BY k",
    "SELECT {} FROM {} GROUP BY k HAVING count(*) > 1 ORDER BY k", "SELECT k IS NULL, {} FROM {} GROUP BY ALL",
    "SELECT k, count(*) AS n, {} FROM {} GROUP BY ALL HAVING n > 1",
    "SELECT count(*) FILTER (WHERE k = 'y') * 2, {} FROM {}",
)  # fmt: skip


def run(text: str, events: pa.Table, make: Callable[..., Any] | None) -> Result:
    with Relations(text, {"events": events}).open() as relations:
        return answer(text, relations) if make is None else answer(text, relations, make)


def tried(ask: Callable[[], Result]) -> tuple[pa.Table | None, Result | None]:
    """Returns the rows and the result, nothing after an error of the data."""
    try:
        result = ask()
    except DataError:
        return None, None
    return result.arrow(), result


def plain(table: pa.Table) -> list[tuple[object, ...]]:
    """Returns rows, sorted; doubles to 12 digits, as sums in another order differ in the last ones."""

    def value(v: object) -> object:
        if isinstance(v, float):
            return repr(float(f"{v:.12g}") + 0.0) if math.isfinite(v) else repr(v)
        return format(v.normalize(), "f") if isinstance(v, Decimal) else v

    return sorted((tuple(map(value, row.values())) for row in indexed(table)), key=repr)


def indexed(table: pa.Table) -> Iterator[dict[int, object]]:
    """Yields rows by position: names may repeat."""
    columns = [c.to_pylist() for c in table.columns]
    return ({i: c[k] for i, c in enumerate(columns)} for k in range(table.num_rows))


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("selection", "conditions"),
    [
        ("SKIP TILL ANY MATCH", CONDITIONS[:2]), ("SKIP TILL ANY MATCH", BETWEEN), ("SKIP TILL NEXT MATCH", BETWEEN),
        ("PARTITION", BETWEEN), ("PARTITION", CONDITIONS), ("STRICT", CONDITIONS), ("SKIP TILL ANY MATCH", TIES),
        ("SKIP TILL NEXT MATCH", TIES),
    ],
)  # fmt: skip
def test_aggregates_over_matches_that_are_not_found(
    selection: str, conditions: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    counts: Counter[str] = Counter()

    @FEWER
    @drawn_alike
    @given(
        pattern=PATTERNS | st.sampled_from(OFTEN),
        events=rows(), keys=st.lists(st.sampled_from(("x", "y", None)), min_size=7, max_size=7),
        chosen=st.one_of(st.lists(st.sampled_from(of), min_size=1, max_size=3) for of in (EQUAL, EQUAL, PAIRS)),
        condition=st.sampled_from(conditions), shape=st.sampled_from(SHAPES), around=st.sampled_from(AROUND),
        alone=st.booleans(), cast=st.sampled_from(("", "", "::BIGNUM", "::HUGEINT", "::DOUBLE", "::VARCHAR")),
    )  # fmt: skip
    def check(
        pattern: str, events: list[Row], keys: list[str | None], chosen: list[tuple[str, str]], condition: str,
        shape: str, around: str, alone: bool, cast: str,
    ) -> None:  # fmt: skip
        variables = [v for v in "ABCD" if v in pattern]
        assume("A" in pattern and "B" in pattern)
        more = dict([condition.split(":", 1)]) if condition else {}
        defined = ", ".join(f"{v} AS type = '{v}'" + (f" AND ({more[v]})" if v in more else "") for v in variables)
        listed = [*chosen, *[("count", "count(*)")] * (3 - len(chosen))]
        named = ", ".join(f"{m} AS x{i}" for i, (_, m) in enumerate(listed))
        match = f"""events MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {named} AFTER MATCH NO SKIP
            PATTERN ({pattern}) SELECTION {selection} DEFINE {defined}) AS """
        # a sum of doubles as a text would show its last digits
        casts = [cast * (f == "count" or (f == "sum" and "d" not in m)) for f, m in chosen]
        calls = ", ".join(f"{f}(x{i}){cast}" for i, ((f, _), cast) in enumerate(zip(chosen, casts, strict=True)))
        text = shape.format(calls, around.replace("{}", match + ("m" if around == "{}" else "o")))
        given_rows = [dict(row) for row in events]
        table = pa.Table.from_batches([batch_of(EVENTS, given_rows).columns])
        table = table.append_column("k", pa.array([None if alone else k for k in keys[: len(events)]], pa.string()))
        counts["drawn"] += 1
        try:
            wanted, _ = tried(lambda: run(text, table, ReferenceMatcher))
        except QueryError as refused:
            counts[refused.diagnostics[0].message] += 1
            return
        ours, result = tried(lambda: run(text, table, None))
        if wanted is None or ours is None:
            counts["errors"] += 1
            assert wanted is ours, text
            return
        assert result is not None
        shown = result.explain("program")
        counted = "matches are counted" in shown
        counts["counted"] += counted
        if counted:
            counts["between neighbours"] += condition in BETWEEN
            counts["divided"] += condition in TIES and "looked up" in shown
            counts["several matches"] += wanted.num_rows > 0 and max(map(repr, wanted.to_pydict().values())) > "[1]"
            for pair in chosen:
                counts[f"{pair[0]} of {pair[1]}"] += 1
        assert ours.schema == wanted.schema, text
        assert plain(ours) == plain(wanted), text

    def told() -> None:
        if selection == "STRICT":  # events of other partitions end a match
            assert not counts["counted"]
            return
        assert 6 * counts["counted"] > counts["drawn"]
        assert counts["several matches"] > 3
        assert counts["between neighbours"] or conditions != BETWEEN
        assert counts["divided"] > 3 or conditions != TIES

    drawn_until_told(check, told)
    for name, n in counts.most_common():
        record_property(name, n)
