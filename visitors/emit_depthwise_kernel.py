"""The kernel of an emitted depthwise convolution: which strip a thread has, its loads, sums and stores, its launch."""

from __future__ import annotations

from closedform.operators.depthwise import Depthwise

from .emit_gemm_place import DEALT
from .emit_text import RESOURCE, fill, join, piece

__all__ = ["image", "kernel", "output", "work"]

#: Names of the axes: along a strip, and the other one.
AXES = ("h", "w")
NAMED = ("rows", "columns")

_HELPERS = '''
def address_of(tensor):
    return fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))


def where(exists, offset):
    """The byte offset, or one past every extent: such a load gives 0, such a store is dropped."""
    return exists.select(offset, fx.Int32(OUT_OF_RANGE))


def load(source, offset, beyond=0):
    """VEC elements, `beyond` bytes from the offset on."""
    found = rocdl.raw_ptr_buffer_load(@kind@, source, offset, fx.Int32(beyond), 0)
    return @found@
'''

_SMALLER = """
def smaller(a, b):
    return (a < b).select(a, b)
"""

_WORK = '''
class Work:
    """What a thread computes: STRIP outputs next to each other along the @named_a@, of VEC channels of an image.

    Threads count @order@; `active`: there is such a strip.
    """

    def __init__(self, N, C, OH, OW):
        chunks, strips = C // VEC, ceil_div(O@A@, STRIP)
        items = chunks * strips * O@B@
        blocks = ceil_div(items, THREADS)
        number = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
        exists = number < N * blocks
        number = @dealt@
        self.n = number // blocks
        item = number % blocks * THREADS + fx.Int32(gpu.thread_idx.x)
        self.active = exists & (item < items)
        item = self.active.select(item, fx.Int32(0))
        @decode@
'''

_CHANNELS_FIRST_OF_ALL = """
self.c, item = item % chunks * VEC, item // chunks
self.@a@, self.@b@ = item % strips * STRIP, item // strips
"""

_COLUMNS_FIRST_OF_ALL = """
self.@b@, item = item % O@B@, item // O@B@
self.@a@, self.c = item % strips * STRIP, item // strips * VEC
"""

_IMAGE = '''
class Image:
    """X as the strip of a thread reads it, and the filter [TAPS_@B@, TAPS_@A@, channels].

    PLACES along the @named_a@ have a byte offset each, one past the end where X has no such place: its load gives 0.
    """

    def __init__(self, X, W, work, IH, IW, C, pad_h, pad_w, @x_strides@):
        self.X = resource(address_of(X) + fx.Int64(work.n) * x_n * ELEM_BYTES, fx.Int32(OFFSET_LIMIT))
        self.W = resource(address_of(W), C * (TAPS_@B@ * TAPS_@A@ * ELEM_BYTES))
        self.weights, self.tap_bytes = work.c * ELEM_BYTES, C * ELEM_BYTES
        first, channel = work.@a@ * STRIDE_@A@ - pad_@a@, work.c@x_c@
        self.offsets = {}
        for place in PLACES:
            at = first + place
            inside = work.active & (at >= 0) & (at < I@A@)
            self.offsets[place] = where(inside, (at * x_@a@ + channel) * ELEM_BYTES)
        self.first, self.length, self.step = work.@b@ * STRIDE_@B@ - pad_@b@, I@B@, x_@b@ * ELEM_BYTES

    def lines(self, tap, sums):
        """The sums with LINES lines of taps added, from line `tap` on: each place is loaded once, each weight once."""
        at = [self.first + (tap + i) * DILATION_@B@ for i in range(LINES)]
        offsets = [where((a >= 0) & (a < self.length), a * self.step) for a in at]
        sums, weights = vectors(sums), {}
        for reads in GROUPS:
            for i, place in reads:
                for k in range(min(place // DILATION_@A@ + 1, TAPS_@A@)):
                    if (i, k) not in weights:
                        weights[i, k] = load(self.W, self.weights, ((tap + i) * TAPS_@A@ + k) * self.tap_bytes)
            x = [load(self.X, offsets[i] + self.offsets[place]) for i, place in reads]
            rocdl.sched_barrier(0)
            for value, (i, place) in zip(x, reads):
                for j in range(STRIP):
                    k, rest = divmod(place - j * STRIDE_@A@, DILATION_@A@)
                    if rest == 0 and 0 <= k < TAPS_@A@:
                        sums[j] = fx.math.fma(value@wide@, weights[i, k]@wide@, sums[j])
                @one@
            @all@
        return sums


def zeros():
    """The sums of a strip before the first tap."""
    return [Vec.filled(VEC, 0.0, fx.Float32) for _ in range(STRIP)]


def vectors(values):
    """Sums as a loop carries them, which gives a single one without a list."""
    return [Vec(value) for value in (values if isinstance(values, (list, tuple)) else [values])]
'''

