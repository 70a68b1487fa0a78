"""The closed set of row patterns, as the plan, the reference and the automaton see them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Variable:
    """A primary row pattern variable: matches one row that meets its DEFINE condition."""

    name: str

    def __str__(self) -> str:
        return self.name if self.name.isupper() and self.name.isidentifier() else f'"{self.name}"'


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[RowPattern, ...]

    def __str__(self) -> str:
        return " ".join(f"({p})" if isinstance(p, Alternation) else str(p) for p in self.parts)


@dataclass(frozen=True, slots=True)
class Alternation:
    """The left choice is preferred, whatever its length."""

    choices: tuple[RowPattern, ...]

    def __str__(self) -> str:
        return " | ".join(str(c) for c in self.choices)


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body{at_least, at_most}`, unbounded if at_most is None. Greedy prefers another round, reluctant prefers to stop.

    A round that takes no row ends the loop once at_least rounds are done (ISO 19075-5, 7.2.8), so loops over empty
    bodies end.
    """

    body: RowPattern
    at_least: int
    at_most: int | None
    greedy: bool

    def __str__(self) -> str:
        body = str(self.body) if isinstance(self.body, Variable) else f"({self.body})"
        match (self.at_least, self.at_most):
            case (0, None):
                sign = "*"
            case (1, None):
                sign = "+"
            case (0, 1):
                sign = "?"
            case (n, None):
                sign = f"{{{n},}}"
            case (n, m) if n == m:
                sign = f"{{{n}}}"
            case (n, m):
                sign = f"{{{n},{m}}}"
        return body + sign + ("" if self.greedy else "?")


@dataclass(frozen=True, slots=True)
class Empty:
    def __str__(self) -> str:
        return "()"


