"""The documents and the reference of the Python interface as a site: `python -m tests.docs.site`, or `make site`.

Pages and the files that they link to are copied to build/site/pages, and Zensical makes build/site/html of them without
a network. A notebook becomes a page with its outputs; the version and the address of the repository are those of
pyproject.toml. A warning, such as for a link or an anchor that leads nowhere, ends the build with an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.docs.documents import DOCUMENTS, ROOT
from tests.docs.notebook import NOTEBOOKS, page, read
from tests.docs.reference import rendered

HOME = ROOT / "build" / "site"
INDEX = ROOT / "docs" / "README.md"
REFERENCE = "docs/reference.md"
STYLE = Path(__file__).with_name("site.css")
#: The page that the reference follows in the navigation.
GUIDE = "docs/python.md"
#: A group of pages in the index: its name, and the text with the links.
GROUP = re.compile(r"^\*\*(.+?)\.\*\*(.+?)(?=^\*\*|\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CONFIG = """\
[project]
site_name = "Hybrid {version}"
{repository}site_description = "Row patterns over what is happening now and over everything that happened before"
docs_dir = "pages"
site_dir = "html"
use_directory_urls = false
extra_css = ["site.css"]
nav = [
{nav}
]

[project.theme]
font = false
features = ["navigation.sections", "navigation.top", "content.code.copy", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle = {{ icon = "lucide/sun", name = "Switch to dark mode" }}

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle = {{ icon = "lucide/moon", name = "Switch to light mode" }}

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
        for target in re.findall(r"\]\(([^)#\s]+\.(?:md|ipynb))", text):
            path = Path(os.path.normpath(Path("docs") / target)).with_suffix(".md").as_posix()
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
    notebook = (ROOT / path).with_suffix(".ipynb")
    text = page(read(notebook), notebook.stem)[0] if notebook in NOTEBOOKS else (ROOT / path).read_text("utf-8")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else Path(path).stem


def project() -> dict[str, Any]:
    """Returns the table [project] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def repository(urls: dict[str, str]) -> str:
    """Returns the setting of the repository's address, which is empty if [project.urls] has none."""
    named = {name.lower(): url for name, url in urls.items()}
    found = next((named[name] for name in ("repository", "source", "github") if name in named), None)
    return f'repo_url = "{found}"\n' if found else ""


def pages_of_navigation() -> str:
    """Returns the navigation as lines of TOML."""
    lines = []
    for title, pages in navigation():
        items = [f'{{ "{name}" = "{path}" }}' for name, path in pages]
        lines += [f"  {item}," for item in items] if not title else [f'  {{ "{title}" = [{", ".join(items)}] }},']
    return "\n".join(lines)


def config(nav: str) -> str:
    """Returns the configuration of Zensical."""
    about = project()
    return CONFIG.format(nav=nav, version=about["version"], repository=repository(about.get("urls", {})))


def staged(path: Path, text: str) -> tuple[str, set[Path]]:
    """Returns the text of a page for the site, and the files that it links to and that are no pages. A link to a folder
    becomes its text, one to a notebook leads to its page."""
    files: set[Path] = set()

    def link(found: re.Match[str]) -> str:
        label, target = found.groups()
        if re.match(r"https?:|#", target):
            return found[0]
        file = (path.parent / target.partition("#")[0]).resolve()
        if file.is_dir():
            return label
        if file in NOTEBOOKS:
            return found[0].replace(".ipynb", ".md")
        if file.is_file() and file not in DOCUMENTS:
            files.add(file)
        return found[0]

    parts = FENCED.split(text)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts)), files


def stage(home: Path) -> None:
    """Writes pages, files and the configuration below `home`."""
    pages = home / "pages"
    shutil.rmtree(home, ignore_errors=True)
    texts = {path: path.read_text("utf-8") for path in DOCUMENTS}
    for notebook in NOTEBOOKS:
        texts[notebook.with_suffix(".md")], pictures = page(read(notebook), notebook.stem)
        for name, picture in pictures.items():
            _write(pages / notebook.with_name(name).relative_to(ROOT), picture)
    for path, text in texts.items():
        text, files = staged(path, text)
        _write(pages / path.relative_to(ROOT), text)
        for file in files:
            _write(pages / file.relative_to(ROOT), file.read_bytes())
    _write(pages / REFERENCE, rendered())
    _write(pages / STYLE.name, STYLE.read_bytes())
    _write(home / "zensical.toml", config(pages_of_navigation()))


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


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
