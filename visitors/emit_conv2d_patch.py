"""Block level of an emitted convolution: which tile a workgroup has, and how X and the filter reach LDS."""

from __future__ import annotations

from closedform.operators.conv2d_layout import BLOCK

from .conv2d_shape import Conv2dShape
from .emit_text import fill, join, piece

__all__ = ["filter_class", "patch_class", "place"]

#: Runs of channels of a chunk that are kept apart by masks.
MASKED_RUNS = 8

_TILE = '''
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
'''

_AXIS = '''
def element(number, span, stride, dilation):
    """Elements from the first one of the tile to a pixel of the patch, whose pixels are sorted by phase."""
    return @element@


def shift(tap, phases, span, stride, dilation):
    """Pixels of the patch from those of the first tap to those of a tap."""
    return @shift@
'''

_PATCH = '''
class Patch:
    """The pixels of X that a tile of outputs reaches: in LDS once, with TILE_IC channels, for all taps.

    A pixel past an edge of the image is a load past the end, and so 0.
    """

    def __init__(self, lds, X, tile, N, IH, IW, C, pad_h, pad_w, x_n, x_h, x_w, x_c, thread, wave_px, lane):
        self.lds, self.C, self.x_c = lds, C, x_c
        first_h, first_w = tile.h * STRIDE_H - pad_h, tile.w * STRIDE_W - pad_w
        @kept@
        start = fx.Int64(tile.n) * x_n + fx.Int64(first_h) * fx.Int64(x_h) + fx.Int64(first_w) * fx.Int64(x_w)
        start = start + fx.Int64(tile.group * @all@) * x_c
        self.address = address_of(X) + start * ELEM_BYTES
        self.units = []
        for i in range(PATCH_UNITS):
            unit = thread + i * THREADS
            pixel, chunk = @unit@
            @written@
            col, row, n = pixel % ROW_PIXELS, pixel // ROW_PIXELS % PATCH_ROWS, pixel // (ROW_PIXELS * PATCH_ROWS)
            place = (n * IMAGE + row * PITCH + col) * PIXEL_WORDS + chunk * 4
            h, w = element(row, ROW_SPAN, STRIDE_H, DILATION_H), element(col, COL_SPAN, STRIDE_W, DILATION_W)
            @units@
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

    @there@

    @loads@

    def writes(self, chunks):
        """The same chunks to LDS."""
        return [(WRITE, 1, lambda i=i, chunk=chunk: self.write(i, chunk)) for i, chunk in enumerate(chunks)]

    def write(self, i, chunk):
        pixel, place, part, *_ = self.units[i]
        @store@
'''

_CHUNK = '''
def inside_of(offset, chunk, access, left, step):
    """(offset, bytes beyond it) of the accesses of a chunk whose elements lie `step` bytes apart: CHANNELS of them are
    there or, with fewer `left`, past the end.
    """
    out = []
    for first in range(0, VEC, CHANNELS):
        start = @start@
        out += [(start, e * step) for e in range(first, first + CHANNELS, access)]
    return out


def load_chunk(source, places, access):
    """A chunk, by accesses of `access` elements at (offset, bytes beyond it)."""
    parts = [load(source, [offset], access * ELEM_BYTES, beyond) for offset, beyond in places]
    @joined@
'''

_JOINED = """
out, together = [], 4 // (access * ELEM_BYTES)
if together < 2:
    return chunk_of([word for part in parts for word in part])
for first in range(0, len(parts), together):
    word = parts[first][0]
    for i in range(1, together):
        word = word | (parts[first + i][0] << (32 // together * i))
    out.append(word)
return chunk_of(out)
"""

_UNITS = """
inside = (fx.Int32(0) <= first_h + h) & (first_h + h < IH) & (fx.Int32(0) <= first_w + w) & (first_w + w < IW)
offset = n * fx.Int32(x_n) + h * x_h + w * x_w + chunk * VEC * x_c
inside = inside & (tile.n + n < N)@gap@
offset = inside.select(offset * ELEM_BYTES, fx.Int32(OUT_OF_RANGE))
self.units.append((pixel, place, chunk, offset))
"""

_LOADS = '''
def loads(self, tile):
    """This thread's chunks of a tile of channels; a channel past the last one is 0."""
    left, step = self.C - tile * TILE_IC, self.x_c * ELEM_BYTES
    source = resource(self.address + fx.Int64(tile) * TILE_IC * step, fx.Int32(OFFSET_LIMIT))
    out = []
    for _, _, chunk, offset in self.units:
        places = inside_of(offset, chunk, X_READ, left, step)
        out.append((LOAD, len(places), lambda p=places: load_chunk(source, p, X_READ)))
    return out
'''

_REPLICATED_UNITS = """
exists = (tile.n + n < N)@gap@
h = exists.select(first_h + h, fx.Int32(-OUT_OF_RANGE // 2))
self.units.append((pixel, place, chunk, n * fx.Int32(x_n), h, first_w + w))
"""

