"""Wave level of emitted attention: the online softmax and the step over one K/V tile."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["kernel", "softmax", "wave"]


def softmax(convert: str) -> str:
    """Mask, row maximum and exponentials of one query tile. `convert`: "none", "round" or "bits" (bf16 by hand)."""
    rounding = {
        "none": "",
        "round": piece(
            '''
            def rounded(values):
                """f32 to the input type, nearest even."""
                return Vec.from_elements(values, fx.Float32).to(DTYPE)
            '''
        ),
        "bits": piece(
            '''
            def rounded(values):
                """Non-negative f32 to bf16, nearest, ties away from zero: half an ulp is added, high halves kept."""
                words = []
                for low, high in zip(values[::2], values[1::2], strict=True):
                    low, high = (x.bitcast(fx.Int32) + 0x8000 for x in (low, high))
                    words.append(fx.Int32(rocdl.perm_b32(high, low, 0x07060302)))
                return Vec.from_elements(words, fx.Int32).bitcast(DTYPE)
            '''
        ),
    }[convert]
    return join(
        piece(
            '''
            def across_groups(value, combine):
                """Combines the lanes that hold the same query: one per lane group."""
                for g in range(GROUPS.bit_length() - 1):
                    value = combine(value, gpu.shuffle_xor(value, ATOM_N << g, 64))
                return value
            '''
        ),
        piece(
            """
            def exp2(x):
                return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))
            """
        ),
        rounding,
        piece(
            '''
            def masked(scores, group, keys_left):
                """Scores of keys past the end become -inf, the identity of the maximum."""
                keys_left = keys_left - KEY_GROUP * group
                for i, key in enumerate(KEY):
                    visible = keys_left > key
                    for tile in scores:
                        tile[i] = visible.select(tile[i], fx.Float32(NEG_INF))
                return scores
            '''
        ),
        piece(
            '''
            def softmax_update(scores, m, l, log2_scale):
                """One tile of the online softmax in base 2: exponentials, new maximum, new sum, rescale factor.

                m is -inf until a visible key comes; no difference of infinities is formed then, so a tile without
                visible keys contributes exactly 0. Scores are shifted before they are scaled: rounding m * scale
                first would leave a residue at the maximum that grows with the logits.
                """
                m_new = m
                for s in scores:
                    m_new = fx.maxnumf(m_new, s)
                m_new = across_groups(m_new, fx.maxnumf)
                shift = (m_new == fx.Float32(NEG_INF)).select(fx.Float32(0.0), m_new)
                rescale = exp2((m - shift) * log2_scale)
                p = [exp2((s - shift) * log2_scale) for s in scores]
                l = l * rescale
                for x in p:
                    l = l + x
                return p, m_new, l, rescale
            '''
        ),
    )


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
        self.rows = fx.Int64(L_q - self.first_row)
        self.L_kv = L_kv
        self.tiles = (L_kv + (TILE_KV - 1)) // TILE_KV
        self.log2_scale = scale * LOG2_E
        self.atom = fx.make_mma_atom(rocdl.MFMA(ATOM_M, ATOM_N, ATOM_K, DTYPE))
        self.O = O
        self.Q = Q
        self.K, self.V = self.head_of(K), self.head_of(V)
        self.k_stride, self.v_stride = stride(K, 2), stride(V, 2)

    def head_of(self, tensor):
        """64-bit address of row 0 of this batch entry and head."""
        offset = self.batch * stride(tensor, 0) + self.head * stride(tensor, 1)
        return fx.Int64(fx.ptrtoint(fx.get_iter(tensor))) + offset * ELEM_BYTES

    def query_rows(self, tensor):
        """This wave's rows of Q or O: the extent ends with the last valid row, nothing past it is touched."""
        row_stride = stride(tensor, 2)
        address = self.head_of(tensor) + fx.Int64(self.first_row) * row_stride * ELEM_BYTES
        extent = ((self.rows - 1) * row_stride + HEAD_DIM) * ELEM_BYTES
        return resource(address, (self.rows > fx.Int64(0)).select(extent, fx.Int64(0)))

    def kv_tile(self, address, row_stride, tile):
        """Rows of one K or V tile: rebased in 64 bits, so offsets inside a tile fit 32."""
        first = fx.Int64(tile) * TILE_KV
        rows = fx.Int64(self.L_kv) - first
        start = address + first * row_stride * ELEM_BYTES
        return resource(start, ((rows - 1) * row_stride + HEAD_DIM) * ELEM_BYTES)

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
        """First K tile to LDS, first V tile under way; the running state is the identity of the softmax monoid."""
        self.load_q()
        k, v = self.fetch_k(fx.Int32(0)), self.fetch_v(fx.Int32(0))
        store_k(self.lds_k, k, self.thread)
        gpu.barrier()
        m = [fx.Float32(NEG_INF)] * Q_TILES
        l = [fx.Float32(0.0)] * Q_TILES
        return [*[x.ir_value() for x in v], *m, *l, *zero_accumulators()]

    def step(self, tile, state, last=False):
        """One K/V tile: V to LDS, S^T = K Q^T, next K under way, softmax, O^T += V^T P^T, next V under way.

        Only the last tile can be clipped, so only there scores are masked.
        """
        v, m, l, acc = split_state(state)
        store_v(self.lds_v, v, self.thread)
        if not last:
            k = self.fetch_k(tile + 1)
        scores = self.scores()
        gpu.barrier()
        if not last:
            store_k(self.lds_k, k, self.thread)
            v = self.fetch_v(tile + 1)
        p, rescale = [None] * Q_TILES, [None] * Q_TILES
        if last:
            scores = masked(scores, self.group, self.L_kv - tile * TILE_KV)
        for n in range(Q_TILES):
            p[n], m[n], l[n], rescale[n] = softmax_update(scores[n], m[n], l[n], self.log2_scale)
        acc = self.values(p, rescaled(acc, rescale))
        if not last:
            gpu.barrier()
        return [*[x.ir_value() for x in v], *m, *l, *acc]

    def scores(self):
        """S^T of this tile, per query tile a list of scores in the order of KEY."""
        tiles = [[zeros(ACC) for _ in range(KEY_TILES)] for _ in range(Q_TILES)]
        for t in range(KEY_TILES):
            for s in range(D_CHUNKS):
                row = t * ATOM_M + self.column
                k = lds_load(self.lds_k, k_place(row, s * GROUPS + self.group), VEC)
                for j in range(0, VEC, AB):
                    for n in range(Q_TILES):
                        tiles[n][t] = mma(self.atom, part(k, j, AB), part(self.q[n][s], j, AB), tiles[n][t])
        return [[fx.Float32(tile[r]) for tile in tiles[n] for r in range(ACC)] for n in range(Q_TILES)]
