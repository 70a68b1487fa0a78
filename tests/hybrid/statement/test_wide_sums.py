"""Numbers beyond 64 bits in conditions: sums are HUGEINTs, as in MEASURES and in DuckDB."""

from __future__ import annotations

import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError, HybridWarning

LARGE = 2**63 - 1
TABLE = pa.table({
    "i": pa.array(range(6), pa.int64()), "v": pa.array([LARGE] * 6, pa.int64()), "s": pa.array([3] * 6, pa.int64()),
    "d": pa.array([10**18 - 1] * 6).cast(pa.decimal128(19, 0)).cast(pa.decimal128(18, 0)),
})  # fmt: skip
TEXT = "SELECT {} FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES sum(A.v) AS s, count(*) AS n PATTERN (A+) DEFINE A AS {})"


# Before: "the condition of A overflows", and for a constant beyond 64 bits a bare OverflowError.
@pytest.mark.slow
@pytest.mark.parametrize(("condition", "lengths"), [
    ("sum(A.v) > 0", [6]), (f"sum(A.v) <= {2 * LARGE}", [2, 2, 2]), (f"sum(A.v) - v <= {2 * LARGE}", [3, 3]),
    ("avg(A.v) > 5", [6]), (f"sum(A.d) < {3 * 10**18}", [3, 3]), (f"sum(-A.v) * 2 > {-5 * LARGE}", [2, 2, 2]),
    (f"sum(A.s) * {LARGE} < {7 * LARGE}::HUGEINT", [2, 2, 2]), ("sum(A.v) / 2 > 1", [6]),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_sums_in_conditions_are_huge(condition: str, lengths: list[int]) -> None:
    expected = [{"s": n * LARGE, "n": n} for n in lengths]
    assert hybrid.sql(TEXT.format("*", condition), t=TABLE).arrow().to_pylist() == expected
    total = hybrid.sql(TEXT.format("count(*) AS c", condition), t=TABLE).arrow().to_pylist()
    assert total == [{"c": len(lengths)}]


def test_the_second_run_is_announced() -> None:
    # Before: by the reference, however plain the sum.
    with pytest.warns(HybridWarning, match="the condition of A overflows .* matched again with the numbers that"):
        hybrid.sql(TEXT.format("*", "sum(A.v) > 0"), t=TABLE)
    with pytest.warns(HybridWarning, match="the condition of A overflows .* matched again by the reference"):
        hybrid.sql(TEXT.format("*", "(v + 0::HUGEINT) + count(*) > 0"), t=TABLE)


def test_narrow_numbers_overflow_as_in_duckdb() -> None:
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES count(*) AS n PATTERN (A B) DEFINE B AS v + A.v > 1)"
    with pytest.raises(DataError, match="the condition of B overflows"):
        hybrid.sql(text, t=TABLE)


@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_decimals_that_a_comparison_scales_beyond_64_bits_are_as_in_duckdb() -> None:
    # Before: "the condition of B overflows".
    rows = pa.table({"i": [0, 1], "e": pa.array(["1", "99999999999999999"]).cast(pa.decimal128(18, 0)),
                     "d": pa.array(["7.5", "-7.5"]).cast(pa.decimal128(9, 2))})  # fmt: skip
    text = """SELECT n FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES count(*) AS n PATTERN (A B)
        DEFINE B AS nullif(abs(e), round(d - A.d, 1)) = abs(e))"""
    assert hybrid.sql(text, t=rows).fetchall() == [(2,)]
