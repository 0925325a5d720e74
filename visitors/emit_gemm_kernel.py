"""Device level of an emitted GEMM: the kernel, and how the partial sums of a split k are put together."""

from __future__ import annotations

from textwrap import indent

from .emit_text import join, piece

__all__ = ["kernel", "partials"]

_LDS = '''
def tile_memory():
    """The images of A and B in LDS."""
    return fx.SharedAllocator().allocate(fx.Array[fx.Int32, BUFFERS * BUFFER_WORDS, 16]).peek().ptr
'''

_LOOPS = """
state = block.prologue()
for tile, carried in range(fx.Int32(0), @K@ // TILE_K, fx.Int32(1), init=state):
    state = yield block.step(fx.Int32(tile), carried)
acc = split_state(state)[2]
for tile, carried in range(@K@ // TILE_K, ceil_div(@K@, TILE_K), fx.Int32(1), init=acc):
    acc = yield block.tail(fx.Int32(tile), vectors(carried))
"""

_PLAIN = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(
    @tensors@
    M: fx.Int32, N: fx.Int32, K: fx.Int32, alpha: SCALAR, beta: SCALAR,
):
    M, K, first_m, first_n, batch = place(M, N, K)
    block = Block(tile_memory(), A, B, M, N, K, first_m, first_n, batch, fx.Int32(0))
    @loops@
    Output(@out@, M, N, first_m, first_n, batch, alpha, beta).store(vectors(acc))
"""

_WORKSPACE = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(A: fx.Tensor, B: fx.Tensor, W: fx.Tensor, M: fx.Int32, N: fx.Int32, K: fx.Int32):
    part = Part(M, N, K, SPLIT_K)
    block = Block(tile_memory(), A, B, part.M, N, part.K, part.first_m, part.first_n, part.batch, part.first_k)
    @loops@
    Partials(W).save(part.tile * SPLIT_K + fx.Int64(part.piece), part.active, vectors(acc))


@flyc.kernel(known_block_size=[THREADS, 1, 1])
def reduce_kernel(
    @outputs@, W: fx.Tensor,
    M: fx.Int32, N: fx.Int32, alpha: SCALAR, beta: SCALAR,
):
    part = Part(M, N, fx.Int32(0), PARTS)
    partials, first = Partials(W), part.tile * SPLIT_K
    acc = zero_accumulators(SPAN_ATOMS)
    for piece, carried in range(fx.Int32(0), fx.Int32(SPLIT_K), fx.Int32(1), init=acc):
        acc = yield partials.add(first + fx.Int64(fx.Int32(piece)), part.piece, vectors(carried))
    output = Output(@out@, part.M, N, part.first_m, part.first_n, part.batch, alpha, beta)
    output.store_part(part.piece, vectors(acc))
"""

_SINGLE = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(
    @tensors@ W: fx.Tensor, counters: fx.Tensor,
    M: fx.Int32, N: fx.Int32, K: fx.Int32, alpha: SCALAR, beta: SCALAR,
):
    part, lds, partials = Part(M, N, K, SPLIT_K), tile_memory(), Partials(W)
    block = Block(lds, A, B, part.M, N, part.K, part.first_m, part.first_n, part.batch, part.first_k)
    @loops@
    output = Output(@out@, part.M, N, part.first_m, part.first_n, part.batch, alpha, beta)
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
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, workgroups: fx.Int32, alpha: SCALAR, beta: SCALAR,
):
    lds, partials = tile_memory(), Partials(W)
    save, add, counters = partials.save, partials.add, partials.address + 2 * STREAM_K * SLOT_BYTES
    for number in range(fx.Int32(0), Share(M, N, K, batch, workgroups).segments, fx.Int32(1)):
        part = Segment(share_of(M, N, K, batch, workgroups), fx.Int32(number))
        block = Block(lds, A, B, M, N, part.K, part.first_m, part.first_n, part.batch, part.first_k)
        gpu.barrier()
        @loops@
        done = Segment(share_of(M, N, K, batch, workgroups), fx.Int32(number))
        factors = opaque(alpha), opaque(beta)
        output = Output(@out@, M, N, done.first_m, done.first_n, done.batch, *factors)
        thread, store, store_part, slot_at = block.thread, output.store, output.store_part, done.slot_at
        if done.contributors == 1:
            store(vectors(acc))
        else:
            save(done.slot, fx.Boolean(True), vectors(acc))
            counter = counters + fx.Int64(done.shared) * 4
            last = arrive(thread, fx.Boolean(True), counter, done.contributors, lds)
            for finished in range(fx.Int32(0), last.select(fx.Int32(PARTS), fx.Int32(0)), fx.Int32(1)):
                sums = zero_accumulators(SPAN_ATOMS)
                for piece, carried in range(fx.Int32(0), done.contributors, fx.Int32(1), init=sums):
                    slot = slot_at(fx.Int32(piece))
                    sums = yield add(slot, fx.Int32(finished), vectors(carried))
                store_part(fx.Int32(finished), vectors(sums))
"""

_PARTIALS = '''
class Partials:
    """Partial sums in W: a slot holds a tile in the order of its threads' registers, 16 bytes a thread at a time."""

    def __init__(self, W):
        self.address, self.place = address_of(W), fx.Int32(gpu.thread_idx.x) * 16

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


def partials(split_k: int, algorithm: str, stream_k: int) -> str:
    """Helpers of a split sum: its workspace and, where the last workgroup to arrive adds up, the arrival."""
    if split_k == 1 and not stream_k:
        return ""
    return join(piece(_PARTIALS), "" if algorithm == "workspace" and not stream_k else piece(_ARRIVE))


def kernel(extra: list[str], split_k: int, algorithm: str, stream_k: int) -> str:
    """The kernel: prologue, whole tiles of k, the partial one, epilogue. `extra`: tensors besides A, B and D.

    With the algorithm "workspace" a second kernel adds the parts of a split k, in order; with "single", and in
    Stream-K, the last workgroup to arrive does, in the same order.
    """
    split = _WORKSPACE if algorithm == "workspace" else _SINGLE
    text = _STREAM if stream_k else split if split_k > 1 else _PLAIN
    typed = [f"{name}: fx.Tensor" for name in ("A", "B", "D", *extra)]
    text = piece(text).replace("@tensors@", ", ".join(typed) + ",").replace("@outputs@", ", ".join(typed[2:]))
    text = text.replace("@out@", ", ".join(("D", *extra)))
    loops = piece(_LOOPS).replace("@K@", "part.K" if split_k > 1 or stream_k else "K")
    for gap in (" " * 8, " " * 4):
        text = text.replace(f"\n{gap}@loops@\n", "\n" + indent(loops, gap) + "\n")
    return join(piece(_LDS), text)
