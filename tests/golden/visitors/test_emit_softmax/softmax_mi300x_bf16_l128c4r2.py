"""Softmax along rows, O = exp(X - lse(X)), for gfx942.

    shape       8192 rows of 4096; run-time, as is the row stride
    types       bf16 in and out, f32 arithmetic
    target      mi300x (gfx942)
    tiles       128 lanes a row, 4 accesses of 8 elements a lane, 2 rows a workgroup
    reads       each row once: it stays in registers
    registers   at most 68 of 256 a lane
    LDS         32 of 65536 bytes
    grid        4096 x 1 x 1 workgroups, 2 round(s) on 304 CUs
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
DTYPE, TORCH_DTYPE, ELEM_BYTES = fx.BFloat16, torch.bfloat16, 2
VEC = 8  # elements of a 16-byte access
LANES, GROUP = 128, 64  # that share a row: of a workgroup, of a wave
CHUNKS = 4  # accesses of a lane in a step
ROWS = 2  # of a workgroup
THREADS = LANES * ROWS
WAVES_PER_SIMD = 7  # occupancy asked of the compiler
ROW_WAVES, WAVES = LANES // GROUP, THREADS // GROUP  # waves of a row, of a workgroup
DPP = {1: 177, 2: 78, 4: 321, 8: 320}  # control words by distance of the lanes
NEG_INF = float("-inf")  # what an absent element counts as
LOG2_E = math.log2(math.e)
GRID_X = 65536  # workgroups along x
OUT_OF_RANGE = 2**31 - 16  # offset past every extent
ROWS_LIMIT, COLS_MAX = 1073741824, 268435456  # of a launch, of byte offsets
COLS_LIMIT = LANES * CHUNKS * VEC  # of one pass
TOLERANCE = 0.01  # of main(), relative to the row's largest value


def ceil_div(a, b):
    return -(-a // b)


def resource(address, extent):
    """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
    extent = fx.Int64((extent > 0).select(extent, fx.Int32(0)))
    pointer = fx.inttoptr(fx.PointerType.get(T.i32, fx.AddressSpace.Global, 4), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))


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


class Row:
    """The row of a lane: LANES lanes share it, in steps of CHUNKS accesses of VEC elements a lane.

    A wave has runs of accesses, and takes GROUP of them at a time. 
    """

    def __init__(self, X, O, rows, cols):
        thread = fx.Int32(gpu.thread_idx.x)
        number = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
        first = number * ROWS
        here, in_block = smaller(rows - first, fx.Int32(ROWS)), thread // LANES
        self.thread, self.number, self.exists = thread, first + in_block, in_block < here
        self.wave, self.lane = thread % LANES // GROUP, thread % GROUP
        self.X = Matrix(X, ELEM_BYTES, first, here, in_block, cols)
        self.O = Matrix(O, ELEM_BYTES, first, here, in_block, cols)
        self.accesses = cols // VEC
        steps = ceil_div(self.accesses, LANES * CHUNKS)
        self.steps = steps
        self.first_access = self.wave * (GROUP * CHUNKS) + self.lane

    def accesses_of(self, step):
        """Of each access of this lane in a step: whether the row has it, and its first column."""
        first = self.first_access + step * (LANES * CHUNKS)
        numbers = [first + i * GROUP for i in range(CHUNKS)]
        return [((n < self.accesses) & self.exists, n * VEC) for n in numbers]

    def logits(self, accesses):
        """The elements of these accesses as f32, -inf where the row has none."""
        places = [where(held, self.X.row + column * ELEM_BYTES) for held, column in accesses]
        chunks = [Vec(load(Vec.make_type(VEC, DTYPE), self.X.buffer, place)).to(fx.Float32) for place in places]
        kept = [[held] * VEC for held, column in accesses]
        return [
            keep.select(chunk[e], fx.Float32(NEG_INF))
            for chunk, keeps in zip(chunks, kept, strict=True)
            for e, keep in enumerate(keeps)
        ]

    def store(self, accesses, values):
        """Stores the results of these accesses."""
        for i, (held, column) in enumerate(accesses):
            chunk = Vec.from_elements(values[i * VEC : (i + 1) * VEC], fx.Float32).to(DTYPE)
            store(chunk, self.O.buffer, where(held, self.O.row + column * ELEM_BYTES))


