"""Wave level of emitted attention: the step over one K/V tile and the pipeline over all."""

from __future__ import annotations

from textwrap import indent

from closedform.operators.attention import Attention

from .emit_text import fill, join, piece

__all__ = ["kernel", "wave"]


_WAVE = '''
class Wave:
    """One wavefront: TILE_Q query rows of one head against all keys.

    Lane l holds query l % ATOM_N of each query tile; the lane groups l // ATOM_N share a query and split its keys.
    """

    def __init__(self, Q, K, V, O, L_q, L_kv, scale):
        shared = fx.SharedAllocator()
        tile = fx.Array[DTYPE, TILE_KV * HEAD_DIM_PADDED, 16]
        self.lds_k = fx.recast_iter(DTYPE, shared.allocate(tile).peek().ptr)
        self.lds_v = fx.recast_iter(DTYPE, shared.allocate(tile).peek().ptr)
        self.thread = fx.Int32(gpu.thread_idx.x)
        self.wave = fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        self.lane = self.thread % 64
        self.column, self.group = self.lane % ATOM_N, self.lane // ATOM_N
        self.first_row = fx.Int32(gpu.block_idx.x) * (WAVES * TILE_Q) + self.wave * TILE_Q
        @lds_p@
        self.head, self.batch = fx.Int64(gpu.block_idx.y), fx.Int64(gpu.block_idx.z)
        @kv_head@
        self.rows = fx.Int64(L_q - self.first_row)
        self.L_kv = L_kv
        self.tiles = (L_kv + (TILE_KV - 1)) // TILE_KV
        self.log2_scale = scale * LOG2_E
        self.atom = fx.make_mma_atom(rocdl.MFMA(ATOM_M, ATOM_N, ATOM_K, DTYPE))
        self.O = O
        self.Q = Q
        self.K, self.V = self.head_of(K@kv@), self.head_of(V@kv@)
        self.k_stride, self.v_stride = stride(K, 2), stride(V, 2)

    def head_of(self, tensor@head_parameter@):
        """64-bit address of row 0 of this batch entry and head."""
        offset = self.batch * stride(tensor, 0) + @head@ * stride(tensor, 1)
        return fx.Int64(fx.ptrtoint(fx.get_iter(tensor))) + offset * ELEM_BYTES

    def query_rows(self, tensor):
        """This wave's rows of Q or O: the extent ends with the last valid row, nothing past it is touched."""
        row_stride = stride(tensor, 2)
        address = self.head_of(tensor@q@) + fx.Int64(self.first_row) * row_stride * ELEM_BYTES
        extent = ((self.rows - 1) * row_stride + HEAD_DIM) * ELEM_BYTES
        return resource(address, (self.rows > fx.Int64(0)).select(extent, fx.Int64(0)))

    def kv_tile(self, address, row_stride, tile):
        """Rows of one K or V tile: rebased in 64 bits, so offsets inside a tile fit 32. Past the end it is empty."""
        tile = fx.Int32(tile)
        rows = fx.min(self.L_kv - tile * TILE_KV, fx.Int32(TILE_KV))
        extent = fx.max((rows - 1) * fx.Int32(row_stride) + HEAD_DIM, fx.Int32(0)) * ELEM_BYTES
        return resource(address + fx.Int64(tile) * TILE_KV * row_stride * ELEM_BYTES, fx.Int64(extent))

    def fetch_k(self, tile):
        return load_k(self.kv_tile(self.K, self.k_stride, tile), fx.Int32(self.k_stride), self.thread)

    def fetch_v(self, tile):
        return load_v(self.kv_tile(self.V, self.v_stride, tile), fx.Int32(self.v_stride), self.thread)

    def load_q(self):
        """Q stays in registers: operand B of the first product for every query tile and head-dim chunk."""
        rows, row_stride = self.query_rows(self.Q), fx.Int32(stride(self.Q, 2))
        columns = [s * CHUNK + self.group * VEC for s in range(D_CHUNKS)]
        self.q = [
            [load(rows, n * ATOM_N + self.column, row_stride, col, VEC) for col in columns] for n in range(Q_TILES)
        ]

    def prologue(self):
        """The scores of tile 0, K of tile 1 in LDS, V of tile 0 under way, and the identity of the softmax monoid."""
        self.load_q()
        order, scores, top = Order(), no_scores(), [None] * Q_TILES
        (k, k_loads), (v, v_loads) = self.fetch_k(fx.Int32(0)), self.fetch_v(fx.Int32(0))
        order.do(k_loads + v_loads)
        order.do(store_k(self.lds_k, k, self.thread))
        gpu.barrier()
        k, k_loads = self.fetch_k(fx.Int32(1))
        order.do(k_loads)
        order.weave(*self.score_products(scores), [], 1.0)
        order.do(self.maxima(scores, top))
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
        m, l, acc = raised(top, m, l, acc, self.log2_scale)
        order, p, later = Order(), no_exponentials(), no_scores()
        exponentials = self.exponentials(scores, m, l, p)
        k, loads = self.fetch_k(tile + 2)
        writes = store_v(self.lds_v, v, self.thread)
        order.weave(*self.score_products(later), loads + spread(exponentials[:EARLY_PAIRS], writes), 1.0)
        gpu.barrier()
        v, loads = self.fetch_v(tile + 1)
        writes = store_k(self.lds_k, k, self.thread)
        top = [None] * Q_TILES
        others = loads + spread(exponentials[EARLY_PAIRS:] + self.maxima(later, top), writes)
        acc = self.values(order, p, acc, others)
        gpu.barrier()
        order.keep()
        return joined(v, later, top, m, l, acc)

    def last_step(self, state):
        """The last tile: only it can be clipped, so only here scores are masked."""
        v, scores, _, m, l, acc = split_state(state)
        order, p, top = Order(), no_exponentials(), [None] * Q_TILES
        order.do(store_v(self.lds_v, v, self.thread))
        scores = [masked(tiles, self.group, self.L_kv - (self.tiles - 1) * TILE_KV) for tiles in scores]
        order.do(self.maxima(scores, top))
        m, l, acc = raised(top, m, l, acc, self.log2_scale)
        order.do(self.exponentials(scores, m, l, p))
        gpu.barrier()
        return @kept@l, self.values(order, p, acc, [])

    def read_k(self, fragments, t, s):
        fragments[t, s] = lds_load(self.lds_k, k_place(t * ATOM_M + self.column, s * GROUPS + self.group), VEC)

    def multiply_k(self, scores, fragments, n, t, s, j):
        a, b = part(fragments[t, s], j, AB), part(self.q[n][s], j, AB)
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

_LDS_P = """
p_images = shared.allocate(fx.Array[P_TYPE, WAVES * TILE_Q * TILE_KV, 16]).peek().ptr
self.lds_p = fx.recast_iter(P_TYPE, p_images) + self.wave * (TILE_Q * TILE_KV)
"""


_NARROW = """
if (i + 2) % VEC == 0:
    p[n][i // VEC * VEC] = rounded(p[n][i // VEC * VEC : i + 2])
"""

#: Heads of K and V: those of Q, or fewer that neighbours share.
_EQUAL_HEADS = {"kv_head": "", "kv": "", "q": "", "head_parameter": "", "head": "self.head"}
_GROUPED = {
    "kv_head": "self.kv_head = fx.Int64(fx.Int32(gpu.block_idx.y) // HEADS_PER_KV)",
    "kv": ", self.kv_head",
    "q": ", self.head",
    "head_parameter": ", head",
    "head": "head",
}

_STORE_LSE = '''
def store_lse(self, lse, m, l):
    """log sum exp of the scaled logits of each query, by its lane in group 0; -inf of a row without visible keys.

    The sum relative to a logit of +inf is NaN: that such a logit was there shows in the maximum alone.
    """
    first = self.batch * stride(lse, 0) + self.head * stride(lse, 1) + fx.Int64(self.first_row)
    rows = resource(fx.Int64(fx.ptrtoint(fx.get_iter(lse))) + first * 4, self.rows * 4)
    for n in range(Q_TILES):
        value = (finite(m[n]) * self.log2_scale + log2(row_sum(l[n]))) * LN_2
        value = (m[n] == fx.Float32(-NEG_INF)).select(m[n], value)
        place = (self.group == fx.Int32(0)).select((n * ATOM_N + self.column) * 4, fx.Int32(OUT_OF_RANGE))
        raw_ptr_buffer_store(value.ir_value(), rows, place.ir_value(), fx.Int32(0).ir_value())
