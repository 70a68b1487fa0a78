"""Answers matches apart after a request for history has failed, so that those before the failure are not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybrid.join.driver import Driver
from hybrid.rows.answer import Answer
from query.errors import NotComputed, Overflows, QueryError

#: The errors of a value that cannot be computed; any other one is of the archive, and each request may have it.
UNCOMPUTED = (QueryError, NotComputed, Overflows)


def answers_apart(
    driver: Driver, begin: Callable[[int], Callable[[], Answer] | None], leave_out: Callable[[Exception], None]
) -> Iterator[Answer]:
    """Yields the answers of all matches that can be answered, after a request of a driver has failed.

    begin: `driver.begin` for at most so many matches. leave_out: called with the error of the first pending match,
    which cannot be joined; forgets it, and those that may be missing then. Requests are halved until they can be
    answered: about 2 log2(n) for n matches and one that cannot be joined."""
    driver.take_back()
    most = driver.waiting_count
    while driver.waiting_count:
        try:
            request = begin(most)
            if request is None:
                return
            answer = driver.finish(request())
        except UNCOMPUTED as error:
            driver.take_back()
            most //= 2
            if not most:
                leave_out(error)
                most = driver.waiting_count
            continue
        yield answer
