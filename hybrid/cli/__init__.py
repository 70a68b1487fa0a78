"""The command line: `hybrid sql | explain | check | run | ...`; `hybrid --help` lists all.

Data goes to stdout, messages and progress to stderr. Exit codes: 0 success, 1 an error in the query or the data (or a
demo that misses planted matches), 2 wrong usage. Heavy modules are imported only by the commands that need them.
"""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli import archive, pattern, run
from hybrid.cli.given import existing, open_tables, query_text, with_file_hints
from hybrid.cli.output import FileFormats, RowFormat, say, write

if TYPE_CHECKING:
    from hybrid.rows.evidence_tree import EvidenceTree
    from hybrid.rows.result import Result

app = typer.Typer(
    name="hybrid", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="One row-pattern query over live streams and archived history.",
)  # fmt: skip
app.add_typer(archive.app, name="archive")
app.add_typer(pattern.app, name="pattern")


class Stage(StrEnum):
    """Stages of EXPLAIN."""

    all = "all"
    ast = "ast"
    plan = "plan"
    nfab = "nfab"
    automaton = "automaton"
    program = "program"
    kernel = "kernel"


class ScenarioName(StrEnum):
    """Simulated scenarios."""

    stock = "stock"
    rfid = "rfid"
    highway = "highway"
    security = "security"
    thieves = "thieves"


class Demo(StrEnum):
    """Demos."""

    valley = "valley"
    stock = "stock"
    rfid = "rfid"
    highway = "highway"
    security = "security"
    flights = "flights"
    thieves = "thieves"
    delays = "delays"


Text = Annotated[str, typer.Argument(help="The query, a file with it, or - for stdin.")]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", "-t", metavar="NAME=FILE",
        help="Parquet, CSV or JSON as a table: a file, a pattern such as 'day*.csv', or - for stdin; repeatable.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write to this file, not to stdout. Its suffix is the default of -f."),
]
Directory = Annotated[
    str | None, typer.Option("--directory", "-d", help="A database, or s3://bucket/prefix; its streams are tables.")
]
PICTURES = Path("demo-output")
#: Number of rows of which --tree prints the events.
TREES_MAX = 10
Seed = Annotated[int, typer.Option(help="The same seed gives the same events.")]


def main() -> None:
    """Runs the command line and exits with its code."""
    from query.errors import DataError, QueryError

    warnings.formatwarning = _told
    if len(sys.argv) > 1 and "--help" not in sys.argv and "pyarrow" not in sys.modules:
        _load_arrow()
    try:
        app(standalone_mode=True)
    except QueryError as error:
        say(with_file_hints(error).render())
        sys.exit(1)
    except DataError as error:
        say(f"error: {error}")
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _told(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Returns the text of a warning; of Hybrid's without a line of Python, of which the user has written none."""
    from query.errors import HybridWarning

    if issubclass(category, HybridWarning):
        return f"warning: {message}\n"
    return _formatted(message, category, filename, lineno, line)


_formatted = warnings.formatwarning


class _NoPandas:
    """A finder that does not find pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def _load_arrow() -> None:
    """Imports Arrow without pandas, which Arrow would import with the first array made of a list, to recognise a
    Series: a sixth of the time in which a command starts. Whatever needs pandas later imports it."""
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


def _told_version(asked: bool) -> None:
    if asked:
        import hybrid

        print(f"hybrid {hybrid.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_told_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One row-pattern query over live streams and archived history."""


# ---- queries


@app.command("sql")
def sql_command(
    text: Text,
    table: Tables = None,
    directory: Directory = None,
    format: FileFormats = None,
    output: Output = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Write the matched events instead of the rows.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Print the matched events of the first rows, layer by layer.")
    ] = False,
    timeout: Annotated[str | None, typer.Option(help="Stop after this time, such as 30s.")] = None,
    as_live: Annotated[
        bool, typer.Option("--as-live", help="With -d: the rows that a live query has given by now.")
    ] = False,
) -> None:
    """Runs a query over files, or over the streams of a database. With -d also CREATE PATTERN and DROP PATTERN."""
    import hybrid
    from query.language.named import pattern_statement

    statement, tables = query_text(text), open_tables(table)
    if tree and (evidence or output is not None):
        raise typer.BadParameter("--tree prints for people: it excludes --evidence and -o")
    tree = tree and pattern_statement(statement) is None
    if as_live and directory is None:
        raise typer.BadParameter("--as-live reads streams: name their database with -d")
    if directory is not None:
        with existing(directory, writes=pattern_statement(statement) is not None) as db:
            result = db.sql(statement, as_live=as_live, timeout=timeout, **tables)
            rows = (result.evidence() if evidence else result).arrow()
            trees, why = _trees(result) if tree else [], result.why_empty()
    else:
        result = hybrid.sql(statement, timeout=timeout, **tables)
        rows = (result.evidence() if evidence else result).arrow()
        trees, why = _trees(result) if tree else [], result.why_empty()
    if not tree:
        write(rows, format, output)
    if why:
        say(f"no rows. {why}")
    for one in trees:
        typer.echo(f"{one}\n")


