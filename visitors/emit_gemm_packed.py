"""Pre-shuffled operands of an emitted GEMM: straight from memory to registers, in place of the chunks just used.

The texts here take the place of those of emit_gemm_loop where A, B or both are packed. A packed operand has no image in
LDS: its chunks of a whole tile are loop-carried, and the next tile's are loaded into each as soon as the last MFMA has
taken it, so that they are under way for almost a tile and take no second set of registers.
"""

from __future__ import annotations

from .emit_text import fill, piece

__all__ = ["block_methods", "operand", "packed", "parts", "pipeline", "state"]

_PACKED = '''
class Packed:
    """A tile of one operand that @packers@ put in the order of its fragments: a wave reads 1 KiB in a row.

    Waves take turns along the rows, `turn` rows at a time.
    """

    def __init__(self, rows, turn, waves, wave, lane):
        self.rows, self.turn, self.waves, self.wave = rows, turn, waves, wave
        self.offset = lane * 16

    def row_of(self, t):
        """Rows from the wave's first one to atom t."""
        row = t * ATOM_MN
        return row // self.turn * (self.waves * self.turn) + row % self.turn

    def source_of(self, tensor, batch, first, count, first_k, K):
        """Where the tile lies; its sum begins with tile `first_k` of k.

        A block of rows past the last one is read as the first one of the tile: no such row or column of D is stored.
        """
        block = stride(tensor, 1) * ELEM_BYTES
        start = batch * stride(tensor, 0) * ELEM_BYTES + fx.Int64(first // ATOM_MN) * block
        self.address = address_of(tensor) + start + fx.Int64(first_k) * (TILE_K * ATOM_MN * ELEM_BYTES)
        self.tiles, block = ceil_div(K, TILE_K), fx.Int32(block)
        left = ceil_div(count - first, self.turn) * (self.turn // ATOM_MN)
        blocks = smaller(left, fx.Int32(self.rows // ATOM_MN))
        self.extent = blocks * block
        self.places = []
        for t in range(self.rows // (self.waves * ATOM_MN)):
            number = (self.wave * self.turn + self.row_of(t)) // ATOM_MN
            self.places.append((number < blocks).select(number * block, fx.Int32(0)))

    def loads(self, tile):
        """This lane's chunks of a tile, by step, atom and read; 0 past the last tile."""
        step = TILE_K * ATOM_MN * ELEM_BYTES
        extent = (tile < self.tiles).select(self.extent - tile * step, fx.Int32(0))
        source, out = resource(self.address + fx.Int64(tile) * step, extent), []
        for first in range(0, STEPS * READS, READS):
            for place in self.places:
                for read in range(first, first + READS):
                    offset = self.offset + read * 1024
                    out.append((LOAD, 1, lambda o=offset, p=place: chunk_of(load(source, [o], 16, p))))
        return out
'''

_METHODS = '''
    def loads(self, tile, tail=False):
        """Global loads of a tile of @lds@ to registers."""
        return self.@lds@.loads(tile, tail)

    def writes(self, buffer, staged):
        """LDS writes of a tile that registers hold."""
        return self.@lds@.writes(buffer, staged)

    def bases(self, buffer):
        return self.@lds@.bases_of(buffer)

    def reads(self, bases, step):
        """LDS reads of one step: a chunk of every atom's row, for every read that an MFMA operand takes."""
        places = [(t, r) for r in range(step * READS, (step + 1) * READS) for t in range(@lds@_ATOMS)]
        return [(READ, 1, lambda t=t, r=r: self.@lds@.fragment(bases, t, r)) for t, r in places]
'''

