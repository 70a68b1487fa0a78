"""True if another thread may still push to a database, for which an iteration over alerts waits."""

from __future__ import annotations

import threading
from collections.abc import Collection

from archive.history import KEEPER
from archive.writer import RENEWER
from hybrid.database.checkpoints import WRITERS
from hybrid.join.requests import POOLS
from hybrid.watch.ticker import TICKER


def may_push(pushers: Collection[int], paced: bool) -> bool:
    """Returns whether another thread may still push: False if the calling thread has pushed or is the only one.
    pushers: the threads that have pushed. paced: whether time alone may raise a watermark.

    A thread that Python did not start (a debugger's, a test runner's) counts if it has pushed, since its end is
    unknown. Threads of Spark's client never count."""
    own = threading.get_ident()
    quiet = (KEEPER, RENEWER) if paced else (KEEPER, RENEWER, TICKER)
    others = [
        t for t in threading.enumerate()
        if t.ident != own and t.name not in quiet and not t.name.startswith((POOLS, WRITERS)) and not _is_sparks(t)
    ]  # fmt: skip
    return own not in pushers and any(
        not isinstance(thread, threading._DummyThread) or thread.ident in pushers for thread in others
    )


def _is_sparks(thread: threading.Thread) -> bool:
    """Returns whether a thread belongs to Spark's client, by its class and target."""
    from archive.spark.session import PACKAGES

    runs = getattr(thread, "_target", None)
    owners = (type(thread), runs, type(getattr(runs, "__self__", None)))
    return any(str(getattr(o, "__module__", "")).partition(".")[0] in PACKAGES for o in owners)
