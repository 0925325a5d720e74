"""Where an entry of the batch lies in emitted attention: its rows, how many there are, and the pages of its keys."""

from __future__ import annotations

from .emit_attention_form import Form
from .emit_text import fill, join, piece

__all__ = ["functions", "place", "tensors", "tile"]

_NUMBER = '''
def number(table, index, count):
    """Entry `index` of `count` int32 numbers at an address, the same for all lanes; 0 past them."""
    source = resource(table, fx.Int64(count) * 4)
    return fx.Int32(rocdl.readfirstlane(T.i32, rocdl.raw_ptr_buffer_load(T.i32, source, index * 4, fx.Int32(0), 0)))
'''

_ADDRESS = """
def address_of(tensor):
    return fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))
"""

_STRETCH = '''
def stretch(offsets, entry, total):
    """(first row, rows) of an entry, from the rows at which entries begin; within `total` rows whatever they say."""
    begin, end = (number(address_of(offsets) + entry * 4, fx.Int32(i), 2) for i in (0, 1))
    begin = fx.max(fx.min(begin, total), fx.Int32(0))
    return begin, fx.max(fx.min(end, total) - begin, fx.Int32(0))
'''

_KEY_LENGTHS = """
L_kv = fx.max(fx.min(number(address_of(KEY_LENGTHS) + self.batch * 4, fx.Int32(0), 1), L_kv), fx.Int32(0))
"""

_VARLEN = """
q_start, L_q = stretch(CU_Q, self.batch, L_q)
kv_start, L_kv = stretch(CU_KV, self.batch, L_kv)
self.q_start, self.kv_start = fx.Int64(q_start), fx.Int64(kv_start)
L_kv = (first_row < L_q).select(L_kv, fx.Int32(0))
"""

_SPLIT = """
self.head = fx.Int64(gpu.block_idx.y)
entry = fx.Int32(gpu.block_idx.z)
self.batch, self.split = fx.Int64(entry // splits), entry % splits
"""

_PAGES = """
self.page_count = stride(PAGES, 0)
self.pages = address_of(PAGES) + self.batch * self.page_count * 4
"""

_KV_TILE = '''
def kv_tile(self, address, row_stride, tile@parameter@):
    """Rows of one K or V tile: rebased in 64 bits, so offsets inside a tile fit 32. Past the end it is empty."""
    @number@
    rows = @rows@
    extent = fx.max((rows - 1) * fx.Int32(row_stride) + @row@, fx.Int32(0)) * ELEM_BYTES
    return resource(address + @first@ * ELEM_BYTES, fx.Int64(extent))
'''

_PAGE_ROW = '''
def page_row(self, tile, page_stride, row_stride):
    """Element of the first row of a tile, which lies within one page."""
    key = tile * TILE_KV
    page = number(self.pages, key // PAGE, self.page_count)
    return fx.Int64(page) * page_stride + fx.Int64(key % PAGE) * row_stride
'''

_PAGED_TILE = '''
def paged_tile(self, address, page_stride, row_stride, tile):
    """Rows of one K or V tile, whose keys lie in several pages: the pages from `address` on, and where a row is."""
    @number@
    rows = @rows@
    table = resource(self.pages, self.page_count * 4)

    def place(row):
        key = number * TILE_KV + row
        page = fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, table, key // PAGE * 4, fx.Int32(0), 0))
        element = page * fx.Int32(page_stride) + key % PAGE * fx.Int32(row_stride)
        return (row < rows).select(element, fx.Int32(NOWHERE))

    return resource(address, fx.Int64(PAGES_LIMIT)), place
'''


def tensors(form: Form) -> tuple[str, ...]:
    """Tensors that tell where entries lie."""
    lengths = ("KEY_LENGTHS",) if form.op.key_lengths else ("CU_Q", "CU_KV") if form.op.varlen else ()
    return (*lengths, "PAGES") if form.op.page else lengths


def functions(form: Form) -> str:
    """Functions that read numbers of entries."""
    some = form.op.key_lengths or form.op.varlen or form.op.page
    return join(
        piece(_ADDRESS) if some or form.own_result else "",
        piece(_NUMBER) if some else "",
        piece(_STRETCH) if form.op.varlen else "",
    )


