"""Every aggregate of DuckDB in a condition: engines run it, or say what to write instead."""

from __future__ import annotations

import pytest

from matching.program.conditions import JoinedTexts, Wanted
from matching.program.program import Program, assemble
from matching.program.refused import NoKernel
from query.errors import QueryError
from query.language import duck
from query.language.parse import parse
from query.plan.bind import bind
from query.schema import Field, Schema

COLUMNS = (("ts", "TIMESTAMP"), ("q", "BIGINT"), ("v", "DOUBLE"), ("s", "VARCHAR"), ("b", "BOOLEAN"))
SCHEMA = Schema("e", tuple(Field(*column) for column in COLUMNS), time="ts")
#: What each is given, beside those of one or two numbers.
GIVEN = {
    "count_if": "A.b", "countif": "A.b", "bool_and": "A.b", "bool_or": "A.b", "string_agg": "A.s, ','",
    "listagg": "A.s", "group_concat": "A.s", "bit_and": "A.q", "bit_or": "A.q", "bit_xor": "A.q",
    "bitstring_agg": "A.q, 0, 9",
    "quantile": "A.v, 0.5", "quantile_cont": "A.v, 0.5", "quantile_disc": "A.v, 0.5", "approx_quantile": "A.v, 0.5",
    "reservoir_quantile": "A.v, 0.5", "approx_top_k": "A.s, 2", "histogram_exact": "A.q, [1, 2]",
    "lttb": "A.ts, A.v, 3",
}  # fmt: skip
#: They combine states of other aggregates, or VARIANT fields: no condition reads these.
OF_STATES = {"combine_aggr", "variant_group_object", "decimal_average"}


def program_of(condition: str) -> Program:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS t PATTERN (A+ B) DEFINE B AS {condition})"
    return assemble(bind(parse(text), lambda _: SCHEMA).factors[0].plan)


def call_of(name: str) -> str | None:
    """Returns a call that DuckDB takes, None if there is none."""
    for given in (GIVEN.get(name), "A.v", "A.q", "A.v, A.q", "A.s"):
        if given is None:
            continue
        call = f"{name}({given})"
        try:
            program_of(f"{call} IS NOT NULL")
        except QueryError:
            continue
        except NoKernel:
            pass
        return call
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(duck.aggregate_names() - {"first", "last"}))
def test_an_aggregate_runs_in_an_engine(name: str) -> None:
    call = call_of("count" if name == "count_star" else name)
    if name in OF_STATES:
        return
    if name in ("bitstring_agg", "variant_group_array"):  # of types that patterns cannot hand on
        assert call is None
        return
    assert call is not None, "a call that DuckDB takes"
    assert program_of(f"{call} IS NOT NULL").code[-1]


@pytest.mark.parametrize(("condition", "instead"), [
    ("string_agg(DISTINCT A.s, ',') > 'a'", "ORDER BY"), ("product(DISTINCT A.v) > 1", "ORDER BY"),
    ("string_agg(CLASSIFIER(), '') = 'AA'", "count the rows of a variable by count"), ("kurtosis(PREV(v)) > 1", ""),
])  # fmt: skip
def test_what_engines_do_not_run_says_what_to_write_instead(condition: str, instead: str) -> None:
    with pytest.raises((NoKernel, QueryError)) as refused:
        program_of(condition)
    assert isinstance(refused.value, QueryError) or instead in refused.value.instead


@pytest.mark.parametrize(("condition", "wanted"), [
    ("v > median(A.v)", Wanted.BETWEEN), ("v > quantile_disc(A.v, 0.5)", Wanted.AT), ("s = mode(A.s)", Wanted.MODE),
    ("v > mad(A.v)", Wanted.MAD), ("q > approx_count_distinct(A.s)", Wanted.ESTIMATE),
    ("v > entropy(A.v)", Wanted.LIST), ("v > skewness(A.v)", Wanted.SKEWNESS),
    ("v > kurtosis(A.q)", Wanted.KURTOSIS), ("v > kurtosis_pop(A.v)", Wanted.KURTOSIS_POP),
])  # fmt: skip
def test_what_walks_find(condition: str, wanted: Wanted) -> None:
    assert [walk.wanted for walk in program_of(condition).walks] == [wanted]


@pytest.mark.parametrize(("condition", "joined"), [
    ("string_agg(A.s, '-') > 'b'", (JoinedTexts(b"b", b"-"),)), ("'b' <= string_agg(s)", (JoinedTexts(b"b", b","),)),
    ("string_agg(A.s, '-') IN ('a', 'b')", (JoinedTexts(b"a", b"-"), JoinedTexts(b"b", b"-"))),
    (f"string_agg(A.s) = '{65 * 'a'}'", ()), ("string_agg(A.s, '-' ORDER BY A.v) > 'b'", ()),
])  # fmt: skip
def test_joined_texts_are_compared_as_they_come(condition: str, joined: tuple[JoinedTexts, ...]) -> None:
    # Before: DuckDB was asked for each list of rows.
    program = program_of(condition)
    assert program.joined == joined
    assert bool(program.asked) == (not joined)


def test_aggregates_of_the_same_rows_have_one_list() -> None:
    program = program_of("corr(A.v, A.q) > entropy(A.s) AND fsum(A.v) > 1 AND entropy(v) IS NULL")
    assert len(program.walks) == 2
    assert [len(asked.rows.aggregates) for asked in program.asked if asked.rows is not None] == [1, 1, 1, 1]
