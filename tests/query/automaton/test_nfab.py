"""The NFA^b of [SASE]: as it prints itself, and run by its formulas against the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.statement.explain import explain
from matching.by_reference import DuckEvaluation
from query.automaton.nfa import EdgeKind, State
from query.automaton.nfab import ROW_NUMBER, Absence, NFAb, explain_nfab, nfab
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Call, Expression, show
from query.plan.pattern import Exclusion, Repeat, RowPattern, Variable, negated, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Order, Plan, Within
from query.reference import find, partition_key
from query.schema import Field, Schema
from query.values import EvaluationScope, PartitionRows, value
from tests.cases.test_worked import CASES
from tests.cases.test_worked import plan_of as plan_of_case
from tests.strategies import (
    SCHEMA,
    SECOND_US,
    TS,
    WITHINS,
    K,
    Row,
    aggregate,
    compare,
    conditions,
    events,
    number,
    operators,
    plans,
    with_negations,
)
from tests.strategies import negated as negated_condition

STOCKS = Schema(
    "e",
    tuple(Field(n, t) for n, t in dict(ts="TIMESTAMP", k="VARCHAR", s="VARCHAR", price="BIGINT", vol="BIGINT").items()),
    time="ts",
)
QUERY_3 = """PATTERN (A+ B) {selection} WITHIN INTERVAL '3600' SECOND
DEFINE A AS (COUNT(A.*) = 1 AND vol > 1000) OR (COUNT(A.*) > 1 AND price * (COUNT(A.*) - 1) > SUM(A.price) - price),
       B AS vol < 0.8 * A.vol"""


def plan_of(text: str) -> Plan:
    query = parse(f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {text}) AS m")
    return bind(query, lambda name: STOCKS).factors[0].plan


def chain_of(text: str) -> NFAb:
    found = nfab(plan_of(text))
    assert found is not None
    return found


def edges(found: NFAb, after: bool = False) -> list[str]:
    """All edges in order, `state kind: formula`."""
    states = zip(found.names, found.after if after else found.before, strict=True)
    return [f"{name} {e.kind.value}: {show(e.label)}" for name, s in states for e in s.edges]


# ---- what is printed -----------------------------------------------------------------------------------------------

SAME = "(k IS NOT DISTINCT FROM FIRST(k))"
HOUR = "((ts - FIRST(ts)) <= INTERVAL 1 hour)"
RISES = "((price * (count(A.*) - 1)) > (sum(A.price) - price))"  # price > avg(A[..i-1].price)
FALLS = "(vol < (0.8 * LAST(A.vol)))"  # vol < 80% * A[A.LEN].vol

FIGURE_2 = f"""\
steps 1 to 4: structure, conditions, selection, WITHIN on the last edge
A[1]  begin   -> A[i]  (vol > 1000)
A[i]  take    -> A[i]  ({SAME} AND {RISES})
      proceed -> B     True
      ignore  -> A[i]  (NOT coalesce(({SAME} AND {RISES}), False))
B     begin   -> F     ({SAME} AND {FALLS} AND {HOUR})
      ignore  -> B     (NOT coalesce(({SAME} AND {FALLS}), False))
F

steps 5 and 6: WITHIN on every edge, proceed peeks
A[1]  begin   -> A[i]  (vol > 1000)
A[i]  take    -> A[i]  ({SAME} AND {RISES} AND {HOUR})
      proceed -> B     ({SAME} AND {FALLS} AND {HOUR})
      ignore  -> A[i]  ((NOT coalesce(({SAME} AND {RISES}), False)) AND {HOUR})
B     begin   -> F     ({SAME} AND {FALLS} AND {HOUR})
      ignore  -> B     ((NOT coalesce(({SAME} AND {FALLS}), False)) AND {HOUR})
