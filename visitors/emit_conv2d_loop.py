"""Wave level of an emitted convolution: the sum over tiles of channels and taps, and the outputs."""

from __future__ import annotations

from .emit_text import fill, join, piece

__all__ = ["block_class", "kernel", "output"]

_BLOCK = '''
class Block:
    """One workgroup as one of its waves sees it: the patch of X, the filter, the sums."""

    def __init__(self, lds, X, W, tile, N, IH, IW, C, OC, pad_h, pad_w, @x_strides@):
        self.thread = thread_number()
        lane, wave = self.thread % 64, fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        wave_px, wave_oc = wave // WAVES_OC, wave % WAVES_OC
        place = (N, IH, IW, C, pad_h, pad_w, @x_given@)
        self.patch = Patch(lds, X, tile, *place, self.thread, wave_px, lane)
        @filter@

    @pipeline@
@taps@


@split@
'''

_PIPELINE = '''
    def reads(self, tap, buffer, step):
        """LDS reads of one step: a chunk of every atom's pixels and filters, for every read that an operand takes."""
        a, b, out = self.patch.tap_base(tap), self.filter.bases_of(buffer), []
        for read in range(step * READS, (step + 1) * READS):
            out += [(READ, 1, lambda t=t, r=read: self.patch.fragment(a, t, r)@masked@) for t in range(A_ATOMS)]
            out += [(READ, 1, lambda t=t, r=read: self.filter.fragment(b, t, r)) for t in range(B_ATOMS)]
        return out

    def prologue(self):
        """The first patch and slice of the filter in LDS, the next ones under way, the first fragments in registers."""
        order, zero, one = Order(), fx.Int32(0), fx.Int32(1)
        patch, filters = order.do(self.patch.loads(zero)), order.do(self.filter.loads(zero, 0))
        order.do(self.patch.writes(patch) + self.filter.writes(zero, filters))
        rocdl.sched_barrier(0)
        patch, filters = order.do(self.patch.@more@(one)), order.do(self.filter.loads(*self.ahead(zero, 0, 1)))
        gpu.barrier()
        fragments = order.do(self.reads(0, zero, 0))
        return [*patch, *filters, *fragments, *zero_accumulators(A_ATOMS * B_ATOMS)]

    def ahead(self, tile, tap, count):
        """Tile of channels and tap that come `count` taps later."""
        tap = tap + count
        return tile + tap // TAPS, tap % TAPS

    def slices(self, tile, tap):
        """LDS buffers of the filter's slices: of this tap, of the next one."""
        here = ((tile * TAPS + tap) & 1) * FILTER_WORDS
        return here, FILTER_WORDS - here

    def most_of(self, tile, tap, filters, fragments, acc):
        """The MFMAs of one tap up to the last step, the next slice of the filter to the other buffer, the one after
        that under way: (fragments, accumulators, operations that are left, slice under way).
        """
        here, there = self.slices(tile, tap)
        order, loaded = Order(), []
        others = self.filter.writes(there, filters) + self.filter.loads(*self.ahead(tile, tap, 2))
        for s in range(STEPS - 1):
            mine = others[len(others) * s // (STEPS - 1) : len(others) * (s + 1) // (STEPS - 1)]
            acc, results = order.multiply(fragments, acc, self.reads(tap, here, s + 1) + mine)
            fragments = results[:FRAGMENTS]
            loaded += results[FRAGMENTS:]
        return order, fragments, acc, others if STEPS == 1 else [], loaded

    def step(self, tile, tap, state):
        """One tap; the first fragments of the next one are read under its last MFMAs."""
        filters, fragments, acc = split_state(state)
        order, fragments, acc, others, loaded = self.most_of(tile, tap, filters, fragments, acc)
        acc, results = order.multiply(fragments, acc, others, 0)
        order.keep()
        gpu.barrier()
        acc, fragments = order.multiply(fragments, acc, self.reads(tap + 1, self.slices(tile, tap)[1], 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*loaded, *results, *fragments, *acc]

    def last(self, tile, patch, state):
        """The last tap of a tile of channels; under its last MFMAs the next patch takes the place of this one."""
        filters, fragments, acc = split_state(state)
        order, fragments, acc, others, loaded = self.most_of(tile, TAPS - 1, filters, fragments, acc)
        order.keep()
        gpu.barrier()
        others = others + self.patch.writes(patch) + self.patch.@more@(tile + 2)
        acc, results = order.multiply(fragments, acc, others, 0)
        order.keep()
        gpu.barrier()
        there = self.slices(tile, TAPS - 1)[1]
        acc, fragments = order.multiply(fragments, acc, self.reads(0, there, 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        loaded, patch = [*loaded, *results[: FILTER_STAGED - len(loaded)]], results[FILTER_STAGED - len(loaded) :]
        return [*patch, *loaded, *fragments, *acc]
'''