@dataclass(frozen=True, slots=True)
class Negation:
    """A forbidden row: none that meets the condition of `name` may lie here. Takes no row itself."""

    name: str

    def __str__(self) -> str:
        return f"~{Variable(self.name)}"


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^`: before the first row of the partition, or `$`: after its last one. Takes no row."""

    at_start: bool

    def __str__(self) -> str:
        return "^" if self.at_start else "$"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """`{- body -}`: rows matched inside are omitted from ALL ROWS output; conditions, measures and FINAL see them."""

    body: RowPattern

    def __str__(self) -> str:
        return f"{{- {self.body} -}}"


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Each combination of a match of every side is one trend. The sides share no variable, and may share rows. A whole
    pattern, never a part of one, and only with Trends (SASE+)."""

    sides: tuple[RowPattern, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({side})" for side in self.sides)


RowPattern = Variable | Sequence | Alternation | Repeat | Empty | Negation | Anchor | Exclusion | Conjunction


def sides(pattern: RowPattern) -> tuple[RowPattern, ...]:
    """Returns the patterns whose matches make one trend: the sides of AND, or the pattern itself."""
    return pattern.sides if isinstance(pattern, Conjunction) else (pattern,)


def variables(pattern: RowPattern) -> tuple[str, ...]:
    """Primary variables (without negated ones) in order of first appearance."""
    found: dict[str, None] = {}

    def visit(p: RowPattern) -> None:
        match p:
            case Variable(name):
                found.setdefault(name)
            case Sequence(parts):
                for part in parts:
                    visit(part)
            case Alternation(choices) | Conjunction(choices):
                for choice in choices:
                    visit(choice)
            case Repeat(body) | Exclusion(body):
                visit(body)
            case Empty() | Negation() | Anchor():
                pass
            case _:
                assert_never(p)

    visit(pattern)
    return tuple(found)


def negated(pattern: RowPattern) -> tuple[str, ...]:
    """Negated variables in order of appearance."""
    match pattern:
        case Negation(name):
            return (name,)
        case Sequence(parts):
            return tuple(n for p in parts for n in negated(p))
        case Alternation(choices) | Conjunction(choices):
            return tuple(n for c in choices for n in negated(c))
        case Repeat(body) | Exclusion(body):
            return negated(body)
        case Variable() | Empty() | Anchor():
            return ()
        case _:
            assert_never(pattern)


def min_rows(pattern: RowPattern) -> int:
    """Fewest rows any match can have; 0 means that the pattern can match empty."""
    match pattern:
        case Variable():
            return 1
        case Sequence(parts):
            return sum(map(min_rows, parts))
        case Alternation(choices):
            return min(map(min_rows, choices))
        case Conjunction(sides):
            return max(map(min_rows, sides))  # they may share rows
        case Repeat(body, at_least):
            return at_least * min_rows(body)
        case Exclusion(body):
            return min_rows(body)
        case Empty() | Negation() | Anchor():
            return 0
        case _:
            assert_never(pattern)


def rows_before(pattern: RowPattern) -> dict[str, int]:
    """Returns, for each primary variable, the fewest rows that a match has before a row of it."""
    found: dict[str, int] = {}

    def visit(p: RowPattern, before: int) -> None:
        match p:
            case Variable(name):
                found[name] = min(before, found.get(name, before))
            case Sequence(parts):
                for part in parts:
                    visit(part, before)
                    before += min_rows(part)
            case Alternation(choices) | Conjunction(choices):
                for choice in choices:
                    visit(choice, before)
            case Repeat(body) | Exclusion(body):
                visit(body, before)
            case Empty() | Negation() | Anchor():
                pass
            case _:
                assert_never(p)

    visit(pattern, 0)
    return found


def occurrences(pattern: RowPattern, names: Collection[str]) -> tuple[int, int | None]:
    """Returns the fewest and the most rows of these variables in a match; None: any number."""
    match pattern:
        case Variable(name):
            return (1, 1) if name in names else (0, 0)
        case Sequence(parts):
            found = [occurrences(part, names) for part in parts]
            most = [most for _, most in found]
            return sum(least for least, _ in found), None if None in most else sum(m for m in most if m is not None)
        case Alternation(choices):
            found = [occurrences(choice, names) for choice in choices]
            most = [most for _, most in found]
            return min(least for least, _ in found), None if None in most else max(m for m in most if m is not None)
        case Repeat(body, at_least, at_most):
            least, inner = occurrences(body, names)
            if inner == 0 or at_most == 0:
                return 0, 0
            return at_least * least, None if inner is None or at_most is None else at_most * inner
        case Exclusion(body):
            return occurrences(body, names)
        case Conjunction():
            return 0, None
        case Empty() | Negation() | Anchor():
            return 0, 0
        case _:
            assert_never(pattern)


def may_precede(pattern: RowPattern) -> set[tuple[str, str]]:
    """Returns the pairs of variables of which a row of the first may come before one of the second, that of a negated
    one in its gap. Rows of different sides of AND have no order."""
    match pattern:
        case Sequence(parts) | Conjunction(parts):
            names = [(*variables(part), *negated(part)) for part in parts]
            across = {(a, b) for i, one in enumerate(names) for a in one for more in names[i + 1 :] for b in more}
            if isinstance(pattern, Conjunction):
                across |= {(b, a) for a, b in across}
            return across.union(*map(may_precede, parts))
        case Alternation(choices):
            return set().union(*map(may_precede, choices))
        case Repeat(body, _, at_most):
            again = (*variables(body), *negated(body)) if at_most is None or at_most > 1 else ()
            return may_precede(body) | {(a, b) for a in again for b in again}
        case Exclusion(body):
            return may_precede(body)
        case Variable() | Empty() | Negation() | Anchor():
            return set()
        case _:
            assert_never(pattern)


def anchors(pattern: RowPattern) -> frozenset[bool]:
    """Returns the anchors that occur: True for `^`, False for `$`."""
    match pattern:
        case Anchor(at_start):
            return frozenset({at_start})
        case Sequence(parts) | Alternation(parts) | Conjunction(parts):
            return frozenset().union(*map(anchors, parts))
        case Repeat(body) | Exclusion(body):
            return anchors(body)
        case Variable() | Empty() | Negation():
            return frozenset()
        case _:
            assert_never(pattern)


def gaps(pattern: RowPattern) -> Iterator[tuple[str, tuple[RowPattern, RowPattern]]]:
    """Yields the negated variables of a pattern, each with the parts before and after its gap."""
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    for i, part in enumerate(parts):
        if isinstance(part, Negation):
            yield part.name, (Sequence(parts[:i]), Sequence(parts[i + 1 :]))


def excludes(pattern: RowPattern) -> bool:
    """True if `{- -}` occurs."""
    match pattern:
        case Exclusion():
            return True
        case Sequence(parts) | Alternation(parts) | Conjunction(parts):
            return any(map(excludes, parts))
        case Repeat(body):
            return excludes(body)
        case Variable() | Empty() | Negation() | Anchor():
            return False
        case _:
            assert_never(pattern)
