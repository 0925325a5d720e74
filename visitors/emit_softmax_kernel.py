"""Device level of an emitted softmax: the kernels, by how often a row is read and how many workgroups share it."""

from __future__ import annotations

from closedform.operators.softmax import Softmax, SoftmaxTiles

from .emit_text import fill, join, piece

__all__ = ["kernels"]

_ONE_PASS = '''
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def softmax_kernel(@tensors@, rows: fx.Int32, cols: fx.Int32):
    """The row stays in registers: it is read once."""
    row = Row(@row@, rows, cols)
    accesses = row.accesses_of(0)
    x = row.logits(accesses)@with_end@
    m = across(tree(x, largest), largest, GROUP)
    @p@l = exponentials(x, m)
    l = across(l, added, GROUP)
    @combine@
    @result@
    row.store(accesses, @first_out@)
    @store_end@
    @lse@
'''

_STATE_OF_PART = """
m, l = @start@
accesses_of, logits = row.accesses_of, row.logits
for step, carried in range(fx.Int32(0), row.steps, fx.Int32(1), init=[m, l]):
    m, l = absorbed(logits(accesses_of(fx.Int32(step))), fx.Float32(carried[0]), fx.Float32(carried[1]))
    carried = yield [m, l]
m, l = combined(fx.Float32(carried[0]), fx.Float32(carried[1]), GROUP)
@combine@
"""

_RESULT_OF_PART = """
@factor@
accesses_of, logits, store_all = row.accesses_of, row.logits, row.store
for step in range(fx.Int32(0), row.steps, fx.Int32(1)):
    accesses = accesses_of(fx.Int32(step))
    x = logits(accesses)
    store_all(accesses, @outs@)
@store_end@
@lse@
"""

_TWO_PASSES = '''
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def softmax_kernel(@tensors@, rows: fx.Int32, cols: fx.Int32):
    """The row is read for its state, and again for its result."""
    row = Row(@row@, rows, cols)
    @state@
    @output@
'''

_SPLIT = '''
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def state_kernel(@tensors@, rows: fx.Int32, cols: fx.Int32):
    """The state of a part of a row goes to W."""
    row = Row(@row@, rows, cols)
    @state@
    save(W, row, m, l)


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def softmax_kernel(@tensors@, rows: fx.Int32, cols: fx.Int32):
    """The states of all parts of a row give its state; each part is read again for its result."""
    row = Row(@row@, rows, cols)
    m, l = saved(W, row)
    @output@
'''

_WORKSPACE = '''
def slot(W, row):
    """Descriptor of the states of a row's parts: pairs of maximum and sum."""
    return resource(address_of(W) + fx.Int64(row.number) * (SPLITS * 8), fx.Int32(SPLITS * 8))


def save(W, row, m, l):
    place = where((row.thread == 0) & row.exists, row.part * 8)
    store(Vec.from_elements([m, l], fx.Float32), slot_of(W, row), place)


def saved(W, row):
    """The states of all parts, combined by every wave."""
    m, l, source = fx.Float32(NEG_INF), fx.Float32(0.0), slot_of(W, row)
    for first in range(0, SPLITS, GROUP):
        held = row.lane + first < SPLITS
        pair = Vec(load(Vec.make_type(2, fx.Float32), source, where(held, (row.lane + first) * 8)))
        part_m, part_l = held.select(pair[0], fx.Float32(NEG_INF)), pair[1]
        top = largest(m, part_m)
        m, l = top, l * power(m, top) + part_l * power(part_m, top)
    return combined(m, l, GROUP)
'''

_LSE = '''
def save_lse(L, row, m, l):
    """m + log l of each row, by its first lane@of_part@."""
    first = (row.lane == 0) & (row.wave == 0) & row.exists@first_part@
    target = resource(address_of(L) + fx.Int64(row.number - row.thread // LANES) * 4, fx.Int32(ROWS * 4))
    store(finite(m) + log(l), target, where(first, row.thread // LANES * 4))
'''

