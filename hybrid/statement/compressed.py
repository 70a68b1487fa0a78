"""All matches of a statement as a graph: counted without being decoded, decoded in part, or read as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from hybrid.rows.answer import answer_of
from hybrid.rows.faults import not_supported
from hybrid.rows.outer import Outer, empty_answer
from query.language.ast import StatementKind
from query.plan.expression import MatchNumber, walk
from query.plan.plan import FactorPlan, QueryPlan

if TYPE_CHECKING:
    from hybrid.statement.relations import Relations
    from matching.batch import Matches
    from matching.engines.engine import EnginePlan
    from matching.match_graph import MatchGraph

HINT = "hybrid.sql answers it"


class Compressed:
    """All matches of one pattern, as the graph they were found in, and the rows it stands for."""

    __slots__ = ("_factor", "_graph", "_outer")

    def __init__(self, factor: FactorPlan, outer: Outer, graph: MatchGraph) -> None:
        self._factor = factor
        self._outer = outer
        self._graph = graph

    def count(self) -> int:
        """How many matches there are, exactly. None is decoded."""
        return self._graph.count

    def decode(self, limit: int | None = None) -> pa.Table:
        """The rows of the statement: of all matches, or of so many; no more are decoded. Matches come in order of their
        last events; of those with one last event, the ones whose event before it is older come first, and so on back
        to the first."""
        parts = [self._rows([found]) for found in self._graph.decode(limit)]
        return pa.concat_tables(parts) if parts else self._rows([])

    def __iter__(self) -> Iterator[pa.Table]:
        """The same rows, in tables of some ten thousand matches, each decoded when it is asked for."""
        return (self._rows([found]) for found in self._graph.decode())

    def nodes(self) -> pa.Table:
        """The nodes of the graph, numbered from 0: variable, event_time, source, offset, child, next, start; see
        matching.match_graph.MatchGraph.nodes."""
        return self._graph.nodes()

    def ends(self) -> pa.Table:
        """Where matches end: node, since; see matching.match_graph.MatchGraph.ends."""
        return self._graph.ends()

    def __repr__(self) -> str:
        return f"{self.count():,} matches in {self._graph.size:,} nodes"

    def _rows(self, found: list[Matches]) -> pa.Table:
        plan = self._factor.plan
        return self._outer.run([answer_of(plan, found) if found else empty_answer(self._factor)])


def compress(plan: QueryPlan, relations: Relations) -> Compressed:
    """The matches of a statement with one pattern, of which the SELECT picks columns. Raises QueryError HQ500 for any
    other, and for a pattern whose matches are no graph."""
    outer = Outer(plan)
    if plan.kind is not StatementKind.SELECT or not outer.picks:
        raise not_supported("a graph of anything but the columns of one pattern", plan.text, HINT)
    (factor,) = plan.factors
    if any(isinstance(e, MatchNumber) for m in factor.plan.measures for e in walk(m.expression)):
        raise not_supported("MATCH_NUMBER() of matches in a graph", plan.text, HINT)
    chosen = _chosen(factor, plan.text)
    from matching.match_graph import MatchGraph

    batches, _, _ = relations.factor(factor)
    return Compressed(factor, outer, MatchGraph(factor.plan, chosen, batches))


def _chosen(factor: FactorPlan, text: str) -> EnginePlan:
    from matching.engines.choose import choose_engine
    from matching.engines.engine import Purpose

    chosen = choose_engine(factor.plan, Purpose.GRAPH)
    if chosen.program is None:
        raise not_supported(f"a graph of matches of a pattern with {chosen.why}", text, HINT)
    if chosen.engine is None:
        why = "all matches are a graph under SELECTION SKIP TILL NEXT MATCH and SKIP TILL ANY MATCH without negations"
        raise not_supported(chosen.why, text, f"{HINT}; {why}")
    return chosen
