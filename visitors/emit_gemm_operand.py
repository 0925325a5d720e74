"""Block level of an emitted GEMM: descriptors, the loads of an operand tile and its image in LDS."""

from __future__ import annotations

from .emit_text import RESOURCE, join, piece

__all__ = ["along_k", "along_rows", "operand", "resources"]

_RESOURCES = '''
@stride@def address_of(tensor):
    return @address@


def thread_number():
    return @thread@


def smaller(a, b):
    return (a < b).select(a, b)


def words(count):
    return Vec.make_type(count, fx.Int32) if count > 1 else T.i32


def chunk_of(parts):
    return Vec.from_elements(parts, fx.Int32)


def load(source, offsets, access, beyond=0):
    """The 32-bit words at `offsets`, `access` bytes each, all of them `beyond` bytes further on."""@narrow@
    out = []
    for offset in offsets:
        part = rocdl.raw_ptr_buffer_load(words(access // 4), source, offset, fx.Int32(beyond), 0)
        out += [Vec(part)[i] for i in range(access // 4)] if access > 4 else [fx.Int32(part)]
    return out
'''

_STRIDE = '''
def stride(tensor, axis):
    """Stride of a [batch, rows, columns] tensor in elements, 64 bits."""
    return @value@
'''

_SWIZZLE = '''
def swizzle(row):
    """What the chunks of an image row are XORed with, so that no access of a wave meets a bank twice."""
    return ((row >> SWIZZLE_FIRST) ^ (row >> SWIZZLE_SECOND)) & SWIZZLE_MASK


def chunk_place(row, chunk):
    """First word of a chunk in an image."""
    return row * ROW_WORDS + (chunk ^ swizzle(row)) * 4
'''

_PADDED = '''
def chunk_place(row, chunk):
    """First word of a chunk in an image, whose rows are further apart than they are long."""
    return row * ROW_WORDS + chunk * 4
'''

_NARROW = '''
def load_narrow(source, offsets, access, beyond):
    """Words that are put together from accesses of 1 or 2 bytes; the last one may be incomplete."""
    kind, part = (T.i16, fx.Uint16) if access == 2 else (T.i8, fx.Uint8)
    out = []
    for i, offset in enumerate(offsets):
        value = part(rocdl.raw_ptr_buffer_load(kind, source, offset, fx.Int32(beyond), 0))
        value = value.to(fx.Uint32).bitcast(fx.Int32)
        place = i % (4 // access)
        if place == 0:
            out.append(value)
        else:
            out[-1] = out[-1] | (value << (8 * access * place))
    return out
'''

#: Accesses of 8 bytes are relaxed atomics, since LLVM merges plain ones of neighbours to 16 bytes again.
_LOAD_PAIR = '''
def load_pair(pointer):
    """Two words of LDS; a relaxed atomic, which is not merged with its neighbour."""
    order = llvm.AtomicOrdering.monotonic
    pair = llvm.load(T.i64, pointer.llvm_ptr, alignment=8, ordering=order, syncscope="singlethread")
    pair = Vec.from_elements([fx.Int64(pair)], fx.Int64).bitcast(fx.Int32)
    return [pair[0], pair[1]]
'''

_STORE_PAIR = '''
def store_pair(pair, pointer):
    """Two words to LDS; a relaxed atomic, which is not merged with its neighbour."""
    order, value = llvm.AtomicOrdering.monotonic, Vec(pair).bitcast(fx.Int64)[0].ir_value()
    llvm.store(value, pointer.llvm_ptr, alignment=8, ordering=order, syncscope="singlethread")
'''

_STORE_IF = """
@flyc.jit
def store_if(active, value, pointer):
    if active:
        @store@(value, pointer)
"""

