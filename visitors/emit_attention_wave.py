"""Wave level of emitted attention: the step over one K/V tile and the pipeline over all."""

from __future__ import annotations

from textwrap import indent

from . import emit_attention_entry as entry
from . import emit_attention_logits as logits
from . import emit_attention_mask as mask
from .emit_attention_form import Form
from .emit_text import fill, join, piece

__all__ = ["kernel", "merge", "wave"]


_WAVE = '''
class Wave:
    """One wavefront: TILE_Q query rows of one head against all keys.

    Lane l holds query l % ATOM_N of each query tile; the lane groups l // ATOM_N share a query and split its keys.
    """

    def __init__(self, Q, K, V, O, L_q, L_kv, scale@more@):
        shared = fx.SharedAllocator()
        @images@
        self.thread = fx.Int32(gpu.thread_idx.x)
        self.wave = fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        self.lane = self.thread % 64
        self.column, self.group = self.lane % ATOM_N, self.lane // ATOM_N
        @first_row@
        @lds_p@
        @batch@
        @kv_head@
        @lengths@
        self.rows = fx.Int64(L_q - self.first_row)
        self.L_kv = L_kv
        @tiles@
        @factors@
        self.atom = fx.make_mma_atom(rocdl.MFMA(ATOM_M, ATOM_N, ATOM_K, @operand@))
        self.O = O
        self.Q = Q
        self.K, self.V = self.head_of(K@kv@), self.head_of(V@kv@)
        self.k_stride, self.v_stride = stride(K, 2), stride(V, 2)
        @v_more@

    def head_of(self, tensor@head_parameter@):
        """64-bit address of row 0 of this batch entry and head."""
        offset = @entry@ + @head@ * stride(tensor, 1)
        return fx.Int64(fx.ptrtoint(fx.get_iter(tensor))) + offset * ELEM_BYTES

    def query_rows(self, tensor@row_parameter@):
        """This wave's rows of Q or O: the extent ends with the last valid row, nothing past it is touched."""
        row_stride = stride(tensor, 2)
        address = self.head_of(tensor@q@) + fx.Int64(self.first_row) * row_stride * ELEM_BYTES
        extent = ((self.rows - 1) * row_stride + @row@) * ELEM_BYTES
        return resource(address, (self.rows > fx.Int64(0)).select(extent, fx.Int64(0)))

    @kv_tile@

    def fetch_k(self, tile):
        return load_k(@k_tile@, self.thread)

    def fetch_v(self, tile):
        return load_v(@v_tile@, self.thread)

    def load_q(self):
        """Q stays in registers: operand B of the first product for every query tile and head-dim chunk."""
        rows, row_stride = self.query_rows(self.Q@q_row@), fx.Int32(stride(self.Q, 2))
        columns = [s * CHUNK + self.group * VEC for s in range(D_CHUNKS)]
        self.q = [
            [load(rows, n * ATOM_N + self.column, row_stride, col, VEC) for col in columns] for n in range(Q_TILES)
        ]

    def prologue(self):
        """The scores of tile 0, K of tile 1 in LDS, V of tile 0 under way, and the identity of the softmax monoid."""
        self.load_q()
        order, scores, top = Order(), no_scores(), [None] * Q_TILES
        (k, k_loads), (v, v_loads) = self.fetch_k(fx.Int32(0)), self.fetch_v(fx.Int32(0))
        @first_bias@
        order.do(k_loads + v_loads)
        order.do(store_k(self.lds_k, k, self.thread))
        gpu.barrier()
        k, k_loads = self.fetch_k(fx.Int32(1))
        order.do(k_loads@first_bias_loads@)
        order.weave(*self.score_products(scores), [], 1.0)
        order.do(@first_logits@self.maxima(scores, top))
        gpu.barrier()
        order.do(store_k(self.lds_k, k, self.thread))
        gpu.barrier()
        m, l = [fx.Float32(NEG_INF)] * Q_TILES, [zeros(2)] * Q_TILES
        return joined(v, scores, top, m, l, zero_accumulators())

    def step(self, tile, state):
        """One tile t of keys, of which the scores are known: softmax(t) runs under K(t+1) Q^T, the maximum of t + 1
        under V(t)^T P^T. V(t) and K(t+2) go to LDS, K(t+2) and V(t+1) are loaded.
        """
        v, scores, top, m, l, acc = split_state(state)
        @clipping@
        m, l, acc = raised(top, m, l, acc, self.log2_scale)
        order, p, later = Order(), no_exponentials(), no_scores()
        exponentials = self.exponentials(scores, m, l, p)
        k, loads = self.fetch_k(tile + 2)
        @next_bias@
        writes = store_v(self.lds_v, v, self.thread)
        order.weave(*self.score_products(later), loads + spread(exponentials[:EARLY_PAIRS], writes), 1.0)
        gpu.barrier()
        v, loads = self.fetch_v(tile + 1)
        writes = store_k(self.lds_k, k, self.thread)
        top = [None] * Q_TILES
        @softmax@
        acc = self.values(order, p, acc, others)
        gpu.barrier()
        order.keep()
        return joined(v, later, top, m, l, acc)

    def last_step(self, state):
        """The last tile: @last@."""
        v, scores, _, m, l, acc = split_state(state)
        order, p, top = Order(), no_exponentials(), [None] * Q_TILES
        order.do(store_v(self.lds_v, v, self.thread))
        @last_scores@
        order.do(self.maxima(scores, top))
        m, l, acc = raised(top, m, l, acc, self.log2_scale)
        order.do(self.exponentials(scores, m, l, p))
        gpu.barrier()
        return @kept@l, self.values(order, p, acc, [])

    def read_k(self, fragments, t, s):
        fragments[t, s] = lds_load(self.lds_k, k_place(t * ATOM_M + self.column, s * GROUPS + self.group), VEC)

    def multiply_k(self, scores, fragments, n, t, s, j):
        a, b = @part@(fragments[t, s], j, AB), @part@(self.q[n][s], j, AB)
        scores[n][t] = mma(self.atom, a, b, scores[n][t])

    def score_products(self, scores):
        """S^T += K Q^T: LDS reads, and for each the MFMAs that use it."""
        fragments, steps = {}, [(t, s) for t in range(KEY_TILES) for s in range(D_CHUNKS)]
        reads = [(READ, 1, 1, partial(self.read_k, fragments, *step)) for step in steps]
        uses = [(n, j) for j in range(0, VEC, AB) for n in range(Q_TILES)]
        return reads, [
            [(MFMA, 1, 1, partial(self.multiply_k, scores, fragments, n, *step, j)) for n, j in uses] for step in steps
        ]

    def exponentials(self, scores, m, l, p):
        """Operations for p[query tile][i], in the order of KEY, and the lane's share of the row sums."""
        shifts = [finite(x) for x in m]
        return [
            (TRANS, 2, PAIR_SLOTS, partial(self.exponential_pair, scores[n], shifts[n], l, p, n, i))
            for i in range(0, KEY_TILES * ACC, 2)
            for n in range(Q_TILES)
        ]

    def exponential_pair(self, tiles, shift, l, p, n, i):
        p[n][i : i + 2] = powers(tiles[i // ACC], i % ACC, shift, self.log2_scale)
        l[n] = l[n] + Vec.from_elements(p[n][i : i + 2], fx.Float32)
        @narrow@

    def maxima(self, scores, top):
        """Operations for the largest score of each query."""
        pairs = [(n, i) for i in range(0, KEY_TILES * ACC, 2) for n in range(Q_TILES)]
        return [(FREE, 0, 2, partial(self.larger_pair, scores, top, n, i)) for n, i in pairs] + [
            (SHUFFLE, GROUPS.bit_length() - 1, GROUPS, partial(self.largest, top, n)) for n in range(Q_TILES)
        ]

    def larger_pair(self, scores, top, n, i):
        tile, r = scores[n][i // ACC], i % ACC
        top[n] = larger(fx.Float32(tile[r]) if i == 0 else top[n], tile, r)

    def largest(self, top, n):
        top[n] = across_groups(top[n], fx.maxnumf)
'''

