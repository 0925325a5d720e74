"""Host side of an emitted GEMM: run(), reference(), main()."""

from __future__ import annotations

from closedform.operators.gemm import Gemm, GemmTiles

from .emit_gemm_pack import host_parts, pack_functions
from .emit_host import foot
from .emit_text import join, piece

__all__ = ["host"]

_RUN = '''
def run(a, b, @parameters@out=None, alpha=1.0, beta=@beta@, @scale@stream=None@workspace@):
    """D = @formula@ on the GPU; alpha = 0 or K = 0 reads neither A nor B, beta = 0 does not read C.

    @takes@@more@@each@ with a leading batch axis or without,
    rows contiguous. Returns `out` [batch, M, N] of TORCH_OUT, allocated when None; an empty one takes no launch.
    Raises ValueError on anything else.
    @workspace_is@
    """
    @stored@
    batch, M, N, K = problem(a, b)
    out = torch.empty(batch, M, N, dtype=TORCH_OUT, device=@a@.device) if out is None else out
    if tuple(out.shape[-2:]) != (M, N) or out.numel() != batch * M * N or out.dtype != TORCH_OUT:
        raise ValueError(f"out must be {batch} x {M} x {N} of {TORCH_OUT}, not {tuple(out.shape)} {out.dtype}")
    if out.numel() == 0:
        return out
    target = out if out.dim() == 3 and storable(out) else torch.empty(batch, M, N, dtype=TORCH_OUT, device=out.device)
    if alpha == 0 or K == 0:
        K, (a, b) = 0, torch.empty(2, 1, 1, 16, dtype=TORCH_DTYPE, device=out.device)
    else:
        @normal@
    @finish_inputs@
    grids = grids_of(M, N, K, batch)
    tensors = [raw(t) for t in (@tensors@)]
    @space@
    launch(*tensors, M, N, K, batch, *grids, @scalars@, stream_of(out, stream))
    return out if target is out else out.copy_(target.view(out.shape))


@pack_functions@@operand_tensor@def batched(t):
    """An operand as [batch, rows, columns]."""
    t = t if t.dim() == 3 else t[None]
    if t.dim() != 3 or t.dtype != TORCH_DTYPE:
        raise ValueError(f"operands must be 2-D or 3-D {TORCH_DTYPE} tensors, not {tuple(t.shape)} {t.dtype}")
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
    batch = @a@.shape[0] if @b@.shape[0] == 1 else @b@.shape[0]
    if K != K_b or any(t.shape[0] not in (1, batch) for t in (@a@, @b@)) or batch > BATCH_LIMIT:
        raise ValueError(f"shapes do not agree: a @shown_a@, b @shown_b@")
    wholes = (@wholes@)
    for name, extent, whole in wholes:
        if extent % whole:
            raise ValueError(f"{name} = {extent}: this kernel is built for multiples of {whole}")
    @groups@
    return batch, M, N, K


def raw(t):
    """8-bit floats as bytes: the kernel takes addresses and strides only."""
    return t.view(torch.int8) if t.element_size() == 1 else t
'''

_OPERAND_TENSOR = '''
def operand_tensor(t, access, lines):
    """The tensor, where the kernel can read it in place, or a copy of that kind."""
    t = t if addressable(t, access, lines, ELEM_BYTES) else t.clone(memory_format=torch.contiguous_format)
    if not addressable(t, access, lines, ELEM_BYTES):
        raise ValueError(f"{tuple(t.shape)}: rows must hold whole accesses of {access} and {lines} of them below 2 GiB")
    return t
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
    @small@
    d = raw(torch.zeros(1, 16, 16, dtype=TORCH_OUT))
    @example_space@
    launch(*inputs[:2], d, *inputs[2:], @spaces@16, 16, 16, 1, *grids_of(16, 16, 16, 1), @ones@)


def main():
    """Checks a sample of rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    inputs = example("cuda")
    @pack@
    out = run(*@inputs@)
    rows = torch.linspace(0, out.shape[1] - 1, min(out.shape[1], 64)).long().unique()
    want = reference(*(t.cpu() for t in sampled(inputs, rows)))@saturated@.to(TORCH_OUT).double()
    error = (out[:, rows].cpu().double() - want).abs().max().item() / max(want.abs().max().item(), 1.0)
    print(f"max error relative to the largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(*@inputs@, out=out))
    batch, M, N, K = problem(*@inputs@[:2])
    print(f"median {ms * 1e3:.1f} us, {2 * batch * M * N * K / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1


def sampled(inputs, rows):
    """The inputs of some rows of D."""
    a, rest = inputs[0], inputs[1:]
    @sampled@
    return [a, *rest]
'''


_GROUPS = """\
if ceil_div(N, TILE_N) * GROUP_M >= 2**31:
        raise ValueError(f"N = {N}: tiles in groups of {GROUP_M} rows are counted in 31 bits; use a smaller group_m")"""


