"""Device level of an emitted GEMM: the kernel, and how the partial sums of a split k are put together."""

from __future__ import annotations

from closedform.operators.gemm import GemmTiles

from .emit_text import fill, join, piece

__all__ = ["kernel", "partials"]

_LDS = '''
def tile_memory():
    """The images of A and B in LDS."""
    return fx.SharedAllocator().allocate(fx.Array[fx.Int32, BUFFERS * BUFFER_WORDS, 16]).peek().ptr
'''

_ARRIVAL = '''
def tile_memory():
    """A word of LDS that says who arrived last: A and B do not pass through LDS."""
    return fx.SharedAllocator().allocate(fx.Array[fx.Int32, 4, 16]).peek().ptr
'''

_NO_LDS = '''
def tile_memory():
    """Neither A nor B passes through LDS."""
'''

_LOOPS = """
state = block.prologue()
for tile, carried in range(fx.Int32(0), @whole@, fx.Int32(1), init=state):
    state = yield block.step(fx.Int32(tile), carried)
acc = split_state(state)[-1]
@tail@
"""

_TAIL = """
for tile, carried in range(@K@ // TILE_K, ceil_div(@K@, TILE_K), fx.Int32(1), init=acc):
    acc = yield block.tail(fx.Int32(tile), vectors(carried))
"""

_PLAIN = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(
    @tensors@
    M: fx.Int32, N: fx.Int32, K: fx.Int32, @typed@,
):
    M, K, first_m, first_n, batch = place(M, N, K)
    block = Block(tile_memory(), A, B, M, N, K, first_m, first_n, batch, fx.Int32(0))
    @loops@
    Output(block.thread, @out@, M, N, first_m, first_n, batch, @scalars@).store(vectors(acc))
"""

_WORKSPACE = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(A: fx.Tensor, B: fx.Tensor, W: fx.Tensor, M: fx.Int32, N: fx.Int32, K: fx.Int32):
    part = Part(M, N, K, SPLIT_K)
    block = Block(tile_memory(), A, B, part.M, N, part.K, part.first_m, part.first_n, part.batch, part.first_k)
    @loops@
    Partials(block.thread, W).save(part.tile * SPLIT_K + fx.Int64(part.piece), part.active, vectors(acc))


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def reduce_kernel(
    @outputs@, W: fx.Tensor,
    M: fx.Int32, N: fx.Int32, @typed@,
):
    part, thread = Part(M, N, fx.Int32(0), PARTS), thread_number()
    partials, first = Partials(thread, W), part.tile * SPLIT_K
    acc = zero_accumulators(SPAN_ATOMS)
    for piece, carried in range(fx.Int32(0), fx.Int32(SPLIT_K), fx.Int32(1), init=acc):
        acc = yield partials.add(first + fx.Int64(fx.Int32(piece)), part.piece, vectors(carried))
    output = Output(thread, @out@, part.M, N, part.first_m, part.first_n, part.batch, @scalars@)
    output.store_part(part.piece, vectors(acc))
"""

_SINGLE = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(
    @tensors@ W: fx.Tensor, counters: fx.Tensor,
    M: fx.Int32, N: fx.Int32, K: fx.Int32, @typed@,
):
    part, lds = Part(M, N, K, SPLIT_K), tile_memory()
    block = Block(lds, A, B, part.M, N, part.K, part.first_m, part.first_n, part.batch, part.first_k)
    @loops@
    output = Output(block.thread, @out@, part.M, N, part.first_m, part.first_n, part.batch, @scalars@)
    partials = Partials(block.thread, W)
    first, add, store_part = part.tile * SPLIT_K, partials.add, output.store_part
    partials.save(first + fx.Int64(part.piece), part.active, vectors(acc))
    counter = address_of(counters) + part.tile * 4
    last = arrive(block.thread, part.active, counter, fx.Int32(SPLIT_K), lds)
    for finished in range(fx.Int32(0), last.select(fx.Int32(PARTS), fx.Int32(0)), fx.Int32(1)):
        sums = zero_accumulators(SPAN_ATOMS)
        for piece, carried in range(fx.Int32(0), fx.Int32(SPLIT_K), fx.Int32(1), init=sums):
            sums = yield add(first + fx.Int64(fx.Int32(piece)), fx.Int32(finished), vectors(carried))
        store_part(fx.Int32(finished), vectors(sums))