_STATE = '''
def no_scores():
    return [[zeros(ACC) for _ in range(KEY_TILES)] for _ in range(Q_TILES)]


def no_exponentials():
    return [[None] * (KEY_TILES * ACC) for _ in range(Q_TILES)]


def joined(v, scores, top, m, l, acc):
    """Loop-carried values: V under way, scores and their maxima, running maxima, running sums, accumulators."""
    return [*[x.ir_value() for x in v], *[tile for tiles in scores for tile in tiles], *top, *m, *l, *acc]


def split_state(state):
    state, parts = list(state), []
    for count in (V_VECTORS, Q_TILES * KEY_TILES, Q_TILES, Q_TILES, Q_TILES):
        parts.append(state[:count])
        state = state[count:]
    v, tiles, l = ([Vec(x) for x in parts[i]] for i in (0, 1, 4))
    top, m = ([fx.Float32(x) for x in parts[i]] for i in (2, 3))
    scores = [tiles[n * KEY_TILES : (n + 1) * KEY_TILES] for n in range(Q_TILES)]
    return v, scores, top, m, l, [@carried@(x) for x in state]
'''

_IMAGES = """
tile = fx.Array[DTYPE, TILE_KV * HEAD_DIM_PADDED, 16]
self.lds_k = fx.recast_iter(DTYPE, shared.allocate(tile).peek().ptr)
self.lds_v = fx.recast_iter(DTYPE, shared.allocate(tile).peek().ptr)
"""
_IMAGES_OF_BOTH = """
k_tile, v_tile = fx.Array[DTYPE, TILE_KV * HEAD_DIM_PADDED, 16], fx.Array[DTYPE, TILE_KV * V_DIM_PADDED, 16]
self.lds_k = fx.recast_iter(DTYPE, shared.allocate(k_tile).peek().ptr)
self.lds_v = fx.recast_iter(DTYPE, shared.allocate(v_tile).peek().ptr)
"""

