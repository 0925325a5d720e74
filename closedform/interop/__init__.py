"""Kernels in the formats of other tools: one file a tool, with what it writes, reads and refuses."""
