"""Block level of an emitted GEMM: descriptors, the loads of an operand tile and its image in LDS."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["along_k", "along_rows", "operand", "resources"]


def resources(sub_word: bool, guarded: bool) -> str:
    """Buffer descriptors and guarded loads.

    `sub_word`: some access is narrower than 4 bytes; `guarded`: some operand does not divide over the threads.
    """
    return join(
        piece(
            '''
            def resource(address, extent):
                """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
                extent = (extent > fx.Int64(0)).select(extent, fx.Int64(0))
                extent = (extent < fx.Int64(MAX_RECORDS)).select(extent, fx.Int64(MAX_RECORDS))
                pointer = fx.inttoptr(fx.PointerType.get(T.i32, fx.AddressSpace.Global, 4), address)
                return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))
            '''
        ),
        piece(
            '''
            def stride(tensor, axis):
                """Stride of a [batch, rows, columns] tensor in elements, 64 bits."""
                return fx.Int64(fx.get_scalar(fx.get(tensor.stride, axis)))
            '''
        ),
        piece(
            """
            def address_of(tensor):
                return fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))
            """
        ),
        piece(
            """
            def words(count):
                return Vec.make_type(count, fx.Int32) if count > 1 else T.i32
            """
        ),
        piece(
            """
            def chunk_of(parts):
                return Vec.from_elements(parts, fx.Int32)
            """
        ),
        _NARROW if sub_word else "",
        piece(
            f'''
            def load(source, offsets, access):
                """The 32-bit words at `offsets`, `access` bytes each."""
                {"if access < 4:" if sub_word else ""}
                {"    return load_narrow(source, offsets, access)" if sub_word else ""}
                out = []
                for offset in offsets:
                    part = rocdl.raw_ptr_buffer_load(words(access // 4), source, offset, fx.Int32(0), 0)
                    out += [Vec(part)[i] for i in range(access // 4)] if access > 4 else [fx.Int32(part)]
                return out
            '''
        ).replace("    \n", ""),
        piece(
            '''
            def swizzle(row):
                """What the chunks of an image row are XORed with, so that no access of a wave meets a bank twice."""
                return ((row >> SWIZZLE_FIRST) ^ (row >> SWIZZLE_SECOND)) & SWIZZLE_MASK
            '''
        ),
        _STORE_IF if guarded else "",
    )


_NARROW = piece(
    '''
    def load_narrow(source, offsets, access):
        """Words that are put together from accesses of 1 or 2 bytes."""
        kind, part = (T.i16, fx.Uint16) if access == 2 else (T.i8, fx.Uint8)
        out, word = [], None
        for i, offset in enumerate(offsets):
            value = part(rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(0), 0)).to(fx.Uint32).bitcast(fx.Int32)
            place = i % (4 // access)
            word = value if place == 0 else word | (value << (8 * access * place))
            if place == 4 // access - 1:
                out.append(word)
        return out
    '''
)

_STORE_IF = piece(
    """
    @flyc.jit
    def store_if(active, value, pointer):
        if active:
            fx.ptr_store(value, pointer)
    """
)


def operand() -> str:
    """What both kinds of operands share: their image in LDS and its fragments."""
    return piece(
        '''
        class Operand:
            """A tile of one operand: `rows` image rows of ROW_CHUNKS chunks, k contiguous.

            `place` is the first word of its images in LDS, one for each buffer. Waves take turns along the rows,
            `turn` rows at a time, so that an atom's rows differ from the wave's first one in bits of their own.
            """

            def __init__(self, lds, place, rows, turn, waves, wave, lane):
                self.lds, self.place, self.rows = lds, place, rows
                self.turn, self.waves = turn, waves
                row = wave * turn + lane % ATOM_MN
                chunk = lane // ATOM_MN ^ swizzle(row)
                self.bases = {}
                for t in range(rows // (waves * ATOM_MN)):
                    for read in range(STEPS * READS):
                        x = self.key(t, read)
                        if x not in self.bases:
                            self.bases[x] = row * ROW_WORDS + (chunk ^ x) * 4

            def row_of(self, t):
                """Rows between the wave's first row and atom t."""
                return t * ATOM_MN // self.turn * (self.waves * self.turn) + t * ATOM_MN % self.turn

            def key(self, t, read):
                """The part of a chunk's place that atom and read decide: XORed with the lane's."""
                return read * GROUPS ^ swizzle(self.row_of(t))

            def bases_of(self, buffer):
                """Word offsets of this lane in one LDS buffer, by key."""
                return {x: base + buffer for x, base in self.bases.items()}

            def fragment(self, bases, t, read):
                """Four words of k for this lane's row of atom t."""
                pointer = self.lds + bases[self.key(t, read)] + fx.Int32(self.place + self.row_of(t) * ROW_WORDS)
                return Vec(fx.ptr_load(pointer, words(4)))
        '''
    )


_DIRECT = """
            def direct_of(self, thread, wave, row_of):
                \"\"\"Loads that bypass the registers: a wave fills 64 chunks in a row, so the source is swizzled.\"\"\"
                self.direct_offsets, self.direct_places = [], []
                for i in range(self.rows * ROW_CHUNKS // THREADS):
                    unit = thread + i * THREADS
                    row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
                    chunk = chunk ^ swizzle(row)
                    self.direct_offsets.append(row_of(row) * fx.Int32(self.ld * ELEM_BYTES) + chunk * 16)
                    self.direct_places.append(fx.Int32(self.place + i * THREADS * 4) + wave * 256)

            def directs(self, tile, buffer):
                \"\"\"Asynchronous loads of a whole tile into an LDS buffer, as functions.\"\"\"
                source = self.source(tile)
                pairs = zip(self.direct_offsets, self.direct_places)
                return [(LOAD, 1, lambda o=o, p=p: load_direct(source, o, self.lds + (p + buffer))) for o, p in pairs]
"""

_LOAD_DIRECT = piece(
    '''
    def load_direct(source, offset, pointer):
        """16 bytes a lane from memory to LDS, in lane order from `pointer`; counted by vmcnt, not tracked."""
        zero = fx.Int32(0).ir_value()
        size = fx.Int32(16).ir_value()
        rocdl.raw_ptr_buffer_load_async_lds(source, pointer.llvm_ptr, size, offset.ir_value(), zero, zero)
    '''
)


def along_k(guarded: bool, direct: bool) -> str:
    """An operand that is stored with k contiguous. `direct`: whole tiles go to LDS without passing registers."""
    direct_methods = _DIRECT.strip("\n") + "\n" if direct else ""
    store = (
        "store_if(self.units[i] < self.rows * ROW_CHUNKS, value, pointer)"
        if guarded
        else "fx.ptr_store(value, pointer)"
    )
    keep = "\n                    self.units.append(unit)" if guarded else ""
    start = "\n                self.units = []" if guarded else ""
    return join(
        _LOAD_DIRECT if direct else "",
        piece(
            f'''
        class AlongK(Operand):
            """An operand whose k is contiguous in memory: a thread loads 16-byte chunks of its rows."""

            def source_of(self, tensor, batch, first, count, K, thread, access, tail, image_row):
                self.ld, self.K, self.access, self.tail = stride(tensor, 1), fx.Int64(K), access, tail
                start = batch * stride(tensor, 0) + fx.Int64(first) * self.ld
                self.address = address_of(tensor) + start * ELEM_BYTES
                self.before = fx.Int64(count - first - 1) * self.ld
                self.offsets, self.chunks, self.places = [], [], []{start}
                for i in range(ceil_div(self.rows * ROW_CHUNKS, THREADS)):
                    unit = thread + i * THREADS
                    row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
                    self.offsets.append(row * fx.Int32(self.ld * ELEM_BYTES) + chunk * 16)
                    self.chunks.append(chunk)
                    row = image_row(row)
                    self.places.append(row * ROW_WORDS + (chunk ^ swizzle(row)) * 4){keep}

            def source(self, tile):
                k = fx.Int64(tile) * TILE_K
                return resource(self.address + k * ELEM_BYTES, (self.before + self.K - k) * ELEM_BYTES)

            def loads(self, tile, tail):
                """This thread's chunks of a tile, as functions; in the partial last tile what lies past K is 0."""
                source = self.source(tile)
                if not tail:
                    offsets = [[o + b for b in range(0, 16, self.access)] for o in self.offsets]
                    return [(LOAD, len(o), lambda o=o: chunk_of(load(source, o, self.access))) for o in offsets]
                left = fx.Int32((self.K - fx.Int64(tile) * TILE_K) * ELEM_BYTES)
                offsets = [
                    [(c * 16 + b < left).select(o + b, fx.Int32(OUT_OF_RANGE)) for b in range(0, 16, self.tail)]
                    for o, c in zip(self.offsets, self.chunks)
                ]
                return [(LOAD, len(o), lambda o=o: chunk_of(load(source, o, self.tail))) for o in offsets]

{direct_methods}
            def writes(self, buffer, chunks):
                """The same chunks to an LDS buffer."""
                return [(WRITE, 1, lambda i=i, chunk=chunk: self.write(buffer, i, chunk)) for i, chunk in enumerate(chunks)]

            def write(self, buffer, i, chunk):
                pointer = self.lds + (self.places[i] + buffer) + fx.Int32(self.place)
                value = chunk.ir_value()
                {store}
            '''
        ),
    )


def along_rows(elem_bytes: int, guarded: bool) -> str:
    """An operand that is stored with its rows contiguous: a thread transposes blocks of k x rows."""
    store = (
        "store_if(self.units[i] < self.rows // self.width * ROW_CHUNKS, value, pointer)"
        if guarded
        else "fx.ptr_store(value, pointer)"
    )
    keep = "\n                    self.units.append(unit)" if guarded else ""
    start = "\n                self.units = []" if guarded else ""
    return join(
        piece(_TRANSPOSE[elem_bytes]),
        piece(
            f'''
            class AlongRows(Operand):
                """An operand whose rows are contiguous in memory: a thread loads VEC lines of k for `width` of its rows
                and transposes them in registers, so that the image in LDS is the same as of an operand along k.
                """

                def source_of(self, tensor, batch, first, count, K, thread, width, image_row):
                    self.ld, self.K, self.width = stride(tensor, 1), fx.Int64(K), width
                    start = batch * stride(tensor, 0) + fx.Int64(first)
                    self.address = address_of(tensor) + start * ELEM_BYTES
                    self.count = fx.Int64(count - first)
                    self.offsets, self.places = [], []{start}
                    line = fx.Int32(self.ld * ELEM_BYTES)
                    across = self.rows // width
                    for i in range(ceil_div(across * ROW_CHUNKS, THREADS)):
                        unit = thread + i * THREADS
                        row, chunk = unit % across * width, unit // across
                        self.offsets += [(chunk * VEC + e) * line + row * ELEM_BYTES for e in range(VEC)]
                        rows = [image_row(row + j) for j in range(width)]
                        self.places.append([r * ROW_WORDS + (chunk ^ swizzle(r)) * 4 for r in rows]){keep}

                def source(self, tile):
                    k = fx.Int64(tile) * TILE_K
                    extent = (self.K - k - 1) * self.ld + self.count
                    return resource(self.address + k * self.ld * ELEM_BYTES, (self.K > k).select(extent, fx.Int64(0)) * ELEM_BYTES)

                def loads(self, tile, tail):
                    """This thread's lines of a tile, as functions; lines past K lie past the extent and give 0."""
                    source, bytes_wide = self.source(tile), self.width * ELEM_BYTES
                    return [(LOAD, 1, lambda o=o: chunk_of(load(source, [o], bytes_wide))) for o in self.offsets]

                def writes(self, buffer, lines):
                    """The same rows to an LDS buffer, transposed."""
                    out = []
                    for i, places in enumerate(self.places):
                        mine = lines[i * VEC : (i + 1) * VEC]
                        for j, place in enumerate(places):
                            out.append((WRITE, 1, lambda i=i, m=mine, j=j, p=place: self.write(buffer, i, m, j, p)))
                    return out

                def write(self, buffer, i, lines, j, place):
                    pointer = self.lds + (place + buffer) + fx.Int32(self.place)
                    value = Vec.from_elements(transposed(lines, j), fx.Int32).ir_value()
                    {store}
            '''
        ),
    )


_TRANSPOSE = {
    8: '''
    def transposed(lines, j):
        """Words of row j: one element of every line."""
        return [line[2 * j + half] for line in lines for half in range(2)]
    ''',
    4: '''
    def transposed(lines, j):
        """Words of row j: one element of every line."""
        return [line[j] for line in lines]
    ''',
    2: '''
    def transposed(lines, j):
        """Words of row j: one element of every line, two lines a word."""
        select = 0x07060302 if j % 2 else 0x05040100
        words = [fx.Int32(line[j // 2]) for line in lines]
        return [permuted(words[e + 1], words[e], select) for e in range(0, VEC, 2)]


    def permuted(high, low, select):
        """Four of the eight bytes of two words."""
        return fx.Int32(rocdl.perm_b32(high, low, select))
    ''',
    1: '''
    def transposed(lines, j):
        """Words of row j: one element of every line, four lines a word."""
        pair, half = (0x07030602 if j % 4 > 1 else 0x05010400), (0x07060302 if j % 2 else 0x05040100)
        words = [fx.Int32(line[j // 4]) for line in lines]
        pairs = [permuted(words[e + 1], words[e], pair) for e in range(0, VEC, 2)]
        return [permuted(pairs[e + 1], pairs[e], half) for e in range(0, VEC // 2, 2)]


    def permuted(high, low, select):
        """Four of the eight bytes of two words."""
        return fx.Int32(rocdl.perm_b32(high, low, select))
    ''',
}
