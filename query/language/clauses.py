"""Conditions of all SASE+ statements: cut at AND, and composed to SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal

from query.errors import Diagnostic, QueryError, Span, nearest
from query.language import ast
from query.language.lexer import Token, TokenKind, Tokens, words_of
from query.language.pieces import ComposedSql as Pieces
from query.language.pieces import SqlPiece
from query.schema import STREAM

NAMES = (TokenKind.WORD, TokenKind.QUOTED)
#: Words that begin no operand, and after which a bracket opens a list.
OPERATOR_WORDS = words_of(
    "AND OR NOT IN IS LIKE ILIKE GLOB SIMILAR TO BETWEEN WHEN THEN ELSE END CASE DISTINCT FROM ESCAPE COLLATE AS ARRAY"
)


@dataclass(frozen=True, slots=True)
class Input:
    """The input of the events: its possible names, and the span that names the column of their types. merged: the names
    of the inputs merged into it, which are types too."""

    names: tuple[str, ...]
    type_column: Span | None
    merged: tuple[str, ...] = ()


class Text:
    """SQL composed of the user's text and generated pieces."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces: list[SqlPiece] = []
        self.before: set[int] = set()
        self.length = 0

    def own(self, sql: str, span: Span) -> None:
        self._add(SqlPiece(sql, span, False))

    def written(self, start: int, end: int) -> None:
        self._add(SqlPiece(self.text[start:end], Span(start, end), True))

    def _add(self, piece: SqlPiece) -> None:
        if piece.sql:
            self.pieces.append(piece)
            self.length += len(piece.sql)

    def joined(self, parts: Sequence[Text], word: str, span: Span) -> Text:
        """Appends the parts, each in parentheses, with a word between them."""
        for i, part in enumerate(parts):
            self.own(f" {word} (" if i else "(", span)
            self.before |= {self.length + at for at in part.before}
            for piece in part.pieces:
                self._add(piece)
            self.own(")", span)
        return self

    def expression(self, span: Span) -> ast.ExpressionText:
        source = Pieces(tuple(self.pieces))
        return ast.ExpressionText(source.sql, span, source, frozenset(self.before))


