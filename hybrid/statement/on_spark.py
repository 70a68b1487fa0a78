"""Patterns over streams that Spark searches for in their archives: which may go there, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hybrid.rows.faults import not_supported
from hybrid.statement.stream_input import StreamInput
from matching.batch import Matches
from query.errors import DataError
from query.plan.plan import FactorPlan, Plan, QueryPlan

if TYPE_CHECKING:
    from archive.spark.search import Archived

#: What db.sql may be asked to search with.
ENGINES = ("embedded", "spark")
_HINT = "leave engine out, and this process searches for it"


@dataclass(frozen=True, slots=True)
class OnSpark:
    """The archives of a statement's streams as Spark searches them. where: an address of Spark, a session, or None for
    the one that runs or else local[*]; it is started by the first search."""

    where: Any = None

    def refuse(
        self, plan: QueryPlan, streams_in: Callable[[str], list[str]],
        searched_by_spark: Callable[[FactorPlan], StreamInput | None],
    ) -> None:  # fmt: skip
        """Raises QueryError HQ500 for a statement of which Spark could not do what it is asked for: search all that its
        patterns read of streams. streams_in: the streams that an input names; searched_by_spark: the one that a
        pattern factor reads, if Spark can search for it."""
        from archive.spark.search import why_not

        searched = 0
        for factor in plan.factors:
            streams = [name for sql in factor.inputs for name in streams_in(sql)]
            if not streams:
                continue
            if searched_by_spark(factor) is None:
                what = "MERGE" if factor.members else "a SELECT as the input of a pattern"
                raise not_supported(f"{what} over {', '.join(streams)} on Spark", plan.text, _HINT)
            why = why_not(factor.plan)
            if why:
                raise not_supported(f"{why} on Spark", plan.text, f"ORDER BY {factor.plan.schema.time}, or {_HINT}")
            searched += 1
        if not searched:
            raise not_supported("a statement without a pattern over a stream on Spark", plan.text, _HINT)

    def rows(self, plan: Plan, stream: StreamInput) -> pa.Table:
        """The output rows of a plan over a stream. Raises DataError, QueryError."""
        from archive.spark import search, session

        return search.rows(session.spark_session(self.where), _archived(stream), plan)

    def matches(self, plan: Plan, stream: StreamInput) -> list[Matches]:
        """The same with the events of each match."""
        from archive.spark import search, session

        return search.matches(session.spark_session(self.where), _archived(stream), plan)

    def counts(self, plan: Plan, stream: StreamInput) -> pa.Table:
        """The partition columns, and last how many matches there are: a row for each partition with a match."""
        from archive.spark import search, session

        return search.counts(session.spark_session(self.where), _archived(stream), plan)


def _archived(stream: StreamInput) -> Archived:
    from archive.spark.search import Archived

    files = stream.snapshot.files()
    if files is None:
        name = stream.schema.name
        hint = "hybrid.connect(directory) keeps streams in files"
        raise DataError(f"Spark cannot read {name}, which is kept in memory", hint)
    return Archived(*files, stream.schema, stream.low_us, stream.high_us, stream.late)