'''


def wave(op: Attention, narrow: bool, values: str, carried: str) -> str:
    """The Wave class. `narrow`: exponentials are rounded a fragment at a time; `values` are the methods of the second
    product, `carried` the type of one accumulator."""
    body = fill(
        piece(_WAVE),
        {
            "lds_p": "" if op.variant == "chained" else piece(_LDS_P),
            "narrow": piece(_NARROW) if narrow else "",
            "kept": "m, " if op.lse else "",
            **(_GROUPED if op.group > 1 else _EQUAL_HEADS),
        },
    )
    parts = [body, values, *([indent(piece(_STORE_LSE), "    ")] if op.lse else [])]
    return join(piece(_STATE).replace("@carried@", carried), join(*parts, blank=1))


def kernel(lse: bool) -> str:
    """The kernel: prologue, loop over all tiles but the last, the last tile, epilogue. `lse`: with a second result."""
    text = piece(
        """
        @flyc.kernel(known_block_size=[THREADS, 1, 1])
        def attention_kernel(
            @parameters@
        ):
            wave = Wave(Q, K, V, O, L_q, L_kv, scale)
            state = wave.prologue()
            for tile, carried in range(fx.Int32(0), wave.tiles - 1, fx.Int32(1), init=state):
                state = yield wave.step(tile, carried)
            @finish@
        """
    )
    tensors, sizes = "Q: fx.Tensor, K: fx.Tensor, V: fx.Tensor, O: fx.Tensor", "L_q: fx.Int32, L_kv: fx.Int32"
    parameters = f"{tensors}, LSE: fx.Tensor,\n{sizes}" if lse else f"{tensors}, {sizes}"
    both = "m, l, acc = wave.last_step(state)\nwave.store_lse(LSE, m, l)\nwave.epilogue(l, acc)"
    finish = both if lse else "wave.epilogue(*wave.last_step(state))"
    return fill(text, {"parameters": f"{parameters}, scale: fx.Float32", "finish": finish})
