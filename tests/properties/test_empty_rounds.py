"""Loops whose rounds may take no row, against two judges: a small backtracking search that follows ISO 19075-5, 7.2.4
to 7.2.8, and Python's `re` where both mean the same.

Rows are letters, and a variable is met by some of them. Nothing of the code under test finds what is expected.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.by_reference import ReferenceMatcher
from matching.engines.run_lists import RunLists
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.pattern import Alternation, Empty, Repeat, RowPattern, Variable, min_rows, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import Plan
from query.reference import find
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import FEWER, answer_of, run
from tests.strategies import SCHEMA, Row

#: The letters that meet each variable.
LETTERS = {"A": "ax", "B": "bx", "C": "cx"}

Labels = tuple[tuple[str, int], ...]
A, B, C = map(Variable, "ABC")


# ---- the standard ----------------------------------------------------------------------------------------------------


def permitted(empty: Sequence[bool], at_least: int, at_most: int | None) -> bool:
    """Whether a loop may have these rounds, said of each whether it takes no row: 7.2.8. Once the minimum is reached a
    round without a row is the last one."""
    if len(empty) < at_least or (at_most is not None and len(empty) > at_most):
        return False
    return not any(empty[max(at_least - 1, 0) : -1])


def ways(pattern: RowPattern, letters: str, at: int) -> Iterator[tuple[Labels, int]]:
    """What the pattern may take from position `at` on, and where it ends; the preferred way first."""
    match pattern:
        case Variable(name):
            if at < len(letters) and letters[at] in LETTERS[name]:
                yield ((name, at),), at + 1
        case Empty():
            yield (), at
        case Alternation(choices):
            for choice in choices:
                yield from ways(choice, letters, at)
        case Concatenation(parts):
            if not parts:
                yield (), at
                return
            for labels, end in ways(parts[0], letters, at):
                for more, last in ways(Concatenation(parts[1:]), letters, end):
                    yield (*labels, *more), last
        case Repeat():
            yield from rounds(pattern, letters, at, ())
        case _:
            raise NotImplementedError(pattern)


def rounds(loop: Repeat, letters: str, at: int, empty: tuple[bool, ...]) -> Iterator[tuple[Labels, int]]:
    """What a loop may take behind rounds of which it is said whether they took no row."""
    here = [((), at)] if permitted(empty, loop.at_least, loop.at_most) else []
    if not loop.greedy:
        yield from here
    # a round beyond: what cannot become permitted by any further round is not looked at
    full = loop.at_most is not None and len(empty) >= loop.at_most
    if not full and not any(empty[max(loop.at_least - 1, 0) :]):
        for labels, end in ways(loop.body, letters, at):
            for more, last in rounds(loop, letters, end, (*empty, end == at)):
                yield (*labels, *more), last
    if loop.greedy:
        yield from here


def expected(pattern: RowPattern, letters: str) -> list[Labels]:
    """The matches with AFTER MATCH SKIP PAST LAST ROW, in order; () is an empty one."""
    found: list[Labels] = []
    at = 0
    while at < len(letters):
        preferred = next(ways(pattern, letters, at), None)
        if preferred is not None:
            found.append(preferred[0])
        at = max(at + 1, preferred[1] if preferred is not None else 0)
    return found


@pytest.mark.parametrize(
    ("at_least", "strings"),
    [
        (0, "- A E AA AE AAA AAE"),
        (1, "A E AA AE AAA AAE"),
        (2, "AA AE EA EE AAA AAE EAA EAE"),
    ],
)
def test_the_judge_permits_what_the_standard_lists(at_least: int, strings: str) -> None:
    """The strings that 7.2.8 permits for (A?){0,3}, (A?){1,3} and (A?){2,3}: a round takes an A, or it is empty, E."""
    every = ["".join(string) for n in range(4) for string in itertools.product("AE", repeat=n)]
    assert [s or "-" for s in every if permitted([e == "E" for e in s], at_least, 3)] == strings.split()


# ---- Python's regular expressions ------------------------------------------------------------------------------------


def regex(pattern: RowPattern) -> str:
    match pattern:
        case Variable(name):
            return f"[{LETTERS[name]}]"
        case Empty():
            return "(?:)"
        case Alternation(choices):
            return f"(?:{'|'.join(map(regex, choices))})"
        case Concatenation(parts):
            return "".join(map(regex, parts))
        case Repeat(body, at_least, at_most, greedy):
            most = "" if at_most is None else at_most
            return f"(?:{regex(body)}){{{at_least},{most}}}" + ("" if greedy else "?")
        case _:
            raise NotImplementedError(pattern)


def means_the_same_in_python(pattern: RowPattern) -> bool:
    """Not where a round that may be empty reaches the minimum and others may follow: there `re` begins another round,
    which the standard does not permit."""
    match pattern:
        case Repeat(body, at_least, at_most):
            differs = min_rows(body) == 0 and at_least > 0 and at_least != at_most
            return not differs and means_the_same_in_python(body)
        case Alternation(parts) | Concatenation(parts):
            return all(map(means_the_same_in_python, parts))
        case _:
            return True


def expected_by_python(pattern: RowPattern, letters: str) -> list[tuple[int, int]]:
    """Start and end of each match."""
    compiled = re.compile(regex(pattern))
    found = []
    at = 0
    while at < len(letters):
        match = compiled.match(letters, at)
        if match is not None:
            found.append(match.span())
        at = max(at + 1, match.end() if match is not None else 0)
    return found


# ---- what is under test ----------------------------------------------------------------------------------------------


def plan_of(pattern: RowPattern | str) -> Plan:
    names = [name for name in LETTERS if name in str(pattern)]
    conditions = (f"{name} AS s IN ({', '.join(map(repr, LETTERS[name]))})" for name in names)
    defines = "DEFINE " + ", ".join(conditions) if names else ""
    text = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts PATTERN ({pattern}) {defines})"
    return bind(parse(text), lambda name: SCHEMA).factors[0].plan


def rows_of(letters: str) -> list[Row]:
    return [{"ts": i * 1_000_000, "k": "p", "s": letter, "v": 1, "x": 0.5} for i, letter in enumerate(letters)]


bounds = st.sampled_from(((0, 1), (0, None), (1, None), (0, 2), (1, 2), (2, None), (2, 3), (2, 2)))


def loop_of(body: st.SearchStrategy[RowPattern]) -> st.SearchStrategy[RowPattern]:
    return st.builds(lambda b, n, greedy: Repeat(b, n[0], n[1], greedy), body, bounds, st.booleans())


inner = st.recursive(
    st.sampled_from([A, B, C, A, B, Empty()]) | loop_of(st.sampled_from([A, B])),
    lambda body: (
        loop_of(body)
        | st.lists(body, min_size=2, max_size=3).map(lambda parts: Concatenation(tuple(parts)))
        | st.lists(body, min_size=2, max_size=3).map(lambda parts: Alternation(tuple(parts)))
    ),
    max_leaves=5,
)
#: Loops over what may take no row stand in nearly all of them.
nullable = inner.filter(lambda body: min_rows(body) == 0 and bool(variables(body)))
patterns = st.builds(lambda loop, last: Concatenation((loop, last)), loop_of(nullable), inner) | loop_of(nullable)
words = st.text("abcxx", min_size=1, max_size=5)


@pytest.mark.slow
@FEWER
@given(letters=words, pattern=patterns)
def test_a_round_without_a_row_is_the_last_one(letters: str, pattern: RowPattern) -> None:
    """The reference, the kernels at once and row by row, and the general engine."""
    plan, rows = plan_of(pattern), rows_of(letters)
    answer = expected(pattern, letters)
    found = find(plan, rows, [row["ts"] for row in rows])  # type: ignore[misc]
    assert [match.labels for match in found] == answer

    reference = ReferenceMatcher(plan)
    reference.keep(batch_of(SCHEMA, rows))
    wanted = answer_of([reference.advance(None)])
    for general in (False, True):
        for size in (1, len(rows)):
            matcher = matcher_by(plan, RunLists if general else None)
            assert answer_of(run(matcher, rows, size)) == wanted


@pytest.mark.slow
@given(letters=words, pattern=patterns.filter(means_the_same_in_python))
def test_matches_lie_where_python_finds_them(letters: str, pattern: RowPattern) -> None:
    rows = rows_of(letters)
    found = find(plan_of(pattern), rows, [row["ts"] for row in rows])  # type: ignore[misc]
    spans = [(match.start, match.start + len(match.labels)) for match in found]
    assert spans == expected_by_python(pattern, letters)


@pytest.mark.parametrize(
    ("pattern", "letters", "answer"),
    [
        ("(A??)? B", "xxx", ["B", "B", "B"]),  # Before: AB, B.
        ("(A??){,2} B", "xxx", ["B", "B", "B"]),  # Before: AAB.
        ("(A??)* B", "xxx", ["B", "B", "B"]),  # Before: AAB.
        ("(A* | B)+", "bb", ["", ""]),  # Before: BB.
        ("(() | A){2,}", "a", [""]),  # Before: A. The second round reaches the minimum and is empty: there is no third.
        ("(A? B??){1,2} C", "axc", ["AAC"]),
    ],
)
def test_examples(pattern: str, letters: str, answer: list[str]) -> None:
    plan, rows = plan_of(pattern), rows_of(letters)
    found = find(plan, rows, [row["ts"] for row in rows])  # type: ignore[misc]
    assert ["".join(name for name, _ in match.labels) for match in found] == answer
    by_kernel = answer_of(run(matcher_by(plan), rows, 1))
    assert sorted("".join(name for name, _ in match[4]) for match in by_kernel) == sorted(answer)  # type: ignore[attr-defined]
