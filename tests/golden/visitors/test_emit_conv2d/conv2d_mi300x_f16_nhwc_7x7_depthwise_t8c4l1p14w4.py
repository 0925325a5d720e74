"""Depthwise 2D convolution Y = W * X for gfx942.

    shape       X 8 x 192 x 56 x 56, Y 8 x 192 x 56 x 56 (run-time)
    filter      7 x 7 for each channel, stride 1 x 1, dilation 1 x 1, pads (3, 3, 3, 3) (run-time)
    layout      NHWC
    types       f16 in, f32 accumulation, f16 out
    target      mi300x (gfx942), vector instructions
    tiles       8 outputs x 4 channels a thread, 4 wave(s)
    registers   at most 120 of 128 a lane, 4 wave(s) per SIMD
    grid        592 workgroups, 1 round(s) on 304 CUs
    emitted by  closedform; needs flydsl and torch
"""


import math
import sys

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec


TARGET = "gfx942"
DTYPE, TORCH_DTYPE, ELEM_BYTES = fx.Float16, torch.float16, 2
TORCH_OUT, OUT_BYTES = torch.float16, 2
WORK, OUT = fx.Float32, fx.Float16  # of sums and epilogue, of Y
KERNEL, STRIDE, DILATION = (7, 7), (1, 1), (1, 1)  # rows, columns
PAD, GROUPS_OF_CHANNELS = (3, 3, 3, 3), 192  # defaults of run(): above, below, left, right
AXES = (0, 3, 1, 2)  # of images, channels, rows, columns
STRIP, VEC = 8, 4  # outputs of a thread next to each other, their channels
THREADS = 256  # of a workgroup
WAVES_PER_SIMD = 4  # occupancy that the register budget aims at
TAPS_H, TAPS_W = KERNEL
STRIDE_H, STRIDE_W = STRIDE  # elements between outputs
DILATION_H, DILATION_W = DILATION  # elements between taps
PLACES = sorted({j * STRIDE_W + k * DILATION_W for j in range(STRIP) for k in range(TAPS_W)})  # of X
LINES, TOGETHER = 1, 14  # lines of taps in an iteration, loads under way
READS = [(line, place) for line in range(LINES) for place in PLACES]
GROUPS = [READS[first : first + TOGETHER] for first in range(0, len(READS), TOGETHER)]
X_READ, STORE = VEC, VEC  # elements of an access
XCDS = 8  # chiplets that workgroups are dealt to
GRID_X = 65536  # workgroups along x
OFFSET_LIMIT = 2**31 - 16  # of byte offsets inside an image
OUT_OF_RANGE = 2**31 - 16  # offset past every extent
TOLERANCE = 0.001  # of main(), relative to the largest value


