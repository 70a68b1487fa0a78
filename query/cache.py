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


def is_private(directory: Path) -> bool:
    """Whether only this user can put files into a directory, which is made if it is not there. What is kept there is
    run, or read in a way that can run what stands there."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        if found.st_uid != os.getuid():
            return False
        if found.st_mode & 0o022:
            directory.chmod(0o700)
        return os.access(directory, os.W_OK)
    except OSError:
        return False
