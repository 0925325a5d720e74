"""The latency model: predict a configuration's time, select the best legal one, calibrate the constants.

It ranks the legal lattice and replaces no closed form: `derive` stays formula-only, `select` may return another tile.
Names load on first use, so that importing this package does not import numpy.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answer import Candidate, ClosedForm, Prediction, Selection
    from .attention_answer import predict_attention, select_attention
    from .constants import Constants, constants_for, constants_from, load_constants
    from .convolution import predict_conv2d, select_conv2d
    from .fit import cross_validated, fit_constants, mean_factor
    from .gemm_answer import predict_gemm, select_gemm
    from .quantise import hit_rate, rounds, utilisation
    from .select import GemmSelector, gemm_selector
    from .softmax import predict_softmax

_HOME = {
    "Candidate": "answer",
    "ClosedForm": "answer",
    "Constants": "constants",
    "GemmSelector": "select",
    "Prediction": "answer",
    "Selection": "answer",
    "constants_for": "constants",
    "constants_from": "constants",
    "cross_validated": "fit",
    "fit_constants": "fit",
    "gemm_selector": "select",
    "hit_rate": "quantise",
    "load_constants": "constants",
    "mean_factor": "fit",
    "predict_attention": "attention_answer",
    "predict_conv2d": "convolution",
    "predict_gemm": "gemm_answer",
    "predict_softmax": "softmax",
    "rounds": "quantise",
    "select_attention": "attention_answer",
    "select_conv2d": "convolution",
    "select_gemm": "gemm_answer",
    "utilisation": "quantise",
}

__all__ = [
    "Candidate",
    "ClosedForm",
    "Constants",
    "GemmSelector",
    "Prediction",
    "Selection",
    "constants_for",
    "constants_from",
    "cross_validated",
    "fit_constants",
    "gemm_selector",
    "hit_rate",
    "load_constants",
    "mean_factor",
    "predict_attention",
    "predict_conv2d",
    "predict_gemm",
    "predict_softmax",
    "rounds",
    "select_attention",
    "select_conv2d",
    "select_gemm",
    "utilisation",
]


class _Callable(types.ModuleType):
    """The package is its own function, so that `closedform.predict(op, hw)` mirrors the command."""

    def __call__(self, op: Any, hw: Any = "mi300x", **config: Any) -> Prediction:
        from closedform.api import predict

        return predict(op, hw, **config)


sys.modules[__name__].__class__ = _Callable


def __getattr__(name: str) -> Any:
    if name == "predict":
        return sys.modules[__name__]
    if name not in _HOME:
        raise AttributeError(f"module 'closedform.predict' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
