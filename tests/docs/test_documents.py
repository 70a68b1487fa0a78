"""What the documents say is what the code does: links, error codes, names of the code, SQL, Python."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from hybrid.demo import delays, thieves
from query.errors import CODES, DATA_CODES
from query.language.parse import parse
from tests.docs.documents import DOCUMENTS, ROOT, Block, anchors, blocks, prose
from tests.programs import run_text

#: Patterns that boxes and FROM of the documents name.
PATTERNS = thieves.PATTERNS | delays.LAYERS
PACKAGES = ("query", "matching", "live", "archive", "hybrid", "simulator")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_error_code_is_documented() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (HQ\d+) \| (.*?) \| (.+?) \|$", text, re.MULTILINE)
    assert {code: says for code, says, _ in rows} == CODES
    assert len(rows) == len(CODES)
    of_data = re.findall(r"^\| (HQ\d+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert dict(of_data) == DATA_CODES


def test_every_raised_code_is_in_the_table() -> None:
    used = {
        (code, str(file.relative_to(ROOT)))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for code in re.findall(r"[\"'](HQ\d+)[\"']", file.read_text(encoding="utf-8"))
    }
    assert used
    assert sorted(u for u in used if u[0] not in CODES | DATA_CODES) == []


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or something a module has."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:]:
                slots = getattr(found, "__annotations__", {})
                found = slots[part] if part in slots else getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def test_architecture_names_what_exists() -> None:
    text = "\n".join(prose(ROOT / name) for name in ("ARCHITECTURE.md", "docs/internals.md", "docs/decisions.md"))
    files = set(re.findall(r"`((?:[a-z_]+/)+(?:[\w.]+)?)`", text))
    assert len(files) > 10
    assert sorted(f for f in files if not (ROOT / f).exists()) == []
    names = set(re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\(.*?\))?`", text))
    assert len(names) > 10
    assert sorted(n for n in names if not _exists(n)) == []


def test_no_document_names_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in DOCUMENTS
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", line)
    ]
    assert found == []


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_sql_can_be_read(block: Block) -> None:
    query = parse(block.text, patterns=PATTERNS)
    assert query.factors


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs_and_prints_what_stands_behind_it(block: Block, tmp_path: Path) -> None:
    run = run_text(block.text, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == (block.output or "")


def test_there_are_examples() -> None:
    assert blocks("sql")
    assert blocks("python")
