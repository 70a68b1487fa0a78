"""A Python function as a sink."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from query.errors import DataError


class CallbackSink:
    """Calls a function with each table of rows, at least once. Raises DataError for an exception of the function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[pa.Table], object]) -> None:
        self._function = function

    def check(self, schema: pa.Schema) -> None: ...
    def open(self, cursor: str | None) -> None: ...

    def write(self, rows: pa.Table) -> None:
        try:
            self._function(rows)
        except Exception as error:
            name = getattr(self._function, "__qualname__", repr(self._function))
            message = f"the callback {name} failed: {type(error).__name__}: {error}"
            raise DataError(message, "it is called again with the same rows") from error

    def cursor(self) -> str | None:
        return None

    def close(self) -> None: ...
