"""Automata to programs and tables, as they print themselves."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from matching.program.determinise import determinise
from matching.program.program import Merge, Mode, NoKernel, assemble
from query.automaton.nfa import Label
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Constant,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
)
from query.plan.pattern import (
    Exclusion,
    Negation,
    Repeat,
)
from query.plan.plan import AfterMatch, Plan, Within
from tests.plans import END, PRICE, START, VOL, A, B, C, option, plan_of, previous, sequence, star


def test_a_row_local_pattern_is_one_table() -> None:
    falling, rising = Call("<", (PRICE, previous(PRICE)), "BOOLEAN"), Call(">", (PRICE, previous(PRICE)), "BOOLEAN")
    plan = plan_of(sequence(A, Repeat(B, 1, None, True), Repeat(C, 1, None, True)), {"B": falling, "C": rising})
    program = assemble(plan)
    assert program.merge is Merge.STATE
    assert (program.reach.before, program.reach.after) == (1, 0)
    table = determinise(program)
    assert table is not None
    # states: 1 A, 2 B, 3 C. A row that both falls and rises cannot be, but the table does not know that
    assert str(table) == (
        "table       6 lists x 4 masks\n"
        "            0: (empty)  none -> 1, B -> 1, C -> 1, B C -> 1\n"
        "            1: (1)  none -> 1, B -> 2, C -> 1, B C -> 2\n"
        "            2: (2 1)  none -> 1, B -> 2, C -> 3, B C -> 4\n"
        "            3: (3 match)  none -> 1 emits 1, B -> 1 emits 1, C -> 3, B C -> 3\n"
        "            4: (2 3 match)  none -> 1 emits 1, B -> 5, C -> 3, B C -> 4\n"
        "            5: (2 match 1)  none -> 1 emits 1, B -> 5, C -> 3, B C -> 4"
    )


def test_skip_to_the_last_row_of_every_match_is_one_table() -> None:
    # Before: the table of starts, which kept each start apart and took twice as long
    falling, rising = Call("<", (PRICE, previous(PRICE)), "BOOLEAN"), Call(">", (PRICE, previous(PRICE)), "BOOLEAN")
    pattern, defines = sequence(A, Repeat(B, 1, None, True), C), {"B": falling, "C": rising}
    last = AfterMatch(AfterMatchKind.TO_LAST, ("C",))
    table = determinise(assemble(plan_of(pattern, defines, after=last)))
    assert table is not None
    # in list 2, a row that rises ends the match and is the A of the next attempt, list 1
    assert str(table) == (
        "table       4 lists x 4 masks\n"
        "            0: (empty)  none -> 1, B -> 1, C -> 1, B C -> 1\n"
        "            1: (1)  none -> 1, B -> 2, C -> 1, B C -> 2\n"
        "            2: (2 1)  none -> 1, B -> 2, C -> 1 emits 1, B C -> 3\n"
        "            3: (2 match 1)  none -> 1 emits 1, B -> 3, C -> 1 emits 1, B C -> 3"
    )
    within, first = Within(interval_us=5), AfterMatch(AfterMatchKind.TO_FIRST, ("C",))
    for changed in (
        {"after": last, "within": within}, {"after": first}, {"after": AfterMatch(AfterMatchKind.TO_LAST, ("B",))},
        {"after": last, "rows": RowsPerMatch.ALL_WITH_UNMATCHED},
    ):  # fmt: skip
        assert determinise(assemble(plan_of(pattern, defines, **changed))) is None, changed
    # matches that end in other rows too, and of one row, from which the scan would not move on
    assert determinise(assemble(plan_of(sequence(A, Repeat(B, 1, None, True), option(C)), defines, after=last))) is None
    both = AfterMatch(AfterMatchKind.TO_LAST, ("A", "C"))
    assert determinise(assemble(plan_of(sequence(A, option(C)), defines, after=both))) is None


def test_anchors_and_exclusion_are_labels() -> None:
    pattern = sequence(START, A, Exclusion(Repeat(B, 1, None, True)), END)
    shown = {"rows": RowsPerMatch.ALL_SHOW_EMPTY}
    program = assemble(plan_of(pattern, **shown))
    assert program.labels == (
        Label("A", True, True, False), Label("B", False, False, False), Label("B", False, False, True)
    )  # fmt: skip
    assert program.reach.after == 1  # that a row is the last one shows when there is none behind it
    assert program.tests == ((0,), (2,))  # B without an anchor is always true
    # where the rows of a match are not shown, {- -} says nothing
    assert [label.shown for label in assemble(plan_of(pattern)).labels] == [True, True, True]


def test_a_negation_between_rows_is_idle() -> None:
    within = {"N": TRUE}
    program = assemble(plan_of(sequence(A, Negation("N"), Repeat(B, 1, None, True)), within))
    assert program.variables == ("A", "B")
    assert program.edge_target == assemble(plan_of(sequence(A, Repeat(B, 1, None, True)))).edge_target


def test_labels_with_one_condition_are_one_bit_of_a_table() -> None:
    rises = Call(">", (PRICE, previous(PRICE)), "BOOLEAN")
    pattern = sequence(A, Exclusion(B), Repeat(B, 1, None, True), C)
    plan = plan_of(pattern, {"B": rises, "C": Call("not", (rises,), "BOOLEAN")}, rows=RowsPerMatch.ALL_SHOW_EMPTY)
    table = determinise(assemble(plan))
    assert table is not None
    assert table.tested == ("B", "C")


def test_what_a_table_cannot_do_runs_as_lists() -> None:
    pattern = sequence(A, Repeat(B, 1, None, True))
    for changed in (
        {"within": Within(interval_us=5)},
        {"after": AfterMatch(AfterMatchKind.TO_NEXT_ROW)},
        {"after": AfterMatch(AfterMatchKind.NO_SKIP)},
    ):
        assert determinise(assemble(plan_of(pattern, {}, **changed))) is None
    # A (B* C)? where a B may also be an A: the matches that wait pile up without end
    endless = plan_of(sequence(A, option(sequence(star(B), C))), {"C": Call("is_null", (VOL,), "BOOLEAN")})
    assert determinise(assemble(endless)) is None


def test_a_run_dependent_condition_becomes_registers_and_code() -> None:
    # the trend query of [SASE]: a row above the average so far, then volume below 80 % of the last one
    above = Call(
        ">", (PRICE, Aggregate("avg", PRICE, ("A",), False, False, "DOUBLE")), "BOOLEAN"
    )
    rate = Constant(Decimal("0.8"), "DECIMAL(2,1)")
    last = Navigation(VOL, ("A",), Logical.LAST, 0, 0, False, "BIGINT")
    drop = Call("<", (VOL, Call("*", (rate, last), "DECIMAL(21,1)")), "BOOLEAN")
    local = Call(">", (VOL, Constant(0, "INTEGER")), "BOOLEAN")
    plan = plan_of(
        sequence(Repeat(A, 1, None, True), B), {"A": Call("and", (local, above), "BOOLEAN"), "B": drop},
        after=AfterMatch(AfterMatchKind.TO_NEXT_ROW),
    )  # fmt: skip
    program = assemble(plan)
    assert program.mode is Mode.TO_NEXT_ROW
    assert program.merge is Merge.PATH
    assert str(program) == (
        "mode        to next row, partition\n"
        "runs merge  equal state and rows\n"
        "reads       0 rows before, 0 after\n"
        "mask        bit 0 A: (vol > 0)\n"
        "            bit 1 B: True\n"
        "features    f0 float64 = price\n"
        "            f1 int64 = vol\n"
        "registers   r0 float64 = sum f0 of A\n"
        "            r1 int64 = count_values f0 of A\n"
        "            r2 int64 = last 0 f1 of A\n"
        "code        A     0 feature f0\n"
        "                  1 register r0\n"
        "                  2 register r1\n"
        "                  3 favg 1.0\n"
        "                  4 fgt\n"
        "            B     0 feature f1\n"
        "                  1 stretch 10\n"
        "                  2 constant 8\n"
        "                  3 register r2\n"
        "                  4 mul\n"
        "                  5 lt\n"
        "states      0: A -> 1\n"
        "            1: A -> 1, B -> 2\n"
        "            2: accept"
    )


def test_what_the_kernel_does_not_know_is_named() -> None:
    def refused(plan: Plan) -> str:
        try:
            assemble(plan)
        except NoKernel as why:
            return str(why)
        raise AssertionError("it was taken")

    skip_till = {"selection": Selection.SKIP_TILL_ANY, "after": AfterMatch(AfterMatchKind.NO_SKIP)}
    assert refused(plan_of(sequence(A, END), **skip_till)) == "an anchor under SELECTION SKIP TILL ANY MATCH"
    assert refused(plan_of(sequence(option(A), Negation("N"), B))) == (
        "the negation ~N, at the start or end of some matches only,"
    )
    negation = "the negation ~N at the start or end of a match"
    assert refused(plan_of(sequence(Negation("N"), A))) == f"{negation} without WITHIN"
    assert refused(plan_of(sequence(A, Negation("N")), **skip_till)) == f"{negation} without WITHIN"
    absent = plan_of(sequence(A, Negation("N")), within=Within(rows=3))
    assert refused(replace(absent, timeout_rows=True)) == f"{negation} with TIMEOUT ROWS"
    assert refused(replace(absent, after=AfterMatch(AfterMatchKind.NO_SKIP))) == f"{negation} with NO SKIP"
    assert refused(plan_of(sequence(START, star(A)))) == "an empty match after ^"
    strict = {"selection": Selection.STRICT, "partition_by": (VOL,)}
    assert refused(plan_of(sequence(A, END), **strict)) == "$ under SELECTION STRICT"
    within = {"within": Within(rows=3), "timeout_rows": True}
    assert refused(plan_of(sequence(A, B), **strict, **within)) == "TIMEOUT ROWS under SELECTION STRICT"
    assert refused(plan_of(sequence(A, B, END), **within)) == "TIMEOUT ROWS of a pattern with $"
    of_any_order = Call(">", (PRICE, Aggregate("product", PRICE, ("A",), True, False, "DOUBLE")), "BOOLEAN")
    assert refused(plan_of(sequence(A, B), {"B": of_any_order})) == (
        "DEFINE B: product() of DISTINCT values in no order"
    )
    # Before: "string_agg() with DISTINCT, ORDER BY or several arguments", "an expression that only DuckDB computes",
    # "the argument of max", "CLASSIFIER in a navigation".
    text = Constant("A", "VARCHAR")
    joined = Aggregate("string_agg", Classifier(), ("A",), False, False, "VARCHAR", more=(text,))
    every = Aggregate("list", Classifier(), (), False, False, "VARCHAR[]")
    listed = Opaque("list_contains(\"_0\", 'A')", (every,), "BOOLEAN")
    latest = Aggregate("max", Classifier(), (), False, False, "VARCHAR")
    number = Navigation(MatchNumber(), ("A",), Logical.LAST, 0, 0, False, "BIGINT")
    for condition, named in [
        (Call("=", (joined, text), "BOOLEAN"), "string_agg() of CLASSIFIER()"),
        (listed, "list() of CLASSIFIER()"),
        (Call("=", (latest, text), "BOOLEAN"), "max() of CLASSIFIER()"),
        (Call("=", (number, number), "BOOLEAN"), "LAST of MATCH_NUMBER()"),
    ]:
        assert refused(plan_of(sequence(A, B), {"B": condition})) == f"DEFINE B: {named}"
