"""Direct convolution against im2col and our GEMM, layer by layer: bytes, MFMAs and the bound of each, no GPU needed.

    python benchmarks/conv2d.py --hw mi300x --dtype f16 --batch 8

HBM: what must be moved. Direct: X, the filter and Y once. im2col: X read and the matrix [N OH OW, KH KW IC] written,
which the GEMM reads, the filter and Y; a 1 x 1 filter of stride 1 needs no matrix. Loads: what workgroups load of X,
with its halo, and of the filter, or of A and B, from L2 mostly. MFMAs: of whole tiles. The bound is the largest of
the MFMAs at the peak of the matrix cores, HBM and loads at the rate of L2, in microseconds.
"""

from __future__ import annotations

import argparse
from typing import Any

from closedform import Conv2d, Gemm, derive, hardware
from closedform.visitors.conv2d_shape import Conv2dShape

#: ResNet-50: channels in, image, channels out, kernel, stride, how often.
RESNET_50 = [
    (3, 224, 64, 7, 2, 1),
    (64, 56, 64, 1, 1, 1),
    (64, 56, 64, 3, 1, 3),
    (64, 56, 256, 1, 1, 4),
    (256, 56, 64, 1, 1, 2),
    (256, 56, 128, 1, 1, 1),
    (128, 56, 128, 3, 2, 1),
    (256, 56, 512, 1, 2, 1),
    (128, 28, 512, 1, 1, 4),
    (512, 28, 128, 1, 1, 3),
    (128, 28, 128, 3, 1, 3),
    (512, 28, 256, 1, 1, 1),
    (256, 28, 256, 3, 2, 1),
    (512, 28, 1024, 1, 2, 1),
    (256, 14, 1024, 1, 1, 6),
    (1024, 14, 256, 1, 1, 5),
    (256, 14, 256, 3, 1, 5),
    (1024, 14, 512, 1, 1, 1),
    (512, 14, 512, 3, 2, 1),
    (1024, 14, 2048, 1, 2, 1),
    (512, 7, 2048, 1, 1, 3),
    (2048, 7, 512, 1, 1, 2),
    (512, 7, 512, 3, 1, 2),
]
#: Patch embeddings of ViT: B/16, B/32, L/14.
VIT = [(3, 224, 768, 16, 16, 1), (3, 224, 768, 32, 32, 1), (3, 224, 1024, 14, 14, 1)]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def row(name: str, layer: tuple[int, ...], args: argparse.Namespace) -> str:
    """One line of the table."""
    channels, side, filters, kernel, stride, count = layer
    pad = 0 if kernel == stride else kernel // 2
    hw = hardware(args.hw)
    op = Conv2d(args.batch, channels, side, side, filters, kernel, kernel, stride, pad, dtype=args.dtype)
    outputs, depth, elem = op.N * op.OH * op.OW, kernel * kernel * channels, op.elem_bytes
    image = args.batch * channels * side * side
    once = image + filters * depth + outputs * filters

    def cost(mfmas: int, atom: Any, hbm: int, loads: int) -> str:
        times = {
            "mfma": mfmas * atom.flops / (hw.peak_tflops(args.dtype) * 1e12),
            "hbm": hbm * elem / hw.hbm_bytes_per_s,
            "l2": loads * elem / hw.l2_bytes_per_s,
        }
        binds = max(times, key=lambda unit: times[unit])
        megabytes = f"{hbm * elem / 1e6:7.1f} {loads * elem / 1e6:8.1f}"
        return f"{megabytes} {mfmas / 1e3:8.0f} {times[binds] * 1e6:7.1f} {binds:4}"

    derivation = derive(op, hw)
    if derivation.infeasible is not None:
        direct = f"refused: {derivation.infeasible.resource}"
    else:
        tiles, _, grid = derivation.require()
        shape = Conv2dShape(op, tiles, hw)
        taps, atom = shape.taps, tiles.atom
        loaded = tiles.replicate_h * tiles.replicate_w * shape.patch.pixels * channels + tiles.tile_oc * depth
        tile = tiles.pixels * tiles.tile_oc * tiles.tile_ic // (atom.m * atom.n * atom.k)
        mfmas = grid.blocks * tile * taps.count * ceil_div(taps.channels, tiles.tile_ic)
        direct = cost(mfmas, atom, once, grid.blocks * loaded)
    tiles, _, _ = derive(Gemm(outputs, filters, depth, args.dtype, layout="NT"), hw).require()
    blocks = ceil_div(outputs, tiles.tile_m) * ceil_div(filters, tiles.tile_n)
    atom, steps = tiles.atom, ceil_div(depth, tiles.tile_k)
    mfmas = blocks * steps * tiles.tile_m * tiles.tile_n * tiles.tile_k // (atom.m * atom.n * atom.k)
    matrix = 0 if (kernel, stride) == (1, 1) else 2 * outputs * depth
    gemm = cost(mfmas, atom, once + matrix, blocks * (tiles.tile_m + tiles.tile_n) * depth)
    return f"{name:9} {channels:5} {side:4} {filters:5} {kernel:2}/{stride:<2} x{count} | {direct:38} | {gemm}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hw", default="mi300x")
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    columns = "HBM MB    loads   kMFMAs      us binds"
    print(f"{'':35} | {'direct':38} | im2col + gemm")
    print(f"{'layer':35} | {columns:38} | {columns}")
    for name, layers in (("resnet50", RESNET_50), ("vit", VIT)):
        for layer in layers:
            print(row(name, layer, args), flush=True)


if __name__ == "__main__":
    main()