_LDS_P = """
p_images = shared.allocate(fx.Array[P_TYPE, WAVES * TILE_Q * TILE_KV, 16]).peek().ptr
self.lds_p = fx.recast_iter(P_TYPE, p_images) + self.wave * (TILE_Q * TILE_KV)
"""


_NARROW = """
if (i + 2) % VEC == 0:
    p[n][i // VEC * VEC] = rounded(p[n][i // VEC * VEC : i + 2])
"""

_LAST = "only it can be clipped, so only here scores are masked"

_STORE_LSE = '''
def store_lse(self, lse, m, l):
    """log sum exp of the logits of each query, by its lane in group 0; -inf of a row without visible keys.

    The sum relative to a logit of +inf is NaN: that such a logit was there shows in the maximum alone.
    """
    first = @lse_entry@ + self.head * stride(lse, 1) + fx.Int64(self.first_row)
    rows = resource(fx.Int64(fx.ptrtoint(fx.get_iter(lse))) + first * 4, self.rows * 4)
    for n in range(Q_TILES):
        value = (finite(m[n]) * self.log2_scale + log2(row_sum(l[n]))@peak@) * LN_2
        value = (m[n] == fx.Float32(-NEG_INF)).select(m[n], value)
        place = (self.group == fx.Int32(0)).select((n * ATOM_N + self.column) * 4, fx.Int32(OUT_OF_RANGE))
        raw_ptr_buffer_store(value.ir_value(), rows, place.ir_value(), fx.Int32(0).ir_value())
'''


def wave(form: Form, narrow: bool, values: str, carried: str) -> str:
    """The Wave class. `narrow`: exponentials are rounded a fragment at a time; `values` are the methods of the second
    product, `carried` the type of one accumulator."""
    extra = [
        mask.methods(form),
        logits.methods(form),
        fill(piece(_STORE_LSE), {**entry.place(form), "peak": " - PEAK" if form.narrow else ""})
        if form.keeps_lse
        else "",
    ]
    body = fill(
        piece(_WAVE),
        {
            "lds_p": "" if form.op.variant == "chained" else piece(_LDS_P),
            "narrow": piece(_NARROW) if narrow else "",
            "kept": "m, " if form.keeps_lse else "",
            "head": "head" if form.op.group > 1 else "self.head",
            "operand": "OPERAND" if form.narrow else "DTYPE",
            "part": "operand" if form.narrow else "part",
            "images": piece(_IMAGES if not form.own_columns else _IMAGES_OF_BOTH),
            **entry.place(form),
            **entry.tile(form),
            **logits.steps(form),
            "tiles": mask.tile_range(form),
            "clipping": mask.clipping(form),
            "last_scores": mask.last_scores(form),
            "last": "its scores are masked, whoever sees it" if form.op.has_mask else _LAST,
            "more": ", ".join(["", *more_arguments(form)]),
        },
    )
    parts = [body, values, *(indent(text, "    ") for text in extra if text)]
    return join(piece(_STATE).replace("@carried@", carried), join(*parts, blank=1))


def more_arguments(form: Form) -> tuple[str, ...]:
    """Arguments of the kernel behind Q, K, V, O, the log-sum-exp, L_q, L_kv and the scale: tensors, then numbers."""
    splits = ("splits",) if form.split else ()
    return (*entry.tensors(form), *logits.tensors(form), *logits.numbers(form), *splits)


def kernel(form: Form) -> str:
    """The kernel: prologue, loop over all tiles but the last, the last tile, epilogue."""
    text = piece(
        """
        @flyc.kernel(known_block_size=[THREADS, 1, 1])
        def attention_kernel(
            @parameters@
        ):
            wave = Wave(Q, K, V, @out@, L_q, L_kv, scale@more@)
            state = wave.prologue()
            for tile, carried in range(fx.Int32(0), wave.tiles - 1, fx.Int32(1), init=state):
                state = yield wave.step(@tile@, carried)
            @finish@
        """
    )
    both = "m, l, acc = wave.last_step(state)\nwave.store_lse(@lse@, m, l)\nwave.epilogue(l, acc)"
    results = {"out": "PARTIAL", "lse": "PARTIAL_LSE"} if form.split else {"out": "O", "lse": "LSE"}
    finish = fill(both, results) if form.keeps_lse else "wave.epilogue(*wave.last_step(state))"
    more = ", ".join(["", *more_arguments(form)])
    tile = "fx.Int32(tile)" if form.has_options else "tile"
    return fill(text, {"parameters": parameters(form), "finish": finish, "more": more, "tile": tile, **results})


