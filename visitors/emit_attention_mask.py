"""Which keys the queries of emitted attention see: the tiles that a workgroup visits and the mask inside a tile.

The text follows closedform.operators.visibility; tiles that no query of the workgroup sees are not visited, and a wave
whose queries see all of a tile does no arithmetic for the mask.
"""

from __future__ import annotations

from .emit_attention_form import Form
from .emit_text import fill, join, piece

__all__ = ["clipping", "last_scores", "masked", "methods", "tile_range"]

_MASKED = '''
def masked(tiles, group, keys_left):
    """Scores of keys past the end become -inf, the identity of the maximum."""
    keys_left = keys_left - KEY_GROUP * group
    out = []
    for t, tile in enumerate(tiles):
        keys = KEY[t * ACC : (t + 1) * ACC]
        seen = [(keys_left > key).select(tile[r], fx.Float32(NEG_INF)) for r, key in enumerate(keys)]
        out.append(Vec.from_elements(seen, fx.Float32))
    return out
'''

_MASKED_BETWEEN = '''
def masked(tiles, @ends@):
    """Scores of keys that the lane's query does not see become -inf, the identity of the maximum.

    Four comparisons at a time: a select that follows its own comparison at once would wait for it.
    """
    out = []
    for t, tile in enumerate(tiles):
        scores = []
        for r in range(0, ACC, 4):
            seen = [@seen@ for key in KEY[t * ACC + r : t * ACC + r + 4]]
            rocdl.sched_barrier(0)
            scores += [s.select(tile[r + e], fx.Float32(NEG_INF)) for e, s in enumerate(seen)]
            rocdl.sched_barrier(0)
        out.append(Vec.from_elements(scores, fx.Float32))
    return out


@flyc.jit
def clipped(cut, tiles, top, ends):
    """Scores and their maxima with the mask, where the tile is `cut` for this wave."""
    if cut:
        tiles, top = masked_scores(tiles, top, ends)
    return tiles, top


def masked_scores(tiles, top, ends):
    out, tops = [], []
    for n in range(Q_TILES):
        seen = masked(tiles[n * KEY_TILES : (n + 1) * KEY_TILES], *ends[n])
        largest = fx.Float32(seen[0][0])
        for tile in seen:
            for r in range(0, ACC, 2):
                largest = larger(largest, tile, r)
        out, tops = out + seen, [*tops, across_groups(largest, fx.maxnumf)]
    return out, tops
'''

_RANGE = '''
def see(self, first, L_q):
    """The tiles that a workgroup with queries from `first` on visits: @order@.

    Query i stands at position i + shift of the keys: the last query at the last key.
    """
    self.shift = self.L_kv - L_q
    last = fx.min(first + WAVES * TILE_Q, L_q) - 1 + self.shift
    end = fx.max(@end@, fx.Int32(0))
    @begin@
    @sinks@
    @tiles@

def tile_number(self, tile):
    """Which tile of the keys is number `tile` of those that are visited."""
    @number@

def is_cut(self, tile):
    """Whether a query of this wave does not see some key of the tile."""
    first = self.first_row + self.shift
    begin = self.tile_number(tile) * TILE_KV
    @cut@

def ends(self, tile):
    """For each query tile, where what the lane's query sees ends@what@, from the lane's first key of the tile."""
    first = self.tile_number(tile) * TILE_KV + KEY_GROUP * self.group
    out = []
    for n in range(Q_TILES):
        position = self.first_row + n * ATOM_N + self.column + self.shift
        @reach@
        out.append((@relative@))
    return out
'''


_AT_LEAST_ONE = '''
def at_least_one(tiles):
    """`tiles`, but one, of which nothing is seen, where there are none.

    What the compiler knows of the range makes it hoist so much out of the loop that registers run out: hidden here.
    """
    return fx.Int32(rocdl.readfirstlane(T.i32, fx.max(tiles, fx.Int32(1))))
'''


def masked(form: Form) -> str:
    """Functions of the mask."""
    count = piece(_AT_LEAST_ONE) if form.may_be_empty else ""
    if not form.op.has_mask:
        return join(piece(_MASKED), count)
    ends, seen = "end", "end > key"
    if form.op.window:
        ends, seen = "end, begin", "(end > key) & (begin <= key)"
    if form.op.sink:
        ends, seen = "end, begin, sinks", "((end > key) & (begin <= key)) | (sinks > key)"
    return join(fill(piece(_MASKED_BETWEEN), {"ends": ends, "seen": seen}), count)


_SHARE = """
share = (self.tiles + (splits - 1)) // splits
self.first_visited = self.split * share
self.tiles = at_least_one(fx.min(self.tiles - self.first_visited, share))
"""

