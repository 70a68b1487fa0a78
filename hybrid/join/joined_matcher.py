"""A box's pattern whose matches are joined with history, as a Matcher: its matches are those with a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hybrid.join.apart import UNCOMPUTED, answers_apart
from hybrid.join.driver import Driver, HistoryStream
from hybrid.join.strategies import strategy_of
from hybrid.rows.answer import Answer, answer_of, concat_answers, output_schema
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import NotesUnfit, UnfitMatch, before_failure, failed_at, first_unfit, unfit_of
from matching.emitted import only
from matching.hierarchy.merging import BEHIND_ALL
from matching.state import as_array, pack, unpack
from query.errors import QueryError
from query.plan.boxes import LAST, LAST_US
from query.plan.joined_rows import pattern_of
from query.plan.plan import Plan

#: Write a value as bytes, and read it again (hybrid.watch.saved).
Save: TypeAlias = Callable[[Any], bytes]
Load: TypeAlias = Callable[[bytes], Any]


def _no_state(value: Any) -> Any:
    raise AssertionError("a bounded input has no state to keep")


class JoinedMatcher:
    """Matcher of a plan with `joined`. matcher: of its pattern alone. histories: by stream, in lower case. make:
    returns matchers of history patterns. late: late rows of histories count, too. save, load: of its state.

    Matches come out when their ranges are complete, in the order of the pattern. stuck: see matching.batch.Matcher.
    A live one (with `save`) that notes unfit matches goes on behind one that cannot be joined, see
    matching.drive.NotesUnfit; that of a statement raises at once, which gives no rows anyway."""

    def __init__(
        self, plan: Plan, matcher: Matcher, histories: Mapping[str, HistoryStream], make: Callable[[Plan], Matcher],
        late: bool = False, save: Save = _no_state, load: Load = _no_state,
    ) -> None:  # fmt: skip
        assert plan.joined is not None
        self.plan = plan
        self._joined = plan.joined
        self._schema = output_schema(plan)
        self._plan = pattern_of(plan)
        self._matcher = matcher
        factor = replace(plan.joined.factor, plan=self._plan)
        self._driver = Driver(factor, strategy_of("auto"), make, in_order=True)
        self._late = late
        self._histories = histories
        self._sources: tuple[str, ...] = ("default",)
        self._save, self._load = save, load
        self._before_failure: list[Matches] = []
        self._live = save is not _no_state
        self._notes_unfit = False
        self._unfit: UnfitMatch | None = None  # the first that cannot be joined
        self.stuck = 0

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        found = self._of_pattern(lambda: self._matcher.push(batch))
        return self._found([found], int(batch.ts_us[-1]) if len(batch) else None, False)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        found = self._of_pattern(lambda: self._matcher.advance(watermark_us))
        return self._found([found], watermark_us, watermark_us is None)

    def _of_pattern(self, act: Callable[[], Matches]) -> Matches:
        """Returns the matches of the pattern alone. If it fails, the ones before are joined first."""
        try:
            return act()
        except Exception:
            failed_us = self.failed_us
            if failed_us is not None:
                self._before_failure = [self._found(before_failure(self._matcher), failed_us, False)]
            raise

    @property
    def notes_unfit(self) -> bool:
        """See matching.drive.NotesUnfit."""
        return self._notes_unfit

    @notes_unfit.setter
    def notes_unfit(self, notes: bool) -> None:
        self._notes_unfit = notes and self._live
        if isinstance(self._matcher, NotesUnfit):
            self._matcher.notes_unfit = notes

    @property
    def unfit(self) -> UnfitMatch | None:
        return first_unfit(self._unfit, unfit_of(self._matcher))

    @property
    def failed_us(self) -> int | None:
        """Returns the time of the event at which its pattern has failed; None if it has not, or that is not known."""
        return failed_at(self._matcher)

    @property
    def failed_row(self) -> tuple[int, int] | None:
        """Returns the source and the offset of that event."""
        row: tuple[int, int] | None = getattr(self._matcher, "failed_row", None)
        return row

    @property
    def failed_position(self) -> int | None:
        """Returns its position, which a layer knows."""
        position: int | None = getattr(self._matcher, "failed_position", None)
        return position

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided, and joined, before the event at which its pattern has failed."""
        return self._before_failure

    def _found(self, found: Sequence[Matches], watermark_us: int | None, ended: bool) -> Matches:
        for one in found:
            self._sources = one.sources
        self._take(found)
        answers = list(self._answers(watermark_us, ended))
        self.stuck = self._matcher.stuck + self._driver.stuck_count
        return self._matches(concat_answers(answers) if answers else answer_of(self._plan, []))

    def _take(self, found: Sequence[Matches]) -> None:
        """Gives matches to the driver, but for those whose ranges cannot be computed."""
        while found := [one for one in map(self._awaited, found) if len(one)]:
            before = self._driver.waiting_count
            try:
                return self._driver.take(found)
            except QueryError as error:
                if not self._notes_unfit:
                    raise
                failing = self._driver.waiting_count - before
                self._note(pa.concat_tables([one.rows for one in found]).slice(failing), error)
                found = _behind(found, failing)

    def _awaited(self, matches: Matches) -> Matches:
        """Returns the matches that may come out: that are no empty ones, and end before those that cannot be joined."""
        last, until = matches.rows.column(LAST.name), BEHIND_ALL if self._unfit is None else self._unfit.last
        if until == BEHIND_ALL and not last.null_count:
            return matches
        return only(matches, np.unique(matches.row_match[np.asarray(last.fill_null(BEHIND_ALL)) < until]))

    def _answers(self, watermark_us: int | None, ended: bool) -> Iterator[Answer]:
        """Yields the answers of the matches whose ranges are complete."""

        def begin(most: int | None, sample: bool) -> Callable[[], Answer] | None:
            return self._driver.begin(self._histories, self._late, watermark_us, ended, None, sample, most)

        def leave_out(error: Exception) -> None:
            self._note(self._driver.pending()[0].live, error)

        try:
            while (request := begin(None, True)) is not None:  # in this thread: what is merged waits for it
                yield self._driver.finish(request())
        except UNCOMPUTED:
            if not self._notes_unfit:
                raise
            yield from answers_apart(self._driver, lambda most: begin(most, False), leave_out)

    def _note(self, rows: pa.Table, error: Exception) -> None:
        """Notes that a match cannot be joined. rows: its output is the first. Forgets matches that would not come out
        any more: those that end with it, or later."""
        last, last_us = (rows.column(field.name)[0].as_py() for field in (LAST, LAST_US))
        self._unfit = first_unfit(self._unfit, UnfitMatch(last, last_us, error))
        self._forget()

    def _forget(self) -> None:
        if self._unfit is not None and self._driver.waiting_count:
            ends = np.asarray(self._driver.pending()[0].live.column(LAST.name))
            self._driver.keep(np.flatnonzero(ends < self._unfit.last))

    def _matches(self, answer: Answer) -> Matches:
        """Returns the rows of an answer as matches, each with one row."""
        evidence, n = answer.evidence.take(answer.match), len(answer)
        of_history = {name: (k, column) for name, k, column in self._joined.columns}
        columns = []
        for field in self._schema:
            if field.name not in of_history:
                columns.append(answer.live.column(field.name))
            elif not n:
                columns.append(pa.chunked_array([], field.type))
            else:
                k, column = of_history[field.name]
                columns.append(answer.sides[k].rows.column(column))
        rows = pa.table([c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self._schema, strict=True)],
                        schema=self._schema)  # fmt: skip
        at = np.arange(n, dtype=np.int64)
        first, last = evidence.span_us(0)
        return Matches(
            rows, at, at + 1, first, last, evidence.bounds, evidence.variable.astype(np.int16), evidence.ts_us,
            evidence.source.astype(np.int32), evidence.offset, evidence.seq, evidence.variables,
            evidence.sources or self._sources,
        )  # fmt: skip

    def snapshot(self) -> bytes:
        """See matching.batch.Matcher. The driver has the matches that wait."""
        parts = {"pattern": self._matcher.snapshot(), "driver": self._save(self._driver.save())}
        unfit = None if self._unfit is None else self._unfit.saved()
        head = {"sources": list(self._sources), "unfit": unfit}
        return pack(head, {name: as_array(part) for name, part in parts.items()})

    def fits(self, state: bytes) -> bool:
        """See matching.batch.Matcher."""
        _, arrays = unpack(state)
        return self._matcher.fits(arrays["pattern"].tobytes())

    def restore(self, state: bytes) -> None:
        """See matching.batch.Matcher."""
        head, arrays = unpack(state)
        self._sources = tuple(head["sources"])
        self._unfit = UnfitMatch.restored(head.get("unfit"))
        self._matcher.restore(arrays["pattern"].tobytes())
        self._driver.restore(self._load(arrays["driver"].tobytes()))


def _behind(found: Sequence[Matches], row: int) -> list[Matches]:
    """Returns the matches behind the one with a row."""
    behind = []
    for matches in found:
        n = matches.rows.num_rows
        behind.append(only(matches, np.arange(0 if row < 0 else matches.row_match[row] + 1 if row < n else n, n)))
        row -= n
    return behind
