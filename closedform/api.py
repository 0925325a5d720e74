"""Library functions, one for each command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .hw.errors import BadInput, InfeasibleError

if TYPE_CHECKING:
    from .checking import CheckResult
    from .decoding.attention import AttentionExplanation
    from .decoding.explanation import Explanation
    from .emission import Emission
    from .hw.descriptor import HardwareDescriptor
    from .interop.exporting import Export
    from .operators.attention import Attention
    from .operators.conv2d import Conv2d
    from .operators.gemm import Gemm
    from .operators.operator import Operator
    from .predict.answer import Prediction, Selection
    from .profiling import Profile
    from .simulation import Simulation
    from .tuning.session import Tuning
    from .visitors.derivation import Derivation

__all__ = [
    "check",
    "decode",
    "derive",
    "derive_batch",
    "derive_tiles",
    "emit",
    "export",
    "hardware",
    "hardware_names",
    "predict",
    "profile",
    "select",
    "select_batch",
    "simulate",
    "tune",
]


def hardware_names() -> tuple[str, ...]:
    """Names of the catalogued GPUs."""
    from .hw import catalogue

    return tuple(catalogue.names())


def hardware(name: str | Path | HardwareDescriptor) -> HardwareDescriptor:
    """The descriptor of that catalogue name or TOML or JSON file; a descriptor is returned as it is.

    Raises BadInput with near names for an unknown one, and with every error at once for a bad file.
    """
    from .hw import catalogue
    from .hw.descriptor import HardwareDescriptor

    return name if isinstance(name, HardwareDescriptor) else catalogue.find(str(name))


def derive(
    op: Operator,
    hw: str | Path | HardwareDescriptor = "mi300x",
    model: str | None = None,
    **overrides: Any,
) -> Derivation:
    """Tiles of the operator on that GPU, or the constraint that forbids any: a value, never an exception.

    model: "default", of the kernels that we emit, or "paper"; left out, the operator's first.
    `overrides` fix what would be derived: of attention atom ("32x32" or "16x16"), tile_q, tile_kv, waves, splits; of
    gemm, conv2d and softmax their knobs.
    Raises BadInput for names and values that do not exist.
    """
    from .visitors.feasibility import derive as derive_operator

    return derive_operator(op, hardware(hw), model=model, **overrides)


def derive_batch(
    M: Any,
    N: Any,
    K: Any,
    hw: str | Path | HardwareDescriptor = "mi300x",
    *,
    dtype: str = "bf16",
    layout: str = "NN",
) -> dict[str, Any]:
    """Tiles of arrays of products, as `derive` gives each: tile_m, tile_n, tile_k, wave_m, wave_n, split_k, stream_k.

    M, N and K are arrays of extents from 1, or numbers that hold for all. Raises BadInput for a type that the GPU has
    no atom for.
    """
    from .visitors.gemm_default import derive_gemm_batch

    gpu = hardware(hw)
    return derive_gemm_batch(M, N, K, gpu, gpu.resolve_dtype(dtype).name, layout)


def derive_tiles(hw: str | Path | HardwareDescriptor, *, L: int, d: int, dtype: str = "f32", **shape: Any) -> Any:
    """The paper's call: attention tiles by the paper's own derivation.

    `shape` takes the other fields of Attention. Raises InfeasibleError, which carries the binding constraint,
    where no tile fits. The kernels that we emit follow the default model: `derive(Attention(...), hw)`.

    >>> tiles = derive_tiles("paper_b", L=16384, d=128)
    >>> tiles.tile_q, tiles.tile_kv
    (32, 64)
    """
    from .operators.attention import Attention

    op = Attention(L_q=L, L_kv=shape.pop("L_kv", L), d=d, dtype=dtype, **shape)
    derivation = derive(op, hw, model="paper")
    if derivation.infeasible is not None:
        raise InfeasibleError(derivation.infeasible)
    return derivation.tiles


def decode(
    what: str | Path,
    hw: str | Path | HardwareDescriptor = "mi300x",
    *,
    M: int = 4096,
    N: int = 4096,
    K: int = 4096,
    batch: int = 1,
    dtype: str | None = None,
    attention: Attention | None = None,
) -> tuple[Explanation | AttentionExplanation, ...]:
    """Kernels of another tool in our terms: the one of that name, or those of that file.

    M, N, K and batch are the product to predict, row-major, where the source does not name one; `dtype` the type where
    it does not say it; `attention` the operator of kernels of attention, 4096 queries and keys of 16 heads without.
    Raises Undecodable for a name or file that no grammar reads.
    """
    from .decoding.explaining import explained_any
    from .decoding.readers import decoded

    gpu = hardware(hw)
    found = decoded(str(what), gpu)
    shape = (M, N, K, batch)

    def asked() -> Attention:
        from .operators.attention import Attention

        return attention or Attention(4096, 4096, 128, batch=batch, heads=16, dtype=dtype or "bf16")

    return tuple(explained_any(one, gpu, shape, dtype, asked, i, len(found)) for i, one in enumerate(found, 1))


def emit(
    op: Operator,
    hw: str | Path | HardwareDescriptor = "mi300x",
    out: str | Path = "kernels_out",
    *,
    compile: bool | None = None,
    isa: bool = False,
    **overrides: Any,
) -> Emission:
    """Write the kernel and its manifest to the folder `out`; with `isa` the assembly too.

    compile: True compiles and raises MissingDependency where FlyDSL or torch is missing, False does not,
    None compiles where it can. Nothing is written on failure.
    Raises InfeasibleError, BadInput, MissingDependency, and PromiseBroken where the binary exceeds the
    prediction.
    """
    from .emission import emit_to

    return emit_to(derive(op, hw, **overrides), Path(out), compile=compile, isa=isa)


def export(
    op: Gemm | Attention | Conv2d, hw: str | Path | HardwareDescriptor = "mi300x", to: str = "json", **options: Any
) -> Export:
    """Kernels of an operator as a file of another tool: the closed form's one, or a ranked list.

    to: of products triton, inductor, flydsl, tilelang, tensilelite, hipblaslt, ck, iree, aiter, nvmatmul or json, of
    other operators some of them. options: form, count, round_name, place and knobs, as `export_gemm` and
    `export_operator` of `closedform.interop.exporting` take them.
    Raises Refused where the tool takes none, NotOffered where it has no format for the operator, InfeasibleError and
    BadInput.
    """
    from .interop.exporting import export_gemm, export_operator
    from .operators.gemm import Gemm

    gpu = hardware(hw)
    return export_gemm(op, gpu, to, **options) if isinstance(op, Gemm) else export_operator(op, gpu, to, **options)


def check(
    op: Operator,
    hw: str | Path | HardwareDescriptor = "mi300x",
    level: str = "atom",
    *,
    seed: int = 0,
    **overrides: Any,
) -> CheckResult:
    """Execute the operator's tree on the CPU at that level and compare it with float64.

    level: "device", "block", "wave" or "atom"; at atom level 64 lanes x registers are filled through the
    fragment maps, as the kernel does.
    """
    from .checking import check_derivation

    derivation = derive(op, hw, **overrides)
    if derivation.infeasible is not None:
        raise InfeasibleError(derivation.infeasible)
    return check_derivation(derivation, level, seed=seed)


def predict(op: Operator, hw: str | Path | HardwareDescriptor = "mi300x", **config: Any) -> Prediction:
    """Latency of the operator by the calibrated model, with a band and what binds.

    `config` fixes tiles (gemm and conv2d: tile_m, tile_n, tile_k, waves, stages, split_k; attention: tile_q, tile_kv,
    waves, stages); what is left out is what `select` takes. gemm and conv2d take `constants` too, from
    `closedform.predict.constants_from(file, gpu, family)`.
    """
    from .predict.attention_answer import predict_attention
    from .predict.convolution import predict_conv2d
    from .predict.gemm_answer import predict_gemm
    from .predict.softmax import predict_softmax

    answers: dict[str, Callable[..., Prediction]] = {
        "attention": predict_attention,
        "conv2d": predict_conv2d,
        "gemm": predict_gemm,
        "softmax": predict_softmax,
    }
    return answers[op.name](op, hardware(hw), **config)


def select(op: Attention | Conv2d | Gemm, hw: str | Path | HardwareDescriptor = "mi300x", **options: Any) -> Selection:
    """The fastest legal configuration by the model and the runners-up.

    options: count; constants for gemm and conv2d. Raises BadInput for softmax, which has no
    lattice of tiles to rank.
    """
    from .predict.attention_answer import select_attention
    from .predict.convolution import select_conv2d
    from .predict.gemm_answer import select_gemm

    answers: dict[str, Callable[..., Selection]] = {
        "attention": select_attention,
        "conv2d": select_conv2d,
        "gemm": select_gemm,
    }
    if op.name not in answers:
        raise BadInput(f"select has no lattice of tiles for {op.name}: derive gives its tiles")
    return answers[op.name](op, hardware(hw), **options)


def select_batch(
    M: Any,
    N: Any,
    K: Any,
    hw: str | Path | HardwareDescriptor = "mi300x",
    *,
    batch: Any = 1,
    dtype: str = "bf16",
    layout: str = "NN",
    out_dtype: str = "",
) -> dict[str, Any]:
    """Selected configurations of arrays of products: an array for each attribute, and `latency_us`.

    M, N, K and batch are numbers or arrays of one length. `out_dtype` left out is what follows from the type, as for
    one product.
    """
    from dataclasses import fields

    from .hw.dtypes import dtype as named
    from .operators.gemm import Gemm
    from .predict.select import gemm_selector

    gpu = hardware(hw)
    out = gpu.resolve_dtype(out_dtype).name if out_dtype else ""
    one = Gemm(1, 1, 1, dtype=gpu.resolve_dtype(dtype).name, out_dtype=out)
    selector = gemm_selector(gpu, dtype, layout, named(one.result).bits)
    index, latency_us = selector.best(M, N, K, batch)
    chosen = selector.configs.take(index)
    columns = {f.name: getattr(chosen, f.name).astype(int) for f in fields(chosen)}
    return {**columns, "waves": chosen.waves.astype(int), "latency_us": latency_us}


def tune(
    op: Operator,
    hw: str | Path | HardwareDescriptor = "mi300x",
    evaluator: str = "model",
    *,
    journal: str | Path | None = None,
    evaluations: int | None = None,
    seconds: float | None = None,
    grid: bool = False,
    **source: Any,
) -> Tuning:
    """Search from the closed form's kernel, or another that is trusted, a few knobs at a time; never slower than it.

    evaluator: device, profile, model, table or tensilelite. `source` are the other fields of
    `closedform.tuning.session.Source`: table, client, blocks, start. `evaluations` and `seconds` are the budget; `grid`
    measures a cold grid of the same budget beside it.
    Raises NothingMeasured where no candidate gives a time, JournalError, and what the evaluator raises.
    """
    from .tuning.measuring import Budget
    from .tuning.session import Source, run_tuning

    book = None if journal is None else Path(journal)
    limit = Budget(evaluations, seconds)
    return run_tuning(op, hardware(hw), Source(evaluator, **source), journal=book, budget=limit, grid=grid)


def simulate(
    op: Operator,
    hw: str | Path | HardwareDescriptor = "mi300x",
    *,
    blocks: int | None = None,
    sanitizers: bool = True,
    seed: int = 0,
    scalars: Mapping[str, float] = MappingProxyType({}),
    **overrides: Any,
) -> Simulation:
    """Emit, compile for the target and execute the instructions on this CPU; compare with float64.

    blocks: so many workgroups instead of all; only what they finish is compared. `scalars` are alpha, beta and scale of
    gemm. `ok` of the result says whether it is right and nothing was reported. Raises InfeasibleError,
    MissingDependency and PromiseBroken.
    """
    from .simulation import simulate_derivation
    from .simulation_case import How

    derivation = derive(op, hw, "default", **overrides)
    return simulate_derivation(derivation, How(blocks, sanitizers, seed), scalars=scalars)


def profile(
    op: Operator,
    hw: str | Path | HardwareDescriptor = "mi300x",
    *,
    blocks: int | None = 2,
    seed: int = 0,
    **overrides: Any,
) -> Profile:
    """Counts and clocks of `blocks` executed workgroups (None: all), occupancy and static MFMA share of the kernel."""
    from .profiling import profile_derivation
    from .simulation_case import How

    return profile_derivation(derive(op, hw, "default", **overrides), How(blocks, False, seed))
