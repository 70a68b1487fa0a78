"""Automaton to program: flat tables and bytecode that one interpreted kernel runs for every query.

A DEFINE condition is split at its top-level ANDs: what depends on the candidate row only is computed for whole batches
beforehand and becomes one bit of the row's mask; the rest is bytecode over the run's registers (the V vector of [SASE]
section 5.2.2: only the values that later conditions need, never the events).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from matching.program.conditions import AskedFunction, ConditionCode, JoinedTexts, Walked, only_by_reference
from matching.program.lanes import Lane, NoLane, Unit
from matching.program.neighbours import by_neighbours, is_far, rows_together
from matching.program.opcodes import OPCODES, OpCode
from matching.program.refused import PASSING, NoKernel, automaton_to_run, negated_ends, refuse
from matching.program.registers import REGISTERS_MAX, Assign, Register, RegisterKind
from query.automaton.compile import is_ambiguous
from query.automaton.nfa import Automaton, Edge, Label
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Call,
    Constant,
    Expression,
    Navigation,
    conjuncts,
    is_row_local,
    show,
    show_interval,
    walk,
)
from query.plan.pattern import anchors, negated
from query.plan.plan import Plan

#: Most labels of one pattern: bits of a row's mask.
VARIABLES_MAX = 62
#: A run keeps two bits for each in one number.
GAPS_MAX = 30


class Merge(Enum):
    """When two runs of a partition are one run."""

    STATE = "equal state"
    START = "equal state and start"
    PATH = "equal state and rows"


class Mode(IntEnum):
    """The matches that runs look for: one after the other, one per start, or all. If AFTER MATCH skips within a match,
    or time or absence decides, one per start is found and `Program.skip` chooses among them in the order of
    starts."""

    PAST_LAST_ROW = 0
    TO_NEXT_ROW = 1
    ALL = 2


class Ignore(IntEnum):
    """The rows of its partition that a run may pass over ([SASE] section 4.2, step 3)."""

    NONE = 0
    NOT_WAITED_FOR = 1  # SKIP TILL NEXT MATCH
    ANY = 2  # SKIP TILL ANY MATCH


class Skip(IntEnum):
    """The row where the scan goes on after a match, of those found one per start: earlier starts are passed over."""

    NEXT_ROW = 0
    PAST_LAST_ROW = 1
    TO_FIRST = 2
    TO_LAST = 3


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The rows of the partition that expressions read around a row. before: how many before it. after: how many after
    it conditions read: a row is matched when they are there. ahead: how many after it measures read: a match comes out
    with them."""

    before: int
    after: int
    ahead: int


@dataclass(frozen=True, slots=True)
class SkipTo:
    """AFTER MATCH. In Mode.TO_NEXT_ROW it chooses among the matches found. row: where the next match may begin; counts:
    per label, True if SKIP TO FIRST or LAST looks for its rows."""

    row: Skip = Skip.NEXT_ROW
    counts: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Extras:
    """The rows beside matches. unmatched: WITH UNMATCHED ROWS; timeouts: TIMEOUT ROWS; waiting: per state, the value of
    the column `timeout` for a partial match there."""

    unmatched: bool = False
    timeouts: bool = False
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextCodes:
    """values: the VARCHAR values that have the codes 0, 1, ... from the start, for the constants of the bytecode.
    of_label: the code of the name of each label's variable; -1: never read."""

    values: tuple[str, ...] = ()
    of_label: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Absences:
    """The negations: labels on no edge, whose conditions are row-local.

    before, behind: those before the first row of a match, and after its last one. With any, a match may turn out to be
    none, so nothing is left out after an accepting state's end: where no row is passed over, `lesser` is per state the
    one with its edges that are less preferred than ending (-1: none), on no edge itself.
    gaps: labels whose conditions no row passed over may meet; of_edge: per edge the one of them for the rows since the
    last row bound (-1: none), if rows may be passed over."""

    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    lesser: tuple[int, ...] = ()
    gaps: tuple[tuple[int, ...], ...] = ()
    of_edge: tuple[int, ...] = ()

    def of(self, edge: int) -> tuple[int, ...]:
        """Returns the labels that no row before that of an edge may meet."""
        return self.gaps[self.of_edge[edge]] if self.of_edge and self.of_edge[edge] >= 0 else ()


