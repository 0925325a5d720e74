"""Derivation and driver of attention in three kernels: each is derived and emitted as the operator that it is."""

from __future__ import annotations

from dataclasses import dataclass

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import InfeasibleError
from closedform.operators.attention import Attention
from closedform.operators.unfused import UnfusedAttention

from .derivation import Derivation
from .emit import kernel_name
from .emit_attention import TORCH_TYPES
from .emit_host import foot
from .emit_text import docstring, fill, join, piece
from .feasibility import derive

__all__ = ["UnfusedDerivation", "derive_unfused", "driver_name", "driver_source"]


@dataclass(frozen=True, slots=True)
class UnfusedDerivation:
    """The derivations of the three kernels, in the order of their launches."""

    op: Attention
    hw: HardwareDescriptor
    scores: Derivation
    softmax: Derivation
    values: Derivation

    @property
    def parts(self) -> dict[str, Derivation]:
        return {"scores": self.scores, "softmax": self.softmax, "values": self.values}

    @property
    def rounds(self) -> int:
        """Times that the device is filled, by all three."""
        return sum(part.require()[2].rounds for part in self.parts.values())


def derive_unfused(op: Attention, hw: HardwareDescriptor) -> UnfusedDerivation:
    """The three kernels of attention on `hw`. Raises InfeasibleError where one of them has no tiles, and BadInput."""
    unfused = UnfusedAttention(op)
    found = [derive(part, hw, "default") for part in (unfused.scores, unfused.softmax, unfused.values)]
    for part in found:
        if part.infeasible is not None:
            raise InfeasibleError(part.infeasible)
    return UnfusedDerivation(op, hw, *found)


_DRIVER = '''
import importlib.util
import math
import sys
from pathlib import Path

import torch


TARGET, TORCH_DTYPE, HEAD_DIM = "@gfx@", torch.@dtype@, @d@
SCORE_VEC = @vec@  # elements that the length of a row of S is filled up to
TOLERANCE = @tolerance@  # against float64, relative to the row's largest value


def sibling(name):
    """A kernel file that lies beside this one."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCORES = sibling("@scores@")
SOFTMAX = sibling("@softmax@")
VALUES = sibling("@values@")


def run(q, k, v, out=None, stream=None, scores=None):
    """O = softmax(Q K^T / sqrt(d)) V by three kernels, with S in memory.

    q [batch, heads, L_q, d], k and v [batch, heads, L_kv, d]: tensors of TORCH_DTYPE with d = HEAD_DIM. Returns `out`
    (allocated when None). `scores` of scores_of() is allocated when None. Raises ValueError on anything else.
    """
    check(q, k, v)
    batch, heads, L_q, d = q.shape
    q, k, v = (t.reshape(batch * heads, t.shape[2], d) for t in (q, k, v))
    scores = scores_of(q, k) if scores is None else scores
    SCORES.run(q, k, out=scores, alpha=1.0 / math.sqrt(d), stream=stream)
    SOFTMAX.run(scores, out=scores, stream=stream)
    target = None if out is None else out.view(batch * heads, L_q, d)
    return VALUES.run(scores, v, out=target, stream=stream).view(batch, heads, L_q, d)


def scores_of(q, k):
    """Memory of S for q and k [heads, L, d], its rows whole accesses apart."""
    keys = k.shape[1]
    space = torch.empty(q.shape[0], q.shape[1], -(-keys // SCORE_VEC) * SCORE_VEC, dtype=TORCH_DTYPE, device=q.device)
    return space[..., :keys]


def check(q, k, v):
    """ValueError unless the tensors describe one attention problem of these kernels."""
    if any(t.dim() != 4 or t.dtype != TORCH_DTYPE for t in (q, k, v)):
        raise ValueError(f"q, k and v must be 4-D {TORCH_DTYPE} tensors [batch, heads, L, d]")
    if k.shape != v.shape or k.shape[:2] != q.shape[:2] or {q.shape[3], k.shape[3]} != {HEAD_DIM}:
        raise ValueError(f"shapes do not agree, or d is not {HEAD_DIM}: q {q.shape}, k {k.shape}, v {v.shape}")


def reference(q, k, v):
    """The same attention in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def example(device, L_q=@L_q@, L_kv=@L_kv@, heads=@heads@, batch=@batch@):
    """Normal random inputs of the emitted shape."""
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = ((batch, heads, L_q, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM))
    return [torch.randn(s, generator=generator).to(device, TORCH_DTYPE) for s in shapes]


def main():
    """Checks a sample of query rows against float64, then times the kernels; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    q, k, v = example("cuda")
    out = run(q, k, v)
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], 256)).long().unique()
    error = max_error(out[:, :, rows].cpu(), reference(q[:, :, rows].cpu(), k.cpu(), v.cpu()))
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    scores = scores_of(q.flatten(0, 1), k.flatten(0, 1))
    ms = median_ms(lambda: run(q, k, v, out, scores=scores))
    flops = 4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * HEAD_DIM
    print(f"median {ms * 1e3:.1f} us, {flops / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1
'''

#: Error of main() against float64: S and P are rounded to the type.
TOLERANCES = {"f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}


def driver_name(derivation: UnfusedDerivation) -> str:
    """File name without suffix. L, heads and batch are run-time arguments, but decide which kernels are called."""
    op = derivation.op
    return f"attention_{derivation.hw.name}_{op.dtype}_d{op.d}_unfused_L{op.L_q}x{op.L_kv}"


def driver_source(derivation: UnfusedDerivation) -> str:
    """The file that runs the three kernels, which lie beside it."""
    op, hw = derivation.op, derivation.hw
    names = {name: kernel_name(part) for name, part in derivation.parts.items()}
    grids = ", ".join(str(part.require()[2].blocks) for part in derivation.parts.values())
    header = docstring(
        f"Unfused attention O = softmax(Q K^T / sqrt(d)) V for {hw.gfx}: three kernels with S in memory.",
        [
            ("shape", f"batch {op.batch}, heads {op.heads}, L_q {op.L_q}, L_kv {op.L_kv}, d {op.d}; run-time but d"),
            ("types", f"{op.dtype} in and out and for S and P, f32 accumulation"),
            ("target", f"{hw.name} ({hw.gfx})"),
            ("kernels", ", ".join(names.values())),
            ("grids", f"{grids} workgroups, {derivation.rounds} round(s) on {hw.num_cus} CUs in all"),
            ("emitted by", "closedform; needs flydsl and torch"),
        ],
    )
    values = {
        "gfx": hw.gfx,
        "dtype": TORCH_TYPES[op.dtype],
        "vec": str(16 // op.elem_bytes),
        "tolerance": str(TOLERANCES[op.dtype]),
        **names,
        **{name: str(getattr(op, name)) for name in ("d", "L_q", "L_kv", "heads", "batch")},
    }
    return join(header, fill(piece(_DRIVER), values), foot(kernel=False)) + "\n"
