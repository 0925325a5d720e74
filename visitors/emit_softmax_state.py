"""Wave and lane level of an emitted softmax: the state of a row, and how lanes and waves combine theirs."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["state"]

_STATE = '''
def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))


def finite(m):
    """m, or 0 in place of an infinite one: no difference of infinities is formed."""
    return ((m == fx.Float32(NEG_INF)) | (m == fx.Float32(-NEG_INF))).select(fx.Float32(0.0), m)


def power(x, m):
    """exp(x - m); the difference is formed before it is scaled, so that it is exactly 0 at the maximum."""
    return exp2((x - finite(m)) * LOG2_E)


def added(a, b):
    return a + b


def tree(values, combine):
    """All values of a lane combined, neighbours first."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def exponentials(values, m):
    """exp(x - m) of these elements, and their sum: access after access, which takes few registers."""
    p, l = [], fx.Float32(0.0)
    for first in range(0, len(values), VEC):
        part = [power(value, m) for value in values[first : first + VEC]]
        p, l = p + part, l + tree(part, added)
        rocdl.sched_barrier(0)
    return p, l


def neighbour(x, distance):
    """The value of another lane: by DPP inside of 16 lanes, by permutes beyond.

    Called for 1, 2, 4, ... in turn: the mirrors pair lanes that differ in more bits than one, but by then lanes that
    differ in the lower bits hold the same.
    """
    if distance < 16:
        moved = rocdl.update_dpp(T.f32, x.ir_value(), x.ir_value(), DPP[distance], 0xF, 0xF, True)
        return fx.Float32(moved)
    return gpu.shuffle_xor(x, distance, 64)


def across(x, combine, lanes):
    """Combined over aligned groups of `lanes` lanes, all of which are active; every lane has the result."""
    distance = 1
    while distance < lanes:
        x = combine(x, neighbour(x, distance))
        distance *= 2
    return x


def largest(a, b):
    """Ignores NaN, which reaches the sum through its exponential."""
    return fx.maxnumf(a, b)
'''

_COMBINE = '''
def combined(m, l, lanes):
    """The states of `lanes` lanes combined: maximum, and sum of exponentials relative to it."""
    top = across(m, largest, lanes)
    return top, across(l * power(m, top), added, lanes)
'''

_WAVES = '''
@flyc.jit
def publish(leads, m, l, pointer):
    if leads:
        fx.ptr_store(Vec.from_elements([m, l], fx.Float32).ir_value(), pointer)


def across_waves(row, m, l):
    """The states of the waves of a row combined, through LDS."""
    states = fx.SharedAllocator().allocate(fx.Array[fx.Float32, 2 * WAVES, 16]).peek().ptr
    of_row = row.thread // LANES * ROW_WAVES
    publish(row.lane == 0, m, l, states + (of_row + row.wave) * 2)
    gpu.barrier()
    pair = Vec(fx.ptr_load(states + (of_row + row.lane % ROW_WAVES) * 2, Vec.make_type(2, fx.Float32)))
    return combined(pair[0], pair[1], ROW_WAVES)
'''

_ABSORB = '''
def absorbed(values, m, l):
    """One step of the online softmax: the state of a lane with these elements added."""
    top = largest(m, tree(values, largest))
    return top, l * power(m, top) + exponentials(values, top)[1]
'''

_WEIGHT = '''
def weight(l):
    """1 / l; NaN where a logit is +inf@empty_is@."""
    inverse = @inverse@
    return (l == fx.Float32(-NEG_INF)).select(fx.Float32(math.nan), inverse)
'''

_LOG = '''
def log(x):
    return fx.Float32(rocdl.log(T.f32, x.ir_value())) * fx.Float32(LN_2)


def log_weight(l):
    """log l; NaN where a logit is +inf@empty_is@."""
    found = @found@
    return (l == fx.Float32(-NEG_INF)).select(fx.Float32(math.nan), found)
'''

_PLAIN_LOG = '''
def log(x):
    return fx.Float32(rocdl.log(T.f32, x.ir_value())) * fx.Float32(LN_2)
'''


def state(log: bool, lse: bool, zero: bool, combines: bool, waves: bool, absorbs: bool) -> str:
    """The monoid on lanes.

    `zero`: rows without a finite logit give zeros; `combines`: lanes or waves bring states of their own; `waves`:
    several waves share a row; `absorbs`: a row takes several steps.
    """
    if log:
        empty = ", 0 where all are -inf" if zero else ""
        found = "(l == fx.Float32(0.0)).select(fx.Float32(0.0), log(l))" if zero else "log(l)"
        last = piece(_LOG).replace("@empty_is@", empty).replace("@found@", found)
    else:
        empty = ", 0 where all are -inf" if zero else ""
        one = "fx.Float32(1.0) / l"
        found = f"(l == fx.Float32(0.0)).select(fx.Float32(0.0), {one})" if zero else one
        last = piece(_WEIGHT).replace("@empty_is@", empty).replace("@inverse@", found)
        last = join(last, piece(_PLAIN_LOG) if lse else "")
    return join(
        piece(_STATE),
        piece(_COMBINE) if combines else "",
        piece(_WAVES) if waves else "",
        piece(_ABSORB) if absorbs else "",
        last,
    )