@app.command("shell")
def shell_command(table: Tables = None, directory: Directory = None) -> None:
    """Answers statements as they are typed, with history and completion; also those of a pipe."""
    import hybrid
    from hybrid.cli.shell import shell
    from hybrid.rows.inputs import named_table
    from query.language.named import pattern_statement

    given = open_tables(table)

    def run(text: str) -> Result:
        if directory is None:
            return hybrid.sql(text, **given)
        with existing(directory, writes=pattern_statement(text) is not None) as db:
            return db.sql(text, **given)

    def tables() -> dict[str, list[str]]:
        found = {name: named_table(rows, name).empty.column_names for name, rows in given.items()}
        if directory is not None:
            with existing(directory) as db:
                found |= {name: list(db.schema(name).names) for name in db.streams()}
        return found

    raise typer.Exit(shell(run, tables, sys.stdin))


def _trees(result: Result) -> list[EvidenceTree]:
    return [result.tree(row) for row in range(min(len(result), TREES_MAX))]


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="The query, a file with it, or the name of a demo.")],
    table: Tables = None,
    directory: Directory = None,
    stage: Annotated[Stage, typer.Option(help="The stage to show.")] = Stage.all,
    workload: Annotated[
        bool, typer.Option("--workload", help="The queries of an app file, counted together: template, graph, plan.")
    ] = False,
    sharing: Annotated[
        str | None,
        typer.Option(help="With --workload: none, hamlet, static or dynamic, instead of the app file's."),
    ] = None,
) -> None:
    """Shows the compile stages of a query: syntax tree, plan, NFA^b, automaton, program; and, only with --stage kernel,
    the source of its compiled kernel. With --workload, what the trend queries of an app file (*.toml) share."""
    from hybrid.statement.explain import explain as explained

    if workload:
        from hybrid.statement.workload import explain_workload

        queries, named = run.statements(Path(text)), run.statements(Path(text), "patterns")
        patterns = {name.lower(): query for name, query in named.items()}
        mode, modes = run.sharing_of(Path(text)) if sharing is None else (sharing, {})
        if directory is not None:
            with existing(directory) as db:
                print(db.explain_workload(queries, mode, modes, open_tables(table), patterns))
        else:
            print(explain_workload(queries, open_tables(table), mode, modes, patterns))
        return
    demo = _demo_query(text)
    if demo is not None:
        statement, schemas = demo

        def resolve(name: str) -> Any:
            return schemas[name.strip().lower()]

        print(explained(statement, stage.value, resolve, live=True))
        return
    statement = query_text(text)
    if stage is Stage.ast and directory is None:
        print(explained(statement, "ast", inputs=tuple(item.partition("=")[0] for item in table or [])))
    elif directory is not None:
        with existing(directory) as db:
            print(db.explain(statement, stage.value, open_tables(table)))
    else:
        from hybrid.statement.statement import explain_tables

        print(explain_tables(statement, stage.value, open_tables(table)))


