"""Events as kept: recent memory that is not in files yet, and one Delta Lake table per stream.

`history.History` is the door: append, flush, snapshot. `recent` holds what is in memory; `layout` decides what a file
looks like; `table` is the commit log (through deltalake, behind six verbs); `scan` reads pruned files through DuckDB.
A table is ordinary: any engine that reads Delta or Parquet reads the history without us. Never imports live or hybrid.
"""
