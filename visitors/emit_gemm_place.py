"""Which tile of D, and which part of its sum over k, an emitted GEMM's workgroup takes."""

from __future__ import annotations

import re

from closedform.operators.gemm import GemmTiles

from .emit_text import join, piece

__all__ = ["DEALT", "place"]

_TILE = '''
def tile_at(tile, tiles_m, tiles_n):
    """First row and column of a tile: tiles go down GROUP_M rows of tiles before the next column of tiles."""
    group = tile // (tiles_n * GROUP_M)
    inside = tile - group * (tiles_n * GROUP_M)
    rows = smaller(tiles_m - group * GROUP_M, fx.Int32(GROUP_M))
    return (group * GROUP_M + inside % rows) * TILE_M, inside // rows * TILE_N
'''

#: Which workgroup's work a workgroup does.
DEALT = '''
def dealt(number, count):
    """Workgroups are dealt to the XCDs in turn; their numbers in runs, so that neighbours share an L2."""
    xcd, turn = number % XCDS, number // XCDS
    return xcd * (count // XCDS) + smaller(xcd, count % XCDS) + turn
'''

_PLACE = '''
def place(M, N, K):
    """Tile of this workgroup: (M, K, first row, first column, batch entry); M and K are 0 past the last tile."""
    tiles_m, tiles_n = ceil_div(M, TILE_M), ceil_div(N, TILE_N)
    tile = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
    active = tile < tiles_m * tiles_n
    tile = active.select(tile, fx.Int32(0))
    tile = dealt(tile, tiles_m * tiles_n)
    first_m, first_n = tile_at(tile, tiles_m, tiles_n)
    zero = fx.Int32(0)
    return active.select(M, zero), active.select(K, zero), first_m, first_n, fx.Int64(gpu.block_idx.z)
'''

_SPLIT = '''
class Part:
    """A tile of D and one of the SPLIT_K runs of tiles of k that its sum is cut into; M and K are 0 past the last part.

    The parts of all tiles come one after another, so that workgroups that run together share rows and columns.
    `pieces` in units of a workgroup: SPLIT_K for partial sums, what a workgroup finishes when they are added.
    """

    def __init__(self, M, N, K, pieces):
        tiles_m, tiles_n = ceil_div(M, TILE_M), ceil_div(N, TILE_N)
        tiles, zero = tiles_m * tiles_n, fx.Int32(0)
        number = fx.Int32(gpu.block_idx.y) * GRID_X + fx.Int32(gpu.block_idx.x)
        self.active = number < tiles * pieces
        number = self.active.select(number, zero)
        tile, self.piece = number % tiles, number // tiles
        tile = dealt(tile, tiles)
        self.first_m, self.first_n = tile_at(tile, tiles_m, tiles_n)
        self.batch = fx.Int64(gpu.block_idx.z)
        self.tile = self.batch * fx.Int64(tiles) + fx.Int64(tile)
        depth = ceil_div(K, TILE_K)
        each, more = depth // SPLIT_K, depth % SPLIT_K
        self.first_k = self.piece * each + smaller(self.piece, more)
        count = each + (self.piece < more).select(fx.Int32(1), zero)
        left = K - self.first_k * TILE_K
        self.M = self.active.select(M, zero)
        self.K = self.active.select(smaller((left > 0).select(left, zero), count * TILE_K), zero)
'''

