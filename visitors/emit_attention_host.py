"""Host side of an emitted attention file: launcher, run(), reference(), main()."""

from __future__ import annotations

from closedform.operators.attention import Attention

from .emit_host import foot
from .emit_text import fill, join, piece

__all__ = ["CHECK_SCALE", "LOADABLE", "formula", "host"]

_LAUNCH = """
@flyc.jit
def launch(
    Q: fx.Tensor, K: fx.Tensor, V: fx.Tensor, O: fx.Tensor,@lse_tensor@
    L_q: fx.Int32, L_kv: fx.Int32, heads: fx.Int32, batch: fx.Int32, scale: fx.Float32,
    stream: fx.Stream = fx.Stream(None),
):
    grid = ((L_q + (WAVES * TILE_Q - 1)) // (WAVES * TILE_Q), heads, batch)
    @call@
"""

_RUN = '''
def run(q, k, v, out=None, @lse_parameter@stream=None@scale_parameter@):
    """O = @formula@ on the GPU.

    q [batch, heads, L_q, d], k and v [batch, heads, L_kv, d]: torch tensors of TORCH_DTYPE with d = HEAD_DIM and
    any strides along batch, heads and L. Returns `out` (allocated like q when None). Raises ValueError on anything
    else.
    @sharing@
    @result_too@
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    check(q, k, v, out)
    @check_scale@
    @check_lse@
    target = out if loadable(out) else torch.empty_like(out, memory_format=torch.contiguous_format)
    q, k, v = (t if loadable(t) else t.clone(memory_format=torch.contiguous_format) for t in (q, k, v))
    batch, heads, L_q, d = q.shape
    launch(q, k, v, target, @lse_argument@L_q, k.shape[2], heads, batch, @scale@, stream_of(q, stream))
    @return_@


def check(q, k, v, out):
    """ValueError unless the four tensors describe one attention problem of this kernel."""
    if any(t.dim() != 4 or t.dtype != TORCH_DTYPE for t in (q, k, v, out)):
        raise ValueError(f"q, k, v and out must be 4-D {TORCH_DTYPE} tensors [batch, heads, L, d]")
    batch, heads, L_q, d = q.shape
    if d != HEAD_DIM:
        raise ValueError(f"head dim {d}: this kernel is built for {HEAD_DIM}")
    @heads_agree@
    if k.shape != v.shape or @other_heads@k.shape[3] != d or out.shape != q.shape:
        raise ValueError(f"shapes do not agree: q {q.shape}, k {k.shape}, v {v.shape}, out {out.shape}")
    if min(batch, heads, L_q, k.shape[2]) < 1 or max(heads, batch) > GRID_LIMIT:
        raise ValueError(f"batch and heads must be 1 to {GRID_LIMIT} and lengths at least 1: q {q.shape}, k {k.shape}")
    if max(L_q, k.shape[2]) > LENGTH_LIMIT:
        raise ValueError(f"lengths are limited to {LENGTH_LIMIT}: q {q.shape}, k {k.shape}")
    if any(t.device != q.device for t in (k, v, out)):
        raise ValueError(f"q, k, v and out must be on one GPU: {[str(t.device) for t in (q, k, v, out)]}")
'''

LOADABLE = '''
def loadable(tensor):
    """Whether the kernel can address the tensor in place: unit stride along d, rows aligned for one access, and a
    tile of rows within 31-bit byte offsets."""
    rows, columns = max(TILE_Q, TILE_KV), tensor.shape[3]
    access = math.gcd(columns, 16 // tensor.element_size())
    return (
        tensor.stride(3) == 1
        and tensor.stride(2) >= columns
        and rows * tensor.stride(2) * tensor.element_size() < OFFSET_LIMIT
        and all(tensor.stride(i) % access == 0 for i in range(3))
        and tensor.data_ptr() % (access * tensor.element_size()) == 0
    )
'''

_REFERENCE = '''
def reference(q, k, v@scale_parameter@):
    """The same attention in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    @repeat@
    @exact@


def example(device, L_q=@L_q@, L_kv=@L_kv@, heads=@heads@, batch=@batch@):
    """Normal random inputs of the emitted shape."""
    generator = torch.Generator("cpu").manual_seed(0)
    @shapes@
    return [torch.randn(s, generator=generator).to(device, TORCH_DTYPE) for s in shapes]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    q, k, v = example("cpu", 2, 2, @some_heads@, 2)
    launch(q, k, v, torch.empty_like(q), @some_lse@2, 2, @some_heads@, 2, 1.0 / math.sqrt(HEAD_DIM))


def main():
    """Checks a sample of query rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    q, k, v = example("cuda")
    @run_once@
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], 256)).long().unique()
    @error@
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(q, k, v, out@lse_again@))
    flops = 4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * HEAD_DIM
    print(f"median {ms * 1e3:.1f} us, {flops / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1
'''


