"""Atom level of emitted attention: the MFMA call and the second product of each variant."""

from __future__ import annotations

from textwrap import indent

from .emit_attention_form import Form
from .emit_text import fill, join, piece

__all__ = [
    "accumulators",
    "matrix_multiply",
    "output_columns",
    "p_image",
    "result_offset",
    "row_sum",
    "scalar_product",
    "values",
]


_OPERAND = '''
def operand(words, first, count):
    """`count` consecutive bytes of a fragment of words, as an MFMA takes them."""
    return words.shuffle(words, list(range(first // 4, (first + count) // 4))).bitcast(DTYPE).ir_value()
'''


def matrix_multiply(narrow: bool) -> str:
    return join(
        piece(_OPERAND) if narrow else "",
        piece(
            '''
            def part(vector, first, count):
                """`count` consecutive elements of a fragment, as an MFMA takes them."""
                if count == 1:
                    return vector[first].ir_value()
                if count == vector.numel:
                    return vector.ir_value()
                return vector.shuffle(vector, list(range(first, first + count))).ir_value()
            '''
        ),
        piece(
            """
            def zeros(count):
                return Vec.filled(count, 0.0, fx.Float32)
            """
        ),
        piece(
            '''
            def mma(atom, a, b, c):
                """C + A B of one MFMA on fragments."""
                return Vec(fly.mma_atom_call_ssa([Vec.make_type(ACC, fx.Float32)], atom, a, b, c))
            '''
        ),
    )


def accumulators(scalar: bool) -> str:
    """The running O. `scalar`: one f32 per (query, column) of a lane (variant fma), else C fragments."""
    if scalar:
        return join(
            piece(
                """
                def zero_accumulators():
                    return [fx.Float32(0.0)] * (TILE_Q * COLUMNS)
                """
            ),
            piece(
                '''
                def of_query(values, query):
                    """The value of one query, from the lane that holds it."""
                    lane_value = values[query // ATOM_N]
                    return fx.Float32(rocdl.readlane(T.f32, lane_value.ir_value(), query % ATOM_N))
                '''
            ),
            piece(
                """
                def rescaled(acc, rescale):
                    out = []
                    for query in range(TILE_Q):
                        if query % 8 == 0:
                            rocdl.sched_barrier(0)  # keeps the factors from piling up in scalar registers
                        factor = of_query(rescale, query)
                        out += [x * factor for x in acc[query * COLUMNS : (query + 1) * COLUMNS]]
                    return out
                """
            ),
        )
    return join(
        piece(
            """
            def zero_accumulators():
                return [zeros(ACC)] * (Q_TILES * D_TILES)
            """
        ),
        piece(
            '''
            def rescaled(acc, rescale):
                """O^T keeps one query a lane, so one factor a lane rescales it."""
                return [acc[i] * rescale[i // D_TILES] for i in range(Q_TILES * D_TILES)]
            '''
        ),
    )


_VALUES = '''
def values(self, order, p, acc, others):
    """O^T += V^T P^T: @how@."""
    @prepare@
    acc = list(acc)
    order.weave(*self.value_products(p, acc), others, 0.9@ready@)
    return acc
'''

_HAS_OPERAND = '''
def has_operand(self, p, group):
    """Whether the exponentials that a group of MFMAs takes are there."""
    last = @last@
    return all(tile[last] is not None for tile in p)
'''

_PRODUCTS_PACKED = '''
def read_v(self, fragments, s, d):
    fragments[s, d] = lds_load(self.lds_v, v_place(s * GROUPS + self.group, d * ATOM_M + self.column), VEC)

def multiply_v(self, acc, fragments, p, n, s, d, j):
    a, b = @part@(fragments[s, d], j, AB), @part@(@operand@, j, AB)
    acc[n * D_TILES + d] = mma(self.atom, a, b, acc[n * D_TILES + d])

def value_products(self, p, acc):
    """LDS reads of V, and for each the MFMAs that use it."""
    fragments, steps = {}, [(s, d) for s in range(KEY_CHUNKS) for d in range(D_TILES)]
    reads = [(READ, 1, 1, partial(self.read_v, fragments, *step)) for step in steps]
    uses = [(n, j) for j in range(0, VEC, AB) for n in range(Q_TILES)]
    return reads, [
        [(MFMA, 1, 1, partial(self.multiply_v, acc, fragments, p, n, *step, j)) for n, j in uses] for step in steps
    ]
'''

