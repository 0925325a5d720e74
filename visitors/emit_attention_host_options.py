"""Host side of emitted attention with options: masks, logits, lengths, pages, split keys and their merge."""

from __future__ import annotations

from textwrap import wrap

from closedform.operators.attention import Attention

from . import emit_attention_entry as entry
from . import emit_attention_logits as logits
from .emit_attention_form import Form
from .emit_attention_host import CHECK_SCALE, LOADABLE
from .emit_host import foot
from .emit_text import fill, join, piece

__all__ = ["host_with_options", "logits_words"]

_LAUNCH = """
@flyc.jit
def launch(
    @tensors@,
    L_q: fx.Int32, L_kv: fx.Int32, @most@heads: fx.Int32, batch: fx.Int32, scale: fx.Float32,@scalars@
    stream: fx.Stream = fx.Stream(None),
):
    grid = ((@rows@ + (WAVES * TILE_Q - 1)) // (WAVES * TILE_Q), heads, @grid_z@)
    attention_kernel(
        @arguments@, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}
    ).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)
    @merge@
"""

_MERGE = """
merge_kernel(@merged@, splits).launch(grid=(L_q, heads, batch), block=(MERGE_THREADS, 1, 1), stream=stream)
"""

_RUN = '''
def run(q, k, v, @inputs@out=None, @lse@stream=None@numbers@):
    """O = softmax(logits) V on the GPU.

    @told@
    """
    out = q.new_empty((*q.shape[:-1], @v_dim@)@of_result@) if out is None else out
    if any(t.dim() != @rank@ for t in (q, k, v, out)):
        raise ValueError(f"q, k, v and out must be @rank@-D: {[tuple(t.shape) for t in (q, k, v, out)]}")
    @views@
    @counting@
    check(q, k, v, result@counted@)
    @checks@
    target = result if loadable(result) else torch.empty_like(result, memory_format=torch.contiguous_format)
    q, k, v = (@bytes@ for t in (q, k, v))
    heads, L_q = q.shape[1:3]
    @workspace@
    launch(
        @passed@
    )
    if target is not result:
        result.copy_(target)
    return @returned@
'''

_REQUIRE = '''
def require(name, tensor, shape, dtype, device):
    """ValueError unless an argument is a contiguous tensor of that shape and type on that device."""
    if (tuple(tensor.shape), tensor.dtype, tensor.device) != (shape, dtype, device) or not tensor.is_contiguous():
        got = f"{tensor.dtype} {tuple(tensor.shape)} of strides {tensor.stride()} on {tensor.device}"
        raise ValueError(f"{name} must be a contiguous {dtype} tensor {shape} on {device}, not {got}")
'''

_CHECK = '''
def check(q, k, v, out@counted@):
    """ValueError unless the tensors, as [batch, heads, L, d], describe one attention problem of this kernel."""
    types = [t.dtype for t in (q, k, v, out)]
    if types != [TORCH_DTYPE] * 3 + [@result@]:
        raise ValueError(f"q, k and v must be {TORCH_DTYPE} tensors, out one of {@result@}: {types}")
    entries, heads, L_q, d = q.shape
    if (d, v.shape[3]) != (HEAD_DIM, @v_dim@):
        raise ValueError(f"head dims {d} and {v.shape[3]}: this kernel is built for {HEAD_DIM} and {@v_dim@}")
    shapes = (k.shape[:3], k.shape[@from_@:2], k.shape[3], out.shape)
    if shapes != (v.shape[:3], @kv_heads@, d, (*q.shape[:3], @v_dim@)):
        raise ValueError(f"shapes do not agree: q {q.shape}, k {k.shape}, v {v.shape}, out {out.shape}@sharing@")
    @whole_groups@
    if min(batch, heads, L_q) < 1 or max(heads, batch) > GRID_LIMIT:
        raise ValueError(f"batch and heads must be 1 to {GRID_LIMIT} and L_q at least 1: q {q.shape}")
    if max(L_q, L_kv) > LENGTH_LIMIT:
        raise ValueError(f"lengths are limited to {LENGTH_LIMIT}: {L_q} queries, {L_kv} keys")
    if any(t.device != q.device for t in (k, v, out)):
        raise ValueError(f"q, k, v and out must be on one GPU: {[str(t.device) for t in (q, k, v, out)]}")


@require@
'''