_OPERAND = '''
class Operand:
    """A tile of one operand: `rows` image rows of ROW_CHUNKS chunks, k contiguous.

    `place` is the first word of its image in an LDS buffer. Waves take turns along the rows, `turn` rows at a time, so
    that an atom's rows differ from the wave's first one in bits of their own and one XOR finds a chunk's place.
    """

    def __init__(self, lds, place, rows, turn, waves, wave, lane):
        self.lds, self.place, self.rows, self.turn, self.waves = lds, place, rows, turn, waves
        row = wave * turn + lane % ATOM_MN
        chunk = lane // ATOM_MN ^ swizzle(row)
        self.base = {}
        for t in range(rows // (waves * ATOM_MN)):
            for read in range(STEPS * READS):
                x = self.key(t, read)
                if x not in self.base:
                    self.base[x] = row * ROW_WORDS + (chunk ^ x) * 4

    def row_of(self, t):
        """Rows from the wave's first one to atom t."""
        row = t * ATOM_MN
        return row // self.turn * (self.waves * self.turn) + row % self.turn

    def key(self, t, read):
        """The part of a chunk's place that atom and read decide."""
        return read * GROUPS ^ swizzle(self.row_of(t))

    def bases_of(self, buffer):
        """Word offsets of this lane in an LDS buffer, by key."""
        return {x: base + buffer for x, base in self.base.items()}

    def fragment(self, bases, t, read):
        """Four words of k of this lane's row of atom t."""
        pointer = self.lds + bases[self.key(t, read)] + fx.Int32(self.place + self.row_of(t) * ROW_WORDS)
        return @read@
'''

_PADDED_OPERAND = '''
class Operand:
    """A tile of one operand: `rows` image rows of ROW_CHUNKS chunks, k contiguous.

    `place` is the first word of its image in an LDS buffer. Waves take turns along the rows, `turn` rows at a time.
    """

    def __init__(self, lds, place, rows, turn, waves, wave, lane):
        self.lds, self.place, self.rows, self.turn, self.waves = lds, place, rows, turn, waves
        self.base = chunk_place(wave * turn + lane % ATOM_MN, lane // ATOM_MN)

    def row_of(self, t):
        """Rows from the wave's first one to atom t."""
        row = t * ATOM_MN
        return row // self.turn * (self.waves * self.turn) + row % self.turn

    def bases_of(self, buffer):
        """Word offset of this lane in an LDS buffer."""
        return self.base + buffer

    def fragment(self, base, t, read):
        """Four words of k of this lane's row of atom t."""
        pointer = self.lds + base + fx.Int32(self.place + chunk_place(self.row_of(t), read * GROUPS))
        return @read@
'''

_STAGGERED = '''
    def stagger(self, start):
        """Whole tiles of k come from number `start` on, around the last one."""
        self.start, self.whole = start, self.K // TILE_K

    def staggered(self, tile):
        """Which tile of k comes as number `tile`; what lies past the whole tiles keeps its place."""
        turned = tile + self.start
        turned = (turned < self.whole).select(turned, turned - self.whole)
        return (tile < self.whole).select(turned, tile)
'''

_ALONG_K = '''
class AlongK(Operand):
    """An operand whose k is contiguous in memory: a thread loads 16-byte chunks of its rows."""

    def source_of(self, tensor, batch, first, count, first_k, K, thread, access, tail, image_row):
        self.ld, self.K = stride(tensor, 1), K
        self.access, self.tail = access * ELEM_BYTES, tail * ELEM_BYTES
        start = batch * stride(tensor, 0) + fx.Int64(first) * self.ld + fx.Int64(first_k) * TILE_K
        self.address = address_of(tensor) + start * ELEM_BYTES
        extent = (fx.Int32(self.ld) * (smaller(count - first, fx.Int32(self.rows)) - 1) + K) * ELEM_BYTES
        self.extent = (K > 0).select(extent, fx.Int32(0))
        self.units, self.offsets, self.places = [], [], []
        for i in range(ceil_div(self.rows * ROW_CHUNKS, THREADS)):
            unit = thread + i * THREADS
            row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
            image = image_row(row)
            self.units.append(unit)
            self.offsets.append(row * fx.Int32(self.ld * ELEM_BYTES) + chunk * 16)
            self.places.append(chunk_place(image, chunk))

    def source(self, tile):
        """Descriptor that starts at a tile of k: rebased in 64 bits, so offsets inside a tile fit 31."""
        step = TILE_K * ELEM_BYTES
        return resource(self.address + fx.Int64(tile) * step, self.extent - tile * step)

    def loads(self, tile, tail):
        """This thread's chunks of a tile; of the partial last tile what lies past K is 0."""
        source, access = self.source(@any_tile@), self.tail if tail else self.access
        offsets = [[offset + b for b in range(0, 16, access)] for offset in self.offsets]
        if tail:
            left = (self.K - tile * TILE_K) * ELEM_BYTES
            for unit, parts in zip(self.units, offsets):
                for b in range(len(parts)):
                    inside = unit % ROW_CHUNKS * 16 + b * access < left
                    parts[b] = inside.select(parts[b], fx.Int32(OUT_OF_RANGE))
        return [(LOAD, len(o), lambda o=o: chunk_of(load(source, o, access))) for o in offsets]

    def writes(self, buffer, chunks):
        """The same chunks to an LDS buffer."""
        return [(WRITE, 1, lambda i=i, chunk=chunk: self.write(buffer, i, chunk)) for i, chunk in enumerate(chunks)]

    def write(self, buffer, i, chunk):
        pointer = self.lds + (self.places[i] + buffer) + fx.Int32(self.place)
        @store@
'''