_SPLIT = '''
def split_state(state):
    """Loop-carried values of the taps: the slice under way, the next fragments, the accumulators."""
    state = vectors(state)
    return state[:FILTER_STAGED], state[FILTER_STAGED : FILTER_STAGED + FRAGMENTS], state[FILTER_STAGED + FRAGMENTS :]
'''

_FILTER = """
self.filter = Filter(lds, PATCH_WORDS, TILE_OC, COLUMN_SPAN, WAVES_OC, wave_oc, lane)
first = tile.group * OC + tile.oc
self.filter.source_of(W, first, tile.filters, C, self.thread)
"""

_PACKED_FILTER = "self.filter = Filter(W, tile, OC, C, wave_oc, lane)"

_PACKED_PIPELINE = '''
    def reads(self, tap, step):
        """LDS reads of one step: a chunk of every atom's pixels, for every read that an operand takes."""
        a, reads = self.patch.tap_base(tap), range(step * READS, (step + 1) * READS)
        return [(READ, 1, lambda t=t, r=r: self.patch.fragment(a, t, r)@masked@) for r in reads for t in range(A_ATOMS)]

    def prologue(self):
        """The first patch in LDS and its filter in registers, the next patch under way, the first fragments."""
        order, zero = Order(), fx.Int32(0)
        patch, filters = order.do(self.patch.loads(zero)), in_order(self.filter.loads(zero, 0))
        order.do(self.patch.writes(patch))
        rocdl.sched_barrier(0)
        patch = order.do(self.patch.@more@(fx.Int32(1)))
        gpu.barrier()
        return [*patch, *filters, *order.do(self.reads(0, 0)), *zero_accumulators(A_ATOMS * B_ATOMS)]

    def most_of(self, tile, tap, state):
        """The MFMAs of one tap up to the last step; the next tap's filter takes the place of this one's."""
        filters, fragments, acc = split_state(state)
        after = tap + 1
        order = Order(filters, self.filter.loads(tile + after // TAPS, after % TAPS))
        for s in range(STEPS - 1):
            acc, fragments = order.multiply(fragments, acc, self.reads(tap, s + 1))
        return order, fragments, acc

    def step(self, tile, tap, state):
        """One tap; the first fragments of the next one are read under its last MFMAs. No wave waits for another."""
        order, fragments, acc = self.most_of(tile, tap, state)
        acc, fragments = order.multiply(fragments, acc, self.reads(tap + 1, 0))
        order.keep()
        rocdl.sched_barrier(0)
        return [*order.packed, *fragments, *acc]

    def last(self, tile, patch, state):
        """The last tap of a tile of channels; under its last MFMAs the next patch takes the place of this one."""
        order, fragments, acc = self.most_of(tile, TAPS - 1, state)
        order.keep()
        gpu.barrier()
        acc, patch = order.multiply(fragments, acc, self.patch.writes(patch) + self.patch.@more@(tile + 2), 0)
        order.keep()
        gpu.barrier()
        acc, fragments = order.multiply(fragments, acc, self.reads(0, 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*patch, *order.packed, *fragments, *acc]
'''

_TAPS = '''

    def taps(self, tile, state):
        """All taps of a tile of channels."""
        state = vectors(state)
        patch, state = state[:PATCH_STAGED], state[PATCH_STAGED:]
        for tap in range(TAPS - 1):
            state = self.step(tile, tap, state)
        return self.last(tile, patch, state)
'''

_UNROLLED = """
taps, state = block.taps, block.prologue()
for number, carried in range(fx.Int32(0), ceil_div(C, TILE_IC), fx.Int32(1), init=state):
    state = yield taps(fx.Int32(number), carried)
"""

