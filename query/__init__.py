"""The language, its plan and its automaton, and the slow reference that defines the meaning of a query.

Pure Python and lark; duckdb is imported in one file only, `language/duck.py`. No numpy and no I/O, so that `--help` and
`explain` start at once.
"""
