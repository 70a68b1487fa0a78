"""The site: every page once, a reference of all that is public, and no link, anchor or warning that is wrong."""

from __future__ import annotations

import ast
import base64
import importlib.metadata
import importlib.util
import inspect
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import hybrid
from tests.docs.documents import DOCUMENTS, ROOT
from tests.docs.notebook import NOTEBOOKS, read
from tests.docs.notebook import page as notebook_page
from tests.docs.reference import classes, entries, markdown, rendered
from tests.docs.site import REFERENCE, build, config, navigation, project, repository, stage, staged
from tests.docs.test_imports import modules

builds = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="needs Zensical: pip install -e '.[docs]', or make site"
)


def test_every_page_is_in_the_navigation_once() -> None:
    paths = [path for _, pages in navigation() for _, path in pages]
    notebooks = [path.with_suffix(".md") for path in NOTEBOOKS]
    assert sorted(paths) == sorted([REFERENCE, *(p.relative_to(ROOT).as_posix() for p in [*DOCUMENTS, *notebooks])])
    assert ("A fall, and the years before it", "docs/stock_story.md") in dict(navigation())["Asking"]


def test_the_navigation_has_the_groups_of_the_index() -> None:
    titles = [title for title, _ in navigation()]
    assert titles == ["", "First", "Asking", "Running", "Inside", "Experiments of the papers", "Project"]
    running = dict(navigation())["Running"]
    assert running[:2] == [("Python", "docs/python.md"), ("Reference", REFERENCE)]


def test_a_staged_page_links_to_files_and_not_to_folders(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "story.svg").write_text("<svg/>")
    text = ("![a picture](story.svg), [all of it](folder), [out](https://example.org/), [here](#here)\n\n"
            "```text\n[none](folder)\n```\n")  # fmt: skip
    shown, files = staged(tmp_path / "page.md", text)
    assert shown == text.replace("[all of it](folder)", "all of it")
    assert files == {tmp_path / "story.svg"}


def test_a_link_to_a_notebook_leads_to_its_page() -> None:
    assert staged(ROOT / "docs" / "x.md", "[a](stock_story.ipynb), [b](stock_story.ipynb#c)") == (
        "[a](stock_story.md), [b](stock_story.md#c)", set()
    )  # fmt: skip


