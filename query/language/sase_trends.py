"""SASE+ trends to MATCH_RECOGNIZE: a trend statement as the syntax tree of the equivalent ONE ROW PER WINDOW.

A condition goes to the variable that comes last in PATTERN among those it refers to; there the others are read with
LAST, which has to be the event right before it (the binder checks that). `[x]` and GROUP BY become PARTITION BY. An
event type stands for all variables of it.

Long: one class translates one statement, and its steps share the text, the variables and the faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from query.errors import Diagnostic, QueryError, Span, nearest
from query.language import ast, duck
from query.language.build_trends import Trend, TrendEvent
from query.language.clauses import NAMES, Clauses, Input, Text, identifier_of
from query.language.cut import SaseCut, enclosing
from query.language.lexer import TokenKind, Tokens
from query.language.read import STRATEGIES, names_strategy

#: The clauses of a trend statement: the words each begins with, in their order.
_CLAUSES = (("FROM",), ("TYPE", "BY"), ("PATTERN",), ("WHERE",), ("GROUP", "BY"), ("HAVING",), ("WITHIN",), ("SLIDE",),
            ("RETURN",))  # fmt: skip
_PLACES = {words: i for i, words in enumerate(_CLAUSES)}
_ORDER = "the order is " + ", ".join(" ".join(words) for words in _CLAUSES) + "; RETURN may be first"
_AGGREGATES = ("COUNT", "SUM", "AVG", "MEAN", "MIN", "MAX")


# ---- what is a trend statement -------------------------------------------------------------------------------------


def is_trend(tokens: Tokens, piece: SaseCut) -> bool:
    """True if a SASE+ statement asks for trends: it has GROUP BY, HAVING, SLIDE or a RETURN in front, or no
    strategy."""
    clauses = dict(_clauses(tokens, piece))
    if piece.returned is not None or any(words in clauses for words in (("GROUP", "BY"), ("HAVING",), ("SLIDE",))):
        return True
    where = clauses.get(("WHERE",))
    return where is None or not names_strategy(tokens, where + 1)


def check_clauses(tokens: Tokens, piece: SaseCut) -> None:
    """Raises QueryError for clauses of a trend statement that are repeated or out of order, and for a strategy that is
    none."""
    latest: tuple[str, ...] = ("PATTERN",)
    seen: set[tuple[str, ...]] = {("RETURN",)} if piece.returned is not None else set()
    for words, i in _clauses(tokens, piece):
        name, span = " ".join(words), tokens.items[i].span.to(tokens.items[i + len(words) - 1].span)
        if words in seen:
            hint = "RETURN is the first or the last clause" if name == "RETURN" else f"keep one {name} clause"
            raise QueryError([Diagnostic("HQ103", f"{name} appears twice", span, "the second time", hint)], tokens.text)
        if _PLACES[words] < _PLACES[latest]:
            message = f"{name} belongs before {' '.join(latest)}"
            raise QueryError([Diagnostic("HQ103", message, span, "", _ORDER)], tokens.text)
        seen.add(words)
        latest = words
        if name == "WHERE" and names_strategy(tokens, i + 1) and tokens.items[i + 1].word not in STRATEGIES:
            found = tokens.items[i + 1]
            hint = nearest(found.text, [s.lower() for s in STRATEGIES])
            message = f"unknown strategy {found.text}"
            raise QueryError([Diagnostic("HQ221", message, found.span, "not a strategy", hint)], tokens.text)


def _clauses(tokens: Tokens, piece: SaseCut) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yields the clauses after PATTERN, each with the index of its first word."""
    items = tokens.items
    i = piece.keyword + 1
    while i <= piece.last:
        word = "" if tokens.words(i - 1, ".") else items[i].word
        if word in ("(", "[", "{"):
            i = tokens.partner[i] + 1
            continue
        timed = i < piece.last and (items[i + 1].kind is TokenKind.NUMBER or items[i + 1].word == "INTERVAL")
        if word == "FROM" and tokens.words(i - 1, "DISTINCT"):
            pass
        elif (word in ("WITHIN", "SLIDE") and timed) or word in ("FROM", "WHERE", "HAVING", "RETURN"):
            yield (word,), i
        elif word in ("GROUP", "TYPE") and tokens.words(i + 1, "BY"):
            yield (word, "BY"), i
        i += 1


