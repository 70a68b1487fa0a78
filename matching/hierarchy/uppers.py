"""The matchers of layers over the same merged rows, as these see them: matching.shared_uppers makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from matching.batch import EventBatch, Matcher, Matches
from matching.purpose import Purpose
from query.plan.plan import Plan


class Uppers(Protocol):
    """The matchers of some layers, by the layer's id. They take the same steps: each row is stored once and its
    conditions are computed once. waits: see `add`."""

    waits: bool

    def add(self, of: int, plan: Plan, purpose: Purpose, waits: bool) -> Matcher | None:
        """Returns the matcher of a layer, a new one if it has one already, which sees the rows from now on; None if it
        cannot share rows. waits: it is to be told, with each push, up to which time all rows have come."""
        ...

    def succeed(
        self, old: int, new: int, plan: Plan, read: Callable[[int, int], EventBatch], purpose: Purpose
    ) -> Matcher | None:
        """Returns a matcher for a layer that has one already, of another plan and with the state of the one of the
        layer `old`, whose place it takes. Returns None, without any change, unless both search for the same; see
        matching.matcher.KernelMatcher.successor."""
        ...

    def keep_only(self, layers: set[int]) -> None:
        """Removes the matchers of all other layers."""
        ...

    def step(
        self, of: int, step: int, batch: EventBatch | None, watermark_us: int | None, ended: bool
    ) -> list[Matches]:
        """Takes a step unless it has been taken: the next merged rows (None: there are none), then a watermark (None:
        it has not moved) or the end. Returns the matches of a layer, in the step of its failure those before it."""
        ...

    def failure(self, of: int) -> Exception | None:
        """Returns the error of a layer's matcher, None if it has not failed."""
        ...

    def none(self, of: int) -> Matches:
        """Returns the empty result of a layer that has not taken a step."""
        ...

    def snapshot(self, layers: set[int] | None) -> dict[str, np.ndarray]:
        """Returns the rows of some layers (None: of all), without the state of matchers, which is saved after it."""
        ...

    def fits(self, state: Mapping[str, np.ndarray]) -> bool:
        """True if it can restore a snapshot: as many matchers share rows in it, as far as that can be seen."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot that fits; the state of matchers is restored after it."""
        ...

    def snapshot_of(self, of: int) -> bytes:
        """Returns the state of a layer's matcher, without its rows."""
        ...

    def restore_of(self, of: int, state: bytes) -> None:
        """Restores the state of a layer's matcher, after the rows."""
        ...


#: Makes the matchers of layers over some merged rows, none yet.
Over = Callable[[], Uppers]
