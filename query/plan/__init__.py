"""AST to plan: names resolved, types known, defaults filled in."""
