"""A line on the terminal about work that takes more than a second: what it does, how far it is, and for how long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid.statement import compile_notice

if TYPE_CHECKING:
    from query.stopping import Stop

#: Seconds after which people want to know, and between two looks at how far the work is.
PATIENCE_S, EVERY_S = 1.0, 0.2
#: Fewer rows are pushed in less than a second.
MANY_ROWS = 50_000

_one = threading.Lock()


@dataclass(frozen=True, slots=True)
class Far:
    """How far work is. what: what it does now. done, total: in whatever it counts; total None: unknown."""

    what: str
    done: int = 0
    total: int | None = None


@contextmanager
def progress(far: Callable[[], Far]) -> Iterator[None]:
    """Shows on stderr how far the work within is, if that is a terminal, from PATIENCE_S on until the work ends. Work
    inside of work that is shown, and beside it in another thread, shows nothing. far: called in a thread of its own."""
    if sys.stderr is None or not sys.stderr.isatty() or not _one.acquire(blocking=False):
        yield
        return
    over = threading.Event()
    shows = threading.Thread(target=_show, args=(far, over), name="hybrid-progress", daemon=True)
    compile_notice.told_elsewhere = True
    try:
        shows.start()
        yield
    finally:
        over.set()
        shows.join()
        compile_notice.told_elsewhere = False
        _one.release()


def of_rows(what: str, data: Any) -> AbstractContextManager[None]:
    """Shows work of the main thread on rows that are given, as `progress` does, if they are many: other work is too
    short for a thread that looks at it, and other threads are those of a service."""
    rows = getattr(data, "num_rows", None)
    if isinstance(data, list) or type(data).__name__ == "DataFrame":
        rows = len(data)
    if not isinstance(rows, int) or rows < MANY_ROWS or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return progress(lambda: Far(f"{what} {rows:,} rows"))


def of_statement(stop: Stop) -> Callable[[], Far]:
    """Returns how far a statement is: rows that have been matched, of those that it reads."""

    def far() -> Far:
        if not stop.rows:
            return Far("reading")
        if stop.total is not None and stop.rows >= stop.total:
            return Far(f"{stop.rows:,} rows matched, putting their matches together")
        of = "" if stop.total is None else f" of {stop.total:,}"
        return Far(f"{stop.rows:,}{of} rows matched", stop.rows, stop.total)

    return far


def _show(far: Callable[[], Far], over: threading.Event) -> None:
    if over.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    what = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), what, BarColumn(bar_width=20), TimeElapsedColumn())
    console = Console(stderr=True)
    if over.is_set():
        return
    with Progress(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=False) as line:
        task = line.add_task("", total=None)
        line.tasks[task].start_time = (line.tasks[task].start_time or 0.0) - PATIENCE_S
        while True:
            now = far()
            now_does = compile_notice.TEXT if compile_notice.compiles() else now.what
            line.update(task, description=now_does, completed=now.done, total=now.total)
            line.refresh()
            if over.wait(EVERY_S):
                return
