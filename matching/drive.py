"""The loop that drives a Matcher: order, push, advance, drain. Queries of one stream are driven by matching.feed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from matching.batch import EventBatch, Matcher, Matches
from matching.ordering import Ordering
from query.errors import DataError
from query.stopping import heed

#: Maximum number of events handed to the Matcher at once, so that the output of a large batch is continuous.
ROWS_MAX = 65_536

_MAGIC = b"HQD1"  # drive state, version 1
_HEAD = struct.Struct("<4s?qq")  # magic, whether there is a watermark, the watermark, length of the ordering's state


class UnfitMatch(NamedTuple):
    """A match with a measure that cannot be computed. last, last_us: position and time of its last event."""

    last: int
    last_us: int
    error: Exception

    def saved(self) -> tuple[int, int, str]:
        """Returns it as values for JSON."""
        return self.last, self.last_us, str(self.error)

    @staticmethod
    def restored(saved: Sequence[Any] | None) -> UnfitMatch | None:
        """Returns what was saved, None for None."""
        return None if saved is None else UnfitMatch(saved[0], saved[1], DataError(saved[2]))


def first_unfit(*found: UnfitMatch | None) -> UnfitMatch | None:
    """Returns the one that ends first, None if there is none."""
    some = [one for one in found if one is not None]
    return min(some, key=lambda one: one.last) if some else None


@runtime_checkable
class NotesUnfit(Protocol):
    """A matcher of a box's pattern that can go on behind a match with a measure that cannot be computed: if
    `notes_unfit` is set, such a match is left out, and the first of them by their last events is `unfit`; matches that
    end later may be missing, too."""

    notes_unfit: bool

    @property
    def unfit(self) -> UnfitMatch | None: ...


def unfit_of(matcher: Matcher) -> UnfitMatch | None:
    """Returns the first match of a matcher with a measure that cannot be computed, see NotesUnfit."""
    found: UnfitMatch | None = getattr(matcher, "unfit", None)  # asked in each step, where isinstance takes longer
    return found


class Drive:
    """An Ordering in front of a Matcher. Takes on-time events in arrival order and returns the matches they decide.

    Not thread safe. failure: the error of the Matcher, None if it has not failed; the matches before it have been
    returned, and none come any more. failed_us: the time before which no match is missing because of it; None if it is
    not known.
    """

    __slots__ = ("_advanced_us", "failed_us", "failure", "matcher", "ordering")

    def __init__(self, ordering: Ordering, matcher: Matcher) -> None:
        self.ordering = ordering
        self.matcher = matcher
        self._advanced_us: int | None = None
        self.failure: Exception | None = None
        self.failed_us: int | None = None

    def push(self, batch: EventBatch, watermark_us: int | None) -> list[Matches]:
        """Takes n on-time events and the stream's watermark after them, or None if it has none yet.

        Returns the non-empty Matches in order of emission."""
        out = self._pushed(self.ordering.push(batch, watermark_us))
        return out if watermark_us is None else out + self._advance(watermark_us)

    def advance(self, watermark_us: int | None) -> list[Matches]:
        """Announces that no event with time < watermark_us can still come; None: the input has ended. Returns the
        matches."""
        return self._pushed(self.ordering.advance(watermark_us)) + self._advance(watermark_us)

    def _pushed(self, batch: EventBatch) -> list[Matches]:
        return self._until_failure(lambda: pushed(self.matcher, [batch]))

    def _until_failure(self, act: Callable[[], Iterator[Matches]]) -> list[Matches]:
        """Returns the matches of what the matcher does, up to its failure."""
        out: list[Matches] = []
        if self.failure is not None:
            return out
        try:
            out += act()
        except Exception as error:  # noqa: BLE001  (any failure is that of the query)
            self.failure = error
            out += before_failure(self.matcher)
            failed_us = failed_at(self.matcher)
            self.failed_us = self._advanced_us if failed_us is None else failed_us
        return out

    def snapshot(self) -> bytes:
        """Returns held events and the Matcher's state, versioned."""
        ordering, matcher = self.ordering.snapshot(), self.matcher.snapshot()
        w = self._advanced_us
        return _HEAD.pack(_MAGIC, w is not None, w or 0, len(ordering)) + ordering + matcher

    def fits(self, state: bytes) -> bool:
        """True if its matcher can restore a snapshot."""
        if len(state) < _HEAD.size or state[:4] != _MAGIC:
            return False
        *_, size = _HEAD.unpack_from(state)
        return self.matcher.fits(state[_HEAD.size + size :])

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of a Drive of the same schema and plan. Raises DataError for any other state."""
        if len(state) < _HEAD.size or state[:4] != _MAGIC:
            raise DataError("this is no saved state of a query", "if it has another version, start from the archive")
        _, known, w, size = _HEAD.unpack_from(state)
        self.ordering.restore(state[_HEAD.size : _HEAD.size + size])
        self.matcher.restore(state[_HEAD.size + size :])
        self._advanced_us = w if known else None

    def _advance(self, watermark_us: int | None) -> list[Matches]:
        if watermark_us is not None:
            # An unchanged watermark decides nothing more: later events are not before it.
            if self._advanced_us is not None and watermark_us <= self._advanced_us:
                return []
        found = self._until_failure(lambda: advanced(self.matcher, watermark_us))
        if watermark_us is not None:
            self._advanced_us = watermark_us
        return found


def run(matcher: Matcher, batches: Iterable[EventBatch], end_us: int | None = None) -> Iterator[Matches]:
    """Yields the matches of a bounded input: pushes all batches, which are in the total order already, then ends it.

    end_us: the input does not end, but no earlier event can still come. Yields the non-empty Matches in order of
    emission, as soon as they are decided."""
    yield from pushed(matcher, batches)
    yield from advanced(matcher, end_us)


def pushed(matcher: Matcher, batches: Iterable[EventBatch]) -> Iterator[Matches]:
    """Yields the non-empty Matches that the next events of the total order decide, in order of emission."""
    for batch in batches:
        for part in parts(batch):
            matches = matcher.push(part)
            heed(len(part))
            if len(matches) or matches.rows.num_rows:
                yield matches


def advanced(matcher: Matcher, watermark_us: int | None) -> Iterator[Matches]:
    """Yields the matches that a watermark decides, if any; see matching.batch.Matcher.advance."""
    matches = matcher.advance(watermark_us)
    if len(matches) or matches.rows.num_rows:
        yield matches


def before_failure(matcher: Matcher) -> list[Matches]:
    """Returns the non-empty Matches that a matcher had decided before the event at which it has just failed, in order
    of emission: as if what it was given had been cut there. Empty if the matcher does not know them."""
    decided = getattr(matcher, "before_failure", None)
    try:
        return [] if decided is None else [m for m in decided() if len(m) or m.rows.num_rows]
    except Exception:  # noqa: BLE001  (what has failed is known; this is a lack of memory, for example)
        return []


def failed_at(matcher: Matcher | None) -> int | None:
    """Returns the time of the event at which a matcher has failed; None if it does not know it."""
    found: int | None = getattr(matcher, "failed_us", None)
    return found


def parts(batch: EventBatch) -> Iterator[EventBatch]:
    """Yields the slices in which events go into a Matcher, zero copy."""
    for start in range(0, len(batch), ROWS_MAX):
        yield batch if len(batch) <= ROWS_MAX else batch.slice(start, min(start + ROWS_MAX, len(batch)))
