"""Partitions as records: packs data of different length per partition into bytes for each, and unpacks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from matching.batch import Int64Array
from matching.kernels import records as kernels

WORD = 8


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Items of n partitions, grouped by partition. bounds: int64 (n + 1,), the beginnings of the groups; columns: by
    name, arrays of any plain type whose first axis are the items."""

    bounds: Int64Array
    columns: Mapping[str, np.ndarray]


Blocks = dict[str, RecordBlock]
#: The blocks of a record in order, and the columns of each: name, type, shape of an item.
Layout = tuple[tuple[str, tuple[tuple[str, str, tuple[int, ...]], ...]], ...]


def layout_of(blocks: Blocks) -> Layout:
    return tuple(
        (name, tuple((column, a.dtype.str, tuple(a.shape[1:])) for column, a in block.columns.items()))
        for name, block in blocks.items()
    )


def read_layout(saved: Any) -> Layout:
    """Returns a layout from its JSON form."""
    return tuple((name, tuple((c, kind, tuple(shape)) for c, kind, shape in columns)) for name, columns in saved)


def pack(blocks: Blocks) -> tuple[Int64Array, np.ndarray]:
    """Returns the records of n partitions: the beginning of each, int64 (n + 1,), and their bytes, uint8. A record is
    the number of items of each block, then the columns, in whole words. O(bytes)."""
    n = len(next(iter(blocks.values())).bounds) - 1
    sizes = np.full(n, 4 * len(blocks), np.int64)
    for block in blocks.values():
        width = sum(_width(a.dtype, a.shape[1:]) for a in block.columns.values())
        sizes += np.diff(block.bounds) * width
    bounds = np.zeros(n + 1, np.int64)
    np.cumsum((sizes + WORD - 1) // WORD * WORD, out=bounds[1:])
    data = np.zeros(int(bounds[-1]), np.uint8)
    words = data.view(np.int32)
    for place, block in enumerate(blocks.values()):
        kernels.put_counts(block.bounds, words, bounds, place)
    at = bounds[:-1] + 4 * len(blocks)
    for block in blocks.values():
        for array in block.columns.values():
            items = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            kernels.copy_out(items, _width(array.dtype, array.shape[1:]), block.bounds, data, at)
    return bounds, data


def unpack(bounds: Int64Array, data: np.ndarray, layout: Layout) -> Blocks:
    """The blocks of records with this layout."""
    n = len(bounds) - 1
    words = data.view(np.int32)
    at = bounds[:-1] + 4 * len(layout)
    blocks: Blocks = {}
    counts = []
    for place in range(len(layout)):
        items = np.empty(n + 1, np.int64)
        kernels.get_counts(words, bounds, place, items)
        counts.append(items)
    for (name, columns), items in zip(layout, counts, strict=True):
        found = {}
        for column, kind, shape in columns:
            dtype = np.dtype(kind)
            array = np.empty((int(items[-1]), *shape), dtype)
            kernels.copy_in(data, _width(dtype, shape), items, array.reshape(-1).view(np.uint8), at)
            found[column] = array
        blocks[name] = RecordBlock(items, found)
    return blocks


def _width(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * prod(shape)


def one_each(n: int) -> Int64Array:
    """The bounds of a block with one item for each of n partitions."""
    return np.arange(n + 1)


def bounds_of(counts: Int64Array) -> Int64Array:
    """Returns the beginnings of the items of each partition, int64 (n + 1,)."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def owners(bounds: Int64Array) -> Int64Array:
    """Returns, for each item, the index of its partition among the n."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def spread(first: Int64Array, bounds: Int64Array) -> Int64Array:
    """Returns the indices of items that are consecutive from `first` on, int64 (n,), for all n partitions."""
    return np.repeat(first - bounds[:-1], np.diff(bounds)) + np.arange(bounds[-1])


class Grouped:
    """Items of one array, sorted by their partitions. items: their indices; bounds: the beginning of each partition;
    local: by index, the place among the items of its partition, -1 for all others (and at the end)."""

    __slots__ = ("bounds", "items", "local", "of")

    def __init__(self, of: Int64Array, partitions: int) -> None:
        """of: for each index the place of its partition, -1 for omitted items."""
        self.of = np.append(of, -1)
        self.bounds = np.empty(partitions + 1, np.int64)
        order = np.empty(len(of), np.int64)
        kernels.group(of, self.bounds, order)
        self.items = order[: self.bounds[-1]]
        self.local = np.full(len(of) + 1, -1, np.int64)
        self.local[self.items] = np.arange(len(self.items)) - np.repeat(self.bounds[:-1], np.diff(self.bounds))

    def places(self, references: Int64Array, of: Int64Array) -> Int64Array:
        """Returns references to items as references within the partition; negative ones, and those to an item of
        another partition, become -1. of: for each reference the place of its partition."""
        safe = np.maximum(references, -1)
        return np.where(self.of[safe] == of, self.local[safe], -1)


def anew(references: Int64Array, base: Int64Array, of: Int64Array) -> Int64Array:
    """Returns references within partitions as indices again. base: the new beginnings of the partitions; of: for each
    reference the place of its partition. Negative ones are unchanged."""
    return np.where(references >= 0, references + base[of], references)


def frame(bounds: Int64Array, data: np.ndarray) -> tuple[Int64Array, np.ndarray]:
    """Returns records to be written, each after its length and checksum: the beginning of each, and all bytes."""
    words = bounds // WORD
    framed = np.empty(int(words[-1]) + len(bounds) - 1, np.int64)
    kernels.frame(words, data.view(np.int64), framed)
    return bounds[:-1] + WORD * np.arange(len(bounds) - 1), framed.view(np.uint8)


def unframe(framed: np.ndarray, at: Int64Array, lengths: Int64Array) -> tuple[Int64Array, np.ndarray, int]:
    """Returns records read again: bounds, bytes, and the index of the first damaged one, -1 if none is. at: the
    beginning of each in `framed`, in bytes; lengths: without the frame."""
    bounds = bounds_of(lengths)
    data = np.empty(int(bounds[-1]), np.uint8)
    bad = kernels.unframe(framed.view(np.int64), at // WORD, bounds // WORD, data.view(np.int64))
    return bounds, data, int(bad)


@dataclass(frozen=True, slots=True)
class Leaving:
    """Partitions that leave memory. ids: (n,); place: by partition id, the index among the n, -1 for those that stay;
    rows: the rows of the store that leave with them."""

    ids: Int64Array
    place: Int64Array
    rows: Grouped


@dataclass(frozen=True, slots=True)
class Coming:
    """Partitions that come back. ids: (n,); rows: the new positions of the first rows of each in the store; count:
    number of its rows."""

    ids: Int64Array
    rows: Int64Array
    count: int