_DIRECT_METHODS = '''
    def direct_of(self, thread, wave, source_row):
        """Loads that bypass the registers: a wave fills 64 chunks in a row, so the source is what is swizzled."""
        self.direct = []
        for i in range(self.rows * ROW_CHUNKS // THREADS):
            unit = thread + i * THREADS
            row, chunk = unit // ROW_CHUNKS, unit % ROW_CHUNKS
            offset = source_row(row) * fx.Int32(self.ld * ELEM_BYTES) + (chunk ^ swizzle(row)) * 16
            self.direct.append((offset, wave * 256 + fx.Int32(self.place + i * THREADS * 4)))

    def directs(self, tile, buffer):
        """Asynchronous loads of a whole tile into an LDS buffer."""
        source = self.source(@whole_tile@)
        return [
            (LOAD, 1, lambda o=offset, p=place: load_direct(source, o, self.lds + (p + buffer)))
            for offset, place in self.direct
        ]
'''

_LOAD_DIRECT = '''
def load_direct(source, offset, pointer):
    """16 bytes a lane from memory to LDS, in lane order from `pointer`; counted by vmcnt, not tracked otherwise."""
    zero, size = fx.Int32(0).ir_value(), fx.Int32(16).ir_value()
    rocdl.raw_ptr_buffer_load_async_lds(source, pointer.llvm_ptr, size, offset.ir_value(), zero, zero)
'''