_REFERENCE = '''
def entry_of(i, q, k, v@taken@):
    """Entry i of the batch in float64: [heads, L_q, d], [heads, L_kv, d], [heads, L_kv, columns]@and_bias@."""
    @entry@
    q, k, v = (t.double() for t in (q, k, v))
    @repeat@
    return q, k, v@bias@


def attend(rows, q, k, v@attended@):
    """O and log-sum-exp of some queries of an entry in float64; a query without visible keys gives 0 and -inf."""
    keys, position = torch.arange(k.shape[1]), rows[:, None] + (k.shape[1] - q.shape[1])
    x = q[:, rows] @ k.transpose(-1, -2) * @scale@
    @cap@
    @add_bias@
    @alibi@
    @seen@
    x = torch.cat([x, x.new_full((*x.shape[:2], 1), -math.inf)], -1)  # also of no keys there is a maximum
    top = x.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    p = torch.exp(x - top)
    total = p.sum(-1, keepdim=True)
    return p[..., :-1] / total.clamp_min(torch.finfo(torch.float64).tiny) @ v, (top + total.log())[..., 0]


def example(device, L_q=@L_q@, L_kv=@L_kv@, heads=@heads@, batch=@batch@):
    """Arguments of run() with normal random numbers, of the emitted shape."""
    generator = torch.Generator("cpu").manual_seed(0)

    def normal(*shape, dtype=TORCH_DTYPE):
        return torch.randn(shape, generator=generator).to(device, dtype)

    @example@


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    @compiled@


def main():
    """Checks a sample of query rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    given = example("cuda")
    @run_once@
    error, on_host = 0.0, {name: t.cpu() for name, t in given.items()}
    for i in range(@entries@):
        entry = entry_of(i, **on_host)
        rows = torch.linspace(0, max(entry[0].shape[1] - 1, 0), min(entry[0].shape[1], 256)).long().unique()
        want, want_lse = attend(rows, *entry@slopes@)
        @errors@
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(**given, out=out@again@))
    print(f"median {ms * 1e3:.1f} us")
    return 0 if error <= TOLERANCE else 1
'''

_SEEN = """
seen = @seen@
x = x.masked_fill(~seen, -math.inf)
"""


def host_with_options(form: Form) -> str:
    """Host functions; the emitted shape is the default of `example`."""
    text = join(piece(_LAUNCH), piece(_RUN), piece(_CHECK), piece(LOADABLE), piece(_REFERENCE), foot())
    return fill(text, {**_launch_text(form), **_run_text(form), **_check_text(form), **_reference_text(form)})


def _inputs(op: Attention) -> list[str]:
    """Tensors that run() takes behind q, k and v, in the order in which the kernel takes them."""
    named = (("cu_q", op.varlen), ("cu_kv", op.varlen), ("key_lengths", op.key_lengths), ("pages", op.page))
    return [name for name, there in (*named, ("bias", op.bias), ("slopes", op.alibi)) if there]


def _kernel_tensors(form: Form) -> list[str]:
    """Tensors of the first kernel in order."""
    results = ["PARTIAL", "PARTIAL_LSE"] if form.split else ["O", *(["LSE"] if form.op.lse else [])]
    return ["Q", "K", "V", *results, *entry.tensors(form), *logits.tensors(form)]


def _launch_text(form: Form) -> dict[str, str]:
    op, split = form.op, form.split
    first = _kernel_tensors(form)
    merged = ["PARTIAL", "PARTIAL_LSE", "O", *(["LSE"] if op.lse else []), "L_q"]
    tensors = [*first, *(merged[2:-1] if split else [])]
    numbers = [*logits.numbers(form)]
    arguments = [*first, "L_q", "L_kv", "scale", *numbers, *(["splits"] if split else [])]
    kinds = [*(f" {name}: fx.Float32," for name in numbers), *([" splits: fx.Int32,"] if split else [])]
    return {
        "tensors": ", ".join(f"{name}: fx.Tensor" for name in tensors),
        "most": "most_rows: fx.Int32, " if op.varlen else "",
        "rows": "most_rows" if op.varlen else "L_q",
        "grid_z": "batch * splits" if split else "batch",
        "arguments": ", ".join(arguments),
        "scalars": "".join(kinds),
        "merge": fill(piece(_MERGE), {"merged": ", ".join(merged)}) if split else "",
    }


