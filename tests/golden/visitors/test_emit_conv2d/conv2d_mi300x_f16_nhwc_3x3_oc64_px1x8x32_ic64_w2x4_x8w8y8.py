"""Direct 2D convolution Y = W * X for gfx942.

    shape       X 8 x 128 x 56 x 56, Y 8 x 128 x 56 x 56 (run-time)
    filter      3 x 3, stride 1 x 1, dilation 1 x 1, 1 group(s), pads (1, 1, 1, 1) (run-time)
    layout      NHWC
    types       f16 in, f32 accumulation, f16 out
    target      mi300x (gfx942), atom v_mfma_f32_32x32x8_f16
    tiles       64 channels x 1 x 8 x 32 pixels x 64 channels, waves 2 x 4
    registers   at most 145 of 256 a lane, 2 wave(s) per SIMD
    LDS         65344 of 65536 bytes
    grid        224 workgroups, 1 round(s) on 304 CUs
    emitted by  closedform; needs flydsl and torch
"""


import math
import sys

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir import ir
from flydsl._mlir.dialects import rocdl as operations
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec


TARGET = "gfx942"
TORCH_DTYPE, ELEM_BYTES = torch.float16, 2
TORCH_OUT, OUT_BYTES = torch.float16, 2
ACC_TYPE, WORK, OUT = fx.Float32, fx.Float32, fx.Float16  # of sums, epilogue, Y
KERNEL, STRIDE, DILATION = (3, 3), (1, 1), (1, 1)  # rows, columns
PAD, GROUPS_OF_CHANNELS = (1, 1, 1, 1), 1  # defaults of run(): above, below, left, right
AXES = (0, 3, 1, 2)  # of images, channels, rows, columns
TILE_OC, TILE_IC = 64, 64  # channels of a workgroup, of a slice
TILE_N, TILE_H, TILE_W = 1, 8, 32  # pixels of a workgroup
WAVES_OC, WAVES_PX = 2, 4
THREADS = WAVES_OC * WAVES_PX * 64
WAVES_PER_SIMD = 2  # occupancy that the register budget aims at
ATOM_MN = 32  # v_mfma_f32_32x32x8_f16
A_ATOMS, B_ATOMS = 2, 1  # of pixels and of channels of a wave
GROUPS = 2  # lanes that share a pixel, or a row of the filter
ACC = 16  # elements of Y in a lane
VEC = 8  # elements of a 16-byte chunk
ROW_CHUNKS, ROW_WORDS = 8, 32  # of an image row of the filter
STEPS, READS, MFMAS = 4, 1, 2  # of a tap, operand, chunk
MFMA_WORDS = 2  # of an MFMA operand
COLUMN_RUN, COLUMN_SPAN = 8, 32  # channels of a lane in a row, of its groups
SPAN_ATOMS = COLUMN_SPAN // ATOM_MN  # atoms whose channels are stored together
TAP_COLS, TAPS = 3, 9
STRIDE_H, STRIDE_W = 1, 1
DILATION_H, DILATION_W = 1, 1  # elements between taps
ROW_PHASES, ROW_SPAN = 1, 10  # rows of the patch, by phase
COL_PHASES, COL_SPAN = 1, 34
PATCH_ROWS, PATCH_COLS = ROW_PHASES * ROW_SPAN, COL_PHASES * COL_SPAN
ROW_PIXELS, PIXELS = 34, 340  # that are written: of a row, of the patch
PIXEL_WORDS, PITCH, IMAGE = 36, 34, 340  # in LDS
FRAGMENTS = READS * (A_ATOMS + B_ATOMS)  # chunks that a step reads
SWIZZLE_FIRST, SWIZZLE_SECOND, SWIZZLE_MASK = 0, 3, 7  # XOR of chunk and row of the filter
PATCH_WORDS, FILTER_WORDS = 12240, TILE_OC * ROW_WORDS
PATCH_STAGED, FILTER_STAGED = 6, 1  # chunks under way of a thread
PATCH_UNITS = 6  # chunks of the patch of a thread
X_READ, W_READ, STORE = 8, 8, 8  # elements of an access
CHANNELS = 8  # that exist or do not together
ROW_REACH, COL_REACH = 3 + 10, 3 + 34  # of a tile, at most
GRID_X = 65536  # workgroups along x
OFFSET_LIMIT = 2**31 - 16  # of byte offsets inside a tile
OUT_OF_RANGE = 2**31 - 16  # offset past every extent
MFMA, READ, WRITE, LOAD = 0x8, 0x100, 0x200, 0x20  # kinds of operations to the scheduler
TOLERANCE = 0.001  # of main(), relative to the largest value