@app.command()
def check(
    text: Text,
    table: Tables = None,
    directory: Directory = None,
    against_reference: Annotated[
        bool, typer.Option("--against-reference", help="Also run it with kernel and reference matcher, and compare.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="NAME", help="A variable that may be any row, without a warning; repeatable."),
    ] = None,
) -> None:
    """Checks a query, or an app file (*.toml), without running it. Errors point at the text."""
    from query.errors import HybridWarning

    allowed = {name.upper() for name in allow or []}
    for name in allowed:
        warnings.filterwarnings("ignore", rf"(?i){re.escape(name)} has no condition in DEFINE", HybridWarning)
    if text.endswith(".toml") and "\n" not in text:
        run.checked(Path(text))
        say(f"{text} is valid")
        return
    from hybrid.statement.statement import explain_tables
    from query.errors import QueryError
    from query.language.parse import parse
    from query.plan.many_per_start import many_per_start

    statement, tables = query_text(text), open_tables(table)
    if directory is not None:
        with existing(directory) as db:
            plan = db.explain(statement, "plan", tables)
    else:
        plan = explain_tables(statement, "plan", tables)
    free = [line.removesuffix(" any row").split()[-1] for line in plan.split("\n") if line.endswith(" any row")]
    free = [name for name in dict.fromkeys(free) if name.upper() not in allowed]
    say("the query is valid" + (f"; {', '.join(free)} may be any row" if free else ""))
    with suppress(QueryError):  # a statement that reads named patterns is parsed with these
        for note in many_per_start(parse(statement)):
            say(f"note: {note.render(statement)}")
    if against_reference:
        from hybrid.rows.words import counted
        from hybrid.statement.statement import compare_with_reference

        count, same = compare_with_reference(statement, tables)
        if not same:
            say("the kernel and the reference return different rows: this is a bug in hybrid, please report it")
            raise typer.Exit(1)
        say(f"kernel and reference return the same {counted(count, 'row')}")


@app.command()
def backtest(
    text: Text,
    directory: Annotated[
        str, typer.Option("--directory", "-d", help="The database to replay: a directory, or s3://bucket/prefix.")
    ],
    start: Annotated[str, typer.Option("--from", help="Start: events at or after this time, such as 2023-01-01.")],
    end: Annotated[
        str | None, typer.Option("--to", help="End: events before this time. Default: all; the stream ends.")
    ] = None,
    format: FileFormats = None,
    output: Output = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Write the matched events instead of the rows.")] = False,
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="OLD", help="An older version of the query: write only rows that differ."),
    ] = None,
) -> None:
    """Replays archived events through a live query, and writes the rows it would have returned."""
    if diff is not None:
        if evidence:
            raise typer.BadParameter("--diff compares rows: it excludes --evidence")
        with existing(directory) as db:
            found = db.compare(query_text(diff), query_text(text), start, end)
            write(found.rows, format, output)
            say(str(found))
        return
    with existing(directory) as db:
        result = db.backtest(query_text(text), start, end)
        write((result.evidence() if evidence else result).arrow(), format, output)
        if why := result.why_empty():
            say(f"no rows. {why}")


for command in (run.run, run.status, run.top):
    app.command()(command)


def _is_taken(directory: str) -> bool:
    """True if a place is not empty."""
    from archive.place import place_of
    from query.errors import DataError, first_line

    try:
        return bool(place_of(directory).names())
    except OSError as error:
        raise DataError(f"{directory} cannot be opened: {first_line(error)}", "check the place") from None


