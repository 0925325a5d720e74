"""Wave level of an emitted GEMM: fragments, MFMAs and the pipeline over k."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["pipeline"]

_MFMAS = '''
def products(a, b, acc):
    """The MFMAs of one step as (row atom, column atom, part) in program order."""
    return [(i, j, part) for part in range(MFMAS) for i in range(A_ATOMS) for j in range(B_ATOMS)]
'''

_GEMM = '''
class Block:
    """One workgroup: a TILE_M x TILE_N tile of D, and the state of one of its waves."""

    def __init__(self, A, B, M, N, K, first_m, first_n, batch):
        shared = fx.SharedAllocator()
        lds = shared.allocate(fx.Array[fx.Int32, LDS_WORDS, 16]).peek().ptr
        self.thread = fx.Int32(gpu.thread_idx.x)
        self.lane = self.thread % 64
        self.wave = fx.Int32(rocdl.readfirstlane(T.i32, self.thread // 64))
        self.wave_m, self.wave_n = self.wave // WAVES_N, self.wave % WAVES_N
        self.A = @A_kind@(lds, 0, TILE_M, ATOM_MN, WAVES_M, self.wave_m, self.lane)
        self.B = @B_kind@(lds, BUFFERS * TILE_M * ROW_WORDS, TILE_N, COLUMN_SPAN, WAVES_N, self.wave_n, self.lane)
        self.A.source_of(A, batch, first_m, M, K, self.thread, A_ACCESS, A_TAIL, natural)
        self.B.source_of(B, batch, first_n, N, K, self.thread, B_ACCESS, B_TAIL, column_row)

    def fetch(self, tile):
        return self.A.fetch(tile) + self.B.fetch(tile)

    def store_ops(self, a_buffer, b_buffer, staged):
        """LDS writes of a tile that registers hold, one closure each."""
        count = A_LOADS
        ops = [lambda i=i, v=v: self.A.store(a_buffer, i, v) for i, v in enumerate(staged[:count])]
        return ops + [lambda i=i, v=v: self.B.store(b_buffer, i, v) for i, v in enumerate(staged[count:])]
'''
