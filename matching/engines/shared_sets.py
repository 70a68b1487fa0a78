"""The tables by which kernels count a workload by a sharing plan (matching.kernels.shared_columns.Sets)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from matching.batch import Int64Array
from matching.kernels.shared_columns import Sets
from matching.kernels.trend_records import NONE
from matching.program.trends import FLOAT, LEAST, WHOLE
from matching.workload.plan import SharingPlan
from matching.workload.program import WorkloadTable
from matching.workload.sharing_mode import Splitting
from matching.workload.template import START, Template, kinds_of, order_of

#: Kinds of sums, in the order of a record.
KINDS = (WHOLE, FLOAT, LEAST)
#: No set splits by itself.
NEVER = 1 << 40


def _label_kinds(template: Template) -> list[int]:
    """Returns the kind of the events of each condition."""
    kinds = kinds_of(template)
    of = {label: kinds[node] for path in template.queries for node, label in path.labels.items()}
    return [of[label] for label in range(len(template.conditions))]


@dataclass(slots=True)
class _Ops:
    """Lists of what comes to cells, as of Sets. readers: by cell of all sets, the ops whose gates end when it
    changes."""

    kind_begin: list[int]
    ops: list[tuple[int, int, int, bool, bool, bool, bool]]
    entry: list[int]
    entries: list[tuple[int, int, int, int, bool]]
    source: list[int]
    sources: list[tuple[int, int, int, bool]]
    inside: list[int]
    inside_cell: list[int]
    starts: list[bool]
    readers: list[list[int]]


@dataclass(frozen=True, slots=True)
class CountedSet:
    """A set as it is counted: by columns, or split from the start. pairs: each of its queries with each of its
    nodes."""

    pairs: tuple[tuple[int, int], ...]
    queries: tuple[int, ...]
    cells: int
    own: bool


def counted_sets(plan: SharingPlan) -> list[CountedSet]:
    """Returns the sets of a plan, and one for each query that shares some of its nodes with nobody."""
    found = [
        CountedSet(tuple((q, n) for q in s.queries for n in s.nodes), s.queries, len(s.nodes), False)
        for s in plan.sets
        if len(s.queries) > 1
    ]
    alone: dict[int, list[int]] = {}
    for s in plan.sets:
        if len(s.queries) == 1:
            alone.setdefault(s.queries[0], []).extend(s.nodes)
    return [*found, *(CountedSet(tuple((q, n) for n in nodes), (q,), len(nodes), True) for q, nodes in alone.items())]


def places_of(counted: Sequence[CountedSet]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Returns the set of each (query, node), and its indices of the query and of the cell in it."""
    return {pair: (g, *divmod(i, s.cells)) for g, s in enumerate(counted) for i, pair in enumerate(s.pairs)}


def _ops_of(
    table: WorkloadTable, counted: Sequence[CountedSet], where: Mapping[tuple[int, int], tuple[int, int, int]],
    first: Int64Array,
) -> _Ops:  # fmt: skip
    """Returns what comes to the cells of sets. where: see `places_of`; first: the first cell of each set."""
    template = table.template
    kinds = kinds_of(template)
    shared = [g for g, s in enumerate(counted) if not s.own]
    of = _Ops([0], [], [0], [], [0], [], [0], [], [False] * len(counted), [[] for _ in range(int(first[-1]))])
    for kind in range(max(kinds) + 1):
        order = order_of(template, kind)
        assert order is not None
        for node in order:
            alone = [q for q in range(len(template.queries)) if (q, node) in where and counted[where[q, node][0]].own]
            reading = [
                q for q in alone
                if any(n != START and where[q, n][0] != where[q, node][0] for n in template.queries[q].before(node))
            ]  # fmt: skip
            users_of = [(g, [q for q in counted[g].queries if where.get((q, node), (-1,))[0] == g]) for g in shared]
            rest = [q for q in alone if q not in reading]
            for g, users in [*users_of, (NONE, reading), (NONE, rest)]:
                if not users:
                    continue
                paths = [template.queries[q] for q in users]
                inside: list[int] = []
                if g >= 0:
                    common = frozenset.intersection(*(p.before(node) for p in paths))
                    inside = [n for n in common if where.get((users[0], n), (-1,))[0] == g]
                    inside.sort(key=lambda n: n != node)  # an event reads its own cell before it grows
                    if START in common:
                        of.starts[g] = True
                start = g >= 0 and START in common
                outside, foreign = set(), False
                for q, p in zip(users, paths, strict=True):
                    mine = where[q, node]
                    for n in sorted(p.before(node), key=lambda n: n != node):
                        if n == START:
                            of.sources.append((NONE, 0, 0, start))
                            continue
                        there, query, cell = where[q, n]
                        passed = there == g and n in inside
                        foreign |= there != mine[0]
                        of.sources.append((there, cell, query, passed))
                        if not passed:
                            outside.add(int(first[there]) + cell)
                    of.source.append(len(of.sources))
                    of.entries.append((p.labels[node], mine[0], mine[2], mine[1], START in p.before(node)))
                here = of.sources[of.source[-len(paths) - 1] :]
                gated = g >= 0 and not all(passed for _, _, _, passed in here)
                same = len({p.labels[node] for p in paths}) == 1
                of.ops.append((g, where[users[0], node][2], table.classes[node], same, start, gated, foreign))
                of.entry.append(len(of.entries))
                of.inside_cell += [where[users[0], n][2] for n in inside]
                of.inside.append(len(of.inside_cell))
                for at in outside if g >= 0 else ():
                    of.readers[at].append(len(of.ops) - 1)
        of.kind_begin.append(len(of.ops))
    return of


