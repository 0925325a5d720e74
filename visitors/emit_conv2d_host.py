"""Host side of an emitted convolution: run(), reference(), main()."""

from __future__ import annotations

from dataclasses import dataclass

from closedform.operators.conv2d import Conv2d

from .conv2d_shape import Conv2dShape
from .emit_host import foot
from .emit_text import fill, join, piece

__all__ = ["Side", "formula_of", "host", "host_of"]

_RUN = '''
def run(x, w, @parameters@out=None, pad=PAD, groups=GROUPS_OF_CHANNELS, stream=None):
    """Y = @formula@ on the GPU.

    x @x_shape@ and w @w_shape@@packs@ of TORCH_DTYPE@more@.
    pad: zeros above, below, left and right of the image. Returns `out` @y_shape@ of TORCH_OUT, allocated when None; an
    empty one takes no launch. Raises ValueError on anything else.
    """
    N, IC, IH, IW, OC, OH, OW = problem(x, w, pad, groups)
    shape = @y_sizes@
    out = torch.empty(shape, dtype=TORCH_OUT, device=x.device) if out is None else out
    if tuple(out.shape) != shape or out.dtype != TORCH_OUT:
        raise ValueError(f"out must be {shape} of {TORCH_OUT}, not {tuple(out.shape)} {out.dtype}")
    @bias_check@
    if out.numel() == 0:
        return out
    x = x if addressable(x, X_READ, ELEM_BYTES)@next_to@ else x.clone(memory_format=torch.contiguous_format)
    target = out if addressable(out, STORE, OUT_BYTES) else torch.empty(shape, dtype=TORCH_OUT, device=out.device)
    @filter@
    sizes = (@sizes@)
    strides = (*image_strides(x), *image_strides(target))
    check_offsets(x, target, w)
    tensors = [pointer(t) for t in (x, @w@, target@bias_tensor@)]
    launch(*tensors, *sizes, *strides, *grids_of(@grid@), stream_of(out, stream))
    return out if target is out else out.copy_(target)


def problem(x, w, pad, groups):
    """(N, IC, IH, IW, OC, OH, OW) of an image and a filter as stored."""
    @packed_check@
    if x.dim() != 4 or len(w.shape) != 4 or x.dtype != TORCH_DTYPE or @w@.dtype != TORCH_DTYPE:
        raise ValueError(f"x and w must be 4-D {TORCH_DTYPE} tensors, not {tuple(x.shape)} {x.dtype}, {tuple(w.shape)}")
    if len(pad) != 4:
        raise ValueError(f"pad={pad} must be four numbers: above, below, left, right")
    N, IC, IH, IW = (x.shape[axis] for axis in AXES)
    OC, C, KH, KW = (w.shape[axis] for axis in AXES)
    if (KH, KW) != KERNEL or groups < 1 or IC != C * groups or OC % groups:
        raise ValueError(f"x {tuple(x.shape)} and w {tuple(w.shape)} are no {KERNEL} convolution of {groups} groups")
    @exact@
    OH = (IH + pad[0] + pad[1] - (KH - 1) * DILATION[0] - 1) // STRIDE[0] + 1
    OW = (IW + pad[2] + pad[3] - (KW - 1) * DILATION[1] - 1) // STRIDE[1] + 1
    if min(OH, OW) < 1 or min(pad) < 0:
        raise ValueError(f"x {tuple(x.shape)} with pads {pad} leaves no output")
    return N, IC, IH, IW, OC, OH, OW


def image_strides(t):
    """Elements between images, rows, columns@and_channels@."""
    return [t.stride(axis) for axis in (@stride_axes@)]


def addressable(t, access, size):
    """Aligned for accesses of that many elements@next@."""
    strides = [t.stride(axis) for axis in (@wide_axes@)]
    return @unit@all(s % access == 0 for s in strides) and t.data_ptr() % (access * size) == 0


@offsets@


def pointer(t):
    """A tensor for its address only."""
    return t.as_strided((1,), (1,))
'''

_ALIGNED = '''
def aligned(t):
    """The tensor, or a copy: contiguous, from an address that any access may have."""
    return t if t.is_contiguous() and t.data_ptr() % 16 == 0 else t.clone(memory_format=torch.contiguous_format)
'''