@dataclass(frozen=True, slots=True)
class Program:
    """A plan as engines run it.

    Edges of state s are [edge_start[s], edge_start[s + 1]) of edge_variable (index into `labels`) and edge_target, in
    order of preference; in the modes with one match per start those less preferred than ending are left out. accept:
    per state whether a match may end there.
    labels: several of a variable where they differ, and only if an edge has them, or they are absent. Where one has to
    be of the last row of its partition, the row after it is read (`reach.after` is 1 at least). local: per label the
    row-local part of its condition (TRUE if none). code: per label the instructions (opcode, a, b) of the rest, empty
    if none; `constants` are its operands. features: row-local expressions that the code and the registers read, each
    with its lane.
    ignore: which rows a run may pass over. If any: edge_waits, per edge whether a row that meets its condition is none
    of these under SKIP TILL NEXT MATCH.
    carries: the registers that come out with a match instead of its rows (matching.program.carried); None: its rows do.
    asked: the functions between rows that DuckDB computes. walks: the values that are found by walking over the rows of
    a run. joined: the constants that joined texts are compared with. numbered: `within_us` is a difference of numbers
    of rows.
    """

    labels: tuple[Label, ...]
    edge_start: tuple[int, ...]
    edge_variable: tuple[int, ...]
    edge_target: tuple[int, ...]
    accept: tuple[bool, ...]
    local: tuple[Expression, ...]
    code: tuple[tuple[tuple[int, int, int], ...], ...]
    constants: tuple[int | float, ...]
    features: tuple[tuple[Expression, Lane], ...]
    registers: tuple[Register, ...]
    texts: TextCodes
    merge: Merge
    ambiguous: bool
    mode: Mode
    strict: bool
    within_us: int | None
    within_rows: int | None
    reach: RowsRead
    skip: SkipTo
    extras: Extras
    absence: Absences
    ignore: Ignore = Ignore.NONE
    edge_waits: tuple[bool, ...] = ()
    carries: tuple[int, ...] | None = None
    asked: tuple[AskedFunction, ...] = ()
    walks: tuple[Walked, ...] = ()
    joined: tuple[JoinedTexts, ...] = ()
    numbered: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the labels."""
        return tuple(label.variable for label in self.labels)

    @property
    def first_row(self) -> tuple[bool, ...]:
        """Per label, whether its row has to be the first of its partition."""
        return tuple(label.first_row for label in self.labels)

    @property
    def anchored(self) -> bool:
        """True if a row has to be the first or last one of its partition somewhere."""
        return any(label.first_row or label.last_row for label in self.labels)

    @property
    def absent(self) -> frozenset[int]:
        """The labels that no row of a match has."""
        absence = self.absence
        return frozenset((*absence.before, *absence.behind, *(v for gap in absence.gaps for v in gap)))

    @property
    def number(self) -> int:
        """Returns the register with MATCH_NUMBER(); -1: there is none."""
        return next((i for i, r in enumerate(self.registers) if r.kind is RegisterKind.NUMBER), -1)

    @property
    def ranks_texts(self) -> bool:
        """True if a condition asks for the order of texts."""
        asked = any(op == OpCode.RANK for code in self.code for op, _, _ in code)
        return asked or any(r.kind.ranks_texts for r in self.registers)

    @property
    def specialises(self) -> bool:
        """True if a kernel can be written out for it, which has no place for what changes, for MATCH_NUMBER(), and for
        negations whose condition reads the match."""
        changes = self.ranks_texts or self.asked or self.kept or self.joined
        return not (changes or self.number >= 0 or any(self.code[v] for v in self.absent))

    @property
    def kept(self) -> tuple[int, ...]:
        """Returns the features whose values are kept of each row of a run, which walks over its rows read."""
        new = {r.feature for r in self.registers if r.kind.asks_for_new}
        inputs = {f for function in self.asked if function.rows is not None for f in function.rows.features}
        return tuple(sorted(new | inputs | {walked.feature for walked in self.walks} - {-1}))

    def walked_of(self, variable: str) -> set[int]:
        """Returns the features that walks read of a row that is bound to a variable."""
        walks = [i for i, walk in enumerate(self.walks) if not walk.variables or variable in walk.variables]
        lists = [function.rows.features for function in self.asked if function.rows and function.rows.walk in walks]
        return {self.walks[i].feature for i in walks}.union(*lists) - {-1}

    @property
    def folds(self) -> bool:
        """True if a run is all rows of its partition from its first one on: a node of the match buffer then stands for
        the rows after it, too, as long as they are bound to the same label."""
        chooses = self.mode is Mode.TO_NEXT_ROW and self.skip.row is not Skip.NEXT_ROW
        beside = self.extras.unmatched or self.extras.timeouts or self.absent or self.kept or self.walks
        return not (self.ignore or self.strict or self.ambiguous or self.carries is not None or chooses or beside)

    @property
    def tested(self) -> tuple[int, ...]:
        """Labels whose row-local condition, anchors included, is not just TRUE: each needs a bit of the mask."""
        return tuple(
            v for v, (label, c) in enumerate(zip(self.labels, self.local, strict=True))
            if label.first_row or label.last_row or not (isinstance(c, Constant) and c.value is True)
        )  # fmt: skip

    @property
    def tests(self) -> tuple[tuple[int, ...], ...]:
        """The tested labels, those with the same condition and the same anchors together."""
        together: dict[tuple[Expression, bool, bool], list[int]] = {}
        for v in self.tested:
            label = self.labels[v]
            together.setdefault((self.local[v], label.first_row, label.last_row), []).append(v)
        return tuple(map(tuple, together.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The labels as they are printed."""
        return tuple(label.variable if label == Label(label.variable) else str(label) for label in self.labels)

    def __str__(self) -> str:
        names = self.names
        lines = [
            f"mode        {self.mode.name.lower().replace('_', ' ')}, {'strict' if self.strict else 'partition'}",
            f"runs merge  {self.merge.value}",
            f"reads       {self.reach.before} rows before, {self.reach.after} after" + (
                f", {self.reach.ahead} after for measures" if self.reach.ahead else ""
            ),
        ]
        if self.within_us is not None:
            of_rows = f"{self.within_us + 1} rows, by their numbers"
            lines.append(f"within      {of_rows if self.numbered else show_interval(self.within_us)}")
        if self.within_rows is not None:
            lines.append(f"within      {self.within_rows} rows")
        if self.skip.row in (Skip.TO_FIRST, Skip.TO_LAST):
            counted = zip(self.variables, self.skip.counts, strict=True)
            to = "|".join(dict.fromkeys(v for v, counts in counted if counts))
            lines.append(f"skip        {self.skip.row.name.lower().replace('_', ' ')} {to or '(no row)'}")
        for asked, what in ((self.extras.unmatched, "unmatched rows"), (self.extras.timeouts, "timeout rows")):
            if asked:
                lines.append(f"gives       {what}")
        for where, absent in (("before", self.absence.before), ("behind", self.absence.behind)):
            if absent:
                lines.append(f"absent      {where} a match: {', '.join(names[v] for v in absent)}")
        if self.ignore is not Ignore.NONE:
            lines.append(f"passes over {self.ignore.name.lower().replace('_', ' ')}")
        for i, (v, condition) in enumerate(zip(names, self.local, strict=True)):
            lines.append(f"{'mask' if i == 0 else '':<12}bit {i} {v}: {show(condition)}")
        for i, (feature, lane) in enumerate(self.features):
            lines.append(f"{'features' if i == 0 else '':<12}f{i} {_lane(lane)} = {show(feature)}")
        for i, r in enumerate(self.registers):
            if r.kind is RegisterKind.BEFORE and not r.depth:
                lines.append(f"{'':<12}r{i} {_lane(r.lane)} = r{r.link} before the last row")
                continue
            moves = isinstance(r.kind.does, Assign) and not r.kind.counts
            reads = f" f{r.feature}" if r.feature >= 0 else " classifier" if moves else ""
            depth = f" {r.depth}" if moves else ""
            over = "|".join(r.variables) or "all"
            kind = "last" if r.kind is RegisterKind.BEFORE else r.kind.name.lower()
            lines.append(f"{'registers' if i == 0 else '':<12}r{i} {_lane(r.lane)} = {kind}{depth}{reads} of {over}")
        if self.carries is not None:
            lines.append(" ".join(["carries    ", "first row, last row", *(f"r{r}" for r in self.carries)]))
        for i, function in enumerate(self.asked):
            lines.append(f"{'asked' if i == 0 else '':<12}{i} {show(function.expression)}")
        for i, walked in enumerate(self.walks):
            over = "|".join(walked.variables) or "all"
            lines.append(f"{'walks' if i == 0 else '':<12}{i} {walked} of {over}")
        if self.texts.values:
            lines.append(f"texts       {', '.join(f'{i} {text!r}' for i, text in enumerate(self.texts.values))}")
        first = True
        for v, code in zip(names, self.code, strict=True):
            for j, (op, a, _) in enumerate(code):
                step = f"{j:>3} {OPCODES[op].name.lower()}{self._operand(OPCODES[op], a)}"
                lines.append(f"{'code' if first else '':<12}{v if j == 0 else '':<4}{step}")
                first = False
        for s in range(len(self.accept)):
            edges = range(self.edge_start[s], self.edge_start[s + 1])
            shown = ", ".join(self._edge(e) for e in edges)
            tail = "accept" if self.accept[s] else ""
            lesser = self.absence.lesser[s] if self.absence.lesser else -1
            then = f"then {lesser}" if lesser >= 0 else ""
            lines.append(f"{'states' if s == 0 else '':<12}{s}: {', '.join(x for x in (shown, tail, then) if x)}")
        return "\n".join(lines)

    def _edge(self, edge: int) -> str:
        names = self.names
        shown = f"{names[self.edge_variable[edge]]} -> {self.edge_target[edge]}"
        if self.ignore is Ignore.NOT_WAITED_FOR and not self.edge_waits[edge]:
            shown += " or passed over"
        if gap := self.absence.of(edge):
            shown += " after no " + ", ".join(names[v] for v in gap)
        return shown

    def _operand(self, op: OpCode, a: int) -> str:
        match op.does.operands:
            case ("feature",):
                return f" f{a}"
            case ("register",):
                return f" r{a}"
            case ("value" | "factor" | "which" | "divisor",) | ("asked", "count") | ("walk",):
                return f" {self.constants[a]}"
            case ("target",):
                return f" {a}"
            case _:
                return ""


