"""Errors raised in hybrid: QueryErrors about a statement or a part of it, and the end of an interrupted live query."""

from __future__ import annotations

from dataclasses import replace

from matching.workload.sharing_mode import SharingMode
from query.errors import DataError, Diagnostic, NotComputed, QueryError, Span, first_line
from query.language import ast
from query.plan.plan import QueryPlan

#: End of the message about a statement that writes tables, without a connection that keeps them.
NO_CONNECTION = "needs a DuckDB connection to write to"


def fault(code: str, message: str, text: str, hint: str = "", span: Span | None = None) -> QueryError:
    """Returns a QueryError with one diagnostic; its span is the whole text by default."""
    return QueryError([Diagnostic(code, message, span or Span(0, len(text)), "", hint)], text)


def not_supported(what: str, text: str, hint: str, span: Span | None = None) -> QueryError:
    """Returns the error for a construct of the language that is not implemented."""
    return fault("HQ500", f"{what} is not supported yet", text, hint, span)


def placed(error: QueryError, match: ast.MatchRecognize, text: str) -> QueryError:
    """Returns an error of the matcher, which does not know the text, with the span of the clause in question."""
    if error.text:
        return error
    clause = match.after if match.after is not None and error.diagnostics[0].code == "HQ601" else match.pattern
    return QueryError([replace(d, span=clause.span) for d in error.diagnostics], text)


def placed_data(error: NotComputed, query: ast.QuerySyntax) -> DataError:
    """Returns the error of a condition or measure with its place in the text, if it is in one of its patterns.
    Those of boxes have texts of their own."""
    matches = [*(f.match for f in query.factors), *(h.match for h in query.histories if h.match is not None)]
    inside = any(m.span.start < error.span.start and error.span.end <= m.span.end for m in matches)
    return error.placed(query.text) if inside and not query.modules else error


def placed_history(error: QueryError, query: ast.QuerySyntax) -> QueryError:
    """Returns the error of ON or of a range, about its text alone, with its place in the statement. Those of boxes have
    texts of their own."""
    for join in query.histories:
        spans = {join.on.text: join.on.span, f"{join.low.text} {join.high.text}": join.low.span.to(join.high.span)}
        if (span := spans.get(error.text)) is not None:
            exact, start = query.text[span.start : span.end] == error.text, span.start
            faults = [
                replace(d, span=Span(start + d.span.start, start + d.span.end) if exact else span)
                for d in error.diagnostics
            ]
            return QueryError(faults, query.text)
    return error


def placed_live(error: Exception, query: ast.QuerySyntax, plan: QueryPlan) -> Exception:
    """Returns an error of one of the matchers of a live query, with its place in the text."""
    if isinstance(error, NotComputed):
        return placed_data(error, query)
    if not isinstance(error, QueryError):
        return error
    if error.text:
        return placed_history(error, query)
    said = error.diagnostics[0].message
    at = [i for i, f in enumerate(plan.factors) if len(plan.factors) == 1 or f"PATTERN ({f.plan.pattern})" in said]
    return placed(error, query.factors[at[-1]].match, query.text) if at else error


def check_sharing(sharing: str, text: str) -> None:
    """Raises QueryError unless it is the name of a way to count trends together."""
    names = [mode.value for mode in SharingMode]
    if sharing not in names:
        raise fault("HQ500", f"unknown sharing {sharing}", text, f"available: {', '.join(names)}")


class Interrupted(DataError):
    """Raised when an exception from outside (an interrupt, out of memory) ended a batch in the middle. The live query's
    state is undefined; the events are kept."""

    code = "HQ803"

    @staticmethod
    def by(error: BaseException) -> Interrupted:
        """Returns the error of a live query that `error` ended."""
        said = first_line(error)
        what = type(error).__name__ + (f": {said}" if said else "")
        return Interrupted(
            f"this live query was interrupted in the middle of a batch ({what}); no event is lost",
            "a named query resumes from its last checkpoint when the database is reopened; watch an unnamed one again "
            "with start=",
        )
