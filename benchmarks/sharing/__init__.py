"""The experiments of [SHARING]: aggregates over trends, asked by many queries at once."""
