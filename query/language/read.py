"""Reads tokens by the grammar: tokens -> tree of lark. Finds the end of each scalar expression, and names the fault
if a token is not allowed at its position. `_Reader._refuse` is long: one list of faults, the most certain first."""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lark
from lark.common import LexerConf
from lark.lexer import Lexer
from lark.parsers.lalr_interactive_parser import InteractiveParser

from query.cache import cache_home, is_private
from query.errors import Diagnostic, QueryError, Span
from query.language.lexer import Token, TokenKind, Tokens, words_of
from query.stopping import heed

#: The position of WITHIN with SLIDE, and of SELECTION, which are allowed in either order.
_EITHER_WAY = 8
#: The clauses of MATCH_RECOGNIZE: the words each begins with, and its position.
_CLAUSES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("PARTITION BY", ("PARTITION", "BY"), 0),
    ("ORDER BY", ("ORDER", "BY"), 1),
    ("GROUP BY", ("GROUP", "BY"), 2),
    ("MEASURES", ("MEASURES",), 3),
    ("ONE ROW PER MATCH or WINDOW", ("ONE", "ROW"), 4),
    ("ALL ROWS PER MATCH", ("ALL", "ROWS"), 4),
    ("TIMEOUT ROWS", ("TIMEOUT", "ROWS"), 5),
    ("AFTER MATCH", ("AFTER", "MATCH"), 6),
    ("PATTERN", ("PATTERN", "("), 7),
    ("WITHIN", ("WITHIN",), _EITHER_WAY),
    ("SLIDE", ("SLIDE",), _EITHER_WAY),
    ("SELECTION", ("SELECTION",), _EITHER_WAY),
    ("SUBSET", ("SUBSET",), 9),
    ("DEFINE", ("DEFINE",), 10),
)
_CLAUSE_OF_WORD = {words[0]: (name, words, place) for name, words, place in _CLAUSES}
_ORDER_HINT = (
    "the order is PARTITION BY, ORDER BY, GROUP BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, or ONE ROW PER "
    "WINDOW, TIMEOUT ROWS, AFTER MATCH, PATTERN, WITHIN, SLIDE, SELECTION, SUBSET, DEFINE"
)
_UNITS = frozenset(
    f"{unit}{plural}"
    for unit in words_of("MICROSECOND MILLISECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR DECADE")
    for plural in ("", "S")
)

#: Words before the length of a match in other languages: LIMIT DURATION, FOR, INTERVAL.
_DURATION = ("LIMIT", "DURATION", "FOR", "INTERVAL")
#: Words before an operand of a scalar expression, and words that may continue after an operand.
_OPERATORS = words_of(
    "AND OR NOT LIKE ILIKE GLOB SIMILAR TO BETWEEN SYMMETRIC IN IS WHEN THEN ELSE CASE DISTINCT FROM ESCAPE COLLATE "
    "INTERVAL AT RUNNING FINAL"
)
_CONTINUATIONS = _UNITS | words_of("END ISNULL NOTNULL FILTER OVER TIME ZONE WITH WITHOUT PRECISION VARYING")
#: Keywords that determine the end of the expressions after them.
_CONTEXTS = words_of("PARTITION ORDER GROUP MEASURES DEFINE FROM TO BETWEEN AND ON")
_DIRECTIONS = ("ASC", "DESC", "NULLS")
#: The selection strategies of SASE+.
STRATEGIES = ("STRICT_CONTIGUITY", "PARTITION_CONTIGUITY", "SKIP_TILL_NEXT_MATCH", "SKIP_TILL_ANY_MATCH")
#: Words that begin a clause of the query around a SASE+ statement.
_OUTER_WORDS = words_of("GROUP ORDER HAVING LIMIT OFFSET QUALIFY UNION EXCEPT INTERSECT JOIN")
_NEVER_NAMES = words_of("AS FROM ON AND OR TO BETWEEN SELECT WHERE JOIN")

_SHOWN = {
    "NAME": "a name",
    "VARIABLE": "a row pattern variable",
    "EXPRESSION": "an expression",
    "NUMBER": "a whole number",
    "STRING": "a string",
    "UNIT": "a unit of time",
    "WITH_TIMEOUT": "WITH",
    "OF_PATTERN": "PATTERN",
    "$END": "the end",
}


