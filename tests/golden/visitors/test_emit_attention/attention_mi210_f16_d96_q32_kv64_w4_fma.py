"""Fused attention O = softmax(Q K^T / sqrt(d)) V for gfx90a: P goes through LDS, the second product is scalar FMA.

    shape       batch 1, heads 32, L_q 4096, L_kv 4096, d 96; run-time but d
    types       f16 in and out, f32 accumulation
    target      mi210 (gfx90a), atom v_mfma_f32_32x32x8f16
    tiles       32 queries a wave, 4 waves a workgroup, 64 keys a step
    registers   at most 512 of 512 a lane
    LDS         57344 of 65536 bytes
    grid        32 x 32 x 1 workgroups, 10 round(s) on 104 CUs
    emitted by  closedform; needs flydsl and torch
"""


import math
import sys
from functools import partial

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects import fly
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, range_constexpr, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec


TARGET = "gfx90a"
DTYPE, TORCH_DTYPE, ELEM_BYTES = fx.Float16, torch.float16, 2
HEAD_DIM, HEAD_DIM_PADDED = 96, 96  # d, and d filled with zeros up to whole atoms
TILE_Q = 32  # query rows of a wave
TILE_KV = 64  # keys of a step
WAVES = 4  # waves of a workgroup
WAVES_PER_SIMD = 1  # occupancy asked of the compiler
THREADS = WAVES * 64
ATOM_M, ATOM_N, ATOM_K = 32, 32, 8  # v_mfma_f32_32x32x8f16
GROUPS = 2  # lane groups: lanes that share a column of C
AB = 4  # elements of A and of B in a lane
ACC = 16  # elements of C in a lane
VEC = 8  # elements of a 16-byte access
ACCESS = 8  # elements of a global access that never straddles a row's end
CHUNK = GROUPS * VEC  # elements that one access of every lane group covers
Q_TILES, KEY_TILES, D_TILES = TILE_Q // ATOM_N, TILE_KV // ATOM_M, HEAD_DIM_PADDED // ATOM_M
D_CHUNKS, KEY_CHUNKS = HEAD_DIM_PADDED // CHUNK, TILE_KV // CHUNK
KEY = (
    0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27, 32, 33, 34, 35, 40, 41, 42, 43, 48, 49, 50, 51, 56, 57,
    58, 59,
)  # key of each score register in lane group 0, from the C map
KEY_GROUP = 4  # keys between neighbouring lane groups
COLUMNS = 2  # columns of O that a lane owns
P_TYPE, P_VEC = fx.Float32, 4  # type of P in LDS, elements of 16 bytes
C_RUN = 4  # consecutive rows in consecutive C registers
P_SWIZZLE_CHUNKS, P_SWIZZLE_ROWS = 8, 1
V_COLS = 4  # consecutive columns of V and O that a lane handles
ROW_CHUNKS = HEAD_DIM_PADDED // VEC  # 16-byte chunks of a row
K_UNITS = TILE_KV * ROW_CHUNKS
V_ROW_UNITS = HEAD_DIM_PADDED // V_COLS
V_KEYS = 2  # keys of the block of V that a thread transposes
V_SHARES = VEC // V_KEYS  # of these blocks side by side in LDS
V_UNITS = TILE_KV // V_KEYS * V_ROW_UNITS  # blocks of V_KEYS keys x V_COLS columns
V_VECTORS = 6  # row vectors of V that a thread keeps under way
SWIZZLE_CHUNKS, SWIZZLE_ROWS = 4, 2  # XOR swizzle of K in LDS
READ, WRITE, MFMA = 0x100, 0x200, 0x8  # kinds of instructions that the scheduler knows
VMEM_READ, TRANS, SHUFFLE, FREE = 0x20, 0x400, 0x80, 0  # loads, powers, permutes, any others
PAIR_SLOTS = 5  # instructions for the exponentials of two scores
EARLY_PAIRS = 16  # of them under the first product
HEADROOM = 8.0  # powers of two that a score may lie above the running maximum
NEG_INF = float("-inf")  # what a key past the end scores
LOG2_E = math.log2(math.e)
MAX_RECORDS = 0xFFFFFFFF  # largest extent of a buffer descriptor, bytes
OUT_OF_RANGE = -1  # offset past every extent
TOLERANCE = 0.004  # against float64, relative to the row's largest value
OFFSET_LIMIT, LENGTH_LIMIT, GRID_LIMIT = 2**31, 2147418112, 65535  # of tile offsets, lengths, grid y and z


