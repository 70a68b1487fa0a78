"""`hybrid pattern`: lists, shows and drops the named patterns of a database."""

from __future__ import annotations

from typing import Annotated

import typer

from hybrid.cli.given import existing
from hybrid.cli.output import Formats, RowFormat, say, write

app = typer.Typer(no_args_is_help=True, help="Lists and drops the named patterns of a database.", rich_markup_mode=None)

Where = Annotated[str, typer.Option("--directory", "-d", help="The database: a directory, or s3://bucket/prefix.")]
Name = Annotated[str, typer.Argument(help="The pattern.")]


@app.command("list")
def list_patterns(directory: Where, format: Formats = RowFormat.table) -> None:
    """Lists the named patterns with the patterns that they use. `hybrid sql "CREATE PATTERN ..." -d` creates one."""
    import pyarrow as pa

    with existing(directory) as db:
        found = db.patterns()
        names = {name.lower(): name for name in found}
        rows = []
        for name, text in sorted(found.items()):
            uses = ", ".join(names[key] for key in db.patterns_in(text))
            rows.append({"pattern": name, "uses": uses, "text": " ".join(text.split())})
    write(pa.Table.from_pylist(rows, pa.schema([(n, pa.string()) for n in ("pattern", "uses", "text")])), format, None)


@app.command()
def show(name: Name, directory: Where) -> None:
    """Shows the text of a named pattern."""
    from query.errors import DataError, nearest

    with existing(directory) as db:
        found = db.patterns()
    text = next((text for known, text in found.items() if known.lower() == name.lower()), None)
    if text is None:
        raise DataError(f"there is no pattern {name}", nearest(name, list(found)))
    print(text)


@app.command()
def drop(name: Name, directory: Where) -> None:
    """Drops a named pattern. Stop the service first; its app file may not name the pattern any more."""
    with existing(directory, writes=True) as db:
        db.drop_pattern(name)
    say(f"dropped {name}")