_PRODUCTS_F32 = '''
def read_v(self, fragments, i, block):
    key = i // VEC * CHUNK + i % VEC + VEC * self.group
    fragments[i, block] = lds_load(self.lds_v, v_place(key, block * ATOM_M + self.column * V_COLS), V_COLS)

def multiply_v(self, acc, fragments, p, n, i, block, j):
    o = n * D_TILES + block + j
    acc[o] = mma(self.atom, fragments[i, block][j].ir_value(), @operand@.ir_value(), acc[o])

def value_products(self, p, acc):
    """LDS reads of V, and for each the MFMAs that use it."""
    fragments, steps = {}, [(i, d) for i in range(KEY_CHUNKS * VEC) for d in range(0, D_TILES, V_COLS)]
    reads = [(READ, 1, 1, partial(self.read_v, fragments, *step)) for step in steps]
    uses = [(n, j) for j in range(V_COLS) for n in range(Q_TILES)]
    return reads, [
        [(MFMA, 1, 1, partial(self.multiply_v, acc, fragments, p, n, *step, j)) for n, j in uses] for step in steps
    ]
'''

_STORE_MFMA = '''
def epilogue(self, l, acc):
    """O = O^T / l, V_COLS consecutive columns at a time; a row without visible keys gives 0."""
    rows, row_stride = @rows@, fx.Int32(stride(self.O, 2))
    for n in range(Q_TILES):
        total = row_sum(l[n])
        inverse = (total == fx.Float32(0.0)).select(fx.Float32(0.0), @one@ / total)
        columns = {}
        for d in range(D_TILES):
            for r in range(ACC):
                columns[dv(d, C_ROW[r])] = fx.Float32(acc[n * D_TILES + d][r]) * inverse
        for first in range(0, @v_dim@, V_COLS):
            if first in columns:
                out = [columns[first + j] for j in range(V_COLS)]
                col = first + DV_GROUP * self.group
                self.store(out, rows, n * ATOM_N + self.column, row_stride, col)
'''

_ROW_SUM = '''
def row_sum(l):
    """Sum of the exponentials of a query: over both halves of each lane's sum and over the lane groups."""
    return across_groups(fx.Float32(l[0]) + fx.Float32(l[1]), lambda a, b: a + b)
'''

_STORE_PIECES = '''
def store(self, values, rows, row, row_stride, col):
    """Stores consecutive columns of one row in accesses that the head dim's alignment allows."""
    values = Vec.from_elements(values, fx.Float32)@to@
    width = min(values.numel, @access@)
    for first in range(0, values.numel, width):
        offset = @offset@
        raw_ptr_buffer_store(part(values, first, width), rows, offset.ir_value(), fx.Int32(0).ir_value())
'''

_RESULT_ROWS = '''
def result_rows(self):
    """This wave's rows of what it stores: the extent ends with the last valid row."""
    row_stride = stride(self.O, 2)
    first = @entry@ + self.head * stride(self.O, 1) + fx.Int64(self.first_row) * row_stride
    extent = ((self.rows - 1) * row_stride + @columns@) * RESULT_BYTES
    return resource(
        address_of(self.O) + first * RESULT_BYTES, (self.rows > fx.Int64(0)).select(extent, fx.Int64(0))
    )
'''

_RESULT_OFFSET = '''
def result_offset(row, row_stride, col):
    """Byte offset of (row, col) of what is stored; a column past the last lies past every extent."""
    return (col < @columns@).select((row * row_stride + col) * RESULT_BYTES, fx.Int32(OUT_OF_RANGE))
'''