def ceil_div(a, b):
    return -(-a // b)


class Tile:
    """What a workgroup computes: its first output channel of a group, image, row and column; nothing past the last."""

    def __init__(self, N, OH, OW, OC, groups):
        tiles_oc, tiles_h, tiles_w = ceil_div(OC, TILE_OC), ceil_div(OH, TILE_H), ceil_div(OW, TILE_W)
        number = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
        self.active = number < tiles_oc * groups * tiles_h * tiles_w * ceil_div(N, TILE_N)
        number = self.active.select(number, fx.Int32(0))
        self.oc, number = number % tiles_oc * TILE_OC, number // tiles_oc
        self.group, number = number % groups, number // groups
        self.w, number = number % tiles_w * TILE_W, number // tiles_w
        self.h, self.n = number % tiles_h * TILE_H, number // tiles_h * TILE_N
        zero = fx.Int32(0)
        self.filters = self.active.select(smaller(OC - self.oc, fx.Int32(TILE_OC)), zero)
        self.images, self.rows, self.cols = N - self.n, OH - self.h, OW - self.w


def inside_of(offset, chunk, access, left, step):
    """(offset, bytes beyond it) of the accesses of a chunk whose elements lie `step` bytes apart: CHANNELS of them are
    there or, with fewer `left`, past the end.
    """
    out = []
    for first in range(0, VEC, CHANNELS):
        start = (chunk * VEC + first < left).select(offset, fx.Int32(OUT_OF_RANGE))
        out += [(start, e * step) for e in range(first, first + CHANNELS, access)]
    return out


def load_chunk(source, places, access):
    """A chunk, by accesses of `access` elements at (offset, bytes beyond it)."""
    parts = [load(source, [offset], access * ELEM_BYTES, beyond) for offset, beyond in places]
    return chunk_of(sum(parts, []))


def element(number, span, stride, dilation):
    """Elements from the first one of the tile to a pixel of the patch, whose pixels are sorted by phase."""
    return number * stride


def shift(tap, phases, span, stride, dilation):
    """Pixels of the patch from those of the first tap to those of a tap."""
    return tap


def resource(address, extent):
    """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
    extent = fx.Int64((extent > 0).select(extent, fx.Int32(0)))
    pointer = fx.inttoptr(fx.PointerType.get(T.i32, fx.AddressSpace.Global, 4), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))


def address_of(tensor):
    return fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))


def thread_number():
    return fx.Int32(gpu.thread_idx.x)


def smaller(a, b):
    return (a < b).select(a, b)


def words(count):
    return Vec.make_type(count, fx.Int32) if count > 1 else T.i32


def chunk_of(parts):
    return Vec.from_elements(parts, fx.Int32)


def load(source, offsets, access, beyond=0):
    """The 32-bit words at `offsets`, `access` bytes each, all of them `beyond` bytes further on."""
    out = []
    for offset in offsets:
        part = rocdl.raw_ptr_buffer_load(words(access // 4), source, offset, fx.Int32(beyond), 0)
        out += [Vec(part)[i] for i in range(access // 4)] if access > 4 else [fx.Int32(part)]
    return out


def whole_chunk(pointer):
    """The place of a chunk in LDS is a multiple of 16 bytes, which the compiler does not always see in its XORs."""
    return fx.recast_iter(fx.PointerType.get(T.i32, fx.AddressSpace.Shared, 16), pointer)


@flyc.jit
def store_if(active, value, pointer):
    if active:
        fx.ptr_store(value, pointer)


def swizzle(row):
    """What the chunks of an image row are XORed with, so that no access of a wave meets a bank twice."""
    return ((row >> SWIZZLE_FIRST) ^ (row >> SWIZZLE_SECOND)) & SWIZZLE_MASK


def chunk_place(row, chunk):
    """First word of a chunk in an image."""
    return row * ROW_WORDS + (chunk ^ swizzle(row)) * 4


def column_row(column):
    """Image row of a column of op(B): the order that leaves each lane COLUMN_RUN consecutive columns of D."""
    return (column & ~0xc) | ((column & 0x8) >> 1) | ((column & 0x4) << 1)


class Operand:
    """A tile of one operand: `rows` image rows of ROW_CHUNKS chunks, k contiguous.

    `place` is the first word of its image in an LDS buffer. Waves take turns along the rows, `turn` rows at a time, so
    that an atom's rows differ from the wave's first one in bits of their own and one XOR finds a chunk's place.
    """

    def __init__(self, lds, place, rows, turn, waves, wave, lane):
        self.lds, self.place, self.rows, self.turn, self.waves = lds, place, rows, turn, waves
        row = wave * turn + lane % ATOM_MN
        chunk = lane // ATOM_MN ^ swizzle(row)
        self.base = {}
        for t in range(rows // (waves * ATOM_MN)):
            for read in range(STEPS * READS):
                x = self.key(t, read)
                if x not in self.base:
                    self.base[x] = row * ROW_WORDS + (chunk ^ x) * 4

    def row_of(self, t):
        """Rows from the wave's first one to atom t."""
        row = t * ATOM_MN
        return row // self.turn * (self.waves * self.turn) + row % self.turn

    def key(self, t, read):
        """The part of a chunk's place that atom and read decide."""
        return read * GROUPS ^ swizzle(self.row_of(t))

    def bases_of(self, buffer):
        """Word offsets of this lane in an LDS buffer, by key."""
        return {x: base + buffer for x, base in self.base.items()}

    def fragment(self, bases, t, read):
        """Four words of k of this lane's row of atom t."""
        pointer = self.lds + bases[self.key(t, read)] + fx.Int32(self.place + self.row_of(t) * ROW_WORDS)
        return Vec(fx.ptr_load(whole_chunk(pointer), words(4)))


class Patch:
    """The pixels of X that a tile of outputs reaches: in LDS once, with TILE_IC channels, for all taps.

    A pixel past an edge of the image is a load past the end, and so 0.
    """

    def __init__(self, lds, X, tile, N, IH, IW, C, pad_h, pad_w, x_n, x_h, x_w, x_c, thread, wave_px, lane):
        self.lds, self.C, self.x_c = lds, C, x_c
        first_h, first_w = tile.h * STRIDE_H - pad_h, tile.w * STRIDE_W - pad_w
        start = fx.Int64(tile.n) * x_n + fx.Int64(first_h) * fx.Int64(x_h) + fx.Int64(first_w) * fx.Int64(x_w)
        start = start + fx.Int64(tile.group * C) * x_c
        self.address = address_of(X) + start * ELEM_BYTES
        self.units = []
        for i in range(PATCH_UNITS):
            unit = thread + i * THREADS
            pixel, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
            col, row, n = pixel % ROW_PIXELS, pixel // ROW_PIXELS % PATCH_ROWS, pixel // (ROW_PIXELS * PATCH_ROWS)
            place = (n * IMAGE + row * PITCH + col) * PIXEL_WORDS + chunk * 4
            h, w = element(row, ROW_SPAN, STRIDE_H, DILATION_H), element(col, COL_SPAN, STRIDE_W, DILATION_W)
            inside = (fx.Int32(0) <= first_h + h) & (first_h + h < IH) & (fx.Int32(0) <= first_w + w) & (first_w + w < IW)
            offset = n * fx.Int32(x_n) + h * x_h + w * x_w + chunk * VEC * x_c
            inside = inside & (tile.n + n < N)
            offset = inside.select(offset * ELEM_BYTES, fx.Int32(OUT_OF_RANGE))
            self.units.append((pixel, place, chunk, offset))
        pixel = wave_px * ATOM_MN + lane % ATOM_MN
        self.group = lane // ATOM_MN
        self.base = self.pixel_place(pixel) * PIXEL_WORDS + self.group * 4

    def pixel_place(self, pixel):
        """Place in the patch of what an output of the tile reads at the first tap."""
        n, h, w = pixel // (TILE_H * TILE_W), pixel // TILE_W % TILE_H, pixel % TILE_W
        return n * IMAGE + h * PITCH + w

    def tap_base(self, tap):
        """This lane's first word of its pixels at a tap."""
        row, col = tap // TAP_COLS, tap % TAP_COLS
        rows = shift(row, ROW_PHASES, ROW_SPAN, STRIDE_H, DILATION_H)
        cols = shift(col, COL_PHASES, COL_SPAN, STRIDE_W, DILATION_W)
        return self.base + (rows * PITCH + cols) * PIXEL_WORDS

    def fragment(self, base, t, read):
        """Four words of channels of this lane's pixel of atom t."""
        beyond = self.pixel_place(t * WAVES_PX * ATOM_MN) * PIXEL_WORDS + read * GROUPS * 4
        return Vec(fx.ptr_load(self.lds + base + fx.Int32(beyond), words(4)))


    def loads(self, tile):
        """This thread's chunks of a tile of channels; a channel past the last one is 0."""
        left, step = self.C - tile * TILE_IC, self.x_c * ELEM_BYTES
        source = resource(self.address + fx.Int64(tile) * TILE_IC * step, fx.Int32(OFFSET_LIMIT))
        out = []
        for _, _, chunk, offset in self.units:
            places = inside_of(offset, chunk, X_READ, left, step)
            out.append((LOAD, len(places), lambda p=places: load_chunk(source, p, X_READ)))
        return out

    def writes(self, chunks):
        """The same chunks to LDS."""
        return [(WRITE, 1, lambda i=i, chunk=chunk: self.write(i, chunk)) for i, chunk in enumerate(chunks)]

    def write(self, i, chunk):
        pixel, place, part, *_ = self.units[i]
        store_if(pixel < PIXELS, chunk.ir_value(), self.lds + place)


class Filter(Operand):
    """A slice of the filter: TILE_OC output channels of one tap and a tile of input channels."""

    def source_of(self, W, first, count, C, thread):
        self.address = address_of(W) + fx.Int64(first) * fx.Int64(C) * (TAPS * ELEM_BYTES)
        self.C = C
        self.units, self.offsets, self.places = [], [], []
        for i in range(ceil_div(self.rows * ROW_CHUNKS, THREADS)):
            unit = thread + i * THREADS
            row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
            offset = (row * C * TAPS + chunk * (VEC)) * ELEM_BYTES
            self.units.append(unit)
            self.offsets.append((row < count).select(offset, fx.Int32(OUT_OF_RANGE)))
            self.places.append(chunk_place(column_row(row), chunk))

    def loads(self, tile, tap):
        """This thread's chunks of the slice of a tap and a tile of channels; what lies past the channels is 0."""
        left = self.C - tile * TILE_IC
        source, out = resource(self.address, fx.Int32(OFFSET_LIMIT)), []
        start = (fx.Int32(tap) * self.C + tile * (TILE_IC)) * ELEM_BYTES
        for unit, offset in zip(self.units, self.offsets):
            places = inside_of(offset, unit % ROW_CHUNKS, W_READ, left, ELEM_BYTES)
            places = [(offset, beyond + start) for offset, beyond in places]
            out.append((LOAD, len(places), lambda p=places: load_chunk(source, p, W_READ)))
        return out

    def writes(self, buffer, chunks):
        """The same chunks to an LDS buffer."""
        return [(WRITE, 1, lambda i=i, chunk=chunk: self.write(buffer, i, chunk)) for i, chunk in enumerate(chunks)]

    def write(self, buffer, i, chunk):
        pointer = self.lds + (self.places[i] + buffer) + fx.Int32(self.place)
        fx.ptr_store(chunk.ir_value(), pointer)


def mma_operand(parts):
    """Words as v_mfma_f32_32x32x8_f16 takes them."""
    return chunk_of(parts).bitcast(fx.Float16).ir_value()


def mma(a, b, c):
    """C + A B of one MFMA on fragments."""
    plain = ir.Attribute.parse("#rocdl<mfma_perm_b none>")
    kind = Vec.make_type(ACC, ACC_TYPE)
    return Vec(operations.mfma_f32_32x32x8f16(kind, a, b, c.ir_value(), 0, 0, plain).result)


def vectors(state):
    """Loop-carried values as vectors; a loop that carries one value gives it without a list."""
    return [Vec(x) for x in (state if isinstance(state, (list, tuple)) else [state])]


def zero_accumulators(count):
    return [Vec.filled(ACC, 0.0, ACC_TYPE)] * count


class Order:
    """Operations (kind, count, function) in the order in which they are written, and the request to keep it."""

    def __init__(self):
        self.kinds = []

    def do(self, operations):
        """Results of the operations, without the None of writes."""
        self.kinds += [(kind, count) for kind, count, _ in operations]
        results = [function() for _, _, function in operations]
        return [x for x in results if x is not None]

    def multiply(self, fragments, acc, operations, half=None):
        """The MFMAs of one step, or half of them, with operations spread between: (accumulators, results)."""
        acc, results = list(acc), []
        mfmas = [(part, i, j) for part in range(MFMAS) for i in range(A_ATOMS) for j in range(B_ATOMS)]
        if half is not None:
            middle = len(mfmas) // 2
            mfmas = mfmas[middle:] if half else mfmas[:middle]
        for n, (part, i, j) in enumerate(mfmas):
            a, b = operand(fragments, i, part), operand(fragments, A_ATOMS + j, part)
            self.kinds.append((MFMA, 1))
            acc[i * B_ATOMS + j] = mma(b, a, acc[i * B_ATOMS + j])
            first, last = (-(-len(operations) * k // len(mfmas)) for k in (n, n + 1))
            results += self.do(operations[first:last])
        return acc, results + ([] if mfmas else self.do(operations))

    def keep(self):
        """Asks the scheduler for this order up to here."""
        runs = []
        for kind, count in self.kinds:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += count
            else:
                runs.append([kind, count])
        for kind, count in runs:
            rocdl.sched_group_barrier(kind, count, 0)
        self.kinds = []


def operand(fragments, atom, part):
    """What one MFMA takes of the chunks that a lane read for an atom."""
    read = [fragments[r * (A_ATOMS + B_ATOMS) + atom] for r in range(READS)]
    return mma_operand([chunk[i] for chunk in read for i in range(4)][part * MFMA_WORDS : (part + 1) * MFMA_WORDS])


def packed(values):
    """The values in the type of D, as one store takes them."""
    out = Vec.from_elements(values, WORK).to(OUT)
    return out.bitcast(fx.Int32).ir_value()


def store(target, place, values):
    """STORE elements of D in one access."""
    raw_ptr_buffer_store(packed(values), target, place.ir_value(), fx.Int32(0).ir_value())


class Block:
    """One workgroup as one of its waves sees it: the patch of X, the filter, the sums."""

    def __init__(self, lds, X, W, tile, N, IH, IW, C, OC, pad_h, pad_w, x_n, x_h, x_w):
        self.thread = thread_number()
        lane, wave = self.thread % 64, fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        wave_px, wave_oc = wave // WAVES_OC, wave % WAVES_OC
        place = (N, IH, IW, C, pad_h, pad_w, x_n, x_h, x_w, 1)
        self.patch = Patch(lds, X, tile, *place, self.thread, wave_px, lane)
        self.filter = Filter(lds, PATCH_WORDS, TILE_OC, COLUMN_SPAN, WAVES_OC, wave_oc, lane)
        first = tile.group * OC + tile.oc
        self.filter.source_of(W, first, tile.filters, C, self.thread)

    def reads(self, tap, buffer, step):
        """LDS reads of one step: a chunk of every atom's pixels and filters, for every read that an operand takes."""
        a, b, out = self.patch.tap_base(tap), self.filter.bases_of(buffer), []
        for read in range(step * READS, (step + 1) * READS):
            out += [(READ, 1, lambda t=t, r=read: self.patch.fragment(a, t, r)) for t in range(A_ATOMS)]
            out += [(READ, 1, lambda t=t, r=read: self.filter.fragment(b, t, r)) for t in range(B_ATOMS)]
        return out

    def prologue(self):
        """The first patch and slice of the filter in LDS, the next ones under way, the first fragments in registers."""
        order, zero, one = Order(), fx.Int32(0), fx.Int32(1)
        patch, filters = order.do(self.patch.loads(zero)), order.do(self.filter.loads(zero, 0))
        order.do(self.patch.writes(patch) + self.filter.writes(zero, filters))
        rocdl.sched_barrier(0)
        patch, filters = order.do(self.patch.loads(one)), order.do(self.filter.loads(*self.ahead(zero, 0, 1)))
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
        others = others + self.patch.writes(patch) + self.patch.loads(tile + 2)
        acc, results = order.multiply(fragments, acc, others, 0)
        order.keep()
        gpu.barrier()
        there = self.slices(tile, TAPS - 1)[1]
        acc, fragments = order.multiply(fragments, acc, self.reads(0, there, 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        loaded, patch = [*loaded, *results[: FILTER_STAGED - len(loaded)]], results[FILTER_STAGED - len(loaded) :]
        return [*patch, *loaded, *fragments, *acc]

    def taps(self, tile, state):
        """All taps of a tile of channels."""
        state = vectors(state)
        patch, state = state[:PATCH_STAGED], state[PATCH_STAGED:]
        for tap in range(TAPS - 1):
            state = self.step(tile, tap, state)
        return self.last(tile, patch, state)


def split_state(state):
    """Loop-carried values of the taps: the slice under way, the next fragments, the accumulators."""
    state = vectors(state)
    return state[:FILTER_STAGED], state[FILTER_STAGED : FILTER_STAGED + FRAGMENTS], state[FILTER_STAGED + FRAGMENTS :]


class Output:
    """The tile of Y of a workgroup as one lane holds it: of every pixel runs of COLUMN_RUN consecutive channels."""

    def __init__(self, Y, tile, OC, y_n, y_h, y_w, y_c, thread):
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // 64))
        self.lane, self.wave_px, self.wave_oc, self.tile = thread % 64, wave // WAVES_OC, wave % WAVES_OC, tile
        self.y_n, self.y_h, self.y_w, self.y_c = fx.Int32(y_n), y_h, y_w, y_c
        channel = tile.group * OC + tile.oc
        start = fx.Int64(tile.n) * y_n + fx.Int64(tile.h) * fx.Int64(y_h) + fx.Int64(tile.w) * fx.Int64(y_w)
        start = (start + fx.Int64(channel) * fx.Int64(y_c)) * OUT_BYTES
        self.Y = resource(address_of(Y) + start, fx.Int32(OFFSET_LIMIT))

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
            place = pixel + c * self.y_c
            place = (c < self.tile.filters).select(place, fx.Int32(OUT_OF_RANGE // OUT_BYTES)) * OUT_BYTES
            store(self.Y, place, out)


def tile_memory():
    """The patch and two slices of the filter in LDS."""
    return fx.SharedAllocator().allocate(fx.Array[fx.Int32, PATCH_WORDS + 2 * FILTER_WORDS, 16]).peek().ptr


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def conv2d_kernel(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor,
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, OC: fx.Int32,
    groups: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    x_n: fx.Int64, x_h: fx.Int32, x_w: fx.Int32, y_n: fx.Int64, y_h: fx.Int32, y_w: fx.Int32,
):
    tile = Tile(N, OH, OW, OC, groups)
    C = tile.active.select(C, fx.Int32(0))
    block = Block(tile_memory(), X, W, tile, N, IH, IW, C, OC, pad_h, pad_w, x_n, x_h, x_w)
    taps, state = block.taps, block.prologue()
    for number, carried in range(fx.Int32(0), ceil_div(C, TILE_IC), fx.Int32(1), init=state):
        state = yield taps(fx.Int32(number), carried)
    acc = vectors(state)[PATCH_STAGED + FILTER_STAGED + FRAGMENTS :]
    Output(Y, tile, OC, y_n, y_h, y_w, 1, block.thread).store(acc)


@flyc.jit
def launch(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor,
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, OC: fx.Int32,
    groups: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    x_n: fx.Int64, x_h: fx.Int32, x_w: fx.Int32, y_n: fx.Int64, y_h: fx.Int32, y_w: fx.Int32,
    grid_x: fx.Int32, grid_y: fx.Int32, stream: fx.Stream = fx.Stream(None),
):
    sizes = (N, IH, IW, C, OH, OW, OC, groups, pad_h, pad_w)
    strides = (x_n, x_h, x_w, y_n, y_h, y_w)
    value_attrs = {"rocdl.waves_per_eu": WAVES_PER_SIMD}
    conv2d_kernel(X, W, Y, *sizes, *strides, value_attrs=value_attrs).launch(
        grid=(grid_x, grid_y, 1), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(N, OH, OW, OC, groups):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    tiles = ceil_div(N, TILE_N) * ceil_div(OH, TILE_H) * ceil_div(OW, TILE_W) * ceil_div(OC, TILE_OC) * groups
    if tiles >= 2**31:
        raise ValueError(f"{tiles} tiles: workgroups are counted in 31 bits")
    return min(tiles, GRID_X), ceil_div(tiles, GRID_X)


def run(x, w, out=None, pad=PAD, groups=GROUPS_OF_CHANNELS, stream=None):
    """Y = W * X on the GPU.

    x [N, IH, IW, IC] and w [OC, KH, KW, IC / groups] of TORCH_DTYPE.
    pad: zeros above, below, left and right of the image. Returns `out` [N, OH, OW, OC] of TORCH_OUT, allocated when None; an
    empty one takes no launch. Raises ValueError on anything else.
    """
    N, IC, IH, IW, OC, OH, OW = problem(x, w, pad, groups)
    shape = (N, OH, OW, OC)
    out = torch.empty(shape, dtype=TORCH_OUT, device=x.device) if out is None else out
    if tuple(out.shape) != shape or out.dtype != TORCH_OUT:
        raise ValueError(f"out must be {shape} of {TORCH_OUT}, not {tuple(out.shape)} {out.dtype}")
    if out.numel() == 0:
        return out
    x = x if addressable(x, X_READ, ELEM_BYTES) else x.clone(memory_format=torch.contiguous_format)
    target = out if addressable(out, STORE, OUT_BYTES) else torch.empty(shape, dtype=TORCH_OUT, device=out.device)
    w = aligned(w)
    sizes = (N, IH, IW, IC // groups, OH, OW, OC // groups, groups, pad[0], pad[2])
    strides = (*image_strides(x), *image_strides(target))
    check_offsets(x, target, w)
    tensors = [pointer(t) for t in (x, w, target)]
    launch(*tensors, *sizes, *strides, *grids_of(N, OH, OW, OC // groups, groups), stream_of(out, stream))
    return out if target is out else out.copy_(target)


def problem(x, w, pad, groups):
    """(N, IC, IH, IW, OC, OH, OW) of an image and a filter as stored."""
    if x.dim() != 4 or len(w.shape) != 4 or x.dtype != TORCH_DTYPE or w.dtype != TORCH_DTYPE:
        raise ValueError(f"x and w must be 4-D {TORCH_DTYPE} tensors, not {tuple(x.shape)} {x.dtype}, {tuple(w.shape)}")
    if len(pad) != 4:
        raise ValueError(f"pad={pad} must be four numbers: above, below, left, right")
    N, IC, IH, IW = (x.shape[axis] for axis in AXES)
    OC, C, KH, KW = (w.shape[axis] for axis in AXES)
    if (KH, KW) != KERNEL or groups < 1 or IC != C * groups or OC % groups:
        raise ValueError(f"x {tuple(x.shape)} and w {tuple(w.shape)} are no {KERNEL} convolution of {groups} groups")
    if C % CHANNELS:
        raise ValueError(f"{C} channels of a group: this kernel is built for multiples of {CHANNELS}")
    if OC // groups % STORE:
        raise ValueError(f"{OC // groups} filters of a group: this kernel is built for multiples of {STORE}")
    OH = (IH + pad[0] + pad[1] - (KH - 1) * DILATION[0] - 1) // STRIDE[0] + 1
    OW = (IW + pad[2] + pad[3] - (KW - 1) * DILATION[1] - 1) // STRIDE[1] + 1
    if min(OH, OW) < 1 or min(pad) < 0:
        raise ValueError(f"x {tuple(x.shape)} with pads {pad} leaves no output")
    return N, IC, IH, IW, OC, OH, OW


def image_strides(t):
    """Elements between images, rows, columns."""
    return [t.stride(axis) for axis in (0, 1, 2)]


def addressable(t, access, size):
    """Aligned for accesses of that many elements, channels next to each other."""
    strides = [t.stride(axis) for axis in (0, 1, 2)]
    return t.stride(3) == 1 and all(s % access == 0 for s in strides) and t.data_ptr() % (access * size) == 0


def check_offsets(x, y, w):
    """What a workgroup touches must lie within 31-bit byte offsets."""
    n, h, w_, c = (x.stride(axis) for axis in (AXES[0], AXES[2], AXES[3], AXES[1]))
    reach_x = (TILE_N - 1) * n + ROW_REACH * h + COL_REACH * w_ + TILE_IC * c
    n, h, w_, c = (y.stride(axis) for axis in (AXES[0], AXES[2], AXES[3], AXES[1]))
    reach_y = (TILE_N - 1) * n + TILE_H * h + TILE_W * w_ + TILE_OC * c
    if max(reach_x * ELEM_BYTES, reach_y * OUT_BYTES, TILE_OC * w.numel() // w.shape[0] * ELEM_BYTES) > OFFSET_LIMIT:
        raise ValueError(f"a tile of {tuple(x.shape)} does not lie within 2 GiB")


def pointer(t):
    """A tensor for its address only."""
    return t.as_strided((1,), (1,))


def aligned(t):
    """The tensor, or a copy: contiguous, from an address that any access may have."""
    return t if t.is_contiguous() and t.data_ptr() % 16 == 0 else t.clone(memory_format=torch.contiguous_format)


def reference(x, w, pad=PAD, groups=GROUPS_OF_CHANNELS):
    """The same convolution in float64, before it is rounded to the type of Y."""
    x, w = x.double().permute(0, 3, 1, 2), w.double().permute(0, 3, 1, 2)
    x = torch.nn.functional.pad(x, (pad[2], pad[3], pad[0], pad[1]))
    y = torch.nn.functional.conv2d(x, w, None, STRIDE, 0, DILATION, groups)
    return y.permute(0, 2, 3, 1)


def example(device, N=8, IC=128, IH=56, IW=56, OC=128, groups=GROUPS_OF_CHANNELS):
    """Inputs of the emitted shape: small whole numbers, whose sums are exact."""
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = [(N, IH, IW, IC), (OC, *KERNEL, IC // groups)]
    kinds = [TORCH_DTYPE, TORCH_DTYPE, torch.float32]
    numbers = [torch.randint(-2, 3, shape, generator=generator) for shape in shapes]
    return [t.to(device, kind) for t, kind in zip(numbers, kinds)]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    x, y = torch.zeros(1, dtype=TORCH_DTYPE), torch.zeros(1, dtype=TORCH_OUT)
    launch(x, x, y, *[1] * 18, fx.Stream(None))


def main():
    """Checks against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    inputs = example("cuda")
    given = inputs
    out = run(*given)
    want = reference(*inputs).to(TORCH_OUT).double()
    error = (out.double() - want).abs().max().item() / max(want.abs().max().item(), 1.0)
    print(f"max error relative to the largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(*given, out=out))
    operations = 2 * out.numel() * inputs[1][0].numel()
    print(f"median {ms * 1e3:.1f} us, {operations / ms / 1e9:.1f} TFLOPS")
    return 0 if error <= TOLERANCE else 1


def stream_of(tensor, stream):
    """The stream of a launch; None: the current one of the tensor's GPU. ValueError for a tensor that is on none."""
    if not tensor.is_cuda:
        raise ValueError(f"tensors must be on a GPU, not on {tensor.device}")
    return fx.Stream(torch.cuda.current_stream(tensor.device) if stream is None else stream)


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