_OFFSETS = '''
def check_offsets(x, y, w):
    """What a workgroup touches must lie within 31-bit byte offsets."""
    n, h, w_, c = (x.stride(axis) for axis in (AXES[0], AXES[2], AXES[3], AXES[1]))
    reach_x = (TILE_N - 1) * n + ROW_REACH * h + COL_REACH * w_ + TILE_IC * c
    n, h, w_, c = (y.stride(axis) for axis in (AXES[0], AXES[2], AXES[3], AXES[1]))
    reach_y = (TILE_N - 1) * n + TILE_H * h + TILE_W * w_ + TILE_OC * c
    if max(reach_x * ELEM_BYTES, reach_y * OUT_BYTES, TILE_OC * @w@.numel() // w.shape[0] * ELEM_BYTES) > OFFSET_LIMIT:
        raise ValueError(f"a tile of {tuple(x.shape)} does not lie within 2 GiB")
'''

_EDGES = """
if @one@pad[2]@unit@ % X_READ or IW@unit@ % X_READ:
    raise ValueError(f"{IW} columns, pads {pad}, {groups} groups: this kernel loads {X_READ} elements of a row at once")
"""

_STORED = """
if OC // groups % STORE:
    raise ValueError(f"{OC // groups} filters of a group: this kernel is built for multiples of {STORE}")
"""

_REPLICATED = '''
def by_taps(w):
    """The filter [OC, taps, channels] where taps have become channels: zeros past the last tap."""
    w = w.permute(AXES[0], AXES[2], AXES[3], AXES[1])
    OC, KH, KW, C = w.shape
    rows, cols = ceil_div(KH, REPLICATE_H), ceil_div(KW, REPLICATE_W)
    w = torch.nn.functional.pad(w, (0, 0, 0, cols * REPLICATE_W - KW, 0, rows * REPLICATE_H - KH))
    w = w.reshape(OC, rows, REPLICATE_H, cols, REPLICATE_W, C).permute(@taps_order@)
    return w.reshape(OC, rows * cols, REPLICATE_H * REPLICATE_W * C).contiguous()
'''

_PLAIN = '''
def by_taps(w):
    """The filter [OC, taps, channels]."""
    w = w.permute(AXES[0], AXES[2], AXES[3], AXES[1])
    return w.reshape(w.shape[0], TAPS, w.shape[3])
'''

_BIAS_CHECK = """
if not isinstance(bias, torch.Tensor) or tuple(bias.shape) != (OC,) or not bias.is_floating_point():
    raise ValueError(f"bias must be a floating-point tensor of {OC} elements")
"""

_PACKED_CHECK = """
if not isinstance(w, PackedFilter) or w.data.shape[0] != groups:
    raise ValueError(f"w must come from pack_w() with groups={groups}")
"""

_PACKED = '''
class PackedFilter(NamedTuple):
    """A filter in the order of its fragments: data [groups, tiles of filters, tiles of channels, taps, atoms, reads,
    lanes, VEC], zeros past filters and channels; shape: as stored.
    """

    data: torch.Tensor
    shape: tuple


def pack_w(w, groups=GROUPS_OF_CHANNELS):
    """w @w_shape@ as run() takes it: by tiles and taps, inside of them as lanes read it."""
    shape, w = tuple(w.shape), by_taps(w)
    OC, _, C = w.shape
    tiles_oc, tiles_ic = ceil_div(OC // groups, TILE_OC), ceil_div(C, TILE_IC)
    padded = w.new_zeros(groups, tiles_oc * TILE_OC, TAPS, tiles_ic * TILE_IC)
    padded[:, : OC // groups, :, :C] = w.reshape(groups, OC // groups, TAPS, C)
    image = padded[:, row_column(torch.arange(tiles_oc * TILE_OC, device=w.device))]
    sizes = (TILE_OC // ATOM_MN, ATOM_MN, TAPS, tiles_ic, STEPS * READS, GROUPS, VEC)
    parts = image.view(groups, tiles_oc, *sizes).permute(0, 1, 5, 4, 2, 6, 7, 3, 8)
    return PackedFilter(parts.reshape(*parts.shape[:6], GROUPS * ATOM_MN, VEC).contiguous(), shape)


def unpack_w(packed, groups=GROUPS_OF_CHANNELS):
    """The filter @w_shape@ that pack_w() made `packed` of."""
    OC, C, KH, KW = (packed.shape[axis] for axis in AXES)
    _, tiles_oc, tiles_ic, _, atoms, reads, _, _ = packed.data.shape
    parts = packed.data.view(groups, tiles_oc, tiles_ic, TAPS, atoms, reads, GROUPS, ATOM_MN, VEC)
    image = parts.permute(0, 1, 4, 7, 3, 2, 5, 6, 8).reshape(groups, tiles_oc * TILE_OC, TAPS, tiles_ic * TILE_IC)
    padded = torch.empty_like(image)
    padded[:, row_column(torch.arange(tiles_oc * TILE_OC))] = image
    @unpacked@
    return w@back@.contiguous()
'''

