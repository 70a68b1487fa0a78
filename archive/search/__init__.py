"""Pattern search over the history of a stream of any size: matchers over ranges of keys, in bounded memory."""
