"""Kernels of other tools read back: names, tuning files and caches, explained in the terms of this package."""