def host(op: Gemm, scalars: tuple[str, ...], tiles: GemmTiles) -> str:
    """Host functions; the shape of `op` is the default of `example`.

    `scalars`: alpha, beta and, where D is multiplied by one, scale.
    """
    splits = tiles.splits
    layout, c, bias, activation = op.layout, op.has_c, op.bias, op.activation
    scaled = "scale" in scalars
    low = [name for name, there in (("c", c), ("bias", bias != "none")) if there]
    a_along_k, b_along_k = layout[0] == "N", layout[1] == "T"
    formula = "alpha A B" + (" + beta C" if c else "") + (" + bias" if bias != "none" else "")
    formula = formula if activation == "none" else f"{activation}({formula})"
    if scaled:
        formula = f"saturated({formula if activation != 'none' else f'({formula})'} scale)"
    turn_a, turn_b = ("" if layout[0] == "N" else ".mT"), ("" if layout[1] == "N" else ".mT")
    more = (", c [M, N] of TORCH_OUT" if c else "") + (
        f", bias of length {'M' if bias == 'row' else 'N'} in f32" if bias != "none" else ""
    )
    parts = host_parts(op)
    stored = [parts[f"normal_{name}"] if name.upper() in op.packed else f"{name} = batched({name})" for name in "ab"]
    normal = [parts[f"normal_{name}"] for name in "ab" if name.upper() not in op.packed]
    normal.append(f"a, b = (t.expand(batch, *t.shape[1:]) for t in ({parts['a']}, {parts['b']}))")
    finish_inputs = []
    if c:
        finish_inputs += [
            "c = (c if c.dim() == 3 else c[None]).expand(batch, M, N)",
            "c = c if storable(c) else c.clone(memory_format=torch.contiguous_format)",
        ]
    if bias != "none":
        length = "M" if bias == "row" else "N"
        finish_inputs.append(f"bias = bias.float().reshape(-1, 1, {length}).expand(batch, 1, {length})")
    wholes = []
    if "A" not in op.packed:
        wholes.append('("K", K, A_TAIL)' if a_along_k else '("M", M, A_READ)')
    if "B" not in op.packed:
        wholes.append('("K", K, B_TAIL)' if b_along_k else '("N", N, B_READ)')
    wholes.append('("N", N, STORE)')
    shapes = [
        "((batch, M, K), TORCH_DTYPE)" if a_along_k else "((batch, K, M), TORCH_DTYPE)",
        "((batch, N, K), TORCH_DTYPE)" if b_along_k else "((batch, K, N), TORCH_DTYPE)",
    ]
    shapes += ["((batch, M, N), TORCH_OUT)"] if c else []
    if bias != "none":
        shapes.append(f"((batch, 1, {'M' if bias == 'row' else 'N'}), torch.float32)")
    sampled = ["a = a[:, rows]" if a_along_k else "a = a[:, :, rows]"]
    if c:
        sampled.append("rest[1] = rest[1][:, rows]")
    if bias == "row":
        sampled.append("rest[-1] = rest[-1][:, :, rows]")
    values = {
        "parameters": "".join(f"{name}, " for name in low),
        "beta": "1.0" if c else "0.0",
        "formula": formula,
        "more": more,
        "stored": "\n    ".join(stored),
        "normal": "\n        ".join(normal),
        "finish_inputs": "\n    ".join(finish_inputs),
        "saturated": ".clamp(-OUT_MAX, OUT_MAX)" if scaled else "",
        "scale": "scale=1.0, " if scaled else "",
        "scale_last": ", scale=1.0" if scaled else "",
        "scalars": ", ".join(scalars),
        "ones": ", ".join({"beta": "0.0"}.get(name, "1.0") for name in scalars),
        "tensors": ", ".join(("a", "b", "target", *low)),
        "extents": f"{parts['extents_a']}, {parts['extents_b']}",
        "wholes": ", ".join(wholes) + ("," if len(wholes) == 1 else ""),
        # Only such groups can pass 31 bits: N has no more than 2^31 / TILE_N tiles.
        "groups": _GROUPS if tiles.group_m >= tiles.tile_n else "",
        "turn_a": turn_a,
        "turn_b": turn_b,
        "finish": "\n    ".join(_finish(op, scaled)),
        "workspace": ", workspace=None" if splits else "",
        "workspace_is": "`workspace` of workspace_of() is allocated when None; launches that overlap need one each."
        if splits
        else "",
        "space": "tensors += workspace_of(M, N, batch, a.device) if workspace is None else workspace" if splits else "",
        "example_space": 'space = workspace_of(16, 16, 1, "cpu")' if splits else "",
        "spaces": "*space, " if splits else "",
        "shapes": f"[{', '.join(shapes)}]",
        "sampled": "\n    ".join(sampled),
    }
    values |= {name: str(getattr(op, name)) for name in ("M", "N", "K", "batch")}
    values["operand_tensor"] = piece(_OPERAND_TENSOR) + "\n\n\n" if op.preshuffled != "AB" else ""
    values["pack_functions"] = pack_functions(op) + "\n\n\n" if op.packed else ""
    values |= {name: text.replace("\n", "\n    ") for name, text in parts.items()}
    text = join(_filled(_RUN, values), _filled(_REFERENCE, values)).replace("    \n", "")
    return join(text, foot(rows=False))


def _finish(op: Gemm, scaled: bool) -> list[str]:
    """Lines of reference() behind the product."""
    finish = ["d = d + beta * c.double() if beta else d"] if op.has_c else []
    if op.bias != "none":
        shape = "d.shape[1], 1" if op.bias == "row" else "1, d.shape[2]"
        finish.append(f"d = d + bias.double().reshape(-1, {shape})")
    functional = {"relu": "relu(d)", "silu": "silu(d)", "gelu": "gelu(d)", "gelu_tanh": 'gelu(d, approximate="tanh")'}
    if op.activation != "none":
        limit = "" if op.activation == "relu" else ".masked_fill(d == -math.inf, 0.0)  # the limit, not inf / inf"
        finish.append(f"d = torch.nn.functional.{functional[op.activation]}{limit}")
    if scaled:
        finish.append("d = d * scale")
    return finish


def _filled(text: str, values: dict[str, str]) -> str:
    text = piece(text)
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