def _run_text(form: Form) -> dict[str, str]:
    op = form.op
    inputs = _inputs(op)
    numbers = [*(["scale=SCALE"] if op.softmax_scale is not None else []), *(["cap=CAP"] if op.softcap else [])]
    numbers += ["q_scale=1.0, k_scale=1.0, v_scale=1.0"] if form.narrow else []
    numbers += [*(["splits=SPLITS"] if form.split else []), *(["most_rows=None"] if op.varlen else [])]
    batch = "len(cu_q) - 1" if op.varlen else "q.shape[0]"
    checks = [_CHECKS[name] for name in inputs] + [CHECK_SCALE] * (op.softmax_scale is not None)
    checks += [_CHECKS["small_pages"]] * form.small_pages
    checks += [_CHECKS["cap"]] * bool(op.softcap) + [_CHECKS["splits"]] * form.split
    kv = ("L_kv = k.shape[2]", "L_kv = pages.shape[-1] * PAGE")[op.page > 0]
    workspace = [_WORKSPACE] if form.split else []
    if op.lse:
        shown = "lse[None]" if op.varlen else "lse"
        checks.append(fill(piece(_LSE), {"shape": "q.shape[1:3]" if op.varlen else "q.shape[:3]"}))
    else:
        shown = ""
    results = ["partial", "partial_lse"] if form.split else ["target", *([shown] if op.lse else [])]
    tensors = ["q", "k", "v", *results, *inputs]
    tensors += ["target", *([shown] if op.lse else [])] if form.split else []
    sizes = ["L_q", "L_kv", *(["most_rows"] if op.varlen else []), "heads", "batch"]
    scale = "scale" if op.softmax_scale is not None else "1.0 / math.sqrt(HEAD_DIM)"
    sizes += [f"{scale} * q_scale * k_scale" if form.narrow else scale]
    sizes += [*(["cap"] if op.softcap else []), *(["v_scale"] if form.narrow else [])]
    sizes += ["splits"] if form.split else []
    copied = "(t if loadable(t) else t.clone(memory_format=torch.contiguous_format))"
    return {
        "inputs": "".join(f"{name}, " for name in inputs),
        "lse": "lse=None, " if op.lse else "",
        "numbers": "".join(f", {number}" for number in numbers),
        "told": "\n".join(_told(form)),
        "v_dim": form.v_dim,
        "rank": "3" if op.varlen else "4",
        "views": "result = out" if _views(op) == "q, k, v, out" else f"q, k, v, result = {_views(op)}",
        "counting": f"batch = {batch}\n{kv}",
        "counted": ", batch, L_kv",
        "of_result": ", dtype=TORCH_RESULT" if form.narrow else "",
        "bytes": f"{copied}.view(torch.int8)" if form.narrow else copied,
        "checks": "\n".join(piece(check) for check in checks),
        "workspace": "\n".join(piece(part) for part in workspace),
        "passed": ",\n".join([", ".join(tensors), ", ".join(sizes), "stream_of(q, stream),"]),
        "returned": "(out, lse)" if op.lse else "out",
    }


def _views(op: Attention) -> str:
    """q, k, v and out as [batch, heads, L, d]."""
    if op.varlen:
        return "(t.transpose(0, 1)[None] for t in (q, k, v, out))"
    if op.page and op.bshd:
        return "(t.transpose(1, 2) for t in (q, k, v, out))"
    if op.page:
        return "q, *(t.transpose(1, 2) for t in (k, v)), out"
    return "(t.transpose(1, 2) for t in (q, k, v, out))" if op.bshd else "q, k, v, out"


def _told(form: Form) -> list[str]:
    """What the docstring of run() says, in lines."""
    result = " and the log-sum-exp of each query's logits, f32" if form.op.lse else ""
    returned = (
        f"Torch tensors of TORCH_DTYPE with any strides but along d. Returns `out` (allocated when None){result}."
    )
    told = [f"{logits_words(form.op)}.", *_shape_words(form), returned, "Raises ValueError on anything else."]
    return [line for words in (*told, *_more_words(form)) for line in wrap(words, 112, break_on_hyphens=False)]


def logits_words(op: Attention) -> str:
    """What the logits are and which keys a query sees."""
    words = "Q K^T / sqrt(d)" if op.softmax_scale is None else "scale Q K^T"
    words = f"logits = cap tanh({words} / cap)" if op.softcap else f"logits = {words}"
    words += " + bias" if op.bias else ""
    words += " - slopes |position - key|" if op.alibi else ""
    seen = []
    if op.causal:
        seen.append("the keys up to its position")
    if op.window:
        seen.append(f"those less than {op.window} from it" + (f" and the first {op.sink}" if op.sink else ""))
    return f"{words}, a query sees {' and of them '.join(seen)}" if seen else words


