"""Text to AST: lark reads the clauses, DuckDB reads the scalar expressions."""