_WRITE_P = '''
def write_p(self, p):
    """Exponentials of this wave to its own LDS image P[query][key]: each lane writes runs of consecutive keys."""
    for n in range(Q_TILES):
        query = n * ATOM_N + self.column
        for i in range(0, KEY_CHUNKS * VEC, C_RUN):
            run = @run@
            fx.ptr_store(run.ir_value(), self.lds_p + fx.Int32(p_place(query, KEY[i] + KEY_GROUP * self.group)))
'''

_FMA_CHUNK = '''
def fma_chunk(lds_v, lds_p, lane, key, acc):
    """Four keys of O += P V: lane l owns columns l, l + 64, ...; P is read as a broadcast."""
    v = []
    for c in range(COLUMNS):
        col = fx.min(lane + 64 * c, fx.Int32(HEAD_DIM_PADDED - 1))
        v.append([@v_read@ for e in range(4)])
    for query in range(TILE_Q):
        if query % 4 == 0:
            rocdl.sched_barrier(0)  # keeps the reads of later queries from piling up in registers
        weights = lds_load(lds_p, p_place(query, key), 4, P_TYPE)
        for e in range(4):
            for c in range(COLUMNS):
                i = query * COLUMNS + c
                acc[i] = fx.math.fma(fx.Float32(weights[e]), v[c][e], acc[i])
    return acc


@flyc.jit
def fma_keys(lds_v, lds_p, lane, acc):
    """All keys of a step, as a loop: unrolled it would not fit the instruction cache."""
    for chunk, carried in range(fx.Int32(0), fx.Int32(TILE_KV // 4), fx.Int32(1), init=acc):
        acc = yield fma_chunk(lds_v, lds_p, lane, fx.Int32(chunk) * 4, [fx.Float32(x) for x in carried])
    return acc
'''

_VALUES_FMA = '''
def values(self, order, p, acc, others):
    """O += P V by scalar FMA; P goes through LDS."""
    order.do(others)
    self.write_p(p)
    return list(fma_keys(self.lds_v, self.lds_p, self.lane, acc))
'''

_STORE_FMA = '''
def epilogue(self, l, acc):
    """O = O / l, one column a lane and store; a row without visible keys gives 0."""
    rows, row_stride = self.query_rows(self.O), fx.Int32(stride(self.O, 2))
    totals = [row_sum(x) for x in l]
    inverses = [(t == fx.Float32(0.0)).select(fx.Float32(0.0), fx.Float32(1.0) / t) for t in totals]
    for query in range(TILE_Q):
        inverse = of_query(inverses, query)
        for c in range(COLUMNS):
            self.store([acc[query * COLUMNS + c] * inverse], rows, fx.Int32(query), row_stride, self.lane + 64 * c)
'''

_P_PLACE = '''
def p_place(query, key):
    """LDS element of P[query][key] of this wave, 16-byte chunks XORed against bank conflicts."""
    chunk = (key // P_VEC) ^ ((query // P_SWIZZLE_ROWS) % P_SWIZZLE_CHUNKS)
    return query * TILE_KV + chunk * P_VEC + key % P_VEC
'''


def p_image() -> str:
    return piece(_P_PLACE)


def row_sum() -> str:
    return piece(_ROW_SUM)


def output_columns(packed: bool) -> str:
    """Which column of O a row of O^T stands for: a lane's registers hold V_COLS neighbours."""
    if packed:
        return piece(
            '''
            def dv(tile, row):
                """Column of O that row `row` of O^T tile `tile` stands for."""
                position = tile * ATOM_M + row
                return position % V_ROW_UNITS * V_COLS + position // V_ROW_UNITS
            '''
        )
    return piece(
        '''
        def dv(tile, row):
            """Column of O that row `row` of O^T tile `tile` stands for."""
            return (tile // V_COLS * ATOM_M + row) * V_COLS + tile % V_COLS
        '''
    )


