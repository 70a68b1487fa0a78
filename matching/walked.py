"""The values that are kept of each row of a run, for kernels that walk over its rows (matching.kernels.walks)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.engines.run_trends import in_order
from matching.kernels.layout import grown
from matching.program.program import Program


class KeptValues:
    """Values by position in the row store, as integers in their order."""

    def __init__(self, program: Program) -> None:
        self._features = [(f, program.features[f][1].floating) for f in program.kept]
        self._values = np.zeros((len(self._features), 1), np.int64)
        self._valid = np.zeros((len(self._features), 1), np.bool_)

    def put(self, positions: Int64Array | slice, feature: np.ndarray, valid: np.ndarray) -> None:
        """Keeps the values of rows, at least one. feature, valid: values by feature and row."""
        last = positions.stop if isinstance(positions, slice) else int(positions.max()) + 1
        if last > self._values.shape[1]:
            self._values, self._valid = (_wider(a, 2 * last) for a in (self._values, self._valid))
        for place, (f, floating) in enumerate(self._features):
            numbers = feature[f]
            self._values[place, positions] = in_order(numbers.view(np.float64)) if floating else numbers
            self._valid[place, positions] = valid[f]

    def of(self, feature: int, positions: Int64Array) -> tuple[Int64Array, np.ndarray]:
        """Returns the values of a feature at positions, and which are not null."""
        place = [f for f, _ in self._features].index(feature)
        return self._values[place, positions], self._valid[place, positions]

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position, the new one, -1 for rows that are gone."""
        before = np.flatnonzero(moved[: self._values.shape[1]] >= 0)
        after = moved[before]
        values, valid = self._values[:, before], self._valid[:, before]
        self._values[:, after], self._valid[:, after] = values, valid

    def tables(self, positions: Int64Array | slice) -> dict[str, np.ndarray]:
        """Returns the tables of matching.kernels.layout.ProgramArrays for the rows at `positions`."""
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        return {"of_rows": self._values, "of_rows_valid": self._valid, "rows": rows}


def _wider(array: np.ndarray, width: int) -> np.ndarray:
    return np.ascontiguousarray(grown(array.T, width).T)