def ceil_div(a, b):
    return -(-a // b)


def resource(address, extent):
    """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
    extent = (extent > fx.Int64(0)).select(extent, fx.Int64(0))
    extent = (extent < fx.Int64(MAX_RECORDS)).select(extent, fx.Int64(MAX_RECORDS))
    pointer = fx.inttoptr(fx.PointerType.get(DTYPE.ir_type, fx.AddressSpace.Global, ELEM_BYTES), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))


def stride(tensor, axis):
    """Stride of a [batch, heads, L, d] tensor in elements, 64 bits."""
    return fx.Int64(fx.get_scalar(fx.get(tensor.stride, axis)))


def element_offset(row, row_stride, col):
    """Byte offset of (row, col) inside a tile; a column past the head dim lies past every extent."""
    return (col < HEAD_DIM).select((row * row_stride + col) * ELEM_BYTES, fx.Int32(OUT_OF_RANGE))


def load(source, row, row_stride, col, count):
    """`count` consecutive elements of one row, in accesses that the head dim's alignment allows."""
    width = min(count, ACCESS)
    kind = Vec.make_type(width, DTYPE) if width > 1 else DTYPE.ir_type
    offsets = [element_offset(row, row_stride, col + first) for first in range(0, count, width)]
    parts = [rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(0), 0) for offset in offsets]
    if len(parts) == 1 and width > 1:
        return Vec(parts[0])
    elements = parts if width == 1 else [Vec(part)[i] for part in parts for i in range(width)]
    return Vec.from_elements([DTYPE(x) for x in elements], DTYPE)


def k_row(key):
    """LDS row of a key."""
    return key


