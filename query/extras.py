"""Extras: libraries that a feature needs and the core does not, and the command that installs one that is missing."""

from __future__ import annotations

import re

from query.errors import DataError

PROJECT = "hybrid"
#: A requirement of one extra in the metadata of the package: `matplotlib<4,>=3.9; extra == 'plot'`.
_REQUIREMENT = re.compile(r"(?P<library>[^;]+?)\s*;.*\bextra == ['\"](?P<extra>[^'\"]+)['\"]")


def not_installed(need: str, extra: str, instead: str = "") -> DataError:
    """Returns the error for a library that is missing. need: who needs which library, such as "df() needs pandas".
    instead: what works without it."""
    return DataError(f"{need}, which is not installed", install_command(extra) + (f"; {instead}" if instead else ""))


def install_command(extra: str) -> str:
    """Returns the shell command that installs an extra into this environment. In a checkout that was installed with
    `pip install -e` it names the checkout's extra; elsewhere the libraries, because on the package index the name
    `hybrid` belongs to another project."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution(PROJECT)
    except PackageNotFoundError:
        return _of_checkout(extra)
    if '"editable": true' in (installed.read_text("direct_url.json") or ""):
        return _of_checkout(extra)
    found = [_REQUIREMENT.match(line) for line in installed.requires or ()]
    libraries = [one["library"] for one in found if one is not None and one["extra"] == extra]
    return "pip install " + " ".join(f"'{library}'" for library in libraries)


def _of_checkout(extra: str) -> str:
    return f"pip install -e '.[{extra}]' in the project's directory"
