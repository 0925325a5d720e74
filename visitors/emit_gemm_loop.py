"""Wave level of an emitted GEMM: fragments, MFMAs and the pipeline over k."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["block_class", "kernel", "schedule", "steps"]

_BLOCK = '''
class Block:
    """One workgroup: a TILE_M x TILE_N tile of D, as one of its waves sees it."""

    def __init__(self, A, B, M, N, K, first_m, first_n, batch):
        shared = fx.SharedAllocator()
        lds = shared.allocate(fx.Array[fx.Int32, LDS_WORDS, 16]).peek().ptr
        self.thread = fx.Int32(gpu.thread_idx.x)
        self.lane = self.thread % 64
        self.wave = fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        self.wave_m, self.wave_n = self.wave // WAVES_N, self.wave % WAVES_N
        self.A = @a_kind@(lds, 0, TILE_M, ATOM_MN, WAVES_M, self.wave_m, self.lane)
        self.B = @b_kind@(lds, TILE_M * ROW_WORDS, TILE_N, COLUMN_SPAN, WAVES_N, self.wave_n, self.lane)
        self.A.source_of(A, batch, first_m, M, K, self.thread, @a_access@, natural)
        self.B.source_of(B, batch, first_n, N, K, self.thread, @b_access@, column_row)
        @direct_of@

    def reads(self, bases, step):
        """LDS reads of one step as functions: the chunks of every atom's row."""
        a, b = bases
        out = []
        for read in range(step * READS, (step + 1) * READS):
            out += [(READ, 1, lambda t=t, r=read: self.A.fragment(a, t, r)) for t in range(A_ATOMS)]
            out += [(READ, 1, lambda t=t, r=read: self.B.fragment(b, t, r)) for t in range(B_ATOMS)]
        return out

    def bases(self, buffer):
        return self.A.bases_of(buffer), self.B.bases_of(buffer)

    def writes(self, buffer, staged):
        """LDS writes of a tile that registers hold, as functions."""
        return @writes@

    def loads(self, tile):
        """Global loads of what goes through registers, as functions."""
        return @loads@

    def directs(self, tile, buffer):
        """Global loads of what goes straight to LDS, as functions."""
        return @directs@
'''

_STEPS = '''
class Order:
    """Operations in the order in which they are written, and the request to the scheduler to keep it."""

    def __init__(self):
        self.kinds = []

    def do(self, operations):
        """Runs (kind, count, function) operations; their results without the None of writes."""
        results = []
        for kind, count, function in operations:
            self.kinds.append((kind, count))
            results.append(function())
        return [x for x in results if x is not None]

    def multiply(self, fragments, acc, operations, first=0, last=1):
        """A part of the MFMAs of one step with operations spread between them: (accumulators, results)."""
        acc, results = list(acc), []
        mfmas = [(part, i, j) for part in range(MFMAS) for i in range(A_ATOMS) for j in range(B_ATOMS)]
        mfmas = mfmas[int(len(mfmas) * first) : int(len(mfmas) * last)]
        for n, (part, i, j) in enumerate(mfmas):
            results += self.do(operations[share(operations, n, mfmas) : share(operations, n + 1, mfmas)])
            self.kinds.append((MFMA, 1))
            a, b = fragment_part(fragments, i, part), fragment_part(fragments, A_ATOMS + j, part)
            acc[i * B_ATOMS + j] = mma(b, a, acc[i * B_ATOMS + j])
        return acc, results

    def keep(self):
        """Asks the scheduler for this order up to here."""
        runs = []
        for kind, count in self.kinds:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += count
            else:
                runs.append([kind, count])
        for kind, count in runs:
            if PIN:
                rocdl.sched_group_barrier(kind, count, 0)
        self.kinds = []