def sets_of(table: WorkloadTable, plan: SharingPlan, how: Splitting) -> Sets:
    """Returns the tables of a plan."""
    template = table.template
    counted = counted_sets(plan)
    where = places_of(counted)
    first = np.cumsum([0, *(s.cells for s in counted)]).astype(np.int64)
    kinds = kinds_of(template)
    of = _ops_of(table, counted, where, first)
    last, last_of = [0], []
    for q, p in enumerate(template.queries):
        last_of += [where[q, n] for n in sorted(p.last)]
        last.append(len(last_of))

    def numbers(values: Sequence[int]) -> Int64Array:
        return np.array(values, np.int64)

    def column(rows: Sequence[tuple[int, ...]], i: int, dtype: type = np.int64) -> np.ndarray:
        return np.array([row[i] for row in rows], dtype)

    maps: list[list[int]] = []
    for s in counted:
        every = sorted({i for q in s.queries for i in table.places[q]})
        by_kind = {kind: [i for i in every if table.sums[i].kind == kind] for kind in KINDS}
        for q in s.queries:
            wanted = [i for kind in KINDS for i in table.places[q] if table.sums[i].kind == kind]
            maps.append([by_kind[table.sums[i].kind].index(i) for i in wanted])
    limit = [len(s.queries) if how is Splitting.BY_SNAPSHOTS and not s.own else NEVER for s in counted]
    burst = [NONE] * len(counted)
    if how is Splitting.BY_BURSTS:
        burst = [NONE if s.own else kinds[s.pairs[0][1]] for s in counted]
    return Sets(
        numbers(_label_kinds(template)), numbers(of.kind_begin), column(of.ops, 0), column(of.ops, 1),
        column(of.ops, 2), column(of.ops, 3, np.bool_), column(of.ops, 4, np.bool_), column(of.ops, 5, np.bool_),
        column(of.ops, 6, np.bool_), numbers(of.entry), column(of.entries, 0), column(of.entries, 1),
        column(of.entries, 2), column(of.entries, 3), column(of.entries, 4, np.bool_), numbers(of.source),
        column(of.sources, 0), column(of.sources, 1), column(of.sources, 2), column(of.sources, 3, np.bool_),
        numbers(of.inside), numbers(of.inside_cell), np.cumsum([0, *map(len, of.readers)]).astype(np.int64),
        numbers([op for ops in of.readers for op in ops]), numbers([s.cells for s in counted]),
        numbers([len(s.queries) for s in counted]), first, np.array(of.starts, np.bool_),
        np.array([s.own for s in counted]), numbers(limit), numbers(burst),
        np.cumsum([0, *(len(s.queries) for s in counted)]).astype(np.int64)[:-1].copy(),
        numbers([q for s in counted for q in s.queries]), np.cumsum([0, *map(len, maps)]).astype(np.int64),
        numbers([i for one in maps for i in one]), numbers(last), column(last_of, 0), column(last_of, 2),
        column(last_of, 1), table.within_us, table.slide_us,
        any(k >= 0 for k in burst),
    )  # fmt: skip
