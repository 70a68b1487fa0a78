"""A matcher as its rows see it, and rows as the one who spills partitions sees them."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.features import RowValues
from matching.records import Blocks, Coming, Leaving
from matching.store import RowStore


@dataclass(frozen=True, slots=True)
class Needs:
    """What a matcher reads of rows. numeric: columns kept as lanes (name -> floating); other: columns kept as Arrow;
    schema: of both. linked: whether rows must know their neighbours. before, behind: rows of the partition that are
    read before and behind one. reach: the last rows of a partition that rows to come may read."""

    numeric: dict[str, bool]
    other: tuple[str, ...]
    schema: pa.Schema
    linked: bool
    before: int
    behind: int
    reach: int


class Tenant(Protocol):
    """A matcher as its rows see it. floor: the first row that it sees. forgets: whether a partition without runs is to
    it like one without rows. serial: its number among those that these rows have had. within_us: of its runs, or None.

    The last ones are asked where partitions leave memory: see matching.engines.engine.Spillable."""

    needs: Needs
    values: RowValues
    floor: int
    forgets: bool
    serial: int

    @property
    def size(self) -> int:
        """Nodes of its own."""

    def mark(self, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows it can still reach; unless it is to be exact, perhaps more. To be followed by `move`. ids: the
        partitions that may have rows or runs in memory."""

    def move(self, ids: Int64Array, moved: Int64Array) -> None:
        """Rows have new positions, -1 those that left."""

    def busy(self, ids: Int64Array) -> np.ndarray:
        """Whether these partitions may have runs, bool (n,)."""

    def idle(self) -> np.ndarray:
        """Per partition whether no run knows of it."""

    def forget(self, ids: Int64Array) -> None:
        """These partitions are those of other keys from now on."""

    @property
    def why(self) -> str | None:
        """Why its runs cannot leave memory now, or None."""

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
    """Rows of which partitions may leave memory: matching.rows.Rows, as matching.spilled needs it."""

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
