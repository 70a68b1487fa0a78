"""The values that are kept of each row of a run, for kernels that walk over its rows (matching.kernels.walks)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.engines.run_trends import in_order
from matching.kernels.layout import grown
from matching.program.program import Program


class KeptValues:
    """Values by position in the row store, as integers in their order, and as they are."""

    def __init__(self, program: Program) -> None:
        self._features = [(f, program.features[f][1].floating) for f in program.kept]
        floats = [f for f, floating in self._features if floating] if any(a.rows for a in program.asked) else []
        #: of floats that DuckDB is asked about, the values as they are: 0 has a sign
        self._plain = {f: k for k, f in enumerate(floats)}
        self._doubles = np.zeros((len(floats), 1), np.int64)
        self._values = np.zeros((len(self._features), 1), np.int64)
        self._valid = np.zeros((len(self._features), 1), np.bool_)

    def put(self, positions: Int64Array | slice, feature: np.ndarray, valid: np.ndarray) -> None:
        """Keeps the values of rows, at least one. feature, valid: values by feature and row."""
        last = positions.stop if isinstance(positions, slice) else int(positions.max()) + 1
        if last > self._values.shape[1]:
            wider = (_wider(a, 2 * last) for a in (self._values, self._valid, self._doubles))
            self._values, self._valid, self._doubles = wider
        for place, (f, floating) in enumerate(self._features):
            numbers = feature[f]
            self._values[place, positions] = in_order(numbers.view(np.float64)) if floating else numbers
            self._valid[place, positions] = valid[f]
        for f, place in self._plain.items():
            self._doubles[place, positions] = feature[f]

    def of(self, feature: int, positions: Int64Array) -> tuple[Int64Array, np.ndarray]:
        """Returns the values of a feature at positions, of floats their bits, and which are not null."""
        place = [f for f, _ in self._features].index(feature)
        doubles = self._plain.get(feature)
        values = self._values[place, positions] if doubles is None else self._doubles[doubles, positions]
        return values, self._valid[place, positions]

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position, the new one, -1 for rows that are gone."""
        before = np.flatnonzero(moved[: self._values.shape[1]] >= 0)
        after = moved[before]
        for kept in (self._values, self._valid, self._doubles):
            kept[:, after] = kept[:, before]

    def tables(self, positions: Int64Array | slice) -> dict[str, np.ndarray]:
        """Returns the tables of matching.kernels.layout for the rows at `positions`."""
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        return {"of_rows": self._values, "of_rows_valid": self._valid, "rows": rows}


def _wider(array: np.ndarray, width: int) -> np.ndarray:
    return np.ascontiguousarray(grown(array.T, width).T)