def _lane(lane: Lane) -> str:
    if lane.unit is Unit.CODE:
        return "code"
    return "float64" if lane.floating else ("int64" if not lane.scale else f"int64/1e{lane.scale}")


def _and(parts: list[Expression]) -> Expression:
    if not parts:
        return TRUE
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")


def _reach(expressions: list[Expression]) -> tuple[int, int]:
    """Returns the numbers of rows before and after a row that any physical navigation reads."""
    offsets = [e.physical_offset for x in expressions for e in walk(x) if isinstance(e, Navigation)]
    return max([0, *(-o for o in offsets)]), max([0, *offsets])


_IGNORE = {Selection.SKIP_TILL_NEXT: Ignore.NOT_WAITED_FOR, Selection.SKIP_TILL_ANY: Ignore.ANY}

_AFTER = {
    AfterMatchKind.PAST_LAST_ROW: (Mode.PAST_LAST_ROW, Skip.PAST_LAST_ROW),
    AfterMatchKind.TO_NEXT_ROW: (Mode.TO_NEXT_ROW, Skip.NEXT_ROW),
    AfterMatchKind.TO_FIRST: (Mode.TO_NEXT_ROW, Skip.TO_FIRST),
    AfterMatchKind.TO_LAST: (Mode.TO_NEXT_ROW, Skip.TO_LAST),
    AfterMatchKind.NO_SKIP: (Mode.ALL, Skip.NEXT_ROW),
}


