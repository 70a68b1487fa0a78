"""The results of a live query so far: tables to fetch or to iterate over, with evidence and statistics."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from archive.forks import check_process
from archive.interrupts import Deferred
from hybrid.rows.alert_once import Suppressor, alerts_among, untraced
from hybrid.rows.answer import (
    Answer,
    answer_of,
    concat_answers,
    count_matches,
    fitted,
    fitted_answer,
    output_schema,
    rows_alone,
)
from hybrid.rows.evidence import NO_EVIDENCE
from hybrid.rows.evidence_tree import EvidenceTree, tree_of
from hybrid.rows.faults import Interrupted, fault
from hybrid.rows.outer import Outer, empty_answer
from hybrid.rows.result import ArrowRows, Lookups, evidence_table, evidence_tables, identities, ids_of_rows, series
from hybrid.rows.words import PrintedText
from hybrid.watch.paged import FoundPiece, Pages
from matching.batch import Int64Array, Matches
from query.errors import DataError, QueryError, first_line, public
from query.plan.plan import QueryPlan

if TYPE_CHECKING:
    from hybrid.rows.picture import Picture

#: Default of unread_max: the number of rows that may wait to be fetched.
UNREAD_MAX = 5_000_000
#: Approximate number of lines of evidence in a part.
EVIDENCE_LINES = 250_000
_NO_ROWS = np.zeros(0, np.int64)


class _Taken:
    """The pieces that a fetch has taken out of alerts; they are put back if it fails. row_count: of the rows that the
    fetch returns. whole: True once all pieces are taken, until they are put back."""

    __slots__ = ("pieces", "row_count", "whole")

    def __init__(self) -> None:
        self.pieces: list[FoundPiece] = []
        self.row_count = 0
        self.whole = False


@public
class Alerts:
    """The rows of one live query, in the order in which they were decided.

    `fetch()` returns the rows that are ready. Iteration blocks until there are more, and ends with the stream (or the
    database); in the thread that pushes, or without any other thread, it ends after the rows that are ready. If the
    query fails, earlier rows come first, then the error is raised; the stream and other queries continue. May be read
    from another thread than the one that pushes. plan: the plan of the query. schema: the Arrow schema of its rows.
    patterns: the named patterns that it uses, with the texts that it began with, by name in lower case.
    """

    def __init__(
        self, plan: QueryPlan, outer: Outer, lookups: Callable[[], Lookups], explain: Callable[[str], str],
        stats: Callable[[], dict[str, Any]], may_wait: Callable[[], bool], leave: Callable[[], None],
        identified: bool = False, rows_from: Callable[[], int | None] = lambda: None,
        catch_up: Callable[[float | None], None] = lambda seconds: None,
        whole: Callable[[list[Matches]], Iterable[Matches]] = lambda found: found,
        patterns: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """rows_from: returns the least time of a last event of a later row, or None. catch_up: waits until requests for
        history are answered, at most so many seconds. whole: returns matches with their events, see LiveQuery.whole."""
        self.plan = plan
        self.patterns = patterns
        self._factor = plan.factors[0]
        self._outer = outer
        self._lookups = lookups
        self._explain = explain
        self._stats = stats
        self._may_wait = may_wait
        self._leave = leave
        self._process = os.getpid()
        self._over = "ended"
        self._changed = threading.Condition()
        #: Held while rows are fetched: a save comes before or after the fetch. Taken before `_changed`.
        self._fetching = threading.Lock()
        self._pieces: list[FoundPiece] = []  # all with matches, or all with joined rows
        self._last: list[FoundPiece] = []
        self._last_sources: Int64Array | None = None
        self._taken = _Taken()  # by the last fetch
        #: Maximum bytes in memory of pending rows and of the evidence of the last fetch; None: no limit. The rest goes
        #: to `pages`; without these, pending rows are bounded as by `unread_max`.
        self.bytes_max: int | None = None
        self.pages: Pages | None = None
        self.trouble: str | None = None  # the reason why the rest is still in memory
        self._new_trouble: list[str] = []
        self._rows_from = rows_from
        self._catch_up = catch_up
        self._whole = whole
        self._done = False
        self._failure: Exception | None = None
        #: Waits until the function of the user has the rows, see Listener.wait; None without one.
        self.heard: Callable[[float | None], bool] | None = None
        self._match_count = 0
        self._row_count = 0
        self._identified = identified
        #: The number of rows that may wait to be fetched; beyond it a push waits for a fetch, or is refused.
        self.unread_max = UNREAD_MAX
        self.unread_count = 0
        self._unread_bytes = self._last_bytes = 0  # in memory
        self._reader: int | None = None  # the thread that fetched last
        self.schema = outer.schema()
        if identified:
            self.schema = self._with_ids(self.schema.empty_table(), empty_answer(self._factor), []).schema
        self._none = self.schema.empty_table()
        #: What decides which rows are alerts, where the query has ALERT ONCE.
        self.suppressor: Suppressor | None = None
        if plan.alert is not None:
            if outer.sources([empty_answer(self._factor)]) is None:
                raise untraced(plan.text)
            self.suppressor = Suppressor(plan.alert, self.schema)

    # ---- for the engine

    def add(self, found: list[Matches]) -> None:
        """Adds matches of a query without history."""
        if found:
            self._add([FoundPiece(m) for m in found], count_matches(found))

    def add_answer(self, answer: Answer) -> None:
        """Adds joined rows of a query with history."""
        self._add([FoundPiece(answer)])

    def _add(self, pieces: list[FoundPiece], match_count: int = 0) -> None:
        with self._changed:
            self._match_count += match_count
            self._pieces += pieces
            self.unread_count += sum(piece.row_count for piece in pieces)
            self._unread_bytes += self._bytes_of(pieces)
            self._changed.notify_all()
        self.keep_within()

    def _bytes_of(self, pieces: list[FoundPiece]) -> int:
        """Returns the bytes in memory; 0 without a limit, when they are not counted."""
        return 0 if self.bytes_max is None else sum(piece.bytes for piece in pieces)

    def bound(self, bytes_max: int, pages: Pages | None) -> None:
        """Sets the limit in bytes and the files for the rest, and keeps within it. Waits for a running fetch."""
        with self._fetching, self._changed:
            self.bytes_max, self.pages = bytes_max, pages
            self._unread_bytes = self._bytes_of(self._pieces)
            self._last_bytes = self._bytes_of(self._last)
        self.keep_within()

    def keep_within(self) -> None:
        """Moves pending rows and the evidence of the last fetch to files if they exceed `bytes_max`, after a running
        fetch. Pieces that cannot be written stay in memory."""
        if self.bytes_max is None or self.pages is None or self._unread_bytes + self._last_bytes <= self.bytes_max:
            return
        with self._fetching, Deferred(), self._changed:
            try:
                self._last[:] = self.pages.moved(self._last)
                self._last_bytes = 0
                self._pieces = self.pages.moved(self._pieces)
                self._unread_bytes = 0
                self.trouble = None
            except OSError as error:
                said = self.trouble is not None
                self.trouble = f"rows and evidence of a live query stay in memory: {first_line(error)}"
                if not said:
                    self._new_trouble.append(self.trouble)

    def take_trouble(self) -> list[str]:
        """Returns new warnings about the files."""
        found, self._new_trouble = self._new_trouble, []
        return found

    @property
    def full(self) -> bool:
        """True if the number of pending rows, or their bytes in memory, have reached the limit."""
        too_large = self.bytes_max is not None and self._unread_bytes > self.bytes_max
        return self.unread_count >= self.unread_max or too_large

    def make_room(self) -> None:
        """Waits until there are fewer pending rows than the limit. Raises DataError if no other thread fetches them:
        the caller fetched last, or the thread that did has ended."""
        self.keep_within()  # there may be space on disk by now
        with self._changed:
            while self.full and not self._done and self._failure is None:
                alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
                if self._reader not in alive:
                    raise DataError(
                        f"{self.unread_count:,} rows of a live query wait to be fetched: nothing was taken",
                        "fetch them before the next push, or let watch(unread_max=...) be larger"
                        if self.unread_count >= self.unread_max else
                        f"fetch them before the next push, or raise memory_limit: they take {self._unread_bytes:,} "
                        f"bytes, and {self.trouble or 'this database has no disk to spill them to'}",
                    )
                self._changed.wait(0.5)

    def count(self, matches: int) -> None:
        self._match_count += matches

    def fail(self, failure: Exception) -> None:
        """Marks the query as failed; only its first failure counts. A lack of memory is not its own: see
        Interrupted."""
        if isinstance(failure, MemoryError):
            failure = Interrupted.by(failure)
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def finish(self, why: str = "ended") -> None:
        """Ends the rows. why: the state from now on."""
        with self._changed:
            if not self._done:
                self._done, self._over = True, why
            self._changed.notify_all()

    def save(self) -> dict[str, Any]:
        """Returns the rows that are not fetched, and the counts, for hybrid.watch.saved."""
        with self._fetching, self._changed:
            return {
                "matches": [p.content for p in self._pieces if isinstance(p.content, Matches)],
                "answers": [p.content for p in self._pieces if isinstance(p.content, Answer)],
                "match_count": self._match_count,
                "row_count": self._row_count, "over": self._over if self._done else None,
                "failure": None if self._failure is None else str(self._failure),
                "suppressor": None if self.suppressor is None else self.suppressor.snapshot(),
            }  # fmt: skip

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the result of `save`, in alerts of the same query."""
        with self._changed:
            columns = output_schema(self._factor.plan)
            matches = [replace(m, rows=fitted(m.rows, columns)) for m in saved["matches"]]
            self._match_count, self._row_count = saved["match_count"], saved["row_count"]
            answers = [fitted_answer(answer, self._factor) for answer in saved["answers"]]
            self._pieces = [FoundPiece(content) for content in (*matches, *answers)]
            self.unread_count = sum(piece.row_count for piece in self._pieces)
            self._unread_bytes = self._bytes_of(self._pieces)
            if self.suppressor is not None:
                self.suppressor.restore(saved["suppressor"])
            if saved["over"] is not None:
                self._done, self._over = True, saved["over"]
            if saved["failure"] is not None:
                self._failure = DataError(saved["failure"])

    @property
    def cursor(self) -> int:
        """Returns the number of rows fetched since the query began. After a restart it is that of the last checkpoint:
        later rows come again, with the same match ids."""
        return self._row_count

    @property
    def done(self) -> bool:
        return self._done

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def over(self) -> bool:
        """True if no more rows come."""
        return self._done or self._failure is not None

    @property
    def interrupted(self) -> bool:
        """True if it ended in the middle of a batch: its state is undefined."""
        return isinstance(self._failure, Interrupted)

    # ---- for the user

    def close(self) -> None:
        """Stops the query and releases its state; the stream and other queries continue. Its pending rows can still be
        fetched. Closing it again does nothing."""
        self._leave()

    def fetch(self, wait: bool | float = True) -> ArrowRows:
        """Returns the rows found since the last fetch, possibly none, as an Arrow table that is shown as one, always in
        the columns of `schema`. wait: also waits for matches whose history is being read, at most so many seconds; a
        push does not wait for a slow archive, so that their rows may come later.

        Raises QueryError or DataError if the query failed and all earlier rows have been fetched."""
        self._check_process()
        if wait:
            self._catch_up(None if wait is True else wait)
        bound_us = self._rows_from() if self.suppressor is not None else None  # before what came by then is taken
        taken = _Taken()
        try:
            with self._fetching:
                self._taken = taken
                try:
                    return ArrowRows(self._fetch(bound_us, taken))
                except BaseException as error:
                    if not isinstance(error, QueryError):
                        self._put_back(taken)  # before another thread fetches
                    raise
        except BaseException as error:
            if taken.whole and not isinstance(error, QueryError):  # an interrupt after the fetch
                with Deferred(), self._fetching:
                    self._put_back(taken)
            raise

    def take(self, wait: bool | float = True) -> pa.Table:
        """Returns the rows of `fetch` as a plain Arrow table, for what goes on with them."""
        return self.fetch(wait).arrow()

    def _fetch(self, bound_us: int | None, taken: _Taken) -> pa.Table:
        if self.suppressor is not None:
            self.suppressor.begin()
        elif not self._pieces and self._failure is None:  # most fetches of a caller that fetches after each event
            self._reader = threading.get_ident()
            return self._none
        with Deferred(), self._changed:
            taken.pieces, taken.whole = self._pieces, True
            taken_bytes, self._unread_bytes = self._unread_bytes, 0
            self._pieces, self.unread_count = [], 0
            failure, self._reader = self._failure, threading.get_ident()
            self._changed.notify_all()
        if not taken.pieces:
            if failure is not None:
                raise failure
            if self.suppressor is not None:
                self.suppressor.forget(bound_us)
            return self._none
        if self.suppressor is not None or self._factor.histories:
            answer = self._answer(taken.pieces)
        else:
            answer = self._rows_alone(taken.pieces)
        try:
            table = self._outer.run([answer])
            if self._identified:
                table = self._with_ids(table, answer, taken.pieces)
            if self.suppressor is None:
                self._last, self._last_bytes = taken.pieces, taken_bytes
            else:
                table, sources = alerts_among(self.suppressor, self._outer, self._factor, answer, table)
                self.suppressor.forget(bound_us)
                if len(sources):
                    self._last, self._last_bytes, self._last_sources = taken.pieces, taken_bytes, sources
        except (QueryError, DataError) as error:
            self.fail(error)
            raise
        taken.row_count, self._row_count = table.num_rows, self._row_count + table.num_rows
        return table

    def wait(self) -> bool:
        """Waits for rows to fetch, or the query's error. Returns False if the query has ended and all are fetched."""
        while True:
            self._catch_up(None)
            with self._changed:
                if self._pieces or self._failure is not None:
                    return True
                if self._done:
                    return False
                # A timeout, to ask again for matches whose history is being read.
                self._changed.wait(0.2 if self._factor.histories else None)

    def join(self, seconds: float | None = None) -> bool:
        """Waits until `on_match` has returned with the rows of all events pushed so far, at most so many seconds.
        Returns False if it has not, as after it raised, or in the function itself. Raises DataError for a query without
        such a function."""
        self._check_process()
        if self.heard is None:
            raise DataError("the query has no function to wait for", "db.watch(text, on_match=f), or fetch() the rows")
        until_s = None if seconds is None else time.monotonic() + seconds
        self._catch_up(seconds)
        return self.heard(until_s)

    def put_back(self) -> None:
        """Undoes the last fetch, whose rows were not used: they come with the next one."""
        with Deferred(), self._fetching:
            self._put_back(self._taken)

    def _put_back(self, taken: _Taken) -> None:
        """Undoes a fetch, once. Called with `_fetching`."""
        with Deferred(), self._changed:
            if not taken.whole:
                return
            taken.whole = False
            self._pieces = [*taken.pieces, *self._pieces]
            self.unread_count += sum(piece.row_count for piece in taken.pieces)
            self._unread_bytes += self._bytes_of(taken.pieces)
            self._row_count -= taken.row_count
            if self.suppressor is not None and taken is self._taken:
                self.suppressor.take_back()

    def __iter__(self) -> Iterator[ArrowRows]:
        """Yields tables of the rows as they come, none of them empty. Raises the error of the query as `fetch` does."""
        while True:
            self._check_process()
            self._catch_up(None)
            with self._changed:
                while not (self._pieces or self._failure or self._done) and self._may_wait():
                    # A timeout, to notice when all threads that push have ended.
                    self._changed.wait(0.5)
                if not self._pieces and self._failure is None:
                    return
            table = self.fetch()
            if table.num_rows:
                yield table

    def _with_ids(self, table: pa.Table, answer: Answer, pieces: list[FoundPiece]) -> pa.Table:
        sources = self._outer.sources([answer])
        if sources is None:
            message = "the outer SELECT returns rows without a match, so that they have no identity"
            raise fault("HQ400", message, self.plan.text, "leave out evidence=True")
        if not self._factor.histories:
            ids = ids_of_rows(self._factor.plan, [p.content for p in pieces if isinstance(p.content, Matches)])
            return table.append_column("match_id", ids.take(pa.array(sources[0])))
        for name, column in identities(self._factor, answer, sources[0]).items():
            table = table.append_column(name, column)
        return table

    def evidence(self) -> ArrowRows:
        """Returns the events of the rows of the last fetch that found some, in the columns of Result.evidence.

        Reads them from the archive. Raises DataError if they are no longer kept."""
        return ArrowRows(self._events())

    def _events(self) -> pa.Table:
        return self.evidence_batches().read_all()

    def tree(self, row: int = 0, side: str = "pl") -> EvidenceTree:
        """Returns the evidence of one row of the last fetch that found some as a tree, in which matches of boxes open
        down to their events. side: `pl`, or `pa` for what was found in the history. Raises DataError if the row has no
        evidence."""
        return tree_of(self._events(), row, side)

    def evidence_batches(self, lines_max: int = EVIDENCE_LINES) -> pa.RecordBatchReader:
        """Returns a reader of the lines of `evidence`, about `lines_max` at a time, in bounded memory. Events and later
        fetches do not change them."""
        self._check_process()
        with self._fetching:
            pieces, sources = list(self._last), self._last_sources
        tables = self._evidence_tables(pieces, sources, lines_max)
        schema = evidence_table(self.plan, [empty_answer(self._factor)], [_NO_ROWS], [self._lookups()]).schema
        batches = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _evidence_tables(
        self, pieces: list[FoundPiece], sources: Int64Array | None, lines_max: int
    ) -> Iterator[pa.Table]:  # fmt: skip
        rows = self._rows_alone(pieces)
        found = [sources] if sources is not None else self._outer.sources([rows])
        lookups, parts = self._lookups(), self._answers(pieces)
        if found is None:
            return evidence_tables(self.plan, parts, None, lookups, lines_max)
        if (np.diff(found[0]) >= 0).all():
            return evidence_tables(self.plan, parts, found[0], lookups, lines_max)
        # the outer SELECT reorders the rows
        return iter([evidence_table(self.plan, [self._answer(pieces)], found, [lookups])])

    def _answers(self, pieces: list[FoundPiece]) -> Iterator[Answer]:
        """Yields pieces as answers with their evidence, in parts."""
        yield from (p.content for p in pieces if isinstance(p.content, Answer))
        for m in self._whole([p.content for p in pieces if isinstance(p.content, Matches)]):
            if len(m):
                yield answer_of(self._factor.plan, [m])

    def _answer(self, pieces: list[FoundPiece]) -> Answer:
        """Returns pieces as one answer with their evidence."""
        answers = list(self._answers(pieces))
        return concat_answers(answers) if answers else empty_answer(self._factor)

    def _rows_alone(self, pieces: list[FoundPiece]) -> Answer:
        """Returns pieces as one answer without evidence."""
        parts = [
            replace(c, events=NO_EVIDENCE, sides=tuple(replace(side, evidence=NO_EVIDENCE) for side in c.sides))
            if isinstance(c, Answer) else rows_alone(c.rows) for c in (piece.content for piece in pieces)
        ]
        return concat_answers(parts) if parts else empty_answer(self._factor)

    def suppressed(self) -> ArrowRows:
        """Returns the last rows that ALERT ONCE has suppressed among those fetched so far, up to 10,000: their columns,
        then match_id, last_event_time and alert_match_id, the match of the alert that suppressed the row. If rows have
        columns of these names, ours end with an underscore. Raises DataError for a query without ALERT ONCE."""
        self._check_process()
        if self.suppressor is None:
            raise DataError("the query has no ALERT ONCE", "write it after the statement")
        return ArrowRows(self.suppressor.suppressed())

    def plot(
        self, row: int | None = 0, value: str | None = None, path: str | os.PathLike[str] | None = None, *,
        keys: Any = None, around: Any = None, kind: str | None = None,
    ) -> Picture:  # fmt: skip
        """Returns a picture of the match of one row of the last fetch, or of all its matches (None). Arguments and
        errors: as of Result.plot. Needs the extra `plot`."""
        from hybrid.rows.plot import plot_evidence

        return plot_evidence(
            self._events(), row, value, path, keys=keys, around=around, kind=kind,
            between=lambda low, high: series(self._lookups()[0], low, high), plan=self._factor,
        )  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """Returns counts since the watch began: matches of the live pattern, rows fetched, rows waiting for history,
        late rows, state, and the `failure` of a query that has failed. With ALERT ONCE: the suppressed ones of the
        fetched rows, and those that `suppressed()` no longer lists."""
        self._check_process()
        with self._changed:
            state = "failed" if self._failure else self._over if self._done else "running"
            own = {
                "state": state, "matches": self._match_count, "rows_fetched": self._row_count,
                "rows_unread": self.unread_count,
            }  # fmt: skip
        if self._failure is not None:
            own["failure"] = first_line(self._failure)
        if self.trouble is not None:
            own["memory_trouble"] = self.trouble
        if self.suppressor is not None:
            own |= {"suppressed": self.suppressor.count, "suppressed_unlisted": self.suppressor.unlisted_count}
        return own | self._stats()

    def explain(self, stage: str = "all") -> str:
        """Returns the strategy and the result of a stage: ast, plan, nfab, automaton, program or all."""
        return PrintedText(self._explain(stage))

    def _check_process(self) -> None:
        check_process("the database of these alerts", self._process)

    def __repr__(self) -> str:
        if self._process != os.getpid():
            return f"Alerts(of process {self._process}, before a fork)"
        return f"Alerts({', '.join(f'{k}={v}' for k, v in self.stats().items())})"