def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))


def finite(m):
    """m, or 0 in place of an infinite one: no difference of infinities is formed."""
    return ((m == fx.Float32(NEG_INF)) | (m == fx.Float32(-NEG_INF))).select(fx.Float32(0.0), m)


def power(x, m):
    """exp(x - m); the difference is formed before it is scaled, so that it is exactly 0 at the maximum."""
    return exp2((x - finite(m)) * LOG2_E)


def added(a, b):
    return a + b


def tree(values, combine):
    """All values of a lane combined, neighbours first."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def exponentials(values, m):
    """exp(x - m) of these elements, and their sum: access after access, which takes few registers."""
    p, l = [], fx.Float32(0.0)
    for first in range(0, len(values), VEC):
        part = [power(value, m) for value in values[first : first + VEC]]
        p, l = p + part, l + tree(part, added)
        rocdl.sched_barrier(0)
    return p, l


def neighbour(x, distance):
    """The value of another lane: by DPP inside of 16 lanes, by permutes beyond.

    Called for 1, 2, 4, ... in turn: the mirrors pair lanes that differ in more bits than one, but by then lanes that
    differ in the lower bits hold the same.
    """
    if distance < 16:
        moved = rocdl.update_dpp(T.f32, x.ir_value(), x.ir_value(), DPP[distance], 0xF, 0xF, True)
        return fx.Float32(moved)
    return gpu.shuffle_xor(x, distance, 64)


def across(x, combine, lanes):
    """Combined over aligned groups of `lanes` lanes, all of which are active; every lane has the result."""
    distance = 1
    while distance < lanes:
        x = combine(x, neighbour(x, distance))
        distance *= 2
    return x


def largest(a, b):
    """Ignores NaN, which reaches the sum through its exponential."""
    return fx.maxnumf(a, b)


def combined(m, l, lanes):
    """The states of `lanes` lanes combined: maximum, and sum of exponentials relative to it."""
    top = across(m, largest, lanes)
    return top, across(l * power(m, top), added, lanes)


@flyc.jit
def publish(leads, m, l, pointer):
    if leads:
        fx.ptr_store(Vec.from_elements([m, l], fx.Float32).ir_value(), pointer)


def across_waves(row, m, l):
    """The states of the waves of a row combined, through LDS."""
    states = fx.SharedAllocator().allocate(fx.Array[fx.Float32, 2 * WAVES, 16]).peek().ptr
    of_row = row.thread // LANES * ROW_WAVES
    publish(row.lane == 0, m, l, states + (of_row + row.wave) * 2)
    gpu.barrier()
    pair = Vec(fx.ptr_load(states + (of_row + row.lane % ROW_WAVES) * 2, Vec.make_type(2, fx.Float32)))
    return combined(pair[0], pair[1], ROW_WAVES)


def weight(l):
    """1 / l; NaN where a logit is +inf, 0 where all are -inf."""
    inverse = (l == fx.Float32(0.0)).select(fx.Float32(0.0), fx.Float32(1.0) / l)
    return (l == fx.Float32(-NEG_INF)).select(fx.Float32(math.nan), inverse)


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def softmax_kernel(X: fx.Tensor, O: fx.Tensor, rows: fx.Int32, cols: fx.Int32):
    """The row stays in registers: it is read once."""
    row = Row(X, O, rows, cols)
    accesses = row.accesses_of(0)
    x = row.logits(accesses)
    m = across(tree(x, largest), largest, GROUP)
    p, l = exponentials(x, m)
    l = across(l, added, GROUP)
    top, total = across_waves(row, m, l)
    factor = power(m, top) * weight(total)
    out = [value * factor for value in p]
    row.store(accesses, out)


@flyc.jit
def launch(
    X: fx.Tensor, O: fx.Tensor,
    rows: fx.Int32, cols: fx.Int32, grid_x: fx.Int32, grid_y: fx.Int32, stream: fx.Stream = fx.Stream(None),
):
    softmax_kernel(X, O, rows, cols, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
        grid=(grid_x, grid_y, 1), block=(THREADS, 1, 1), stream=stream
    )


def grid_of(rows):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    count = ceil_div(rows, ROWS)
    return min(count, GRID_X), ceil_div(count, GRID_X)


def run(x, out=None, stream=None):
    """Softmax along the last axis on the GPU.

    x: a tensor of TORCH_DTYPE with any strides, seen as rows.
    Returns `out` (allocated like x when None); an empty x takes no launch. Raises ValueError on anything else.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    check(x, out)
    if x.numel() == 0:
        return out
    source, target = rows_of(x), rows_of(out)
    if not (addressable(source) and addressable(target) and alike(source, target)):
        source, target = padded(source), torch.empty_like(padded(target))
    rows, cols = source.shape
    launch(source, target, rows, cols, *grid_of(rows), stream_of(x, stream))
    if target.data_ptr() != out.data_ptr():
        out.copy_(target.reshape(out.shape))
    return out


