"""Wave level of an emitted GEMM: fragments, MFMAs and the pipeline over k."""

from __future__ import annotations

from . import emit_gemm_packed as packed_text
from .emit_text import fill, join, piece

__all__ = ["block_class", "carried", "order", "split"]

_BLOCK = '''
class Block:
    """One workgroup: a TILE_M x TILE_N tile of D, as one of its waves sees it."""

    def __init__(self, lds, A, B, M, N, K, first_m, first_n, batch, first_k):
        self.thread = fx.Int32(gpu.thread_idx.x)
        self.lane = self.thread % 64
        self.wave = fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        self.wave_m, self.wave_n = self.wave // WAVES_N, self.wave % WAVES_N
        self.A = @a@TILE_M, ATOM_MN, WAVES_M, self.wave_m, self.lane)
        self.B = @b@TILE_N, COLUMN_SPAN, WAVES_N, self.wave_n, self.lane)
        self.A.source_of(A, batch, first_m, M, first_k, K@a_access@)
        self.B.source_of(B, batch, first_n, N, first_k, K@b_access@)
        @stagger@
'''

_BOTH_IN_LDS = '''
    def loads(self, tile, tail=False):
        """Global loads of a tile to registers."""
        return self.A.loads(tile, tail) + self.B.loads(tile, tail)

    def writes(self, buffer, staged):
        """LDS writes of a tile that registers hold."""
        return self.A.writes(buffer, staged[:A_STAGED]) + self.B.writes(buffer, staged[A_STAGED:])

    def bases(self, buffer):
        return self.A.bases_of(buffer), self.B.bases_of(buffer)

    def reads(self, bases, step):
        """LDS reads of one step: a chunk of every atom's row, for every read that an MFMA operand takes."""
        a, b = bases
        out = []
        for read in range(step * READS, (step + 1) * READS):
            out += [(READ, @accesses@, lambda t=t, r=read: self.A.fragment(a, t, r)) for t in range(A_ATOMS)]
            out += [(READ, @accesses@, lambda t=t, r=read: self.B.fragment(b, t, r)) for t in range(B_ATOMS)]
        return out
'''

_STAGGER = """\
        start = (first_m // TILE_M + first_n // TILE_N) % STAGGER * (K // TILE_K // STAGGER)
        self.A.stagger(start)
        self.B.stagger(start)
"""

_ORDER = '''
class Order:
    """Operations (kind, count, function) in the order in which they are written, and the request to keep it."""

    def __init__(self@given@):
        self.kinds = []
        @keep_given@

    def do(self, operations):
        """Results of the operations, without the None of writes."""
        self.kinds += [(kind, count) for kind, count, _ in operations]
        results = [function() for _, _, function in operations]
        return [x for x in results if x is not None]

    @methods@

    def keep(self):
        """Asks the scheduler for this order up to here."""@keep@
        self.kinds = []
'''

_MULTIPLY = '''
    def multiply(self, fragments, acc, operations, half=None):
        """The MFMAs of one step, or half of them, with operations spread between: (accumulators, results)."""
        acc, results = list(acc), []
        mfmas = [(part, i, j) for part in range(MFMAS) for @outer@ for @inner@]
        @step@
        if half is not None:
            middle = len(mfmas) // 2
            mfmas = mfmas[middle:] if half else mfmas[:middle]
        for n, (part, i, j) in enumerate(mfmas):
            @operands@
            self.kinds.append((MFMA, 1))
            acc[i * B_ATOMS + j] = mma(b, a, acc[i * B_ATOMS + j])
            first, last = (-(-len(operations) * k // len(mfmas)) for k in (n, n + 1))
            results += self.do(operations[first:last])
            @refill@
        return acc, results + ([] if mfmas else self.do(operations))
'''

_OPERAND = '''
def operand(fragments, atom, part):
    """What one MFMA takes of the chunks that a lane read for an atom."""
    read = [fragments[r * (A_ATOMS + B_ATOMS) + atom] for r in range(READS)]
    return mma_operand([chunk[i] for chunk in read for i in range(4)][part * MFMA_WORDS : (part + 1) * MFMA_WORDS])
'''

_KEEP = """
        runs = []
        for kind, count in self.kinds:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += count
            else:
                runs.append([kind, count])
        for kind, count in runs:
            rocdl.sched_group_barrier(kind, count, 0)"""

