"""What is refused when a kernel of another tool is read."""

from __future__ import annotations

from closedform.hw.errors import BadInput

__all__ = ["Undecodable"]


class Undecodable(BadInput):
    """A name or a file that no grammar of ours reads, with the place at which reading stopped."""
