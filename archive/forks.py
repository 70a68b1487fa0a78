"""The limits of a child after a fork: a database belongs to the process that opened it, and deltalake to the first
process that used it, since a fork copies their memory, but not their threads."""

from __future__ import annotations

import os

from query.errors import DataError

#: The process that has deltalake's threads; None before its first use.
_delta_process: int | None = None


def check_process(what: str, process: int) -> None:
    """Raises DataError in another process than the one that opened a database."""
    if process != os.getpid():
        message = f"{what} was opened by process {process}, before a fork"
        raise DataError(message, "open it in the process that uses it; started by spawn or forkserver")


def check_delta(used: bool = False) -> None:
    """Raises DataError in a forked child of a process that has used deltalake, which cannot answer there. used: this
    process uses deltalake from now on."""
    global _delta_process
    if _delta_process not in (None, os.getpid()):
        raise DataError(
            f"this process was forked from process {_delta_process}, which has used a database on disk: deltalake does "
            "not work in both",
            "start it by multiprocessing.get_context('spawn') or 'forkserver'",
        )
    _delta_process = os.getpid() if used else _delta_process
