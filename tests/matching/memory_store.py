"""Records of partial matches in memory: a SpillStore without a disk."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.records import frame, unframe
from matching.state import pack, unpack
from query.errors import DataError


class MemoryStore:
    """Records in memory. Its manifest contains them all."""

    def __init__(self) -> None:
        self._pages: dict[int, np.ndarray] = {}
        self._live: dict[int, int] = {}
        self._next = 0

    def put(self, bounds: Int64Array, data: np.ndarray) -> Int64Array:
        places, framed = frame(bounds, data)
        page, self._next = self._next, self._next + 1
        self._pages[page], self._live[page] = framed, int(bounds[-1])
        return (page << 32) + places

    def read(self, places: Int64Array, lengths: Int64Array) -> tuple[Int64Array, np.ndarray]:
        bounds = np.zeros(len(places) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        out = np.empty(int(bounds[-1]), np.uint8)
        for page in np.unique(places >> 32):
            of = np.flatnonzero(places >> 32 == page)
            _, data, bad = unframe(self._pages[int(page)], places[of] & 0xFFFFFFFF, lengths[of])
            if bad >= 0:
                raise DataError("a record of partial matches is damaged", "resume from a checkpoint")
            at = 0
            for i in of:
                out[bounds[i] : bounds[i + 1]] = data[at : at + lengths[i]]
                at += int(lengths[i])
        return bounds, out

    def drop(self, places: Int64Array, lengths: Int64Array) -> None:
        for place, length in zip((places >> 32).tolist(), lengths.tolist(), strict=True):
            self._live[place] -= length
            if not self._live[place]:
                del self._live[place], self._pages[place]

    def adopt(self, places: Int64Array, lengths: Int64Array) -> None:
        for place, length in zip((places >> 32).tolist(), lengths.tolist(), strict=True):
            self._live[place] = self._live.get(place, 0) + length

    wears = False

    def worn(self, places: Int64Array) -> np.ndarray:
        return np.zeros(len(places), np.bool_)

    def manifest(self) -> bytes:
        return pack({"next": self._next}, {str(page): data for page, data in self._pages.items()})

    def restore(self, manifest: bytes) -> None:
        head, pages = unpack(manifest)
        self._pages |= {int(page): data for page, data in pages.items()}
        self._next = max(self._next, head["next"])