def _demo_query(name: str) -> tuple[str, dict[str, Any]] | None:
    """Returns the query of a demo and the schemas of its streams; None for other names."""
    from query.schema import Field, Schema

    if name == "valley":
        from hybrid.demo import valley

        return valley.QUERY, {"prices": Schema("prices", (Field("day", "TIMESTAMP"), Field("price", "BIGINT")), "day")}
    if name == "stock":
        from hybrid.demo import stock

        fields = tuple(Field(n, t) for n, t in stock.COLUMNS.items())
        return stock.QUERY, {"stocks": Schema("stocks", fields, "date", ("symbol",))}
    if name == "rfid":
        from hybrid.demo import rfid
        from simulator.rfid import FIELDS

        return rfid.QUERY, {"readings": Schema("readings", FIELDS, "ts", ("tag",))}
    if name == "highway":
        from hybrid.demo import highway
        from simulator.highway import FIELDS as TOLLS

        return highway.QUERY, {"tolls": Schema("tolls", TOLLS, "ts", ("car",))}
    if name == "security":
        from hybrid.demo import security
        from simulator.security import FIELDS as LOGINS

        return security.QUERY, {"logins": Schema("logins", LOGINS, "ts", ("account", "device"))}
    if name == "flights":
        from hybrid.demo import flights

        fields = tuple(Field(n, t) for n, t in flights.COLUMNS.items())
        return flights.QUERY, {"departures": Schema("departures", fields, "ts", ("tailnum",))}
    if name == "thieves":
        from hybrid.demo import thieves
        from simulator.thieves import FIELDS as VISITS

        return thieves.STATEMENT, {"readings": Schema("readings", VISITS, "ts", ("person",))}
    return None


# ---- events to try things on


@app.command()
def simulate(
    what: Annotated[
        ScenarioName, typer.Argument(help="Market ticks, a shop with RFID readers, a toll road, logins, or thieves.")
    ],
    seed: Seed = 1,
    events: Annotated[int, typer.Option(help="Number of ticks (stock only).", min=0)] = 10_000,
    symbols: Annotated[int, typer.Option(help="Number of symbols (stock only).", min=1)] = 100,
    format: Annotated[
        RowFormat | None, typer.Option("--format", "-f", help="Format of rows.", show_default="csv")
    ] = None,
    output: Output = None,
) -> None:
    """Writes simulated events, ordered by time."""
    if what is ScenarioName.stock:
        from simulator.stock import walk

        table = walk(seed, events, symbols)
    elif what is ScenarioName.rfid:
        from simulator.rfid import shop

        table = shop(seed).events("readings")
    elif what is ScenarioName.highway:
        from simulator.highway import highway

        table = highway(seed).events("tolls")
    elif what is ScenarioName.thieves:
        from simulator.thieves import thieves

        table = thieves(seed).scenario.events("readings")
    else:
        from simulator.security import security

        table = security(seed).events("logins")
    write(table, format, output, RowFormat.csv)


@app.command()
def demo(
    which: Annotated[Demo, typer.Argument(help="The demo.")],
    seed: Seed = 1,
    directory: Annotated[
        str | None, typer.Option("--directory", "-d", help="Keep the database here, or in s3://bucket/prefix.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="File for the plot of one match (in demo-output/).")] = None,
    interleaving: Annotated[
        int, typer.Option(help="Number of another arrival order of the same events (simulated ones).", min=0)
    ] = 0,
) -> None:
    """Runs a demo: prints its matches with evidence, and saves a plot of one match. thieves and delays have several
    layers of patterns."""
    from hybrid.cli import demos

    if directory is not None and _is_taken(directory):
        raise typer.BadParameter(f"--directory {directory} is not empty")
    if which is Demo.valley:
        code = demos.valley(picture or PICTURES / "valley.svg")
    elif which is Demo.stock:
        code = demos.stock(directory, picture or PICTURES / "stock.png")
    elif which is Demo.flights:
        code = demos.flights(directory, picture or PICTURES / "flights.png")
    elif which is Demo.thieves:
        code = demos.thieves(seed, directory, picture or PICTURES / "thieves.png", interleaving)
    elif which is Demo.delays:
        code = demos.delays(directory, picture or PICTURES / "delays.png")
    else:
        code = demos.planted(which.value, seed, directory, picture or PICTURES / f"{which.value}.png", interleaving)
    raise typer.Exit(code)


@app.command()
def doctor() -> None:
    """Prints installed versions, and checks that a pattern can be matched."""
    from hybrid.cli import demos

    raise typer.Exit(demos.doctor())
