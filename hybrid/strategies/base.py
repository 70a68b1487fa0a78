"""What a strategy sees (Frontier) and what it may answer (Decision)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Frontier:
    """One live match and how far its history stream has come.

    low_us, last_us: first and last instant of the history range, both inside it (microseconds; low_us > last_us: an
    empty range). as_known: the query takes what is known now. watermark_us: of the history stream; no on-time event
    with time < watermark_us can still come; None before the first event. ended: nothing can come at all.
    """

    low_us: int
    last_us: int
    as_known: bool
    watermark_us: int | None
    ended: bool

    @property
    def complete(self) -> bool:
        """No event inside the range can still come: the watermark is greater than the last instant inside it."""
        if self.ended or self.low_us > self.last_us:
            return True
        return self.watermark_us is not None and self.watermark_us > self.last_us


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep the match; ask again when the watermark has moved."""


@dataclass(frozen=True, slots=True)
class AskArchive:
    """Read history in [low_us, last_us] now and join. complete: False if later events may still fall into the range."""

    low_us: int
    last_us: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Detect:
    """Find archive matches of these keys ahead of any live match."""

    keys: tuple[str, ...]
    low_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Gate:
    """Let only these keys into live detection."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the match: nothing can come of it."""


Decision = Wait | AskArchive | Detect | Gate | Discard


class Strategy(Protocol):
    """Decides for one frontier. The driver calls it whenever a live match is new or a watermark has moved; it must not
    read anything but its argument."""

    @property
    def name(self) -> str: ...

    def decide(self, frontier: Frontier) -> Decision: ...
