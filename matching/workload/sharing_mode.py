"""The ways to share the work of queries of trends. Loads no other module."""

from __future__ import annotations

from enum import Enum


class Splitting(Enum):
    """When the queries of a set are counted separately for a while, in a window."""

    NEVER = "never"
    BY_SNAPSHOTS = "from the snapshot on by which there are more of them than queries"
    BY_BURSTS = "but for bursts of events that are long enough"


class SharingMode(Enum):
    """none: each query counts on its own. hamlet: queries share events of one type that repeats, burst by burst.
    static: the plan is chosen once, for the first rates. dynamic: the plan follows the rates."""

    NONE = "none"
    HAMLET = "hamlet"
    STATIC = "static"
    DYNAMIC = "dynamic"

    @property
    def splitting(self) -> Splitting:
        """Returns when sets of its plans split in a window."""
        match self:
            case SharingMode.HAMLET:
                return Splitting.BY_BURSTS
            case SharingMode.DYNAMIC:
                return Splitting.BY_SNAPSHOTS
            case _:
                return Splitting.NEVER

    @property
    def measures(self) -> bool:
        """True if its plans depend on rates."""
        return self in (SharingMode.STATIC, SharingMode.DYNAMIC)