_LOOPED = """
step, last, state = block.step, block.last, block.prologue()
for number, carried in range(fx.Int32(0), ceil_div(C, TILE_IC), fx.Int32(1), init=state):
    outer = vectors(carried)
    inner = outer[PATCH_STAGED:]
    for tap, held in range(fx.Int32(0), fx.Int32(TAPS - 1), fx.Int32(1), init=inner):
        inner = yield step(fx.Int32(number), fx.Int32(tap), held)
    state = yield last(fx.Int32(number), outer[:PATCH_STAGED], inner)
"""

_OUTPUT = '''
class Output:
    """The tile of Y of a workgroup as one lane holds it: of every pixel runs of COLUMN_RUN consecutive channels."""

    def __init__(self, Y, tile, OC, @bias_given@y_n, y_h, y_w, y_c, thread):
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // 64))
        self.lane, self.wave_px, self.wave_oc, self.tile = thread % 64, wave // WAVES_OC, wave % WAVES_OC, tile
        self.y_n, self.y_h, self.y_w, self.y_c = fx.Int32(y_n), y_h, y_w, y_c
        channel = tile.group * OC + tile.oc
        start = fx.Int64(tile.n) * y_n + fx.Int64(tile.h) * fx.Int64(y_h) + fx.Int64(tile.w) * fx.Int64(y_w)
        start = (start + fx.Int64(channel) * fx.Int64(y_c)) * OUT_BYTES
        self.Y = resource(address_of(Y) + start, fx.Int32(OFFSET_LIMIT))
        @bias_kept@

    def store(self, acc):
        """Every part: what a lane holds of one atom of pixels and one span of channels."""
        tile, spans = self.tile, A_ATOMS * B_ATOMS // SPAN_ATOMS // A_ATOMS
        for row in range(A_ATOMS):
            pixel = (row * WAVES_PX + self.wave_px) * ATOM_MN + self.lane % ATOM_MN
            n, h, w = pixel // (TILE_H * TILE_W), pixel // TILE_W % TILE_H, pixel % TILE_W
            inside = (n < tile.images) & (h < tile.rows) & (w < tile.cols)
            first = inside.select(n * self.y_n + h * self.y_h + w * self.y_w, fx.Int32(OUT_OF_RANGE // OUT_BYTES))
            for span in range(spans):
                part = row * spans + span
                self.store_part(span, first, acc[part * SPAN_ATOMS : (part + 1) * SPAN_ATOMS])

    def store_part(self, span, pixel, acc):
        first_c = (span * WAVES_OC + self.wave_oc) * COLUMN_SPAN + self.lane // ATOM_MN * COLUMN_RUN
        values = [x[e] for x in acc for e in range(ACC)]
        for first in range(0, len(values), STORE):
            c = first_c + (first // COLUMN_RUN * (GROUPS * COLUMN_RUN) + first % COLUMN_RUN)
            out = values[first : first + STORE]
            @finish@
            place = pixel + c * self.y_c
            place = (c < self.tile.filters).select(place, fx.Int32(OUT_OF_RANGE // OUT_BYTES)) * OUT_BYTES
            store(self.Y, place, out)
'''

_BIAS = """
def bias_at(source, index):
    return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, source, index * 4, fx.Int32(0), 0)).bitcast(fx.Float32)
"""

_KERNEL = '''
def tile_memory():
    """The patch@slices@ in LDS."""
    return fx.SharedAllocator().allocate(fx.Array[fx.Int32, PATCH_WORDS@words@, 16]).peek().ptr


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def conv2d_kernel(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor, @bias_typed@
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, OC: fx.Int32,
    groups: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    @typed@,
):
    tile = Tile(N, OH, OW, OC, groups)
    C = tile.active.select(C, fx.Int32(0))
    block = Block(tile_memory(), X, W, tile, N, IH, IW, C, OC, pad_h, pad_w, @x_strides@)
    @loops@
    acc = vectors(state)[PATCH_STAGED + FILTER_STAGED + FRAGMENTS :]
    Output(Y, tile, OC, @bias_given@@y_given@, block.thread).store(acc)
'''

