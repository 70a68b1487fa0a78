"""SASE+ to MATCH_RECOGNIZE: a SASE+ statement as the syntax tree of the equivalent SQL.

Each condition between the braces goes to the variable that is bound last among those it refers to; its references
`a[i]`, `a[i-1]`, `a[..i-1]`, `a[a.LEN]` become the navigation and the aggregates of SQL. The rest remains the user's
text, and every generated piece has the span of the text it stands for.

Long: one class translates one statement, and its steps share the text, the variables and the faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from query.errors import Span, nearest
from query.language import ast, duck
from query.language.clauses import NAMES, Clauses, Input, Text, identifier_of
from query.language.cut import enclosing
from query.language.lexer import Token, TokenKind, Tokens


@dataclass(frozen=True, slots=True)
class Event:
    """One element of SEQ: `Type v`, `Type+ v[]`, `~(Type v)`. box: it takes matches of the pattern `type`: `PATTERN
    visit v`."""

    type: ast.Identifier
    variable: ast.Identifier
    plus: bool
    negated: bool
    span: Span
    box: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """A variable that a strategy names; many: with `[]`."""

    variable: ast.Identifier
    many: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Returned:
    """A value of RETURN: its span, and its name if it has one."""

    expression: Span
    name: ast.Identifier | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A SASE+ statement as written. body: the text between the braces; returned: None without RETURN."""

    events: tuple[Event, ...]
    selection: ast.SelectionSyntax
    listed: tuple[Listed, ...]
    body: Span | None
    within: ast.WithinSyntax | None
    returned: tuple[Returned, ...] | None
    span: Span


def recognize(tokens: Tokens, statement: Statement, input: Input, keyword: Span) -> ast.MatchRecognize:
    """Returns the equivalent clauses of MATCH_RECOGNIZE. keyword: PATTERN SEQ. Raises QueryError with all faults found;
    columns and types are left to the binder."""
    return _Translation(tokens, statement, input, keyword).match()


class _Kind(Enum):
    """The events of a variable that a reference reads."""

    ONE = "v.x"
    FIRST = "v[1].x"
    THIS = "v[i].x"
    BACK = "v[i-1].x"
    BEFORE = "v[..i-1].x"
    SO_FAR = "v[..i].x"
    LAST = "v[v.LEN].x"
    ALL = "v[].x"
    LENGTH = "v.LEN"


#: References that change with every event the plus takes, and those that are rows for an aggregate.
_GROWING = (_Kind.THIS, _Kind.BACK, _Kind.BEFORE, _Kind.SO_FAR)
_MANY = (_Kind.BEFORE, _Kind.SO_FAR, _Kind.ALL)


class _Part(IntEnum):
    """The point at which a condition on a variable can be tested: at a single event, or at the first, each later, and
    all events of a plus."""

    FIRST = 0
    EACH = 1
    WHOLE = 2


_PART = {_Kind.ONE: _Part.FIRST, _Kind.FIRST: _Part.FIRST, **dict.fromkeys(_GROWING, _Part.EACH)}


@dataclass(frozen=True, slots=True)
class _Reference:
    """A reference, the tokens [first, last). offset: of BACK and LAST. columns: the tokens of `x` or `x.field`, empty
    in `count(v[])`. call: the token of the aggregate's name whose argument it is, or None."""

    event: int
    kind: _Kind
    offset: int
    first: int
    last: int
    columns: range
    call: int | None


@dataclass(frozen=True, slots=True)
class _Condition:
    """A conjunct: the tokens [first, last), and its references."""

    first: int
    last: int
    references: tuple[_Reference, ...]


#: The event at which a condition is tested, by index, and the part of a plus it is about.
_Home = tuple[int, _Part]
_LEN = "LEN"


