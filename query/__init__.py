"""What to find: the language, its plan and its automaton, and the slow reference that decides what a query means.

Pure Python and lark; duckdb is imported in one file only, `language/duck.py`. No numpy and no I/O, so that
`--help` and `explain` start at once.
"""