def _edges(
    run: Automaton, whole: bool, waits: bool
) -> tuple[list[tuple[Edge[Label], ...]], list[bool], list[int]]:
    """Returns, per state, its edges and whether a match may end there; and `Absences.lesser`. whole: with the edges
    that are less preferred than ending; waits: a match may turn out to be none."""
    cut = [s.edges if s.accept_at is None or whole else s.edges[: s.accept_at] for s in run.states]
    accept = [s.accept_at is not None for s in run.states]
    if whole or not waits:
        return cut, accept, []
    lesser = [-1] * len(cut)
    for index, state in enumerate(run.states):
        # nothing forbids an empty match, so nothing is read after one
        if index and state.accept_at is not None and state.accept_at < len(state.edges):
            lesser[index] = len(cut)
            cut.append(state.edges[state.accept_at :])
    more = len(cut) - len(accept)
    return cut, accept + [False] * more, lesser + [-1] * more


def _conditions(
    plan: Plan, variables: tuple[str, ...], conditions: ConditionCode
) -> tuple[dict[str, Expression], dict[str, tuple[tuple[int, int, int], ...]]]:
    """Returns, by variable, the row-local part of its condition and the code of the rest. Raises NoKernel."""
    local: dict[str, Expression] = {}
    codes: dict[str, tuple[tuple[int, int, int], ...]] = {}
    contiguous = plan.selection not in PASSING
    absent = negated(plan.pattern)
    together = rows_together(plan.pattern) if contiguous else ()
    for variable in variables:
        condition = plan.condition(variable)
        if contiguous and variable not in absent:
            condition = by_neighbours(condition, together)
        parts = conjuncts(condition)
        local[variable] = _and([c for c in parts if is_row_local(c)])
        rest = [c for c in parts if not is_row_local(c)]
        if any(map(is_far, rest)):
            raise NoKernel(f"a pattern that keeps more than {REGISTERS_MAX} values per run")
        try:
            codes[variable] = conditions.code(_and(rest)) if rest else ()
        except NoLane as unknown:
            why = only_by_reference(condition) or unknown
            raise NoKernel(f"DEFINE {variable}: {why}", why.instead) from None
    if len(conditions.registers) > REGISTERS_MAX:
        raise NoKernel(f"a pattern that keeps more than {REGISTERS_MAX} values per run")
    return local, codes