_CALL = """
attention_kernel(Q, K, V, O, L_q, L_kv, scale, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
    grid=grid, block=(THREADS, 1, 1), stream=stream
)
"""
_CALL_LSE = """
attention_kernel(Q, K, V, O, LSE, L_q, L_kv, scale, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
    grid=grid, block=(THREADS, 1, 1), stream=stream
)
"""
CHECK_SCALE = """
if not 0.0 < scale < math.inf:
    raise ValueError(f"scale {scale}: the factor of the logits must be positive and finite")
"""
_RESULT_TOO = """
With it comes `lse` (allocated when None, f32 [batch, heads, L_q], contiguous): the natural logarithm of the sum of
exponentials of each query's scaled logits.
"""
_CHECK_LSE = """
lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if lse is None else lse
if (lse.shape, lse.dtype, lse.device) != (q.shape[:3], torch.float32, q.device) or not lse.is_contiguous():
    raise ValueError(f"lse must be a contiguous f32 tensor {tuple(q.shape[:3])} on the GPU of q")
"""
_HEADS_AGREE = """
if (k.shape[0], k.shape[1] * HEADS_PER_KV) != (batch, heads):
    raise ValueError(f"{HEADS_PER_KV} heads of q share a head of k and v: q {q.shape}, k {k.shape}")
"""
_SHAPES = """
shapes = ((batch, heads, L_q, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM))
"""
_SHAPES_GROUPED = """
keys = (batch, heads // HEADS_PER_KV, L_kv, HEAD_DIM)
shapes = ((batch, heads, L_q, HEAD_DIM), keys, keys)
"""
_EXACT_LSE = """
logits = q @ k.transpose(-1, -2) @times_scale@
return torch.softmax(logits, -1) @ v, torch.logsumexp(logits, -1)
"""
_ERROR = """
error = max_error(out[:, :, rows].cpu(), reference(q[:, :, rows].cpu(), k.cpu(), v.cpu()))
"""
_ERROR_LSE = """
want, want_lse = reference(q[:, :, rows].cpu(), k.cpu(), v.cpu())
error = max(max_error(out[:, :, rows].cpu(), want), max_error(lse[:, :, rows].cpu(), want_lse))
"""


def formula(op: Attention) -> str:
    """What O is."""
    return "softmax(Q K^T / sqrt(d)) V" if op.softmax_scale is None else "softmax(scale Q K^T) V"


def host(op: Attention) -> str:
    """Host functions; the emitted shape is the default of `example`."""
    shape = {name: str(getattr(op, name)) for name in ("L_q", "L_kv", "heads", "batch")}
    text = join(piece(_LAUNCH), piece(_RUN), piece(LOADABLE), piece(_REFERENCE), foot())
    return fill(text, {**shape, **_scale_text(op), **_heads_text(op), **_lse_text(op)})


def _scale_text(op: Attention) -> dict[str, str]:
    """The factor of the logits: a parameter with a default, or that of d."""
    scaled = op.softmax_scale is not None
    return {
        "formula": formula(op),
        "scale_parameter": ", scale=SCALE" if scaled else "",
        "check_scale": piece(CHECK_SCALE) if scaled else "",
        "scale": "scale" if scaled else "1.0 / math.sqrt(d)",
    }


def _heads_text(op: Attention) -> dict[str, str]:
    """Heads of K and V: those of Q, or one for HEADS_PER_KV of them."""
    grouped = op.group > 1
    return {
        "sharing": "k and v have one head for HEADS_PER_KV of q." if grouped else "",
        "heads_agree": piece(_HEADS_AGREE) if grouped else "",
        "other_heads": "" if grouped else "k.shape[:2] != q.shape[:2] or ",
        "repeat": "k, v = (t.repeat_interleave(HEADS_PER_KV, 1) for t in (k, v))" if grouped else "",
        "shapes": piece(_SHAPES_GROUPED if grouped else _SHAPES),
        "some_heads": "2 * HEADS_PER_KV" if grouped else "2",
    }


def _lse_text(op: Attention) -> dict[str, str]:
    """The log-sum-exp as a second result, or one result alone."""
    times = {"times_scale": "/ math.sqrt(q.shape[-1])" if op.softmax_scale is None else "* scale"}
    if not op.lse:
        return {
            **dict.fromkeys(("lse_tensor", "lse_parameter", "result_too", "check_lse"), ""),
            **dict.fromkeys(("lse_argument", "some_lse", "lse_again"), ""),
            "call": piece(_CALL),
            "return_": "return target if target is out else out.copy_(target)",
            "exact": fill("return torch.softmax(q @ k.transpose(-1, -2) @times_scale@, -1) @ v", times),
            "run_once": "out = run(q, k, v)",
            "error": piece(_ERROR),
        }
    heads = "2 * HEADS_PER_KV" if op.group > 1 else "2"
    return {
        "lse_tensor": " LSE: fx.Tensor,",
        "lse_parameter": "lse=None, ",
        "result_too": piece(_RESULT_TOO),
        "check_lse": piece(_CHECK_LSE),
        "lse_argument": "lse, ",
        "some_lse": f"torch.empty(2, {heads}, 2), ",
        "lse_again": ", lse",
        "call": piece(_CALL_LSE),
        "return_": "return (target if target is out else out.copy_(target)), lse",
        "exact": fill(piece(_EXACT_LSE), times),
        "run_once": "out, lse = run(q, k, v)",
        "error": piece(_ERROR_LSE),
    }
