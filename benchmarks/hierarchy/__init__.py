"""The experiments of [HIERARCHY]: patterns made of patterns, in layers and flattened."""
