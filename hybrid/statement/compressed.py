"""All matches of a statement as a compressed graph, which can be counted, decoded in part, or read as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from hybrid.rows.answer import answer_of
from hybrid.rows.faults import not_supported
from hybrid.rows.outer import Outer, empty_answer
from hybrid.rows.words import counted
from query.errors import public
from query.language.ast import StatementKind
from query.plan.expression import MatchNumber, walk
from query.plan.plan import FactorPlan, QueryPlan

if TYPE_CHECKING:
    from hybrid.statement.relations import Relations
    from matching.batch import Matches
    from matching.engines.engine import EnginePlan
    from matching.match_graph import MatchGraph

HINT = "use hybrid.sql"


@public
class Compressed:
    """All matches of one pattern as a graph, and their rows on demand.

    The graph has a node for each variable that a row may be taken by: its memory depends on the rows, not on the
    matches."""

    __slots__ = ("_factor", "_graph", "_outer")

    def __init__(self, factor: FactorPlan, outer: Outer, graph: MatchGraph) -> None:
        self._factor = factor
        self._outer = outer
        self._graph = graph

    def count(self) -> int:
        """Returns the exact number of matches. Decodes none."""
        return self._graph.count

    def decode(self, limit: int | None = None) -> pa.Table:
        """Returns the rows of all matches, or of the first `limit`; decodes no others. Matches are ordered by their
        last event, then by the event before it, and so on back to the first."""
        parts = [self._rows([found]) for found in self._graph.decode(limit)]
        return pa.concat_tables(parts) if parts else self._rows([])

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields the same rows, in tables of some ten thousand matches. Decodes each table on demand."""
        return (self._rows([found]) for found in self._graph.decode())

    def nodes(self) -> pa.Table:
        """Returns the nodes of the graph, a row each, numbered from 0.

        Columns: variable, event_time, source, offset; child (the first node of the list of possible previous events;
        null: this event is the first of its matches), next (the rest of the list that begins with this node; null:
        none), start (the latest first event of the matches through the node: its time, for WITHIN n ROWS its
        position)."""
        return self._graph.nodes()

    def ends(self) -> pa.Table:
        """Returns the nodes that end matches, in their order: node, and since (the matches count whose start is not
        earlier; null: all)."""
        return self._graph.ends()

    def __repr__(self) -> str:
        return f"{counted(self.count(), 'match')} in {counted(self._graph.size, 'node')}"

    def _rows(self, found: list[Matches]) -> pa.Table:
        plan = self._factor.plan
        return self._outer.run([answer_of(plan, found) if found else empty_answer(self._factor)])


def compress(plan: QueryPlan, relations: Relations) -> Compressed:
    """Returns the matches of a statement whose SELECT only picks columns of one pattern. Raises QueryError HQ500 for
    other statements, and for patterns whose matches do not form a graph."""
    outer = Outer(plan)
    if plan.kind is not StatementKind.SELECT or not outer.picks:
        raise not_supported("a graph for a SELECT that does more than pick columns of one pattern", plan.text, HINT)
    (factor,) = plan.factors
    if factor.plan.trends is not None:
        raise not_supported("a graph of ONE ROW PER WINDOW", plan.text, HINT)
    if any(isinstance(e, MatchNumber) for m in factor.plan.measures for e in walk(m.expression)):
        raise not_supported("MATCH_NUMBER() of matches in a graph", plan.text, HINT)
    chosen = _chosen(factor, plan.text)
    from matching.match_graph import MatchGraph

    batches, _, _ = relations.factor(factor, again=False)
    return Compressed(factor, outer, MatchGraph(factor.plan, chosen, batches))


def _chosen(factor: FactorPlan, text: str) -> EnginePlan:
    from matching.engines.choose import choose_engine
    from matching.purpose import Purpose

    chosen = choose_engine(factor.plan, Purpose.GRAPH)
    if chosen.program is None:
        raise not_supported(f"a graph of matches of a pattern with {chosen.why}", text, HINT)
    if chosen.engine is None:
        why = "graphs need SELECTION SKIP TILL NEXT MATCH or SKIP TILL ANY MATCH, without negations"
        raise not_supported(chosen.why, text, f"{HINT}; {why}")
    return chosen