_MULTIPLY_BOTH = '''
    def multiply(self, acc):
        """The MFMAs of one step; chunks of the next tile take the place of those that no other MFMA needs."""
        acc = list(acc)
        mfmas = [(part, i, j) for part in range(MFMAS) for i in range(A_ATOMS) for j in range(B_ATOMS)]
        first = self.done // len(mfmas) * (A_ATOMS + B_ATOMS)
        for part, i, j in mfmas:
            at_a, at_b = (first + i) * READS, (first + A_ATOMS + j) * READS
            a, b = operand(self.packed[at_a : at_a + READS], part), operand(self.packed[at_b : at_b + READS], part)
            self.kinds.append((MFMA, 1))
            acc[i * B_ATOMS + j] = mma(b, a, acc[i * B_ATOMS + j])
            if part == MFMAS - 1 and j == B_ATOMS - 1:
                self.refill(at_a)
            if part == MFMAS - 1 and i == A_ATOMS - 1:
                self.refill(at_b)
        self.done += len(mfmas)
        return acc
'''

_REFILL = '''
    def refill(self, at):
        """Loads the next tile's chunks in place of those from number `at` on, which the last MFMA has taken."""
        if self.refills:
            self.packed[at : at + READS] = self.do(self.refills[at : at + READS])
'''

_REFILL_COUNTED = '''
    def refill(self, at):
        """Loads the next tile's chunks in place of those from number `at` on, which the last MFMA has taken."""
        self.taken.append(at)
        self.refill_from(self.refills)

    def refill_from(self, loads):
        """The next tile's chunks come by `loads`, those already taken at once; `younger` counts them."""
        self.refills = loads
        for at in self.taken if loads else ():
            self.packed[at : at + READS] = self.do(loads[at : at + READS])
            self.younger += READS
        self.taken = [] if loads else self.taken
'''

_OPERAND = '''
def operand(chunks, part):
    """What one MFMA takes of the chunks of k of an atom's row."""
    return mma_operand([chunk[i] for chunk in chunks for i in range(4)][part * MFMA_WORDS : (part + 1) * MFMA_WORDS])


def in_order(loads):
    """Results of loads that are issued one after the other, as in the loop, which waits for a count of younger ones."""
    out = []
    for _, _, function in loads:
        out.append(function())
        rocdl.sched_barrier(0)
    return out
'''

_DIRECT = '''
    def directs(self, tile, buffer):
        """Global loads of a tile of @lds@ straight to LDS."""
        return self.@lds@.directs(tile, buffer)

    def arrive(self, younger):
        """The loads to LDS of every wave have arrived; `younger` loads to registers after them may be under way."""
        rocdl.s_waitcnt(vmcnt=min(younger, 63))
        gpu.barrier()

    def prologue(self):
        """Tile 0 in LDS and its packed chunks, the first fragments in registers."""
        order, zero = Order(), fx.Int32(0)
        self.@lds@.direct_of(self.thread, self.wave, @source_row@)
        order.do(self.directs(zero, zero))
        packed = in_order(self.@packed_name@.loads(zero))
        self.arrive(0)
        return [*order.do(self.reads(self.bases(zero), 0)), *packed, *zero_accumulators(A_ATOMS * B_ATOMS)]

    def step(self, tile, state):
        """One tile: the next one is on its way to the other buffer and to the chunks that MFMAs have taken.

        All loads to LDS come first, so that their arrival is a count of the younger ones.
        """
        _, fragments, packed, acc = split_state(state)
        here = (tile & 1) * BUFFER_WORDS
        there = here ^ BUFFER_WORDS
        bases, order = self.bases(here), Order(packed)
        acc, _ = order.multiply(fragments, acc, self.directs(tile + 1, there), 0)
        order.keep()
        rocdl.sched_barrier(0)
        order.refill_from(self.@packed_name@.loads(tile + 1))
        for s in range(STEPS - 1):
            acc, fragments = order.multiply(fragments, acc, self.reads(bases, s + 1), None if s else 1)
        if STEPS > 1:
            acc, _ = order.multiply(fragments, acc, [], 0)
        order.keep()
        rocdl.sched_barrier(0)
        self.arrive(order.younger)
        acc, fragments = order.multiply(fragments, acc, self.reads(self.bases(there), 0), 1)
        order.keep()
        rocdl.sched_barrier(0)
        return [*fragments, *order.packed, *acc]
'''

