"""The archive: recent events buffered in memory, and one Delta Lake table per stream.

`history.History` is the entry point: append, flush, snapshot. `recent` buffers events in memory; `layout` defines the
data files; `table` commits them (through deltalake); `scan` reads pruned files through DuckDB.
A table is ordinary: any engine that reads Delta or Parquet reads the history. Never imports live or hybrid.
"""
