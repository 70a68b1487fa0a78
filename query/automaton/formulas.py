"""Boolean algebra over expressions: joins, negates and simplifies the formulas of query/automaton/nfab.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Constant,
    Expression,
)

#: Maximum number of clauses of a condition in conjunctive normal form; a condition with more is kept as it is.
CLAUSES_MAX = 12
FALSE = Constant(False, "BOOLEAN")
NULL = Constant(None, "BOOLEAN")
INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def all_of(conditions: Iterable[Expression]) -> Expression:
    """Returns their conjunction without duplicates."""
    return _joined("and", conditions, nothing=TRUE, decides=FALSE)


def any_of(conditions: Iterable[Expression]) -> Expression:
    """Returns their disjunction without duplicates."""
    return _joined("or", conditions, nothing=FALSE, decides=TRUE)


def _joined(op: str, conditions: Iterable[Expression], nothing: Constant, decides: Constant) -> Expression:
    parts: dict[Expression, None] = {}
    for condition in conditions:
        inner = condition.arguments if isinstance(condition, Call) and condition.function == op else (condition,)
        parts.update(dict.fromkeys(_boolean(e) for e in inner if e != nothing))
    if decides in parts:
        return decides
    match tuple(parts):
        case ():
            return nothing
        case (one,):
            return one
        case several:
            return Call(op, several, "BOOLEAN")


def _boolean(e: Expression) -> Expression:
    """Returns the expression as an operand of AND and OR, which accept other types too."""
    if isinstance(e, Constant) and e.value is None and not e.sql:
        return NULL
    return e if e.type == "BOOLEAN" else Call("cast", (e,), "BOOLEAN")


def unless(e: Expression) -> Expression:
    """Returns a condition that is true if `e` is false or null."""
    match e:
        case Constant(value, "BOOLEAN"):
            return FALSE if value is True else TRUE
        case Call("is_not_distinct", arguments):
            return Call("is_distinct", arguments, "BOOLEAN")
        case Call("is_null", arguments):
            return Call("is_not_null", arguments, "BOOLEAN")
        case Call("is_not_null", arguments):
            return Call("is_null", arguments, "BOOLEAN")
    certain = e if _never_null(e) else Call("coalesce", (e, FALSE), "BOOLEAN")
    return Call("not", (certain,), "BOOLEAN")


def _never_null(e: Expression) -> bool:
    match e:
        case Call("is_distinct" | "is_not_distinct" | "is_null" | "is_not_null"):
            return True
        case Call("and" | "or" | "not", arguments):
            return all(map(_never_null, arguments))
        case Constant(value):
            return value is not None
        case _:
            return False


def clauses_of(condition: Expression) -> list[Expression]:
    """Returns the conjuncts of a condition in conjunctive normal form. The same rows meet it; a conjunct may be false
    for null, and errors may come in another order."""
    clauses: list[tuple[Expression, ...]] = []
    for clause in _cnf(condition, True):
        if TRUE not in clause:
            # only true counts
            clauses.append(tuple(dict.fromkeys(e for e in clause if e not in (FALSE, NULL))))
    kept = [
        c for i, c in enumerate(clauses)
        if not any(set(o) < set(c) or (set(o) == set(c) and j < i) for j, o in enumerate(clauses))
    ]  # fmt: skip
    return [any_of(clause) for clause in kept]


def _cnf(e: Expression, positive: bool) -> list[tuple[Expression, ...]]:
    """Clauses of `e`, or of NOT `e`."""
    match e:
        case Constant(bool(value), "BOOLEAN"):
            return [(TRUE if value is positive else FALSE,)]
        case Constant(None, sql=""):
            return [(NULL,)]  # NOT null is null
        case Call("not", (a,)):
            return _cnf(a, not positive)
        case Call("and" | "or" as op, arguments):
            parts = [_cnf(a, positive) for a in arguments]
            if (op == "and") == positive:
                return [clause for part in parts for clause in part]
            size = 1
            for part in parts:
                size *= len(part)
            if size <= CLAUSES_MAX:
                return [tuple(d for clause in chosen for d in clause) for chosen in product(*parts)]
    whole = _boolean(e)
    return [(whole if positive else Call("not", (whole,), "BOOLEAN"),)]


def folded(e: Call, least: Callable[[tuple[str, ...]], int]) -> Expression:
    """Returns a call whose value follows from its constants, or from `least` rows of some variables, as that value;
    else itself."""
    match e:
        case Call("and", arguments):
            return all_of(arguments) if e.type == "BOOLEAN" else e
        case Call("or", arguments):
            return any_of(arguments) if e.type == "BOOLEAN" else e
        case Call("not", (Constant(bool(value), "BOOLEAN"),)):
            return FALSE if value else TRUE
        case Call("is_null" | "is_not_null" as function, (Constant() as a,)) if not a.sql or a.value is not None:
            return TRUE if (a.value is None) == (function == "is_null") else FALSE
        case Call("case", (Constant(truth, "BOOLEAN"), then, *others)):
            if truth is True:
                return then if then.type == e.type else e
            rest = replace(e, arguments=tuple(others))
            if len(others) > 1:
                return folded(rest, least)
            return others[0] if others[0].type == e.type else e
        case Call(op, (a, b)) if op in MIRRORED:
            if any(isinstance(x, Constant) and x.value is None and not x.sql for x in (a, b)):
                return NULL
            if isinstance(a, Constant):
                truth = _known(MIRRORED[op], b, a, least)
            else:
                truth = _known(op, a, b, least)
            return e if truth is None else Constant(truth, "BOOLEAN")
    return e


def _known(op: str, a: Expression, b: Expression, least: Callable[[tuple[str, ...]], int]) -> bool | None:
    """Returns True or False if `a op b` is decided, where `b` is a whole number and `a` another one or a count; else
    None."""
    number = _whole(b)
    if number is None:
        return None
    if (known := _whole(a)) is not None:
        return _compared(op, known, number)
    match a:
        case Aggregate("count", None, names) if a.plain:
            low = least(names)
            # true, or false, for the fewest rows and for any number of more
            if op in ("<", "<=", "=") and not _compared("<=" if op == "=" else op, low, number):
                return False
            if op in (">", ">=", "<>") and _compared(">" if op == "<>" else op, low, number):
                return True
    return None


def _whole(e: Expression) -> int | None:
    """The value of an integer constant."""
    if isinstance(e, Constant) and type(e.value) is int and e.type in INTEGERS:
        return e.value
    return None


def _compared(op: str, a: int, b: int) -> bool:
    return {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
