"""Sets the properties of a Delta table in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from deltalake.exceptions import CommitFailedError

from archive.place import Place

#: Runs in a child process: deltalake blocks all other threads while it alters a table, and a store may be slow.
_CHILD = """
import json, sys
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
uri, options, version, properties = json.load(sys.stdin)
try:
    DeltaTable(uri, version, storage_options=options).alter.set_table_properties(
        properties, raise_if_not_exists=False,
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
except CommitFailedError as error:
    print(json.dumps(["conflict", str(error)]))
except Exception as error:
    print(json.dumps(["error", str(error)]))
else:
    print(json.dumps(["done", ""]))
"""


def alter_in_child(directory: Place, version: int, properties: Mapping[str, str]) -> None:
    """Sets table properties in a child process. Raises CommitFailedError if the table has a newer version, and
    OSError."""
    given = json.dumps([directory.delta_uri, directory.storage_options, version, properties])
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=given, capture_output=True, text=True, start_new_session=True,
        check=False,
    )  # fmt: skip
    try:
        outcome, said = json.loads(done.stdout)
    except ValueError:
        raise OSError(f"the process that alters {directory} failed: {done.stderr.strip()[-200:]}") from None
    if outcome == "conflict":
        raise CommitFailedError(said)
    if outcome == "error":
        raise OSError(said)
