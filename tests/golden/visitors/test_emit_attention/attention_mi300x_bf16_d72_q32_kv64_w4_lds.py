"""Fused attention O = softmax(Q K^T / sqrt(d)) V for gfx942: P goes through LDS between the two MFMAs.

    shape       batch 1, heads 32, L_q 4096, L_kv 4096, d 72; run-time but d
    types       bf16 in and out, f32 accumulation
    target      mi300x (gfx942), atom v_mfma_f32_32x32x8_bf16
    tiles       32 queries a wave, 4 waves a workgroup, 64 keys a step
    registers   at most 322 of 512 a lane
    LDS         40960 of 65536 bytes
    grid        32 x 32 x 1 workgroups, 4 round(s) on 304 CUs
    emitted by  closedform; needs flydsl and torch
"""


import math
import sys

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects import fly
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec


TARGET = "gfx942"
DTYPE, TORCH_DTYPE, ELEM_BYTES = fx.BFloat16, torch.bfloat16, 2
HEAD_DIM, HEAD_DIM_PADDED = 72, 96  # d, and d filled with zeros up to whole atoms
TILE_Q = 32  # query rows of a wave
TILE_KV = 64  # keys of a step
WAVES = 4  # waves of a workgroup
WAVES_PER_SIMD = 1  # occupancy asked of the compiler
THREADS = WAVES * 64
ATOM_M, ATOM_N, ATOM_K = 32, 32, 8  # v_mfma_f32_32x32x8_bf16
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
C_ROW = (0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)  # row of each C register in lane group 0
DV_GROUP = 16  # columns of O between neighbouring lane groups
P_TYPE, P_VEC = fx.BFloat16, 8  # type of P in LDS, elements of 16 bytes
C_RUN = 4  # consecutive rows in consecutive C registers
P_SWIZZLE_CHUNKS, P_SWIZZLE_ROWS = 8, 1
V_COLS = 4  # consecutive columns of V and O that a lane handles
ROW_CHUNKS = HEAD_DIM_PADDED // VEC  # 16-byte chunks of a row
K_UNITS = TILE_KV * ROW_CHUNKS
V_ROW_UNITS = HEAD_DIM_PADDED // V_COLS
V_UNITS = TILE_KV // VEC * V_ROW_UNITS  # blocks of VEC keys x V_COLS columns
V_VECTORS = 8  # row vectors of V that a thread keeps under way
SWIZZLE_CHUNKS, SWIZZLE_ROWS = 4, 2  # XOR swizzle of K in LDS
NEG_INF = float("-inf")  # what a key past the end scores
LOG2_E = math.log2(math.e)
MAX_RECORDS = 0xFFFFFFFF  # largest extent of a buffer descriptor, bytes
OUT_OF_RANGE = -1  # offset past every extent
TOLERANCE = 0.03  # against float64, relative to the row's largest value
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


def lds_load(image, element, count, kind=DTYPE):
    """`count` consecutive elements of an LDS image."""
    return Vec(fx.ptr_load(image + fx.Int32(element), Vec.make_type(count, kind)))


def store_all(values, pointers):
    for value, pointer in zip(values, pointers, strict=True):
        fx.ptr_store(value, pointer)


@flyc.jit
def store_if(active, values, pointers):
    if active:
        store_all(values, pointers)


def load_k(source, row_stride, thread):
    """This thread's 16-byte chunks of a K tile."""
    chunks = []
    for i in range(ceil_div(K_UNITS, THREADS)):
        unit = thread + i * THREADS
        row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
        chunks.append(load(source, row, row_stride, chunk * VEC, VEC))
    return chunks


