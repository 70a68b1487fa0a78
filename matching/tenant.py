"""The protocols between matchers, their rows, and the spilling of partitions."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.features import RowValues
from matching.records import Blocks, Coming, Leaving
from matching.store import RowStore


@dataclass(frozen=True, slots=True)
class Needs:
    """The data of rows that a matcher reads. numeric: columns stored as lanes (name -> floating); other: columns stored
    as Arrow; schema: of both. linked: True if rows must know their neighbours. before, behind: number of rows of the
    partition that are read before and after one. reach: number of last rows of a partition that later rows may read.
    keeps: False if no row is read again once it is taken."""

    numeric: dict[str, bool]
    other: tuple[str, ...]
    schema: pa.Schema
    linked: bool
    before: int
    behind: int
    reach: int
    keeps: bool = True

    def of(self, columns: Collection[str]) -> Needs:
        """Returns what of this lies in some columns."""
        schema = pa.schema([field for field in self.schema if field.name in columns])
        numeric = {name: floating for name, floating in self.numeric.items() if name in columns}
        return replace(self, numeric=numeric, other=tuple(n for n in self.other if n in columns), schema=schema)


class Tenant(Protocol):
    """A matcher as its rows see it. floor: the first row that it sees. forgets: True if a partition without runs is
    equivalent to one without rows. serial: its number among the matchers of these rows. within_us: of its runs, or
    None.

    The other members serve partitions that leave memory: see matching.engines.engine.Spillable."""

    needs: Needs
    values: RowValues
    floor: int
    forgets: bool
    serial: int

    @property
    def size(self) -> int:
        """Returns the number of its own nodes."""

    def mark(self, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows it can still reach, and unless `exact` perhaps more. To be followed by `move`. ids: the
        partitions that may have rows or runs in memory."""

    def move(self, ids: Int64Array, moved: Int64Array) -> None:
        """Renumbers rows; -1 for dropped ones."""

    def busy(self, ids: Int64Array) -> np.ndarray:
        """True if these partitions may have runs, bool (n,)."""

    def idle(self) -> np.ndarray:
        """Returns, per partition, True if it has no run."""

    def forget(self, ids: Int64Array) -> None:
        """Resets these partitions, whose ids now belong to other keys."""

    @property
    def why(self) -> str | None:
        """Returns why its runs cannot leave memory now, or None."""

    @property
    def within_us(self) -> int | None: ...
    @property
    def due_yields(self) -> bool: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def key_bytes(self) -> int: ...
    def weigh(self, ids: Int64Array, place: Int64Array) -> Int64Array: ...
    def states(self, ids: Int64Array) -> Int64Array: ...
    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array: ...
    def copy_out(self, leaving: Leaving) -> Blocks: ...
    def leave(self, ids: Int64Array) -> None: ...
    def unmark(self, place: Int64Array) -> None: ...
    def put_in(self, coming: Coming, blocks: Blocks) -> None: ...


class Housed(Protocol):
    """Rows of which partitions may leave memory: the part of matching.rows.Rows that matching.spilled needs."""

    store: RowStore

    @property
    def keys(self) -> Sized: ...
    @property
    def tenants(self) -> Sequence[Tenant]: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def why(self) -> str | None: ...
    def bytes_of_row(self) -> int: ...
    def mark(self, exact: bool = False) -> np.ndarray: ...
    def unmark(self, place: Int64Array, keep: np.ndarray) -> None: ...
    def drop(self, keep: np.ndarray) -> None: ...
    def copy_out(self, leaving: Leaving) -> Blocks: ...
    def leave(self, ids: Int64Array) -> None: ...
    def put_in(self, ids: Int64Array, blocks: Blocks) -> None: ...