_MERGE = '''
@flyc.kernel(known_block_size=[MERGE_THREADS, 1, 1])
def merge_kernel(
    PARTIAL: fx.Tensor, PARTIAL_LSE: fx.Tensor, O: fx.Tensor,@lse_parameter@ L_q: fx.Int32, splits: fx.Int32
):
    """Row x of O of head y and batch entry z: the results of all splits, weighted by what their exponentials sum to."""
    row, head, batch = (fx.Int64(x) for x in (gpu.block_idx.x, gpu.block_idx.y, gpu.block_idx.z))
    column = fx.Int32(gpu.thread_idx.x)
    first = batch * fx.Int64(splits)
    lse_step, out_step = (stride(x, 0) * 4 for x in (PARTIAL_LSE, PARTIAL))
    lses = address_of(PARTIAL_LSE) + first * lse_step + (head * stride(PARTIAL_LSE, 1) + row) * 4
    outs = address_of(PARTIAL) + first * out_step + (head * stride(PARTIAL, 1) + row * stride(PARTIAL, 2)) * 4

    top = fx.Float32(NEG_INF)
    for split, (top,) in range(fx.Int32(0), splits, fx.Int32(1), init=[top]):
        top = yield [fx.maxnumf(fx.Float32(top), number_at(lses + fx.Int64(split) * lse_step, fx.Int32(0), 1))]
    top = fx.Float32(top)
    base = finite(top)
    total, out = fx.Float32(0.0), fx.Float32(0.0)
    for split, (total, out) in range(fx.Int32(0), splits, fx.Int32(1), init=[total, out]):
        weight = exp2((number_at(lses + fx.Int64(split) * lse_step, fx.Int32(0), 1) - base) * LOG2_E)
        part = number_at(outs + fx.Int64(split) * out_step, column, @v_dim@)
        total, out = yield [fx.Float32(total) + weight, fx.Float32(out) + weight * part]
    total, out = fx.Float32(total), fx.Float32(out)
    out = (total == fx.Float32(0.0)).select(fx.Float32(0.0), out / total)
    place = batch * stride(O, 0) + head * stride(O, 1) + row * stride(O, 2)
    target = resource(address_of(O) + place * O_BYTES, fx.Int64(@v_dim@ * O_BYTES))
    value = Vec.from_elements([out], fx.Float32)@to@
    raw_ptr_buffer_store(value[0].ir_value(), target, (column * O_BYTES).ir_value(), fx.Int32(0).ir_value())
    @store_lse@


def number_at(address, index, count):
    """Element `index` of `count` f32 numbers; 0 past them."""
    source = resource(address, fx.Int64(count) * 4)
    return fx.Float32(rocdl.raw_ptr_buffer_load(T.f32, source, index * 4, fx.Int32(0), 0))
'''

_MERGE_LSE = """
value = (top == fx.Float32(-NEG_INF)).select(top, base + log2(total) * LN_2)
place = batch * stride(LSE, 0) + head * stride(LSE, 1) + row
target = resource(address_of(LSE) + place * 4, fx.Int64(4))
raw_ptr_buffer_store(value.ir_value(), target, (column * 4).ir_value(), fx.Int32(0).ir_value())
"""


def merge(form: Form) -> str:
    """The kernel that puts the results of all splits together; nothing where the keys are not split."""
    if not form.split:
        return ""
    return fill(
        piece(_MERGE),
        {
            "lse_parameter": " LSE: fx.Tensor," if form.op.lse else "",
            "v_dim": form.v_dim,
            "to": "" if form.op.result == "f32" else ".to(RESULT)",
            "store_lse": piece(_MERGE_LSE) if form.op.lse else "",
        },
    )


def parameters(form: Form) -> str:
    """Parameters of the kernel with their types, tensors on lines of their own where there are more than four."""
    results = ["PARTIAL", "PARTIAL_LSE"] if form.split else ["O", *(["LSE"] if form.op.lse else [])]
    tensors = ["Q", "K", "V", *results]
    more = [*entry.tensors(form), *logits.tensors(form)]
    lines = [", ".join(f"{name}: fx.Tensor" for name in tensors)]
    lines += [", ".join(f"{name}: fx.Tensor" for name in more)] if more else []
    numbers = ["L_q: fx.Int32", "L_kv: fx.Int32", "scale: fx.Float32"]
    numbers += [f"{name}: fx.Float32" for name in logits.numbers(form)]
    numbers += ["splits: fx.Int32"] if form.split else []
    return (", " if len(lines) == 1 and not form.keeps_lse else ",\n").join([",\n".join(lines), ", ".join(numbers)])