_REPLICATED_LOADS = '''
def loads(self, tile):
    """This thread's chunks of a tile of channels: those of ONE channels of each of the pixel's neighbours."""
    source, count = resource(self.address, fx.Int32(OFFSET_LIMIT)), VEC // X_READ
    return [(LOAD, count, lambda u=u: load_chunk(source, self.neighbours(u, tile), X_READ)) for u in self.units]

@more@
def neighbours(self, unit, tile):
    """Offsets of the accesses of a chunk."""
    _, _, chunk, image, h, w = unit
    places = []
    for e in range(0, VEC, X_READ):
        channel = tile * TILE_IC + chunk * VEC + e
        @split@
        down, right = neighbour // REPLICATE_W * ONE_DILATION_H, neighbour % REPLICATE_W * ONE_DILATION_W
        row, col = h + down, w + right
        outside = row | (self.IH - 1 - row) | col | (self.IW - 1 - col)  # negative where one of them is
        outside = outside | (REPLICATE_H * REPLICATE_W * ONE - 1 - channel)
        offset = image + (h - self.first_h + down) * self.x_h + (w - self.first_w + right) * self.x_w
        offset = (offset + one * self.x_c) * ELEM_BYTES
        places.append(((outside < 0).select(fx.Int32(OUT_OF_RANGE), offset), 0))
    return places
'''

_THERE = '''
def there(self, tap, read):
    """Bits of this lane's channels of a chunk that the tap has: past the last row or column of the filter it has none,
    and 0 times an infinity would be NaN.
    """
    row, col, per_word, out = tap // TAP_COLS, tap % TAP_COLS, 4 // ELEM_BYTES, []
    for first in range(0, VEC, per_word):
        word = fx.Int32(0)
        for i in range(per_word):
            channel = (self.group + read * GROUPS) * VEC + (first + i)
            @split@
            down, right = neighbour // REPLICATE_W, neighbour % REPLICATE_W
            there = (down < KERNEL[0] - row * REPLICATE_H) & (right < KERNEL[1] - col * REPLICATE_W)
            bits = ((1 << 8 * ELEM_BYTES) - 1) << (8 * ELEM_BYTES * i)
            word = word | there.select(fx.Int32(bits - (bits >> 31 << 32)), fx.Int32(0))
        out.append(word)
    return Vec.from_elements(out)

'''

_MORE = '''
def more(self, tile):
    """Chunks of a later tile of channels: the first one has them all."""
    return []

'''

_FILTER = '''
class Filter(Operand):
    """A slice of the filter: TILE_OC output channels of one tap and a tile of input channels."""

    def source_of(self, W, first, count, C, thread):
        self.address = address_of(W) + fx.Int64(first) * fx.Int64(C) * (TAPS * ELEM_BYTES)
        self.C = C
        self.units, self.offsets, self.places = [], [], []
        for i in range(ceil_div(self.rows * ROW_CHUNKS, THREADS)):
            unit = thread + i * THREADS
            row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
            offset = (row * C * TAPS + chunk * (VEC * @step@)) * ELEM_BYTES
            self.units.append(unit)
            self.offsets.append((row < count).select(offset, fx.Int32(OUT_OF_RANGE)))
            self.places.append(chunk_place(column_row(row), chunk))

    def loads(self, tile, tap):
        """This thread's chunks of the slice of a tap and a tile of channels; what lies past the channels is 0."""
        left = self.C - tile * TILE_IC
        source, out = resource(self.address, fx.Int32(OFFSET_LIMIT)), []
        start = (fx.Int32(tap) * @tap@ + tile * (TILE_IC * @step@)) * ELEM_BYTES
        for unit, offset in zip(self.units, self.offsets):
            places = inside_of(offset, unit % ROW_CHUNKS, W_READ, left, @step@ * ELEM_BYTES)
            places = [(offset, beyond + start) for offset, beyond in places]
            out.append((LOAD, len(places), lambda p=places: load_chunk(source, p, W_READ)))
        return out

    def writes(self, buffer, chunks):
        """The same chunks to an LDS buffer."""
        return [(WRITE, 1, lambda i=i, chunk=chunk: self.write(buffer, i, chunk)) for i, chunk in enumerate(chunks)]

    def write(self, buffer, i, chunk):
        pointer = self.lds + (self.places[i] + buffer) + fx.Int32(self.place)
        @store@
'''


_PACKED_FILTER = '''
class Filter:
    """The filter that pack_w() put in the order of its fragments: a wave reads 1 KiB of a slice in a row."""

    def __init__(self, W, tile, OC, C, wave_oc, lane):
        self.tiles = ceil_div(C, TILE_IC)
        number = tile.group * ceil_div(OC, TILE_OC) + tile.oc // TILE_OC
        self.address = address_of(W) + fx.Int64(number) * fx.Int64(self.tiles) * (TAPS * SLICE_BYTES)
        self.offset = lane * 16 + wave_oc * (SPAN_ATOMS * ATOM_BYTES)

    def loads(self, tile, tap):
        """This lane's chunks of a tap, by step, atom and read; 0 past the last tile of channels."""
        source, out = resource(self.address, fx.Int32(OFFSET_LIMIT)), []
        offset = (tile < self.tiles).select(self.offset, fx.Int32(OUT_OF_RANGE))
        start = (tile * TAPS + tap) * SLICE_BYTES
        for first in range(0, STEPS * READS, READS):
            for t in range(B_ATOMS):
                beyond = start + (t // SPAN_ATOMS * WAVES_OC * SPAN_ATOMS + t % SPAN_ATOMS) * ATOM_BYTES
                for place in range(first * 1024, (first + READS) * 1024, 1024):
                    out.append((LOAD, 1, lambda p=place, b=beyond: chunk_of(load(source, [offset + p], 16, b))))
        return out
'''