def _shape_words(form: Form) -> list[str]:
    op = form.op
    heads = "heads / HEADS_PER_KV" if op.group > 1 else "heads"
    width = form.v_dim
    rows = "[batch, L_q, heads, d]" if op.bshd else "[batch, heads, L_q, d]"
    keys = f"[batch, L_kv, {heads}, d]" if op.bshd else f"[batch, {heads}, L_kv, d]"
    if op.varlen:
        rows, keys = "[rows of all entries, heads, d]", f"[rows of all entries, {heads}, d]"
    if op.page:
        keys = f"[pages, PAGE, {heads}, d]"
    last = "columns of V" if form.own_columns else "d"
    lines = [f"q {rows}, k {keys}, v likewise with {width} columns, out like q with {width}."]
    lines = [f"q {rows}, k and v {keys}, d = HEAD_DIM; out like q."] if last == "d" else lines
    if op.varlen:
        lines.append("cu_q and cu_kv [batch + 1], int32: where the rows of each entry begin, and where the last ends.")
    if op.key_lengths:
        lines.append("key_lengths [batch], int32: how many keys an entry has.")
    if op.page:
        lines.append("pages [batch, n], int32: the page that holds keys i PAGE and on of an entry.")
    if op.bias:
        lines.append("bias, f32, broadcasts to [batch, heads, L_q, L_kv].")
    if op.alibi:
        lines.append("slopes [heads], f32.")
    return lines


def _more_words(form: Form) -> list[str]:
    lines = []
    if form.op.varlen:
        lines.append(
            "most_rows is the most queries of an entry; rows beyond it are left alone. None: found on the host."
        )
    if form.narrow:
        lines.append(
            "q_scale, k_scale and v_scale are the factors that q, k and v were divided by: of the whole tensor."
        )
    if form.split:
        lines.append("The keys are shared by `splits` workgroups for each block of queries; a second kernel merges.")
    return lines


_CHECKS = {
    "cu_q": """
    require("cu_q", cu_q, (len(cu_q),), torch.int32, q.device)
    """,
    "cu_kv": """
    require("cu_kv", cu_kv, (len(cu_q),), torch.int32, q.device)
    most_rows = int((cu_q[1:] - cu_q[:-1]).max()) if most_rows is None else most_rows
    if not 0 <= most_rows <= q.shape[2]:
        raise ValueError(f"most_rows {most_rows}: entries have 0 to {q.shape[2]} queries")
    most_rows = max(most_rows, 1)  # a grid is not empty
    """,
    "key_lengths": """
    require("key_lengths", key_lengths, (batch,), torch.int32, q.device)
    """,
    "pages": """
    require("pages", pages, (batch, pages.shape[-1]), torch.int32, q.device)
    if k.shape[2] != PAGE:
        raise ValueError(f"pages of {k.shape[2]} keys: this kernel is built for {PAGE}")
    """,
    "small_pages": """
    if max((len(t) - 1) * t.stride(0) + PAGE * t.stride(2) for t in (k, v)) * ELEM_BYTES > PAGES_LIMIT:
        raise ValueError(f"caches of pages below {TILE_KV} keys are limited to {PAGES_LIMIT} bytes: k {k.shape}")
    """,
    "bias": """
    if bias.dtype != torch.float32 or bias.device != q.device:
        raise ValueError(f"bias must be a torch.float32 tensor on {q.device}, not {bias.dtype} on {bias.device}")
    shape = (batch, q.shape[1], q.shape[2], L_kv)
    if bias.dim() > 4 or any(n not in (1, m) for n, m in zip(bias.shape[::-1], shape[::-1])):
        raise ValueError(f"bias {tuple(bias.shape)} does not broadcast to {shape}")
    bias = bias.expand(shape)
    if bias.stride(3) != 1 or TILE_Q * bias.stride(2) * 4 >= OFFSET_LIMIT:
        bias = bias.contiguous()
    """,
    "slopes": """
    require("slopes", slopes, (q.shape[1],), torch.float32, q.device)
    """,
    "cap": """
    if not 0.0 < cap < math.inf:
        raise ValueError(f"cap {cap}: the bound of the logits must be positive and finite")
    """,
    "splits": """
    if not 1 <= splits * batch <= GRID_LIMIT:
        raise ValueError(f"splits {splits}: with a batch of {batch} at least 1 and at most {GRID_LIMIT // batch}")
    """,
}
_WHOLE_GROUPS = """
if heads % HEADS_PER_KV:
    raise ValueError(f"{HEADS_PER_KV} heads of q share a head of k and v: q has {heads}")
"""
_LSE = """
lse = torch.empty(@shape@, dtype=torch.float32, device=q.device) if lse is None else lse
require("lse", lse, tuple(@shape@), torch.float32, q.device)
"""
_WORKSPACE = """
partial = q.new_empty((batch * splits, heads, L_q, target.shape[3]), dtype=torch.float32)
partial_lse = q.new_empty((batch * splits, heads, L_q), dtype=torch.float32)
"""


