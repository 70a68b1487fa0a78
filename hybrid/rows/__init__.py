"""Tables in, rows out: inputs, answers with their evidence, the outer SELECT, results and plots."""