class Clauses:
    """The clauses of one statement over an input, with the faults found in them so far."""

    def __init__(self, tokens: Tokens, input: Input) -> None:
        self.tokens, self.items, self.text = tokens, tokens.items, tokens.text
        self.input = input
        self.faults: list[Diagnostic] = []

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic(code, message, span, label, hint))

    def stop(self) -> None:
        if self.faults:
            raise QueryError(tuple(dict.fromkeys(self.faults)), self.text)

    def types(self, events: Iterable[ast.Identifier]) -> None:
        """Checks the types of events: without TYPE BY the type of every event is the name of its stream."""
        if self.input.type_column is not None:
            return
        if self.input.merged:
            for type in events:
                if type.written.lower() not in (name.lower() for name in self.input.merged):
                    self.fault("HQ200", f"unknown event type {type.written}", type.span,
                               "no such type", nearest(type.written, self.input.merged))
            return
        known = [n.lower() for n in self.input.names]
        for type in events:
            if type.written.lower() not in known:
                called = f"the input is called {self.input.names[-1]}" if known else "the input has no name"
                hint = "name the column that holds the types: FROM input TYPE BY column PATTERN SEQ ( ... )"
                self.fault("HQ200", f"unknown event type {type.written}: {called}", type.span,
                           "no such type", hint)

    def within(self, span: Span) -> tuple[int, int]:
        """The tokens that lie in a stretch of the text."""
        inside = [i for i, t in enumerate(self.items) if span.start <= t.start < span.end]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def span(self, first: int, last: int) -> Span:
        return Span(self.items[first].start, self.items[last - 1].end)

    # ---- conditions

    def conjuncts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the conditions joined by AND, opening parentheses around several of them. Operands of OR stay
        together."""
        cuts: list[int] = []
        cases, between, i = 0, 0, first
        while i < last:
            word = "" if self.tokens.words(i - 1, ".") else self.items[i].word
            cases = max(0, cases + (word == "CASE") - (word == "END"))  # a variable may be called end
            if word == "OR" and not cases:
                cuts = []
                break
            between += word == "BETWEEN"
            if word == "AND" and not cases:
                if between:
                    between -= 1
                else:
                    cuts.append(i)
            i = self.tokens.partner[i] + 1 if word in ("(", "[", "{") else i + 1
        for start, end in zip([first, *(c + 1 for c in cuts)], [*cuts, last], strict=True):
            if start == end:
                at = self.items[min(start, last - 1)]
                self.fault("HQ102", "expected an expression", at.span)
            elif self.items[start].word == "(" and self.tokens.partner[start] == end - 1 and end - start > 2:
                yield from self.conjuncts(start + 1, end - 1)
            else:
                yield start, end

    def equivalence(self, first: int, last: int) -> list[ast.ExpressionText]:
        """Returns the columns of `[a, b]`."""
        found: list[ast.ExpressionText] = []
        for i in range(first + 1, last):
            token, column = self.items[i], (i - first) % 2 == 1
            if column and token.kind in NAMES:
                found.append(ast.ExpressionText(token.text, token.span))
            elif column or not (i == last - 1 or token.word == ","):
                what = "a column" if column else "',' or ']'"
                self.fault("HQ102", f"expected {what}, found {token.text}", token.span,
                           hint="[a, b] says that all events agree in the columns a and b")
                break
        return found

    def is_name(self, i: int) -> bool:
        """True if token i may be a name of its own: no word of SQL, no part of a dotted name."""
        token = self.items[i]
        return token.kind in NAMES and token.word not in OPERATOR_WORDS and not self.tokens.words(i - 1, ".")

    def columns(self, at: int, last: int) -> tuple[range, int]:
        """Returns the tokens of `x` or `x.field` after the dot at token `at`, and the index after them."""
        i = at
        while i + 1 < last and self.items[i].word == "." and self.items[i + 1].kind in NAMES:
            if i > at and self.tokens.words(i + 2, "("):
                break  # a function after a dot
            i += 2
        if i == at and self.tokens.words(at, ".", "*"):
            return range(0), at + 2
        return range(at + 1, i), i

    def composed(
        self, text: Text, first: int, last: int, ends: Mapping[int, int], put: Callable[[int], None],
        calls: Set[int] = frozenset(),
    ) -> None:  # fmt: skip
        """Appends the tokens [first, last) in SQL. ends: by the first token of a stretch that `put` appends, the index
        after it. calls: the tokens of aggregates that exclude the candidate row."""
        at = self.items[first].start
        i = first
        while i < last:
            token = self.items[i]
            if i in calls:
                text.written(at, token.start)
                text.before.add(text.length)
                at = token.start
            if i in ends:
                text.written(at, token.start)
                put(i)
                at = self.items[ends[i] - 1].end
                i = ends[i]
                continue
            if self.is_percent(i, last):
                text.written(at, token.start)
                number = token.text.replace("_", "")
                floating = "e" in number.lower()
                text.own(f"({number} / 100)" if floating else format(Decimal(number) / 100, "f"), self.span(i, i + 2))
                at = self.items[i + 1].end
                i += 1
            i += 1
        text.written(at, self.items[last - 1].end)

    def is_percent(self, i: int, last: int) -> bool:
        """True if `80%` is at token i: a number, the sign directly after it, and no operand after that."""
        token = self.items[i]
        if token.kind is not TokenKind.NUMBER or not self.tokens.words(i + 1, "%") or i + 1 >= last:
            return False
        if self.items[i + 1].start != token.end:
            return False
        behind = self.items[i + 2] if i + 2 < last else None
        if behind is None or behind.word in OPERATOR_WORDS:
            return True
        return behind.kind is TokenKind.SYMBOL and behind.word not in ("(", "[", "{", ".")

    def typed(self, written: str, type: ast.Identifier) -> Text | None:
        """Returns the condition that an event is of a type, None if all events of the input are. written: the
        variable."""
        text = Text(self.text)
        column = self.input.type_column
        if column is not None:
            text.own(f"{written}.", column)
            text.written(column.start, column.end)
            text.own(" = '" + type.written.replace("'", "''") + "'", type.span)
        elif self.input.merged:
            stream = next(n for n in self.input.merged if n.lower() == type.written.lower())
            text.own(f"{written}.{STREAM} = '" + stream.replace("'", "''") + "'", type.span)
        else:
            return None
        return text


def identifier_of(token: Token) -> ast.Identifier:
    """Returns the name of a token."""
    quoted = token.kind is TokenKind.QUOTED
    written = token.text[1:-1].replace('""', '"') if quoted else token.text
    return ast.Identifier(written if quoted else written.upper(), written, quoted, token.span)