_PROLOGUE = '''
    def prologue(self):
        """Tile 0 to LDS, tile 1 under way, the first fragments in registers."""
        order, zero = Order(), fx.Int32(0)
        order.do(self.writes(zero, order.do(self.loads(zero))))
        @staged@
        gpu.barrier()
        fragments = order.do(self.reads(self.bases(zero), 0))
        return [*staged, *fragments, @packed_first@*zero_accumulators(A_ATOMS * B_ATOMS)]
'''

_ONE_BUFFER = (
    _PROLOGUE
    + '''
    def step(self, tile, state):
        """One tile: its reads and MFMAs; under the last MFMAs the next tile replaces it in LDS."""
        staged, fragments, @packed@acc = split_state(state)
        bases, order = self.bases(fx.Int32(0)), Order(@ahead@)
        for s in range(STEPS - 1):
            acc, fragments = order.multiply(fragments, acc, self.reads(bases, s + 1))
        order.keep()
        gpu.barrier()
        acc, staged = order.multiply(fragments, acc, self.writes(fx.Int32(0), staged) + self.loads(tile + 2), 0)
        order.keep()
        gpu.barrier()
        acc, fragments = order.multiply(fragments, acc, self.reads(bases, 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*staged, *fragments, @refilled@*acc]
'''
)

_TWO_BUFFERS = (
    _PROLOGUE
    + '''
    def step(self, tile, state):
        """One tile: its reads and MFMAs, the next tile to the other buffer, the one after that under way."""
        staged, fragments, @packed@acc = split_state(state)
        here = (tile & 1) * BUFFER_WORDS
        there = here ^ BUFFER_WORDS
        bases, order = self.bases(here), Order(@ahead@)
        others, loaded = self.writes(there, staged) + self.loads(tile + 2), []
        for s in range(STEPS - 1):
            mine = others[len(others) * s // (STEPS - 1) : len(others) * (s + 1) // (STEPS - 1)]
            acc, results = order.multiply(fragments, acc, self.reads(bases, s + 1) + mine)
            fragments = results[:FRAGMENTS]
            loaded += results[FRAGMENTS:]
        acc, results = order.multiply(fragments, acc, others if STEPS == 1 else [], 0)
        order.keep()
        gpu.barrier()
        acc, fragments = order.multiply(fragments, acc, self.reads(self.bases(there), 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*loaded, *results, *fragments, @refilled@*acc]
'''
)

_DIRECT = '''
    def directs(self, tile, buffer):
        """Global loads of a tile straight to LDS."""
        return self.A.directs(tile, buffer) + self.B.directs(tile, buffer)

    def arrive(self):
        """The loads of every wave are in LDS."""
        rocdl.s_waitcnt(vmcnt=0)
        gpu.barrier()

    def prologue(self):
        """Tile 0 in LDS, the first fragments in registers."""
        order, zero = Order(), fx.Int32(0)
        self.A.direct_of(self.thread, self.wave, natural)
        self.B.direct_of(self.thread, self.wave, row_column)
        order.do(self.directs(zero, zero))
        self.arrive()
        return [*order.do(self.reads(self.bases(zero), 0)), *zero_accumulators(A_ATOMS * B_ATOMS)]

    def step(self, tile, state):
        """One tile: the next one is on its way to the other buffer under the reads and MFMAs of this one."""
        _, fragments, acc = split_state(state)
        here = (tile & 1) * BUFFER_WORDS
        there = here ^ BUFFER_WORDS
        bases, order, early = self.bases(here), Order(), self.directs(tile + 1, there)
        for s in range(STEPS - 1):
            acc, fragments = order.multiply(fragments, acc, early + self.reads(bases, s + 1))
            early = []
        acc, _ = order.multiply(fragments, acc, early, 0)
        order.keep()
        rocdl.sched_barrier(0)
        self.arrive()
        acc, fragments = order.multiply(fragments, acc, self.reads(self.bases(there), 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*fragments, *acc]
'''

_TAIL = '''
    def tail(self, tile, acc):
        """The partial last tile of k, on its own: loads that stop at K, nothing to overlap with."""
        order, zero = Order(), fx.Int32(0)
        @tail@
        gpu.barrier()
        order.do(self.writes(zero, order.do(self.loads(tile, True))))
        gpu.barrier()
        bases = self.bases(zero)
        for s in range(STEPS):
            acc, _ = order.multiply(order.do(self.reads(bases, s)), acc, [])
        return acc
'''

_SPLIT = """
def split_state(state):
    @split@
"""

