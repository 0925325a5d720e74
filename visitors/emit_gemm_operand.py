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


def along_k(guarded: bool, masked: bool) -> str:
    """An operand that is stored with k contiguous. `masked`: the tail has a width of its own."""
    store = (
        "store_if(self.units[i] < self.rows * ROW_CHUNKS, value, pointer)" if guarded else "fx.ptr_store(value, pointer)"
    )
    keep = "\n                    self.units.append(unit)" if guarded else ""
    start = "\n                self.units = []" if guarded else ""
    return piece(
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

            def fetch(self, tile):
                """This thread's chunks of a whole tile, as one list of words."""
                source = self.source(tile)
                return [
                    Vec.from_elements(load(source, [o + b for b in range(0, 16, self.access)], self.access), fx.Int32)
                    for o in self.offsets
                ]

            def fetch_tail(self, tile):
                """The same for the last, partial tile: what lies past K is 0."""
                source, bytes_left = self.source(tile), fx.Int32((self.K - fx.Int64(tile) * TILE_K) * ELEM_BYTES)
                out = []
                for offset, chunk in zip(self.offsets, self.chunks):
                    offsets = [
                        (chunk * 16 + b < bytes_left).select(offset + b, fx.Int32(OUT_OF_RANGE))
                        for b in range(0, 16, self.tail)
                    ]
                    out.append(Vec.from_elements(load(source, offsets, self.tail), fx.Int32))
                return out

            def store(self, buffer, i, chunk):
                """Chunk i of this thread to an LDS buffer."""
                pointer = self.lds + (self.places[i] + buffer) + fx.Int32(self.place)
                value = chunk.ir_value()
                {store}
        '''
    )


def along_rows(elem_bytes: int, guarded: bool) -> str:
    """An operand that is stored with its rows contiguous: a thread transposes blocks of k x rows."""
    return ""
