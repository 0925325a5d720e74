"""Host side of an emitted GEMM: launcher, run(), reference(), main()."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["host", "place"]

_PLACE = '''
def place(M, N, K):
    """Tile of this workgroup: (M, K, first row, first column, batch entry); M and K are 0 past the last tile.

    @mapping@
    """
    tiles_m, tiles_n = ceil_div(M, TILE_M), ceil_div(N, TILE_N)
    tile = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
    active = tile < tiles_m * tiles_n
    tile = active.select(tile, fx.Int32(0))
    @remap@
    group = tile // (tiles_n * GROUP_M)
    inside = tile - group * (tiles_n * GROUP_M)
    rows = smaller(tiles_m - group * GROUP_M, fx.Int32(GROUP_M))
    tile_m, tile_n = group * GROUP_M + inside % rows, inside // rows
    zero = fx.Int32(0)
    return active.select(M, zero), active.select(K, zero), tile_m * TILE_M, tile_n * TILE_N, fx.Int64(gpu.block_idx.z)
'''

_REMAP = """\
    tiles = tiles_m * tiles_n
    xcd, turn = tile % XCDS, tile // XCDS
    tile = xcd * (tiles // XCDS) + smaller(xcd, tiles % XCDS) + turn
"""

_LAUNCH = '''
@flyc.jit
def launch(
    @tensors@
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, grid_x: fx.Int32, grid_y: fx.Int32,
    @scalars_typed@, stream: fx.Stream = fx.Stream(None),
):
    gemm_kernel(@arguments@, M, N, K, @scalars@, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
        grid=(grid_x, grid_y, batch), block=(THREADS, 1, 1), stream=stream
    )


def grid_of(M, N):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    tiles = ceil_div(M, TILE_M) * ceil_div(N, TILE_N)
    return min(tiles, GRID_X), ceil_div(tiles, GRID_X)
'''

_RUN = '''
def run(a, b, @parameters@out=None, alpha=1.0, beta=@beta@, @scale@stream=None):
    """D = @formula@ on the GPU; alpha = 0 or K = 0 reads neither A nor B, beta = 0 does not read C.

    a @shape_a@ and b @shape_b@ of TORCH_DTYPE@more@, each with a leading batch axis or without,
    rows contiguous. Returns `out` [batch, M, N] of TORCH_OUT, allocated when None; an empty one takes no launch.
    Raises ValueError on anything else.
    """
    a, b = matrices(a), matrices(b)
    batch, M, N, K = problem(a, b)
    out = torch.empty(batch, M, N, dtype=TORCH_OUT, device=a.device) if out is None else out
    if tuple(out.shape[-2:]) != (M, N) or out.numel() != batch * M * N or out.dtype != TORCH_OUT:
        raise ValueError(f"out must be {batch} x {M} x {N} of {TORCH_OUT}, not {tuple(out.shape)} {out.dtype}")
    if out.numel() == 0:
        return out
    target = out if out.dim() == 3 and storable(out) else torch.empty(batch, M, N, dtype=TORCH_OUT, device=a.device)
    if alpha == 0 or K == 0:
        K, a, b = 0, *torch.empty(2, 1, 1, 16, dtype=TORCH_DTYPE, device=a.device)
    @normal@
    grid = grid_of(M, N)
    stream = torch.cuda.current_stream(a.device) if stream is None and a.is_cuda else stream
    tensors = [raw(t) for t in (@tensors@)]
    launch(*tensors, M, N, K, batch, *grid, @scalars@, fx.Stream(stream))
    return out if target is out else out.copy_(target.view(out.shape))


def matrices(t):
    """An operand as [batch, rows, columns]."""
    t = t[None] if t.dim() == 2 else t
    if t.dim() != 3 or t.dtype != TORCH_DTYPE:
        raise ValueError(f"operands must be 2-D or 3-D {TORCH_DTYPE} tensors, not {tuple(t.shape)} {t.dtype}")
    return t


def operand_tensor(t, access, lines):
    """The tensor, where the kernel can read it in place, or a copy of that kind."""
    t = t if addressable(t, access, lines, ELEM_BYTES) else t.contiguous()
    if not addressable(t, access, lines, ELEM_BYTES):
        raise ValueError(f"{tuple(t.shape)}: rows must hold whole accesses of {access} and {lines} of them below 2 GiB")
    return t


def addressable(t, access, lines, size):
    """Unit stride along rows, rows aligned for one access, a tile of rows within 31-bit byte offsets."""
    return (
        t.stride(2) == 1
        and t.stride(1) >= t.shape[2]
        and t.stride(0) % access == t.stride(1) % access == t.data_ptr() % (access * size) == 0
        and lines * t.stride(1) * size < OFFSET_LIMIT
    )


def storable(t):
    return t.dtype == TORCH_OUT and addressable(t, STORE, TILE_M, OUT_BYTES)


def problem(a, b):
    """(batch, M, N, K) of two operands as stored."""
    (M, K), (K_b, N) = @extents@
    batch = a.shape[0] if b.shape[0] == 1 else b.shape[0]
    if K != K_b or any(t.shape[0] not in (1, batch) for t in (a, b)) or batch > BATCH_LIMIT:
        raise ValueError(f"shapes do not agree: a {tuple(a.shape)}, b {tuple(b.shape)}")
    wholes = (@wholes@)
    for name, extent, whole in wholes:
        if extent % whole:
            raise ValueError(f"{name} = {extent}: this kernel is built for multiples of {whole}")
    return batch, M, N, K


def raw(t):
    """8-bit floats as bytes: the kernel takes addresses and strides only."""
    return t.view(torch.int8) if t.element_size() == 1 else t
'''

_REFERENCE = '''
def reference(a, b, @parameters@alpha=1.0, beta=@beta@@scale_last@):
    """The same product in float64, before it is rounded to the type of D."""
    a, b = (t.double() if alpha else torch.zeros_like(t, dtype=torch.double) for t in (a, b))
    d = alpha * (a@turn_a@ @ b@turn_b@)
    @finish@
    return d


def example(device, M=@M@, N=@N@, K=@K@, batch=@batch@):
    """Inputs of the emitted shape: small whole numbers, whose sums are exact."""
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = @shapes@
    return [torch.randint(-2, 3, shape, generator=generator).to(device, kind) for shape, kind in shapes]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    inputs = [raw(t) for t in example("cpu", 16, 16, 16, 1)]
    d = raw(torch.zeros(1, 16, 16, dtype=TORCH_OUT))
    launch(*inputs[:2], d, *inputs[2:], 16, 16, 16, 1, 1, 1, @ones@)


def main():
    """Checks a sample of rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    hip = torch.cuda.is_available() and torch.version.hip
    arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] if hip else None
    if arch != TARGET:
        print(f"no {TARGET} GPU here (found {arch or 'none'}): nothing was run")
        return 3
    inputs = example("cuda")
    out = run(*inputs)
    rows = torch.linspace(0, out.shape[1] - 1, min(out.shape[1], 64)).long().unique()
    want = reference(*(t.cpu() for t in sampled(inputs, rows)))@saturated@.to(TORCH_OUT).double()
    error = (out[:, rows].cpu().double() - want).abs().max().item() / max(want.abs().max().item(), 1.0)
    print(f"max error relative to the largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(25):
        begin.record()
        run(*inputs, out=out)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    ms = sorted(times[5:])[10]
    batch, M, N, K = problem(*inputs[:2])
    print(f"median {ms * 1e3:.1f} us, {2 * batch * M * N * K / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1


def sampled(inputs, rows):
    """The inputs of some rows of D."""
    a, rest = inputs[0], inputs[1:]
    @sampled@
    return [a, *rest]


if __name__ == "__main__":
    sys.exit(main())
'''


def place(xcds: int) -> str:
    """The map from a workgroup to its tile."""
    deal = "Tiles are dealt to the XCDs in runs, so that neighbours share an L2, and go" if xcds > 1 else "Tiles go"
    text = piece(_PLACE).replace("@mapping@", f"{deal} down GROUP_M rows of tiles before the next column of tiles.")
    return text.replace("    @remap@\n", _REMAP if xcds > 1 else "")


def host(layout: str, shape: tuple[int, int, int, int], c: bool, bias: str, activation: str, scaled: bool) -> str:
    """Host functions; `shape` is (M, N, K, batch), the default of `example`; `scaled`: D is multiplied by a scale."""
    extra = [name for name, there in (("C", c), ("bias", bias != "none")) if there]
    low = [name.lower() for name in extra]
    scalars = ["alpha", "beta", *(["scale"] if scaled else [])]
    a_along_k, b_along_k = layout[0] == "N", layout[1] == "T"
    formula = "alpha A B" + (" + beta C" if c else "") + (" + bias" if bias != "none" else "")
    formula = formula if activation == "none" else f"{activation}({formula})"
    if scaled:
        formula = f"saturated({formula if activation != 'none' else f'({formula})'} scale)"
    turn_a, turn_b = ("" if layout[0] == "N" else ".mT"), ("" if layout[1] == "N" else ".mT")
    tensors = ["A", "B", "D", *extra]
    more = (", c [M, N] of TORCH_OUT" if c else "") + (
        f", bias of length {'M' if bias == 'row' else 'N'} in f32" if bias != "none" else ""
    )
    normal = ["a, b = (t.expand(batch, *t.shape[1:]) for t in (a, b))"]
    normal += [
        f"a = operand_tensor(a, A_READ, {'TILE_M' if a_along_k else 'TILE_K'})",
        f"b = operand_tensor(b, B_READ, {'TILE_N' if b_along_k else 'TILE_K'})",
    ]
    if c:
        normal += [
            "c = (c if c.dim() == 3 else c[None]).expand(batch, M, N)",
            "c = c if storable(c) else c.contiguous()",
        ]
    if bias != "none":
        length = "M" if bias == "row" else "N"
        normal.append(f"bias = bias.float().reshape(-1, 1, {length}).expand(batch, 1, {length})")
    wholes = [
        '("K", K, A_TAIL)' if a_along_k else '("M", M, A_READ)',
        '("K", K, B_TAIL)' if b_along_k else '("N", N, B_READ)',
        '("N", N, STORE)',
    ]
    shapes = [
        "((batch, M, K), TORCH_DTYPE)" if a_along_k else "((batch, K, M), TORCH_DTYPE)",
        "((batch, N, K), TORCH_DTYPE)" if b_along_k else "((batch, K, N), TORCH_DTYPE)",
    ]
    shapes += ["((batch, M, N), TORCH_OUT)"] if c else []
    if bias != "none":
        shapes.append(f"((batch, 1, {'M' if bias == 'row' else 'N'}), torch.float32)")
    finish = ["d = d + beta * c.double() if beta else d"] if c else []
    if bias != "none":
        finish.append("d = d + bias.double().reshape(-1, " + ("d.shape[1], 1)" if bias == "row" else "1, d.shape[2])"))
    functional = {"relu": "relu(d)", "silu": "silu(d)", "gelu": "gelu(d)", "gelu_tanh": 'gelu(d, approximate="tanh")'}
    if activation != "none":
        limit = "" if activation == "relu" else ".masked_fill(d == -math.inf, 0.0)  # the limit, not inf / inf"
        finish.append(f"d = torch.nn.functional.{functional[activation]}{limit}")
    if scaled:
        finish.append("d = d * scale")
    sampled = ["a = a[:, rows]" if a_along_k else "a = a[:, :, rows]"]
    if c:
        sampled.append("rest[1] = rest[1][:, rows]")
    if bias == "row":
        sampled.append("rest[-1] = rest[-1][:, :, rows]")
    values = {
        "tensors_typed": "",
        "parameters": "".join(f"{name}, " for name in low),
        "beta": "1.0" if c else "0.0",
        "formula": formula,
        "shape_a": "[M, K]" if a_along_k else "[K, M]",
        "shape_b": "[N, K]" if b_along_k else "[K, N]",
        "more": more,
        "normal": "\n    ".join(normal),
        "saturated": ".clamp(-OUT_MAX, OUT_MAX)" if scaled else "",
        "scale": "scale=1.0, " if scaled else "",
        "scale_last": ", scale=1.0" if scaled else "",
        "scalars": ", ".join(scalars),
        "ones": ", ".join(("1.0", "0.0", *(("1.0",) if scaled else ()))),
        "tensors": ", ".join(("a", "b", "target", *low)),
        "extents": f"a.shape[1:]{'' if a_along_k else '[::-1]'}, b.shape[1:]{'[::-1]' if b_along_k else ''}",
        "wholes": ", ".join(wholes),
        "turn_a": turn_a,
        "turn_b": turn_b,
        "finish": "\n    ".join(finish),
        "shapes": f"[{', '.join(shapes)}]",
        "sampled": "\n    ".join(sampled),
    }
    values |= dict(zip(("M", "N", "K", "batch"), (str(extent) for extent in shape), strict=True))
    launch = piece(_LAUNCH).replace("@scalars_typed@", ", ".join(f"{name}: SCALAR" for name in scalars))
    launch = launch.replace("@scalars@", ", ".join(scalars))
    launch = launch.replace("@tensors@", "".join(f"{name}: fx.Tensor, " for name in tensors).rstrip())
    text = join(launch.replace("@arguments@", ", ".join(tensors)), _filled(_RUN, values), _filled(_REFERENCE, values))
    return text.replace("    \n", "")


def _filled(text: str, values: dict[str, str]) -> str:
    text = piece(text)
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
