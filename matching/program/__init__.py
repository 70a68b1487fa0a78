"""The program of a pattern: bytecode, lanes, registers, tables."""