_VECTORS = '''
def vectors(state):
    """Loop-carried values as vectors; a loop that carries one value gives it without a list."""
    return [Vec(x) for x in (state if isinstance(state, (list, tuple)) else [state])]
'''

_ZEROS = """
def zero_accumulators(count):
    return [Vec.filled(ACC, @zero@, ACC_TYPE)] * count
"""

_OWN_ZEROS = '''
def zero_accumulators(count):
    """Zeros that the compiler cannot see to be equal: sums that start from one register it would copy in every tile."""
    return [Vec.filled(ACC, opaque_zero(), fx.Int32).bitcast(ACC_TYPE) for _ in range(count)]


def opaque_zero():
    return fx.Int32(llvm.inline_asm(T.i32, [], "v_mov_b32 $0, 0", "=v", has_side_effects=True))
'''

#: What the texts above say where both operands pass through LDS.
_PARTS = {
    **dict.fromkeys(("given", "keep_given", "step", "refill", "refills", "packed", "ahead"), ""),
    **dict.fromkeys(("refilled", "packed_first", "tail"), ""),
    "staged": "staged = order.do(self.loads(fx.Int32(1)))",
    "outer": "i in range(A_ATOMS)",
    "inner": "j in range(B_ATOMS)",
    "operands": "a, b = operand(fragments, i, part), operand(fragments, A_ATOMS + j, part)",
}
_STATE = '''
"""Loop-carried values: the tile under way, the next fragments, the accumulators."""
state = vectors(state)
return state[:CARRIED], state[CARRIED : CARRIED + FRAGMENTS], state[CARRIED + FRAGMENTS :]
'''


def order(pinned: bool, packed: str, direct: bool) -> str:
    """The Order class; `pinned` asks the scheduler to keep the written order. `packed`: "", "A", "B" or "AB"."""
    parts = packed_text.parts(packed, direct) if packed else _PARTS
    methods = [parts["multiply"] if packed == "AB" else fill(piece(_MULTIPLY), parts), parts["refills"]]
    values = {**parts, "methods": join(*methods, blank=1), "keep": _KEEP if pinned else ""}
    return join(fill(piece(_ORDER), values), packed_text.operand() if packed else piece(_OPERAND))


def block_class(a_kind: str, b_kind: str, buffers: int, direct: bool, halves: bool, stagger: bool) -> str:
    """The Block class with the pipeline of one or two LDS buffers, of direct loads, or without LDS.

    `halves`: a chunk takes two LDS reads; `stagger`: workgroups start at different tiles of k.
    """
    packed = "".join(name for name, kind in (("A", a_kind), ("B", b_kind)) if kind == "Packed")
    values = {"stagger": piece(_STAGGER) if stagger else ""}
    for name, kind, rows, image in (("A", a_kind, "natural", "0"), ("B", b_kind, "column_row", "TILE_M * ROW_WORDS")):
        access = f"{name}_READ, {name}_TAIL" if kind == "AlongK" else f"{name}_READ"
        through = kind != "Packed"
        values[name.lower()] = f"{kind}(lds, {'0' if packed else image}, " if through else "Packed("
        values[f"{name.lower()}_access"] = f", self.thread, {access}, {rows}" if through else ""
    body = fill(piece(_BLOCK), values) + "\n"
    if packed == "AB":
        return body + packed_text.pipeline()
    parts = packed_text.parts(packed, direct) if packed else _PARTS
    pipeline = _TWO_BUFFERS if buffers == 2 else _ONE_BUFFER
    if packed:
        pipeline = packed_text.block_methods(direct) + ("" if direct else pipeline)
    else:
        pipeline = _BOTH_IN_LDS + (_DIRECT if direct else pipeline)
    return body + fill((pipeline + _TAIL).rstrip("\n"), {**parts, "accesses": "2" if halves else "1"})


def split(zero: str, packed: str, unified: bool) -> str:
    """Parts of the loop-carried state. `unified`: accumulators and other registers share one file."""
    parts = piece(_SPLIT) + "\n\n\n" + piece(_VECTORS)
    parts = fill(parts, {"split": packed_text.state(packed) if packed else piece(_STATE)})
    return join(parts, _zeros(zero, unified))


def carried(zero: str) -> str:
    """Loop-carried values as vectors, and the sums that they begin with."""
    return join(piece(_VECTORS), _zeros(zero, True))


def _zeros(zero: str, unified: bool) -> str:
    return fill(piece(_ZEROS), {"zero": zero}) if unified else piece(_OWN_ZEROS)
