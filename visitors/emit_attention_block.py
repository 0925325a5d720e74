"""Block level of emitted attention: descriptors, cooperative loads of K and V, their LDS images."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["cooperative_loads", "lds_images", "resources"]


_OFFSET = '''
def element_offset(row, row_stride, col):
    """Byte offset of (row, col) inside a tile."""
    return (row * row_stride + col) * ELEM_BYTES
'''

_OFFSET_PADDED = '''
def element_offset(row, row_stride, col):
    """Byte offset of (row, col) inside a tile; a column past the head dim lies past every extent."""
    return (col < HEAD_DIM).select((row * row_stride + col) * ELEM_BYTES, fx.Int32(OUT_OF_RANGE))
'''


def resources(padded: bool) -> str:
    """Buffer descriptors and guarded loads. `padded`: the head dim is zero-filled up to the atom."""
    return join(
        piece(
            '''
            def resource(address, extent):
                """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
                extent = (extent > fx.Int64(0)).select(extent, fx.Int64(0))
                extent = (extent < fx.Int64(MAX_RECORDS)).select(extent, fx.Int64(MAX_RECORDS))
                pointer = fx.inttoptr(fx.PointerType.get(DTYPE.ir_type, fx.AddressSpace.Global, ELEM_BYTES), address)
                return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))
            '''
        ),
        piece(
            '''
            def stride(tensor, axis):
                """Stride of a [batch, heads, L, d] tensor in elements, 64 bits."""
                return fx.Int64(fx.get_scalar(fx.get(tensor.stride, axis)))
            '''
        ),
        piece(_OFFSET_PADDED if padded else _OFFSET),
        piece(
            '''
            def load(source, row, row_stride, col, count):
                """`count` consecutive elements of one row, in accesses that the head dim's alignment allows."""
                width = min(count, ACCESS)
                kind = Vec.make_type(width, DTYPE) if width > 1 else DTYPE.ir_type
                offsets = [element_offset(row, row_stride, col + first) for first in range(0, count, width)]
                parts = [rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(0), 0) for offset in offsets]
                if len(parts) == 1 and width > 1:
                    return Vec(parts[0])
                elements = parts if width == 1 else [Vec(part)[i] for part in parts for i in range(width)]
                return Vec.from_elements([DTYPE(x) for x in elements], DTYPE)
            '''
        ),
    )


def lds_images(packed: bool, permuted: str, by_column: bool) -> str:
    """Where K and V lie in LDS. `packed`: several keys share a register (16-bit types); `permuted`: K row order,
    `by_column`: V is read by column number (variant fma)."""
    key_row = f'''
        def k_row(key):
            """LDS row of a key{": a lane's scores then belong to consecutive keys of V" if permuted else ""}."""
            return {permuted or "key"}
        '''
    v_place = (
        '''
        def v_place(key_group, position):
            """LDS element of V: VEC keys of one dv side by side."""
            return (key_group * HEAD_DIM_PADDED + position) * VEC
        '''
        if packed
        else '''
        def v_place(key, col):
            """LDS element of V[key][col]."""
            return key * HEAD_DIM_PADDED + col
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
            '''
            def lds_load(image, element, count, kind=DTYPE):
                """`count` consecutive elements of an LDS image."""
                return Vec(fx.ptr_load(image + fx.Int32(element), Vec.make_type(count, kind)))
            '''
        ),
    )


def cooperative_loads(packed: bool, k_divides: bool, v_divides: bool) -> str:
    """Loads of one K and one V tile by all threads of the workgroup, and the stores to LDS.

    `k_divides`, `v_divides`: the units divide evenly over the threads, so no store needs a predicate.
    """
    store_if = ""
    if not (k_divides and v_divides):
        store_if = piece(
            """
            @flyc.jit
            def store_if(active, value, pointer):
                if active:
                    fx.ptr_store(value, pointer)
            """
        )

    def store(value: str, pointer: str, units: str, divides: bool) -> str:
        if divides:
            return f"fx.ptr_store({value}, {pointer})"
        return f"store_if(unit < {units}, {value}, {pointer})"

    load_k = piece(
        '''
        def load_k(source, row_stride, thread):
            """This thread's 16-byte chunks of a K tile, and the operations that load them."""
            chunks = []

            def fetch(unit):
                row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
                chunks.append(load(source, row, row_stride, chunk * VEC, VEC))

            accesses = VEC // ACCESS
            units = [thread + i * THREADS for i in range(ceil_div(K_UNITS, THREADS))]
            return chunks, [(VMEM_READ, accesses, accesses, partial(fetch, unit)) for unit in units]
        '''
    )
    store_k = piece(
        f"""
        def store_k(image, chunks, thread):
            def write(unit, values):
                pointer = image + fx.Int32(k_place(k_row(unit // ROW_CHUNKS), unit % ROW_CHUNKS))
                {store("values.ir_value()", "pointer", "K_UNITS", k_divides)}

            return [(WRITE, 1, 1, partial(write, thread + i * THREADS, x)) for i, x in enumerate(chunks)]
        """
    )
    if packed:
        load_v = piece(
            '''
            def load_v(source, row_stride, thread):
                """This thread's blocks of V_KEYS keys x V_COLS dv of a V tile, one row vector per key."""
                rows = []

                def fetch(unit, key):
                    row, col = unit // V_ROW_UNITS * V_KEYS + key, unit % V_ROW_UNITS * V_COLS
                    rows.append(load(source, row, row_stride, col, V_COLS))

                accesses = ceil_div(V_COLS, ACCESS)
                units = [thread + i * THREADS for i in range(ceil_div(V_UNITS, THREADS))]
                places = [(unit, key) for unit in units for key in range(V_KEYS)]
                return rows, [(VMEM_READ, accesses, accesses, partial(fetch, *place)) for place in places]
            '''
        )
        store_v = piece(
            f'''
            def store_v(image, rows, thread):
                """Transposes each block in registers: V_KEYS keys of one dv become one write."""

                def write(unit, block, j):
                    values = Vec.from_elements([row[j] for row in block], DTYPE)
                    row, group = unit // V_ROW_UNITS, unit % V_ROW_UNITS
                    place = v_place(row // V_SHARES, j * V_ROW_UNITS + group) + row % V_SHARES * V_KEYS
                    pointer = image + fx.Int32(place)
                    {store("values.ir_value()", "pointer", "V_UNITS", v_divides)}

                out = []
                for i in range(0, len(rows), V_KEYS):
                    unit, block = thread + i // V_KEYS * THREADS, rows[i : i + V_KEYS]
                    out += [(WRITE, 1, V_KEYS // 2 + 1, partial(write, unit, block, j)) for j in range(V_COLS)]
                return out
            '''
        )
    else:
        load_v = piece(
            '''
            def load_v(source, row_stride, thread):
                """This thread's 16-byte chunks of a V tile."""
                return load_k(source, row_stride, thread)
            '''
        )
        store_v = piece(
            f"""
            def store_v(image, chunks, thread):
                def write(unit, values):
                    pointer = image + fx.Int32(v_place(unit // ROW_CHUNKS, unit % ROW_CHUNKS * VEC))
                    {store("values.ir_value()", "pointer", "K_UNITS", v_divides)}

                return [(WRITE, 1, 1, partial(write, thread + i * THREADS, x)) for i, x in enumerate(chunks)]
            """
        )
    return join(store_if, load_k, store_k, load_v, store_v)