def place(shape: Conv2dShape) -> str:
    """The tile of a workgroup, the order of pixels along an axis of the patch, and the loads of a chunk."""
    narrow = shape.loads_x.narrow or shape.loads_w.narrow
    patch = shape.patch
    sorted_ = max(patch.rows.phases, patch.cols.phases) > 1
    far = any(axis.dilation != axis.stride or axis.stride > 1 for axis in (patch.rows, patch.cols))
    element = "number % span * stride + number // span * dilation % stride" if sorted_ else "number * stride"
    moved = "tap * dilation // stride" if far else "tap"
    # Each mask takes a pair of scalar registers, of which many runs of 8-bit types spilled some; arithmetic takes none.
    many = shape.vec // shape.channel_step > MASKED_RUNS
    past = "offset | ((left - 1 - (chunk * VEC + first)) >> 31 & fx.Int32(OUT_OF_RANGE))"
    chunk = {
        "joined": piece(_JOINED) if narrow else "return chunk_of(sum(parts, []))",
        "start": past if many else "(chunk * VEC + first < left).select(offset, fx.Int32(OUT_OF_RANGE))",
    }
    return join(
        piece(_TILE),
        fill(piece(_CHUNK), chunk),
        fill(piece(_AXIS), {"element": element, "shift": f"tap % phases * span + {moved}" if sorted_ else moved}),
    )


def patch_class(shape: Conv2dShape) -> str:
    """X on its way to LDS; a thread takes chunks of channels, neighbours in memory next to each other."""
    replicated = shape.replicated
    kept = "self.IH, self.IW, self.first_h, self.first_w, self.x_h, self.x_w = IH, IW, first_h, first_w, x_h, x_w"
    active = "pixel < PIXELS" if shape.by_chunk else "part < ROW_CHUNKS"
    store = "fx.ptr_store(chunk.ir_value(), self.lds + place)"
    bits = shape.writers
    moved = " | ".join(f"((pixel >> {b} & 1) << {bit})" for b, bit in enumerate(bits))
    values = {
        "all": "ONE" if replicated else "C",
        "unit": "unit // ROW_CHUNKS, unit % ROW_CHUNKS" if shape.by_chunk else "unit % PIXELS, unit // PIXELS",
        "written": f"pixel = pixel & ~{BLOCK - 1} | {moved}" if bits != (0, 1, 2) else "",
        "gap": " & (col < PATCH_COLS)" if shape.patch.row_pixels > shape.patch.cols.extent else "",
        "units": piece(_REPLICATED_UNITS if replicated else _UNITS),
        "loads": _loads(shape),
        "there": fill(piece(_THERE), {"split": _split(shape).replace("neighbour, one", "neighbour, _")})
        if not shape.taps.whole
        else "",
        "store": f"store_if({active}, {store[13:]}" if not shape.loads_x.divides else store,
        "kept": kept if replicated else "",
    }
    return fill(fill(piece(_PATCH), values | {"gap": "@gap@"}), values)


def _loads(shape: Conv2dShape) -> str:
    """How chunks of X are loaded."""
    if not shape.replicated:
        return piece(_LOADS)
    text = piece(_REPLICATED_LOADS).replace("@more@\n", _MORE[1:] if shape.single else "")
    return fill(text, {"split": _split(shape)})


def _split(shape: Conv2dShape) -> str:
    """Of a new channel: its neighbour and the channel there."""
    if shape.channels_last:
        return "neighbour, one = channel // ONE, channel % ONE"
    count = "(REPLICATE_H * REPLICATE_W)"
    return f"neighbour, one = channel % {count}, channel // {count}"


def filter_class(shape: Conv2dShape) -> str:
    """The filter on its way to LDS, or packed to registers."""
    if shape.op.prepacked:
        return piece(_PACKED_FILTER)
    guarded = not shape.loads_w.divides
    store = "fx.ptr_store(chunk.ir_value(), pointer)"
    active = "self.units[i] < self.rows * ROW_CHUNKS"
    last = shape.channels_last or shape.replicated
    values = {
        "store": f"store_if({active}, {store[13:]}" if guarded else store,
        "step": "1" if last else "TAPS",
        "tap": "self.C" if last else "1",
    }
    return fill(piece(_FILTER), values).replace(" * 1)", ")").replace("1 * ELEM", "ELEM")