_NUMBER = '''
def tile_number(self, tile):
    """Which tile of the keys is number `tile` of those that this workgroup visits."""
    return tile + self.first_visited
'''


def tile_range(form: Form) -> str:
    """The lines that set how many tiles the workgroup visits."""
    if form.op.has_mask:
        every = "self.see(first_row, L_q)"
    else:
        count = "(L_kv + (TILE_KV - 1)) // TILE_KV"
        every = f"self.tiles = at_least_one({count})" if form.may_be_empty else f"self.tiles = {count}"
    return join(every, piece(_SHARE) if form.split else "", blank=0)


def clipping(form: Form) -> str:
    """The lines at the head of a step that mask its scores, where that is due."""
    if not form.op.has_mask:
        return ""
    return piece(
        """
        flat = [tile for tiles in scores for tile in tiles]
        flat, top = clipped(self.is_cut(tile), flat, top, self.ends(tile))
        scores = [flat[n * KEY_TILES : (n + 1) * KEY_TILES] for n in range(Q_TILES)]
        """
    )


def last_scores(form: Form) -> str:
    """The scores of the last tile, which is always masked."""
    if form.op.has_mask:
        return "scores = [masked(tiles, *ends) for tiles, ends in zip(scores, self.ends(self.tiles - 1), strict=True)]"
    last = form.number("self.tiles - 1") if form.is_numbered else "(self.tiles - 1)"
    return f"scores = [masked(tiles, self.group, self.L_kv - {last} * TILE_KV) for tiles in scores]"


def methods(form: Form) -> str:
    """Methods of the wave that know which keys its queries see."""
    if not form.op.has_mask:
        return piece(_NUMBER) if form.split else ""
    return fill(piece(_RANGE), {**_range_text(form), **_cut_text(form), **_ends_text(form)})


def _range_text(form: Form) -> dict[str, str]:
    reach = "last + 1" if form.op.causal else "self.L_kv"
    end = reach if form.op.causal else f"fx.min({reach}, last + WINDOW)"
    count = "(end + (TILE_KV - 1)) // TILE_KV"
    if not form.op.window:
        order, begin, sinks, number = "up to the last position", "", "", "return tile"
        tiles = f"self.tiles = at_least_one({count})"
    else:
        order = "those within the window"
        begin = "begin = fx.max(first + self.shift - (WINDOW - 1), fx.Int32(0))"
        sinks, number = "", "return tile + self.first_tile"
        begin_tile = "begin // TILE_KV"
        if form.op.sink:
            order = "those of sink tokens, then those within the window"
            limit = f"fx.min({reach}, self.L_kv)" if form.op.causal else "self.L_kv"
            sinks = (
                f"sinks = fx.max(fx.min({limit}, fx.Int32(SINK)), fx.Int32(0))\n"
                "self.sink_tiles = (sinks + (TILE_KV - 1)) // TILE_KV"
            )
            begin_tile = f"fx.max({begin_tile}, self.sink_tiles)"
            number = "return (tile < self.sink_tiles).select(tile, tile - self.sink_tiles + self.first_tile)"
        near = f"fx.max({count} - self.first_tile, fx.Int32(0))"
        total = f"{near} + self.sink_tiles" if form.op.sink else near
        tiles = f"self.first_tile = {begin_tile}\nself.tiles = at_least_one({total})"
    if form.split:
        number = f"tile = tile + self.first_visited\n{number}"
    return {"order": order, "end": end, "begin": begin, "sinks": sinks, "tiles": tiles, "number": number}


def _cut_text(form: Form) -> dict[str, str]:
    behind = "begin + TILE_KV > first + 1"
    if not form.op.window:
        return {"cut": f"return {behind}"}
    near = "(begin < first + TILE_Q - WINDOW)"
    if not form.op.causal:
        near = f"({near} | (begin + TILE_KV > first + WINDOW))"
    if form.op.sink:
        near = f"({near} & (begin + TILE_KV > SINK))"
    return {"cut": f"return ({behind}) | {near}" if form.op.causal else f"return {near}"}


def _ends_text(form: Form) -> dict[str, str]:
    lines = ["reach = fx.min(position + 1, self.L_kv)" if form.op.causal else "reach = self.L_kv"]
    what, parts = "", ["reach - first"]
    if form.op.window:
        what = " and begins"
        end = "reach" if form.op.causal else "fx.min(reach, position + WINDOW)"
        parts = [f"{end} - first", "position - (WINDOW - 1) - first"]
    if form.op.sink:
        what = ", where it begins, and where its sink tokens end"
        parts.append("fx.min(reach, fx.Int32(SINK)) - first")
    return {"what": what, "reach": "\n".join(lines), "relative": join(*parts, blank=0).replace("\n", ", ") + ","}
