"""Search of patterns over archived streams by Spark: supported statements, and their results."""

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

#: Values of the argument `engine` of db.sql.
ENGINES = ("embedded", "spark")
_HINT = "leave engine out to search in this process"


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Searches the archives of a statement's streams by Spark. where: an address of Spark, a session, or None for the
    active session or else local[*]. The first search starts it."""

    where: Any = None

    def refuse(
        self, plan: QueryPlan, streams_in: Callable[[str], list[str]],
        searched_by_spark: Callable[[FactorPlan], StreamInput | None],
    ) -> None:  # fmt: skip
        """Raises QueryError HQ500 unless Spark can search all streams that the statement's patterns read.

        streams_in: returns the streams that an input names. searched_by_spark: returns the stream of a pattern factor
        if Spark can search it, else None."""
        from archive.spark.search import why_not

        searched = 0
        for factor in plan.factors:
            streams = [name for sql in factor.inputs for name in streams_in(sql)]
            if not streams:
                continue
            if searched_by_spark(factor) is None:
                what = "MERGE" if factor.members else "a SELECT as the input of a pattern"
                what = "a pattern and boxes" if factor.merged is not None else what
                raise not_supported(f"{what} over {', '.join(streams)} on Spark", plan.text, _HINT)
            why = why_not(factor.plan)
            if why:
                order = f"ORDER BY {factor.plan.schema.time}, or " if why.startswith("ORDER") else ""
                raise not_supported(f"{why} on Spark", plan.text, f"{order}{_HINT}")
            searched += 1
        if not searched:
            raise not_supported("a statement without a pattern over a stream on Spark", plan.text, _HINT)

    def rows(self, plan: Plan, stream: StreamInput) -> pa.Table:
        """Returns the output rows of a plan over a stream. Raises DataError, QueryError."""
        from archive.spark import search, session

        return search.rows(session.spark_session(self.where), _archived(stream), plan)

    def matches(self, plan: Plan, stream: StreamInput) -> list[Matches]:
        """Returns the matches of a plan over a stream, with their events. Raises DataError, QueryError."""
        from archive.spark import search, session

        return search.matches(session.spark_session(self.where), _archived(stream), plan)

    def counts(self, plan: Plan, stream: StreamInput) -> pa.Table:
        """Returns one row per partition with a match: the partition columns, then the number of matches."""
        from archive.spark import search, session

        return search.counts(session.spark_session(self.where), _archived(stream), plan)


def _archived(stream: StreamInput) -> Archived:
    from archive.spark.search import Archived

    files = stream.snapshot.files()
    if files is None:
        name = stream.schema.name
        hint = "hybrid.connect(directory) keeps streams in files"
        raise DataError(f"Spark cannot read {name}, which is kept in memory", hint)
    return Archived(*files, stream.schema, stream.request)