def ceil_div(a, b):
    return -(-a // b)


def resource(address, extent):
    """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
    extent = fx.Int64((extent > 0).select(extent, fx.Int32(0)))
    pointer = fx.inttoptr(fx.PointerType.get(T.i32, fx.AddressSpace.Global, 4), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))


def address_of(tensor):
    return fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))


def where(exists, offset):
    """The byte offset, or one past every extent: such a load gives 0, such a store is dropped."""
    return exists.select(offset, fx.Int32(OUT_OF_RANGE))


def load(source, offset, beyond=0):
    """VEC elements, `beyond` bytes from the offset on."""
    found = rocdl.raw_ptr_buffer_load(Vec.make_type(VEC, DTYPE), source, offset, fx.Int32(beyond), 0)
    return Vec(found)


def smaller(a, b):
    return (a < b).select(a, b)


def dealt(number, count):
    """Workgroups are dealt to the XCDs in turn; their numbers in runs, so that neighbours share an L2."""
    xcd, turn = number % XCDS, number // XCDS
    return xcd * (count // XCDS) + smaller(xcd, count % XCDS) + turn


class Work:
    """What a thread computes: STRIP outputs next to each other along the columns, of VEC channels of an image.

    Threads count channels first of all, then along the columns; `active`: there is such a strip.
    """

    def __init__(self, N, C, OH, OW):
        chunks, strips = C // VEC, ceil_div(OW, STRIP)
        items = chunks * strips * OH
        blocks = ceil_div(items, THREADS)
        number = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
        exists = number < N * blocks
        number = dealt(exists.select(number, fx.Int32(0)), N * blocks)
        self.n = number // blocks
        item = number % blocks * THREADS + fx.Int32(gpu.thread_idx.x)
        self.active = exists & (item < items)
        item = self.active.select(item, fx.Int32(0))
        self.c, item = item % chunks * VEC, item // chunks
        self.w, self.h = item % strips * STRIP, item // strips


class Image:
    """X as the strip of a thread reads it, and the filter [TAPS_H, TAPS_W, channels].

    PLACES along the columns have a byte offset each, one past the end where X has no such place: its load gives 0.
    """

    def __init__(self, X, W, work, IH, IW, C, pad_h, pad_w, x_n, x_h, x_w):
        self.X = resource(address_of(X) + fx.Int64(work.n) * x_n * ELEM_BYTES, fx.Int32(OFFSET_LIMIT))
        self.W = resource(address_of(W), C * (TAPS_H * TAPS_W * ELEM_BYTES))
        self.weights, self.tap_bytes = work.c * ELEM_BYTES, C * ELEM_BYTES
        first, channel = work.w * STRIDE_W - pad_w, work.c
        self.offsets = {}
        for place in PLACES:
            at = first + place
            inside = work.active & (at >= 0) & (at < IW)
            self.offsets[place] = where(inside, (at * x_w + channel) * ELEM_BYTES)
        self.first, self.length, self.step = work.h * STRIDE_H - pad_h, IH, x_h * ELEM_BYTES

    def lines(self, tap, sums):
        """The sums with LINES lines of taps added, from line `tap` on: each place is loaded once, each weight once."""
        at = [self.first + (tap + i) * DILATION_H for i in range(LINES)]
        offsets = [where((a >= 0) & (a < self.length), a * self.step) for a in at]
        sums, weights = vectors(sums), {}
        for reads in GROUPS:
            for i, place in reads:
                for k in range(min(place // DILATION_W + 1, TAPS_W)):
                    if (i, k) not in weights:
                        weights[i, k] = load(self.W, self.weights, ((tap + i) * TAPS_W + k) * self.tap_bytes)
            x = [load(self.X, offsets[i] + self.offsets[place]) for i, place in reads]
            rocdl.sched_barrier(0)
            for value, (i, place) in zip(x, reads):
                for j in range(STRIP):
                    k, rest = divmod(place - j * STRIDE_W, DILATION_W)
                    if rest == 0 and 0 <= k < TAPS_W:
                        sums[j] = fx.math.fma(value.to(fx.Float32), weights[i, k].to(fx.Float32), sums[j])
                rocdl.sched_barrier(0)  # what is widened of one place at a time
        return sums


def zeros():
    """The sums of a strip before the first tap."""
    return [Vec.filled(VEC, 0.0, fx.Float32) for _ in range(STRIP)]


def vectors(values):
    """Sums as a loop carries them, which gives a single one without a list."""
    return [Vec(value) for value in (values if isinstance(values, (list, tuple)) else [values])]


def packed(values):
    """The values in the type of D, as one store takes them."""
    out = Vec.from_elements(values, WORK).to(OUT)
    return out.bitcast(fx.Int32).ir_value()


def store(target, place, values):
    """STORE elements of D in one access."""
    raw_ptr_buffer_store(packed(values), target, place.ir_value(), fx.Int32(0).ir_value())


class Output:
    """Y as the strip of a thread writes it."""

    def __init__(self, Y, work, OH, OW, y_n, y_h, y_w):
        self.Y = resource(address_of(Y) + fx.Int64(work.n) * y_n * OUT_BYTES, fx.Int32(OFFSET_LIMIT))
        self.place, self.step = work.h * y_h + work.w * y_w + work.c, y_w
        self.exist = work.active.select(OW - work.w, fx.Int32(0))

    def store(self, sums):
        for j in range(STRIP):
            out = [sums[j][e] for e in range(VEC)]
            store(self.Y, where(self.exist > j, (self.place + j * self.step) * OUT_BYTES), out)


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def conv2d_kernel(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor,
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    taps: fx.Int32, x_n: fx.Int64, x_h: fx.Int32, x_w: fx.Int32, y_n: fx.Int64, y_h: fx.Int32, y_w: fx.Int32,
):
    """`taps`: lines of taps; the compiler, which would write them all out, does not know the number."""
    work = Work(N, C, OH, OW)
    lines = Image(X, W, work, IH, IW, C, pad_h, pad_w, x_n, x_h, x_w).lines
    sums = zeros()
    for tap, carried in range(fx.Int32(0), taps, fx.Int32(LINES), init=sums):
        sums = yield lines(fx.Int32(tap), carried)
    Output(Y, work, OH, OW, y_n, y_h, y_w).store(vectors(sums))


@flyc.jit
def launch(
    X: fx.Tensor, W: fx.Tensor, Y: fx.Tensor,
    N: fx.Int32, IH: fx.Int32, IW: fx.Int32, C: fx.Int32, OH: fx.Int32, OW: fx.Int32, pad_h: fx.Int32, pad_w: fx.Int32,
    taps: fx.Int32, x_n: fx.Int64, x_h: fx.Int32, x_w: fx.Int32, y_n: fx.Int64, y_h: fx.Int32, y_w: fx.Int32,
    grid_x: fx.Int32, grid_y: fx.Int32, stream: fx.Stream = fx.Stream(None),
):
    sizes, strides = (N, IH, IW, C, OH, OW, pad_h, pad_w, taps), (x_n, x_h, x_w, y_n, y_h, y_w)
    value_attrs = {"rocdl.waves_per_eu": WAVES_PER_SIMD}
    conv2d_kernel(X, W, Y, *sizes, *strides, value_attrs=value_attrs).launch(
        grid=(grid_x, grid_y, 1), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(N, C, OH, OW):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    items = C // VEC * ceil_div(OW, STRIP) * OH
    blocks = N * ceil_div(items, THREADS)
    if max(items + THREADS, blocks) >= 2**31:
        raise ValueError(f"{blocks} workgroups of {THREADS}: they, and the strips of an image, are counted in 31 bits")
    return min(blocks, GRID_X), ceil_div(blocks, GRID_X)


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
    w = aligned(by_taps(w))
    sizes = (N, IH, IW, OC, OH, OW, pad[0], pad[2], TAPS_H)
    strides = (*image_strides(x), *image_strides(target))
    check_offsets(x, target, w)
    tensors = [pointer(t) for t in (x, w, target)]
    launch(*tensors, *sizes, *strides, *grids_of(N, OC, OH, OW), stream_of(out, stream))
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
    if (C, OC) != (1, IC):
        raise ValueError(f"{C} channels of a group, {OC} filters: this kernel has one filter for each of {IC} channels")
    if OC % VEC:
        raise ValueError(f"{OC} channels: this kernel is built for multiples of {VEC}")
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
    """What there is of an image, and the filter, must lie within 31-bit byte offsets."""
    for t, size in ((x, ELEM_BYTES), (y, OUT_BYTES)):
        last = sum((t.shape[axis] - 1) * t.stride(axis) for axis in (1, 2, 3))
        if (last + 1) * size > OFFSET_LIMIT:
            raise ValueError(f"an image of {tuple(t.shape)} does not lie within 2 GiB")
    if w.numel() * ELEM_BYTES > OFFSET_LIMIT:
        raise ValueError(f"the filter {tuple(w.shape)} does not lie within 2 GiB")


def pointer(t):
    """A tensor for its address only."""
    return t.as_strided((1,), (1,))


def aligned(t):
    """The tensor, or a copy: contiguous, from an address that any access may have."""
    return t if t.is_contiguous() and t.data_ptr() % 16 == 0 else t.clone(memory_format=torch.contiguous_format)


def by_taps(w):
    """The filter [KH, KW, channels]."""
    w = w.permute(AXES[2], AXES[3], AXES[0], AXES[1])
    return w.reshape(w.shape[0], w.shape[1], w.shape[2])


def reference(x, w, pad=PAD, groups=GROUPS_OF_CHANNELS):
    """The same convolution in float64, before it is rounded to the type of Y."""
    x, w = x.double().permute(0, 3, 1, 2), w.double().permute(0, 3, 1, 2)
    x = torch.nn.functional.pad(x, (pad[2], pad[3], pad[0], pad[1]))
    y = torch.nn.functional.conv2d(x, w, None, STRIDE, 0, DILATION, groups)
    return y.permute(0, 2, 3, 1)


def example(device, N=8, IC=192, IH=56, IW=56, OC=192, groups=GROUPS_OF_CHANNELS):
    """Inputs of the emitted shape: small whole numbers, whose sums are exact."""
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = [(N, IH, IW, IC), (OC, *KERNEL, IC // groups)]
    kinds = [TORCH_DTYPE, TORCH_DTYPE, torch.float32]
    numbers = [torch.randint(-2, 3, shape, generator=generator) for shape in shapes]
    return [t.to(device, kind) for t, kind in zip(numbers, kinds)]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    x, y = torch.zeros(1, dtype=TORCH_DTYPE), torch.zeros(1, dtype=TORCH_OUT)
    launch(x, x, y, *[1] * 17, fx.Stream(None))


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