# ---- the translation -----------------------------------------------------------------------------------------------


def recognize_trends(tokens: Tokens, trend: Trend, input: Input, keyword: Span) -> ast.MatchRecognize:
    """Returns the equivalent clauses of MATCH_RECOGNIZE. keyword: PATTERN. Raises QueryError with all faults found;
    columns and types are left to the binder."""
    return _Trends(tokens, trend, input, keyword).match()


class _Kind(Enum):
    """The events of a variable that a reference in a condition reads."""

    ONE = "v.x"
    FIRST = "v[1].x"
    THIS = "v[i].x"
    BACK = "v[i-1].x"


@dataclass(frozen=True, slots=True)
class _Reference:
    """A reference, the tokens [first, last). names: the variables that it may stand for. offset: of BACK. columns: the
    tokens of `x` or `x.field`."""

    names: tuple[str, ...]
    kind: _Kind
    offset: int
    first: int
    last: int
    columns: range


@dataclass(frozen=True, slots=True)
class _Condition:
    """A conjunct: the tokens [first, last), and its references."""

    first: int
    last: int
    references: tuple[_Reference, ...]


class _Trends(Clauses):
    def __init__(self, tokens: Tokens, trend: Trend, input: Input, keyword: Span) -> None:
        super().__init__(tokens, input)
        self.trend, self.keyword = trend, keyword
        #: By variable: its first appearance, `many` if any appearance is; and the index of its last one.
        self.events: dict[str, TrendEvent] = {}
        self.places: dict[str, int] = {}
        #: Variables that appear several times, which only a type without a variable may.
        self.repeated: set[str] = set()
        self.subsets: dict[tuple[str, ...], ast.SubsetSyntax] = {}

    # ---- the statement

    def match(self) -> ast.MatchRecognize:
        trend = self.trend
        self.variables()
        self.shape(trend.pattern, None)
        self.types(event.type for event in trend.events)
        self.listed()
        self.windows()
        self.stop()
        partition: list[ast.ExpressionText] = []
        conditions: list[_Condition] = []
        if trend.conditions is not None:
            for first, last in self.conjuncts(*self.within(trend.conditions)):
                if self.items[first].word == "[" and self.tokens.partner[first] == last - 1:
                    partition += self.equivalence(first, last)
                elif (condition := self.condition(first, last)) is not None:
                    conditions.append(condition)
        groups = self.groups()
        homes: dict[str, list[_Condition]] = {}
        for condition in conditions:
            for home in self.homes(condition):
                homes.setdefault(home, []).append(condition)
        defines = [d for name in self.events if (d := self.define(name, homes.get(name, []))) is not None]
        measures = self.measures([_name(g) for g in groups])
        having = None
        if trend.having is not None:
            named = {m.name.written.lower(): f"({m.expression.text})" for m in measures}
            named = {name: sql for name, sql in named.items() if name not in map(_name, groups)}
            having = self.over(*self.within(trend.having), trend.having, named)
        self.stop()
        partition = list({_name(p): p for p in reversed([*partition, *groups])}.values())[::-1]
        return ast.MatchRecognize(
            partition_by=tuple(partition),
            order_by=(),
            measures=tuple(measures),
            rows=ast.RowsPerMatch.WINDOW,
            after=None,
            pattern=_with_events(trend.pattern),
            within=trend.within,
            selection=trend.selection,
            subsets=tuple(self.subsets.values()),
            defines=tuple(defines),
            span=trend.span,
            sase=ast.SaseSyntax(True, self.keyword),
            trends=ast.TrendSyntax(tuple(groups), trend.slide, having, self.keyword),
        )

    def variables(self) -> None:
        """Checks that a variable is of one event type, and of one side of AND."""
        for i, event in enumerate(self.trend.events):
            name = event.variable.name
            before = self.events.setdefault(name, event)
            self.places[name] = i
            if before is event:
                continue
            self.repeated.add(name)
            self.events[name] = replace(before, many=before.many or event.many)
            same = before.type.written == event.type.written and not (before.named or event.named)
            if same and before.negated == event.negated and before.side == event.side:
                continue
            why = "the second time" if before.named or event.named else "named like its type"
            hint = f"give each event a variable of its own: {event.type.written} {event.variable.written.lower()}2"
            self.fault("HQ203", f"{event.variable.written} appears twice in PATTERN", event.span, why, hint)

    def shape(self, pattern: ast.PatternSyntax, parent: ast.PatternSyntax | None) -> None:
        """Checks that AND joins whole patterns, and that NOT is an element of SEQ beside others."""
        match pattern:
            case ast.PatternConjunction(sides):
                if parent is not None:
                    word = next(t for t in self.items if t.start >= sides[0].span.end and t.word == "AND")
                    self.fault("HQ221", "AND joins whole patterns only", word.span, "inside of a pattern",
                               "write SEQ(A a, B b) AND SEQ(C c, D d), or events in their order: SEQ(A a, B b)")
                for side in sides:
                    self.shape(side, pattern)
            case ast.PatternSequence(parts):
                if all(isinstance(part, ast.PatternNegation) for part in parts):
                    self.fault("HQ221", "a pattern of negations only matches nothing", pattern.span, "no event",
                               "write NOT beside the events it lies between: SEQ(A a, NOT(C c), B b)")
                    return
                for part in parts:
                    self.shape(part, pattern)
            case ast.PatternAlternation(choices):
                for choice in choices:
                    self.shape(choice, pattern)
            case ast.PatternQuantified(body):
                self.shape(body, pattern)
            case ast.PatternNegation() if not isinstance(parent, ast.PatternSequence):
                self.fault("HQ221", "NOT must be an element of SEQ", pattern.span, "between which events?",
                           "write SEQ(A a, NOT(C c), B b)")
            case _:
                pass

    def listed(self) -> None:
        """Checks the strategy's list: it applies to the whole pattern, so it lists all variables; negated ones may be
        omitted."""
        named: set[str] = set()
        for listed in self.trend.listed:
            names = self.meant(listed.variable.written, listed.variable.name)
            if not names:
                self.no_variable(listed.variable.written, listed.span)
            named.update(names)
        left = [e.variable.written for name, e in self.events.items() if not e.negated and name not in named]
        if self.trend.selection is not None and left and not self.faults:
            self.fault("HQ500", "a strategy for a part of PATTERN is not supported yet", self.trend.selection.span,
                       f"omits {', '.join(left)}", f"list all variables: {', '.join(self.names())}")

    def windows(self) -> None:
        within = self.trend.within
        if within is not None and within.interval_us is not None:
            return
        if within is not None:
            self.fault("HQ221", "a window needs a length in time", within.span, "a number of rows",
                       "write WITHIN 30 minutes")
            return
        self.fault("HQ221", "a trend statement needs WITHIN", self.keyword, "in which windows?",
                   "add WITHIN 30 minutes, and SLIDE 5 minutes for windows that overlap" + self.or_matches())

    def or_matches(self) -> str:
        """Returns how a statement without a strategy would be about matches, for hints."""
        if self.trend.selection is not None:
            return ""
        return "; matches instead of trends need a strategy: WHERE skip_till_next_match(a, b) { ... }"

    def groups(self) -> list[ast.ExpressionText]:
        """Returns the columns of GROUP BY."""
        found: list[ast.ExpressionText] = []
        for group in self.trend.group_by:
            first, last = self.within(group.span)
            if last - first != 1 or self.items[first].kind not in NAMES:
                self.fault("HQ221", "GROUP BY takes columns", group.span, "not a column",
                           "a column in which all events of a trend agree, without a variable: GROUP BY district")
            else:
                found.append(group)
        return found

    # ---- names

    def names(self) -> tuple[str, ...]:
        """Returns the variables as written."""
        return tuple(e.variable.written for e in self.events.values())

    def known(self) -> tuple[str, ...]:
        """Returns variables and types as written."""
        return tuple(dict.fromkeys([*self.names(), *(e.type.written for e in self.events.values())]))

    def meant(self, written: str, name: str) -> tuple[str, ...]:
        """Returns the variables that a name stands for: a variable, or all variables of an event type. One that is
        spelt so goes first, and a variable before a type."""
        for spelt in (True, False):
            for v, e in self.events.items():
                if e.named and (e.variable.written == written if spelt else v == name):
                    return (v,)
            types = [e.type.written for e in self.events.values()]
            types = [t for t in types if (t == written if spelt else t.upper() == name.upper())]
            if types:
                return tuple(v for v, e in self.events.items() if e.type.written == types[0])
        return ()

    def named(self, i: int) -> tuple[str, ...]:
        """Returns the variables that token i stands for."""
        token = self.items[i]
        if token.kind not in NAMES or self.tokens.words(i - 1, "."):
            return ()
        name = identifier_of(token)
        return self.meant(name.written, name.name)

    def no_variable(self, written: str, span: Span) -> None:
        self.fault("HQ202", f"{written} is neither a variable nor an event type of PATTERN", span, "not in PATTERN",
                   nearest(written, self.known()))

    def unknown(self, first: int, last: int) -> None:
        """Adds the fault of each `x.column` among the tokens where x is no name of PATTERN."""
        for i in range(first, last - 2):
            if self.tokens.words(i + 1, ".") and self.is_name(i) and not self.named(i):
                self.no_variable(self.items[i].text, self.items[i].span)

    def sql_name(self, names: tuple[str, ...]) -> str:
        """Returns the SQL of variables: their name, or that of their union."""
        name = names[0]
        if len(names) > 1:
            if names not in self.subsets:
                events = [self.events[n] for n in names]
                type = events[0].type
                free = type.name if type.name not in self.events else f"{type.written}[]"
                union = ast.Identifier(free, free, True, type.span)
                members = (ast.Identifier(n, e.variable.written, True, e.variable.span) for n, e in zip(names, events))
                self.subsets[names] = ast.SubsetSyntax(union, tuple(members), type.span)
            name = self.subsets[names].name.name
        return '"' + name.replace('"', '""') + '"'

    # ---- conditions

    def condition(self, first: int, last: int) -> _Condition | None:
        before = len(self.faults)
        references = tuple(self.references(first, last))
        self.unknown(first, last)
        if len(self.faults) > before:
            return None
        if not references:
            calls = any(t.word in _AGGREGATES for t in self.items[first:last])
            hint = "a condition on the row of a window is in HAVING" if calls else f"write {self.names()[0]}.column"
            self.fault("HQ202", "this condition refers to no variable", self.span(first, last), "of which event?", hint)
            return None
        return _Condition(first, last, references)

    def references(self, first: int, last: int) -> Iterator[_Reference]:
        """Yields the references among the tokens [first, last). Adds faults, and omits faulty references."""
        i = first
        while i < last:
            names = self.named(i) if i + 1 < last and self.items[i + 1].word in (".", "[") else ()
            found = self.reference(i, names, last) if names else None
            if found is not None:
                yield found
            i = i + 1 if found is None else found.last

    def reference(self, i: int, names: tuple[str, ...], last: int) -> _Reference | None:
        """The reference that begins at token i."""
        written = self.items[i].text
        kind, offset, end = _Kind.ONE, 0, i + 1
        if self.tokens.words(i + 1, "["):
            close = self.tokens.partner[i + 1]
            end = close + 1
            if not all(self.events[name].many for name in names):
                self.fault("HQ221", f"{written} is one event, not an array", self.span(i, end), "",
                           f"write {written}.column, or make it an array: Type+ {written}[]")
                return None
            part = _part([t.word or t.text for t in self.items[i + 2 : close]])
            if part is None:
                self.fault("HQ221", "this index reads the whole trend", self.span(i, end), "which event?",
                           f"available: {written}.x or {written}[i].x, {written}[i-1].x of the event before it")
                return None
            kind, offset = part
        columns, behind = self.columns(end, last)
        if not columns:
            span = self.span(i, max(end, behind))
            shown = " ".join(self.text[span.start : span.end].split())
            self.fault("HQ221", f"{shown} is an event, not a value", span, "which column?", f"write {shown}.column")
            return None
        return _Reference(names, kind, offset, i, behind, columns)

    def homes(self, condition: _Condition) -> tuple[str, ...]:
        """Returns the variables at whose events a condition is tested: all that its only name stands for; else the one
        that is negated, or comes last in PATTERN."""
        span = self.span(condition.first, condition.last)
        named = {r.names for r in condition.references}
        if len(named) == 1:
            return condition.references[0].names
        several = next((r for r in condition.references if len(r.names) > 1 or r.names[0] in self.repeated), None)
        if several is not None:
            written = self.items[several.first].text
            self.fault("HQ221", f"{written} appears several times in PATTERN", self.span(several.first, several.last),
                       "which of them?", "give each event a variable of its own, and write a condition for each")
            return ()
        names = [r.names[0] for r in condition.references]
        negated = {name for name in names if self.events[name].negated}
        if len(negated) > 1:
            self.fault("HQ221", f"a condition on two negated events: {' and '.join(sorted(negated))}", span)
            return ()
        if len({self.events[name].side for name in names}) > 1:
            self.fault("HQ221", "a condition on both sides of AND", span, "events that are not neighbours",
                       "write conditions for each side, or [attr] for what is equal in both")
            return ()
        home = negated.pop() if negated else max(names, key=lambda name: self.places[name])
        for r in condition.references:
            if r.kind is not _Kind.ONE and r.names != (home,):
                v = self.items[r.first].text
                self.fault("HQ221", f"{v}[...] is known only at an event of {v}", self.span(r.first, r.last),
                           f"tested at {self.events[home].variable.written}", f"write {v}.x, the event right before")
                return ()
        return (home,)

    def define(self, name: str, conditions: Sequence[_Condition]) -> ast.DefineSyntax | None:
        """Returns the condition on an event of a variable: its type, and its conditions. Those on `v[i]` are of the
        second event on."""
        event = self.events[name]
        parts: list[Text] = []
        first: list[Text] = []
        later: list[Text] = []
        if (typed := self.typed(self.sql_name((name,)), event.type)) is not None:
            parts.append(typed)
        for c in conditions:
            text = self.condition_sql(c, name)
            kinds = {r.kind for r in c.references}
            if kinds & {_Kind.THIS, _Kind.BACK}:
                later.append(text)
            elif _Kind.FIRST in kinds:
                first.append(text)
            else:
                parts.append(text)
        if first or later:
            either: list[Text] = []
            for sign, texts in (("=", first), (">", later)):
                number = Text(self.text)
                number.own(f"count({self.sql_name((name,))}.*) {sign} 1", event.span)
                either.append(Text(self.text).joined([number, *texts], "AND", event.span))
            parts.append(Text(self.text).joined(either, "OR", event.span))
        if not parts:
            return None
        text = parts[0] if len(parts) == 1 else Text(self.text).joined(parts, "AND", event.span)
        return ast.DefineSyntax(event.variable, text.expression(event.span), event.span)

    def condition_sql(self, condition: _Condition, home: str) -> Text:
        """Returns a condition in SQL, tested at an event of `home`."""

        starts = {r.first: r for r in condition.references}

        def put(i: int) -> None:
            r = starts[i]
            span = self.span(r.first, r.last)
            names = (home,) if home in r.names else r.names
            far = r.kind is _Kind.FIRST and any(x.kind in (_Kind.THIS, _Kind.BACK) for x in condition.references)
            before, behind = {
                _Kind.BACK: ("LAST(", f", {r.offset})"),
                _Kind.FIRST: ("FIRST(", ")") if far else ("", ""),
            }.get(r.kind, ("", ""))
            text.own(before + self.sql_name(names), span)
            text.written(self.items[r.columns[0] - 1].start, self.items[r.columns[-1]].end)
            text.own(behind, span)

        text = Text(self.text)
        ends = {r.first: r.last for r in condition.references}
        self.composed(text, condition.first, condition.last, ends, put)
        return text

    # ---- RETURN and HAVING

    def measures(self, groups: Sequence[str]) -> list[ast.MeasureSyntax]:
        """Returns the values of RETURN. A bare column of GROUP BY is a column of the output anyway."""
        if self.trend.returned is None:
            self.fault("HQ221", "a trend statement needs RETURN", self.keyword, "nothing to compute",
                       "add RETURN COUNT(*) AS trends at its end" + self.or_matches())
            return []
        values: list[tuple[ast.ExpressionText, Span, ast.Identifier | None, tuple[str, str] | None]] = []
        for value in self.trend.returned:
            first, last = self.within(value.expression)
            alone = last - first == 1 and self.items[first].kind in NAMES
            if value.name is None and alone and identifier_of(self.items[first]).written.lower() in groups:
                continue
            before = len(self.faults)
            text = self.over(first, last, value.expression)
            default = None if value.name is not None else self.default_names(first, last)
            if value.name is None and alone:
                v = self.items[first].text
                self.fault("HQ221", f"{v} is no column of GROUP BY", value.expression, "of which event?",
                           f"group by it, or aggregate it: max({self.names()[0]}.{v})")
            elif value.name is None and not default and len(self.faults) == before:
                self.fault("HQ221", "a returned value needs a name", value.expression, "", "write AS and a name")
            values.append((text, value.expression, value.name, default))
        taken = {*groups, *(n.written.lower() for _, _, n, _ in values if n)}
        longer: dict[str, set[str]] = {}
        for *_, default in values:
            if default:
                longer.setdefault(default[0], set()).add(default[1])
        found: list[ast.MeasureSyntax] = []
        for text, span, name, default in values:
            if default:
                short, long = default
                written = short if short not in taken and len(longer[short]) == 1 else long
                name = ast.Identifier(written, written, True, span)
            if name is not None:
                found.append(ast.MeasureSyntax(text, name, span))
        return found

    def default_names(self, first: int, last: int) -> tuple[str, str] | None:
        """Returns the short and the long name of an aggregate without AS, as `avg_speed` and `avg_t_speed`, or
        None for another value."""
        if self.items[first].word not in _AGGREGATES or not self.tokens.words(first + 1, "("):
            return None
        if self.tokens.partner[first + 1] != last - 1:
            return None
        function, inside = self.items[first].word.lower(), range(first + 2, last - 1)
        names = [identifier_of(self.items[i]) for i in inside if self.is_name(i) and self.named(i)]
        columns = [self.items[i] for i in inside if self.tokens.words(i - 1, ".") and self.items[i].kind in NAMES]
        of = [n.written.lower() for n in names[:1]]
        read = [identifier_of(token).written.lower() for token in columns]
        if not names and not read:
            read = [identifier_of(self.items[i]).written.lower() for i in inside if self.is_name(i)]
        return "_".join([function, *(read or of)]), "_".join([function, *of, *read])

    def over(
        self, first: int, last: int, span: Span, named: Mapping[str, str] = MappingProxyType({})
    ) -> ast.ExpressionText:
        """Returns the tokens [first, last) of RETURN or HAVING in SQL: COUNT(*) counts trends, COUNT(E) events. named:
        SQL of the values that have a name."""
        replaced: dict[int, tuple[str, int]] = {}
        i = first
        while i < last:
            if self.tokens.words(i, "COUNT", "(", "*", ")"):
                replaced[i] = ("count(MATCHES)", i + 4)
            elif named and self.is_value(i) and (sql := named.get(identifier_of(self.items[i]).written.lower())):
                replaced[i] = (sql, i + 1)
            elif (names := self.named(i)) and (at := self.event_end(i, last)) is not None:
                of = tuple(name for name in names if not self.events[name].negated)
                if not of:
                    v = self.items[i].text
                    self.fault("HQ202", f"{v} is negated: no event of a trend is {v}", self.items[i].span, "",
                               "aggregate the events of another variable")
                elif self.tokens.words(at, ".") and not self.tokens.words(at + 1, "*"):
                    replaced[i] = (self.sql_name(of), at)
                    self.aggregated(i, at, last)
                elif self.tokens.words(i - 2, "COUNT", "("):
                    replaced[i] = (f"{self.sql_name(of)}.*", at + 2 * self.tokens.words(at, ".", "*"))
                else:
                    v = self.items[i].text
                    self.fault("HQ221", f"{v} is an event, not a value", self.items[i].span, "which column?",
                               f"write {v}.column")
            i = replaced[i][1] if i in replaced else i + 1
        self.unknown(first, last)

        text = Text(self.text)
        ends = {i: behind for i, (_, behind) in replaced.items()}
        self.composed(text, first, last, ends, lambda i: text.own(replaced[i][0], self.span(i, replaced[i][1])))
        return text.expression(span)

    def is_inside_aggregate(self, i: int) -> bool:
        """True if token i is in the argument of an aggregate."""
        return any(self.items[a - 1].text.lower() in duck.aggregate_names() for a in enclosing(self.tokens, i) if a)

    def is_value(self, i: int) -> bool:
        """True if token i may be the name of a returned value."""
        qualifies = any(self.tokens.words(i + 1, word) for word in (".", "(", "["))
        return self.is_name(i) and not qualifies and not self.is_inside_aggregate(i)

    def aggregated(self, i: int, at: int, last: int) -> None:
        """Adds the fault of a variable's column outside of an aggregate. at: the token after the variable."""
        if self.is_inside_aggregate(i):
            return
        span = self.span(i, self.columns(at, last)[1])
        shown = " ".join(self.text[span.start : span.end].split())
        self.fault("HQ221", f"{shown} is a value of one event", span, "of which event?", f"aggregate it: max({shown})")

    def event_end(self, i: int, last: int) -> int | None:
        """Returns the index after a variable and `[]`, None if token i is another use of its name: a function, or a
        column that no event qualifies."""
        if self.tokens.words(i + 1, "["):
            close = self.tokens.partner[i + 1]
            if close > i + 2:
                self.fault("HQ221", "an aggregate takes all events of a variable", self.span(i, close + 1), "",
                           f"write {self.items[i].text}.column")
            return close + 1
        if i + 1 < last and self.items[i + 1].word == ".":
            return i + 1
        counted = self.tokens.words(i - 2, "COUNT", "(") and self.tokens.words(i + 1, ")")
        return i + 1 if counted else None