def assemble(plan: Plan, wide: bool = False) -> Program:
    """Returns the program of a plan. Raises NoKernel, naming the construct, if only the reference can run it. wide:
    sums of conditions may be beyond 64 bits.

    Cost: linear in the automaton and the conditions. Long: each field of the program is computed once, and from others.
    """
    if plan.boxes:
        raise NoKernel("a pattern with boxes")
    mode, skip = _AFTER[plan.after.kind]
    # where all rows are of one partition, a row of another cannot come between
    strict = plan.selection is Selection.STRICT and bool(plan.partition_by)
    refuse(plan, mode is Mode.ALL, strict)
    run = automaton_to_run(plan, mode is Mode.ALL)
    absence = negated_ends(plan.pattern)
    ignore = _IGNORE.get(plan.selection, Ignore.NONE)
    if (absence.before or absence.behind) and ignore is Ignore.NONE:
        mode = Mode.TO_NEXT_ROW  # one per start, for a match that is none cuts nothing

    whole = mode is Mode.ALL or ignore is not Ignore.NONE
    cut, accept, lesser = _edges(run, whole, bool(absence.before or absence.behind))
    occur = {e.label for edges in cut for e in edges}
    labels = [label for d in plan.defines for label in sorted(occur, key=_plain_first) if label.variable == d.variable]
    absent = tuple(dict.fromkeys((*absence.before, *absence.behind)))
    gaps = list(dict.fromkeys(e.negated for edges in cut for e in edges if e.negated)) if ignore else []
    absent = tuple(dict.fromkeys((*absent, *(name for gap in gaps for name in gap))))
    taken = len(labels)
    labels += [Label(name) for name in absent]
    if len(labels) > VARIABLES_MAX:
        raise NoKernel(f"a pattern of more than {VARIABLES_MAX} variables")

    conditions = ConditionCode(plan.settings, wide, plan.narrow, waiting=ignore is Ignore.NOT_WAITED_FOR)
    local, codes = _conditions(plan, tuple(dict.fromkeys(label.variable for label in labels)), conditions)
    label_text = (-1,) * len(labels)
    if any(r.kind.reads_row and r.feature < 0 for r in conditions.registers):
        label_text = tuple(conditions.text(label.variable) for label in labels)

    # of all conditions: that of a variable no match can reach too, for `after` says when a row is matched
    before, after = _reach([*(d.condition for d in plan.defines), *conditions.features])
    if False in anchors(plan.pattern):
        after = max(after, 1)  # whether a row is the last one shows when the next one comes
    shown_before, ahead = _reach([m.expression for m in plan.measures])
    if strict and after:
        raise NoKernel("NEXT under SELECTION STRICT")

    _refuse_codes(plan, cut, codes, conditions.registers, mode, ignore)
    if len(gaps) > GAPS_MAX:
        raise NoKernel(f"a pattern with negations at more than {GAPS_MAX} places")

    edge_start, edge_variable, edge_target = [0], [], []
    for edges in cut:
        edge_variable += [labels.index(e.label) for e in edges]
        edge_target += [e.target for e in edges]
        edge_start.append(len(edge_target))
    if any(codes.values()) or whole:
        merge = Merge.PATH
    elif plan.within is not None or mode is Mode.TO_NEXT_ROW:
        merge = Merge.START
    else:
        merge = Merge.STATE
    waiting = [", ".join(dict.fromkeys(e.variable for e in s.edges)) for s in run.states]
    waiting += [""] * (len(cut) - len(waiting))
    return Program(
        labels=tuple(labels),
        edge_start=tuple(edge_start),
        edge_variable=tuple(edge_variable),
        edge_target=tuple(edge_target),
        accept=tuple(accept),
        local=tuple(local[label.variable] for label in labels),
        code=tuple(codes[label.variable] for label in labels),
        constants=tuple(conditions.values),
        features=tuple(zip(conditions.features, conditions.lanes, strict=True)),
        registers=tuple(conditions.registers),
        texts=TextCodes(tuple(conditions.texts), label_text),
        merge=merge,
        ambiguous=merge is Merge.PATH and is_ambiguous(run),
        mode=mode,
        strict=strict,
        within_us=plan.within.interval_us if plan.within else None,
        within_rows=plan.within.rows if plan.within else None,
        reach=RowsRead(max(before, shown_before), after, ahead),
        skip=SkipTo(skip, tuple(label.variable in plan.after.variables for label in labels)),
        extras=Extras(
            plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED,
            plan.timeout_rows,
            tuple(f"waiting for {names}" if names else "" for names in waiting),
        ),
        absence=Absences(
            tuple(taken + absent.index(name) for name in absence.before),
            tuple(taken + absent.index(name) for name in absence.behind),
            tuple(lesser),
            tuple(tuple(taken + absent.index(name) for name in gap) for gap in gaps),
            tuple(gaps.index(e.negated) if e.negated else -1 for edges in cut for e in edges) if ignore else (),
        ),
        ignore=ignore,
        edge_waits=tuple(e.waits for edges in cut for e in edges) if ignore else (),
        asked=conditions.asked_of_rows(),
        walks=tuple(conditions.walks),
        joined=tuple(conditions.joined),
    )


