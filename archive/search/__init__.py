"""Patterns over the kept history of a stream, however large: the matcher over ranges of keys, in bounded memory."""