_PIPELINE = '''
    def loads(self, tile):
        """This lane's chunks of a tile: of every step those of A, then those of B."""
        a, b = self.A.loads(tile), self.B.loads(tile)
        steps = [(s * READS * A_ATOMS, s * READS * B_ATOMS) for s in range(STEPS + 1)]
        return [x for (i, j), (k, l) in zip(steps, steps[1:]) for x in a[i:k] + b[j:l]]

    def prologue(self):
        """Tile 0 under way, above the barrier, which loads do not pass."""
        packed = in_order(self.loads(fx.Int32(0)))
        gpu.barrier()
        return [*packed, *zero_accumulators(A_ATOMS * B_ATOMS)]

    def step(self, tile, state):
        """One tile; the next one takes its place chunk by chunk. No wave waits for another."""
        packed, acc = split_state(state)
        order = Order(packed, self.loads(tile + 1))
        for _ in range(STEPS):
            acc = order.multiply(acc)
        order.keep()
        rocdl.sched_barrier(0)
        return [*order.packed, *acc]
'''

_STATE = '''
"""Loop-carried values: the tile under way, the next fragments, the packed chunks, the accumulators."""
state, out = vectors(state), []
for count in (CARRIED, FRAGMENTS, PACKED):
    out, state = [*out, state[:count]], state[count:]
return [*out, state]
'''

_STATE_BOTH = '''
"""Loop-carried values: the packed chunks and the accumulators."""
state = vectors(state)
return state[:PACKED], state[PACKED:]
'''


def packed(operands: str) -> str:
    """The class of packed operands; `operands` names them."""
    return fill(piece(_PACKED), {"packers": " and ".join(f"pack_{name.lower()}()" for name in operands)})


def parts(name: str, counted: bool) -> dict[str, str]:
    """What the pipelines of one or two LDS buffers say where operand `name`, "A", "B" or both, is packed.

    `counted`: loads of packed chunks are counted and wait for those that go straight to LDS.
    """
    keep = ["self.packed, self.refills, self.done = list(packed), refills, 0"]
    out = {
        "given": ", packed=(), refills=()",
        "keep_given": "\n".join(keep + ["self.taken, self.younger = [], 0"] * counted),
        "refills": piece(_REFILL_COUNTED if counted else _REFILL),
    }
    if name == "AB":
        return {**out, "multiply": piece(_MULTIPLY_BOTH)}
    at, inner, lds = {"A": ("i", "j", "B"), "B": ("j", "i", "A")}[name]
    chunks = "operand(self.packed[at : at + READS], part)"
    read = f"operand(fragments[{inner}::{lds}_ATOMS], part)"
    a, b = (chunks, read) if name == "A" else (read, chunks)
    return out | {
        "outer": f"{at} in range({name}_ATOMS)",
        "inner": f"{inner} in range({lds}_ATOMS)",
        "step": f"atom = self.done // len(mfmas) * {name}_ATOMS",
        "operands": f"at = (atom + {at}) * READS\na, b = {a}, {b}",
        "refill": f"self.done += 1\nif part == MFMAS - 1 and {inner} == {lds}_ATOMS - 1:\n    self.refill(at)",
        "packed": "packed, ",
        "ahead": f"packed, self.{name}.loads(tile + 1)",
        "refilled": "*order.packed, ",
        "staged": (
            f"chunks = self.{name}.loads(zero)\n"
            "half = len(chunks) // 2\n"
            "packed = in_order(chunks[:half])\n"
            "staged = in_order(self.loads(fx.Int32(1)))\n"
            "packed += in_order(chunks[half:])"
        ),
        "packed_first": "*packed, ",
        "tail": f"order.packed = order.do(self.{name}.loads(tile))",
        "lds": lds,
        "packed_name": name,
        "source_row": "natural" if lds == "A" else "row_column",
    }


def block_methods(direct: bool) -> str:
    """What the block does with the operand that is not packed, and the pipeline of direct loads; see `parts`."""
    return _METHODS + (_DIRECT if direct else "")


def pipeline() -> str:
    """The pipeline where both operands are packed."""
    return _PIPELINE.strip("\n")


def operand() -> str:
    return piece(_OPERAND)


def state(name: str) -> str:
    """How the loop-carried values are split."""
    return piece(_STATE_BOTH if name == "AB" else _STATE)
