"""ComputeVisitor: executes a tree on numpy arrays, firing at a chosen level."""

from __future__ import annotations

from typing import Any

import numpy as np

from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention, AttentionDevice
from closedform.operators.conv2d import Conv2d, Conv2dDevice
from closedform.operators.conv2d_reference import finished
from closedform.operators.depthwise import DepthwiseDevice
from closedform.operators.gemm import Gemm, GemmDevice
from closedform.operators.gemm_epilogue import epilogue
from closedform.operators.level import Level, level
from closedform.operators.numerics import Array, accumulator, rounded
from closedform.operators.operator import Operator
from closedform.operators.reference import input_dtype
from closedform.operators.softmax import Softmax, SoftmaxDevice

from .compute_attention import AttentionCompute
from .compute_conv2d import Conv2dCompute
from .compute_depthwise import DepthwiseCompute
from .compute_gemm import GemmCompute
from .compute_softmax import SoftmaxCompute

__all__ = ["ComputeVisitor", "input_shapes", "random_inputs"]


class ComputeVisitor(AttentionCompute, GemmCompute, SoftmaxCompute, Conv2dCompute, DepthwiseCompute):
    """Walks the tree down to `level` and computes there; what lies below is left out.

    Device: all at once. Block: each workgroup its part. Wave: each wave its tiles, with the online softmax.
    Atom: 64 lanes and their registers, through the fragment maps and LDS images that the kernel uses.

        ComputeVisitor(Level.ATOM).run(op.tree(tiles), Q=q, K=k, V=v)
    """

    def __init__(self, level_: str | Level = Level.WAVE) -> None:
        self.level = level(level_)

    def run(
        self,
        tree: AttentionDevice | GemmDevice | SoftmaxDevice | Conv2dDevice | DepthwiseDevice,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        scale: float = 1.0,
        **inputs: Any,
    ) -> Array:
        """The operator's result on `inputs`, which are rounded to their types first; so is the result.

        Attention takes Q, K and V and what its options add (rows past an entry's length give 0), gemm A and B as stored
        and C and bias where it has them, softmax X and mask, conv2d X and W as stored and bias, shaped as
        `input_shapes` says; alpha, beta and scale are gemm's. The array returned is f32 (f64 for f64) and holds values
        of the dtype.
        Raises BadInput for missing, unknown or misshapen inputs and for an open tree below the device level.
        """
        op = tree.op
        self.inputs = _checked(op, inputs)
        self.out = np.zeros(_output_shape(op), accumulator(op.dtype))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            self.visit(tree)
            if isinstance(op, Gemm):
                return rounded(epilogue(op, self.out, self.inputs, alpha, beta, scale), op.result)
            if isinstance(op, Conv2d):
                return rounded(finished(op, self.out, self.inputs.get("bias")), op.result)
            return rounded(self.out, op.result if isinstance(op, Attention) else op.dtype)


def input_shapes(op: Operator) -> dict[str, tuple[int, ...]]:
    """Shape of each input: [batch, heads, L, d] of attention; of gemm [batch, rows, columns] as stored, bias [batch,
    rows or columns]; [rows, cols] of softmax; of conv2d as stored, bias [OC].
    """
    if isinstance(op, Softmax):
        return dict.fromkeys(("X", "mask")[: 1 + op.mask], (op.rows, op.cols))
    if isinstance(op, Conv2d):
        return {"X": op.shape_x, "W": op.shape_w, **({"bias": (op.OC,)} if op.bias else {})}
    if isinstance(op, Gemm):
        shapes: dict[str, tuple[int, ...]] = {"A": (op.batch, *op.shape_a), "B": (op.batch, *op.shape_b)}
        if op.has_c:
            shapes["C"] = (op.batch, op.M, op.N)
        if op.bias != "none":
            shapes["bias"] = (op.batch, op.M if op.bias == "row" else op.N)
        return shapes
    return _attention_shapes(op)


def _attention_shapes(op: Attention) -> dict[str, tuple[int, ...]]:
    keys = (op.batch, op.key_heads, op.L_kv)
    shapes: dict[str, tuple[int, ...]] = {"Q": (op.batch, op.heads, op.L_q, op.d)}
    shapes |= {"K": (*keys, op.d), "V": (*keys, op.columns)}
    if op.bias:
        shapes["bias"] = (op.batch, op.heads, op.L_q, op.L_kv)
    if op.alibi:
        shapes["slopes"] = (op.heads,)
    if op.varlen:
        shapes["query_lengths"] = (op.batch,)
    if op.varlen or op.key_lengths:
        shapes["key_lengths"] = (op.batch,)
    return shapes


def random_inputs(op: Operator, generator: np.random.Generator) -> dict[str, Any]:
    """Normal random inputs of the operator; lengths are drawn from 0 to the most that there may be."""
    most = {"query_lengths": getattr(op, "L_q", 0), "key_lengths": getattr(op, "L_kv", 0)}
    return {
        name: generator.integers(0, most[name] + 1, shape) if name in most else generator.standard_normal(shape)
        for name, shape in input_shapes(op).items()
    }


def _output_shape(op: Operator) -> tuple[int, ...]:
    if isinstance(op, Softmax):
        return op.rows, op.cols
    if isinstance(op, Conv2d):
        return op.shape_y
    return (op.batch, op.M, op.N) if isinstance(op, Gemm) else (op.batch, op.heads, op.L_q, op.columns)


def _checked(op: Operator, inputs: dict[str, Any]) -> dict[str, Array]:
    shapes = input_shapes(op)
    if set(inputs) != set(shapes):
        given = ", ".join(sorted(inputs)) or "none"
        raise BadInput(f"{op.name} takes the inputs {', '.join(shapes)}, not {given}")
    checked = {}
    for name, shape in shapes.items():
        try:
            checked[name] = rounded(inputs[name], input_dtype(op, name))
        except (TypeError, ValueError) as error:
            raise BadInput(f"{name} is not an array of real numbers: {error}") from error
        if checked[name].shape != shape:
            raise BadInput(f"{name} has shape {checked[name].shape}, expected {shape}")
    return checked
