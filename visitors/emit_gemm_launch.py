"""Launch of an emitted GEMM: grids, workspace and the launcher, by how the sum over k is split."""

from __future__ import annotations

from closedform.operators.gemm import GemmTiles

from .emit_text import fill, piece

__all__ = ["launch"]

_PLAIN = '''
@flyc.jit
def launch(
    @tensors@
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, grid_x: fx.Int32, grid_y: fx.Int32,
    @typed@, stream: fx.Stream = fx.Stream(None),
):
    gemm_kernel(@arguments@, M, N, K, @scalars@, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
        grid=(grid_x, grid_y, batch), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(M, N, K, batch):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    tiles = ceil_div(M, TILE_M) * ceil_div(N, TILE_N)
    return min(tiles, GRID_X), ceil_div(tiles, GRID_X)
'''

_WORKSPACE = '''
@flyc.jit
def launch(
    @tensors@ W: fx.Tensor,
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, grid_x: fx.Int32, grid_y: fx.Int32,
    reduce_x: fx.Int32, reduce_y: fx.Int32, @typed@, stream: fx.Stream = fx.Stream(None),
):
    gemm_kernel(A, B, W, M, N, K, value_attrs={"rocdl.waves_per_eu": WAVES_PER_SIMD}).launch(
        grid=(grid_x, grid_y, batch), block=(THREADS, 1, 1), stream=stream
    )
    reduce_kernel(@outputs@, W, M, N, @scalars@).launch(
        grid=(reduce_x, reduce_y, batch), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(M, N, K, batch):
    """Workgroups along x and y of both kernels: x alone holds GRID_X of them."""
    tiles = ceil_div(M, TILE_M) * ceil_div(N, TILE_N)
    counts = (tiles * SPLIT_K, tiles * PARTS)
    if max(counts) >= 2**31:
        raise ValueError(f"{tiles} tiles in {SPLIT_K} parts: workgroups are counted in 31 bits; build with split_k=1")
    return [size for count in counts for size in (min(count, GRID_X), ceil_div(count, GRID_X))]


def workspace_of(M, N, batch, device):
    """Partial sums of every part."""
    tiles = batch * ceil_div(M, TILE_M) * ceil_div(N, TILE_N)
    return (torch.empty(max(1, tiles * SPLIT_K * SLOT_BYTES), dtype=torch.int8, device=device),)
'''

_SINGLE = '''
@flyc.jit
def launch(
    @tensors@ W: fx.Tensor, counters: fx.Tensor,
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, grid_x: fx.Int32, grid_y: fx.Int32,
    @typed@, stream: fx.Stream = fx.Stream(None),
):
    value_attrs = {"rocdl.waves_per_eu": WAVES_PER_SIMD}
    gemm_kernel(@arguments@, W, counters, M, N, K, @scalars@, value_attrs=value_attrs).launch(
        grid=(grid_x, grid_y, batch), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(M, N, K, batch):
    """Workgroups along x and y: x alone holds GRID_X of them."""
    parts = ceil_div(M, TILE_M) * ceil_div(N, TILE_N) * SPLIT_K
    if parts >= 2**31:
        raise ValueError(f"{parts} parts of tiles: workgroups are counted in 31 bits; build with split_k=1")
    return min(parts, GRID_X), ceil_div(parts, GRID_X)


def workspace_of(M, N, batch, device):
    """Partial sums of every part, and a counter of arrivals for every tile: zeros, and zeros again after a launch."""
    tiles = max(1, batch * ceil_div(M, TILE_M) * ceil_div(N, TILE_N))
    sums = torch.empty(tiles * SPLIT_K * SLOT_BYTES, dtype=torch.int8, device=device)
    return sums, torch.zeros(tiles, dtype=torch.int32, device=device)
'''

_STREAM = '''
@flyc.jit
def launch(
    @tensors@ W: fx.Tensor,
    M: fx.Int32, N: fx.Int32, K: fx.Int32, batch: fx.Int32, grid_x: fx.Int32,
    @typed@, stream: fx.Stream = fx.Stream(None),
):
    value_attrs = {"rocdl.waves_per_eu": WAVES_PER_SIMD}
    gemm_kernel(@arguments@, W, M, N, K, batch, grid_x, @scalars@, value_attrs=value_attrs).launch(
        grid=(grid_x, 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def grids_of(M, N, K, batch):
    """Persistent workgroups: STREAM_K, or as many as there are tiles of k."""
    tiles, depth = ceil_div(M, TILE_M) * ceil_div(N, TILE_N) * batch, max(1, ceil_div(K, TILE_K))
    if tiles >= 2**31 or 2 * STREAM_K * depth >= 2**31:
        raise ValueError(f"{tiles} tiles of {depth} tiles of k are counted in 31 bits; build with stream_k=0")
    return (max(1, min(STREAM_K, tiles * depth)),)


def workspace_of(M, N, batch, device):
    """Two slots of partial sums a workgroup; behind them counters of arrivals, 0 before and after a launch."""
    slots = 2 * STREAM_K * SLOT_BYTES
    space = torch.empty(slots + 2 * STREAM_K * 4, dtype=torch.int8, device=device)
    space[slots:] = 0
    return (space,)
'''


def launch(tensors: list[str], scalars: tuple[str, ...], tiles: GemmTiles) -> str:
    """launch(), grids_of() and, where the sum over k is split, workspace_of()."""
    text = _STREAM if tiles.stream_k else _SINGLE if tiles.arrives else _WORKSPACE if tiles.splits else _PLAIN
    values = {
        "tensors": ", ".join(f"{name}: fx.Tensor" for name in tensors) + ",",
        "arguments": ", ".join(tensors),
        "outputs": ", ".join(tensors[2:]),
        "typed": ", ".join(f"{name}: SCALAR" for name in scalars),
        "scalars": ", ".join(scalars),
    }
    return fill(piece(text), values)
