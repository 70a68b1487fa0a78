"""Caches on disk: compiled kernels and grammar tables, which take a while to rebuild."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Returns the cache directory; it may not exist, and cannot be created if the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hybrid"
    except RuntimeError:
        return Path(os.devnull) / "hybrid"


def is_private(directory: Path) -> bool:
    """True if only this user can write to a directory, which is created if missing. Its files are executed, or read in
    a way that can execute them."""
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