F"""


@pytest.mark.slow
def test_query_3_of_the_paper_is_its_figure_2() -> None:
    plan = plan_of(QUERY_3.format(selection="SELECTION SKIP TILL NEXT MATCH"))
    assert explain_nfab(plan) == FIGURE_2


@pytest.mark.parametrize(
    ("selection", "ignore"),
    [
        ("STRICT", ["False", "False"]),
        ("PARTITION", ["(k IS DISTINCT FROM FIRST(k))"] * 2),
        (
            "SKIP TILL NEXT MATCH",
            [f"(NOT coalesce(({SAME} AND {RISES}), False))", f"(NOT coalesce(({SAME} AND {FALLS}), False))"],
        ),
        ("SKIP TILL ANY MATCH", ["True", "True"]),
    ],
)
def test_what_each_strategy_ignores(selection: str, ignore: list[str]) -> None:
    found = chain_of(QUERY_3.format(selection=f"SELECTION {selection}"))
    shown = [show(e.label) for s in found.before for e in s.edges if e.kind is EdgeKind.IGNORE]
    assert shown == ignore
    bounded = {"False": "False", "True": HOUR}
    shown = [show(e.label) for s in found.after for e in s.edges if e.kind is EdgeKind.IGNORE]
    assert shown == [bounded.get(formula, f"({formula} AND {HOUR})") for formula in ignore]


def test_conjuncts_go_to_the_edge_of_their_last_identifier() -> None:
    text = """PATTERN (A B+ C+? D) SELECTION STRICT
        DEFINE B AS LAST(B.price, 1) IS NULL OR price > LAST(B.price, 1),
               C AS COUNT(B.*) >= 3 AND MAX(B.vol) < A.vol AND s = 'c' AND (price > 1 OR NOT (vol > 2 OR vol IS NULL)),
               D AS COUNT(C.*) >= 1 AND COUNT(*) > 4 AND A.price = 1"""
    last = "((price > 1) OR (NOT (vol > 2))) AND ((price > 1) OR (NOT (vol IS NULL)))"
    early = "((count(B.*) >= 3) AND (max(B.vol) < LAST(A.vol)))"
    found = chain_of(text)
    assert [e for e in edges(found) if "ignore" not in e] == [
        "A begin: True",
        f"B[1] begin: {SAME}",
        f"B[i] take: ({SAME} AND ((LAST(B.price, 1) IS NULL) OR (price > LAST(B.price, 1))))",
        f"B[i] proceed: {early}",
        f"C[1] begin: ({SAME} AND (s = 'c') AND {last})",
        "C[i] proceed: True",
        f"C[i] take: ({SAME} AND (count(B.*) >= 3) AND (max(B.vol) < LAST(A.vol)) AND (s = 'c') AND {last})",
        f"D begin: ({SAME} AND (count(*) > 4) AND (LAST(A.price) = 1))",
    ]
    states = zip(found.names, found.after, strict=True)
    peeks = {name: show(e.label) for name, s in states if (e := s.edge(EdgeKind.PROCEED)) is not None}
    assert peeks == {
        "B[i]": f"({early[1:-1]} AND {SAME} AND (s = 'c') AND {last})",
        "C[i]": f"({SAME} AND (count(*) > 4) AND (LAST(A.price) = 1))",
    }


@pytest.mark.parametrize(
    ("condition", "first", "later"),
    [
        ("COUNT(A.*) = 1 OR price > LAST(A.price, 1)", "True", "(price > LAST(A.price, 1))"),
        ("COUNT(A.*) <> 1 OR vol > 1", "(vol > 1)", "True"),
        ("1 < COUNT(A.*)", "False", "True"),
        ("COUNT(*) >= 3", "False", "(count(*) >= 3)"),
        ("COUNT(A.*) < 3", "True", "(count(A.*) < 3)"),
        ("COUNT(A.*) <= 1", "True", "False"),
        ("CASE WHEN COUNT(A.*) = 1 THEN vol > 1 ELSE vol > 2 END", "(vol > 1)", "(vol > 2)"),
        ("FIRST(A.vol, 1) IS NULL AND vol > 1", "(vol > 1)", "((FIRST(A.vol, 1) IS NULL) AND (vol > 1))"),
        ("NOT (vol > 1 AND price > 1)",) + ("((NOT (vol > 1)) OR (NOT (price > 1)))",) * 2,
        ("NOT (vol > 1 OR price > 1)",) + ("((NOT (vol > 1)) AND (NOT (price > 1)))",) * 2,
        ("NULL OR vol > 1 OR vol > 1", "(vol > 1)", "(vol > 1)"),
        ("vol > 1 AND (vol > 1 OR price > 1)", "(vol > 1)", "(vol > 1)"),
        ("vol > NULL", "False", "False"),
        ("NOT (NULL)", "False", "False"),
    ],
)
def test_what_is_known_of_a_first_and_of_a_later_row(condition: str, first: str, later: str) -> None:
    plan = plan_of(f"PATTERN (A+ B) SELECTION STRICT DEFINE A AS {condition}")
    found = nfab(replace(plan, partition_by=()))
    assert found is not None
    assert edges(found)[:2] == [f"A[1] begin: {first}", f"A[i] take: {later}"]


def test_a_trailing_plus_ends_by_a_proceed_edge_with_within() -> None:
    found = chain_of("PATTERN (A B+) SELECTION STRICT WITHIN 4 ROWS")
    here, last = ("ROW_NUMBER()", "LAST(ROW_NUMBER())")
    bound = "(({} - FIRST(ROW_NUMBER())) < 4)"
    assert edges(found, after=True) == [
        "A begin: True",
        f"B[1] begin: ({SAME} AND {bound.format(here)})",
        "B[1] ignore: False",
        f"B[i] take: ({SAME} AND {bound.format(here)})",
        f"B[i] proceed: {bound.format(last)}",
        "B[i] ignore: False",
    ]
    assert edges(found)[3:5] == [f"B[i] take: {SAME}", f"B[i] proceed: {bound.format(last)}"]
    other = chain_of("PATTERN (A B) SELECTION PARTITION WITHIN 4 ROWS")
    foreign = "(k IS DISTINCT FROM FIRST(k))"
    assert edges(other, after=True)[2] == f"B ignore: ({foreign} AND ({foreign} OR {bound.format(here)}))"


def test_row_numbers_of_another_partition_end_no_run() -> None:
    rows: list[Row] = [{"ts": i, "k": k, "s": k, "price": 1, "vol": 1} for i, k in enumerate("qqqpqp")]
    for selection in ("PARTITION", "SKIP TILL NEXT MATCH", "SKIP TILL ANY MATCH"):
        plan = plan_of(f"AFTER MATCH NO SKIP PATTERN (A B) SELECTION {selection} WITHIN 2 ROWS DEFINE A AS s = 'p'")
        assert by_formulas(plan, rows) == {(("A", 3), ("B", 5))}


def test_negations_stand_beside_the_states() -> None:
    text = """PATTERN (~N A+ ~M B ~L) SELECTION SKIP TILL ANY MATCH WITHIN 10 SECONDS
              DEFINE N AS s = 'n', M AS vol > B.vol, L AS s = 'l'"""
    ten = "INTERVAL 10 seconds"
    assert str(chain_of(text)).splitlines()[-4:] == [
        "absent rows",
        f"~N  before the match: ({SAME} AND ((LAST(A|B.ts) - ts) <= {ten}) AND (s = 'n'))",
        f"~M  between A and B: ({SAME} AND (vol > LAST(B.vol)))",
        f"~L  after the match: ({SAME} AND ((ts - FIRST(ts)) <= {ten}) AND (s = 'l'))",
    ]


def test_several_elements_of_one_variable_are_numbered() -> None:
    found = chain_of('PATTERN (A{2} b A{2,} "c") SELECTION STRICT')
    assert list(found.names) == ["A.1", "A.2", "B", "A.3", "A.4[1]", "A.4[i]", '"c"', "F"]
    assert found.elements == ("A.1", "A.2", "B", "A.3", "A.4", '"c"')


@pytest.mark.parametrize(
    "pattern", ["A | B", "A? B", "A* B", "(A B)+", "^ A", "A{1,2}", "()", "PERMUTE(A, B)", "A{21}", "(A{11}){2}"]
)
@pytest.mark.parametrize("selection", Selection)
def test_other_patterns_have_the_general_form(pattern: str, selection: Selection) -> None:
    plan = plan_of(f"PATTERN ({pattern}) SELECTION {selection.value} WITHIN 3 ROWS")
    assert nfab(plan) is None
    shown = explain_nfab(plan).splitlines()
    assert shown[0] == "no chain of variables and V+: the general form"
    assert shown[1].startswith("start  ")
    assert shown[-2].startswith("ignore ")
    assert shown[-1] == "within 3 rows, on every edge"


def test_the_general_form_names_what_must_be_absent() -> None:
    shown = explain_nfab(plan_of("PATTERN (A ~N B?  C) SELECTION SKIP TILL ANY MATCH DEFINE N AS s = 'n'"))
    assert shown.splitlines()[-2:] == ["ignore any row", "absent ~N at its place: (s = 'n')"]


def test_a_large_automaton_is_not_written_out() -> None:
    shown = explain_nfab(plan_of("PATTERN (A{500,} B)"))
    assert shown.splitlines()[1:] == ["an automaton of 502 states", "ignore rows of another partition"]
    text = "SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts PATTERN (A{40000})) AS m"
    assert explain(text, "nfab", lambda name: STOCKS) == "-- m\nnone: the pattern expands to more than 30,000 nodes"


@pytest.mark.slow
@given(plan=plans(selections=tuple(Selection), negations=True))
def test_every_plan_can_be_shown(plan: Plan) -> None:
    lines = explain_nfab(plan).splitlines()
    assert lines[0].startswith("steps 1 to 4" if nfab(plan) else "no chain")
    assert sum(line.startswith(("~", "absent ~")) for line in lines) == len(negated(plan.pattern))


# ---- what is found by the formulas ---------------------------------------------------------------------------------

#: (state in which a row was bound, row index), in order
Bound = tuple[tuple[int, int], ...]
Labels = tuple[tuple[str, int], ...]


class Runs:
    """All runs of an NFA^b over rows of all partitions: every edge whose formula holds is gone along."""

    def __init__(self, plan: Plan, machine: NFAb, states: tuple[State[Expression], ...], rows: Sequence[Row]) -> None:
        self.machine, self.states = machine, states
        self.keys = [partition_key(plan, row) for row in rows]
        self.rows = [r | {ROW_NUMBER.name: self.keys[: i + 1].count(self.keys[i])} for i, r in enumerate(rows)]
        self.evaluate = DuckEvaluation()

    def holds(self, formula: Expression, bound: Bound, variable: str | None, row: int) -> bool:
        """Whether a formula is true with `row` as the candidate. variable None: the last row bound is."""
        own = self.keys[bound[0][1] if bound else row]
        index = [i for i, key in enumerate(self.keys) if key == own]
        if row not in index:
            index.append(row)  # of another partition: formulas ask for its partition first
        labels = [(str(self.states[state].variable), index.index(i)) for state, i in bound]
        if variable is not None:
            labels.append((variable, index.index(row)))
        scope = EvaluationScope(
            PartitionRows((), index), self.rows, tuple(labels), len(labels), index.index(row), None, self.evaluate
        )
        return value(formula, scope) is True

    def step(self, state: int, bound: Bound, row: int) -> Iterator[tuple[int, Bound]]:
        """The runs that consume a row in a state; `bound` grows where the row is stored."""
        for edge in self.states[state].edges:
            behind = self.states[edge.target].variable
            match edge.kind:
                case EdgeKind.BEGIN | EdgeKind.TAKE:
                    if self.holds(edge.label, bound, self.states[state].variable, row):
                        yield edge.target, (*bound, (state, row))
                case EdgeKind.IGNORE:
                    if self.holds(edge.label, bound, self.states[state].variable, row):
                        yield state, bound
                case EdgeKind.PROCEED:
                    if behind is not None and self.holds(edge.label, bound, behind, row):
                        yield from self.step(edge.target, bound, row)

    def ends(self, state: int, bound: Bound) -> bool:
        """Whether a run that has just stored a row is in F, or proceeds to it."""
        proceed = self.states[state].edge(EdgeKind.PROCEED)
        if proceed is None or self.states[proceed.target].variable is not None:
            return self.states[state].variable is None
        return self.holds(proceed.label, bound, None, bound[-1][1])

    def violated(self, absence: Absence, bound: Bound) -> bool:
        def of(element: int) -> list[int]:
            name = self.machine.elements[element]
            return [row for state, row in bound if self.machine.names[state] in (name, f"{name}[1]", f"{name}[i]")]

        if absence.behind is None:
            place = range(bound[0][1])
        elif absence.before is None:
            place = range(bound[-1][1] + 1, len(self.rows))
        else:
            place = range(of(absence.behind)[-1] + 1, of(absence.before)[0])
        return any(self.holds(absence.formula, bound, absence.variable, row) for row in place)

    def matches(self) -> set[Labels]:
        found: set[Labels] = set()
        runs: set[tuple[int, Bound]] = set()
        for row in range(len(self.rows)):
            runs = {new for state, bound in (*runs, (0, ())) for new in self.step(state, bound, row)}
            for state, bound in runs:
                if bound[-1][1] == row and self.ends(state, bound):
                    if not any(self.violated(absence, bound) for absence in self.machine.absences):
                        found.add(tuple((str(self.states[s].variable), i) for s, i in bound))
        return found


def by_formulas(plan: Plan, rows: Sequence[Row], after: bool = True) -> set[Labels]:
    machine = nfab(plan)
    assert machine is not None
    return Runs(plan, machine, machine.after if after else machine.before, rows).matches()


FIGURE_3 = [(100, 1010), (120, 990), (120, 1005), (121, 999), (120, 999), (125, 750), (120, 950), (120, 700)]


def test_the_matches_of_figure_3_need_a_proceed_that_peeks() -> None:
    rows: list[Row] = [
        {"ts": i * SECOND_US, "k": "p", "s": "e", "price": price, "vol": vol}
        for i, (price, vol) in enumerate(FIGURE_3, 1)
    ]
    plan = plan_of(QUERY_3.format(selection="SELECTION SKIP TILL NEXT MATCH"))
    shown = {" ".join(f"{name}{i + 1}" for name, i in labels) for labels in by_formulas(plan, rows)}
    assert shown == {"A1 A2 A3 A4 A5 B6", "A3 A4 B6", "A1 A2 A3 A4 A5 A6 A7 B8"}
    assert len(by_formulas(plan, rows, after=False)) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")  # negations that cannot act
def test_worked_examples_of_chains_by_their_formulas() -> None:
    tried = 0
    for case in CASES:
        plan = plan_of_case(case)
        whole = case.only is None and case.filtered is None and case.watermark_us is None
        if whole and plan.after.kind is AfterMatchKind.NO_SKIP and nfab(plan) is not None:
            found = by_formulas(plan, case.rows)
            assert {tuple((n, case.rows[i]["event"]) for n, i in labels) for labels in found} == set(case.matches)
            tried += bool(found)
    assert tried >= 30


@st.composite
def chains(draw: st.DrawFn) -> RowPattern:
    """1 to 3 elements: singletons, loops, {2} and {2,}, some in {- -}, variables that may come again."""
    parts: list[RowPattern] = []
    for _ in range(draw(st.integers(1, 3))):
        part: RowPattern = Variable(draw(st.sampled_from(["A", "B", "C", "ABC"[len(parts)], "ABC"[len(parts)]])))
        match draw(st.sampled_from(["one", "loop", "one", "loop", "reluctant", "two", "two or more", "hidden"])):
            case "loop":
                part = Repeat(part, 1, None, True)
            case "reluctant":
                part = Repeat(part, 1, None, False)
            case "two":
                part = Repeat(part, 2, 2, True)
            case "two or more":
                part = Repeat(part, 2, None, True)
            case "hidden":
                part = Exclusion(part)
        parts.append(part)
    return Concatenation(tuple(parts)) if len(parts) > 1 else parts[0]


@st.composite
def split(draw: st.DrawFn, name: str, names: tuple[str, ...]) -> Expression:
    """A condition on the first row and another one on later rows."""
    count = aggregate("count", None, (name,))
    first, later = draw(conditions(name, names, numbered=False)), draw(conditions(name, names, numbered=False))
    one, more = compare(count, "=", number(1)), compare(count, ">", number(1))
    both = [Call("and", (one, first), "BOOLEAN"), Call("and", (more, later), "BOOLEAN")]
    return Call("or", tuple(both), "BOOLEAN")


@st.composite
def chain_plans(draw: st.DrawFn) -> Plan:
    """Plans of chains that ask for all matches."""
    within: Within | None = draw(WITHINS)
    pattern = draw(chains())
    names = variables(pattern)
    if draw(st.integers(0, 2)) == 2:
        pattern = with_negations(draw, pattern, within is not None)
    defines = []
    for name in dict.fromkeys((*names, *negated(pattern))):
        condition = draw(conditions(name, names, numbered=False))
        match draw(st.sampled_from(["plain", "plain", "split", "and", "or", "neither"])):
            case "split" if name in names:
                condition = draw(split(name, names))
            case "and" | "or" | "neither" as kind:
                counted = draw(st.sampled_from([(name,), (name,), *((n,) for n in names), ()]))
                rows = compare(aggregate("count", None, counted), draw(operators), number(draw(st.integers(1, 4))))
                condition = Call("and" if kind == "and" else "or", (rows, condition), "BOOLEAN")
                condition = negated_condition(condition) if kind == "neither" else condition
        defines.append(Define(name, condition))
    return Plan(
        SCHEMA, (K,) if draw(st.integers(0, 3)) else (), (Order(TS),), (), RowsPerMatch.ONE,
        AfterMatch(AfterMatchKind.NO_SKIP), pattern, within, draw(st.sampled_from(Selection)), (), tuple(defines),
    )  # fmt: skip


@pytest.mark.slow
@given(rows=events(max_size=9), plan=chain_plans())
def test_the_formulas_find_what_the_reference_finds(rows: list[Row], plan: Plan) -> None:
    ts_us = [int(str(row["ts"])) for row in rows]
    found = [match.labels for match in find(plan, rows, ts_us, evaluate=DuckEvaluation())]
    assert len(set(found)) == len(found)
    assert by_formulas(plan, rows) == set(found)
    # an unconstrained proceed finds the same matches more often, but where a loop may be cut short
    unconstrained = by_formulas(plan, rows, after=False)
    assert unconstrained >= set(found)
    if plan.selection is not Selection.SKIP_TILL_NEXT:
        assert unconstrained == set(found)
