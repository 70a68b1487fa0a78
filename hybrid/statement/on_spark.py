"""Search of patterns over archived streams by Spark: supported statements, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hybrid.rows.faults import not_supported
from hybrid.statement.stream_input import StreamInput
from matching.batch import Matches
from query.errors import DataError
from query.plan.joined_rows import joins_of
from query.plan.plan import FactorPlan, QueryPlan
from query.plan.statement import BARE_NAME

if TYPE_CHECKING:
    from archive.spark.read import Archives

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
        searched_by_spark: Callable[[FactorPlan], tuple[StreamInput, ...]],
    ) -> None:  # fmt: skip
        """Raises QueryError HQ500 unless Spark can search all streams that the statement's patterns read.

        streams_in: returns the streams that an input names. searched_by_spark: returns the streams of a pattern factor
        if Spark can search them, else nothing."""
        from archive.spark.search import why_not

        searched = 0
        for factor in plan.factors:
            streams = [name for sql in factor.inputs for name in streams_in(sql)]
            if not streams:
                continue
            if not searched_by_spark(factor):
                what, hint = _refused(factor, streams_in)
                raise not_supported(what, plan.text, hint)
            if joined := joins_of(factor.plan):
                names = ", ".join(dict.fromkeys(history.schema.name for history in joined))
                raise not_supported(f"boxes joined with the history of {names} on Spark", plan.text, _HINT)
            why = why_not(factor.plan)
            if why:
                order = f"ORDER BY {factor.plan.schema.time}, or " if why.startswith("ORDER") else ""
                raise not_supported(f"{why} on Spark", plan.text, f"{order}{_HINT}")
            searched += 1
        if not searched:
            raise not_supported("a statement without a pattern over a stream on Spark", plan.text, _HINT)

    def rows(self, factor: FactorPlan, streams: Sequence[StreamInput]) -> pa.Table:
        """Returns the output rows of a pattern factor. streams: its inputs. Raises DataError, QueryError."""
        from archive.spark import search, session

        return search.rows(session.spark_session(self.where), _archives(factor, streams), factor.plan)

    def matches(self, factor: FactorPlan, streams: Sequence[StreamInput]) -> list[Matches]:
        """Returns the matches of a pattern factor, with their events; parameters and errors as of `rows`."""
        from archive.spark import search, session

        return search.matches(session.spark_session(self.where), _archives(factor, streams), factor.plan)

    def counts(self, factor: FactorPlan, streams: Sequence[StreamInput]) -> pa.Table:
        """Returns one row per partition with a match: the partition columns, then the number of matches."""
        from archive.spark import search, session

        return search.counts(session.spark_session(self.where), _archives(factor, streams), factor.plan)


def _refused(factor: FactorPlan, streams_in: Callable[[str], list[str]]) -> tuple[str, str]:
    """Returns what Spark does not do with an input that reads a stream and is none, and a hint."""
    if not factor.members:
        streams = ", ".join(streams_in(factor.input_sql))
        return f"a SELECT as the input of a pattern over {streams} on Spark", _HINT
    others = [m.name for m in factor.members if not BARE_NAME.fullmatch(m.input_sql) or not streams_in(m.input_sql)]
    what = "MERGE" if factor.merged is None else "a pattern and boxes"
    names = ", ".join(m.name for m in factor.members)
    one = f"push the rows of {others[0]} into a stream of their own, or " if others else ""
    return f"{what} over {names} on Spark, unless all are streams,", f"{one}{_HINT}"


def _archives(factor: FactorPlan, streams: Sequence[StreamInput]) -> Archives:
    from archive.spark.search import Archived, MergedArchives

    found = []
    for stream in streams:
        files = stream.snapshot.files()
        if files is None:
            name = stream.schema.name
            hint = "hybrid.connect(directory) keeps streams in files"
            raise DataError(f"Spark cannot read {name}, which is kept in memory", hint)
        found.append(Archived(*files, stream.schema, stream.request))
    return MergedArchives(factor.schema, factor.members, tuple(found)) if factor.members else found[0]