_LAUNCH = '''
@flyc.jit
def launch(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor, @bias_typed@
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, OC: fx.Int32,
    groups: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    @typed@,
    grid_x: fx.Int32, grid_y: fx.Int32, stream: fx.Stream = fx.Stream(None),
):
    sizes = (N, IH, IW, C, OH, OW, OC, groups, pad_h, pad_w)
    strides = (@strides@)
    value_attrs = {"rocdl.waves_per_eu": WAVES_PER_SIMD}
    conv2d_kernel(X, W, Y, @bias_given@*sizes, *strides, value_attrs=value_attrs).launch(
        grid=(grid_x, grid_y, 1), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(N, OH, OW, OC, groups):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    tiles = ceil_div(N, TILE_N) * ceil_div(OH, TILE_H) * ceil_div(OW, TILE_W) * ceil_div(OC, TILE_OC) * groups
    if tiles >= 2**31:
        raise ValueError(f"{tiles} tiles: workgroups are counted in 31 bits")
    return min(tiles, GRID_X), ceil_div(tiles, GRID_X)
'''


def _values(channels_last: bool, bias: bool) -> dict[str, str]:
    """Names of the strides in elements; channels that lie next to each other have none."""
    names = {name: [f"{name}_n", f"{name}_h", f"{name}_w", f"{name}_c"] for name in "xy"}
    given = {name: ", ".join(strides) for name, strides in names.items()}
    if channels_last:
        names = {name: strides[:-1] for name, strides in names.items()}
        given = {name: ", ".join([*strides, "1"]) for name, strides in names.items()}
    listed = [*names["x"], *names["y"]]
    kinds = {"x_n": "Int64", "y_n": "Int64"}
    return {
        "typed": ", ".join(f"{name}: fx.{kinds.get(name, 'Int32')}" for name in listed),
        "strides": ", ".join(listed),
        "x_strides": ", ".join(names["x"]),
        "x_given": given["x"],
        "y_given": given["y"],
        "bias_typed": "bias: fx.Tensor," if bias else "",
        "bias_given": "bias, " if bias else "",
    }


def block_class(channels_last: bool, unrolled: bool, packed: bool, single: bool, whole: bool) -> str:
    """The Block class with its pipeline.

    `unrolled`: the taps of a tile are written out; `packed`: the filter is; `single`: one tile has all channels;
    `whole`: all taps have all of theirs.
    """
    taps = _TAPS.rstrip("\n") if unrolled else ""
    values = {
        **_values(channels_last, False),
        "filter": _PACKED_FILTER if packed else piece(_FILTER),
        "pipeline": fill(
            piece(_PACKED_PIPELINE if packed else _PIPELINE),
            {"more": "more" if single else "loads", "masked": "" if whole else " & self.patch.there(tap, r)"},
        ),
        "split": piece(_SPLIT),
    }
    return fill(piece(_BLOCK).replace("\n@taps@", taps), values)


def kernel(channels_last: bool, bias: bool, unrolled: bool, packed: bool) -> str:
    """The kernel and its launch."""
    values = {
        **_values(channels_last, bias),
        "loops": piece(_UNROLLED if unrolled else _LOOPED),
        "slices": "" if packed else " and two slices of the filter",
        "words": "" if packed else " + 2 * FILTER_WORDS",
    }
    return join(fill(piece(_KERNEL), values), fill(piece(_LAUNCH), values)).replace("fx.Tensor, \n", "fx.Tensor,\n")


def output(bias: bool, activation: str, whole: bool, double: bool) -> str:
    """The Output class and its bias; `whole` sums are converted, to f64 where that is computed in."""
    finish = ["out = [x.to(WORK) for x in out]"] if whole else []
    if bias:
        finish.append("out = [x + bias_at(self.bias, c + e) for e, x in enumerate(out)]")
    if activation != "none":
        finish.append(f"out = [{activation}(x) for x in out]")
    kept = "self.bias = resource(address_of(bias) + fx.Int64(channel) * 4, tile.filters * 4)"
    values = {
        "bias_given": "bias, " if bias else "",
        "bias_kept": kept if bias else "",
        "finish": "\n".join(finish),
    }
    return join(piece(_BIAS) + (".to(WORK)" if double else "") if bias else "", fill(piece(_OUTPUT), values))
