"""`python -m hybrid` is the command line."""

from __future__ import annotations

from hybrid.cli import main

main()
