"""Joined texts that are compared with a constant: engines agree with the reference, and so with DuckDB."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.statement.statement import compare_with_reference
from query.errors import HybridWarning
from tests.properties.comparing import FEWER

#: Some are the beginning of others, or have the separator in them; the last is larger than all by its bytes.
TEXTS = ("a", "ab", "b", "", ",", "a,b", "é", "🦉")
PATTERNS = (
    ("A+ B", "PARTITION", "A AS v < 8, B AS {}"), ("A+ B", "PARTITION", "A AS {}, B AS v > 2"),
    ("A B? C", "SKIP TILL ANY MATCH", "A AS v < 5, B AS {}, C AS NOT ({})"),
)  # fmt: skip


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """A comparison with a constant that is joined of the same texts, whole or cut, or is any of them."""
    separator = draw(st.sampled_from((None, ",", "", "ab")))
    given = "" if separator is None else f", {quoted(separator)}"
    joined = ("," if separator is None else separator).join(draw(st.lists(st.sampled_from(TEXTS), max_size=4)))
    constant = quoted(joined[: draw(st.integers(0, len(joined)))] + draw(st.sampled_from(("", "", "a", ","))))
    of = draw(st.sampled_from((
        "string_agg(s{})", "string_agg(A.s{})", "group_concat(s{}) FILTER (WHERE v > 3)",
        "string_agg(A.s{}) FILTER (WHERE A.v > 3)",
    ))).format(given)  # fmt: skip
    return draw(st.sampled_from((
        f"{of} = {constant}", f"{of} <> {constant}", f"{of} < {constant}", f"{of} <= {constant}", f"{of} > {constant}",
        f"{constant} >= {of}", f"{constant} < {of}", f"{of} BETWEEN {constant} AND 'b'", f"{of} IN ('a,b', {constant})",
    )))  # fmt: skip


@pytest.mark.slow
@FEWER
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from((*TEXTS, None))), min_size=1, max_size=14),
       st.sampled_from(PATTERNS), comparisons(), comparisons())  # fmt: skip
def test_the_first_difference_decides(
    rows: list[tuple[int, str | None]], way: tuple[str, str, str], condition: str, other: str
) -> None:
    pattern, selection, define = way
    values, texts = zip(*rows, strict=True)
    table = pa.table({"ts": range(len(rows)), "v": values, "s": pa.array(texts, pa.string())})
    text = f"""SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS c, FIRST(v) AS v AFTER MATCH SKIP TO
        NEXT ROW PATTERN ({pattern}) SELECTION {selection} DEFINE {define.format(condition, other)})"""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HybridWarning)  # no reference instead
        _, same = compare_with_reference(text, {"t": table})
    assert same, text
