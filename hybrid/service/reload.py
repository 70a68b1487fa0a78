"""Applies the changes of the app file to a running service."""

from __future__ import annotations

from hybrid.service.app_file import AppError, load
from hybrid.service.changes import Settling, changes_of, check_change, check_not_emptied
from hybrid.service.context import Context
from hybrid.service.declare import declare_all, declare_patterns
from hybrid.service.intake import Intake
from hybrid.service.outlets import Outlets
from hybrid.service.queries import ServiceQueries
from hybrid.service.sources import Sources
from hybrid.service.trouble import said
from query.errors import DataError, QueryError

#: Seconds between two checks of the app file; seconds for which a changed one must stay unchanged before it is read.
LOOK_EVERY_S, SETTLED_S = 1.0, 2.0


class Reload:
    """Reloads the app file when it has changed, or as soon as `asked` is set: by SIGHUP, whose handler sets it. Used
    from the thread of the loop."""

    def __init__(
        self, context: Context, sources: Sources, intake: Intake, queries: ServiceQueries, outlets: Outlets
    ) -> None:
        self.asked = False
        self._context = context
        self._sources, self._intake, self._queries, self._outlets = sources, intake, queries, outlets
        self._files = Settling((), SETTLED_S)
        self._looked_s = 0.0

    def begin(self) -> None:
        """Begins with the present state of the files."""
        self._files = Settling(self._context.app.files, SETTLED_S)
        self._looked_s = self._context.clock.ticks()

    def turn(self) -> None:
        """Reloads if that is due. A reload that fails on the way is retried."""
        if self.asked or self._changed():
            self._context.doing = "a reload"
            asked, self.asked = self.asked, False
            try:
                self.reload(asked)
            except (DataError, QueryError, OSError) as error:
                self._context.trouble.fault("app", f"partly reloaded, and retried: {said(error)}")
                self._files.forget()

    def _changed(self) -> bool:
        """True if a file of the app has changed and settled. Checks once a second."""
        if self._context.clock.ticks() - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = self._context.clock.ticks()
        return self._files.changed(self._context.app.files, self._looked_s)

    def reload(self, asked: bool) -> None:
        """Applies the changes of the app file. If it has a fault, or a change that needs a restart, nothing changes.
        asked: requested by SIGHUP: removed queries end at once."""
        context, queries, outlets, sources = self._context, self._queries, self._outlets, self._sources
        try:
            app = load(context.app.path)
            if asked:
                queries.end_removed(at_once=True)
            else:
                check_not_emptied(context.app, app)
            removed = {name: running for name, (running, _) in queries.removed.items()}
            reads = {name: running.query.reads for name, running in (removed | queries.running).items()}
            check_change(context.app, app, reads)
        except (AppError, DataError) as error:
            context.trouble.fault("app", f"not reloaded: {error.render() if isinstance(error, AppError) else error}")
            return
        was, context.app = context.app, app
        self._files = Settling(app.files, SETTLED_S)
        context.trouble.well("app")
        queries.delayed = {name: reads for name, reads in queries.delayed.items() if name in app.queries}
        # New sinks first, removed ones last: rows fetched meanwhile have their sink.
        for name in [n for n, t in was.sinks.items() if n in app.sinks and app.sinks[n] != t]:
            outlets.leave(name)
        for name, sink in app.sinks.items():
            if name not in outlets.by_name:
                outlets.open(name, sink)
        before = {name: stream.columns for name, stream in was.streams.items()}
        columns = {n.lower() for n, s in app.streams.items() if before.get(n, s.columns) != s.columns}
        for name in [n for n, t in sources.tables.items() if n not in app.sources or t.stream.lower() in columns]:
            self._intake.close_source(name)
        for name in [n for n in queries.running if n not in app.queries]:
            if asked:
                queries.close(name)
            else:
                queries.remove(name)
        outlets.rows_kept()
        declare_all(context)
        declare_patterns(context)
        queries.take_back()
        for name, query in app.queries.items():
            queries.update(name, query)
        for name in [n for n in outlets.by_name if n not in app.sinks]:
            outlets.leave(name)
            context.trouble.well(f"sink {name}")
        self._intake.open_rest()
        context.say(f"reloaded {app.path.name}: {changes_of(was, app)}")
