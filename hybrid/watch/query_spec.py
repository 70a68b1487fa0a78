"""The request for a live query, and its form in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

#: The watermark of an ended input.
END_US = 2**63 - 1
#: The mode in which trends are counted together (matching.workload.modes) unless another is asked for.
SHARING = "dynamic"


@dataclass(frozen=True, slots=True)
class Asked:
    """The request for a named live query; the names are those of Database.watch. patterns: the named patterns that it
    uses, with the texts that it began with, by name in lower case."""

    name: str
    text: str
    strategy: str
    tolerance_us: int | None
    evidence: bool
    into: str | None
    time: str | None
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    from_us: int | None = None
    sharing: str = SHARING
    patterns: Mapping[str, str] = field(default_factory=dict)

    def same(self, other: Asked) -> bool:
        """True if both requests are equal."""
        mine, theirs = self.tables, other.tables
        return (
            replace(self, name="", tables={}) == replace(other, name="", tables={})
            and mine.keys() == theirs.keys()
            and all(mine[name].equals(theirs[name]) for name in mine)
        )


#: By field of Asked: its tag in a checkpoint, and the default of an absent one (none: it must be there). Tags stay when
#: fields are renamed.
ASKED_TAGS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "name": ("name", ()), "text": ("text", ()), "strategy": ("strategy", ()),
    "tolerance_us": ("tolerance_us", (None,)), "evidence": ("evidence", (False,)), "into": ("into", (None,)),
    "time": ("time", (None,)), "tables": ("tables", ({},)), "from_us": ("from_us", (None,)),
    "sharing": ("sharing", (SHARING,)), "patterns": ("patterns", ({},)),
}  # fmt: skip


def read_asked(saved: Mapping[str, Any]) -> Asked:
    """Returns the request that `state_of` wrote. Raises KeyError."""
    found = {
        name: saved[tag] if tag in saved or not default else default[0] for name, (tag, default) in ASKED_TAGS.items()
    }
    return Asked(**found)