_OUTPUT = '''
class Output:
    """Y as the strip of a thread writes it."""

    def __init__(self, Y, work, OH, OW, @bias_given@@y_strides@):
        self.Y = resource(address_of(Y) + fx.Int64(work.n) * y_n * OUT_BYTES, fx.Int32(OFFSET_LIMIT))
        self.place, self.step = work.@b@ * y_@b@ + work.@a@ * y_@a@ + work.c@y_c@, y_@a@
        self.exist = work.active.select(O@A@ - work.@a@, fx.Int32(0))
        @bias_kept@

    def store(self, sums):
        for j in range(STRIP):
            out = [sums[j][e] for e in range(VEC)]
            @finish@
            store(self.Y, where(self.exist > j, (self.place + j * self.step) * OUT_BYTES), out)
'''

_BIAS = """
self.bias = bias_of(bias, work.c, C)
"""

_BIAS_OF = '''
def bias_of(bias, first, C):
    """The elements of VEC channels."""
    source = resource(address_of(bias), C * 4)
    offsets = [(first + e) * 4 for e in range(VEC)]
    return [fx.Float32(rocdl.raw_ptr_buffer_load(T.f32, source, offset, fx.Int32(0), 0)) for offset in offsets]
'''

_KERNEL = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def conv2d_kernel(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor, @bias_typed@
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    taps: fx.Int32, @typed@,
):
    @about@
    work = Work(N, C, OH, OW)
    lines = Image(X, W, work, IH, IW, C, pad_h, pad_w, @x_strides@).lines
    @loop@
    Output(Y, work, OH, OW, @bias_given@@y_strides@).store(vectors(sums))
"""

_ABOUT_TAPS = '''
"""`taps`: lines of taps; the compiler, which would write them all out, does not know the number."""
'''

_LOOP = """
sums = zeros()
for tap, carried in range(fx.Int32(0), taps, fx.Int32(LINES), init=sums):
    sums = yield lines(fx.Int32(tap), carried)