def store_k(image, chunks, thread):
    for i, chunk_values in enumerate(chunks):
        unit = thread + i * THREADS
        pointer = image + fx.Int32(k_place(k_row(unit // ROW_CHUNKS), unit % ROW_CHUNKS))
        store_all([chunk_values.ir_value()], [pointer])


def load_v(source, row_stride, thread):
    """This thread's blocks of VEC keys x V_COLS dv of a V tile, one row vector per key."""
    rows = []
    for i in range(ceil_div(V_UNITS, THREADS)):
        unit = thread + i * THREADS
        key_group, col = unit // V_ROW_UNITS, (unit % V_ROW_UNITS) * V_COLS
        for key in range(VEC):
            rows.append(load(source, key_group * VEC + key, row_stride, col, V_COLS))
    return rows


def store_v(image, rows, thread):
    """Transposes each block in registers: VEC keys of one dv become one 16-byte write."""
    for i in range(ceil_div(V_UNITS, THREADS)):
        unit = thread + i * THREADS
        key_group, group = unit // V_ROW_UNITS, unit % V_ROW_UNITS
        values, pointers = [], []
        for j in range(V_COLS):
            keys = Vec.from_elements([rows[i * VEC + key][j] for key in range(VEC)], DTYPE)
            values.append(keys.ir_value())
            pointers.append(image + fx.Int32(v_place(key_group, j * V_ROW_UNITS + group)))
        store_if(unit < V_UNITS, values, pointers)


def across_groups(value, combine):
    """Combines the lanes that hold the same query: one per lane group."""
    for g in range(GROUPS.bit_length() - 1):
        value = combine(value, gpu.shuffle_xor(value, ATOM_N << g, 64))
    return value


def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))


def rounded(values):
    """Non-negative f32 to bf16, nearest, ties away from zero: half an ulp is added, high halves kept."""
    words = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        low, high = (x.bitcast(fx.Int32) + 0x8000 for x in (low, high))
        words.append(fx.Int32(rocdl.perm_b32(high, low, 0x07060302)))
    return Vec.from_elements(words, fx.Int32).bitcast(DTYPE)


def masked(scores, group, keys_left):
    """Scores of keys past the end become -inf, the identity of the maximum."""
    keys_left = keys_left - KEY_GROUP * group
    for i, key in enumerate(KEY):
        visible = keys_left > key
        for tile in scores:
            tile[i] = visible.select(tile[i], fx.Float32(NEG_INF))
    return scores


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


def dv(tile, row):
    """Column of O that row `row` of O^T tile `tile` stands for."""
    position = tile * ATOM_M + row
    return position % V_ROW_UNITS * V_COLS + position // V_ROW_UNITS


def p_place(query, key):
    """LDS element of P[query][key] of this wave, 16-byte chunks XORed against bank conflicts."""
    chunk = (key // P_VEC) ^ ((query // P_SWIZZLE_ROWS) % P_SWIZZLE_CHUNKS)
    return query * TILE_KV + chunk * P_VEC + key % P_VEC


def zero_accumulators():
    return [zeros(ACC)] * (Q_TILES * D_TILES)


def rescaled(acc, rescale):
    """O^T keeps one query a lane, so one factor a lane rescales it."""
    return [acc[i] * rescale[i // D_TILES] for i in range(Q_TILES * D_TILES)]


def split_state(state):
    """Loop-carried values: the V tile under way, running maxima, running sums, accumulators."""
    state = list(state)
    v, state = [Vec(x) for x in state[:V_VECTORS]], state[V_VECTORS:]
    m, l = ([fx.Float32(x) for x in state[i * Q_TILES : (i + 1) * Q_TILES]] for i in range(2))
    return v, m, l, [Vec(x) for x in state[2 * Q_TILES :]]


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

    def write_p(self, p):
        """Exponentials of this wave to its own LDS image P[query][key]: each lane writes runs of consecutive keys."""
        for n in range(Q_TILES):
            query = n * ATOM_N + self.column
            for i in range(0, KEY_CHUNKS * VEC, C_RUN):
                run = rounded(p[n][i : i + C_RUN])
                fx.ptr_store(run.ir_value(), self.lds_p + fx.Int32(p_place(query, KEY[i] + KEY_GROUP * self.group)))

    def read_p(self, n, s):
        """Operand B of the second product: VEC consecutive keys of this lane's query."""
        key = s * CHUNK + self.group * VEC
        return lds_load(self.lds_p, p_place(n * ATOM_N + self.column, key), VEC)

    def values(self, p, acc):
        """O^T += V^T P^T: P goes through LDS and comes back as operand B in natural key order."""
        self.write_p(p)
        p = [[self.read_p(n, s) for s in range(KEY_CHUNKS)] for n in range(Q_TILES)]
        for s in range(KEY_CHUNKS):
            for d in range(D_TILES):
                v = lds_load(self.lds_v, v_place(s * GROUPS + self.group, d * ATOM_M + self.column), VEC)
                for j in range(0, VEC, AB):
                    for n in range(Q_TILES):
                        i = n * D_TILES + d
                        acc[i] = mma(self.atom, part(v, j, AB), part(p[n][s], j, AB), acc[i])
        return acc

    def epilogue(self, state):
        """O = O^T / l, V_COLS consecutive columns at a time; a row without visible keys gives 0."""
        _, _, l, acc = split_state(state)
        rows, row_stride = self.query_rows(self.O), fx.Int32(stride(self.O, 2))
        for n in range(Q_TILES):
            total = across_groups(l[n], lambda a, b: a + b)
            inverse = (total == fx.Float32(0.0)).select(fx.Float32(0.0), fx.Float32(1.0) / total)
            columns = {}
            for d in range(D_TILES):
                for r in range(ACC):
                    columns[dv(d, C_ROW[r])] = fx.Float32(acc[n * D_TILES + d][r]) * inverse
            for first in range(0, HEAD_DIM_PADDED, V_COLS):
                if first in columns:
                    out = [columns[first + j] for j in range(V_COLS)]
                    col = first + DV_GROUP * self.group
                    self.store(out, rows, n * ATOM_N + self.column, row_stride, col)

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
    wave.epilogue(wave.step(wave.tiles - 1, state, last=True))


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
    q, k, v = (t if loadable(t) else t.contiguous() for t in (q, k, v))
    batch, heads, L_q, d = q.shape
    stream = torch.cuda.current_stream(q.device) if stream is None and q.is_cuda else stream
    launch(q, k, v, target, L_q, k.shape[2], heads, batch, 1.0 / math.sqrt(d), fx.Stream(stream))
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
    if any(t.device != q.device for t in (k, v, out)) or not q.is_cuda:
        raise ValueError(f"q, k, v and out must be on one GPU: {[str(t.device) for t in (q, k, v, out)]}")


def loadable(tensor):
    """Whether the kernel can address the tensor in place: unit stride along d, rows aligned for one access, and a
    tile of rows within 31-bit byte offsets."""
    rows = max(TILE_Q, TILE_KV)
    row_stride = tensor.stride(2)
    return (
        tensor.stride(3) == 1
        and row_stride >= HEAD_DIM
        and rows * row_stride * ELEM_BYTES < OFFSET_LIMIT
        and all(tensor.stride(i) % ACCESS == 0 for i in range(3))
        and tensor.data_ptr() % (ACCESS * ELEM_BYTES) == 0
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


def max_error(got, want):
    """Largest error relative to the largest magnitude of the row."""
    scale = want.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return ((got.double() - want).abs() / scale).max().item()


def main():
    """Checks a sample of query rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    on_rocm = torch.version.hip is not None and torch.cuda.is_available()
    arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] if on_rocm else None
    if arch != TARGET:
        print(f"no {TARGET} GPU here (found {arch or 'none'}): nothing was run")
        return 3
    q, k, v = example("cuda")
    out = run(q, k, v)
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], 256)).long().unique()
    error = max_error(out[:, :, rows].cpu(), reference(q[:, :, rows].cpu(), k.cpu(), v.cpu()))
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(25):
        begin.record()
        run(q, k, v, out)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    ms = sorted(times[5:])[10]
    flops = 4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * HEAD_DIM
    print(f"median {ms * 1e3:.1f} us, {flops / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
