"""Python modules of configurations, read without running them."""

from __future__ import annotations

import ast
from typing import Any

from closedform.hw.errors import BadInput

__all__ = ["keywords_of_calls"]


def keywords_of_calls(text: str, name: str) -> list[dict[str, Any]]:
    """Keyword arguments of every call of that name, in their order; BadInput for what is no Python or no literal.

    >>> keywords_of_calls("CONFIGS = [Config(a=1, b='x')]", "Config")
    [{'a': 1, 'b': 'x'}]
    """
    try:
        calls = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name
        ]
        return [{str(word.arg): ast.literal_eval(word.value) for word in call.keywords} for call in calls]
    except SyntaxError as error:
        where = "" if error.lineno is None else f" from line {error.lineno} on"
        raise BadInput(f"not Python{where}") from None
    except ValueError:
        raise BadInput(f"not a module of {name} with literal arguments") from None