def k_place(row, chunk):
    """LDS element of a 16-byte chunk of K; chunks are XORed with the row against bank conflicts."""
    return row * HEAD_DIM_PADDED + (chunk ^ ((row // SWIZZLE_ROWS) % SWIZZLE_CHUNKS)) * VEC


def v_place(key_group, position):
    """LDS element of V: VEC keys of one dv side by side."""
    return (key_group * HEAD_DIM_PADDED + position) * VEC


def v_position(col):
    """Position of a column in the image of V: a lane's V_COLS columns lie V_ROW_UNITS apart."""
    return col % V_COLS * V_ROW_UNITS + col // V_COLS


def lds_load(image, element, count, kind=DTYPE):
    """`count` consecutive elements of an LDS image."""
    return Vec(fx.ptr_load(image + fx.Int32(element), Vec.make_type(count, kind)))


def load_k(source, row_stride, thread):
    """This thread's 16-byte chunks of a K tile, and the operations that load them."""
    chunks = []

    def fetch(unit):
        row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
        chunks.append(load(source, row, row_stride, chunk * VEC, VEC))

    accesses = VEC // ACCESS
    units = [thread + i * THREADS for i in range(ceil_div(K_UNITS, THREADS))]
    return chunks, [(VMEM_READ, accesses, accesses, partial(fetch, unit)) for unit in units]


def store_k(image, chunks, thread):
    def write(unit, values):
        pointer = image + fx.Int32(k_place(k_row(unit // ROW_CHUNKS), unit % ROW_CHUNKS))
        fx.ptr_store(values.ir_value(), pointer)

    return [(WRITE, 1, 1, partial(write, thread + i * THREADS, x)) for i, x in enumerate(chunks)]


def load_v(source, row_stride, thread):
    """This thread's blocks of V_KEYS keys x V_COLS dv of a V tile, one row vector per key."""
    vectors = []

    def fetch(unit, key):
        row, col = unit // V_ROW_UNITS * V_KEYS + key, unit % V_ROW_UNITS * V_COLS
        vectors.append(load(source, row, row_stride, col, V_COLS))

    accesses = ceil_div(V_COLS, ACCESS)
    units = [thread + i * THREADS for i in range(ceil_div(V_UNITS, THREADS))]
    places = [(unit, key) for unit in units for key in range(V_KEYS)]
    return vectors, [(VMEM_READ, accesses, accesses, partial(fetch, *place)) for place in places]


def store_v(image, rows, thread):
    """Transposes each block in registers: V_KEYS keys of one dv become one write."""

    def write(unit, block, j):
        values = Vec.from_elements([row[j] for row in block], DTYPE)
        row, group = unit // V_ROW_UNITS, unit % V_ROW_UNITS
        place = v_place(row // V_SHARES, j * V_ROW_UNITS + group) + row % V_SHARES * V_KEYS
        pointer = image + fx.Int32(place)
        fx.ptr_store(values.ir_value(), pointer)

    out = []
    for i in range(0, len(rows), V_KEYS):
        unit, block = thread + i // V_KEYS * THREADS, rows[i : i + V_KEYS]
        out += [(WRITE, 1, V_KEYS // 2 + 1, partial(write, unit, block, j)) for j in range(V_COLS)]
    return out


def across_groups(value, combine):
    """Combines the lanes that hold the same query: one per lane group."""
    for g in range(GROUPS.bit_length() - 1):
        value = combine(value, gpu.shuffle_xor(value, ATOM_N << g, 64))
    return value


def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))


def masked(tiles, group, keys_left):
    """Scores of keys past the end become -inf, the identity of the maximum."""
    keys_left = keys_left - KEY_GROUP * group
    out = []
    for t, tile in enumerate(tiles):
        keys = KEY[t * ACC : (t + 1) * ACC]
        seen = [(keys_left > key).select(tile[r], fx.Float32(NEG_INF)) for r, key in enumerate(keys)]
        out.append(Vec.from_elements(seen, fx.Float32))
    return out


def larger(top, tile, r):
    """The maximum and two scores of a tile. A NaN is passed over here; the exponentials show it."""
    return fx.maxnumf(fx.maxnumf(top, fx.Float32(tile[r])), fx.Float32(tile[r + 1]))


def finite(m):
    """0 in place of -inf: no difference of infinities is formed, what is not visible contributes exactly 0."""
    return (m == fx.Float32(NEG_INF)).select(fx.Float32(0.0), m)


def rescaled_state(top, m, l, acc, log2_scale):
    new = [fx.maxnumf(a, b) for a, b in zip(m, top, strict=True)]
    factors = [exp2((a - finite(b)) * log2_scale) for a, b in zip(m, new, strict=True)]
    return new, [a * b for a, b in zip(l, factors, strict=True)], rescaled(acc, factors)


@flyc.jit
def raised(top, m, l, acc, log2_scale):
    """(m, l, acc) with the maximum raised, and what was summed rescaled, if that of a query grew past HEADROOM.

    m is one of the scores so far, and every exponential is at most 2^HEADROOM. It is -inf until a visible key comes.
    """
    grown = (top[0] - m[0]) * log2_scale > fx.Float32(HEADROOM)
    for n in range_constexpr(1, Q_TILES):
        grown = grown | ((top[n] - m[n]) * log2_scale > fx.Float32(HEADROOM))
    if fx.Int64(rocdl.ballot(T.i64, grown.ir_value())) != fx.Int64(0):
        m, l, acc = rescaled_state(top, m, l, acc, log2_scale)
    return m, l, acc


def powers(tile, r, shift, log2_scale):
    """2^((s - m) c) of two scores. They are shifted before they are scaled: rounding m c first would leave a residue
    at the maximum that grows with the logits."""
    scaled = (tile.shuffle(tile, [r, r + 1]) - shift) * log2_scale
    return [exp2(fx.Float32(scaled[i])) for i in range(2)]


def part(vector, first, count):
    """`count` consecutive elements of a fragment, as an MFMA takes them."""
    if count == 1:
        return vector[first].ir_value()
    if count == vector.numel:
        return vector.ir_value()
    return vector.shuffle(vector, list(range(first, first + count))).ir_value()


def zeros(count):
    return Vec.filled(count, 0.0, fx.Float32)


def mma(atom, a, b, c):
    """C + A B of one MFMA on fragments."""
    return Vec(fly.mma_atom_call_ssa([Vec.make_type(ACC, fx.Float32)], atom, a, b, c))


def p_place(query, key):
    """LDS element of P[query][key] of this wave, 16-byte chunks XORed against bank conflicts."""
    chunk = (key // P_VEC) ^ ((query // P_SWIZZLE_ROWS) % P_SWIZZLE_CHUNKS)
    return query * TILE_KV + chunk * P_VEC + key % P_VEC


def zero_accumulators():
    return [fx.Float32(0.0)] * (TILE_Q * COLUMNS)


def of_query(values, query):
    """The value of one query, from the lane that holds it."""
    lane_value = values[query // ATOM_N]
    return fx.Float32(rocdl.readlane(T.f32, lane_value.ir_value(), query % ATOM_N))


def rescaled(acc, rescale):
    out = []
    for query in range(TILE_Q):
        if query % 8 == 0:
            rocdl.sched_barrier(0)  # keeps the factors from piling up in scalar registers
        factor = of_query(rescale, query)
        out += [x * factor for x in acc[query * COLUMNS : (query + 1) * COLUMNS]]
    return out


def row_sum(l):
    """Sum of the exponentials of a query: over both halves of each lane's sum and over the lane groups."""
    return across_groups(fx.Float32(l[0]) + fx.Float32(l[1]), lambda a, b: a + b)


def spread(first, second):
    """Two lists of operations as one, each at its own even pace."""
    out, taken = [], 0
    for i, operation in enumerate(first):
        out.append(operation)
        out += second[taken : len(second) * (i + 1) // len(first)]
        taken = len(second) * (i + 1) // len(first)
    return out + second[taken:]


class Order:
    """Operations (kind, count, slots, function) in the order in which they are written, and the request to keep it.

    `count` instructions of a kind that the scheduler can be told about are among the `slots` that they take to issue.
    """

    def __init__(self):
        self.kinds = []

    def do(self, operations):
        for kind, count, _, function in operations:
            self.kinds.append((kind, count))
            function()

    def weave(self, reads, products, others, share, ready=None):
        """The MFMAs of one product with their LDS reads ahead of them, and the others spread over a share of them.

        A group of MFMAs uses one read. Reads are issued two groups ahead, the later one of a pair first: one wait then
        does for both. Others go ahead of a group that is not `ready`.
        """
        reads = [read for i in range(0, len(reads), 2) for read in reversed(reads[i : i + 2])]
        others, mfmas = list(others), sum(len(group) for group in products)
        pace = sum(slots for _, _, slots, _ in others) / (mfmas * share)
        self.do(reads[:2])
        done = spent = 0
        for i, group in enumerate(products):
            while ready is not None and not ready(i):
                spent += others[0][2]
                self.do([others.pop(0)])
            for j, product in enumerate(group):
                self.do([product])
                if i % 2 == 0 and j == 0:
                    self.do(reads[i + 2 : i + 4])
                done += 1
                while others and spent + others[0][2] / 2 <= pace * done:
                    spent += others[0][2]
                    self.do([others.pop(0)])
        self.do(others)

    def keep(self):
        """Asks the scheduler for this order up to here."""
        runs = []
        for kind, count in self.kinds:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += count
            elif count:
                runs.append([kind, count])
        for kind, count in runs:
            rocdl.sched_group_barrier(kind, count, 0)
        self.kinds = []


def fma_chunk(lds_v, lds_p, lane, key, acc):
    """Four keys of O += P V: lane l owns columns l, l + 64, ...; P is read as a broadcast."""
    v = []
    for c in range(COLUMNS):
        col = fx.min(lane + 64 * c, fx.Int32(HEAD_DIM_PADDED - 1))
        v.append([fx.Float32(lds_load(lds_v, v_place(key // VEC, v_position(col)) + key % VEC + e, 1)[0]) for e in range(4)])
    for query in range(TILE_Q):
        if query % 4 == 0:
            rocdl.sched_barrier(0)  # keeps the reads of later queries from piling up in registers
        weights = lds_load(lds_p, p_place(query, key), 4, P_TYPE)
        for e in range(4):
            for c in range(COLUMNS):
                i = query * COLUMNS + c
                acc[i] = fx.math.fma(fx.Float32(weights[e]), v[c][e], acc[i])
    return acc


@flyc.jit
def fma_keys(lds_v, lds_p, lane, acc):
    """All keys of a step, as a loop: unrolled it would not fit the instruction cache."""
    for chunk, carried in range(fx.Int32(0), fx.Int32(TILE_KV // 4), fx.Int32(1), init=acc):
        acc = yield fma_chunk(lds_v, lds_p, lane, fx.Int32(chunk) * 4, [fx.Float32(x) for x in carried])
    return acc


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
    return v, scores, top, m, l, [fx.Float32(x) for x in state]


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
        p_images = shared.allocate(fx.Array[P_TYPE, WAVES * TILE_Q * TILE_KV, 16]).peek().ptr
        self.lds_p = fx.recast_iter(P_TYPE, p_images) + self.wave * (TILE_Q * TILE_KV)
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
        return l, self.values(order, p, acc, [])

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

    def write_p(self, p):
        """Exponentials of this wave to its own LDS image P[query][key]: each lane writes runs of consecutive keys."""
        for n in range(Q_TILES):
            query = n * ATOM_N + self.column
            for i in range(0, KEY_CHUNKS * VEC, C_RUN):
                run = Vec.from_elements(p[n][i : i + C_RUN], fx.Float32)
                fx.ptr_store(run.ir_value(), self.lds_p + fx.Int32(p_place(query, KEY[i] + KEY_GROUP * self.group)))

    def values(self, order, p, acc, others):
        """O += P V by scalar FMA; P goes through LDS."""
        order.do(others)
        self.write_p(p)
        return list(fma_keys(self.lds_v, self.lds_p, self.lane, acc))

    def epilogue(self, l, acc):
        """O = O / l, one column a lane and store; a row without visible keys gives 0."""
        rows, row_stride = self.query_rows(self.O), fx.Int32(stride(self.O, 2))
        totals = [row_sum(x) for x in l]
        inverses = [(t == fx.Float32(0.0)).select(fx.Float32(0.0), fx.Float32(1.0) / t) for t in totals]
        for query in range(TILE_Q):
            inverse = of_query(inverses, query)
            for c in range(COLUMNS):
                self.store([acc[query * COLUMNS + c] * inverse], rows, fx.Int32(query), row_stride, self.lane + 64 * c)

    def store(self, values, rows, row, row_stride, col):
        """Stores consecutive columns of one row in accesses that the head dim's alignment allows."""
        values = Vec.from_elements(values, fx.Float32).to(DTYPE)
        width = min(values.numel, ACCESS)
        for first in range(0, values.numel, width):
            offset = element_offset(row, row_stride, col + first)
            raw_ptr_buffer_store(part(values, first, width), rows, offset.ir_value(), fx.Int32(0).ir_value())


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def attention_kernel(
    Q: fx.Tensor, K: fx.Tensor, V: fx.Tensor, O: fx.Tensor, L_q: fx.Int32, L_kv: fx.Int32, scale: fx.Float32
):
    wave = Wave(Q, K, V, O, L_q, L_kv, scale)
    state = wave.prologue()
    for tile, carried in range(fx.Int32(0), wave.tiles - 1, fx.Int32(1), init=state):
        state = yield wave.step(tile, carried)
    wave.epilogue(*wave.last_step(state))


@flyc.jit
def launch(
    Q: fx.Tensor, K: fx.Tensor, V: fx.Tensor, O: fx.Tensor,
    L_q: fx.Int32, L_kv: fx.Int32, heads: fx.Int32, batch: fx.Int32, scale: fx.Float32,
    stream: fx.Stream = fx.Stream(None),
):
    grid = ((L_q + (WAVES * TILE_Q - 1)) // (WAVES * TILE_Q), heads, batch)
    attention_kernel(Q, K, V, O, L_q, L_kv, scale, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
        grid=grid, block=(THREADS, 1, 1), stream=stream
    )


def run(q, k, v, out=None, stream=None):
    """O = softmax(Q K^T / sqrt(d)) V on the GPU.

    q [batch, heads, L_q, d], k and v [batch, heads, L_kv, d]: torch tensors of TORCH_DTYPE with d = HEAD_DIM and
    any strides along batch, heads and L. Returns `out` (allocated like q when None). Raises ValueError on anything
    else.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    check(q, k, v, out)
    target = out if loadable(out) else torch.empty_like(out, memory_format=torch.contiguous_format)
    q, k, v = (t if loadable(t) else t.clone(memory_format=torch.contiguous_format) for t in (q, k, v))
    batch, heads, L_q, d = q.shape
    launch(q, k, v, target, L_q, k.shape[2], heads, batch, 1.0 / math.sqrt(d), stream_of(q, stream))
    return target if target is out else out.copy_(target)


def check(q, k, v, out):
    """ValueError unless the four tensors describe one attention problem of this kernel."""
    if any(t.dim() != 4 or t.dtype != TORCH_DTYPE for t in (q, k, v, out)):
        raise ValueError(f"q, k, v and out must be 4-D {TORCH_DTYPE} tensors [batch, heads, L, d]")
    batch, heads, L_q, d = q.shape
    if d != HEAD_DIM:
        raise ValueError(f"head dim {d}: this kernel is built for {HEAD_DIM}")
    if k.shape != v.shape or k.shape[:2] != q.shape[:2] or k.shape[3] != d or out.shape != q.shape:
        raise ValueError(f"shapes do not agree: q {q.shape}, k {k.shape}, v {v.shape}, out {out.shape}")
    if min(batch, heads, L_q, k.shape[2]) < 1 or max(heads, batch) > GRID_LIMIT:
        raise ValueError(f"batch and heads must be 1 to {GRID_LIMIT} and lengths at least 1: q {q.shape}, k {k.shape}")
    if max(L_q, k.shape[2]) > LENGTH_LIMIT:
        raise ValueError(f"lengths are limited to {LENGTH_LIMIT}: q {q.shape}, k {k.shape}")
    if any(t.device != q.device for t in (k, v, out)):
        raise ValueError(f"q, k, v and out must be on one GPU: {[str(t.device) for t in (q, k, v, out)]}")


def loadable(tensor):
    """Whether the kernel can address the tensor in place: unit stride along d, rows aligned for one access, and a
    tile of rows within 31-bit byte offsets."""
    rows, columns = max(TILE_Q, TILE_KV), tensor.shape[3]
    access = math.gcd(columns, 16 // tensor.element_size())
    return (
        tensor.stride(3) == 1
        and tensor.stride(2) >= columns
        and rows * tensor.stride(2) * tensor.element_size() < OFFSET_LIMIT
        and all(tensor.stride(i) % access == 0 for i in range(3))
        and tensor.data_ptr() % (access * tensor.element_size()) == 0
    )


def reference(q, k, v):
    """The same attention in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def example(device, L_q=4096, L_kv=4096, heads=32, batch=1):
    """Normal random inputs of the emitted shape."""
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = ((batch, heads, L_q, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM), (batch, heads, L_kv, HEAD_DIM))
    return [torch.randn(s, generator=generator).to(device, TORCH_DTYPE) for s in shapes]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    q, k, v = example("cpu", 2, 2, 2, 2)
    launch(q, k, v, torch.empty_like(q), 2, 2, 2, 2, 1.0 / math.sqrt(HEAD_DIM))


def main():
    """Checks a sample of query rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    q, k, v = example("cuda")
    out = run(q, k, v)
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], 256)).long().unique()
    error = max_error(out[:, :, rows].cpu(), reference(q[:, :, rows].cpu(), k.cpu(), v.cpu()))
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(q, k, v, out))
    flops = 4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * HEAD_DIM
    print(f"median {ms * 1e3:.1f} us, {flops / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1


def stream_of(tensor, stream):
    """The stream of a launch; None: the current one of the tensor's GPU. ValueError for a tensor that is on none."""
    if not tensor.is_cuda:
        raise ValueError(f"tensors must be on a GPU, not on {tensor.device}")
    return fx.Stream(torch.cuda.current_stream(tensor.device) if stream is None else stream)


def max_error(got, want):
    """Largest error relative to the largest finite magnitude of the row; infinite where only one is not finite."""
    scale = want.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    same = (got == want) | (got.isnan() & want.isnan())
    error = ((got.double() - want).abs() / scale).nan_to_num(math.inf, math.inf).masked_fill(same, 0.0)
    return error.max().item() if want.numel() else 0.0


def is_target():
    """Whether the first GPU of this machine is a TARGET; says so where it is not."""
    on_rocm = torch.version.hip is not None and torch.cuda.is_available()
    arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] if on_rocm else None
    if arch != TARGET:
        print(f"no {TARGET} GPU here (found {arch or 'none'}): nothing was run")
    return arch == TARGET


def median_ms(call):
    """Median of 20 calls on the GPU in milliseconds, after 5 that warm up."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(25):
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[5:])[10]


if __name__ == "__main__":
    sys.exit(main())
