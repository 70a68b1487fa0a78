"""The documents and the reference of the Python interface as a site: `python -m tests.docs.site`, or `make site`.

Pages and the files that they link to are copied to build/site/pages, and Zensical makes build/site/html of them without
a network. A warning, such as for a link or an anchor that leads nowhere, ends the build with an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.documents import DOCUMENTS, ROOT
from tests.docs.reference import rendered

HOME = ROOT / "build" / "site"
INDEX = ROOT / "docs" / "README.md"
REFERENCE = "docs/reference.md"
#: The page that the reference follows in the navigation.
GUIDE = "docs/python.md"
#: A group of pages in the index: its name, and the text with the links.
GROUP = re.compile(r"^\*\*(.+?)\.\*\*(.+?)(?=^\*\*|\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CONFIG = """\
[project]
site_name = "Hybrid"
site_description = "Row patterns over what is happening now and over everything that happened before"
docs_dir = "pages"
site_dir = "html"
use_directory_urls = false
nav = [
{nav}
]

[project.theme]
font = false
features = ["navigation.sections", "navigation.top", "content.code.copy", "toc.follow"]

[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}

[project.markdown_extensions.tables]

[project.markdown_extensions.md_in_html]

[project.markdown_extensions.pymdownx.superfences]

[project.markdown_extensions.pymdownx.highlight]

[project.markdown_extensions.pymdownx.betterem]

[project.validation]
invalid_links = true
invalid_link_anchors = true
"""


def navigation() -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the sections of the index, each with the titles and paths of its pages in order.

    The head of the site is README.md, and its end the pages that only contributors read."""
    head = ["README.md", "docs/README.md"]
    sections = [("", [("Hybrid", head[0]), ("Documents", head[1])])]
    known = {*head}
    for title, text in GROUP.findall(INDEX.read_text("utf-8")):
        pages: dict[str, str] = {}
        for target in re.findall(r"\]\(([^)#\s]+\.md)", text):
            path = Path(os.path.normpath(Path("docs") / target)).as_posix()
            for one in [path, *([REFERENCE] if path == GUIDE else [])]:
                if one not in known:
                    pages[one] = page_title(one)
        known |= pages.keys()
        sections.append((title, [(title, path) for path, title in pages.items()]))
    others = [p.relative_to(ROOT).as_posix() for p in DOCUMENTS]
    sections.append(("Project", [(page_title(p), p) for p in others if p not in known]))
    return sections


def page_title(path: str) -> str:
    """Returns the heading of a page, without marks."""
    if path == REFERENCE:
        return "Reference"
    found = re.search(r"^# (.+)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    return found[1].replace("`", "") if found else Path(path).stem


def config() -> str:
    """Returns the configuration of Zensical."""
    lines = []
    for title, pages in navigation():
        items = [f'{{ "{name}" = "{path}" }}' for name, path in pages]
        lines += [f"  {item}," for item in items] if not title else [f'  {{ "{title}" = [{", ".join(items)}] }},']
    return CONFIG.format(nav="\n".join(lines))


def staged(path: Path) -> tuple[str, set[Path]]:
    """Returns a page for the site, and the files that it links to and that are no pages. A link to a folder becomes its
    text."""
    files: set[Path] = set()

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if re.match(r"https?:|#", target):
            return found[0]
        file = (path.parent / target.partition("#")[0]).resolve()
        if file.is_dir():
            return text
        if file.is_file() and file not in DOCUMENTS:
            files.add(file)
        return found[0]

    parts = FENCED.split(path.read_text("utf-8"))
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts)), files


def stage(home: Path) -> None:
    """Writes pages, files and the configuration below `home`."""
    pages = home / "pages"
    shutil.rmtree(home, ignore_errors=True)
    for path in DOCUMENTS:
        text, files = staged(path)
        _write(pages / path.relative_to(ROOT), text)
        for file in files:
            copy = pages / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    _write(pages / REFERENCE, rendered())
    _write(home / "zensical.toml", config())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def build(home: Path) -> subprocess.CompletedProcess[str]:
    """Builds the staged site; its output has the warnings, if any. Exits with an error for one."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", "zensical.toml"]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)


def main() -> int:
    stage(HOME)
    done = build(HOME)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        return done.returncode
    sys.stdout.write(f"{(HOME / 'html' / 'index.html').relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