def _part(words: Sequence[str]) -> tuple[_Kind, int] | None:
    """Returns the events that the words in brackets after a variable select, and the offset backwards."""
    match words:
        case []:
            return _Kind.ONE, 0
        case ["1"]:
            return _Kind.FIRST, 0
        case ["I"]:
            return _Kind.THIS, 0
        case ["I", "-", k] if k.isdecimal():
            return (_Kind.BACK, int(k)) if int(k) else (_Kind.THIS, 0)
        case _:
            return None


def _name(column: ast.ExpressionText) -> str:
    return column.text.strip('"').lower()


def _with_events(pattern: ast.PatternSyntax) -> ast.PatternSyntax:
    """Returns a pattern in which `p*` is `p+` where it is the whole of a trend, or a side or choice of it: a trend has
    an event."""
    match pattern:
        case ast.PatternQuantified(body, _, None, greedy, span):
            return ast.PatternQuantified(_with_events(body), 1, None, greedy, span)
        case ast.PatternAlternation(choices, span):
            return ast.PatternAlternation(tuple(map(_with_events, choices)), span)
        case ast.PatternConjunction(sides, span):
            return ast.PatternConjunction(tuple(map(_with_events, sides)), span)
        case ast.PatternSequence((one,), _):
            return _with_events(one)
        case _:
            return pattern