# ---- tokens through the grammar --------------------------------------------------------------------------------


#: Words and symbols before an operand: a name behind one is no name of a measure.
_OPERATORS = frozenset(
    {*"+-*/%.<>=|&^~!", "||", "<=", ">=", "<>", "!=", "::", "//", "**", "AND", "OR", "NOT", "IS", "IN", "LIKE"}
)


class _NoLexer(Lexer):
    """A lexer that lark requires; tokens are fed one by one, since lark's own lexers need a pattern for every
    terminal."""

    def __init__(self, conf: LexerConf) -> None: ...

    def lex(self, *_: Any) -> Iterator[lark.Token]:
        return iter(())


class _Grammar(NamedTuple):
    parser: lark.Lark
    terminals: dict[str, str]  # keyword or symbol -> terminal
    shown: dict[str, str]  # terminal -> as messages show it


_OPTIONS: dict[str, Any] = {
    "parser": "lalr", "start": ["clauses", "history_join", "sase", "trend", "returns", "alert"],
    "propagate_positions": True, "maybe_placeholders": False,
}  # fmt: skip


def parser_of(text: str, home: Path) -> lark.Lark:
    """Returns the parser of a grammar, from the cache in a directory if possible, else built, which takes ten
    times as long. A parser that cannot be cached is not kept."""
    made_of = f"{lark.__version__} {sys.version_info[:2]} {_OPTIONS} {__name__} {text}"
    file = home / f"grammar-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    if not is_private(home):
        return lark.Lark(text, lexer=_NoLexer, **_OPTIONS)
    try:
        with file.open("rb") as kept:
            return lark.Lark.load(kept)
    except Exception:  # noqa: BLE001  (a damaged cache is rebuilt)
        parser = lark.Lark(text, lexer=_NoLexer, **_OPTIONS)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with part.open("wb") as out:
            parser.save(out)
        part.replace(file)
    except OSError:
        pass
    return parser


@cache
def grammar() -> _Grammar:
    """The grammar, made ready on first use."""
    parser = parser_of(Path(__file__).with_name("match_recognize.lark").read_text(encoding="utf-8"), cache_home())
    terminals = {t.pattern.value: t.name for t in parser.terminals if t.pattern is not None}
    shown = {name: word if word[0].isalpha() else f"'{word}'" for word, name in terminals.items()}
    return _Grammar(parser, terminals, shown | _SHOWN)


def names_strategy(tokens: Tokens, i: int) -> bool:
    """True if a strategy of SASE+ begins at token i, which follows WHERE: one of the four, or any name with a list and
    conditions in braces after it."""
    if not tokens.words(i + 1, "(") or tokens.items[i].kind is not TokenKind.WORD:
        return False
    return tokens.items[i].word in STRATEGIES or tokens.words(tokens.partner[i + 1] + 1, "{")


def names_pattern(tokens: Tokens, i: int) -> bool:
    """True if `PATTERN name` begins at token i, which follows the AS of a definition."""
    if not tokens.words(i, "PATTERN") or i + 1 >= len(tokens.items):
        return False
    name = tokens.items[i + 1]
    plain = name.kind is TokenKind.WORD and name.word not in _OPERATORS | _CONTINUATIONS | _NEVER_NAMES
    return plain or name.kind is TokenKind.QUOTED


def names_box(tokens: Tokens, i: int) -> bool:
    """True if token i is the PATTERN of `PATTERN name variable` or `PATTERN name+ variable[]`, an element of SEQ."""
    if not names_pattern(tokens, i) or i + 2 >= len(tokens.items):
        return False
    behind = tokens.items[i + 2]
    return behind.word == "+" or behind.kind in (TokenKind.WORD, TokenKind.QUOTED)


def read_tokens(tokens: Tokens, start: str, first: int, last: int, end: int) -> lark.Tree[lark.Token]:
    """The tree of the tokens [first, last); end is the position in the text where they end."""
    return _Reader(tokens, start, first, last, end).read()


