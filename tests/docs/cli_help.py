"""docs/cli.md: what stands above the marker is written by hand, the help texts below it are the program's.

`python -m tests.docs.cli_help` writes them anew.
"""

from __future__ import annotations

from typer.main import get_command
from typer.testing import CliRunner

from hybrid.cli import app
from tests.docs.documents import ROOT

DOCUMENT = ROOT / "docs" / "cli.md"
MARKER = "## Commands\n"


def commands() -> list[tuple[str, ...]]:
    """The words of all commands, in the order of `hybrid --help`, each group with what is in it behind it."""
    found: list[tuple[str, ...]] = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        found.append((name,))
        found += [(name, below) for below in getattr(command, "commands", ())]
    return found


def help_text(*words: str) -> str:
    """What `hybrid WORDS --help` prints, 80 columns wide."""
    run = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, [*words, "--help"], prog_name="hybrid")
    assert run.exit_code == 0, run.output
    return "\n".join(line.rstrip() for line in run.stdout.strip().splitlines()) + "\n"


def rendered() -> str:
    """Everything below the marker."""
    parts = [f"\n```help\n{help_text()}```\n"]
    parts += [f"\n### hybrid {' '.join(words)}\n\n```help\n{help_text(*words)}```\n" for words in commands()]
    return "".join(parts)


def main() -> None:
    above, marker, _ = DOCUMENT.read_text(encoding="utf-8").partition(MARKER)
    DOCUMENT.write_text(above + marker + rendered(), encoding="utf-8")


if __name__ == "__main__":
    main()
