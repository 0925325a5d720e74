"""From scores to logits: soft cap, bias, ALiBi and what a query does not see. One definition for every level."""

from __future__ import annotations

import numpy as np

from .attention import Attention
from .numerics import Array
from .visibility import Visibility

__all__ = ["logits"]


def logits(
    op: Attention,
    scores: Array,
    visibility: Visibility,
    query: Array,
    key: Array,
    bias: Array | None = None,
    slopes: Array | None = None,
) -> Array:
    """Logits over `op.logit_scale` of raw scores q k; -inf where the query does not see the key.

    `query` and `key` are numbers of queries and keys, `bias` and `slopes` what they add, all broadcast to the scores.
    """
    x = scores
    if op.has_logits:
        x = scores * scores.dtype.type(op.scale)
        if op.softcap is not None:
            cap = scores.dtype.type(op.softcap)
            x = cap * np.tanh(x / cap)
        if bias is not None:
            x = x + bias
        if slopes is not None:
            x = x - slopes * abs(key - query - visibility.shift).astype(scores.dtype)
    return np.where(visibility.sees(query, key), x, scores.dtype.type(-np.inf))
