"""Host side of an emitted softmax: run(), reference(), main()."""

from __future__ import annotations

from closedform.operators.softmax import Softmax, SoftmaxTiles

from .emit_host import foot
from .emit_text import fill, join, piece

__all__ = ["host"]

_RUN = '''
def run(x, @mask_parameter@out=None, @lse_parameter@stream=None):
    """@what@ along the last axis on the GPU.

    x: a tensor of TORCH_DTYPE with any strides, seen as rows.
    @mask_is@
    Returns `out` (allocated like x when None)@returns@; an empty x takes no launch. Raises ValueError on anything else.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    check(x, out)
    @lse_out@
    @lse_check@
    if x.numel() == 0:
        return @result@
    source, target = rows_of(x), rows_of(out)
    if not (addressable(source) and addressable(target) and alike(source, target)):
        source, target = padded(source), torch.empty_like(padded(target))
    rows, cols = source.shape
    @mask_rows@
    @workspace@
    launch(@tensors@, rows, cols, *grid_of(rows), stream_of(x, stream))
    if target.data_ptr() != out.data_ptr():
        out.copy_(target.reshape(out.shape))
    return @result@


def check(x, out):
    """ValueError unless these are the input and the output of one softmax of this kernel."""
    if x.dim() < 1 or any(t.dtype != TORCH_DTYPE for t in (x, out)):
        raise ValueError(f"x and out must be {TORCH_DTYPE} tensors of at least one axis, not {x.dtype} {out.dtype}")
    if out.shape != x.shape:
        raise ValueError(f"shapes do not agree: x {tuple(x.shape)}, out {tuple(out.shape)}")
    @limit@
    if x.numel() // max(1, x.shape[-1])@times_splits@ > ROWS_LIMIT or x.shape[-1] > COLS_MAX:
        raise ValueError(f"at most {ROWS_LIMIT@over_splits@} rows of {COLS_MAX}: x {tuple(x.shape)}")
    if x.device != out.device:
        raise ValueError(f"x and out must be on one GPU: {x.device}, {out.device}")


def rows_of(t):
    """The tensor as [rows, cols], in place where its strides allow it."""
    return t.reshape(-1, t.shape[-1])


def padded(t):
    """A copy whose rows are whole accesses apart."""
    space = torch.empty(t.shape[0], ceil_div(t.shape[1], VEC) * VEC, dtype=t.dtype, device=t.device)
    return space[:, : t.shape[1]].copy_(t)


def addressable(t):
    """Whether the kernel can read it in place: unit stride, the rows of a workgroup within 31-bit offsets@and@."""
    return (
        (t.stride(1) == 1 or t.shape[1] == 1)
        and t.stride(0) >= t.shape[1]
        and ROWS * t.stride(0) * ELEM_BYTES < OUT_OF_RANGE
        @aligned@
    )


def alike(x, out):
    """Whether accesses of both begin at the same elements of a row."""
    return @alike@
'''

_MASK_IS = "mask: of a shape that expands to that of x; where it is 0 the logit is -inf."

_LSE_CHECK = """
if lse.shape != x.shape[:-1] or lse.dtype != torch.float32 or not lse.is_contiguous() or lse.device != x.device:
    raise ValueError(f"lse must be contiguous, {tuple(x.shape[:-1])} of torch.float32 on {x.device}")
"""

_WHOLE = """
if x.shape[-1] % VEC:
    raise ValueError(f"rows of {x.shape[-1]}: this kernel is built for multiples of {VEC}")
"""

_LIMIT = """
if x.shape[-1] > COLS_LIMIT:
    raise ValueError(f"rows of {x.shape[-1]}: this kernel holds {COLS_LIMIT}")
"""

_MASK_ROWS = '''
def mask_rows(mask, shape):
    """The mask as bytes [rows, cols] and zeros behind each row, which end with a whole word."""
    mask = mask.expand(shape).reshape(-1, shape[-1]).ne(0).view(torch.uint8)
    space = torch.zeros(mask.shape[0], ceil_div(mask.shape[1], 16) * 16, dtype=torch.uint8, device=mask.device)
    space[:, : mask.shape[1]] = mask
    return space
'''

