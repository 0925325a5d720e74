"""Block level of an emitted softmax: which row a lane works on, and its loads and stores."""

from __future__ import annotations

from .emit_text import RESOURCE, fill, join, piece

__all__ = ["rows"]

_HELPERS = '''
def address_of(tensor):
    return fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))


def smaller(a, b):
    return (a < b).select(a, b)


def where(held, offset):
    """The offset, or one past every extent: such a load gives 0, such a store is dropped."""
    return held.select(offset, fx.Int32(OUT_OF_RANGE))


def load(kind, source, offset):
    return rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(0), 0)


def store(value, target, offset):
    raw_ptr_buffer_store(value.ir_value(), target, offset.ir_value(), fx.Int32(0).ir_value())


class Matrix:
    """The rows of a workgroup in a [rows, cols] tensor: a descriptor, and the byte offset of this lane's row."""

    def __init__(self, tensor, elem_bytes, first, here, in_block, cols):
        stride = fx.Int64(fx.get_scalar(fx.get(tensor.stride, 0)))
        self.start = address_of(tensor) + fx.Int64(first) * stride * elem_bytes
        self.buffer = resource(self.start, ((here - 1) * fx.Int32(stride) + cols) * elem_bytes)
        self.row = in_block * fx.Int32(stride) * elem_bytes
'''

_ROW = '''
class Row:
    """The row of a lane: LANES lanes share it, in steps of CHUNKS accesses of VEC elements a lane.

    A wave has runs of accesses, and takes GROUP of them at a time. @about@
    """

    def __init__(self, X, O, @more@rows, cols):
        thread = fx.Int32(gpu.thread_idx.x)
        number = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
        @number@
        here, in_block = smaller(rows - first, fx.Int32(ROWS)), thread // LANES
        self.thread, self.number, self.exists = thread, first + in_block, in_block < here
        self.wave, self.lane = thread % LANES // GROUP, thread % GROUP
        self.X = Matrix(X, ELEM_BYTES, first, here, in_block, cols)
        self.O = Matrix(O, ELEM_BYTES, first, here, in_block, cols)
        @matrices@
        @begin@
        @accesses@
        steps = ceil_div(self.accesses, LANES * CHUNKS)
        @part@
        self.first_access = self.wave * (GROUP * CHUNKS) + self.lane@offset@
        @end@

    def accesses_of(self, step):
        """Of each access of this lane in a step: whether the row has it, and its first column."""
        first = self.first_access + step * (LANES * CHUNKS)
        numbers = [first + i * GROUP for i in range(CHUNKS)]
        return [((n < self.accesses) & self.exists, @column@) for n in numbers]

    def logits(self, accesses):
        """The elements of these accesses as f32, -inf where @absent@."""
        places = [where(held, self.X.row + column * ELEM_BYTES) for held, column in accesses]
        chunks = [Vec(load(Vec.make_type(VEC, DTYPE), self.X.buffer, place))@widen@ for place in places]
        kept = [@kept@ for held, column in accesses]
        return [
            keep.select(chunk[e], fx.Float32(NEG_INF))
            for chunk, keeps in zip(chunks, kept, strict=True)
            for e, keep in enumerate(keeps)
        ]

    def store(self, accesses, values):
        """Stores the results of these accesses."""
        for i, (held, column) in enumerate(accesses):
            chunk = Vec.from_elements(values[i * VEC : (i + 1) * VEC], fx.Float32)@narrow@
            store(chunk, self.O.buffer, where(held, self.O.row + column * ELEM_BYTES))
'''

_END = """
column = @first_end@ + self.lane
held = @held@
@head@
self.end_held, self.end_column = held & self.exists@first@, column
"""

_HEAD = """
head = (self.lane == GROUP - 1) & (self.begin == 1)
column, held = head.select(fx.Int32(0), column), held | head
"""

