"""The visitor: one method per node class, no fallback."""

from __future__ import annotations

from typing import Any

from closedform.hw.errors import ClosedformError
from closedform.operators.node import Node

__all__ = ["UnknownNode", "Visitor"]


class UnknownNode(ClosedformError):
    """A visitor met a node class that it has no method for."""


class Visitor:
    """Dispatches `visit(node)` to `visit_<class of node>`; an unknown node raises UnknownNode."""

    def visit(self, node: Node) -> Any:
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            raise UnknownNode(f"{type(self).__name__} has no method for {type(node).__name__}")
        return method(node)
