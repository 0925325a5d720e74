"""Block level of emitted attention: descriptors, cooperative loads of K and V, their LDS images."""

from __future__ import annotations

from .emit_text import fill, join, piece

__all__ = ["cooperative_loads", "lds_images", "resources", "v_row"]


_RESOURCE = '''
def resource(address, extent):
    """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
    extent = (extent > fx.Int64(0)).select(extent, fx.Int64(0))
    extent = (extent < fx.Int64(MAX_RECORDS)).select(extent, fx.Int64(MAX_RECORDS))
    pointer = fx.inttoptr(fx.PointerType.get(DTYPE.ir_type, fx.AddressSpace.Global, ELEM_BYTES), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))


def stride(tensor, axis):
    """Stride of a [batch, heads, L, d] tensor in elements, 64 bits."""
    return fx.Int64(fx.get_scalar(fx.get(tensor.stride, axis)))
'''

_OFFSET = '''
def element_offset(row, row_stride, col):
    """Byte offset of (row, col) inside a tile."""
    return (row * row_stride + col) * ELEM_BYTES
'''

_OFFSET_PADDED = '''
def element_offset(row, row_stride, col@parameter@):
    """Byte offset of (row, col) inside a tile; a column past the @what@ lies past every extent."""
    return (col < @dim@).select((row * row_stride + col) * ELEM_BYTES, fx.Int32(OUT_OF_RANGE))
'''

_LOAD = '''
def load(source, row, row_stride, col, count@more@):
    """`count` consecutive elements of one row, in accesses that the @alignment@ allows."""
    width = min(count, @access@)
    kind = Vec.make_type(width, DTYPE) if width > 1 else DTYPE.ir_type
    offsets = [element_offset(row, row_stride, col + first@passed@) for first in range(0, count, width)]
    parts = [rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(0), 0) for offset in offsets]
    if len(parts) == 1 and width > 1:
        return Vec(parts[0])
    elements = parts if width == 1 else [Vec(part)[i] for part in parts for i in range(width)]
    return Vec.from_elements([DTYPE(x) for x in elements], DTYPE)
'''


_LOAD_BYTES = '''
def load(source, row, row_stride, col, count@more@):
    """`count` consecutive bytes of one row as words, in accesses of whole words if the @alignment@ allows it.

    Words, because the compiler gives each byte that outlives a block a register of its own.
    """
    width = min(count, @access@)
    words = width // 4 if width % 4 == 0 else 0
    kind = Vec.make_type(words, fx.Int32) if words > 1 else T.i32 if words else T.i8
    offsets = [element_offset(row, row_stride, col + first@passed@) for first in range(0, count, 4 * words or 1)]
    parts = [rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(0), 0) for offset in offsets]
    if not words:
        return Vec.from_elements([DTYPE(x) for x in parts], DTYPE).bitcast(fx.Int32)
    every = [fx.Int32(x) for part in parts for x in ([Vec(part)[i] for i in range(words)] if words > 1 else [part])]
    return Vec.from_elements(every, fx.Int32)
'''


def resources(padded: bool, own_columns: bool, narrow: bool) -> str:
    """Buffer descriptors and guarded loads. `padded`: rows are zero-filled up to the atom; `own_columns`: rows of V
    and O have a length of their own; `narrow`: elements of 8 bits."""
    names = {"parameter": "", "what": "head dim", "dim": "HEAD_DIM", "more": "", "access": "ACCESS", "passed": ""}
    names["alignment"] = "head dim's alignment"
    if own_columns:
        names |= {"more": ", access=ACCESS", "access": "access", "alignment": "row's alignment"}
        if padded:
            names |= {"more": ", access=ACCESS, dim=HEAD_DIM", "parameter": ", dim=HEAD_DIM", "what": "row's end"}
            names |= {"dim": "dim", "passed": ", dim"}
    offset = fill(piece(_OFFSET_PADDED), names) if padded else piece(_OFFSET)
    return join(piece(_RESOURCE), offset, fill(piece(_LOAD_BYTES if narrow else _LOAD), names))


