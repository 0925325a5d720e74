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
@click.option("--L", "L", type=click.IntRange(1), metavar="N", help="Of attention to predict, the queries.")
@click.option("--Lkv", "Lkv", type=click.IntRange(1), metavar="N", help="Its keys; --L when left out.")
@click.option("--d", "d", type=click.IntRange(1), metavar="N", help="Its head dimension.")
@click.option("--heads", type=click.IntRange(1), metavar="N", help="Its heads.")
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
    L: int | None,
    Lkv: int | None,
    d: int | None,
    heads: int | None,
    dtype: str | None,
    number: int,
    hw: str | None,
    cus: int | None,
    as_json: bool,
) -> None:
    """Explain a kernel of another tool: tile, waves, needs, legality, and what the closed form takes.

    WHAT is the name of a TensileLite, hipBLASLt, rocBLAS, FlyDSL or AITER kernel, or a file: TensileLite YAML, a Triton
    autotune cache, a FlyDSL artifact, a table of AITER, a hipBLASLt override, or what `closedform export` wrote.
    A solution name of TensileLite is minimal: what it does not say is unknown. Files of attention are read too; kernels
    of a convolution are explained as those of its product.

    \b
    Examples:
      closedform decode Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_GSU4_MIWT1_1 --hw mi300x
      closedform decode hgemm_bf16_t256x256x64x2_ks1_w2x4x1_gm0_bias0_lnt_phti --hw mi355x --json
    """
    from closedform.decoding.attention import AttentionExplanation, attention_text
    from closedform.decoding.decoded import Decoded
    from closedform.decoding.explaining import explained_any
    from closedform.decoding.readers import decoded, target_of
    from closedform.decoding.report import explanation_text
    from closedform.hw import catalogue
    from closedform.hw.errors import BadInput
    from closedform.operators.attention import Attention

    target = None if hw is not None else target_of(what, catalogue.get(FALLBACK_HARDWARE), number)
    gpu = hardware_from(hw or GPU_OF_TARGET.get(target or ""), cus)
    kind = None if dtype is None else gpu.resolve_dtype(dtype).name
    found = decoded(what, gpu)
    if number > len(found):
        raise BadInput(f"--number {number}: the file has {len(found)} kernels")
    one = found[number - 1]
    product, lengths = {"--M": M, "--N": N, "--K": K}, {"--L": L, "--Lkv": Lkv, "--d": d, "--heads": heads}
    of_product = isinstance(one, Decoded)
    if foreign := [name for name, value in (lengths if of_product else product).items() if value is not None]:
        raise BadInput(f"{', '.join(foreign)}: the kernel is of {'a product' if of_product else 'attention'}")
    if isinstance(one, Decoded):
        named, own, default = one.problem is not None, product, "M = N = K = 4096"
    else:
        named, own, default = one.op is not None, lengths, "L = 4096, d = 128 and 16 heads"
    needed = [name for name in own if name != "--Lkv"]
    options = f"{', '.join(needed[:-1])} and {needed[-1]}"
    if not named and any(own[name] is None for name in needed):
        notice(f"predicted for {default} where not given: choose with {options}")
    if named and any(value is not None for value in own.values()):
        what_for = "product" if of_product else "attention"
        notice(f"the source names its {what_for}: {options} are not used")

    def asked() -> Attention:
        length = L or 4096
        return Attention(length, Lkv or length, d or 128, batch=batch, heads=heads or 16, dtype=kind or "bf16")

    shape = (M or 4096, N or 4096, K or 4096, batch)
    answer = explained_any(one, gpu, shape, kind, asked, number, len(found))
    if as_json:
        print_json(answer.to_json())
    elif isinstance(answer, AttentionExplanation):
        click.echo(attention_text(answer))
    else:
        click.echo(explanation_text(answer))
