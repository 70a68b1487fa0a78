"""Plan to automaton to program: the NFA^b of a row pattern, and the flat tables a kernel runs."""