class _Translation(Clauses):
    def __init__(self, tokens: Tokens, statement: Statement, input: Input, keyword: Span) -> None:
        super().__init__(tokens, input)
        self.statement, self.events, self.keyword = statement, statement.events, keyword
        self.index: dict[str, int] = {}
        for i, event in enumerate(self.events):
            if event.variable.name in self.index:
                self.fault("HQ203", f"{event.variable.written} appears twice in SEQ", event.variable.span,
                           "the second time", "give each event a variable of its own")
            self.index.setdefault(event.variable.name, i)
        self.stop()
        self.positive = [i for i, e in enumerate(self.events) if not e.negated]

    # ---- the statement

    def match(self) -> ast.MatchRecognize:
        statement = self.statement
        self.types(event.type for event in self.events if not event.box)
        self.listed()
        partition: list[ast.ExpressionText] = []
        conditions: list[_Condition] = []
        if statement.body is not None:
            for first, last in self.conjuncts(*self.within(statement.body)):
                if self.items[first].word == "[" and self.tokens.partner[first] == last - 1:
                    partition += self.equivalence(first, last)
                elif (condition := self.condition(first, last)) is not None:
                    conditions.append(condition)
        partition = list({p.text.strip('"').lower(): p for p in partition}.values())
        measures = self.measures({p.text.strip('"').lower() for p in partition})
        self.stop()
        homes: dict[_Home, list[_Condition]] = {}
        for condition in conditions:
            if (home := self.home(condition)) is not None:
                homes.setdefault(home, []).append(condition)
        self.stop()
        pattern, subsets, defines = self.pattern(homes)
        self.stop()
        return ast.MatchRecognize(
            partition_by=tuple(partition),
            order_by=(),
            measures=tuple(measures),
            rows=None,
            after=ast.AfterMatchSyntax(ast.AfterMatchKind.NO_SKIP, None, statement.selection.span),
            pattern=pattern,
            within=statement.within,
            selection=statement.selection,
            subsets=subsets,
            defines=defines,
            span=statement.span,
            sase=ast.SaseSyntax(statement.returned is not None, self.keyword),
        )

    def listed(self) -> None:
        """Checks the strategy's list: it applies to the whole pattern, so it lists all variables; negated ones may be
        omitted."""
        for listed in self.statement.listed:
            i = self.index.get(listed.variable.name)
            if i is None:
                self.fault("HQ202", f"{listed.variable.written} is not a variable of SEQ", listed.variable.span,
                           "not in SEQ", nearest(listed.variable.written, self.names()))
            elif listed.many and not self.events[i].plus:
                self.fault("HQ218", f"{listed.variable.written} is one event, not an array", listed.span,
                           hint=f"write {listed.variable.written}")
        named = {listed.variable.name for listed in self.statement.listed}
        left = [self.events[i].variable.written for i in self.positive if self.events[i].variable.name not in named]
        if left and not self.faults:
            self.fault("HQ500", "a strategy for a part of SEQ is not supported yet", self.statement.selection.span,
                       f"omits {', '.join(left)}", f"list all variables: {', '.join(self.names())}")

    def names(self) -> tuple[str, ...]:
        return tuple(e.variable.written for e in self.events)

    def condition(self, first: int, last: int) -> _Condition | None:
        before = len(self.faults)
        references = tuple(self.references(first, last))
        if len(self.faults) > before:
            return None
        if not references:
            if not self.unknown(first, last):
                self.fault("HQ202", "this condition refers to no variable", self.span(first, last), "of which event?",
                           f"write {self.names()[0]}.column")
            return None
        return _Condition(first, last, references)

    def home(self, condition: _Condition) -> _Home | None:
        """Returns where a condition is tested: at the negated event it refers to, else at the variable that is bound
        last. A condition on all events of a finished plus is tested where the plus is left: at the next event, or at
        its own last one."""
        negated = {r.event for r in condition.references if self.events[r.event].negated}
        if len(negated) > 1:
            names = " and ".join(self.events[i].variable.written for i in sorted(negated))
            self.fault("HQ500", f"a condition on two negated events is not supported: {names}",
                       self.span(condition.first, condition.last))
            return None
        if negated:
            home = (negated.pop(), _Part.FIRST)
        else:
            home = max((r.event, _PART.get(r.kind, _Part.WHOLE)) for r in condition.references)
        for r in condition.references:
            if r.kind in _GROWING and home != (r.event, _Part.EACH):
                self.growing(r, "which one of them?")
                return None
        if home[1] is _Part.WHOLE:
            behind = [i for i in self.positive if i > home[0]]
            return (behind[0], _Part.FIRST) if behind else home
        return home

    def unknown(self, first: int, last: int) -> bool:
        """Adds the fault of `x.column` among the tokens if no variable is called x."""
        for i in range(first, last - 2):
            if self.tokens.words(i + 1, ".") and self.is_name(i):
                self.no_variable(self.items[i])
                return True
        return False

    def no_variable(self, token: Token) -> None:
        self.fault("HQ202", f"{token.text} is not a variable of SEQ", token.span, "not in SEQ",
                   nearest(token.text, self.names()))

    def growing(self, r: _Reference, label: str) -> None:
        """Adds the fault of a reference outside of the growth of its variable."""
        v = self.items[r.first].text
        shown = r.kind.value.removesuffix(".x").replace("v", v)
        self.fault("HQ218", f"{shown} is known only while {v} grows", self.span(r.first, r.last), label,
                   f"say {v}[1], {v}[{v}.{_LEN}], or an aggregate over {v}[]")

    # ---- references

    def variable(self, i: int) -> int | None:
        """Returns the index of the event whose variable token i names."""
        token = self.items[i]
        if token.kind not in NAMES or self.tokens.words(i - 1, "."):
            return None
        return self.index.get(token.text[1:-1].replace('""', '"') if token.kind is TokenKind.QUOTED else token.word)

    def references(self, first: int, last: int) -> Iterator[_Reference]:
        """Yields the references among the tokens [first, last). Adds faults, and omits faulty references."""
        kinds: dict[int, _Kind] = {}
        i = first
        while i < last:
            event = self.variable(i)
            found: _Reference | None = None
            if event is not None and i + 1 < last and self.items[i + 1].word in (".", "["):
                found = self.reference(i, event, last)
            elif event is None and self.is_name(i) and self.tokens.words(i + 1, "["):
                close = self.tokens.partner[i + 1]
                if self.tokens.words(close + 1, ".") or self.part_of(self.items[i].text, i + 2, close) is not None:
                    self.no_variable(self.items[i])
            if found is None:
                i += 1
                continue
            if found.call is not None and found.kind in _MANY:
                other = kinds.setdefault(found.call, found.kind)
                if other is not found.kind and _Kind.BEFORE in (other, found.kind):
                    self.fault("HQ207", f"{self.items[found.call].text} reads two ranges at once",
                               self.span(found.first, found.last), "another range", "split it into two calls")
            yield found
            i = found.last

    def reference(self, i: int, event: int, last: int) -> _Reference | None:
        """The reference that begins at token i."""
        name, plus = self.items[i].text, self.events[event].plus
        call = self.call(i)
        if self.tokens.words(i + 1, "."):
            if plus and self.tokens.words(i + 2, _LEN):
                return _Reference(event, _Kind.LENGTH, 0, i, i + 3, range(0), None)
            if plus:
                self.fault("HQ218", f"{name} is an array: {name}[]", self.items[i].span, "which of its events?",
                           f"say {name}[1], {name}[i], {name}[{name}.{_LEN}], or an aggregate over {name}[]")
                return None
            kind, offset, end = _Kind.ONE, 0, i + 1
        else:
            close = self.tokens.partner[i + 1]
            if not plus:
                self.fault("HQ218", f"{name} is one event, not an array", self.span(i, close + 1),
                           hint=f"write {name}.column, or make it an array in SEQ: Type+ {name}[]")
                return None
            part = self.part_of(name, i + 2, close)
            if part is None:
                hint = f"available: {name}[1], {name}[i], {name}[i-1], {name}[..i-1], {name}[{name}.{_LEN}], {name}[]"
                self.fault("HQ218", "this index is not supported", self.span(i, close + 1), "which event?", hint)
                return None
            kind, offset = part
            end = close + 1
        columns, behind = self.columns(end, last)
        span = self.span(i, max(end, behind))
        shown = " ".join(self.text[span.start : span.end].split())
        if kind in _MANY and call is None:
            self.fault("HQ218", f"{shown} is more than one value", span, "no aggregate around it",
                       f"write avg({shown})")
            return None
        if kind is _Kind.THIS and call is not None:
            self.fault("HQ218", f"{name}[i] is one event", span, "nothing to aggregate",
                       f"{name}[..i-1] are the events before it, {name}[..i] those with it")
            return None
        counted = kind in _MANY and call is not None and self.items[call].word == "COUNT"
        if not columns and not counted:
            self.fault("HQ218", f"{shown} is an event, not a value", span, "which column?", f"write {shown}.column")
            return None
        return _Reference(event, kind, offset, i, behind, columns, call)

    def part_of(self, name: str, first: int, close: int) -> tuple[_Kind, int] | None:
        """Returns the events that the brackets after `name` select, the tokens [first, close), and the offset
        backwards."""
        tokens = self.items[first:close]
        words = [t.word or t.text for t in tokens]
        own = [name if tokens and tokens[0].kind is TokenKind.QUOTED else name.upper(), ".", _LEN]
        match words:
            case []:
                return _Kind.ALL, 0
            case ["1"]:
                return _Kind.FIRST, 0
            case ["I"]:
                return _Kind.THIS, 0
            case ["I", "-", k] if k.isdecimal():
                return (_Kind.BACK, int(k)) if int(k) else (_Kind.THIS, 0)
            case [".", ".", "I"]:
                return _Kind.SO_FAR, 0
            case [".", ".", "I", "-", "1"]:
                return _Kind.BEFORE, 0
            case [*length] if length == own:
                return _Kind.LAST, 0
            case [*length, "-", k] if length == own and k.isdecimal():
                return _Kind.LAST, int(k)
            case _:
                return None

    def call(self, i: int) -> int | None:
        """Returns the token of the name of the aggregate whose argument contains token i."""
        for a in reversed(enclosing(self.tokens, i)):
            if self.items[a].word == "{" or self.items[a - 1].word == "SEQ":
                return None
            if self.tokens.words(a - 2, ")", "FILTER", "("):
                a = self.tokens.partner[a - 2]
            named = a and self.items[a].word == "(" and self.items[a - 1].kind is TokenKind.WORD
            # first and last are navigation here
            if named and self.items[a - 1].text.lower() in duck.aggregate_names() - {"first", "last"}:
                return a - 1
        return None

    # ---- text

    def sql(self, first: int, last: int, references: Sequence[_Reference], home: _Home | None) -> Text:
        """Returns the tokens [first, last) in SQL. home: where they are tested, None in RETURN."""
        text = Text(self.text)
        starts = {r.first: r for r in references}
        calls = {r.call for r in references if r.kind is _Kind.BEFORE and r.call is not None}
        ends = {r.first: r.last for r in references}
        self.composed(text, first, last, ends, lambda i: self.referred(text, starts[i], home), calls)
        return text

    def referred(self, text: Text, r: _Reference, home: _Home | None) -> None:
        span = self.span(r.first, r.last)
        before, behind = "", ""
        match r.kind:
            case _Kind.FIRST if home != (r.event, _Part.FIRST):
                before, behind = "FIRST(", ")"
            case _Kind.BACK | _Kind.LAST:
                before, behind = "LAST(", f", {r.offset})" if r.offset else ")"
            case _Kind.LENGTH:
                before, behind = "count(", ")"
            case _:
                pass
        text.own(before + self.items[r.first].text, span)
        if r.columns:
            text.written(self.items[r.columns[0] - 1].start, self.items[r.columns[-1]].end)
        else:
            text.own(".*", span)
        text.own(behind, span)

    # ---- PATTERN, DEFINE and RETURN

    def pattern(
        self, homes: dict[_Home, list[_Condition]]
    ) -> tuple[ast.PatternSyntax, tuple[ast.SubsetSyntax, ...], tuple[ast.DefineSyntax, ...]]:
        parts: list[ast.PatternSyntax] = []
        defines: list[ast.DefineSyntax] = []
        subsets: list[ast.SubsetSyntax] = []
        for i, event in enumerate(self.events):
            name, span = event.variable, event.span
            closing = homes.get((i, _Part.WHOLE), [])
            each = self.each(i, homes)
            if event.negated:
                parts.append(ast.PatternNegation(name, span))
            elif closing:
                # the condition that ends the match applies to its last event only: that one gets a variable of its own
                rest, last = (
                    ast.Identifier(f"{name.written}[{k}]", f"{name.written}[{k}]", True, name.span) for k in ("i", _LEN)
                )
                parts.append(ast.PatternQuantified(ast.PatternVariable(rest, span), 0, None, True, span))
                parts.append(ast.PatternVariable(last, span))
                subsets.append(ast.SubsetSyntax(name, (rest, last), span))
                if each or event.box:
                    defines.append(self.define(event, rest, each))
                name = last
                each = [*each, *(self.sql(c.first, c.last, c.references, (i, _Part.WHOLE)) for c in closing)]
            elif event.plus:
                parts.append(ast.PatternQuantified(ast.PatternVariable(name, span), 1, None, True, span))
            else:
                parts.append(ast.PatternVariable(name, span))
            if each or event.box:
                defines.append(self.define(event, name, each))
        whole = self.events[0].span.to(self.events[-1].span)
        pattern = parts[0] if len(parts) == 1 else ast.PatternSequence(tuple(parts), whole)
        return pattern, tuple(subsets), tuple(defines)

    def define(self, event: Event, name: ast.Identifier, parts: list[Text]) -> ast.DefineSyntax:
        box, span = event.type if event.box else None, event.span
        if not parts:
            return ast.DefineSyntax(name, None, span, box)
        text = parts[0] if len(parts) == 1 else Text(self.text).joined(parts, "AND", span)
        return ast.DefineSyntax(name, text.expression(span), span, box)

    def each(self, i: int, homes: dict[_Home, list[_Condition]]) -> list[Text]:
        """Returns the conditions on an event of variable i."""
        event = self.events[i]
        name, span = event.variable, event.span
        written = self.text[name.span.start : name.span.end]
        found: list[Text] = []
        typed = None if event.box else self.typed(written, event.type)
        found += [] if typed is None else [typed]
        first, later = (
            [self.sql(c.first, c.last, c.references, (i, part)) for c in homes.get((i, part), [])]
            for part in (_Part.FIRST, _Part.EACH)
        )
        if not event.plus:
            return found + first
        if first or later:
            ways: list[Text] = []
            for sign, conditions in (("=", first), (">", later)):
                number = Text(self.text)
                number.own(f"count({written}.*) {sign} 1", span)
                ways.append(Text(self.text).joined([number, *conditions], "AND", span))
            found.append(Text(self.text).joined(ways, "OR", span))
        return found

    def measures(self, keys: set[str]) -> list[ast.MeasureSyntax]:
        """Returns the values of RETURN. A bare column of [attr] is a column of every match anyway."""
        found: list[ast.MeasureSyntax] = []
        for returned in self.statement.returned or ():
            first, last = self.within(returned.expression)
            before = len(self.faults)
            references = list(self.references(first, last))
            for r in references:
                if r.kind in _GROWING:
                    self.growing(r, "the match is complete here")
                elif self.events[r.event].negated:
                    v = self.items[r.first].text
                    self.fault("HQ202", f"{v} is negated: no event of a match is {v}", self.span(r.first, r.last))
            if len(self.faults) > before or (not references and self.unknown(first, last)):
                continue
            name = returned.name
            if name is None:
                alone = len(references) == 1 and (references[0].first, references[0].last) == (first, last)
                column = self.items[references[0].columns[-1]] if alone and references[0].columns else None
                if column is None:
                    self.fault("HQ100", "a returned value needs a name", returned.expression,
                               hint="write AS and a name")
                    continue
                name = identifier_of(column)
                if name.written.lower() in keys and len(references[0].columns) == 1:
                    continue
            text = self.sql(first, last, references, None).expression(returned.expression)
            found.append(ast.MeasureSyntax(text, name, returned.expression))
        return found
