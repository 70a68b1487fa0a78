"""Patterns made of patterns: matches of one layer are events of the next."""
