"""closedform decode: a kernel of another tool in our terms."""

from __future__ import annotations

import click

from .options import FALLBACK_HARDWARE, hardware_from, json_option
from .output import notice, print_json

__all__ = ["decode"]

#: The GPU that stands for a target.
GPU_OF_TARGET = {"gfx908": "mi100", "gfx90a": "mi250x", "gfx942": "mi300x", "gfx950": "mi355x"}


@click.command()
@click.argument("what", metavar="NAME|FILE")
@click.option("--M", "M", type=click.IntRange(1), metavar="N", help="Rows of D of the product to predict, row-major.")
@click.option("--N", "N", type=click.IntRange(1), metavar="N", help="Columns of D.")
@click.option("--K", "K", type=click.IntRange(1), metavar="N", help="Length of the sum.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Batch.")
@click.option("--dtype", metavar="NAME", help="Type of A and B, where the source does not say it.")
@click.option(
    "--number",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Which kernel of a file that has several.",
)
@click.option("--hw", metavar="NAME|FILE", help="GPU; left out, one of the target that the kernel says, else mi300x.")
@click.option("--cus", type=int, metavar="N", help="Compute units, where fewer than all are visible.")
@json_option
def decode(
    what: str,
    M: int | None,
    N: int | None,
    K: int | None,
    batch: int,
    dtype: str | None,
    number: int,
    hw: str | None,
    cus: int | None,
    as_json: bool,
) -> None:
    """Explain a kernel of another tool: tile, waves, needs, legality, and what the closed form takes.

    WHAT is the name of a TensileLite, hipBLASLt, rocBLAS, FlyDSL or AITER kernel, or a file: TensileLite YAML, a Triton
    autotune cache, a FlyDSL artifact, a table of AITER, a hipBLASLt override, or what `closedform export` wrote.
    A solution name of TensileLite is minimal: what it does not say is unknown.

    \b
    Examples:
      closedform decode Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_GSU4_MIWT1_1 --hw mi300x
      closedform decode hgemm_bf16_t256x256x64x2_ks1_w2x4x1_gm0_bias0_lnt_phti --hw mi355x --json
    """
    from closedform.decoding.explanation import explained
    from closedform.decoding.readers import decoded, target_of
    from closedform.decoding.report import explanation_text
    from closedform.hw import catalogue
    from closedform.hw.errors import BadInput

    target = None if hw is not None else target_of(what, catalogue.get(FALLBACK_HARDWARE), number)
    gpu = hardware_from(hw or GPU_OF_TARGET.get(target or ""), cus)
    kind = None if dtype is None else gpu.resolve_dtype(dtype).name
    found = decoded(what, gpu)
    if number > len(found):
        raise BadInput(f"--number {number}: the file has {len(found)} kernels")
    one = found[number - 1]
    extents = (M, N, K)
    if one.problem is None and None in extents:
        notice("predicted for M = N = K = 4096 where not given: choose with --M, --N and --K")
    if any(extents) and one.problem is not None:
        notice("the source names its product: --M, --N and --K are not used")
    shape = (M or 4096, N or 4096, K or 4096, batch)
    answer = explained(one, gpu, shape, kind, number, len(found))
    if as_json:
        print_json(answer.to_json())
    else:
        click.echo(explanation_text(answer))
