"""The end of a process, as tests that stay in one see it."""

from __future__ import annotations

import os
import weakref
from typing import Any

from hybrid.database.database import Database
from tests.hybrid.inside import disowned, without_threads

_last: weakref.WeakValueDictionary[str, Database] = weakref.WeakValueDictionary()


def killed(db: Database) -> None:
    """Its process ends here, without a word: nothing is written, and the lock is free."""
    without_threads(db)
    disowned(db)


def opened_again(path: str | os.PathLike[str] | None, **options: Any) -> Database:
    """Opens a database as the next process does: that of whoever opened it before has been killed, if not closed."""
    before = None if path is None else _last.pop(str(path), None)
    if before is not None:
        killed(before)
    db = Database(path, **options)
    if path is not None:
        _last[str(path)] = db
    return db
