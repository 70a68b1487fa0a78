"""Tables in, rows out: inputs of a query, answers with their evidence, the outer SELECT, results and plots."""