def v_row(padded: bool, own_columns: bool) -> str:
    """Arguments of load() that tell rows of V from those of Q and K."""
    if not own_columns:
        return ""
    return ", V_ACCESS, V_DIM" if padded else ", V_ACCESS"


def lds_images(packed: bool, permuted: str, by_column: bool, own_columns: bool, narrow: bool) -> str:
    """Where K and V lie in LDS. `packed`: several keys share a register (16-bit types); `permuted`: K row order,
    `by_column`: V is read by column number (variant fma); `own_columns`: its rows have a length of their own,
    `narrow`: elements have 8 bits."""
    words = ".bitcast(fx.Int32)" if narrow else ""
    v_dim = "V_DIM_PADDED" if own_columns else "HEAD_DIM_PADDED"
    key_row = f'''
        def k_row(key):
            """LDS row of a key{": a lane's scores then belong to consecutive keys of V" if permuted else ""}."""
            return {permuted or "key"}
        '''
    v_place = (
        f'''
        def v_place(key_group, position):
            """LDS element of V: VEC keys of one dv side by side."""
            return (key_group * {v_dim} + position) * VEC
        '''
        if packed
        else f'''
        def v_place(key, col):
            """LDS element of V[key][col]."""
            return key * {v_dim} + col
        '''
    )
    v_position = (
        piece(
            '''
            def v_position(col):
                """Position of a column in the image of V: a lane's V_COLS columns lie V_ROW_UNITS apart."""
                return col % V_COLS * V_ROW_UNITS + col // V_COLS
            '''
        )
        if packed and by_column
        else ""
    )
    return join(
        piece(key_row),
        piece(
            '''
            def k_place(row, chunk):
                """LDS element of a 16-byte chunk of K; chunks are XORed with the row against bank conflicts."""
                return row * HEAD_DIM_PADDED + (chunk ^ ((row // SWIZZLE_ROWS) % SWIZZLE_CHUNKS)) * VEC
            '''
        ),
        piece(v_place),
        v_position,
        piece(
            f'''
            def lds_load(image, element, count, kind=DTYPE):
                """`count` consecutive elements of an LDS image{", as words" if narrow else ""}."""
                return Vec(fx.ptr_load(image + fx.Int32(element), Vec.make_type(count, kind))){words}
            '''
        ),
    )


_STORE_IF = """
@flyc.jit
def store_if(active, value, pointer):
    if active:
        fx.ptr_store(value, pointer)
"""

_LOAD_CHUNKS = '''
def load_@name@(source, @rows@, thread):
    """This thread's 16-byte chunks of a @tile@ tile, and the operations that load them."""
    chunks = []

    def fetch(unit):
        row, chunk = unit // @chunks@, unit % @chunks@
        chunks.append(load(source, @row@, chunk * VEC, VEC@of@))

    accesses = VEC // @issued@
    units = [thread + i * THREADS for i in range(ceil_div(@units@, THREADS))]
    return chunks, [(VMEM_READ, accesses, accesses, partial(fetch, unit)) for unit in units]
'''

_LOAD_V_LIKE_K = '''
def load_v(source, @rows@, thread):
    """This thread's 16-byte chunks of a V tile."""
    return load_k(source, @rows@, thread)
'''

_STORE_CHUNKS = """
def store_@name@(image, chunks, thread):
    def write(unit, values):
        pointer = image + fx.Int32(@place@)
        @store@

    return [(WRITE, 1, 1, partial(write, thread + i * THREADS, x)) for i, x in enumerate(chunks)]
"""

