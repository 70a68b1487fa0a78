"""Pattern matching in memory: batches, kernels, runs, match buffer, measures, and the loop that drives them.

No files, sockets, clock or randomness in here: the same input gives the same bytes.
"""
