"""Where tests keep files that need not be on a disk: no test of losing power, but many small tables."""

from __future__ import annotations

import os
import shutil
import tempfile

_SHARED = "/dev/shm"


def memory_place() -> str:
    """Returns a directory whose files are in memory where Linux has one with room, else that of temporary files."""
    if os.access(_SHARED, os.W_OK) and shutil.disk_usage(_SHARED).free > 1 << 30:
        return _SHARED
    return tempfile.gettempdir()


#: For `dir=` of tempfile: half of the time of a small table on disk is waiting for fsync.
MEMORY = memory_place()