"""

_LAUNCH = '''
@flyc.jit
def launch(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor, @bias_typed@
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    taps: fx.Int32, @typed@,
    grid_x: fx.Int32, grid_y: fx.Int32, stream: fx.Stream = fx.Stream(None),
):
    sizes, strides = (N, IH, IW, C, OH, OW, pad_h, pad_w, taps), (@strides@)
    value_attrs = {"rocdl.waves_per_eu": WAVES_PER_SIMD}
    conv2d_kernel(X, W, Y, @bias_name@*sizes, *strides, value_attrs=value_attrs).launch(
        grid=(grid_x, grid_y, 1), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(N, C, OH, OW):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    items = C // VEC * ceil_div(O@A@, STRIP) * O@B@
    blocks = N * ceil_div(items, THREADS)
    if max(items + THREADS, blocks) >= 2**31:
        raise ValueError(f"{blocks} workgroups of {THREADS}: they, and the strips of an image, are counted in 31 bits")
    return min(blocks, GRID_X), ceil_div(blocks, GRID_X)
'''


def _values(work: Depthwise) -> dict[str, str]:
    """Names of the axes and of the strides in elements; channels that lie next to each other have none."""
    last, bias = work.op.layout == "NHWC", work.op.bias
    strides = {name: [f"{name}_n", f"{name}_h", f"{name}_w", *([] if last else [f"{name}_c"])] for name in "xy"}
    listed = [*strides["x"], *strides["y"]]
    kinds = {"x_n": "Int64", "y_n": "Int64"}
    a, b = AXES[work.a], AXES[work.b]
    return {
        "a": a,
        "b": b,
        "A": a.upper(),
        "B": b.upper(),
        "named_a": NAMED[work.a],
        "x_c": "" if last else " * x_c",
        "y_c": "" if last else " * y_c",
        "x_strides": ", ".join(strides["x"]),
        "y_strides": ", ".join(strides["y"]),
        "strides": ", ".join(listed),
        "typed": ", ".join(f"{name}: fx.{kinds.get(name, 'Int32')}" for name in listed),
        "bias_typed": "bias: fx.Tensor," if bias else "",
        "bias_given": "bias, C, " if bias else "",
        "bias_name": "bias, " if bias else "",
    }


def work(shape: Depthwise) -> str:
    """Helpers, and the strip of a thread."""
    values = _values(shape)
    one, last = shape.tiles.vec == 1, shape.op.layout == "NHWC"
    order = f"channels first of all, then along the {NAMED[shape.a]}" if last else "columns first of all, then rows"
    dealt, number = shape.tiles.xcds > 1, "exists.select(number, fx.Int32(0))"
    return join(
        piece(RESOURCE),
        fill(
            piece(_HELPERS),
            {
                "kind": "DTYPE.ir_type" if one else "Vec.make_type(VEC, DTYPE)",
                "found": "Vec.from_elements([DTYPE(found)], DTYPE)" if one else "Vec(found)",
            },
        ),
        join(piece(_SMALLER), piece(DEALT)) if dealt else "",
        fill(
            piece(_WORK),
            {
                **values,
                "order": order,
                "dealt": f"dealt({number}, N * blocks)" if dealt else number,
                "decode": fill(piece(_CHANNELS_FIRST_OF_ALL if last else _COLUMNS_FIRST_OF_ALL), values),
            },
        ),
    )


def image(shape: Depthwise) -> str:
    """The loads and sums of a strip."""
    wide = "" if shape.op.dtype == "f32" else ".to(fx.Float32)"
    barrier, widened = "rocdl.sched_barrier(0)", "rocdl.sched_barrier(0)  # what is widened of one place at a time"
    values = {**_values(shape), "wide": wide, "one": widened if wide else "", "all": "" if wide else barrier}
    return fill(piece(_IMAGE), values)


def output(shape: Depthwise) -> str:
    """The stores of a strip, and its bias."""
    finish = ["out = [x + y for x, y in zip(out, self.bias)]"] if shape.op.bias else []
    if shape.op.activation != "none":
        finish.append(f"out = [{shape.op.activation}(x) for x in out]")
    values = {**_values(shape), "bias_kept": piece(_BIAS) if shape.op.bias else "", "finish": "\n".join(finish)}
    return join(piece(_BIAS_OF) if shape.op.bias else "", fill(piece(_OUTPUT), values))


def kernel(shape: Depthwise) -> str:
    """The kernel and its launch."""
    looped = shape.kernel[shape.b] > shape.tiles.lines
    loop = piece(_LOOP) if looped else "sums = lines(fx.Int32(0), zeros())"
    values = {**_values(shape), "loop": loop, "about": piece(_ABOUT_TAPS) if looped else ""}
    return join(fill(piece(_KERNEL), values), fill(piece(_LAUNCH), values)).replace("fx.Tensor, \n", "fx.Tensor,\n")
