"""The ways to compute a measure: read as it is, in lanes, folded by a kernel, in a window over a match, by GROUP BY."""

from __future__ import annotations

from functools import cache

from matching.kernels import fold
from matching.program.conditions import IN_ANY_ORDER
from matching.program.lanes import Leaf, Lowered, NoLane, is_wide, lane_of, lower
from query.plan.expression import (
    Aggregate,
    Classifier,
    Column,
    Expression,
    MatchNumber,
    Navigation,
    show,
    to_sql,
)

KINDS = {"count": fold.COUNT, "sum": fold.SUM, "avg": fold.SUM, "mean": fold.SUM, "min": fold.MIN, "max": fold.MAX}
#: Aggregates with an exact state: as windows along a match they equal those over each of its prefixes exactly. Others
#: (stddev, corr, ...) add floating numbers, and a window adds them in another order.
_ALONG = IN_ANY_ORDER | {
    "first", "last", "any_value", "arbitrary", "list", "array_agg", "string_agg", "group_concat", "listagg", "arg_min",
    "arg_max", "min_by", "max_by", "argmin", "argmax", "arg_min_null", "arg_max_null",
}  # fmt: skip
#: Aggregates whose state DuckDB changes row by row, and reads without changing what comes of later rows: a window that
#: streams gives each prefix exactly what the prefix gives alone. (A digest of approx_quantile is changed when it is
#: read.)
STREAMED = {
    "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop", "sem", "corr", "covar_pop", "covar_samp",
    "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy",
    "regr_syy", "skewness", "kurtosis", "kurtosis_pop", "product", "favg", "fsum", "sumkahan", "kahan_sum", "mode",
    "mad",
}  # fmt: skip


def runs_along(e: Aggregate) -> bool:
    if e.function in ("sum", "avg", "mean"):
        return e.argument is not None and e.argument.type not in ("DOUBLE", "FLOAT")
    return e.function in _ALONG and not e.order


def is_streamed(e: Aggregate) -> bool:
    """True if a window that streams gives an aggregate over each prefix of a match exactly."""
    return e.function in STREAMED and not e.order


def call_sql(e: Aggregate, names: dict[Expression, str], in_order: bool) -> str:
    """Returns the call over chosen rows (thus without DISTINCT and FILTER), which `i` numbers; in_order: in that
    order."""
    keys = [f"{to_sql(key, names)} {how}" for key, how in e.order]
    if keys or in_order:
        keys.append("i")
    arguments = ", ".join(to_sql(a, names) for a in (e.argument, *e.more) if a is not None)
    return f"{e.function}({arguments}{' ORDER BY ' + ', '.join(keys) if keys else ''})"


@cache
def folds_type(type: str) -> bool:
    """True if the kernel can fold values of a type: those with a lane of 64 bits that Arrow has too."""
    try:
        lane_of(type)
    except NoLane:
        return False
    return type != "INTERVAL" and not is_wide(type)


def lowered_measure(e: Expression) -> Lowered | None:
    """A measure in lanes over its leaves, or None."""

    def leaf(x: Expression) -> Leaf | None:
        if isinstance(x, Column | Navigation | Aggregate | MatchNumber):
            if not is_leaf(x) or not folds_type(x.type) or x.type == "FLOAT":
                raise NoLane(show(x))
            return Leaf(x, lane_of(x.type))
        return None

    if not folds_type(e.type) or e.type == "FLOAT":
        return None
    try:
        return lower(e, leaf)
    except NoLane:
        return None


def is_leaf(e: Expression) -> bool:
    """True if it is read directly, without a projection."""
    if isinstance(e, Navigation):
        return isinstance(e.argument, Column | Classifier)
    return isinstance(e, Column | Aggregate | Classifier | MatchNumber)