_STREAM = '''
class Share:
    """What one of the persistent workgroups does: whole tiles in rounds, then a run of tiles of k.

    The last tiles, between one and two for each workgroup, are cut into equal runs of tiles of k that do not care where
    a tile ends. A tile that several runs share is finished by the last of them to arrive.
    """

    def __init__(self, M, N, K, batch, workgroups):
        self.workgroups = workgroups
        self.M, self.N, self.K = M, N, K
        self.tiles_m, self.tiles_n = ceil_div(M, TILE_M), ceil_div(N, TILE_N)
        tiles = self.tiles_m * self.tiles_n * batch
        zero, one = fx.Int32(0), fx.Int32(1)
        self.me = dealt(fx.Int32(gpu.block_idx.x), self.workgroups)
        self.depth = ceil_div(K, TILE_K)
        self.depth = (self.depth > 0).select(self.depth, one)
        rounds = tiles // self.workgroups
        rounds = rounds - (tiles % workgroups > 0).select(one, zero)
        self.rounds = (rounds > 0).select(rounds, zero)
        run = (tiles - self.rounds * self.workgroups) * self.depth
        self.each, self.more = run // self.workgroups, run % self.workgroups
        self.begin = self.me * self.each + smaller(self.me, self.more)
        self.end = self.begin + self.each + (self.me < self.more).select(one, zero)
        self.first = self.begin // self.depth
        split = (self.end - 1) // self.depth - self.first + 1
        self.segments = self.rounds + (self.end > self.begin).select(split, zero)

    def owner(self, step):
        """The workgroup whose run has this tile of k, counted from the start of the first shared tile."""
        long = self.more * (self.each + 1)
        each = (self.each > 0).select(self.each, fx.Int32(1))
        return (step < long).select(step // (self.each + 1), self.more + (step - long) // each)


def share_of(*sizes):
    """The share anew, from sizes that the compiler takes for others: it keeps nothing of it from loop to loop."""
    return Share(*(opaque(size) for size in sizes))


def opaque(value, register="s"):
    """The same scalar, or vector with register "v", of which the compiler knows nothing."""
    raw = value.ir_value()
    return type(value)(llvm.inline_asm(raw.type, [raw], "", f"={register},0", has_side_effects=True))


class Segment:
    """A tile of D and the tiles of k of it that this workgroup adds.

    shared: its number among the tiles that are cut; contributors: how many workgroups add to it, the first one being
    `leader`; slot: where in the workspace this workgroup's sums go.
    """

    def __init__(self, share, number):
        zero, depth = fx.Int32(0), share.depth
        whole = number < share.rounds
        self.shared = whole.select(zero, share.first + number - share.rounds)
        tile = share.rounds * share.workgroups + self.shared
        tile = whole.select(number * share.workgroups + share.me, tile)
        start = self.shared * depth
        first = (share.begin > start).select(share.begin - start, zero)
        self.first_k = whole.select(zero, first)
        last_k = whole.select(depth, smaller(share.end - start, depth))
        self.leader = share.owner(start)
        contributors = share.owner(start + depth - 1) - self.leader + 1
        self.contributors = whole.select(fx.Int32(1), contributors)
        self.slot = slot_of(share.me, self.first_k == 0)
        self.M, self.K = share.M, smaller(share.K - self.first_k * TILE_K, (last_k - self.first_k) * TILE_K)
        tiles = share.tiles_m * share.tiles_n
        self.batch = fx.Int64(tile // tiles)
        self.first_m, self.first_n = tile_at(tile % tiles, share.tiles_m, share.tiles_n)

    def slot_at(self, contributor):
        """Where the sums of a contributor are."""
        return slot_of(self.leader + contributor, contributor == 0)


def slot_of(workgroup, leads):
    """A workgroup adds to at most two tiles that it shares: one that it leads and one that it does not."""
    return workgroup * 2 + leads.select(fx.Int32(1), fx.Int32(0))
'''


def place(tiles: GemmTiles) -> str:
    """From a workgroup's number to what it works on."""
    body = piece(_STREAM if tiles.stream_k else _SPLIT if tiles.splits else _PLACE)
    if tiles.xcds == 1:
        body = re.sub(r"\n +tile = dealt\(.*\)(?=\n)", "", body)
        body = body.replace("dealt(fx.Int32(gpu.block_idx.x), self.workgroups)", "fx.Int32(gpu.block_idx.x)")
    return join(piece(_TILE), piece(DEALT) if tiles.xcds > 1 else "", body)