def place(form: Form) -> dict[str, str]:
    """Where the rows of Q, K, V and O of a workgroup begin, and how many they are."""
    grouped = form.op.group > 1
    parameters, q, kv = [], [], []
    if grouped:
        parameters, q, kv = ["head"], ["self.head"], ["self.kv_head"]
    if form.op.varlen:
        parameters, q, kv = [*parameters, "first"], [*q, "self.q_start"], [*kv, "self.kv_start"]
    own = form.own_columns
    block = "fx.Int32(gpu.block_idx.x)"
    if form.op.causal and not form.op.varlen:  # the longest rows of tiles begin first
        block = "((L_q - 1) // (WAVES * TILE_Q) - fx.Int32(gpu.block_idx.x))"
    entry = "first * stride(tensor, 2)" if form.op.varlen else "self.batch * stride(tensor, 0)"
    if form.op.page:  # rows of K and V belong to no entry, those of Q and O do
        entry, parameters, q, kv = "entry * stride(tensor, 0)", [*parameters, "entry"], [*q, "self.batch"], [*kv, "0"]
    rows = f"self.first_row = {block} * (WAVES * TILE_Q) + self.wave * TILE_Q"
    if form.op.has_mask or form.op.varlen:
        rows = f"first_row = {block} * (WAVES * TILE_Q)\nself.first_row = first_row + self.wave * TILE_Q"
    batch = "self.head, self.batch = fx.Int64(gpu.block_idx.y), fx.Int64(gpu.block_idx.z)"
    lse_entry = "self.batch * stride(lse, 0)"
    if form.op.varlen or form.split:
        lse_entry = "self.q_start" if form.op.varlen else "fx.Int64(gpu.block_idx.z) * stride(lse, 0)"
    lengths = piece(_VARLEN) if form.op.varlen else piece(_KEY_LENGTHS) if form.op.key_lengths else ""
    return {
        "first_row": rows,
        "kv_head": "self.kv_head = fx.Int64(fx.Int32(gpu.block_idx.y) // HEADS_PER_KV)" if grouped else "",
        "lengths": join(lengths, piece(_PAGES) if form.op.page else "", blank=0),
        "entry": entry,
        "batch": piece(_SPLIT) if form.split else batch,
        "v_more": "self.k_page, self.v_page = stride(K, 0), stride(V, 0)" if form.op.page else "",
        "lse_entry": lse_entry,
        "head_parameter": "".join(f", {name}" for name in parameters),
        "q": "".join(f", {name}" for name in q),
        "kv": "".join(f", {name}" for name in kv),
        "row_parameter": ", row" if own else "",
        "row": "row" if own else "HEAD_DIM",
        "q_row": ", HEAD_DIM" if own else "",
        "o_row": ", V_DIM" if own else "",
    }


def tile(form: Form) -> dict[str, str]:
    """How a tile of keys is found."""
    own, page = form.own_columns, form.op.page > 0
    visited = form.may_be_empty or page
    rows = "fx.min(self.L_kv - tile * TILE_KV, fx.Int32(TILE_KV))"
    number = "" if form.has_options else "tile = fx.Int32(tile)"
    if visited:
        number = f"number = {form.number('tile')}"
        rows = "fx.min(self.L_kv - number * TILE_KV, fx.Int32(TILE_KV))"
        rows = f"(tile < self.tiles).select({rows}, fx.Int32(0))"
    which = "number" if visited else "tile"
    more = [*(["row"] if own else []), *(["page_stride"] if page else [])]
    first = f"fx.Int64({which}) * TILE_KV * row_stride"
    names = {
        "number": number,
        "rows": rows,
        "row": "row" if own else "HEAD_DIM",
        "parameter": "".join(f", {name}" for name in more),
        "first": "self.page_row(number, page_stride, row_stride)" if page else first,
    }
    if form.small_pages:
        return {"kv_tile": fill(piece(_PAGED_TILE), names), **{f"{x}_tile": _paged(x) for x in "kv"}}
    text = fill(piece(_KV_TILE), names)
    return {
        "kv_tile": join(piece(_PAGE_ROW), text, blank=1) if page else text,
        "k_tile": _tile_of("k", "HEAD_DIM", own, page),
        "v_tile": _tile_of("v", "V_DIM", own, page),
    }


def _tile_of(name: str, row: str, own: bool, page: bool) -> str:
    more = "".join([f", {row}" if own else "", f", self.{name}_page" if page else ""])
    return f"self.kv_tile(self.{name.upper()}, self.{name}_stride, tile{more}), fx.Int32(self.{name}_stride)"


def _paged(name: str) -> str:
    return f"*self.paged_tile(self.{name.upper()}, self.{name}_page, self.{name}_stride, tile)"