class _Reader:
    """One walk of tokens through the grammar. The parser's state determines a word's terminal."""

    def __init__(self, tokens: Tokens, start: str, first: int, last: int, end: int) -> None:
        self.tokens, self.start, self.first, self.last, self.end = tokens, start, first, last, end
        self.grammar = grammar()
        self.parser: InteractiveParser = self.grammar.parser.parse_interactive(start=start)
        self.context = ""  # the keyword that determines the end of expressions
        self.clauses: list[str] = []  # words that began the clauses so far

    def read(self) -> lark.Tree[lark.Token]:
        items = self.tokens.items
        i = self.first
        while i < self.last:
            heed()
            accepted = self._accepted()
            if "EXPRESSION" in accepted and not self._opens_conditions(i) and not self._names_pattern(i, accepted):
                stop = self._expression_end(i)
                if stop > i:
                    self._feed("EXPRESSION", items[i].start, items[stop - 1].end, i)
                    i = stop
                    continue
            terminal = self._terminal(i, accepted)
            if terminal is None:
                self._refuse(i)
            self._feed(terminal, items[i].start, items[i].end, i)
            word = items[i].word
            if word in _CLAUSE_OF_WORD and terminal == self.grammar.terminals.get(word) and self._clause_at(i):
                self.clauses.append(word)
            if terminal == word and word in _CONTEXTS and not (word == "ON" and self.context == "DEFINE"):
                self.context = word
            i += 1
        if "$END" not in self._expected():
            self._refuse(self.last)
        tree: lark.Tree[lark.Token] = self.parser.feed_eof()  # type: ignore[no-untyped-call]
        return tree

    def _opens_conditions(self, i: int) -> bool:
        """True if `{` or `strategy(...) {` follows the WHERE of a trend, which could begin an expression, too."""
        if self.start != "trend" or not self.tokens.words(i - 1, "WHERE"):
            return False
        return self.tokens.words(i, "{") or names_strategy(self.tokens, i)

    def _names_pattern(self, i: int, accepted: Any) -> bool:
        """True if `PATTERN name` is at token i, where a condition over a column called `pattern` could begin, too, or a
        type of that name stand."""
        names = names_box if self.start == "sase" else names_pattern
        return "OF_PATTERN" in accepted and names(self.tokens, i)

    def _expected(self) -> set[str]:
        """Returns exactly the terminals that can come next; slow."""
        return {str(name) for name in self.parser.accepts()}  # type: ignore[no-untyped-call]

    def _accepted(self) -> Any:
        """Returns the terminals that can come next, and some that cannot, by the state's row of the LALR table."""
        state = self.parser.parser_state
        return state.parse_conf.states[state.position]

    def _feed(self, terminal: str, start: int, end: int, i: int) -> None:
        text = self.tokens.text[start:end]
        try:
            self.parser.feed_token(lark.Token(terminal, text, start_pos=start, end_pos=end))
        except lark.UnexpectedInput:
            self._refuse(i)

    def _terminal(self, i: int, accepted: Any) -> str | None:
        token = self.tokens.items[i]
        match token.kind:
            case TokenKind.STRING | TokenKind.NUMBER:
                name = token.kind.name
                return name if name in accepted else None
            case TokenKind.SYMBOL:
                name = self.grammar.terminals.get(token.word, "")
                return name if name in accepted else None
        if token.kind is TokenKind.WORD:
            if self._names_pattern(i, accepted):
                return "OF_PATTERN"
            if token.word == "WITH" and "WITH_TIMEOUT" in accepted and self.tokens.words(i + 1, "TIMEOUT"):
                return "WITH_TIMEOUT"
            keyword = self.grammar.terminals.get("~" if token.word == "∼" else token.word)
            if keyword in accepted and (keyword != "PERMUTE" or self.tokens.words(i + 1, "(")):
                return keyword
            if "UNIT" in accepted and token.word in _UNITS:
                return "UNIT"
            if token.word in _NEVER_NAMES or (self._clause_at(i) and self._has_clauses(i)):
                return None
            if self.start == "alert" and token.word == "WITHIN":
                return None
        return next((name for name in ("NAME", "VARIABLE") if name in accepted), None)

    def _has_clauses(self, i: int) -> bool:
        """True if token i is inside MATCH_RECOGNIZE ( ... )."""
        if self.start == "clauses":
            return True
        return any(
            self.tokens.words(a - 1, "MATCH_RECOGNIZE") and a < i < b
            for a, b in self.tokens.partner.items()
            if self.first <= a < b < self.last
        )

    def _clause_at(self, i: int) -> bool:
        """True if a clause certainly begins at token i, judged by the token after its first word."""
        items = self.tokens.items
        found = _CLAUSE_OF_WORD.get(items[i].word)
        if found is None:
            return False
        following = items[i + 1] if i + 1 < self.last else None
        match items[i].word:
            case "DEFINE" | "SUBSET":
                return self.tokens.words(i + 2, "AS" if items[i].word == "DEFINE" else "=")
            case "WITHIN" | "SLIDE":
                return following is not None and (following.word == "INTERVAL" or following.kind is TokenKind.NUMBER)
            case "SELECTION":
                return following is not None and following.word in ("STRICT", "PARTITION", "SKIP")
            case "MEASURES":
                return following is not None and following.word not in (",", "AS")
            case _:
                return self.tokens.words(i, *found[1])

    # ---- where an expression ends

    def _expression_end(self, start: int) -> int:
        """The index of the first token from start on that is no longer part of the scalar expression."""
        items, partner = self.tokens.items, self.tokens.partner
        in_clause = self.context in ("PARTITION", "ORDER", "GROUP", "MEASURES", "DEFINE")
        case_depth = 0
        operand = False  # True after the end of an operand, when only an operator or the end can follow
        i = start
        while i < self.last:
            token = items[i]
            word = token.word
            if word in ("(", "[", "{"):
                i = partner[i] + 1
                operand = True
                continue
            if word in (")", "]", "}", ";") or (word == "," and self.context != "ON"):
                return i
            if token.kind is TokenKind.WORD and not self.tokens.words(i - 1, "."):
                if word == "CASE":
                    case_depth += 1
                elif word == "END":
                    case_depth -= 1
                if self.start in ("sase", "trend", "returns"):
                    ended = word == "AS" or (operand and word in _OUTER_WORDS | {"WITHIN", "SLIDE", "RETURN"})
                    ended = ended or (self.start == "trend" and word in ("WITHIN", "SLIDE") and self._clause_at(i))
                elif in_clause:
                    ended = word == "AS" or self._ends_clause(i, operand)
                else:
                    ended = self.context != "ON" and self._ends_bound(i, case_depth)
                if ended:
                    return i
                # `at` is a column if no operand precedes it
                operand = word not in _OPERATORS or (word == "AT" and not operand)
            else:
                operand = token.kind is not TokenKind.SYMBOL
            i += 1
        return self.last

    def _ends_clause(self, i: int, operand: bool) -> bool:
        """True if the word at i, in an expression of a clause, begins the text after the expression."""
        items = self.tokens.items
        word = items[i].word
        if word in _CLAUSE_OF_WORD:
            following = items[i + 1].word if i + 1 < self.last else ""
            if word == "WITHIN" and following == "GROUP":  # percentile_cont(0.5) WITHIN GROUP (ORDER BY x)
                return False
            if word == "GROUP" and following != "BY":
                return False
            # `pattern(x)` is a call if an operand is due; so is a column called `measures`
            return operand or (self._clause_at(i) and word not in ("PATTERN", "MEASURES", "WITHIN", "SLIDE"))
        if word == "WITH" and self.tokens.words(i + 1, "TIMEOUT", "ROWS"):
            return operand
        if not operand or word in _OPERATORS or word in _CONTINUATIONS:
            return False
        if self.context == "ORDER" and word in _DIRECTIONS:
            return True
        # two operands in a row are no expression: if the second looks like a keyword, report it there
        keywords = [*_CLAUSE_OF_WORD, *(_DIRECTIONS if self.context == "ORDER" else ())]
        return bool(difflib.get_close_matches(word, keywords, n=1, cutoff=0.76))

    def _ends_bound(self, i: int, case_depth: int) -> bool:
        """True if the word at i, in a bound of a history range, follows the bound."""
        match self.tokens.items[i].word:
            case "AS" | "ON":
                return True
            case "MATCH_RECOGNIZE":
                return self.tokens.words(i + 1, "(")
            case "TO":
                return self.context == "FROM" and not self.tokens.words(i - 1, "SIMILAR")
            case "AND":
                return self.context == "BETWEEN" and case_depth <= 0
            case _:
                return False

    # ---- faults

    def _refuse(self, i: int) -> NoReturn:
        """Raises the fault that token i (or the end, if i is last) is not allowed here.

        Long: a case for each mistake, in the order in which they explain it best."""
        items, text = self.tokens.items, self.tokens.text
        accepted = self._expected() - {"$END"}
        ended = i >= self.last
        token = items[i] if i < len(items) and not (ended and self.start == "history_join") else None
        if token is None:
            token = Token(TokenKind.SYMBOL, "the end", "", self.end, self.end)
        code = "HQ101" if self._has_clauses(min(i, self.last - 1)) else "HQ100"
        found = token.text if len(token.text) <= 40 else token.text[:37] + "..."
        before = items[i - 1] if i > self.first else None

        def fail(message: str, span: Span = token.span, label: str = "", hint: str = "", code: str = code) -> NoReturn:
            raise error_at(text, code, message, span, label, hint)

        if token.word in ("$", "?") and not ("VARIABLE" in accepted and "LPAR" in accepted):
            fail("a parameter without a value", hint='give it a value: params={"name": 5} for $name, [5] for ?')

        # a missing comma between two definitions: the name after it became part of the condition
        if token.word == "AS" and self.context == "DEFINE" and before is not None and "COMMA" in accepted:
            fail(f"expected ',' before {before.text}", before.span, hint="definitions are separated by commas")

        begins = not ended and token.word in _CLAUSE_OF_WORD and code == "HQ101"
        if begins and token.word != "PATTERN":
            begins = self.tokens.words(i, *_CLAUSE_OF_WORD[token.word][1])
        if begins and self.clauses:
            name, _, place = _CLAUSE_OF_WORD[token.word]
            for other in self.clauses:
                if other == token.word or place == _CLAUSE_OF_WORD[other][2] != _EITHER_WAY:
                    fail(
                        f"{name} appears twice"
                        if other == token.word
                        else f"{name} comes after {_CLAUSE_OF_WORD[other][0]}",
                        code="HQ103",
                        hint=f"keep one {name} clause" if other == token.word else "keep one of the two",
                    )
            latest = max(self.clauses, key=lambda c: _CLAUSE_OF_WORD[c][2])
            if place < _CLAUSE_OF_WORD[latest][2]:
                fail(f"{name} belongs before {_CLAUSE_OF_WORD[latest][0]}", code="HQ103", hint=_ORDER_HINT)

        if "EXPRESSION" in accepted:
            comma = before is not None and before.word == "," and token.word in _CLAUSE_OF_WORD
            hint = "leave out the comma before it" if comma else ""
            fail(f"expected an expression, found {found}", hint=hint, code="HQ102" if code == "HQ101" else code)

        in_pattern = "VARIABLE" in accepted and "LPAR" in accepted
        if in_pattern and token.word in ("*", "+", "?", "{"):
            if before is not None and before.word in ("*", "+", "?", "}"):
                fail("a quantifier follows another one", hint="group them: (A+)*")
            if before is not None and before.word not in ("(", "|", ",", "{-", "PATTERN"):
                fail("a negated variable takes no quantifier", hint="~B already means that no B occurs")
            fail(f"expected a row pattern before the quantifier {found}")

        if self.start == "sase" and token.word == "WITHIN" and accepted != {"WHERE"}:
            fail(f"unexpected {found}", hint="WITHIN is allowed once, between } and RETURN")
        if self.start in ("sase", "trend") and token.word in _OUTER_WORDS:
            fail(f"unexpected {found}", hint="put the statement into parentheses: FROM (FROM ... PATTERN SEQ ...) AS m")
        in_seq = self.start == "sase" and not any(t.word == "WHERE" for t in items[self.first : i])
        if in_seq and (token.word in ("(", "*", "+", "OR", "AND", "NOT") or accepted == {"SEQ"}):
            hint = "other patterns than SEQ of single events are about trends: begin with RETURN, or add SLIDE"
            fail(f"unexpected {found}", hint=hint)
        if self.start == "sase" and token.word == "[" and before is not None:
            fail(f"{before.text} is one event, not an array", hint=f"an array is Type+ {before.text}[]", code="HQ218")
        if self.start == "alert" and token.word == "(":
            fail("unexpected (", hint="PER takes columns of the output: give the expression a name in the SELECT")
        if self.start == "alert" and not accepted:
            fail(f"unexpected {found}", hint="ALERT ONCE must follow the whole statement")
        if token.word == "," and accepted == {"RPAR"} and code == "HQ101":
            fail(f"expected ')', found {found}", hint="write consecutive rows side by side: PATTERN (A B)")
        if token.word in ("AND", "WHERE") and "ON" in accepted and self.tokens.words(i - 2, "PATTERN"):
            box = self.tokens.items[i - 1].text
            fail(f"expected ON, found {found}", hint=f"conditions on a box follow ON: PATTERN {box} ON ... AND ...")
        shown = self._shown(accepted)
        if token.kind is TokenKind.WORD and len(token.word) > 2:
            words = {s.split()[0]: s for s in shown} | {u: u for u in _UNITS if "UNIT" in accepted}
            close = difflib.get_close_matches(token.word, sorted(words), n=1, cutoff=0.6)
            if close and close[0] == token.word:  # `expected` is the token after it here
                hint = "WITH UNMATCHED ROWS must follow ALL ROWS PER MATCH" if token.word == "WITH" else ""
                fail(f"unexpected {found}", hint=hint)
            if close:
                meant = words[close[0]]
                fail(f"expected {meant}, found {found}", hint=f"did you mean {meant}?")
        instead = self._instead(i)
        if in_pattern:
            fail(
                f"expected a row pattern, found {found}"
                if "RPAR" not in accepted
                else f"unexpected {found} in a row pattern",
                hint=instead,
            )
        if "PATTERN" in accepted and (ended or token.word in _CLAUSE_OF_WORD):
            later = any(items[j].word == "PATTERN" and self.tokens.words(j + 1, "(") for j in range(i, len(items)))
            there = f"PATTERN comes before {found}" if later else "every MATCH_RECOGNIZE has a PATTERN ( ... )"
            fail(f"expected PATTERN, found {found}", hint=there)
        if accepted == {"AS"} and self.context == "MEASURES":
            # `pattern(x)` may be a call: after a superfluous comma PATTERN was read as one
            at = next((j for j in range(i - 1, self.first, -1) if items[j].word in ("PATTERN", "AS")), self.first)
            if items[at].word == "PATTERN" and items[at - 1].word in (",", "MEASURES"):
                fail("expected a measure, found PATTERN", items[at].span, hint="the last measure has no comma after it")
            message, span, hint = self._unnamed(i)
            fail(message or f"expected AS, found {found}", span or token.span, hint=hint)
        if accepted:
            needs_strategy = accepted == {"WHERE"}
            hint = "every SEQ has a strategy: WHERE skip_till_next_match(a, b) { ... }" if needs_strategy else ""
            if token.word == "SLIDE" and "WITHIN" in accepted:
                hint = "SLIDE comes right after WITHIN"
            hint = hint or instead
            listed = ", ".join(shown[:-1]) + (" or " if len(shown) > 1 else "") + shown[-1]
            fail(f"expected {listed}, found {found}", hint=hint)
        fail(f"unexpected {found}")

    def _instead(self, i: int) -> str:
        """Returns a hint what to write instead of the words from token i on, which other languages have, or that are
        nearly right; empty if there is none."""
        tokens, items = self.tokens, self.tokens.items
        if i >= len(items):
            return ""
        if tokens.words(i - 1, "SKIP", "NEXT", "ROW") or tokens.words(i - 1, "SKIP", "LAST", "ROW"):
            return f"write AFTER MATCH SKIP {'TO NEXT' if items[i].word == 'NEXT' else 'PAST LAST'} ROW"
        if tokens.words(i - 3, "SKIP", "TO", "NEXT") or tokens.words(i - 3, "SKIP", "PAST", "LAST"):
            return f"write AFTER MATCH SKIP {items[i - 2].word} {items[i - 1].word} ROW"
        if items[i].word == ";":
            return "a semicolon ends the statement: leave it out here"
        named = items[i].word in ("=", ":=", ":") or items[i - 2].word in ("DEFINE", ",")
        if self.context == "DEFINE" and named:
            return f"write {items[i - 1].text} AS, then the condition"
        if tokens.words(i - 2, "INTERVAL") and tokens.text[items[i - 1].end :].startswith(("/*$", "/*?")):
            return "pass a timedelta, without the word INTERVAL"
        if tokens.words(i, "SKIP", "TILL"):
            return "write SELECTION SKIP TILL NEXT MATCH, or SKIP TILL ANY MATCH"
        if tokens.words(i - 2, "SKIP", "TILL") or tokens.words(i - 3, "SKIP", "TILL"):
            return "write SELECTION SKIP TILL NEXT MATCH, or SKIP TILL ANY MATCH"
        length = next((k for k in range(i, len(items)) if items[k].word not in _DURATION), len(items))
        if i < length < len(items) - 1 and items[length].kind in (TokenKind.STRING, TokenKind.NUMBER):
            if self._behind_pattern():
                return f"write WITHIN INTERVAL {items[length].text} {items[length + 1].text}"
        within = i if tokens.words(i - 1, "WITHIN") else i - 1
        if tokens.words(within - 1, "WITHIN") and tokens.text[items[within].end :].startswith(("/*$", "/*?")):
            return "pass a timedelta"
        if tokens.words(i - 1, "WITHIN") and items[i].kind is TokenKind.STRING:
            return f"write WITHIN INTERVAL {items[i].text}"
        if tokens.words(i - 2, "WITHIN") and items[i - 1].kind is TokenKind.NUMBER:
            return f"a time has a unit, WITHIN {items[i - 1].text} MINUTES; a number of rows is followed by ROWS"
        if items[i - 1].word == ")" and items[i].word in ("*", "+", "?", "{") and self._behind_pattern():
            return "a quantifier of the whole pattern is inside of it: PATTERN ((A B)+)"
        if tokens.words(i - 1, "PATTERN") and self.start == "clauses":
            return "parentheses are around the pattern: PATTERN (A B+)"
        if tokens.words(i, "-", ">") or tokens.words(i, "->"):
            return "A B are rows side by side; SELECTION SKIP TILL NEXT MATCH allows others between them"
        if self.start != "clauses":
            return ""
        of_regular_expressions = {
            "!": "write NOT before a row that must not occur: NOT B",
            ".": "any row is a variable that DEFINE does not name: PATTERN (A X* B)",
            "[": "one of several rows is written (B | C)",
        }
        return of_regular_expressions.get(items[i].word, "")

    def _behind_pattern(self) -> bool:
        return "PATTERN" in self.clauses and "DEFINE" not in self.clauses

    def _unnamed(self, i: int) -> tuple[str, Span | None, str]:
        """Returns message, span and hint for a measure that ends before token i without AS: those of other languages,
        empty and None if it is like none of them."""
        items, depth, first = self.tokens.items, 0, i
        while first > self.first and (depth or items[first - 1].word not in (",", "MEASURES")):
            first -= 1
            depth += (items[first].word in (")", "]", "}")) - (items[first].word in ("(", "[", "{"))
        measure = items[first:i]
        words = [t.word for t in measure]
        star = next((j for j, word in enumerate(words) if word == "*" and (not j or words[j - 1] == ".")), None)
        if star is not None:  # what follows it was read as a factor
            span = Span(measure[0].start, measure[star].end)
            hint = "a measure is one value: LAST(price) AS price; ALL ROWS PER MATCH returns each row with all columns"
            return f"{self.tokens.text[span.start : span.end]} is no measure", span, hint
        if len(measure) > 2 and measure[0].kind is TokenKind.WORD and words[1] == "=":
            value = self.tokens.text[measure[2].start : measure[-1].end]
            hint = f"the name of a measure follows it: {value} AS {measure[0].text}"
            return f"expected AS behind the measure {measure[0].text}", Span(measure[0].start, measure[1].end), hint
        if len(measure) > 1 and measure[-1].kind is TokenKind.WORD and words[-2] not in _OPERATORS:
            value = self.tokens.text[measure[0].start : measure[-2].end]
            name = measure[-1]
            return f"expected AS before {name.text}", name.span, f"write {value} AS {name.text}"
        return "", None, "a measure has a name: count(*) AS n"

    def _shown(self, accepted: set[str]) -> list[str]:
        """Returns the accepted terminals as messages name them: clauses in their order, after all others."""
        clause_names = {} if "STRICT" in accepted else {words[0]: name for name, words, _ in _CLAUSES}
        clauses = [name for word, name in clause_names.items() if word in accepted]
        rest = sorted({self.grammar.shown.get(a, a) for a in accepted if a not in clause_names})
        return rest + clauses


def error_at(text: str, code: str, message: str, span: Span, label: str = "", hint: str = "") -> QueryError:
    return QueryError([Diagnostic(code, message, span, label, hint)], text)