_ALONG_ROWS = '''
class AlongRows(Operand):
    """An operand whose rows are contiguous in memory: a thread loads VEC lines of k for `width` of its rows and
    transposes them in registers, so that the image in LDS is the same as that of an operand along k.
    """

    def source_of(self, tensor, batch, first, count, first_k, K, thread, width, image_row):
        self.ld, self.K, self.width = stride(tensor, 1), K, width
        start = batch * stride(tensor, 0) + fx.Int64(first_k) * TILE_K * self.ld + fx.Int64(first)
        self.address = address_of(tensor) + start * ELEM_BYTES
        self.count = smaller(count - first, fx.Int32(self.rows))
        self.units, self.offsets, self.places = [], [], []
        self.line, across = fx.Int32(self.ld * ELEM_BYTES), self.rows // width
        for i in range(ceil_div(across * ROW_CHUNKS, THREADS)):
            unit = thread + i * THREADS
            row, chunk = unit % across * width, unit // across
            images = [image_row(row + j) for j in range(width)]
            offset = chunk * VEC * self.line + row * ELEM_BYTES
            self.units.append(unit)
            self.offsets.append((row < self.count).select(offset, fx.Int32(OUT_OF_RANGE)))
            self.places += [chunk_place(image, chunk) for image in images]

    def loads(self, tile, tail):
        """This thread's lines of a tile: of the partial last tile what lies past K is 0.

        Whole tiles are addressed by one offset a thread, and lines by the scalar one; without a whole tile the extent
        is 0, so nothing depends on whether the scalar offset counts in the check of the extent. OUT_OF_RANGE stays out
        of range, as an unsigned number, whatever line is added.
        """
        @stagger@
        left, access = self.K - tile * TILE_K, self.width * ELEM_BYTES
        lines = smaller(left, fx.Int32(TILE_K)) if tail else (left >= TILE_K).select(fx.Int32(TILE_K), fx.Int32(0))
        extent = ((lines - 1) * fx.Int32(self.ld) + self.count) * ELEM_BYTES
        address = self.address + fx.Int64(tile) * (self.ld * (TILE_K * ELEM_BYTES))
        source = resource(address, (lines > 0).select(extent, fx.Int32(0)))
        places = [(source, offset, e * self.line) for offset in self.offsets for e in range(VEC)]
        if tail:
            places = [(source, offset + beyond, 0) for _, offset, beyond in places]
        @far@
        return [(LOAD, 1, lambda s=s, o=o, b=b: chunk_of(load(s, [o], access, b))) for s, o, b in places]

    def writes(self, buffer, lines):
        """The same rows to an LDS buffer, transposed."""
        return [
            (WRITE, 1, lambda n=n: self.write(buffer, n // self.width, lines, n % self.width))
            for n in range(len(self.places))
        ]

    def write(self, buffer, i, lines, j):
        pointer = self.lds + (self.places[i * self.width + j] + buffer) + fx.Int32(self.place)
        chunk = chunk_of(transposed(lines[i * VEC : (i + 1) * VEC], j))
        @store@
'''