def check(x, out):
    """ValueError unless these are the input and the output of one softmax of this kernel."""
    if x.dim() < 1 or any(t.dtype != TORCH_DTYPE for t in (x, out)):
        raise ValueError(f"x and out must be {TORCH_DTYPE} tensors of at least one axis, not {x.dtype} {out.dtype}")
    if out.shape != x.shape:
        raise ValueError(f"shapes do not agree: x {tuple(x.shape)}, out {tuple(out.shape)}")
    if x.shape[-1] > COLS_LIMIT:
        raise ValueError(f"rows of {x.shape[-1]}: this kernel holds {COLS_LIMIT}")
    if x.shape[-1] % VEC:
        raise ValueError(f"rows of {x.shape[-1]}: this kernel is built for multiples of {VEC}")
    if x.numel() // max(1, x.shape[-1]) > ROWS_LIMIT or x.shape[-1] > COLS_MAX:
        raise ValueError(f"at most {ROWS_LIMIT} rows of {COLS_MAX}: x {tuple(x.shape)}")
    if x.device != out.device:
        raise ValueError(f"x and out must be on one GPU: {x.device}, {out.device}")


def rows_of(t):
    """The tensor as [rows, cols], in place where its strides allow it."""
    return t.reshape(-1, t.shape[-1])


def padded(t):
    """A copy whose rows are whole accesses apart."""
    space = torch.empty(t.shape[0], ceil_div(t.shape[1], VEC) * VEC, dtype=t.dtype, device=t.device)
    return space[:, : t.shape[1]].copy_(t)


def addressable(t):
    """Whether the kernel can read it in place: unit stride, the rows of a workgroup within 31-bit offsets,
    rows at whole words."""
    return (
        (t.stride(1) == 1 or t.shape[1] == 1)
        and t.stride(0) >= t.shape[1]
        and ROWS * t.stride(0) * ELEM_BYTES < OUT_OF_RANGE
        and t.data_ptr() % 4 == 0 and t.stride(0) % 2 == 0
    )


def alike(x, out):
    """Whether accesses of both begin at the same elements of a row."""
    return True


def reference(x):
    """The same in float64: result."""
    x = x.double()
    out = torch.softmax(x, -1)
    out = out.masked_fill((x == -math.inf).all(-1, keepdim=True), 0.0)
    return out


def example(device, rows=8192, cols=4096):
    """Normal random inputs of the emitted shape."""
    generator = torch.Generator("cpu").manual_seed(0)
    x = (3.0 * torch.randn(rows, cols, generator=generator)).to(device, TORCH_DTYPE)
    return [x]


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    (x,) = example("cpu", 2, 2 * VEC)
    rows, cols, source, target = 2, 2 * VEC, x, torch.empty_like(x)
    launch(source, target, rows, cols, *grid_of(rows))


def main():
    """Checks a sample of rows against float64, then times the kernel; exit status 3 without a fitting GPU."""
    if not is_target():
        return 3
    inputs = example("cuda")
    out = run(*inputs)
    sample = torch.linspace(0, out.shape[0] - 1, min(out.shape[0], 64)).long().unique()
    want = reference(*(t[sample].cpu() for t in inputs))
    error = max_error(out[sample].cpu(), want)
    print(f"max error relative to the row's largest value: {error:.2e} (tolerance {TOLERANCE:.0e})")
    ms = median_ms(lambda: run(*inputs, out=out))
    print(f"median {ms * 1e3:.1f} us, {2 * out.numel() * ELEM_BYTES / ms / 1e6:.1f} GB/s")
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