_LAUNCH = '''
@flyc.jit
def launch(
    @tensors@,
    rows: fx.Int32, cols: fx.Int32, grid_x: fx.Int32, grid_y: fx.Int32, stream: fx.Stream = fx.Stream(None),
):
    @kernels@


def grid_of(rows):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    count = @count@
    return min(count, GRID_X), ceil_div(count, GRID_X)
'''

_CALL = """
@name@(@tensors@, rows, cols, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
    grid=(grid_x, grid_y, 1), block=(THREADS, 1, 1), stream=stream
)
"""


def kernels(op: Softmax, tiles: SoftmaxTiles) -> str:
    """The kernels and their launch."""
    names = ["X", "O", *(["mask"] if op.mask else []), *(["L"] if op.lse else []), *(["W"] if tiles.splits > 1 else [])]
    typed = ", ".join(f"{name}: fx.Tensor" for name in names)
    text = _ONE_PASS if tiles.passes == 1 else _SPLIT if tiles.splits > 1 else _TWO_PASSES
    parts = _one_pass(op, tiles) if tiles.passes == 1 else _two_passes(op, tiles)
    values = {"tensors": typed, "row": "X, O, mask" if op.mask else "X, O", **parts}
    called = ["state_kernel", "softmax_kernel"] if tiles.splits > 1 else ["softmax_kernel"]
    calls = [fill(piece(_CALL), {"name": name, "tensors": ", ".join(names)}) for name in called]
    count = "rows * SPLITS" if tiles.splits > 1 else "ceil_div(rows, ROWS)"
    split = tiles.splits > 1
    lse = {
        "of_part": " in its first part" if split else "",
        "first_part": " & (row.part == 0)" if split else "",
    }
    return join(
        piece(_WORKSPACE).replace("slot_of", "slot") if split else "",
        fill(piece(_LSE), lse) if op.lse else "",
        fill(piece(text), values),
        fill(piece(_LAUNCH), {"tensors": typed, "kernels": "\n".join(calls), "count": count}),
    )


def _one_pass(op: Softmax, tiles: SoftmaxTiles) -> dict[str, str]:
    waves = tiles.row_waves > 1
    top, total = ("top", "total") if waves else ("m", "l")
    if op.log:
        result = f"shift, rest = finite({top}), log_weight({total})\nout = [(value - shift) - rest for value in x]"
    elif waves:
        result = "factor = power(m, top) * weight(total)\nout = [value * factor for value in p]"
    else:
        result = "factor = weight(l)\nout = [value * factor for value in p]"
    return {
        "p": "_, " if op.log else "p, ",
        "with_end": " + [row.end_logit()]" if tiles.ends else "",
        "combine": "top, total = across_waves(row, m, l)" if waves else "",
        "result": result,
        "first_out": "out[:-1]" if tiles.ends else "out",
        "store_end": "row.store_end(out[-1])" if tiles.ends else "",
        "lse": f"save_lse(L, row, {top}, {total})" if op.lse else "",
    }


def _two_passes(op: Softmax, tiles: SoftmaxTiles) -> dict[str, str]:
    start = "fx.Float32(NEG_INF), fx.Float32(0.0)"
    if tiles.ends:
        start = f"absorbed([row.end_logit()], {start})"
    combine = "m, l = across_waves(row, m, l)" if tiles.row_waves > 1 else ""
    factor = "shift, rest = finite(m), log_weight(l)" if op.log else "factor = weight(l)"
    out = "(value - shift) - rest" if op.log else "power(value, m) * factor"
    outs = f"[{out} for value in x]" if op.log else "[value * factor for value in exponentials(x, m)[0]]"
    end = f"value = row.end_logit()\nrow.store_end({out})" if tiles.ends else ""
    lse = "save_lse(L, row, m, l)" if op.lse else ""
    return {
        "state": fill(piece(_STATE_OF_PART), {"start": start, "combine": combine}),
        "output": fill(piece(_RESULT_OF_PART), {"factor": factor, "outs": outs, "store_end": end, "lse": lse}),
    }