def scalar_product(packed: bool) -> str:
    """The second product of the variant fma, without MFMAs."""
    read = (
        "fx.Float32(lds_load(lds_v, v_place(key // VEC, v_position(col)) + key % VEC + e, 1)[0])"
        if packed
        else "fx.Float32(lds_load(lds_v, v_place(key + e, col), 1)[0])"
    )
    return piece(_FMA_CHUNK).replace("@v_read@", read)


def result_offset(form: Form) -> str:
    """Where an element of what is stored lies, if that is of another type than the inputs."""
    return fill(piece(_RESULT_OFFSET), {"columns": form.v_dim}) if form.own_result else ""


def values(form: Form, packed: bool, padded: bool) -> str:
    """Methods of the second product and the epilogue. `packed`: 16-bit types; `padded`: rows are filled up to atoms."""
    variant, own_columns = form.op.variant, form.own_columns
    to = ".to(DTYPE)" if packed else ""
    narrowed = packed and variant != "fma"
    run = "rounded(p[n][i : i + C_RUN])" if narrowed else "Vec.from_elements(p[n][i : i + C_RUN], fx.Float32)"
    dim = ", V_DIM" if own_columns and padded else ""
    o = {
        "v_dim": f"{form.v_dim}_PADDED",
        "one": "self.v_scale" if form.narrow else "fx.Float32(1.0)",
        "to": to,
        "rows": f"self.query_rows(self.O{', V_DIM' if own_columns else ''})",
        "access": "V_ACCESS" if own_columns else "ACCESS",
        "offset": f"element_offset(row, row_stride, col + first{dim})",
    }
    if form.own_result:
        o |= {"rows": "self.result_rows()", "to": "" if form.split else ".to(RESULT)", "access": "RESULT_ACCESS"}
        o["offset"] = "result_offset(row, row_stride, col + first)"
    store = fill(piece(_STORE_PIECES), o)
    entry = "self.batch * stride(self.O, 0)"
    if form.split or form.op.varlen:
        entry = "fx.Int64(gpu.block_idx.z) * stride(self.O, 0)" if form.split else "self.q_start * stride(self.O, 2)"
    rows = fill(piece(_RESULT_ROWS), {"entry": entry, "columns": form.v_dim}) if form.own_result else ""
    write = piece(_WRITE_P).replace("@run@", run)
    if variant == "fma":
        return indent(join(write, piece(_VALUES_FMA), piece(_STORE_FMA), store, blank=1), "    ")
    if variant == "chained":
        how = "the C registers of S^T are the B operand, only the order of the keys differs"
        prepare, operand = "", "p[n][s * VEC]" if packed else "p[n][i]"
        ready = ", partial(self.has_operand, p)"
    else:
        how = "P goes through LDS and comes back as operand B in natural key order"
        prepare = "self.write_p(p)\np = [[self.read_p(n, s) for s in range(KEY_CHUNKS)] for n in range(Q_TILES)]"
        operand, ready = "p[n][s]" if packed else "p[n][i // VEC][i % VEC]", ""
    text = fill(_VALUES.strip("\n"), {"how": how, "prepare": prepare, "ready": ready})
    last = "group // D_TILES * VEC + VEC - 1" if packed else "group // (D_TILES // V_COLS)"
    has_operand = fill(_HAS_OPERAND.strip("\n"), {"last": last})
    products = fill(
        (_PRODUCTS_PACKED if packed else _PRODUCTS_F32).strip("\n"),
        {"operand": operand, "part": "operand" if form.narrow else "part"},
    )
    read_p = piece(
        '''
        def read_p(self, n, s):
            """Operand B of the second product: VEC consecutive keys of this lane's query."""
            key = s * CHUNK + self.group * VEC
            return lds_load(self.lds_p, p_place(n * ATOM_N + self.column, key), VEC)
        '''
    )
    epilogue = fill(piece(_STORE_MFMA), o)
    extra = [write, read_p] if variant == "lds" else [has_operand]
    return indent(join(*extra, text, products, epilogue, rows, store, blank=1), "    ")