_UNPACKED = """
w = padded[:, : OC // groups, :, :C].reshape(OC, KH, KW, C)
"""

_UNPACKED_REPLICATED = """
w = padded[:, : OC // groups, :, : REPLICATE_H * REPLICATE_W * C]
rows, cols = ceil_div(KH, REPLICATE_H), ceil_div(KW, REPLICATE_W)
w = w.reshape(OC, rows, cols, @new_channels@).permute(@taps_back@)
w = w.reshape(OC, rows * REPLICATE_H, cols * REPLICATE_W, C)[:, :KH, :KW]
"""

_REFERENCE = '''
def reference(x, w, @parameters@pad=PAD, groups=GROUPS_OF_CHANNELS):
    """The same convolution in float64, before it is rounded to the type of Y."""
    x, w = x.double()@first@, w.double()@first@
    x = torch.nn.functional.pad(x, (pad[2], pad[3], pad[0], pad[1]))
    y = torch.nn.functional.conv2d(x, w, None, STRIDE, 0, DILATION, groups)
    @finish@
    return y@last@


def example(device, N=@N@, IC=@IC@, IH=@IH@, IW=@IW@, OC=@OC@, groups=GROUPS_OF_CHANNELS):
    """Inputs of the emitted shape: small whole numbers, whose sums are exact."""
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = [@example@]
    kinds = [TORCH_DTYPE, TORCH_DTYPE, torch.float32]
    numbers = [torch.randint(-2, 3, shape, generator=generator) for shape in shapes]
    return [t.to(device, kind) for t, kind in zip(numbers, kinds)]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    x, y = torch.zeros(1, dtype=TORCH_DTYPE), torch.zeros(1, dtype=TORCH_OUT)
    launch(x, x, y, @bias_zero@*[1] * @scalars@, fx.Stream(None))


def main():
    """Checks against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    inputs = example("cuda")
    given = @given@
    out = run(*given)
    want = reference(*inputs).to(TORCH_OUT).double()
    error = (out.double() - want).abs().max().item() / max(want.abs().max().item(), 1.0)
    print(f"max error relative to the largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(*given, out=out))
    operations = 2 * out.numel() * inputs[1][0].numel()
    print(f"median {ms * 1e3:.1f} us, {operations / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1
'''


@dataclass(frozen=True, slots=True)
class Side:
    """Where the host side of one kernel differs from another's, as text.

    sizes: what the launch takes of the problem, `count` numbers; grid: what `grids_of` takes; exact: lines that refuse
    channels; offsets: the function check_offsets; filter: the line that makes w what the kernel reads, none where
    empty; functions: what it calls; next_to: what x must be beside aligned to be read in place.
    """

    sizes: str
    count: int
    grid: str
    exact: str
    offsets: str
    filter: str
    functions: tuple[str, ...] = ()
    next_to: str = ""


def host(op: Conv2d, shape: Conv2dShape) -> str:
    """Host functions of the kernel of MFMAs; the shape of `op` is the default of `example`, its pads and groups those
    of run().
    """
    packed, replicated, last = op.prepacked, shape.replicated, op.layout == "NHWC"
    runs = replicated and shape.tiles.read_x > 1 and shape.taps.runs
    order = {
        "taps_order": "0, 1, 3, 2, 4, 5" if last else "0, 1, 3, 5, 2, 4",
        "taps_back": "0, 1, 3, 2, 4, 5" if last else "0, 1, 4, 2, 5, 3",
        "new_channels": "REPLICATE_H, REPLICATE_W, C" if last else "C, REPLICATE_H, REPLICATE_W",
    }
    edges = fill(piece(_EDGES), {"unit": " * ONE" if last else "", "one": "groups > 1 or " if last else ""})
    w = "w.data" if packed else "w"
    exact, number = ("C != ONE", "{ONE}") if replicated else ("C % CHANNELS", "multiples of {CHANNELS}")
    refused = f'raise ValueError(f"{{C}} channels of a group: this kernel is built for {number}")'
    functions = [fill(piece(_REPLICATED), order)] if replicated else [piece(_PLAIN)] if packed else []
    if packed:
        values = {
            "w_shape": _shapes(op)["w_shape"],
            "unpacked": fill(piece(_UNPACKED_REPLICATED), order) if replicated else piece(_UNPACKED),
            "back": "" if last else ".permute(0, 3, 1, 2)",
        }
        functions.append(fill(piece(_PACKED), values))
    channels = "REPLICATE_H * REPLICATE_W * ONE" if replicated else "IC // groups"
    side = Side(
        sizes=f"N, IH, IW, {channels}, OH, OW, OC // groups, groups, pad[0], pad[2]",
        count=10,
        grid="N, OH, OW, OC // groups, groups",
        exact="\n".join([f"if {exact}:\n    {refused}", *([edges] if runs else []), piece(_STORED)]),
        next_to=f" and x.stride({2 if last else 3}) == {'ONE' if last else 1}" if runs else "",
        offsets=piece(_OFFSETS).replace("@w@", w),
        filter="" if packed else "w = by_taps(w)" if replicated else "w = aligned(w)",
        functions=tuple(functions),
    )
    return host_of(op, side)