def test_a_notebook_is_a_page_of_its_text_code_and_outputs() -> None:
    png = base64.b64encode(b"drawn").decode()
    cells = [
        {"cell_type": "markdown", "source": ["# One\n", "and two"]},
        {"cell_type": "code", "source": ["f()"], "outputs": [
            {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
            {"output_type": "display_data", "data": {"image/png": png, "text/plain": ["<Figure>"]}}]},
        {"cell_type": "code", "source": ["g()"], "outputs": [
            {"output_type": "display_data", "data": {"image/svg+xml": ["<svg>", "</svg>"], "image/png": png}},
            {"output_type": "display_data", "data": {"text/html": ["<table>\n", "</table>"], "text/plain": ["x"]}},
            {"output_type": "execute_result", "data": {"text/plain": ["3"]}}]},
    ]  # fmt: skip
    text, pictures = notebook_page({"cells": cells}, "story")
    assert text.split("\n\n") == [
        "# One\nand two", "```python\nf()\n```", "```text\na\nb\n```", "![What the cell draws](story_1.png)",
        "```python\ng()\n```", "![What the cell draws](story_2.svg)",
        '<div class="notebook-output"><table>\n</table></div>', "```text\n3\n```\n",
    ]  # fmt: skip
    assert pictures == {"story_1.png": b"drawn", "story_2.svg": b"<svg></svg>"}


@pytest.mark.parametrize(("urls", "setting"), [
    ({}, ""),
    ({"Homepage": "https://example.org/"}, ""),
    ({"Repository": "https://example.org/hybrid"}, 'repo_url = "https://example.org/hybrid"\n'),
    ({"Homepage": "https://example.org/", "source": "https://example.org/x"}, 'repo_url = "https://example.org/x"\n'),
])  # fmt: skip
def test_the_repository_is_the_one_of_the_project_or_none(urls: dict[str, str], setting: str) -> None:
    assert repository(urls) == setting


def test_no_link_is_labelled_with_the_name_of_a_file() -> None:
    pages = [(path, path.read_text(encoding="utf-8")) for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    pages += [(path, notebook_page(read(path), path.stem)[0]) for path in NOTEBOOKS]
    labelled = [
        f"{path.relative_to(ROOT)}: {label}"
        for path, text in [*pages, (ROOT / REFERENCE, rendered())]
        for label in re.findall(r"\[([^\[\]]+\.(?:md|ipynb))\]\(", text)
    ]
    assert labelled == []


# ---- the reference ---------------------------------------------------------------------------------------------


def test_all_that_is_exported_is_in_the_reference() -> None:
    names = {entry.name for entry in entries()}
    assert {f"hybrid.{name}" for name in hybrid.__all__ if name != "__version__"} - names == set()
    assert {"Database.watch", "Result.df", "Alerts.fetch", "Compressed.decode", "hybrid.Shed"} <= names


def test_each_entry_says_what_it_is() -> None:
    # Before: iterating over alerts, and the names of a schema, were not described.
    assert [entry.name for entry in entries() if not entry.docstring.strip()] == []


def test_no_entry_sends_its_reader_into_the_code() -> None:
    # Before: `see pandas_frame`, `see hybrid.rows.plot`, `see matching.match_graph.MatchGraph.nodes`.
    inside = re.compile(r"\b(?:query|matching|live|archive|hybrid)\.\w+\.\w+|see `\w+_\w+`")
    assert [(entry.name, found[0]) for entry in entries() if (found := inside.search(entry.docstring))] == []


def test_every_parameter_of_the_exported_functions_is_explained() -> None:
    left_out = []
    for entry in entries():
        if entry.level == 2 and re.match(r"hybrid\.[a-z]", entry.name):
            text = markdown(entry.docstring, entry.parameters)
            explained = {n for names in re.findall(r"^- \*\*(.+?)\*\*:", text, re.MULTILINE) for n in names.split(", ")}
            left_out += [f"{entry.name}: {name}" for name in entry.parameters if name not in explained]
    # `connection` and `tables` of matches are those of sql, as its docstring says.
    assert left_out == ["hybrid.matches: connection", "hybrid.matches: tables", "hybrid.plan: text"]


@pytest.mark.slow
def test_what_methods_return_is_in_the_reference() -> None:
    ours = {
        node.name for path in modules(ROOT).values() for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    known = {name.removeprefix("hybrid.") for name in classes()}
    missing = set()
    for cls, members in classes().values():
        for name in members:
            raw = inspect.getattr_static(cls, name)
            function: Any = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
            returned = str(function.__annotations__.get("return", ""))
            missing |= {word for word in re.findall(r"(?<![\w.])[A-Z]\w+", returned) if word in ours - known}
    assert missing == set()


@pytest.mark.parametrize(("docstring", "parameters", "expected"), [
    ("Returns it.", (), "Returns it."),
    ("Returns it.\n\na: one thing. b: another (see `c_d`).\n    Raises DataError.", ("a", "b"),
     "Returns it.\n\n- **a**: one thing.\n- **b**: another (see `c_d`).\n\nRaises DataError.\n"),
    ("Sets it. a, b: both; c: the third.", ("a", "b", "c"), "Sets it.\n\n- **a, b**: both\n- **c**: the third."),
    ("Says: a thing, local[*].", ("says",), "Says: a thing, local\\[\\*\\]."),
    ("Use it:\n\n    import hybrid\n    hybrid.sql(text)\n\nEnd.", (),
     "Use it:\n\n```python\nimport hybrid\nhybrid.sql(text)\n```\n\nEnd."),
])  # fmt: skip
def test_a_docstring_lists_its_parameters(docstring: str, parameters: tuple[str, ...], expected: str) -> None:
    assert markdown(docstring, parameters) == expected


def test_the_links_of_the_reference_lead_to_its_headings() -> None:
    text = rendered()
    headings = {re.sub(r"[^\w]", "", h.lower()) for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(links) == len(hybrid.__all__) - 1
    assert [link for link in links if link not in headings] == []


# ---- the pages -------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The ids of a page, the addresses it links to, and those of what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if name := found.get("id"):
            self.ids.add(name)
        where = found.get("href") or found.get("src")
        if where:
            (self.links if tag == "a" else self.loaded).append(where)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("site") / "site"
    stage(home)
    done = build(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    return home / "html"


@builds
@pytest.mark.slow
def test_links_of_the_site_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) == len(DOCUMENTS) + len(NOTEBOOKS) + 1
    broken = []
    for path, page in pages.items():
        for where in page.links + page.loaded:
            if re.match(r"https?:|data:", where):
                continue
            name, _, anchor = where.partition("#")
            file = (path.parent / name.partition("?")[0]).resolve() if name else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (anchor and file in pages and unquote(anchor) not in pages[file].ids):
                broken.append(f"{path.relative_to(site)}: {where}")
    assert broken == []
    assert [where for page in pages.values() for where in page.loaded if re.match(r"https?:|//", where)] == []


@builds
@pytest.mark.slow
def test_the_reference_is_on_the_site(site: Path) -> None:
    page = Page((site / "docs" / "reference.html").read_text(encoding="utf-8"))
    assert {"hybridsql", "databasewatch", "resultdf", "alertsfetch"} <= page.ids


@builds
@pytest.mark.slow
def test_the_site_has_its_version_both_modes_and_the_notebook_with_its_pictures(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert f"Hybrid {importlib.metadata.version('hybrid')}" in first
    assert set(re.findall(r'data-md-color-scheme="(\w+)"', first)) == {"default", "slate"}
    assert ("md-source" in first) is bool(repository(project().get("urls", {})))
    (notebook,) = NOTEBOOKS
    story = Page((site / "docs" / "stock_story.html").read_text(encoding="utf-8"))
    pictures = [where for where in story.loaded if where.startswith("stock_story_")]
    assert len(pictures) == sum("image/png" in str(cell.get("outputs")) for cell in read(notebook)["cells"])
    assert not list(site.rglob("*.ipynb"))


@builds
@pytest.mark.slow
@pytest.mark.parametrize(("text", "said"), [
    ("# One\n\n[two](two.md)\n", "page does not exist"),
    ("# One\n\n[two](#two)\n", "anchor does not exist"),
])  # fmt: skip
def test_a_broken_link_ends_the_build(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(text)
    (tmp_path / "zensical.toml").write_text(config('{ "One" = "index.md" },'))
    done = build(tmp_path)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