_FAR = """\
        else:  # lines from the middle on have a descriptor of their own: half as many scalar offsets
            half = self.line * (VEC // 2)
            far = resource(address + fx.Int64(half), (lines > 0).select(extent - half, fx.Int32(0)))
            both = [(s, e * self.line) for s in (source, far) for e in range(VEC // 2)]
            places = [(s, offset, beyond) for offset in self.offsets for s, beyond in both]
"""

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
    halves = [line[j // 2] for line in lines]
    return [permuted(halves[e + 1], halves[e], select) for e in range(0, VEC, 2)]
''',
    1: '''
def transposed(lines, j):
    """Words of row j: one element of every line, four lines a word."""
    pair, half = (0x07030602 if j % 4 > 1 else 0x05010400), (0x07060302 if j % 2 else 0x05040100)
    bytes_ = [line[j // 4] for line in lines]
    pairs = [permuted(bytes_[e + 1], bytes_[e], pair) for e in range(0, VEC, 2)]
    return [permuted(pairs[e + 1], pairs[e], half) for e in range(0, VEC // 2, 2)]
''',
}

_WHOLE_CHUNK = '''
def whole_chunk(pointer):
    """The place of a chunk in LDS is a multiple of 16 bytes, which the compiler does not always see in its XORs."""
    return fx.recast_iter(fx.PointerType.get(T.i32, fx.AddressSpace.Shared, 16), pointer)
'''

_PERMUTED = '''
def permuted(high, low, select):
    """Four of the eight bytes of two words."""
    return fx.Int32(rocdl.perm_b32(fx.Int32(high), fx.Int32(low), select))
'''


def resources(
    narrow: bool,
    guarded: bool,
    through_lds: bool,
    padded: bool,
    halves: tuple[bool, bool],
    persistent: bool,
    strided: bool = True,
) -> str:
    """Buffer descriptors, guarded loads, and a chunk's place in LDS.

    `narrow`: some access has less than 4 bytes; `guarded`: some operand does not divide over the threads;
    `through_lds`: some operand passes through LDS; `padded`: image rows have a pad in place of a swizzle; `halves`: LDS
    reads, writes take half a chunk; `persistent`: a workgroup works on several tiles, between which nothing that
    follows from its thread or a stride is kept; `strided`: strides come with the tensors.
    """
    value = "fx.Int64(fx.get_scalar(fx.get(tensor.stride, axis)))"
    call = "\n    if access < 4:\n        return load_narrow(source, offsets, access, beyond)" if narrow else ""
    text = piece(_RESOURCES).replace("@narrow@", call)
    address, thread = "fx.Int64(fx.ptrtoint(fx.get_iter(tensor)))", "fx.Int32(gpu.thread_idx.x)"
    if persistent:
        value = f"tensor.strides[axis] if isinstance(tensor, Parked) else opaque({value})"
        thread = f'opaque({thread}, "v")'
        address = f"tensor.address if isinstance(tensor, Parked) else {address}"
    strides = piece(_STRIDE).replace("@value@", value) + "\n\n\n" if strided else ""
    text = text.replace("@stride@", strides).replace("@address@", address).replace("@thread@", thread)
    return join(
        piece(RESOURCE),
        text,
        piece(_NARROW) if narrow else "",
        (piece(_LOAD_PAIR) if halves[0] else piece(_WHOLE_CHUNK)) if through_lds else "",
        piece(_STORE_PAIR) if halves[1] else "",
        piece(_STORE_IF).replace("@store@", "store_pair" if halves[1] else "fx.ptr_store") if guarded else "",
        piece(_PADDED if padded else _SWIZZLE) if through_lds else "",
    )


def operand(padded: bool, halves: bool, stagger: bool) -> str:
    """What both kinds of operands share: their image in LDS and its fragments.

    `halves`: a chunk is read by two accesses; `stagger`: workgroups start at different tiles of k.
    """
    read = "chunk_of([x for half in (0, 2) for x in load_pair(pointer + fx.Int32(half))])"
    text = piece(_PADDED_OPERAND if padded else _OPERAND)
    text = text.replace("@read@", read if halves else "Vec(fx.ptr_load(whole_chunk(pointer), words(4)))")
    return text + "\n" + _STAGGERED.rstrip("\n") if stagger else text


def along_k(guarded: bool, direct: bool, halves: bool, stagger: bool) -> str:
    """An operand that is stored with k contiguous. `direct`: whole tiles go to LDS without passing registers;
    `halves`: a chunk is written by two accesses; `stagger`: workgroups start at different tiles of k.
    """
    active = "self.units[i] < self.rows * ROW_CHUNKS"
    whole = "self.staggered(tile)" if stagger else "tile"
    body = piece(_ALONG_K) + ("\n" + _DIRECT_METHODS.rstrip("\n") if direct else "")
    body = body.replace("@any_tile@", f"tile if tail else {whole}" if stagger else "tile")
    body = _stored(body.replace("@whole_tile@", whole), guarded, active, halves)
    return join(piece(_LOAD_DIRECT), body) if direct else body


def along_rows(elem_bytes: int, guarded: bool, halves: bool, stagger: bool, persistent: bool) -> str:
    """An operand that is stored with its rows contiguous; `halves` and `stagger` as for `along_k`.

    `persistent`: a workgroup works on several tiles, for which it keeps scalars; 16 lines then leave too few.
    """
    active = "self.units[i] < self.rows // self.width * ROW_CHUNKS"
    tile = "        tile = tile if tail else self.staggered(tile)\n" if stagger else ""
    body = piece(_ALONG_ROWS).replace("        @stagger@\n", tile)
    body = body.replace("        @far@\n", _FAR if persistent and elem_bytes == 1 else "")
    return join(
        piece(_PERMUTED) if elem_bytes < 4 else "",
        piece(_TRANSPOSE[elem_bytes]),
        _stored(body, guarded, active, halves),
    )


def _stored(text: str, guarded: bool, active: str, halves: bool) -> str:
    """The text with its LDS write of a chunk, whole or as two halves."""
    part = "chunk_of([chunk[half], chunk[half + 1]])" if halves else "chunk"
    value = f"{part}.ir_value(), pointer" + (" + fx.Int32(half)" if halves else "")
    store = "store_pair" if halves else "fx.ptr_store"
    line = f"store_if({active}, {value})" if guarded else f"{store}({value})"
    text = text.replace("@store@", f"for half in (0, 2):\n            {line}" if halves else line)
    return text.replace("(WRITE, 1, ", "(WRITE, 2, ") if halves else text