_REFERENCE = '''
def reference(@reference_parameters@):
    """The same in float64: result@and_lse@."""
    x = x.double()
    @masked@
    out = @exact@
    @empty@
    return @exact_result@


def example(device, rows=@rows@, cols=@cols@):
    """Normal random inputs of the emitted shape@with_mask@."""
    generator = torch.Generator("cpu").manual_seed(0)
    x = (3.0 * torch.randn(rows, cols, generator=generator)).to(device, TORCH_DTYPE)
    @example_mask@
    return @inputs@


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    @example_x@ = example("cpu", 2, 2 * VEC)
    rows, cols, source, target = 2, 2 * VEC, x, torch.empty_like(x)
    @example_lse@
    @example_work@
    launch(@tensors@, rows, cols, *grid_of(rows))


def main():
    """Checks a sample of rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    inputs = example("cuda")
    out = run(*inputs)@first_end@
    sample = torch.linspace(0, out.shape[0] - 1, min(out.shape[0], 64)).long().unique()
    want = reference(*(t[sample].cpu() for t in inputs))@first_end@
    error = max_error(out[sample].cpu(), want)
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(*inputs, out=out))
    print(f"median {ms * 1e3:.1f} us, {2 * out.numel() * ELEM_BYTES / ms / 1e6:.1f} GB/s")
    return 0 if error <= TOLERANCE else 1
'''


def host(op: Softmax, tiles: SoftmaxTiles) -> str:
    """Host functions; the shape of `op` is the default of `example`."""
    packed = op.elem_bytes < 4
    names = ["source", "target", *(["mask"] if op.mask else []), *(["lse"] if op.lse else [])]
    names += ["workspace"] if tiles.splits > 1 else []
    limits = ([piece(_LIMIT)] if tiles.passes == 1 else []) + ([] if tiles.ends else [piece(_WHOLE)])
    aligned, alike = "", "True"
    if packed and not tiles.ends:
        aligned = "and t.data_ptr() % 4 == 0 and t.stride(0) % 2 == 0"
    if packed and tiles.ends:
        alike = "x.data_ptr() % 4 == out.data_ptr() % 4 and (x.stride(0) - out.stride(0)) % 2 == 0"
    empty = ""
    if op.empty == "zero":
        value = "-math.inf" if op.log else "0.0"
        empty = f"out = out.masked_fill((x == -math.inf).all(-1, keepdim=True), {value})"
    values = {
        "mask_parameter": "mask, " if op.mask else "",
        "lse_parameter": "lse=None, " if op.lse else "",
        "what": "Log-softmax" if op.log else "Softmax",
        "mask_is": piece(_MASK_IS) if op.mask else "",
        "returns": ", and the lse of each row in f32" if op.lse else "",
        "lse_out": "lse = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device) if lse is None else lse"
        if op.lse
        else "",
        "lse_check": piece(_LSE_CHECK) if op.lse else "",
        "result": "(out, lse)" if op.lse else "out",
        "mask_rows": "mask = mask_rows(mask, x.shape)" if op.mask else "",
        "workspace": "workspace = torch.empty(rows, 2 * SPLITS, dtype=torch.float32, device=x.device)"
        if tiles.splits > 1
        else "",
        "tensors": ", ".join(names),
        "limit": "\n".join(limits),
        "times_splits": " * SPLITS" if tiles.splits > 1 else "",
        "over_splits": " // SPLITS" if tiles.splits > 1 else "",
        "and": ",\n    rows at whole words" if aligned else "",
        "aligned": aligned,
        "alike": alike,
        "and_lse": " and lse" if op.lse else "",
        "masked": "x = x.masked_fill(mask.expand(x.shape) == 0, -math.inf)" if op.mask else "",
        "reference_parameters": "x, mask" if op.mask else "x",
        "exact": f"torch.{'log_' if op.log else ''}softmax(x, -1)",
        "empty": empty,
        "exact_result": "(out, torch.logsumexp(x, -1))" if op.lse else "out",
        "rows": str(op.rows),
        "cols": str(op.cols),
        "with_mask": ", and a mask that keeps half of it" if op.mask else "",
        "example_mask": "mask = (torch.rand(rows, cols, generator=generator) < 0.5).to(device, torch.uint8)"
        if op.mask
        else "",
        "inputs": "[x, mask]" if op.mask else "[x]",
        "example_x": "x, mask" if op.mask else "(x,)",
        "example_lse": "lse = torch.empty(rows)" if op.lse else "",
        "example_work": "workspace = torch.empty(rows, 2 * SPLITS)" if tiles.splits > 1 else "",
        "first_end": "[0]" if op.lse else "",
    }
    text = join(piece(_RUN), piece(_MASK_ROWS) if op.mask else "", piece(_REFERENCE), foot())
    return fill(text, values)