def _check_text(form: Form) -> dict[str, str]:
    op = form.op
    kv_heads = "heads // HEADS_PER_KV" if op.group > 1 else "heads"
    return {
        "result": "TORCH_RESULT" if form.narrow else "TORCH_DTYPE",
        "from_": "1" if op.page else "0",
        "kv_heads": f"({kv_heads},)" if op.page else f"(entries, {kv_heads})",
        "sharing": "; HEADS_PER_KV = {HEADS_PER_KV} heads of q share one of k and v" if op.group > 1 else "",
        "require": piece(_REQUIRE) if op.lse or {*_inputs(op)} - {"bias"} else "",
        "whole_groups": piece(_WHOLE_GROUPS) if op.group > 1 else "",
    }


def _reference_text(form: Form) -> dict[str, str]:
    op = form.op
    inputs = _inputs(op)
    lines = []
    if op.varlen:
        lines.append("q = q[cu_q[i] : cu_q[i + 1]].transpose(0, 1)")
        lines.append("k, v = (t[cu_kv[i] : cu_kv[i + 1]].transpose(0, 1) for t in (k, v))")
    else:
        lines.append("q = q[i].transpose(0, 1)" if op.bshd else "q = q[i]")
        kv = "t[pages[i].long()].flatten(0, 1).transpose(0, 1)" if op.page else "t[i]"
        lines.append(f"k, v = ({kv}{'.transpose(0, 1)' if op.bshd and not op.page else ''} for t in (k, v))")
    if op.key_lengths:
        lines.append("k, v = (t[:, : int(key_lengths[i])] for t in (k, v))")
    if op.bias:
        entries = "len(cu_q) - 1" if op.varlen else "q.shape[0]"
        lines.insert(0, f"bias = bias.expand({entries}, -1, -1, -1)[i].double()")
    shape = {name: str(getattr(op, name)) for name in ("L_q", "L_kv", "heads", "batch")}
    factor = "SCALE" if op.softmax_scale is not None else "(1.0 / math.sqrt(HEAD_DIM))"
    lse_of = "lse[:, cu_q[i] : cu_q[i + 1]]" if op.varlen else "lse[i]"
    result = "out[cu_q[i] : cu_q[i + 1]].transpose(0, 1)" if op.varlen else "out[i]"
    result += ".transpose(0, 1)" if op.bshd and not op.varlen else ""
    if op.varlen:
        lse_of, result = (text.replace("cu_q", 'on_host["cu_q"]') for text in (lse_of, result))
    errors = [f"error = max(error, max_error({result}[:, rows].cpu(), want))"]
    if op.lse:
        errors.append(f"error = max(error, max_error({lse_of}[:, rows].cpu(), want_lse))")
    return {
        **shape,
        "and_bias": ", and its bias" if op.bias else "",
        "entry": "\n".join(lines),
        "taken": "".join(f", {name}" for name in inputs),
        "repeat": "k, v = (t.repeat_interleave(HEADS_PER_KV, 0) for t in (k, v))" if op.group > 1 else "",
        "bias": ", bias" if op.bias else "",
        "attended": "".join([", bias" if op.bias else "", ", slopes" if op.alibi else ""]),
        "scale": factor,
        "cap": "x = CAP * torch.tanh(x / CAP)" if op.softcap else "",
        "add_bias": "x = x + bias[:, rows, : k.shape[1]]" if op.bias else "",
        "alibi": "x = x - slopes.double()[:, None, None] * (position - keys).abs()" if op.alibi else "",
        "seen": fill(piece(_SEEN), {"seen": _seen(op)}) if op.has_mask else "",
        "example": piece(_example(form)),
        "compiled": _compiled(form),
        "run_once": "out, lse = run(**given)" if op.lse else "out = run(**given)",
        "again": ", lse=lse" if op.lse else "",
        "entries": _entries_of(op),
        "slopes": ', on_host["slopes"]' if op.alibi else "",
        "errors": "\n".join(errors),
    }


