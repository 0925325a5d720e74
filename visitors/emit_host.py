"""Host side of an emitted attention file: launcher, run(), reference(), main()."""

from __future__ import annotations

from closedform.operators.attention import Attention

from .emit_text import join, piece

__all__ = ["formula", "host"]

_LAUNCH = """
@flyc.jit
def launch(
    Q: fx.Tensor, K: fx.Tensor, V: fx.Tensor, O: fx.Tensor,
    L_q: fx.Int32, L_kv: fx.Int32, heads: fx.Int32, batch: fx.Int32, scale: fx.Float32,
    stream: fx.Stream = fx.Stream(None),
):
    grid = ((L_q + (WAVES * TILE_Q - 1)) // (WAVES * TILE_Q), heads, batch)
    attention_kernel(Q, K, V, O, L_q, L_kv, scale, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
        grid=grid, block=(THREADS, 1, 1), stream=stream
    )
"""

_RUN = '''
def run(q, k, v, out=None, stream=None@scale_parameter@):
    """O = @formula@ on the GPU.

    q [batch, heads, L_q, d], k and v [batch, heads, L_kv, d]: torch tensors of TORCH_DTYPE with d = HEAD_DIM and
    any strides along batch, heads and L. Returns `out` (allocated like q when None). Raises ValueError on anything
    else.
    @sharing@
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    check(q, k, v, out)
    @check_scale@
    target = out if loadable(out) else torch.empty_like(out, memory_format=torch.contiguous_format)
    q, k, v = (t if loadable(t) else t.contiguous() for t in (q, k, v))
    batch, heads, L_q, d = q.shape
    stream = torch.cuda.current_stream(q.device) if stream is None and q.is_cuda else stream
    launch(q, k, v, target, L_q, k.shape[2], heads, batch, @scale@, fx.Stream(stream))
    return target if target is out else out.copy_(target)


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
    if any(t.device != q.device for t in (k, v, out)) or not q.is_cuda:
        raise ValueError(f"q, k, v and out must be on one GPU: {[str(t.device) for t in (q, k, v, out)]}")


def loadable(tensor):
    """Whether the kernel can address the tensor in place: unit stride along d, rows aligned for one access, and a
    tile of rows within 31-bit byte offsets."""
    rows = max(TILE_Q, TILE_KV)
    row_stride = tensor.stride(2)
    return (
        tensor.stride(3) == 1
        and row_stride >= HEAD_DIM
        and rows * row_stride * ELEM_BYTES < OFFSET_LIMIT
        and all(tensor.stride(i) % ACCESS == 0 for i in range(3))
        and tensor.data_ptr() % (ACCESS * ELEM_BYTES) == 0
    )
'''

_REFERENCE = '''
def reference(q, k, v@scale_parameter@):
    """The same attention in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    @repeat@
    return torch.softmax(q @ k.transpose(-1, -2) @times_scale@, -1) @ v


def example(device, L_q=@L_q@, L_kv=@L_kv@, heads=@heads@, batch=@batch@):
    """Normal random inputs of the emitted shape."""
    generator = torch.Generator("cpu").manual_seed(0)
    @shapes@
    return [torch.randn(s, generator=generator).to(device, TORCH_DTYPE) for s in shapes]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    q, k, v = example("cpu", 2, 2, @some_heads@, 2)
    launch(q, k, v, torch.empty_like(q), 2, 2, @some_heads@, 2, 1.0 / math.sqrt(HEAD_DIM))


def max_error(got, want):
    """Largest error relative to the largest magnitude of the row."""
    scale = want.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return ((got.double() - want).abs() / scale).max().item()


def main():
    """Checks a sample of query rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    on_rocm = torch.version.hip is not None and torch.cuda.is_available()
    arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] if on_rocm else None
    if arch != TARGET:
        print(f"no {TARGET} GPU here (found {arch or 'none'}): nothing was run")
        return 3
    q, k, v = example("cuda")
    out = run(q, k, v)
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], 256)).long().unique()
    error = max_error(out[:, :, rows].cpu(), reference(q[:, :, rows].cpu(), k.cpu(), v.cpu()))
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(25):
        begin.record()
        run(q, k, v, out)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    ms = sorted(times[5:])[10]
    flops = 4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * HEAD_DIM
    print(f"median {ms * 1e3:.1f} us, {flops / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
'''


_CHECK_SCALE = """\
    if not 0.0 < scale < math.inf:
        raise ValueError(f"scale {scale}: the factor of the logits must be positive and finite")
"""
_SHARING = """\
    k and v have one head for HEADS_PER_KV of q.
"""
_HEADS_AGREE = """\
    if (k.shape[0], k.shape[1] * HEADS_PER_KV) != (batch, heads):
        raise ValueError(f"{HEADS_PER_KV} heads of q share a head of k and v: q {q.shape}, k {k.shape}")
"""
_REPEAT = """\
    k, v = (t.repeat_interleave(HEADS_PER_KV, 1) for t in (k, v))
"""
_SHAPES = """\
    shapes = ((batch, heads, L_q, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM))
"""
_SHAPES_GROUPED = """\
    keys = (batch, heads // HEADS_PER_KV, L_kv, HEAD_DIM)
    shapes = ((batch, heads, L_q, HEAD_DIM), keys, keys)
"""


def formula(op: Attention) -> str:
    """What O is."""
    return "softmax(Q K^T / sqrt(d)) V" if op.softmax_scale is None else "softmax(scale Q K^T) V"


def host(op: Attention) -> str:
    """Host functions; the emitted shape is the default of `example`."""
    grouped, scaled = op.group > 1, op.softmax_scale is not None
    lines = {
        "check_scale": _CHECK_SCALE if scaled else "",
        "sharing": _SHARING if grouped else "",
        "heads_agree": _HEADS_AGREE if grouped else "",
        "repeat": _REPEAT if grouped else "",
        "shapes": _SHAPES_GROUPED if grouped else _SHAPES,
    }
    words = {
        "L_q": str(op.L_q),
        "L_kv": str(op.L_kv),
        "heads": str(op.heads),
        "batch": str(op.batch),
        "formula": formula(op),
        "scale_parameter": ", scale=SCALE" if scaled else "",
        "scale": "scale" if scaled else "1.0 / math.sqrt(d)",
        "times_scale": "* scale" if scaled else "/ math.sqrt(q.shape[-1])",
        "other_heads": "" if grouped else "k.shape[:2] != q.shape[:2] or ",
        "some_heads": "2 * HEADS_PER_KV" if grouped else "2",
    }
    text = join(piece(_LAUNCH), piece(_RUN), piece(_REFERENCE))
    for name, value in lines.items():
        text = text.replace(f"    @{name}@\n", value)
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text
