"""The interactive shell: statements to their semicolons, with history and completion."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid.cli.given import with_file_hints
from hybrid.cli.output import say
from query.errors import Error, QueryError, nearest

if TYPE_CHECKING:
    from hybrid.rows.result import Result

#: Words that completion offers.
WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "LIMIT", "WITH", "AS", "AND", "OR", "NOT", "BETWEEN",
    "INTERVAL", "MATCH_RECOGNIZE", "PARTITION", "MEASURES", "PATTERN", "DEFINE", "SUBSET", "WITHIN", "AFTER", "MATCH",
    "SKIP", "PAST", "LAST", "ROW", "NEXT", "TILL", "ANY", "TO", "FIRST", "ONE", "ALL", "ROWS", "PER", "SELECTION",
    "STRICT", "PREV", "CLASSIFIER()", "MATCH_NUMBER()", "JOIN", "HISTORY", "OF", "OVER", "ON", "CREATE", "DROP",
    "REPLACE", "MERGE", "EXPLAIN",
)  # fmt: skip
#: Commands that completion and hints offer; HELP explains them.
COMMANDS = (".tables", ".help", ".quit")
HELP = """A statement ends with a semicolon. EXPLAIN before one shows its plan.
.tables        tables and streams, with their columns
.help          this text
.quit          ends, as Ctrl-D does; Ctrl-C leaves the statement"""
#: What people of other shells type, alone on a line, and the command that it is here.
_OTHERS = {
    "exit": ".quit", "quit": ".quit", ".exit": ".quit", "\\q": ".quit", "help": ".help", "?": ".help", "\\?": ".help",
    "\\d": ".tables", ".schema": ".tables", "show tables": ".tables",
}  # fmt: skip
#: Stands among the lines where the statement that was begun is dropped.
DROPPED = "\x03"
FIRST, MORE = "hybrid> ", "   ...> "


def shell(run: Callable[[str], Result], tables: Callable[[], dict[str, list[str]]], stdin: Iterable[str]) -> int:
    """Reads and answers statements until the input ends. Returns the exit code: 1 after an error, unless people type.

    run: answers a statement. tables: the columns of tables and streams, by name. stdin: lines, if nobody types them;
    people get prompts, completion and a history."""
    people = sys.stdin.isatty()
    if people:
        _edited(tables)
        say(f"hybrid: .help for help, .quit to end; tables: {', '.join(tables()) or 'none'}")
    failed = False
    for text in statements(_typed() if people else iter(stdin)):
        try:
            if text.startswith("."):
                if text == ".quit":
                    break
                print(_told(text, tables))
            else:
                explained = re.match(r"EXPLAIN\s+", text, re.IGNORECASE)
                result = run(text[explained.end() :] if explained else text)
                print(result.explain("plan")) if explained else result.show()
        except QueryError as error:
            failed = True
            say(with_file_hints(error).render("statement"))
        except Error as error:
            failed = True
            say(f"error: {error}")
        except KeyboardInterrupt:
            if not people:
                raise
            say("interrupted")
    return int(failed and not people)


def statements(lines: Iterator[str]) -> Iterator[str]:
    """Yields statements without their semicolons, and commands that begin with a dot. A line that ends with a semicolon
    ends a statement, unless that is in a string or a comment."""
    from query.language.lexer import tokenize

    text = ""
    for line in lines:
        if line == DROPPED:
            text = ""
            continue
        if not text and (command := _command(line)):
            yield command
            continue
        text += line if line.endswith("\n") else line + "\n"
        if not text.strip():
            text = ""
        elif line.rstrip().endswith(";"):
            try:
                items = tokenize(text).items
            except QueryError:  # an open string or bracket may go on
                items = ()
            ended = bool(items) and items[-1].word == ";"
            if ended:
                ends = [0, *(item.start for item in items if item.word == ";")]
                pieces = [text[a:b].removeprefix(";").strip() for a, b in pairwise(ends)]
                yield from [piece for piece in pieces if piece] or [""]
                text = ""
            elif not _open(text):
                yield text.strip()
                text = ""
    if text.strip():
        yield text.strip()


def _command(line: str) -> str:
    """Returns the command that a line is, empty if it is none."""
    plain = line.strip()
    return _OTHERS.get(plain.rstrip(";").rstrip().lower(), plain if line.startswith(".") else "")


def _open(text: str) -> bool:
    """True if a text ends in a string or a comment."""
    rest = re.sub(r"'(?:[^']++|'')*+'|\"(?:[^\"]++|\"\")*+\"|--[^\n]*\n|/\*.*?\*/", "", text, flags=re.DOTALL)
    return any(sign in rest for sign in ("'", '"', "/*")) or not rest.rstrip().endswith(";")


def _told(command: str, tables: Callable[[], dict[str, list[str]]]) -> str:
    if command == ".tables":
        return "\n".join(f"{name} ({', '.join(columns)})" for name, columns in tables().items()) or "no tables"
    return HELP if command == ".help" else f"there is no {command}; {nearest(command, COMMANDS)}"


# ---- people


def _typed() -> Iterator[str]:
    """Yields lines as they are typed; Ctrl-C drops the statement, Ctrl-D ends."""
    begun = False
    while True:
        try:
            line = input(MORE if begun else FIRST)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            begun = False
            yield DROPPED
            continue
        ended = line.rstrip().endswith(";") or (not begun and bool(_command(line)))
        begun = not ended and (begun or bool(line.strip()))
        yield line


def _edited(tables: Callable[[], dict[str, list[str]]]) -> None:
    """Sets up editing, history and completion of lines, where Python has them."""
    try:
        import readline
    except ImportError:  # on Windows
        return
    import atexit

    history = _history_file()
    try:
        readline.read_history_file(history)
    except OSError:
        pass
    readline.set_history_length(10_000)
    atexit.register(_keep, readline, history)
    readline.set_completer_delims(" \t\n,()=<>+-*/;")
    readline.set_completer(completer(tables))
    readline.parse_and_bind("tab: complete")


def _keep(readline: Any, history: Path) -> None:
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.write_history_file(history)
    except OSError as error:
        say(f"the history of the shell is not kept: {error}")


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "hybrid" / "history"


def completer(tables: Callable[[], dict[str, list[str]]]) -> Callable[[str, int], str | None]:
    """Returns readline's completer: tables, columns, commands, and words of the language in the case that was begun."""

    def complete(text: str, state: int) -> str | None:
        named = tables()
        known: Sequence[str]
        prefix, _, begun = text.rpartition(".")
        columns = [c for of in named.values() for c in of]
        if text.startswith("."):
            prefix, known, begun = "", COMMANDS, text
        elif prefix:
            known = named.get(prefix, columns)
        else:
            words = [w.lower() for w in WORDS] if text[:1].islower() else WORDS
            known = [*named, *columns, *words]
        found = [w for w in dict.fromkeys(known) if w.lower().startswith(begun.lower())]
        return (f"{prefix}.{found[state]}" if prefix else found[state]) if state < len(found) else None

    return complete
