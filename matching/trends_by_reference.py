"""A Matcher of ONE ROW PER WINDOW by enumeration (query.trend_reference): exact for every plan, slow, the fallback."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from matching.batch import Matches
from matching.by_reference import ReferenceMatcher, to_arrow
from matching.emitted import ids_of_windows
from matching.limits import check_windows
from matching.trend_rows import digits, measured
from matching.types import arrow_schema
from query.errors import DataError, first_line
from query.plan.fingerprint import fingerprint
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.plan.trends import BIGNUM, WINDOW_COLUMNS
from query.schema import Schema
from query.trend_reference import trend_rows


class ReferenceTrends(ReferenceMatcher):
    """Keeps the rows of open windows; a window is enumerated when it closes. Raises QueryError HQ600 if its trends are
    too many."""

    def __init__(self, plan: Plan, sources: tuple[str, ...] = ("default",)) -> None:
        super().__init__(plan, sources)
        self._closed_us: int | None = None  # windows that end here or before are closed

    def restore(self, state: bytes) -> None:
        super().restore(state)
        self._closed_us = self._watermark_us

    def _emit(self, ended: bool) -> Matches:
        plan, kept, trends = self.plan, self._kept, self.plan.trends
        assert trends is not None
        over = self._watermark_us
        was, self._closed_us = self._closed_us, over
        found = [
            row
            for row in trend_rows(plan, kept.rows, kept.ts_us, evaluate=self._evaluate)
            if (ended or (over is not None and row.end_us <= over)) and (was is None or row.end_us > was)
        ] if ended or self._closes(was, over) else []  # fmt: skip
        for row in found:
            check_windows(row.start_us, row.end_us)
        columns: dict[str, pa.Array] = {
            WINDOW_COLUMNS[0].name: pa.array([r.start_us for r in found], pa.timestamp("us")),
            WINDOW_COLUMNS[1].name: pa.array([r.end_us for r in found], pa.timestamp("us")),
        }
        for i, c in enumerate(trends.group_by):
            columns[c.name] = to_arrow([r.group[i] for r in found], c.type)
        for i, a in enumerate(trends.aggregates):
            values = [r.values[i] for r in found]
            if a.type in (BIGNUM, "VARCHAR") and a.over.value in ("sum", "count", "count(*)", "count(MATCHES)"):
                texts = [None if v is None else digits(v) if isinstance(v, int) else format(v, "f") for v in values]
                columns[a.name] = pa.array(texts, pa.string())
                continue
            try:
                columns[a.name] = to_arrow(values, a.type)
            except pa.ArrowInvalid as error:
                raise DataError(f"{a.name}: {first_line(error)}", "cast the values to DOUBLE") from None
        schema = arrow_schema(Schema("", output_columns(plan)))
        rows = measured(plan, columns, 2 + len(trends.group_by)).cast(schema)
        if over is not None:
            needed = [i for i, us in enumerate(kept.ts_us) if self._end_of_last_window(us) > over]
            if len(needed) < len(kept.ts_us):
                self._kept = kept.only(needed)
        n, ids = rows.num_rows, ids_of_windows(plan, rows, fingerprint(plan))
        none = np.zeros(0, np.int64)
        return Matches(
            rows, np.arange(n), np.zeros(n, np.int64), none, none, np.zeros(n + 1, np.int64), np.zeros(0, np.int16),
            none, np.zeros(0, np.int32), none, none, self.variables, self.sources, ids=ids,
        )  # fmt: skip

    def _end_of_last_window(self, us: int) -> int:
        trends = self.plan.trends
        assert trends is not None
        return us // trends.slide_us * trends.slide_us + trends.within_us

    def _closes(self, was: int | None, over: int | None) -> bool:
        """True if a window of a kept row may end after `was`, and not after `over`."""
        trends = self.plan.trends
        assert trends is not None
        if over is None or not self._kept.ts_us:
            return False
        end = (over - trends.within_us) // trends.slide_us  # the last window that is closed
        return was is None or end > (was - trends.within_us) // trends.slide_us
