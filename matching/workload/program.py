"""A workload of trend queries to tables: its conditions and values as one program, and what is added up for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from matching.program.lanes import Lane
from matching.program.program import NoKernel, Program, assemble
from matching.program.trends import PANES_ALONE_FROM, Sum, TrendTable, trend_program
from matching.workload.plan import SharingPlan
from matching.workload.sharing_mode import Splitting
from matching.workload.template import Template, kinds_of, order_of, template
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import Expression
from query.plan.pattern import Alternation, Conjunction, Variable, negated
from query.plan.plan import AfterMatch, Define, Plan

#: Most groups of nodes that differ in what is added up of their events.
CLASSES_MAX = 62


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """The tables of a workload, for any sharing plan. tables: by query, its own. features: those of the program. sums:
    of all queries. places: by query, the indices of its own sums among them. classes: of each node of the template; the
    labels of sums are classes."""

    template: Template
    tables: tuple[TrendTable, ...]
    features: tuple[tuple[Expression, Lane], ...]
    sums: tuple[Sum, ...]
    places: tuple[tuple[int, ...], ...]
    classes: tuple[int, ...]

    @property
    def within_us(self) -> int:
        return self.tables[0].trends.within_us

    @property
    def slide_us(self) -> int:
        return self.tables[0].trends.slide_us

    def of_kind(self, kind: str) -> list[Sum]:
        """Returns the sums of a kind, in the order of their indices."""
        return [s for s in self.sums if s.kind == kind]


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload and how it is counted."""

    table: WorkloadTable
    plan: SharingPlan
    splitting: Splitting


def shareable(plan: Plan) -> str | None:
    """Returns the reason for which a query cannot be part of a workload, None if it can."""
    if plan.trends is None:
        return "it gives no row per window"
    if plan.selection is not Selection.SKIP_TILL_ANY:
        return f"its selection is {plan.selection.value}"
    if isinstance(plan.pattern, Conjunction):
        return "its pattern has AND"
    if negated(plan.pattern):
        return "its pattern has a negation"
    try:
        _, table = trend_program(plan)
    except NoKernel as construct:
        return f"{construct} is enumerated"
    if table.pairs:
        return "a condition links two events"
    if table.pane_windows >= PANES_ALONE_FROM:
        return "its windows overlap so much that panes cost less"
    own = template({"": plan})
    if any(order_of(own, kind) is None for kind in set(kinds_of(own))):
        return "the same event may fulfil several variables of a loop"
    return None


def workload_key(plan: Plan) -> tuple[object, ...]:
    """Queries of one stream whose keys are equal may be in one workload."""
    assert plan.trends is not None
    trends = plan.trends
    return (plan.inputs, plan.partition_by, plan.order_by, trends.within_us, trends.slide_us, trends.group_by)


def workload_program(plans: Mapping[str, Plan]) -> tuple[Plan, Program, WorkloadTable]:
    """Returns the plan and the program whose labels are the conditions of a workload of shareable queries with one key,
    and its tables. Raises NoKernel if they have too many conditions or sums."""
    whole = template(plans)
    if any(order_of(whole, kind) is None for kind in set(kinds_of(whole))):
        raise NoKernel("a loop of variables that the same event may fulfil")
    first = next(iter(plans.values()))
    names = tuple(f"c{i}" for i in range(len(whole.conditions)))
    one = Variable(names[0]) if len(names) == 1 else Alternation(tuple(map(Variable, names)))
    each = replace(
        first, pattern=one, trends=None, rows=RowsPerMatch.ONE, measures=(), within=None, subsets=(),
        selection=Selection.SKIP_TILL_ANY, after=AfterMatch(AfterMatchKind.NO_SKIP),
        defines=tuple(map(Define, names, whole.conditions)),
    )  # fmt: skip
    program = assemble(each)
    own = [trend_program(plan)[1] for plan in plans.values()]
    features: list[tuple[Expression, Lane]] = []
    columns: list[_Column] = []
    places: list[list[int]] = []
    for path, table in zip(whole.queries, own, strict=True):
        mine = []
        for s in table.sums:
            value = -1
            if s.value >= 0:
                if table.features[s.value] not in features:
                    features.append(table.features[s.value])
                value = features.index(table.features[s.value])
            names_of = {table.labels[v] for v in s.labels}
            nodes = frozenset(n for n, variable in path.variables.items() if variable in names_of)
            mine.append(_place(columns, replace(s, value=value, labels=()), nodes, frozenset(path.labels)))
        places.append(mine)
    members = [tuple(n in c.nodes for c in columns) for n in range(len(whole.nodes))]
    groups = list(dict.fromkeys(members))
    if len(groups) > CLASSES_MAX:
        raise NoKernel(f"a set of aggregates over more than {CLASSES_MAX} groups of variables")
    sums = tuple(replace(c.sum, labels=tuple(g for g, of in enumerate(groups) if of[i])) for i, c in enumerate(columns))
    classes = tuple(groups.index(of) for of in members)
    found = WorkloadTable(whole, tuple(own), tuple(features), sums, tuple(map(tuple, places)), classes)
    return each, replace(program, features=tuple(features), within_us=found.within_us), found


@dataclass(slots=True)
class _Column:
    """A sum without labels, over the events of some nodes. users: the nodes of each query that has it, and those of
    these that it means."""

    sum: Sum
    nodes: frozenset[int]
    users: list[tuple[frozenset[int], frozenset[int]]]


def _place(columns: list[_Column], s: Sum, nodes: frozenset[int], of_query: frozenset[int]) -> int:
    """Returns the index of the column of a sum. Two queries share one if they agree on the nodes that both have."""
    for i, c in enumerate(columns):
        if c.sum == s and all(nodes & theirs == meant & of_query for theirs, meant in c.users):
            c.nodes |= nodes
            c.users.append((of_query, nodes))
            return i
    columns.append(_Column(s, nodes, [(of_query, nodes)]))
    return len(columns) - 1
