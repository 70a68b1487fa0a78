"""The documents and what they contain: fenced blocks, files, links, headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
#: A fenced block: language, the file that it is, if any, and text.
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it begins (path relative to the root, line), its language, its text.

    output: the `text` block right behind it, which is what it prints; or None.
    """

    path: str
    line: int
    language: str
    text: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """All fenced blocks of these languages, in the order of documents and lines, but those that are files."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            if fence[1] in languages and not fence[2]:
                line = text.count("\n", 0, fence.start()) + 1
                behind = re.compile(r"\n?```text\n(.*?)^```$", re.MULTILINE | re.DOTALL).match(text, fence.end() + 1)
                output = behind[1] if behind else None
                found.append(Block(str(path.relative_to(ROOT)), line, fence[1], fence[3], output))
    return found


def files(path: str) -> dict[str, str]:
    """The files that a document shows, by name: the blocks with a title."""
    return {name: text for _, name, text in FENCE.findall((ROOT / path).read_text(encoding="utf-8")) if name}


def installs(path: str) -> list[frozenset[str]]:
    """The lines of a document that install this project, as the extras that they bring. `make demo` brings those that
    the Makefile names."""
    text, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in (path, "Makefile"))
    demo = re.search(r"^\.venv/\.demo:(?:.*\n\t)+?.* -e '\.\[(.*?)\]'", makefile, re.MULTILINE)
    assert demo is not None
    line = r"pip install '?\.(?:\[(.*?)\])?'?|^make demo$|`make demo` (?:has )?install"
    named = [demo[1] if "make" in one[0] else one[1] or "" for one in re.finditer(line, text, re.MULTILINE)]
    return [frozenset(filter(None, extras.split(","))) for extras in named]


def prose(path: Path) -> str:
    """The text of a document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """What a link may name behind `#`."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
