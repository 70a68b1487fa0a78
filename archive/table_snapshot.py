"""The files of one version of a table, with their statistics: which of them may hold a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from archive.layout import (
    OFFSET,
    SOURCE,
    events_in_words,
)
from archive.place import Place
from archive.recent import BoolArray, KeyRange
from archive.sums import Damaged
from matching.batch import Int64Array

#: Delta lets writers truncate the time statistics of a file to milliseconds.
STATISTICS_SLACK_US = 999
ARROW_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The table at one version, immutable: files with their statistics, and the progress of each source.

    sizes: int64 (n files,), bytes. rows: int64 (n files,). min_us, max_us: int64 (n files,), bounds of the time column;
    the int64 limits for a file without statistics. statistics: columns `min.x`, `max.x`, `null_count.x`, one row per
    file. sources: all sources that ever appended; offsets: source -> next expected offset. boundary_sequence: last
    ingest sequence in files, -1 if none. maintenance: number of commits that removed files. added: columns that a file
    may lack; they read as null.
    """

    version: int
    paths: tuple[str, ...]
    sizes: Int64Array
    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    statistics: pa.Table
    sources: tuple[str, ...]
    offsets: Mapping[str, int]
    boundary_sequence: int
    maintenance: int
    added: tuple[str, ...] = ()
    _known: dict[str, _Bounds | None] = field(default_factory=dict, compare=False, repr=False)

    def span_us(self) -> tuple[int, int] | None:
        """Returns the times of the first and the last event, the last exact to a millisecond; None without events.
        Ignores files without statistics."""
        low, high = self.min_us[self.min_us > ARROW_INT64.min], self.max_us[self.max_us < ARROW_INT64.max]
        return (int(low.min()), int(high.max()) - STATISTICS_SLACK_US) if len(low) and len(high) else None

    def select(
        self, low_us: int | None, end_us: int | None, keys: Mapping[str, pa.Array], span: KeyRange | None = None
    ) -> Int64Array:
        """Returns the indexes of files that may hold a row with low_us <= time < end_us and these values, sorted by
        min_us. int64.

        Costs half a millisecond for 2,000 files and one value, plus a sort of the values."""
        keep = np.ones(len(self.paths), np.bool_)
        if low_us is not None:
            keep &= self.max_us >= low_us
        if end_us is not None:
            keep &= self.min_us < end_us
        index = np.flatnonzero(keep)
        for name, values in keys.items():
            if len(index) and (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
                bounds = self._bounds(name)
                if bounds is not None:
                    index = index[bounds.may_hold(index, values)]
        if span is not None and (bounds := self._bounds(span.column)) is not None:
            index = index[bounds.overlaps(index, span)]
        return index[np.argsort(self.min_us[index], kind="stable")]

    def files(self, low_us: int | None, end_us: int | None, keys: Mapping[str, pa.Array]) -> list[str]:
        """Returns the paths of the selected files (`select`), relative to the table's directory."""
        return [self.paths[i] for i in self.select(low_us, end_us, keys)]

    def uris(self, directory: Place, index: Int64Array) -> list[str]:
        """Returns the URIs of the files with these indexes, for DuckDB."""
        root = str(directory).rstrip("/") + "/"
        return [root + self.paths[i] for i in index]

    def only_source(self, index: Int64Array) -> str | None:
        """Returns the only source of these files by their statistics, or None."""
        bounds = self._bounds(SOURCE)
        return None if bounds is None else bounds.only_value(index)

    def missing(self, damaged: Damaged) -> str:
        """Describes the unreadable events of a damaged file: number, sources, first and last offset. Uses the bounds of
        its damaged row groups if known, else those of the file."""
        at = self.paths.index(damaged.path)
        if damaged.sums is not None and damaged.groups is not None and {SOURCE, OFFSET} <= damaged.sums.bounds.keys():
            rows = sum(damaged.sums.rows[group] for group in damaged.groups)
            source, offset = damaged.sums.bounds[SOURCE], damaged.sums.bounds[OFFSET]
            some = damaged.groups
            return events_in_words(
                rows, min(source.least[some]), max(source.greatest[some]), min(offset.least[some]),
                max(offset.greatest[some]),
            )  # fmt: skip
        bounds = [self._bounds(SOURCE), self._bounds(OFFSET)]
        known = [None if b is None else (b.least[at], b.greatest[at]) for b in bounds]
        (first, last), (low, high) = (k if k is not None else (None, None) for k in known)
        return events_in_words(int(self.rows[at]), first, last, low, high)

    def _bounds(self, name: str) -> _Bounds | None:
        """Returns the bounds of a column of strings or integers, or None without statistics."""
        if name not in self._known:
            self._known[name] = _Bounds.of(self.statistics, name, self.rows)
        return self._known[name]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Statistics of one column, one item per file. least, greatest: object arrays, which compare as in DuckDB and
    Parquet. known: both bounds exist. null: there may be a null. only_null: all values are null."""

    least: np.ndarray
    greatest: np.ndarray
    known: BoolArray
    null: BoolArray
    only_null: BoolArray

    @staticmethod
    def of(statistics: pa.Table, name: str, rows: Int64Array) -> _Bounds | None:
        if statistics.column_names.count(f"min.{name}") != 1:
            return None
        least, greatest, nulls = (
            np.array(statistics.column(f"{what}.{name}").to_pylist(), object) for what in ("min", "max", "null_count")
        )
        known = np.array([a is not None and b is not None for a, b in zip(least, greatest)], np.bool_)
        null, only_null = ((nulls != 0).astype(np.bool_), (nulls == rows).astype(np.bool_))
        return _Bounds(least, greatest, known, null, only_null)

    def may_hold(self, index: Int64Array, values: pa.Array) -> BoolArray:
        """Returns for each of these files True if it may hold one of the values (null included)."""
        wanted = np.array(sorted(values.drop_null().to_pylist()), object)
        found = self.null[index] & (values.null_count > 0)
        if len(wanted):
            known = self.known[index]
            found |= ~known & ~self.only_null[index]
            some = index[known]
            at = np.searchsorted(wanted, self.least[some])
            inside = at < len(wanted)
            found[known] |= inside & (wanted[np.minimum(at, len(wanted) - 1)] <= self.greatest[some]).astype(np.bool_)
        return found

    def overlaps(self, index: Int64Array, span: KeyRange) -> BoolArray:
        """Returns for each of these files True if it may hold a value of the range."""
        found = ~self.only_null[index]
        known = self.known[index]
        some = index[known]
        if span.low is not None:
            found[known] &= (self.greatest[some] >= span.low).astype(np.bool_)
        if span.end is not None:
            found[known] &= (self.least[some] < span.end).astype(np.bool_)
        return found

    def only_value(self, index: Int64Array) -> str | None:
        """Returns the only value of these files, or None."""
        value = self.least[index[0]]
        same = (self.least[index] == value) & (self.greatest[index] == value) & self.known[index] & ~self.null[index]
        return value if bool(same.all()) else None