_END_METHODS = '''

    def end_logit(self):
        """The element beside the accesses that this lane has, as f32; -inf where @absent@."""
        place = where(self.end_held, self.X.row + self.end_column * ELEM_BYTES)
        x = DTYPE(load(DTYPE.ir_type, self.X.buffer, place))@widen@
        return @kept_end@.select(x, fx.Float32(NEG_INF))

    def store_end(self, value):
        place = where(self.end_held, self.O.row + self.end_column * ELEM_BYTES)
        store(value@narrow@, self.O.buffer, place)
'''

_MASK = '''

    def kept(self, held, column):
        """Of the elements of an access: whether the mask has them."""
        place = where(held, self.mask.row + column)
        @words@
        return [words[e // 4] >> (8 * (e % 4)) & 0xFF != 0 for e in range(VEC)]
'''

_END_MASK = '''

    def end_kept(self):
        place = where(self.end_held, self.mask.row + self.end_column)
        return fx.Uint8(load(T.i8, self.mask.buffer, place)).to(fx.Int32) != 0
'''

#: The mask bytes of an access as words of 32 bits: one, two, or two that lie in three where rows begin at odd elements.
_WORDS = {
    "one": "words = [fx.Int32(load(T.i32, self.mask.buffer, place))]",
    "two": "words = Vec(load(Vec.make_type(2, fx.Int32), self.mask.buffer, place))",
    "three": """
shift = fx.Int64(8 * (place & 3))
raw = [fx.Int32(load(T.i32, self.mask.buffer, (place & -4) + 4 * i)).to(fx.Uint32).to(fx.Int64) for i in range(3)]
words = [(((raw[i + 1] << 32) | raw[i]) >> shift).to(fx.Int32) for i in range(2)]
""",
}


def rows(ends: bool, packed: bool, mask: bool, splits: bool) -> str:
    """Helpers, Matrix and Row.

    `ends`: rows have elements beside whole accesses; `packed`: 16-bit elements, whose rows may begin at an odd one;
    `splits`: several workgroups share a row.
    """
    head = ends and packed
    text = piece(_ROW) + (_END_METHODS if ends else "")
    if mask:
        text += _MASK + (_END_MASK if ends else "")
    about = "Elements beside them, fewer than VEC, are of the first lanes." if ends else ""
    if head:
        about += "\n    Where a row begins at an odd element, that one is of the last lane of the first wave."
    words = "three" if head else "two" if packed else "one"
    values = _values(ends, head, mask, splits) | {"about": about, "words": piece(_WORDS[words])}
    values |= {"widen": ".to(fx.Float32)" if packed else "", "narrow": ".to(DTYPE)" if packed else ""}
    return join(piece(RESOURCE), piece(_HELPERS), fill(text, values))


def _values(ends: bool, head: bool, mask: bool, splits: bool) -> dict[str, str]:
    part = "self.steps = steps"
    if splits:
        part = (
            "each = ceil_div(steps, SPLITS)\n"
            "self.steps = smaller(steps - self.part * each, each)\n"
            "first_step = self.part * each"
        )
    end = ""
    if ends:
        begin = "self.begin + " if head else ""
        end = fill(
            piece(_END),
            {
                "first_end": f"{begin}self.accesses * VEC",
                "held": "column < cols",
                "head": piece(_HEAD) if head else "",
                "first": " & (self.wave == 0)" + (" & (self.part == 0)" if splits else ""),
            },
        )
    return {
        "more": "mask, " if mask else "",
        "number": "first, self.part = number // SPLITS, number % SPLITS" if splits else "first = number * ROWS",
        "matrices": "self.mask = Matrix(mask, 1, first, here, in_block, ceil_div(cols, 4) * 4)" if mask else "",
        "begin": "self.begin = ((fx.Int32(self.X.start) + self.X.row) >> 1) & 1" if head else "",
        "accesses": f"self.accesses = {'(cols - self.begin)' if head else 'cols'} // VEC",
        "part": part,
        "offset": " + first_step * (LANES * CHUNKS)" if splits else "",
        "end": end,
        "column": "self.begin + n * VEC" if head else "n * VEC",
        "absent": "the mask or the row has none" if mask else "the row has none",
        "kept": "self.kept(held, column)" if mask else "[held] * VEC",
        "kept_end": "self.end_kept()" if mask else "self.end_held",
    }