"""

_STREAM = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(
    @tensors@ W: fx.Tensor,
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, workgroups: fx.Int32, @typed@,
):
    lds, parked = tile_memory(), park(W, [A, B, @out@], [@scalars@])
    for number in range(fx.Int32(0), Share(M, N, K, batch, workgroups).segments, fx.Int32(1)):
        part = Segment(share_of(M, N, K, batch, workgroups), fx.Int32(number))
        _, (a, b, *_), _ = unpark(parked)
        block = Block(lds, a, b, M, N, part.K, part.first_m, part.first_n, part.batch, part.first_k)
        gpu.barrier()
        @loops@
        done = Segment(share_of(M, N, K, batch, workgroups), fx.Int32(number))
        space, (_, _, *outputs), factors = unpark(parked)
        thread = thread_number()
        partials = Partials(thread, space)
        output = Output(thread, *outputs, M, N, done.first_m, done.first_n, done.batch, *factors)
        store, store_part, save, add = output.store, output.store_part, partials.save, partials.add
        contributors, slot_at = done.contributors, done.slot_at
        if contributors == 1:
            store(vectors(acc))
        else:
            save(done.slot, fx.Boolean(True), vectors(acc))
            counter = space.address + 2 * STREAM_K * SLOT_BYTES + fx.Int64(done.shared) * 4
            last = arrive(thread, fx.Boolean(True), counter, contributors, lds)
            for finished in range(fx.Int32(0), last.select(fx.Int32(PARTS), fx.Int32(0)), fx.Int32(1)):
                sums = zero_accumulators(SPAN_ATOMS)
                for piece, carried in range(fx.Int32(0), contributors, fx.Int32(1), init=sums):
                    slot = slot_at(fx.Int32(piece))
                    sums = yield add(slot, fx.Int32(finished), vectors(carried))
                store_part(fx.Int32(finished), vectors(sums))
"""

_PARK = '''
class Parked:
    """Address and strides of a tensor."""

    def __init__(self, address, strides):
        self.address, self.strides = address, strides


def park(space, tensors, factors):
    """Addresses, strides and factors, which a segment needs at its start or end only: they wait in the lanes of one
    vector register, since scalar registers are few.
    """
    values = [address_of(space)]
    for tensor in tensors:
        values += [address_of(tensor), stride(tensor, 0), stride(tensor, 1)]
    halves = [half.to(fx.Int32) for value in values for half in (value, value >> 32)]
    for factor in factors:
        bits = Vec.from_elements([factor], SCALAR).bitcast(fx.Int32)
        halves += [bits[i] for i in range(FACTOR_WORDS)]
    lane, lanes = fx.Int32(gpu.thread_idx.x) % 64, fx.Int32(0)
    for i, half in enumerate(halves):
        lanes = (lane == i).select(half, lanes)
    return lanes


def unpark(lanes):
    """The workspace, the tensors and the factors back."""
    lanes = opaque(lanes, "v")

    def half(i):
        return fx.Int32(rocdl.readlane(T.i32, lanes, fx.Int32(i)))

    def value(i):
        return (half(2 * i + 1).to(fx.Int64) << 32) | half(2 * i).to(fx.Uint32).to(fx.Int64)

    tensors = [Parked(value(i), [value(i + 1), value(i + 2)]) for i in range(1, 3 * @count@, 3)]
    factors = []
    for first in range(2 + 6 * @count@, 2 + 6 * @count@ + @factors@ * FACTOR_WORDS, FACTOR_WORDS):
        bits = Vec.from_elements([half(first + i) for i in range(FACTOR_WORDS)], fx.Int32)
        factors.append(bits.bitcast(SCALAR)[0])
    return Parked(value(0), []), tensors, factors
'''