'''

_SPLIT = '''
def split_state(state):
    """Loop-carried values: the V tile under way, running maxima, running sums, accumulators."""
    state = list(state)
    v, state = [Vec(x) for x in state[:V_VECTORS]], state[V_VECTORS:]
    m, l = ([fx.Float32(x) for x in state[i * Q_TILES : (i + 1) * Q_TILES]] for i in range(2))
    return v, m, l, [@carried@(x) for x in state[2 * Q_TILES :]]
'''

_LDS_P = """\
        p_images = shared.allocate(fx.Array[P_TYPE, WAVES * TILE_Q * TILE_KV, 16]).peek().ptr
        self.lds_p = fx.recast_iter(P_TYPE, p_images) + self.wave * (TILE_Q * TILE_KV)
"""


def wave(through_lds: bool, values: str, carried: str) -> str:
    """The Wave class. `through_lds`: the exponentials have an LDS image (variants lds and fma); `values` are the
    methods of the second product, `carried` the type of one accumulator."""
    body = piece(_WAVE)
    body = body.replace("        @lds_p@\n", _LDS_P if through_lds else "")
    return join(piece(_SPLIT).replace("@carried@", carried), body + "\n\n" + values)


def kernel() -> str:
    """The kernel: prologue, loop over all tiles but the last, the last tile, epilogue."""
    return piece(
        """
        @flyc.kernel(known_block_size=[THREADS, 1, 1])
        def attention_kernel(
            Q: fx.Tensor, K: fx.Tensor, V: fx.Tensor, O: fx.Tensor, L_q: fx.Int32, L_kv: fx.Int32, scale: fx.Float32
        ):
            wave = Wave(Q, K, V, O, L_q, L_kv, scale)
            state = wave.prologue()
            for tile, carried in range(fx.Int32(0), wave.tiles - 1, fx.Int32(1), init=state):
                state = yield wave.step(tile, carried)
            wave.epilogue(wave.step(wave.tiles - 1, state, last=True))
        """
    )