def share(operations, n, mfmas):
    """How many operations stand before MFMA n."""
    return min(len(operations), -(-len(operations) * n // max(1, int(len(mfmas) * SPREAD))))


def fragment_part(fragments, atom, part):
    """What one MFMA takes of the chunks that a lane read for an atom."""
    read = [fragments[r * (A_ATOMS + B_ATOMS) + atom] for r in range(READS)]
    return mma_operand([chunk[i] for chunk in read for i in range(4)][part * MFMA_WORDS : (part + 1) * MFMA_WORDS])
'''

_STAGED_2 = '''
    def prologue(self):
        """Tile 0 to LDS, tile 1 under way, the first fragments in registers."""
        order, zero = Order(), fx.Int32(0)
        order.do(self.directs(zero, zero))
        order.do(self.writes(zero, order.do(self.loads(zero))))
        staged = order.do(self.loads(fx.Int32(1)))
        arrive()
        return [*staged, *order.do(self.reads(self.bases(zero), 0)), *zero_accumulators()]

    def step(self, tile, state):
        """One tile: its reads and MFMAs, the next tile to the other buffer, the one after that under way."""
        staged, fragments, acc = split_state(state)
        here = (tile & 1) * BUFFER_WORDS
        there = here ^ BUFFER_WORDS
        bases = self.bases(here)
        others = self.directs(tile + 1, there) + self.writes(there, staged) + self.loads(tile + 2)
        order, loaded = Order(), []
        for s in range(STEPS - 1):
            mine = others[len(others) * s // (STEPS - 1) : len(others) * (s + 1) // (STEPS - 1)]
            acc, results = order.multiply(fragments, acc, self.reads(bases, s + 1) + mine)
            fragments = results[:FRAGMENTS]
            loaded += results[FRAGMENTS:]
        mine = others if STEPS == 1 else []
        acc, results = order.multiply(fragments, acc, mine, 0, LATE)
        order.keep()
        arrive()
        acc, ahead = order.multiply(fragments, acc, self.reads(self.bases(there), 0), LATE, 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*loaded, *results, *ahead, *acc]
'''

_STAGED_1 = '''
    def prologue(self):
        """Tile 0 to LDS, tile 1 under way, the first fragments in registers."""
        order = Order()
        order.do(self.writes(fx.Int32(0), order.do(self.loads(fx.Int32(0)))))
        staged = order.do(self.loads(fx.Int32(1)))
        gpu.barrier()
        return [*staged, *order.do(self.reads(self.bases(fx.Int32(0)), 0)), *zero_accumulators()]

    def step(self, tile, state):
        """One tile: its reads and MFMAs; under the last MFMAs the next tile replaces it in LDS."""
        staged, fragments, acc = split_state(state)
        bases, order = self.bases(fx.Int32(0)), Order()
        for s in range(STEPS - 1):
            acc, fragments = order.multiply(fragments, acc, self.reads(bases, s + 1))
        order.keep()
        gpu.barrier()
        acc, loaded = order.multiply(fragments, acc, self.writes(fx.Int32(0), staged) + self.loads(tile + 2), 0, LATE)
        order.keep()
        gpu.barrier()
        acc, ahead = order.multiply(fragments, acc, self.reads(bases, 0), LATE, 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*loaded, *ahead, *acc]
'''

_TAIL = '''
    def tail(self, tile, acc):
        """The partial last tile of k, on its own: loads that stop at K, no overlap."""
        gpu.barrier()
        order = Order()
        lines_a, lines_b = order.do(self.A.loads(tile, True)), order.do(self.B.loads(tile, True))
        order.do(self.A.writes(fx.Int32(0), lines_a) + self.B.writes(fx.Int32(0), lines_b))
        gpu.barrier()
        bases = self.bases(fx.Int32(0))
        for s in range(STEPS):
            acc, _ = order.multiply(order.do(self.reads(bases, s)), acc, [])
        return acc
'''

_SPLIT = '''
def split_state(state):
    """Loop-carried values: the tile under way, the next fragments, the accumulators."""
    state = [Vec(x) for x in state]
    fragments = STAGED + READS * (A_ATOMS + B_ATOMS)
    return state[:STAGED], state[STAGED:fragments], state[fragments:]


def zero_accumulators():
    return [Vec.filled(ACC, @zero@, @acc@)] * (A_ATOMS * B_ATOMS)
'''

_KERNEL = """
@flyc.kernel(known_block_size=[THREADS, 1, 1])
def gemm_kernel(
    A: fx.Tensor, B: fx.Tensor, D: fx.Tensor, M: fx.Int32, N: fx.Int32, K: fx.Int32, alpha: fx.Float32
):
    first_m, first_n, batch = place(M, N)
    block = Block(A, B, M, N, K, first_m, first_n, batch)
    state = block.prologue()
    for tile, carried in range(fx.Int32(0), K // TILE_K, fx.Int32(1), init=state):
        state = yield block.step(tile, carried)
    acc = split_state(state)[2]
    for tile, carried in range(K // TILE_K, ceil_div(K, TILE_K), fx.Int32(1), init=acc):
        acc = yield block.tail(tile, [Vec(x) for x in carried])
    block.epilogue(D, M, N, first_m, first_n, batch, alpha, [Vec(x) for x in acc])
"""


_ARRIVE = '''
def arrive():
    """Every wave's part of the next tile is in LDS."""
    @wait@
    gpu.barrier()
'''


def block_class(a_kind: str, b_kind: str, a_direct: bool, b_direct: bool, buffers: int) -> str:
    """The Block class: operands, and the pipeline of one or two LDS buffers."""
    loads = [f"self.{name}.loads(tile, False)" for name, direct in (("A", a_direct), ("B", b_direct)) if not direct]
    directs = [f"self.{name}.directs(tile, buffer)" for name, direct in (("A", a_direct), ("B", b_direct)) if direct]
    writes = {
        (False, False): "self.A.writes(buffer, staged[:A_STAGED]) + self.B.writes(buffer, staged[A_STAGED:])",
        (True, False): "self.B.writes(buffer, staged)",
        (False, True): "self.A.writes(buffer, staged)",
        (True, True): "[]",
    }[a_direct, b_direct]
    direct_of = []
    if a_direct:
        direct_of.append("self.A.direct_of(self.thread, self.wave, natural)")
    if b_direct:
        direct_of.append("self.B.direct_of(self.thread, self.wave, column_of_row)")
    replacements = {
        "a_kind": a_kind,
        "b_kind": b_kind,
        "a_access": "A_ACCESS, A_TAIL" if a_kind == "AlongK" else "A_WIDTH",
        "b_access": "B_ACCESS, B_TAIL" if b_kind == "AlongK" else "B_WIDTH",
        "loads": " + ".join(loads) or "[]",
        "directs": " + ".join(directs) or "[]",
        "writes": writes,
        "direct_of": "\n        ".join(direct_of),
    }
    body = piece(_BLOCK)
    for name, text in replacements.items():
        body = body.replace(f"@{name}@", text)
    body = body.replace("        \n", "")
    arrive = piece(_ARRIVE).replace("@wait@", "rocdl.s_waitcnt(vmcnt=0)" if a_direct or b_direct else "")
    return join(arrive.replace("    \n", ""), body + "\n" + (_STAGED_2 if buffers == 2 else _STAGED_1) + _TAIL)


def steps() -> str:
    return piece(_STEPS)


def kernel() -> str:
    return piece(_KERNEL)


def split(acc: str, zero: str) -> str:
    return piece(_SPLIT).replace("@acc@", acc).replace("@zero@", zero)