_PARTIALS = '''
class Partials:
    """Partial sums in W: a slot holds a tile in the order of its threads' registers, 16 bytes a thread at a time."""

    def __init__(self, thread, W):
        self.address, self.place = address_of(W), thread * 16

    def slot(self, number, active):
        """Descriptor of a slot, of nothing where not `active`."""
        extent = active.select(fx.Int32(SLOT_BYTES), fx.Int32(0))
        return resource(self.address + fx.Int64(number) * SLOT_BYTES, extent)

    def save(self, number, active, acc):
        target = self.slot(number, active)
        for n, values in enumerate(acc):
            words = values.bitcast(fx.Int32)
            for u in range(ACC_CHUNKS):
                chunk = Vec.from_elements([words[u * 4 + i] for i in range(4)], fx.Int32)
                place = self.place + (n * ACC_CHUNKS + u) * (THREADS * 16)
                raw_ptr_buffer_store(chunk.ir_value(), target, place.ir_value(), fx.Int32(0).ir_value())

    def add(self, number, part, sums):
        """`sums` plus what a slot holds of a part."""
        source, out = self.slot(number, fx.Boolean(True)), []
        first = self.place + part * (SPAN_ATOMS * ACC_CHUNKS * THREADS * 16)
        for n, values in enumerate(sums):
            places = [first + (n * ACC_CHUNKS + u) * (THREADS * 16) for u in range(ACC_CHUNKS)]
            out.append(values + chunk_of(load(source, places, 16)).bitcast(ACC_TYPE))
        return out
'''

_ARRIVE = '''
@flyc.jit
def count_up(active, address, last, pointer):
    if active:
        counter = llvm.IntToPtrOp(llvm.PointerType.get(address_space=1), address.ir_value()).result
        order, step = llvm.AtomicOrdering.acq_rel, llvm.AtomicBinOp.uinc_wrap
        before = llvm.AtomicRMWOp(step, counter, last.ir_value(), order, syncscope="agent").res
        fx.ptr_store(before, pointer)


def arrive(thread, active, counter, contributors, lds):
    """Whether this workgroup is the last one to add to a tile; what the others saved is then visible to it.

    The counter wraps to 0 with the last arrival, so the same counters serve every launch.
    """
    llvm.FenceOp(llvm.AtomicOrdering.release, syncscope="agent")
    gpu.barrier()
    count_up((thread == 0) & active, counter, contributors - 1, lds)
    gpu.barrier()
    before = fx.Int32(rocdl.readfirstlane(T.i32, fx.ptr_load(lds, T.i32)))
    llvm.FenceOp(llvm.AtomicOrdering.acquire, syncscope="agent")
    return active & (before == contributors - 1)
'''


def partials(tensors: int, factors: int, tiles: GemmTiles) -> str:
    """Helpers of a split sum: its workspace and, where the last workgroup to arrive adds up, the arrival.

    `tensors` counts them without the workspace, `factors` the numbers of the epilogue.
    """
    if not tiles.splits:
        return ""
    values = {"count": str(tensors), "factors": str(factors)}
    park = fill(piece(_PARK), values) if tiles.stream_k else ""
    return join(park, piece(_PARTIALS), piece(_ARRIVE) if tiles.arrives else "")


def kernel(extra: list[str], scalars: tuple[str, ...], packed: str, tiles: GemmTiles) -> str:
    """The kernel: prologue, whole tiles of k, the partial one, epilogue. `extra`: tensors besides A, B and D;
    `scalars`: numbers of the epilogue.

    Where both operands are `packed`, zeros fill the last tile of k and there is no partial one. With the algorithm
    "workspace" a second kernel adds the parts of a split k, in order; with "single", and in Stream-K, the last
    workgroup to arrive does, in the same order.
    """
    text = _STREAM if tiles.stream_k else _SINGLE if tiles.arrives else _WORKSPACE if tiles.splits else _PLAIN
    depth = {"K": "part.K" if tiles.splits else "K"}
    loops = {
        "whole": fill("ceil_div(@K@, TILE_K)" if packed == "AB" else "@K@ // TILE_K", depth),
        "tail": "" if packed == "AB" else fill(piece(_TAIL), depth),
    }
    typed = [f"{name}: fx.Tensor" for name in ("A", "B", "D", *extra)]
    values = {
        "tensors": ", ".join(typed) + ",",
        "outputs": ", ".join(typed[2:]),
        "out": ", ".join(("D", *extra)),
        "typed": ", ".join(f"{name}: SCALAR" for name in scalars),
        "scalars": ", ".join(scalars),
        "loops": fill(piece(_LOOPS), loops),
    }
    memory = _ARRIVAL if packed == "AB" and tiles.arrives else _NO_LDS if packed == "AB" else _LDS
    return join(piece(memory), fill(piece(text), values))