def _refuse_codes(
    plan: Plan, edges: list[tuple[Edge[Label], ...]], codes: dict[str, tuple[tuple[int, int, int], ...]],
    registers: list[Register], mode: Mode, ignore: Ignore,
) -> None:  # fmt: skip
    """Raises NoKernel for conditions on values of the match that engines do not have when they ask."""
    if any(r.kind is RegisterKind.NUMBER for r in registers):
        if mode is not Mode.PAST_LAST_ROW or ignore:
            raise NoKernel(f"MATCH_NUMBER() in DEFINE with AFTER MATCH {plan.after}")
        if plan.timeout_rows:
            raise NoKernel("MATCH_NUMBER() in DEFINE with TIMEOUT ROWS")
    absence = negated_ends(plan.pattern)
    for name in (name for name in codes if name in negated(plan.pattern)):
        new = any(op == OpCode.REGISTER and registers[a].kind.asks_for_new for op, a, _ in codes[name])
        if new or any(op == OpCode.WALK for op, _, _ in codes[name]):  # they are kept of rows that are taken
            raise NoKernel(f"the condition of ~{name} on different values or quantiles of the match")
    rows = plan.within is not None and plan.within.rows is not None
    for name in absence.behind:
        if codes[name] and ignore and (mode is not Mode.ALL or rows):
            how = "WITHIN rows" if rows else f"AFTER MATCH {plan.after}"
            raise NoKernel(f"the condition of ~{name} on the match, under {plan.selection.value} and {how},")
    if not ignore:
        return
    reached = _reached(edges)
    for edge in (e for of_state in edges for e in of_state):
        later = {edge.label.variable, *reached[edge.target]}
        for name in edge.negated:
            for r in (registers[a] for op, a, _ in codes[name] if op == OpCode.REGISTER):
                first = r.kind is RegisterKind.FIRST and not r.variables and not r.depth
                if not first and (not r.variables or later.intersection(r.variables)):
                    raise NoKernel(f"the condition of ~{name} on rows that a match may take after it")


def _reached(edges: list[tuple[Edge[Label], ...]]) -> list[set[str]]:
    """Returns, per state, the variables that a run in it may still take."""
    found = [{e.label.variable for e in of_state} for of_state in edges]
    changed = True
    while changed:
        changed = False
        for state, of_state in enumerate(edges):
            more = set().union(*(found[e.target] for e in of_state)) - found[state]
            found[state] |= more
            changed = changed or bool(more)
    return found


def _plain_first(label: Label) -> tuple[bool, bool, bool]:
    return not label.shown, label.first_row, label.last_row
