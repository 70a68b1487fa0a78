"""SQL composed of the user's text and generated pieces, with the mapping of its characters back to the text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from query.errors import Span


@dataclass(frozen=True, slots=True)
class SqlPiece:
    """A piece of the SQL for DuckDB, `sql`, and the span of the query it stands for. verbatim: True if it is that text
    itself."""

    sql: str
    span: Span
    verbatim: bool


@dataclass(frozen=True, slots=True)
class ComposedSql:
    """The SQL for DuckDB in pieces, so that its offsets lead back to the query."""

    pieces: tuple[SqlPiece, ...]

    @property
    def sql(self) -> str:
        return "".join(p.sql for p in self.pieces)

    def origin(self, start: int, end: int) -> Span:
        """Returns the span of the query that characters [start, end) of `sql` come from."""
        if end <= start:
            return replace(self._place(start), end=self._place(start).start)
        return self._place(start).to(self._place(end - 1))

    def _place(self, offset: int) -> Span:
        """Returns the character of the query at an offset of `sql`, or the cut there."""
        at = 0
        for piece in self.pieces:
            if offset < at + len(piece.sql):
                first = piece.span.start + offset - at
                return Span(first, first + 1) if piece.verbatim else piece.span
            at += len(piece.sql)
        last = self.pieces[-1].span.end if self.pieces else 0
        return Span(last, last)


def widest(spans: list[Span], span: Span) -> list[Span]:
    """Returns spans with a further one, and of those that lie in others only these."""
    if any(s.start <= span.start and span.end <= s.end for s in spans):
        return spans
    return [*(s for s in spans if not (span.start <= s.start and s.end <= span.end)), span]
