"""The command that installs a missing library, where the package lies in a checkout, comes from a wheel, or is in an
image."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import hybrid
from query.errors import DataError
from query.extras import install_command

ROOT = Path(__file__).parents[2]
CHECKOUT = "pip install -e '.[{}]' in the project's directory"
METADATA = """Metadata-Version: 2.4
Name: hybrid
Version: 0.1.0
Requires-Dist: lark<2,>=1.2
Provides-Extra: kafka
Requires-Dist: confluent-kafka<3,>=2.6; extra == 'kafka'
Requires-Dist: fastavro<2,>=1.10; (python_version > "3") and extra == 'kafka'
Provides-Extra: plot
Requires-Dist: matplotlib<4,>=3.9; extra == "plot"
"""


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, origin: str | None) -> None:
    """Makes the package one with this metadata, installed from there (None: from an index)."""
    (folder / "METADATA").write_text(METADATA)
    if origin is not None:
        (folder / "direct_url.json").write_text(origin)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution.at(folder))


def test_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, '{"dir_info": {"editable": true}, "url": "file:///home/me/hybrid"}')
    assert install_command("plot") == CHECKOUT.format("plot")


def test_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", none)
    assert install_command("kafka") == CHECKOUT.format("kafka")


@pytest.mark.parametrize(
    "origin",
    [
        '{"archive_info": {}, "url": "file:///home/me/hybrid-0.1.0-py3-none-any.whl"}',
        '{"dir_info": {}, "url": "file:///app"}',  # of an image, which is built by `pip install .[...]`
        None,
    ],
)
def test_where_there_is_no_checkout(origin: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: pip install 'hybrid[kafka]', which fetches the project of another from the package index.
    installed(monkeypatch, tmp_path, origin)
    assert install_command("plot") == "pip install 'matplotlib<4,>=3.9'"
    assert install_command("kafka") == "pip install 'confluent-kafka<3,>=2.6' 'fastavro<2,>=1.10'"


@pytest.mark.parametrize(
    ("module", "method", "extra"),
    [("pandas", "df", "pandas"), ("polars", "pl", "polars"), ("matplotlib", "plot", "plot")],
)
def test_a_result_without_its_library(module: str, method: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: ModuleNotFoundError for df() and pl().
    found = hybrid.sql("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.i AS n PATTERN (A))", t={"i": [1]})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=f"needs? {module}, which is not installed") as caught:
        getattr(found, method)()
    assert str(caught.value.hint).startswith(install_command(extra))


def test_one_place_says_how_to_install_and_names_extras_that_there_are() -> None:
    named: set[str] = set()
    for package in ("query", "matching", "live", "archive", "hybrid"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert "pip install" not in text or file.name == "extras.py", file
            named |= set(re.findall(r"not_installed\(\s*\"[^\"]*\",\s*\"(\w+)\"", text))
            named |= set(re.findall(r"install_command\(\"(\w+)\"\)", text))
    assert named >= {"flights", "kafka", "metrics", "mqtt", "pandas", "plot", "polars", "s3", "spark"}
    assert named < set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