_LOAD_BLOCKS = '''
def load_v(source, @rows@, thread):
    """This thread's blocks of V_KEYS keys x V_COLS dv of a V tile, one row vector per key."""
    vectors = []

    def fetch(unit, key):
        row, col = unit // V_ROW_UNITS * V_KEYS + key, unit % V_ROW_UNITS * V_COLS
        vectors.append(load(source, @row@, col, V_COLS@of@))

    accesses = ceil_div(V_COLS, @issued@)
    units = [thread + i * THREADS for i in range(ceil_div(V_UNITS, THREADS))]
    places = [(unit, key) for unit in units for key in range(V_KEYS)]
    return vectors, [(VMEM_READ, accesses, accesses, partial(fetch, *place)) for place in places]
'''

_STORE_BLOCKS = '''
def store_v(image, rows, thread):
    """Transposes each block in registers: V_KEYS keys of one dv become one write."""

    def write(unit, block, j):
        values = Vec.from_elements([@row_j@ for row in block], DTYPE)
        row, group = unit // V_ROW_UNITS, unit % V_ROW_UNITS
        place = v_place(row // V_SHARES, j * V_ROW_UNITS + group) + row % V_SHARES * V_KEYS
        pointer = image + fx.Int32(place)
        @store@

    out = []
    for i in range(0, len(rows), V_KEYS):
        unit, block = thread + i // V_KEYS * THREADS, rows[i : i + V_KEYS]
        out += [(WRITE, 1, V_KEYS // 2 + 1, partial(write, unit, block, j)) for j in range(V_COLS)]
    return out
'''


def cooperative_loads(
    packed: bool, k_divides: bool, v_divides: bool, of_v: str, own_columns: bool, paged: bool, narrow: bool
) -> str:
    """Loads of one K and one V tile by all threads of the workgroup, and the stores to LDS.

    `k_divides`, `v_divides`: the units divide evenly over the threads, so no store needs a predicate. `of_v`: see
    v_row. `paged`: rows are found by a function, not by a stride. `narrow`: elements of 8 bits, loaded as words or one
    by one.
    """
    rows = (
        {"rows": "place", "row": "place(row), fx.Int32(1)"}
        if paged
        else {"rows": "row_stride", "row": "row, row_stride"}
    )

    def store(units: str, divides: bool, words: bool = narrow) -> str:
        values = "values.bitcast(DTYPE).ir_value()" if words else "values.ir_value()"
        return f"fx.ptr_store({values}, pointer)" if divides else f"store_if(unit < {units}, {values}, pointer)"

    def issued(access: str) -> dict[str, str]:
        return {"access": access, "issued": f"({access} if {access} % 4 == 0 else 1)" if narrow else access}

    k = {"name": "k", "tile": "K", "chunks": "ROW_CHUNKS", "units": "K_UNITS", "of": "", **issued("ACCESS")}
    k |= {"place": "k_place(k_row(unit // ROW_CHUNKS), unit % ROW_CHUNKS)", "store": store("K_UNITS", k_divides)}
    v = {"name": "v", "tile": "V", "chunks": "ROW_CHUNKS", "units": "K_UNITS", "of": of_v, **issued("ACCESS")}
    if own_columns:
        v |= {"chunks": "V_ROW_CHUNKS", "units": "V_UNITS", **issued("V_ACCESS")}
    v["place"] = fill("v_place(unit // @chunks@, unit % @chunks@ * VEC)", v)
    v["store"] = store("V_UNITS" if packed else v["units"], v_divides, words=False)
    v["row_j"] = "row.bitcast(DTYPE)[j]" if narrow else "row[j]"
    load_v = _LOAD_BLOCKS if packed else _LOAD_CHUNKS if own_columns else _LOAD_V_LIKE_K
    return join(
        "" if k_divides and v_divides else piece(_STORE_IF),
        fill(piece(_LOAD_CHUNKS), k | rows),
        fill(piece(_STORE_CHUNKS), k),
        fill(piece(load_v), v | rows),
        fill(piece(_STORE_BLOCKS if packed else _STORE_CHUNKS), v),
    )