def _entries_of(op: Attention) -> str:
    return 'len(on_host["cu_q"]) - 1' if op.varlen else 'given["q"].shape[0]'


def _seen(op: Attention) -> str:
    window = f"((position - keys).abs() < WINDOW){' | (keys < SINK)' if op.sink else ''}" if op.window else ""
    if not op.causal:
        return window
    return f"(keys <= position) & ({window})" if window else "keys <= position"


def _example(form: Form) -> str:
    op = form.op
    kv = "heads // HEADS_PER_KV" if op.group > 1 else "heads"
    q, k, v = "batch, heads, L_q, HEAD_DIM", f"batch, {kv}, L_kv, HEAD_DIM", f"batch, {kv}, L_kv, {form.v_dim}"
    lines = []
    if op.bshd:
        q, k, v = "batch, L_q, heads, HEAD_DIM", f"batch, L_kv, {kv}, HEAD_DIM", f"batch, L_kv, {kv}, {form.v_dim}"
    if op.varlen:
        q, k, v = "batch * L_q, heads, HEAD_DIM", f"batch * L_kv, {kv}, HEAD_DIM", f"batch * L_kv, {kv}, {form.v_dim}"
        lines.append("cu_q, cu_kv = (torch.arange(batch + 1, dtype=torch.int32) * n for n in (L_q, L_kv))")
    if op.page:
        k, v = (f"batch * count, PAGE, {kv}, {width}" for width in ("HEAD_DIM", form.v_dim))
        lines.append("count = ceil_div(L_kv, PAGE)")
        lines.append("pages = torch.randperm(batch * count, generator=generator).reshape(batch, count).int()")
    given = [f'"q": normal({q})', f'"k": normal({k})', f'"v": normal({v})']
    if op.varlen:
        given += ['"cu_q": cu_q.to(device)', '"cu_kv": cu_kv.to(device)']
    if op.key_lengths:
        given.append('"key_lengths": torch.arange(L_kv, L_kv - batch, -1, dtype=torch.int32).clamp_min(0).to(device)')
    given += ['"pages": pages.to(device)'] if op.page else []
    keys = "count * PAGE" if op.page else "L_kv"
    given += [f'"bias": normal(batch, heads, L_q, {keys}, dtype=torch.float32)'] if op.bias else []
    given += ['"slopes": torch.logspace(-1, -8, heads, 2.0, dtype=torch.float32).to(device)'] if op.alibi else []
    body = ",\n        ".join(given)
    return "\n".join([*lines, "return {", f"        {body},".replace("        ", "    "), "}"])


def _compiled(form: Form) -> str:
    op = form.op
    heads = "2 * HEADS_PER_KV" if op.group > 1 else "2"
    lines = [
        f'given = example("cpu", 2, {"2 * PAGE" if op.page else 2}, {heads}, 2)',
        'q, k, v = given["q"], given["k"], given["v"]',
        f"out = q.new_empty((*q.shape[:-1], {form.v_dim}){', dtype=TORCH_RESULT' if form.narrow else ''})",
        "target = out" if _views(op) == "q, k, v, out" else f"q, k, v, target = {_views(op)}",
        *(["q, k, v = (t.view(torch.int8) for t in (q, k, v))"] if form.narrow else []),
    ]
    results = ["target"]
    if form.split:
        lines.append(f"partial, partial_lse = torch.empty(4, {heads}, 2, {form.v_dim}), torch.empty(4, {heads}, 2)")
        results = ["partial", "partial_lse"]
    elif op.lse:
        results.append("lse")
    if op.lse:
        lines.append("lse = torch.empty(target.shape[:3])")
    tensors = ["q", "k", "v", *results, *(f'given["{name}"]' for name in _inputs(op))]
    tensors += ["target", *(["lse"] if op.lse else [])] if form.split else []
    sizes = ["2", "2", *(["2"] if op.varlen else []), heads, "2", "1.0", *(["1.0"] if op.softcap else [])]
    sizes += [*(["1.0"] if form.narrow else []), *(["2"] if form.split else [])]
    lines.append(f"launch({', '.join([*tensors, *sizes])})")
    return "\n".join(lines)
