"""Errors of the face: QueryErrors about a whole statement or a part of it, and the end of an interrupted live query."""

from __future__ import annotations

from query.errors import DataError, Diagnostic, QueryError, Span, first_line


def fault(code: str, message: str, text: str, hint: str = "", span: Span | None = None) -> QueryError:
    """One fault; under the whole text unless `span` says where."""
    return QueryError([Diagnostic(code, message, span or Span(0, len(text)), "", hint)], text)


def not_supported(what: str, text: str, hint: str, span: Span | None = None) -> QueryError:
    """Something the language has and this version does not."""
    return fault("HQ500", f"{what} is not supported yet", text, hint, span)


class Interrupted(DataError):
    """An exception from outside (an interrupt, no memory) ended a batch in the middle: it is unknown what the live
    query has seen of it. The events are kept."""

    @staticmethod
    def by(error: BaseException) -> Interrupted:
        """The end of a live query by that exception."""
        said = first_line(error)
        what = type(error).__name__ + (f": {said}" if said else "")
        return Interrupted(
            f"this live query was interrupted in the middle of a batch ({what}); no event is lost",
            "with a name it goes on from its last checkpoint when the database is opened again; without one, "
            "watch it again with start=",
        )
