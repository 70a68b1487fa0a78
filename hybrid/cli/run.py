"""`hybrid run`, `hybrid status` and `hybrid top`: a service of streams, sources, queries and sinks, and its status."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybrid.cli.output import say

if TYPE_CHECKING:
    from hybrid.service.app import App

Where = Annotated[str, typer.Argument(help="The app file, or the directory of its database.")]
APP = Path("app.toml")
#: Seconds between two looks of `hybrid top`.
TOP_EVERY_S = 1.0


def run(
    file: Annotated[Path, typer.Argument(help="The app file: streams, sources, queries, sinks.")] = APP,
    check: Annotated[bool, typer.Option("--check", help="Only check the file.")] = False,
) -> None:
    """Runs the service of an app file until SIGTERM, or until all sources end. SIGHUP, or a change of the file, applies
    its changes."""
    if check:
        checked(file)
        say(f"{file} is valid")
        return
    reload_asked: list[int] = []  # before the service is there: the signal would end the process
    before = signal.signal(signal.SIGHUP, lambda number, _: reload_asked.append(number))
    try:
        app = checked(file)
        from hybrid.service.service import Service

        service = Service(app, _said)
        service.reloads.asked = bool(reload_asked)
        code = service.run()
    finally:
        signal.signal(signal.SIGHUP, before)
    if service.abandoned:  # a thread still waits for a store, and a normal exit would join it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


def checked(file: Path) -> App:
    """Returns the app of a file. With faults in the file, prints all of them and exits with code 1."""
    from hybrid.service.app_file import AppError, load

    try:
        return load(file)
    except AppError as error:
        say(error.render())
        raise typer.Exit(1) from None


def statements(file: Path, section: str = "queries") -> dict[str, str]:
    """Returns the texts of `[queries.NAME]` in an app file, of which nothing else is read; of `[patterns.NAME]` maybe
    none. Raises DataError."""
    import tomllib

    from query.errors import DataError

    try:
        tables = tomllib.loads(file.read_text()).get(section, {})
        found = {n: q["sql"] if "sql" in q else (file.parent / q["file"]).read_text() for n, q in tables.items()}
    except OSError as error:
        raise DataError(f"cannot read {error.filename or file}: {error.strerror}", "name an app file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        hint = 'a query is a table [queries.NAME] with sql = """...""" or file = "..."'
        raise DataError(f"{file} has no queries that can be read: {error}", hint) from None
    if not found and section == "queries":
        raise DataError(f"{file} has no queries", "write each as a table [queries.NAME] with its sql")
    return found


def sharing_of(file: Path) -> tuple[str, dict[str, str]]:
    """Returns the `sharing` of an app file whose queries can be read, and those of single queries."""
    import tomllib

    from hybrid.watch.query_spec import SHARING

    tables = tomllib.loads(file.read_text())
    database = tables.get("database")
    of_all = database.get("sharing", SHARING) if isinstance(database, dict) else SHARING
    return str(of_all), {name: str(q["sharing"]) for name, q in tables["queries"].items() if "sharing" in q}


def status(
    where: Where = str(APP),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, on one line.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Print one line: the state of the process.")] = False,
    ready_: Annotated[
        bool, typer.Option("--ready", help="Print one line; exit code 1 also if the service accepts no events now.")
    ] = False,
) -> None:
    """Shows the status of a service: rates, watermarks, matches, late events, warnings. Exit code 1: not running."""
    from hybrid.service.status import ALIVE, headline, lines, read_status, ready, rendered

    told = read_status(_state(where))
    if live or ready_:
        print(headline(told, time.time()))
        raise typer.Exit(0 if (ready(told, time.time()) if ready_ else told["state"] in ALIVE) else 1)
    if as_json:
        print(json.dumps(told))
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        console.print(rendered(told, time.time(), console.width))
    else:
        print("\n".join(lines(told, time.time())))
    raise typer.Exit(0 if told["state"] in ALIVE else 1)


def top(where: Where = str(APP)) -> None:
    """Shows the status of a service, refreshed every second, until Ctrl-C. In a pipe, lines every second."""
    from hybrid.service.status import lines, read_status, rendered
    from query.errors import DataError

    directory = _state(where)
    told = read_status(directory)
    try:
        if not sys.stdout.isatty():
            shown = "\n".join(lines(told, time.time()))
            while True:
                print(shown, flush=True)
                time.sleep(TOP_EVERY_S)
                try:
                    shown = "\n".join(lines(read_status(directory), time.time()))
                except DataError as error:  # the directory was moved, or its disk unmounted: it may come back
                    shown = str(error)
        from rich.live import Live
        from rich.text import Text

        with Live(auto_refresh=False) as live:
            live.update(rendered(told, time.time(), live.console.width), refresh=True)
            while True:
                time.sleep(TOP_EVERY_S)
                try:
                    live.update(rendered(read_status(directory), time.time(), live.console.width), refresh=True)
                except DataError as error:  # as in a pipe
                    live.update(Text(str(error)), refresh=True)
    except KeyboardInterrupt:
        pass


def _state(where: str) -> Path:
    from hybrid.service.app_file import AppError, state_of
    from query.errors import DataError

    if "://" in where:
        hint = "name its app file: hybrid status app.toml"
        raise DataError(f"the service of {where} writes its status to its own disk, not to the store", hint)
    try:
        return state_of(Path(where))
    except AppError as error:
        say(error.render())
        raise typer.Exit(1) from None


def _said(message: str) -> None:
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {message}", indent="  ")
