"""Four common queries through this engine, beside code written by hand and other engines."""
