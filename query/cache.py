"""Where things are kept that can be made again, but not at once: compiled kernels, the tables of the grammar."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """The directory of ours among the user's caches; it need not be there, and where the user has no home it cannot be
    made."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybrid"
    except RuntimeError:
        return Path(os.devnull) / "hybrid"
