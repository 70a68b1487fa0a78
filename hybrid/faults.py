"""QueryErrors of the face: about a whole statement, or a part of it."""

from __future__ import annotations

from query.errors import Diagnostic, QueryError, Span


def fault(code: str, message: str, text: str, hint: str = "", span: Span | None = None) -> QueryError:
    """One fault; under the whole text unless `span` says where."""
    return QueryError([Diagnostic(code, message, span or Span(0, len(text)), "", hint)], text)


def not_supported(what: str, text: str, hint: str, span: Span | None = None) -> QueryError:
    """Something the language has and this version does not."""
    return fault("HQ500", f"{what} is not supported yet", text, hint, span)
