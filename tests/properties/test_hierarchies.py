"""Patterns made of patterns: matchers of layers against composition."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from matching.purpose import Purpose
from query.errors import HybridWarning
from query.plan.fingerprint import fingerprint
from tests.hierarchies import (
    SELECTIONS,
    Hierarchy,
    composed,
    factor_of,
    hierarchies,
    leaves,
    matched,
    output,
    over,
    plan_of,
)
from tests.properties.comparing import fewer


@pytest.mark.slow
@fewer(3, least=30)
@given(hierarchies())
def test_layers_equal_composition(one: Hierarchy) -> None:
    """The same matches in the same order, with the same evidence and rows, however events are cut into batches, with
    and without watermarks, and continued from snapshots."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # some negations run through the reference matcher
        plan = plan_of(one.text)
        expected = composed(plan, one.events)
        event("matches" if expected else "no match")
        event(f"reads rows before: {'PREV' in one.text}")
        how = {"watermarks": one.watermarks, "restart": one.restart}
        found = matched(plan, one.events, one.cuts, **how)
        assert leaves(found) == [tuple(match.leaves()) for match in expected]
        rows = [tuple(row.values()) for match in expected for row in match.rows]
        assert output(found) == rows
        assert output(matched(plan, one.events, one.cuts, purpose=Purpose.ROWS, **how)) == rows


@pytest.mark.slow
@fewer(5, least=20)
@given(hierarchies(sources=("events", "others", "MERGE(events, others)")))
def test_layers_of_several_streams_equal_composition(one: Hierarchy) -> None:
    """The same where layers read other streams than FROM, with columns of other types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        factor = factor_of(one.text)
        assume(factor.merged is not None)
        expected = composed(factor.plan, one.events, factor=factor)
        event("matches" if expected else "no match")
        how = {"watermarks": one.watermarks, "restart": one.restart}
        found = matched(factor.plan, one.events, one.cuts, factor=factor, **how)
        assert leaves(found) == [tuple(match.leaves()) for match in expected]
        rows = [tuple(match.row.values()) for match in expected]
        assert output(found) == rows
        assert output(matched(factor.plan, one.events, one.cuts, factor=factor, purpose=Purpose.ROWS, **how)) == rows


SASE = {
    "NEXT": "skip_till_next_match", "ANY": "skip_till_any_match", "PARTITION": "partition_contiguity",
    "STRICT": "strict_contiguity",
}  # fmt: skip


@st.composite
def statements(draw: st.DrawFn) -> tuple[str, str]:
    """Draws a SASE+ statement with boxes, and the same in SQL."""
    inner = "SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n"
    patterns = {
        "visit": f"{inner} PATTERN (A B+) SELECTION SKIP TILL NEXT MATCH DEFINE A AS s = 'a', B AS s = 'b')",
        "pair": "FROM events TYPE BY s PATTERN SEQ(x a, y b) WHERE skip_till_any_match(a, b) { [k] } RETURN b.i AS n",
    }
    names = ["u", "v", "w"][: draw(st.integers(1, 3))]
    kinds = {name: draw(st.sampled_from(["a", "x", "PATTERN visit", "PATTERN pair"])) for name in names}
    signs = {name: draw(st.sampled_from(["", "", "+"])) for name in names}
    negated = draw(st.sampled_from(names[1:] or [""])) if len(names) > 2 and draw(st.booleans()) else ""
    column = {name: "n" if kinds[name].startswith("P") else "i" for name in names}
    elements, parts, listed, conditions, defines = [], [], [], [], []
    for k, name in enumerate(names):
        kind, many, boxed = kinds[name], signs[name] == "+" and name != negated, kinds[name].startswith("P")
        element = f"{kind}+ {name}[]" if many else f"{kind} {name}"
        elements.append(f"~({element})" if name == negated else element)
        parts.append(f"~{name}" if name == negated else name + "+" * many)
        listed += [f"{name}[]" if many else name] if name != negated else []
        tests = [] if boxed else [f"s = '{kind}'"]
        if draw(st.booleans()):  # on itself
            conditions.append(f"{name}{'[i]' if many else ''}.{column[name]} > 1")
            tests.append(f"(count({name}.*) = 1) OR (count({name}.*) > 1 AND {column[name]} > 1)" if many
                         else f"{column[name]} > 1")  # fmt: skip
        before = names[k - 1] if k else ""
        if before and before != negated and not many and draw(st.booleans()):
            last = f"{before}[{before}.LEN]" if signs[before] else before
            conditions.append(f"{name}.{column[name]} >= {last}.{column[before]}")
            tests.append(f"{column[name]} >= LAST({before}.{column[before]})")
        if boxed:
            defines.append(f"{name} AS {kind}" + (f" ON {' AND '.join(f'({t})' for t in tests)}" if tests else ""))
        else:
            defines.append(f"{name} AS {' AND '.join(f'({t})' for t in tests)}")
    of = names[0]
    returned = f"max({of}[].{column[of]})" if signs[of] else f"{of}.{column[of]}"
    measure = f"max({of}.{column[of]})" if signs[of] else f"LAST({of}.{column[of]})"
    selection = draw(st.sampled_from(list(SELECTIONS)))
    sase = f"""FROM events TYPE BY s PATTERN SEQ({', '.join(elements)})
        WHERE {SASE[selection]}({', '.join(listed)}) {{ {' AND '.join(['[k]', *conditions])} }}
        WITHIN 9 MICROSECONDS RETURN {returned} AS r"""
    sql = f"""SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measure} AS r
        AFTER MATCH NO SKIP PATTERN ({' '.join(parts)}) WITHIN INTERVAL 9 MICROSECONDS
        SELECTION {SELECTIONS[selection]} DEFINE {', '.join(defines)})"""
    named = {name: text for name, text in patterns.items() if f"PATTERN {name}" in sql}
    return over(named, sase) if named else sase, over(named, sql) if named else sql


@pytest.mark.slow
@fewer(5, least=20)
@given(statements())
def test_a_sase_statement_is_its_sql(texts: tuple[str, str]) -> None:
    """The same plan, so that all that is said of the one is said of the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        sase, sql = map(plan_of, texts)
    event("boxes" if sase.boxes else "no box")
    assert sase == sql
    assert fingerprint(sase) == fingerprint(sql)
