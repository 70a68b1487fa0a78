"""The inside of a Database, as tests of other folders look at it: the one place that knows its private names."""

from __future__ import annotations

from hybrid.database.checkpoints import Checkpoints
from hybrid.database.clocks import Clocks
from hybrid.database.database import Database
from hybrid.database.opened import Opened
from hybrid.watch.flow import Flow


def flow_of(db: Database) -> Flow:
    """Returns its streams and live queries."""
    return db._flow


def opened_of(db: Database) -> Opened:
    """Returns the place, the mode and the writer with which it was opened."""
    return db._opened


def memory_limit_of(db: Database) -> str | None:
    """Returns the limit of memory, as it was given."""
    return db._parts.memory_limit


def checkpoints_of(db: Database) -> Checkpoints:
    return db._checkpoints


def clocks_of(db: Database) -> Clocks:
    return db._clocks


def caught_up(db: Database) -> None:
    """Lets every live query take what has been pushed."""
    for query in db._flow.queries:
        db._parts.catch_up(query)


def may_wait(db: Database) -> bool:
    """True if an iteration over alerts waits for another thread."""
    return db._parts.may_wait()


def without_threads(db: Database) -> None:
    """Stops its threads, as the end of its process does."""
    if db._clocks.ticker is not None:
        db._clocks.ticker.stop()
    if db._parts.keeper is not None:
        db._parts.keeper.stop()


def disowned(db: Database) -> None:
    """Closes it without writing, as a fork does in the child."""
    db._parts.disown()