def formula_of(op: Conv2d) -> str:
    """What Y is, as text."""
    formula = "W * X" + (" + bias" if op.bias else "")
    return formula if op.activation == "none" else f"{op.activation}({formula})"


def _shapes(op: Conv2d) -> dict[str, str]:
    """Names of the axes of tensors as stored."""
    if op.layout == "NHWC":
        names = ("[N, IH, IW, IC]", "[OC, KH, KW, IC / groups]", "[N, OH, OW, OC]", "(N, OH, OW, OC)")
    else:
        names = ("[N, IC, IH, IW]", "[OC, IC / groups, KH, KW]", "[N, OC, OH, OW]", "(N, OC, OH, OW)")
    return dict(zip(("x_shape", "w_shape", "y_shape", "y_sizes"), names, strict=True))


def host_of(op: Conv2d, side: Side) -> str:
    """Host functions of a kernel, of which `side` says what is its own."""
    last, packed = op.layout == "NHWC", op.prepacked
    finish = ["y = y + bias.double().reshape(1, -1, 1, 1)"] if op.bias else []
    functional = {"relu": "relu(y)", "silu": "silu(y)", "gelu": "gelu(y)", "gelu_tanh": 'gelu(y, approximate="tanh")'}
    if op.activation != "none":
        limit = "" if op.activation == "relu" else ".masked_fill(y == -math.inf, 0.0)  # the limit, not inf / inf"
        finish.append(f"y = torch.nn.functional.{functional[op.activation]}{limit}")
    filters = [side.filter] if side.filter else []
    if op.bias:
        filters.append("bias = aligned(bias.float())")
    values = {
        **_shapes(op),
        "parameters": "bias, " if op.bias else "",
        "formula": formula_of(op),
        "w": "w.data" if packed else "w",
        "packs": " from pack_w()" if packed else "",
        "given": "[inputs[0], pack_w(inputs[1]), *inputs[2:]]" if packed else "inputs",
        "more": ", bias [OC]" if op.bias else "",
        "filter": "\n".join(filters),
        "sizes": side.sizes,
        "grid": side.grid,
        "offsets": side.offsets,
        "bias_tensor": ", bias" if op.bias else "",
        "bias_check": piece(_BIAS_CHECK) if op.bias else "",
        "packed_check": piece(_PACKED_CHECK) if packed else "",
        "exact": side.exact,
        "next_to": side.next_to,
        "and_channels": "" if last else " and channels",
        "stride_axes": "0, 1, 2" if last else "0, 2, 3, 1",
        "wide_axes": "0, 1, 2" if last else "0, 1, 2, 3",
        "unit": "t.stride(3) == 1 and " if last else "",
        "next": ", channels next to each other" if last else "",
        "first": ".permute(0, 3, 1, 2)" if last else "",
        "last": ".permute(0, 2, 3, 1)" if last else "",
        "finish": "\n".join(finish),
        "example": (
            "(N, IH, IW, IC), (OC, *KERNEL, IC // groups), (OC,)"
            if last
            else "(N, IC, IH, IW), (OC, IC // groups, *KERNEL), (OC,)"
        ).removesuffix("" if op.bias else ", (OC,)"),
        "bias_zero": "torch.zeros(1), " if op.bias else "",
        "scalars": str(side.count + (6 if last else 8) + 2),
    }
    values |= {name: str(getattr(op, name)) for name in ("N", "IC", "IH", "IW", "OC")}
    functions = (piece(_ALIGNED) if "aligned(" in values["filter"] else "", *side.functions)
    return join(fill(piece(_RUN), values), *functions, fill(piece(_REFERENCE), values), foot(rows=False))
