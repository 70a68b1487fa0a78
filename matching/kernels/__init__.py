"""Compiled loops over arrays. Paper symbols and short names are allowed here, and nowhere else."""
